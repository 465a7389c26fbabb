"""Parts of the `log` watchdog: progress patterns, log readers, run directories, and the time allowed without progress.

`reading.py` defines the values; `digest.py` updates them from new lines; `tail.py` reads those lines and `rundirs.py`
the run directories; `paths.py` and `runs.py` probe; `losses.py` interprets the journals; `judge.py` judges.
"""
