"""Watchdogs: one file per check. `probe` looks and is the only I/O; `judge` is pure."""
