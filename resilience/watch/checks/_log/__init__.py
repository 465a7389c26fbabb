"""Parts of the `log` watchdog: lines and their positions, log readers, run directories, and the time allowed.

`reading.py` defines the values; `digest.py` updates them from new lines, by `positions.py` and `markers.py`; `tail.py`
reads those lines and `rundirs.py` the run directories; `paths.py` and `runs.py` probe; `teaching.py` learns from the
logs of earlier jobs; `losses.py` interprets the journals; `judge.py` judges.
"""
