"""What makes the ticks of cron: one file each. `resil cron install --backend NAME` takes them by the file's name."""
