"""Parts of the SLURM client: commands, parsers, submission. The entry point is `../slurm.py`."""
