"""How all ranks come to the same decision at the same step.

`coordinator.py` (with `rounds.py`, `ranks.py` and `recovery.py`) and `member.py` are the protocol, pure: messages in,
messages out. `network.py` carries the messages over TCP, `rendezvous.py` is how ranks find each other, `base.py` has
the interface and the agreement of a single process, `collective.py` is an all-reduce for those who want one. Why no two
ranks can differ: docs/explanation/agreement.md.
"""
