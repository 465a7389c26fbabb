"""Names of the files in a run directory. Pure.

The batch shell (slurm_templates/), the guard and the command line share this directory; these names are their
contract. See docs/reference/run-directory.md.
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
"""`learned/<rank>.json`: the guard's measurements of steps, saves and loss, for the next job and the batch shell."""
STOPS = "stops.json"
"""`learned/stops.json`: stops because the training's state was ruined, for the next attempts and the breaker."""
TRACES = "traces"
"""`traces/<jobid>.<restart>/rank_<n>`: the dumps of torch's flight recorder."""
HANGS = "hangs"
"""`hangs/<attempt>-<step>.html` and `.txt`: the evidence of a hang; `.acted`: what was done about it, as JSON."""
INJECTIONS = "injections"
"""`injections/<id>.json`: faults that were injected on purpose, written before they start."""
AGREEMENT = "agreement"
"""`agreement/<launch>`: the address of rank 0, and the token that authenticates ranks. Mode 0600."""

KILL_SWITCH = "kill"
SAVE_SWITCH = "save"
STOP_PREFIX = "stop."
"""`switches/stop.<jobid>`: the batch shell of that job received the warning signal before the time limit."""
STACKS_PREFIX = "stacks."
"""`switches/stacks.<jobid>`: the batch shell requests the stacks of all ranks."""

GUARD_PREFIX = "RESIL_GUARD__"
"""The batch script exports each setting of [guard] as `RESIL_GUARD__KEY`."""
CHECKPOINTS_PREFIX = "RESIL_CHECKPOINTS__"
"""The same for [checkpoints]."""

ALLOW_INJECT = "RESIL_ALLOW_INJECT"
"""The batch script exports it as `true` if `allow_inject` is set below [run]: only then the guard injects faults."""

BREAKER, BREAKER_HELD, BREAKER_CLOSED = "breaker", "breaker.held", "breaker.closed"
"""In `attempts/`: exists while the breaker is open; the jobs that it holds; the attempts that no longer count."""
EXCLUDED = "excluded.json"
"""In `attempts/`: bad hosts, and the queued jobs that must not use them because of that."""

FOLDERS = (SCRIPTS, LOGS, SWITCHES, BEATS, JOURNAL, ATTEMPTS)


def attempt_file(number: int) -> str:
    """Return the name of the file whose creation claims attempt `number`: the fencing token (`attempts/0003`)."""
    return f"{number:04d}"


def attempt_beat_file(number: int) -> str:
    """Return the name of the heartbeat file of attempt `number` (`attempts/0003.beat`)."""
    return f"{attempt_file(number)}.beat"


def attempt_end_file(number: int) -> str:
    """Return the name of the file that records the end of attempt `number` (`attempts/0003.end`)."""
    return f"{attempt_file(number)}.end"
