"""How all ranks come to the same decision at the same step.

`coordinator.py` and `member.py` are the protocol, pure: messages in, messages out. `network.py` carries the messages
over TCP, `meeting.py` is how ranks find each other, `alone.py` serves one process, `collective.py` is an all-reduce
for those who want one. Why no two ranks can differ: docs/explanation/agreement.md.
"""
