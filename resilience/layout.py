"""Where things lie in a run directory, and the words written there. Pure.

The batch shell (slurm_templates/), the guard and the command line all meet in this directory; these names are their
contract. docs/reference/run-directory.md shows one.
"""

from __future__ import annotations

RUN_FILE = "run.toml"
SUBMISSIONS = "submissions.jsonl"
SCRIPTS = "scripts"
LOGS = "logs"
SWITCHES = "switches"
BEATS = "beats"
JOURNAL = "journal"
ATTEMPTS = "attempts"
FINISHED = "finished"
LEARNED = "learned"
"""`learned/<rank>.json`: what the guard knows of steps, saves and the loss, for the next job and the batch shell."""
AGREEMENT = "agreement"
"""`agreement/<launch>`: where rank 0 listens, and the token by which ranks know each other. Mode 0600."""

KILL_SWITCH = "kill"
SAVE_SWITCH = "save"
STOP_PREFIX = "stop."
"""`switches/stop.<jobid>`: the batch shell of that job was told that its time is nearly over."""
STACKS_PREFIX = "stacks."
"""`switches/stacks.<jobid>`: the batch shell wants to know where all ranks hang."""

GUARD_PREFIX = "RESIL_GUARD__"
"""The batch script exports each setting of [guard] as `RESIL_GUARD__KEY`."""

FOLDERS = (SCRIPTS, LOGS, SWITCHES, BEATS, JOURNAL, ATTEMPTS)


def attempt_file(number: int) -> str:
    """Name of the file whose creation takes attempt `number`: the fencing token (`attempts/0003`)."""
    return f"{number:04d}"


def attempt_beat_file(number: int) -> str:
    """Name of the file by which attempt `number` shows that it lives (`attempts/0003.beat`)."""
    return f"{attempt_file(number)}.beat"


def attempt_end_file(number: int) -> str:
    """Name of the file that says attempt `number` is truly over (`attempts/0003.end`)."""
    return f"{number:04d}.end"
