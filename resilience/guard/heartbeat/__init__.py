"""The training as others see it: its heartbeat, copied to the run directory from outside, and its journal.

`beat.py` is the memory that each step stores into; `writer.py` the part of the guard; `process.py` the writer process
beside the ranks of a node, and `connection.py` a rank's connection to it; `run_directory.py` writes for both. Settings
and documentation call the writer of a node its mirror.
"""
