"""Disk usage of directory trees, as `du -x` counts it: parallel, with a deadline, and incremental."""
