"""Cron for clusters without cron: scheduler ticks, the drivers that make them, entries, status and reports."""
