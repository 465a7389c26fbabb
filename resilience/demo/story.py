"""What happened in the demo, from the run directory's own files: attempts, steps, why each ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from resilience import layout
from resilience.runs.attempts import Attempt, AttemptEnd
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import read_attempts
from resilience.system.files import read_lines, read_regular

_CAUSES = {
    "kill": "kill switch",
    "stop": "time limit",
    "walltime": "time limit",
    "signal": "signal",
    "host_memory": "memory",
    "shared_memory": "memory",
}
"""What people call what the guard's triggers watch."""


@dataclass(frozen=True, slots=True)
class DemoAttempt:
    """One attempt that trained.

    Attributes:
        job_id: SLURM_JOB_ID of its job.
        first_step: the checkpoint it resumed from.
        last_step: the last step it completed.
        redone: steps that the attempt before had done already, and lost.
        saved: the step and the label of each save that was asked for and after which it went on.
        why: why it ended, in a few words; empty while it runs.
        reasons: what the guard said about it, if it was the guard that stopped it.
        seconds: how long it lasted; None while it runs.
    """

    number: int
    job_id: int
    label: str
    host: str
    first_step: int
    last_step: int
    redone: int
    saved: tuple[tuple[int, str], ...]
    why: str
    reasons: tuple[str, ...]
    seconds: float | None
    exit_code: int | None

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for what is known so far; a key comes up once."""
        again = f", {self.redone} steps to do again" if self.redone else ""
        if self.seconds is None or self.last_step > self.first_step:
            verb = "resumes" if self.first_step else "starts"
            yield "start", f"attempt {self.number} (job {self.label}) {verb} at step {self.first_step}{again}"
        for step, label in self.saved:
            yield f"save {step}", f"attempt {self.number} saved at step {step} as {label!r}, and goes on"
        if self.why:
            yield "end", f"attempt {self.number} ended at step {self.last_step}: {self.why}"
            for reason in self.reasons:
                yield reason, f"  because {reason}"


def tell_attempts(directory: RunDirectory) -> tuple[DemoAttempt, ...]:
    """The attempts that trained, oldest first."""
    told: list[DemoAttempt] = []
    for attempt in read_attempts(directory):
        events = _events(directory, attempt)
        first = next((_step(event) for event in events if event.get("event") == "resume"), None)
        if first is None:
            continue
        last = max([first, *map(_step, events), _beat(directory, attempt)])
        before = told[-1].last_step if told else first
        decisions = [event for event in events if event.get("event") == "decision"]
        stop = next((event for event in decisions if event.get("stop")), {}) if attempt.end else {}
        told.append(
            DemoAttempt(
                number=attempt.number,
                job_id=attempt.job_id,
                label=attempt.label,
                host=attempt.host,
                first_step=first,
                last_step=last,
                redone=max(0, before - first),
                saved=tuple((_step(event), str(event.get("label"))) for event in decisions if not event.get("stop")),
                why=_why(attempt, stop),
                reasons=_texts(stop, "reasons"),
                seconds=None if attempt.end_time is None else attempt.end_time - attempt.start_time,
                exit_code=attempt.exit_code,
            )
        )
    return tuple(told)


def turned_away_jobs(directory: RunDirectory) -> int:
    """How many jobs ended as they started because somebody had stopped the run: they never became an attempt."""
    ends = [
        record
        for path in (directory.path / layout.JOURNAL).glob("*.batch.jsonl")
        for record in read_lines(path)
        if record.get("event") == "attempt_end" and record.get("attempt") is None
    ]
    return sum(end.get("end") == AttemptEnd.STOPPED for end in ends)


def _events(directory: RunDirectory, attempt: Attempt) -> list[dict[str, object]]:
    path = directory.path / layout.JOURNAL / f"{attempt.job_id}.0.jsonl"
    return [record for record in read_lines(path) if record.get("attempt") == attempt.number]


def _step(event: dict[str, object]) -> int:
    return int(str(event.get("step", 0)))


def _beat(directory: RunDirectory, attempt: Attempt) -> int:
    """The last step that a heartbeat of this attempt shows: more than was saved, when it was killed."""
    best = 0
    for path in (directory.path / layout.BEATS).glob(f"{attempt.job_id}.*"):
        found = read_regular(path)
        whole = found[0].decode("utf-8", "replace").partition("[")[0] if found else ""  # before the ranks' own tables
        fields = dict(line.split(" = ", 1) for line in whole.splitlines() if " = " in line)
        if fields.get("attempt") == str(attempt.number) and fields.get("step", "").isdigit():
            best = max(best, int(fields["step"]))
    return best


def _texts(event: dict[str, object], key: str) -> tuple[str, ...]:
    found = event.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _why(attempt: Attempt, stop: dict[str, object]) -> str:
    """Why it ended: what the guard decided, or what the exit code says where it decided nothing."""
    if attempt.end is None:
        return ""
    if attempt.end is AttemptEnd.FINISHED:
        return "finished"
    if stop:
        cause = next((_CAUSES[name] for name in _texts(stop, "triggers") if name in _CAUSES), "the guard")
        return f"{cause}: it {'saved and ' if stop.get('save') else ''}stopped"
    if attempt.end is AttemptEnd.STOPPED:
        return "stopped on purpose"
    if attempt.exit_code is not None and attempt.exit_code > 128:
        return f"killed by signal {attempt.exit_code - 128}"
    if attempt.end is AttemptEnd.EXITED:
        return "crashed" if attempt.exit_code else "ended"
    return attempt.end.value
