"""The stories of `resil cron`: what a tick does, who makes it, what is seen of it, and who is told."""
