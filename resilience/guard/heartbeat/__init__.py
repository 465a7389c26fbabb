"""The heartbeat of a training, copied to the run directory from outside the training thread, and its journal.

`beat.py` is the shared memory that each step stores into; `writer.py` the guard's side; `process.py` the writer process
beside the ranks of a node, and `connection.py` a rank's connection to it; `run_directory.py` writes for both. Settings
and documentation call the writer of a node its mirror.
"""
