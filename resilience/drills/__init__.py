"""`resil drill`: faults on purpose, in a run of their own, with the user's own command, settings and cluster.

A drill is a file in library/. isolation.py keeps a drill away from the real run, training.py starts the training,
breaks it and measures, rehearse.py runs drills one after another, and scratch.py cleans up.
"""
