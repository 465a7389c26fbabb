"""Tests against a real SLURM, booted on loopback by `tests.slurm.cluster`."""
