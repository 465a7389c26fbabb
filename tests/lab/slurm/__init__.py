"""A real SLURM, started and ended by the tests that use it."""
