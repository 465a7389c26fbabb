"""What would have happened: a run that lives under failures, queue waits and rules for saving, many times over. Pure.

Decisions are made by the code that makes them for real runs: attempts/breaker.py and cadence.py.
"""
