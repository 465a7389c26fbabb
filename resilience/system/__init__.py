"""The only doors to the machine: clock, processes, files, the run directory."""
