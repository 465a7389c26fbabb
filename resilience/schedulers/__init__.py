"""Scheduler clients: one file per scheduler, the file's name is the scheduler's name. Form, run, parse."""
