"""What the watchdog of cron is made of."""
