"""Parts of the watchdog for cron."""
