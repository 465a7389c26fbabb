"""Keeps a long training alive on SLURM until it is finished, and wakes a person only when a person is needed.

Importing this package imports nothing else: `from resilience.guard import TrainingGuard` runs on every rank of
a training, from a shared file system.
"""

__version__ = "0.1.0"
