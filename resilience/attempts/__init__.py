"""Attempts of a run: why each ended, and what follows from it.

`failure.py` has the words, `rules/` the lines that failures print (data, one file per family), `classify.py` decides
from the evidence.
"""
