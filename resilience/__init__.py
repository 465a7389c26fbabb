"""Keeps long trainings alive on SLURM until they are finished, and alerts a person only when action is needed.

Importing this package imports nothing else: every rank of a training runs `from resilience.guard import TrainingGuard`
from a shared file system.
"""

__version__ = "0.1.0"
