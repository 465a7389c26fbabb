"""Tests of `resil drill`: verdicts and plans as tables; real drills are in tests/end_to_end and tests/slurm."""
