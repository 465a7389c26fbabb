"""Parts of the `log` watchdog: what a step looks like, what is new in a log, how long is too long.

`reading.py` has the values; `digest.py` turns new lines into them; `tail.py` reads those lines and `rundirs.py` the run
directories; `paths.py` and `runs.py` probe; `losses.py` interprets the journals; `judge.py` judges.
"""
