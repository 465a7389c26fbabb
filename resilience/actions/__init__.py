"""One file per story the command line tells: plan (pure), then perform."""
