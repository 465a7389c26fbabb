"""The table of entries, due slots, and the supervisors of runs."""
