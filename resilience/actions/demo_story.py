"""What happened in the demo, from the run directory's own files: attempts, steps, why each ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from resilience.model import layout
from resilience.model.attempt import Attempt, AttemptEnd
from resilience.system.attempts import read_attempts
from resilience.system.files import read_lines, read_regular
from resilience.system.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class DemoAttempt:
    """One attempt that trained.

    Attributes:
        first_step: the checkpoint it resumed from.
        last_step: the last step it completed.
        redone: steps that the attempt before had done already, and lost.
        why: why it ended, in words; empty while it runs.
        seconds: how long it lasted; None while it runs.
    """

    number: int
    label: str
    host: str
    first_step: int
    last_step: int
    redone: int
    why: str
    seconds: float | None
    exit_code: int | None

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for what is known so far; a key comes up once."""
        again = f", {self.redone} steps to do again" if self.redone else ""
        if self.seconds is None or self.last_step > self.first_step:
            verb = "resumes" if self.first_step else "starts"
            yield "start", f"attempt {self.number} (job {self.label}) {verb} at step {self.first_step}{again}"
        if self.why:
            yield "end", f"attempt {self.number} ended at step {self.last_step}: {self.why}"


def tell_attempts(directory: RunDirectory) -> tuple[DemoAttempt, ...]:
    """The attempts that trained, oldest first."""
    told: list[DemoAttempt] = []
    for attempt in read_attempts(directory):
        events = _events(directory, attempt)
        if not events:
            continue
        first = int(str(events[0].get("step", 0)))
        last = max([first, *_saved_steps(events), _beat(directory, attempt)])
        before = told[-1].last_step if told else first
        told.append(
            DemoAttempt(
                number=attempt.number,
                label=attempt.label,
                host=attempt.host,
                first_step=first,
                last_step=last,
                redone=max(0, before - first),
                why=_why(attempt),
                seconds=None if attempt.end_time is None else attempt.end_time - attempt.start_time,
                exit_code=attempt.exit_code,
            )
        )
    return tuple(told)


def _events(directory: RunDirectory, attempt: Attempt) -> list[dict[str, object]]:
    path = directory.path / layout.JOURNAL / f"{attempt.job_id}.0.jsonl"
    return [record for record in read_lines(path) if record.get("attempt") == attempt.number]


def _saved_steps(events: list[dict[str, object]]) -> list[int]:
    return [int(str(event["step"])) for event in events if event.get("event") == "save"]


def _beat(directory: RunDirectory, attempt: Attempt) -> int:
    """The last step that a heartbeat of this attempt shows: more than was saved, when it was killed."""
    best = 0
    for path in (directory.path / layout.BEATS).glob(f"{attempt.job_id}.*"):
        found = read_regular(path)
        fields = (
            dict(line.split(" = ", 1) for line in found[0].decode("utf-8", "replace").splitlines() if " = " in line)
            if found
            else {}
        )
        if fields.get("attempt") == str(attempt.number) and fields.get("step", "").isdigit():
            best = max(best, int(fields["step"]))
    return best


def _why(attempt: Attempt) -> str:
    if attempt.end is None:
        return ""
    if attempt.end is AttemptEnd.FINISHED:
        return "finished"
    if attempt.end is AttemptEnd.STOPPED:
        return "its time was nearly over: it saved and stopped"
    if attempt.exit_code is not None and attempt.exit_code > 128:
        return f"killed by signal {attempt.exit_code - 128}"
    if attempt.end is AttemptEnd.EXITED:
        return "crashed" if attempt.exit_code else "ended"
    return attempt.end.value
