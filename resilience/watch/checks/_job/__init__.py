"""Parts of the job watchdog: subjects, queries, confirmation, findings, and status lines."""
