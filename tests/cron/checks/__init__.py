"""Tests of the watchdog of cron."""
