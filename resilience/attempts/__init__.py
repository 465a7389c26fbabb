"""Attempts of a run: why each ended, and what follows from it.

`failure.py` has the words, `rules/` the lines that failures print (data, one file per family); `classify.py` decides
why, from evidence that `ledger.py` and `reconcile.py` gather and keep; `breaker.py` decides what follows, and
`acting.py` and `never_dry.py` do it.
"""
