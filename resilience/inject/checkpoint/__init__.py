"""Alters checkpoints bit by bit, to see what a training survives: always a copy, unless a person asks otherwise.

`number_types.py`, `bits.py`, `settings.py` and `plan.py` decide what is altered (pure); `layouts/` (plugins) know
where the numbers of a file are; `in_use.py` refuses what would harm a run; `alter.py` writes; `sequence.py` is the
record that replays an alteration elsewhere, or undoes it.

After the alteration tool of the hdf5_corrupter (diepe28, MIT); docs/decisions/0043 has the names of its settings.
"""
