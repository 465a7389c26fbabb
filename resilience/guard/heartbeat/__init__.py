"""What others see of the training: its heartbeat, copied to the run directory from outside, and its journal.

`beat.py` is the memory that each step stores into; `writer.py` is what the guard starts; `process.py` the process
beside the ranks of a node, with `files.py` its one thread that touches files, and `line.py` a rank's connection to it.
"""
