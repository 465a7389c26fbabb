"""Attempts of a run: why each ended, and what follows from it.

`failure.py` has the words, `rules/` the lines that failures print (data, one file per family), and `log_reading.py`
finds these in a log; `classify.py` decides why, from that and from evidence that `ledger.py` and `reconcile.py` gather
and keep; `breaker.py` decides what follows, and `acting.py` and `never_dry.py` do it.
"""
