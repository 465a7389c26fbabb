"""Tests against a real SLURM, booted on loopback by `tests.lab.slurm.cluster`."""
