"""Parts of the job watchdog: whom it looks at, how it asks, how it makes sure, what it says, and its pulse."""
