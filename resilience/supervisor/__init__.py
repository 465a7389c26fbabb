"""`resil run -- command`: supervises a command that cannot be changed, in a job or without one.

`command.py` starts the command, forwards signals and takes its exit code; `tee.py` copies its output; `records.py`
writes to the run directory, in a process of its own that may hang (`records_process.py` is the supervisor's end of it);
`attempt.py` is the record of an attempt there; `asking.py` asks the command to stop or to save; `supervisor.py`
connects them.
"""
