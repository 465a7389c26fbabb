"""What would keep one entry from running: its times, its program, its interpreter, and how it ended last."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.records import Entry, Kind, Overlap
from resilience.cron.runs import runs_of
from resilience.cron.words import span_text
from resilience.doctor.cluster import Diagnosis
from resilience.finding import Verdict
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Installation
    from resilience.settings.cron_settings import CronSettings


def judge_times(
    entry: Entry, settings: CronSettings, installation: Installation | None, now: float
) -> Iterator[Diagnosis]:
    """Given an entry, yield what is wrong with its times: it never comes, or may run longer than there is room. Pure.

    A run that is still under way when the next slot comes costs that slot, if `overlap` is `skip`.
    """
    from resilience.cron.table.expression import parse_schedule

    schedule = parse_schedule(entry.schedule, entry.zone)
    if schedule.is_reboot:
        return
    if schedule.next_after(now) is None:
        text = f"{entry.schedule} never comes: it never runs"
        yield Diagnosis(entry.name, Verdict.CRITICAL, text, f"correct {entry.place}")
        return
    if entry.kind is Kind.SUBMIT:
        return
    timeout_s, period_s = entry.options.timeout_s, schedule.period_s(now)
    if not timeout_s:
        if entry.options.overlap is Overlap.SKIP:
            text = "has no timeout: when it hangs once, it never runs again"
            yield Diagnosis(entry.name, Verdict.WARNING, text, "give it one: # resil: timeout=10m")
    elif timeout_s > period_s and entry.options.overlap is Overlap.SKIP:
        text = (
            f"may run for {format_duration(timeout_s)} and is due every {format_duration(period_s)}: "
            "slots that come meanwhile are skipped"
        )
        advice = f"# resil: timeout={span_text(period_s)}, or overlap=allow"
        yield Diagnosis(entry.name, Verdict.WARNING, text, advice)
    limit_s, what = room_s(settings, installation)
    if limit_s and (timeout_s > limit_s or not timeout_s):
        text = f"may run longer than {what} ({format_duration(limit_s)}), and is ended with it"
        advice = "run it as a job of its own (NAME.slurm), shorten its timeout, or raise the limit in [cron]"
        yield Diagnosis(entry.name, Verdict.WARNING, text, advice)


def room_s(settings: CronSettings, installation: Installation | None) -> tuple[float, str]:
    """How long anything can run under the driver, in seconds, and what ends it then; 0: for ever. Pure."""
    if installation is None or installation.driver != "slurm":
        return 0.0, ""
    if installation.mode == "pulse":
        return settings.pulse_limit_s, "a pulse's job may take, [cron] pulse_limit_s"
    return settings.time_limit_s, "the scheduler's job may take, [cron] time_limit_s"


def program_of(cron: CronProject, entry: Entry) -> Iterator[Diagnosis]:
    """Whether there is what an entry wants to start: with its own small PATH, not with the person's."""
    if entry.kind is Kind.SUBMIT or not entry.argv:
        return
    program, path = entry.argv[0], environment_of(cron, entry).get("PATH", "")
    if "/" not in program:
        if shutil.which(program, path=path) is None:
            yield Diagnosis(
                entry.name,
                Verdict.CRITICAL,
                f"there is no program {program!r} on the PATH that it gets",
                "write its whole path; the PATH: resil cron doctor --environment",
            )
        return
    file = cron.project.loaded.project / program
    if not file.is_file():
        yield Diagnosis(entry.name, Verdict.CRITICAL, f"{file} does not exist", f"correct {entry.place}")
    elif not os.access(file, os.X_OK):
        yield Diagnosis(entry.name, Verdict.CRITICAL, f"{file} may not be executed", f"chmod +x {file}")
    else:
        yield from _interpreter(entry, file, path)


def _interpreter(entry: Entry, file: Path, path: str) -> Iterator[Diagnosis]:
    """Whether the program that a script names in its first line (execve(2)) is there."""
    with file.open("rb") as opened:
        first = opened.read(256).partition(b"\n")[0]
    if not first.startswith(b"#!"):
        return
    if first.endswith(b"\r"):
        yield Diagnosis(
            entry.name, Verdict.CRITICAL, f"{file} has Windows line ends: its interpreter is not found",
            f"sed -i 's/\\r$//' {file}",
        )  # fmt: skip
        return
    words = os.fsdecode(first[2:]).split()
    if not words:
        return
    missing = words[0] if not Path(words[0]).exists() else ""
    if not missing and Path(words[0]).name == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        if names and shutil.which(names[0], path=path) is None:
            missing = f"{names[0]} (on the PATH that it gets)"
    if missing:
        yield Diagnosis(
            entry.name, Verdict.CRITICAL, f"{file}: its interpreter is not there: {missing}",
            "write the whole path of one that is there into its first line",
        )  # fmt: skip


def past_of(cron: CronProject, entry: Entry) -> Iterator[Diagnosis]:
    runs = runs_of(cron, entry.key)
    if runs and runs[-1].outcome.is_failure:
        text = f"last ended with: {runs[-1].outcome.value}"
        if runs[-1].summary:
            text += f": {runs[-1].summary}"
        yield Diagnosis(entry.name, Verdict.WARNING, text, f"what it said: resil cron logs {entry.name}")


def environment_of(cron: CronProject, entry: Entry | None = None) -> Mapping[str, str]:
    """What an entry's run sees; without one, what every run sees, with a name and a slot for example."""
    now = int(cron.project.world.clock.now())
    nobody = Entry(name="cron.hourly/NAME", place="", schedule="@hourly", kind=Kind.RUN, argv=())
    return cron.environment(entry or nobody, now)
