"""Parts of the drivers that write into somebody else's table: crontab, scrontab, systemd's units."""
