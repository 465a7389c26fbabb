"""Silent data corruption: wrong values without an error. Opt-in, `sdc = true` in [guard]; standard library only.

bounds.py      which values of a tensor are abnormal
ring.py        the state before the last two steps
replay.py      what an abnormal step was, by its replay
replicas.py    whether ranks that must be equal are
comparison.py  asks the ranks every few steps
watch.py       runs the steps: `guard.sdc(state)`
"""
