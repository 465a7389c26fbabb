"""What the ledger of time of a long run costs: 10,000 attempts and 10 million lines of journals, read line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import MIB, BenchmarkError, Claim, Options, Report, Row, Spread, interleave
from resilience.attempts.failure import Confidence, Failure, FailureClass
from resilience.attempts.ledger import VERSION, KeptEnd
from resilience.records import to_record

ATTEMPTS, QUICK_ATTEMPTS = 10_000, 100
LINES = 1_000
"""Of each attempt: a line of progress each minute, and a save each half hour."""
SAVE_EVERY = 30
BEGIN = 1_700_000_000
LENGTH_S = 60_000
TARGET, MEMORY_MIB = 8.0, 1024.0
_FOLD = """
import json, resource, sys, time
from pathlib import Path
from resilience.report.reading import read_goodput
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.settings.load import load
from resilience.system.ports import Host, System
from resilience.system.process import ProcessRunner
path = Path(sys.argv[1])
system = System(runner=ProcessRunner(), environ={}, host=Host("n1", "ada", 1, path), cwd=path)
(path / "resil.toml").touch()
project = Project(system, load(system))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
found = read_goodput(project, RunDirectory(path / "run"), ask_scheduler=False)
took = time.process_time() - began
assert sum(found.ms.values()) == found.wall_ms and len(found.by_attempt) == int(sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([took, peak - before, len(found.spans), found.ettr]))
"""


def run(options: Options) -> Report:
    """Fold a run directory, in turn with a plain read of the same lines, each in a process of its own."""
    attempts = QUICK_ATTEMPTS if options.quick else ATTEMPTS
    made = _make_run(options.scratch / "run", attempts)
    folded: list[tuple[float, float, int, float]] = []

    def fold() -> float:
        folded.append(_python(_FOLD, str(options.scratch), str(attempts)))
        return folded[-1][0]

    count = max(1, options.samples // 7)
    taken = interleave({
        "fold": fold,
        "read": lambda: _lines(_READ, options.scratch, made),
        "parse": lambda: _lines(_PARSE, options.scratch, made),
    }, count, warm_ups=0)  # fmt: skip
    memory = Spread(tuple(kib * 1024 for _, kib, _, _ in folded))
    what = f"{made:,} lines of {attempts:,} attempts"
    rows = (
        Row(f"the ledger of time of {what}", taken["fold"], "json.loads of each line", taken["parse"], TARGET),
        Row("the same", taken["fold"], "for line in file", taken["read"]),
    )
    most = float("nan") if options.quick else MEMORY_MIB
    claims = (
        Claim("peak memory above the imports", memory.median / MIB, most, "MiB"),
        Claim("lines in a second", made / taken["fold"].median, float("nan"), "lines"),
    )
    notes = (
        f"{folded[0][2]:,} spans; they are what grows: two for each save, none for a line of progress",
        "the ends of the attempts are classified already, as the watchdogs leave them; the scheduler is not asked",
        "CPU time, because the machine was shared",
    )
    return Report("where the time of a long run went", rows, notes, claims)


_READ = """
import json, sys, time
from pathlib import Path
began, lines = time.process_time(), 0
for path in sorted(Path(sys.argv[1], "run", "journal").iterdir()):
    with open(path, "rb") as file:
        for line in file:
            lines += 1
print(json.dumps([time.process_time() - began, lines, 0, 0.0]))
"""
_PARSE = _READ.replace("lines += 1", "json.loads(line); lines += 1")


def _lines(program: str, scratch: Path, expected: int) -> float:
    took, lines, *_ = _python(program, str(scratch))
    if lines != expected:
        raise BenchmarkError(f"{lines:,} lines were read, not {expected:,}")
    return took


def _python(program: str, *arguments: str) -> tuple[float, float, int, float]:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(done.stderr[-2000:])
    took, kib, number, share = json.loads(done.stdout)
    return took, kib, number, share


def _make_run(path: Path, attempts: int) -> int:
    """Write a run that fails after each attempt, an hour of steps after its last save; return its journals' lines."""
    for name in ("attempts", "journal"):
        (path / name).mkdir(parents=True)
    (path / "run.toml").touch()
    failure = Failure(failure=FailureClass.GPU_FAULT, confidence=Confidence.CERTAIN, reason="Xid 79")
    lines = 0
    for number in range(1, attempts + 1):
        job, start = 1000 + number, BEGIN + number * LENGTH_S * 1.1
        lines += _make_attempt(path, number, job, start, failure)
    return lines


def _make_attempt(path: Path, number: int, job: int, start: float, failure: Failure) -> int:
    name = f"{number:04d}"
    table = f'job_id = {job}\nlabel = "{job}"\nhost = "n1"\nstart = {start:.0f}\n'
    (path / "attempts" / name).write_text(table)
    end = f'end = "exited"\nexit_code = 1\ntime = {start + LENGTH_S:.0f}\n'
    (path / "attempts" / f"{name}.end").write_text(end)
    kept = KeptEnd(end="exited", failure=failure, is_reconciled=True)
    (path / "attempts" / f"{name}.why").write_text(json.dumps({"version": VERSION, **to_record(kept)}))
    rank: list[tuple[str, float, dict[str, object]]] = []
    progress: list[tuple[str, float, dict[str, object]]] = []
    step = number * 20_000
    batch: list[tuple[str, float, dict[str, object]]] = [("attempt_start", 0.0, {}), ("launch", 10.0, {})]
    rank += [("start", 20.0, {"step": 0, "world": 64}), ("resume", 40.0, {"step": step})]
    minutes = round((LINES - 6) / (1 + 3 / SAVE_EVERY))
    for minute in range(minutes):
        step, at = step + 30, 60.0 * (minute + 2)
        progress.append(("progress", at, {"step": step}))
        if minute % SAVE_EVERY == SAVE_EVERY - 1:
            for event, later in (("save_begin", 20.0), ("save_staged", 25.0), ("save", 50.0)):
                rank.append((event, at + later, {"step": step + 10}))
    batch.append(("attempt_end", float(LENGTH_S), {"end": "exited"}))
    for whose, events in (("batch", batch), ("0", rank), ("progress", progress)):
        head = {"attempt": number} if whose == "progress" else {"attempt": number, "rank": 0, "host": "n1"}
        text = "".join(
            json.dumps({"event": event, "time": round(start + at, 3), **head, **fields}, separators=(",", ":")) + "\n"
            for event, at, fields in events
        )
        (path / "journal" / f"{job}.{whose}.jsonl").write_text(text)
    return len(batch) + len(rank) + len(progress)
