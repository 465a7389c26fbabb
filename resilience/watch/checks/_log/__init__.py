"""Parts of the `log` watchdog: what a step looks like, what is new in a log, how long is too long.

`words.py` has the values; `digest.py` turns new lines into them; `tail.py` reads those lines and `rundirs.py` the
run directories; `losses.py` and `saves.py` make sense of the journals; `threshold.py` and `sentences.py` judge.
"""
