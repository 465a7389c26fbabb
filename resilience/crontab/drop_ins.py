"""What a file in `cron.hourly` means: it runs, it is submitted, or it is ignored and why. Pure."""
