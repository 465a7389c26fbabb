"""Parts of the SLURM client: forming commands, reading answers, submitting once. `../slurm.py` is the entry."""
