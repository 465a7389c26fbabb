"""`resil run -- command`: supervises a command that cannot be changed, in a job or without one.

`command.py` starts the command, forwards signals and takes its exit code; `tee.py` copies its output; `records.py`
writes to the run directory, in a thread that may hang; `attempt.py` is its record of an attempt; `asking.py` asks the
command to stop or to save; `supervisor.py` connects them.
"""
