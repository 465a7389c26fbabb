"""The agreement: all ranks make the same decision at the same step.

`coordinator.py` (with `rounds.py`, `ranks.py` and `recovery.py`) and `member.py` are the protocol, pure: messages in,
messages out. `network.py` carries the messages over TCP, `rendezvous.py` lets ranks find each other, `base.py` has the
interface and the agreement of a single process, `collective.py` is an alternative with torch's collectives. The proof
that no two ranks can differ: docs/explanation/agreement.md.
"""
