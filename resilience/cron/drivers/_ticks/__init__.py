"""Parts of the drivers that write to tables shared with others: crontab, scrontab, systemd's units."""
