"""`resil cron doctor`: problems that would keep an entry from running, or its alerts from arriving, with advice.

Reads only, and changes nothing. A child with a deadline reads each path that may lie on a file system that hangs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.cron.records import Entry, Ignored, Kind, Overlap
from resilience.cron.runs import runs_of
from resilience.cron.status import LOOK_S, CronStatus, Health, cron_status
from resilience.cron.words import span_text
from resilience.doctor.diagnosis import Diagnosis, guarded, nearest_existing, try_to_write
from resilience.errors import ProbeError, ResilError
from resilience.finding import Verdict
from resilience.job import Liveness
from resilience.messages import plural
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Installation
    from resilience.settings.cron_settings import CronSettings

CHOOSE_S = 15.0
"""How long it may take to find out which driver could serve here."""

_VERDICTS = {
    Health.ALIVE: Verdict.OK, Health.WAITING: Verdict.OK, Health.STOPPED: Verdict.WARNING,
    Health.ABSENT: Verdict.CRITICAL, Health.LATE: Verdict.CRITICAL, Health.DEAD: Verdict.CRITICAL,
    Health.UNKNOWN: Verdict.UNKNOWN,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CronExamination:
    """Everything the doctor found.

    Attributes:
        diagnoses: the scheduler first, then the entries.
        ignored: what lies in the cron directory and does not run.
    """

    diagnoses: tuple[Diagnosis, ...]
    ignored: tuple[Ignored, ...] = ()

    @property
    def is_broken(self) -> bool:
        """An entry that is meant to run does not."""
        worst = any(diagnosis.verdict is Verdict.CRITICAL for diagnosis in self.diagnoses)
        return worst or any(ignored.is_fault for ignored in self.ignored)

    @property
    def is_unknown(self) -> bool:
        """Something could not be examined."""
        return any(diagnosis.verdict is Verdict.UNKNOWN for diagnosis in self.diagnoses)


def examine_cron(cron: CronProject) -> CronExamination:
    """Look at all of it. Never raises: what cannot be looked at is UNKNOWN."""
    status = cron_status(cron)
    diagnoses = [*guarded("scheduler", lambda: _scheduler(cron, status))]
    seen, trouble = _look_apart(cron)
    if seen is None:
        diagnoses.append(Diagnosis("cron directory", Verdict.UNKNOWN, trouble, "look again, or from another node"))
        return CronExamination(tuple(diagnoses))
    diagnoses += [Diagnosis(topic, Verdict(verdict), *words) for topic, verdict, *words in seen["diagnoses"]]
    diagnoses += guarded("alerts", lambda: _alerts(cron, seen["mailed"]))
    return CronExamination(tuple(diagnoses), tuple(Ignored(*record) for record in seen["ignored"]))


def outlook(cron: CronProject) -> Diagnosis:
    """All of it in one line: how the scheduler is; where there is none, what could make its ticks here."""
    status = cron_status(cron)
    judgement = status.judgement
    if judgement.health is not Health.ABSENT:
        verdict = _VERDICTS[judgement.health]
        return Diagnosis("cron", verdict, f"{judgement.health.value}: {judgement.reason}", judgement.advice)
    verdict = Verdict.WARNING if status.rows else Verdict.OK
    waiting = f", and {plural(len(status.rows), 'entry', 'entries')} would run" if status.rows else ""
    try:
        name, _ = could_serve(cron)
    except ProbeError as error:
        return Diagnosis("cron", Verdict.UNKNOWN, f"nothing makes ticks{waiting}; {error.message}", error.hint)
    except ResilError as error:
        return Diagnosis("cron", Verdict.WARNING, f"nothing makes ticks{waiting}; {error.message}", error.hint)
    return Diagnosis("cron", verdict, f"nothing makes ticks{waiting}; {name} could", "resil cron install")


def could_serve(cron: CronProject) -> tuple[str, str]:
    """Which driver `resil cron install` would take, and why.

    In a child: drivers have deadlines, but there are several, and a controller that hangs costs each its own. Raise
    ResilError if none can be used, ProbeError if that could not be found out in time.
    """
    from resilience.cron.driver_choice import choose
    from resilience.system.child import run_apart

    def look() -> tuple[str, str]:
        choice = choose(cron.project, cron.settings.backend)
        return choice.name, choice.why

    ((_, answer),) = run_apart({0: (look, CHOOSE_S)})
    if answer.is_overdue:
        text = f"which backend could serve was not found out in {CHOOSE_S:g} s"
        raise ProbeError(text, hint="see: resil cron install --dry-run", transient=True)
    if answer.error is not None:
        raise answer.error
    name, why = answer.value
    return name, why


# ---- the scheduler --------------------------------------------------------------------------------------------


def _scheduler(cron: CronProject, status: CronStatus) -> Iterator[Diagnosis]:
    judgement = status.judgement
    verdict = _VERDICTS[judgement.health]
    if judgement.health is Health.ABSENT and not status.rows:
        verdict = Verdict.WARNING  # there is nothing that could be missed
    yield Diagnosis("scheduler", verdict, f"{judgement.health.value}: {judgement.reason}", judgement.advice)
    if status.heartbeat is not None and status.heartbeat.trouble:
        yield Diagnosis("last tick", Verdict.WARNING, status.heartbeat.trouble, "resil cron tick says more")
    yield from _driver(cron, status)


def _driver(cron: CronProject, status: CronStatus) -> Iterator[Diagnosis]:
    """Check that the installed driver can serve; where none is, name one that could."""
    from resilience.cron.driver_choice import drivers
    from resilience.watch.watchdogs import context_of

    installation = status.installation
    if installation is None:
        name, why = could_serve(cron)
        yield Diagnosis("driver", Verdict.OK, f"{name} could serve: {why}", "resil cron install")
        return
    if status.driver is not None and status.driver.liveness is Liveness.UNKNOWN:
        yield Diagnosis("driver", Verdict.UNKNOWN, status.driver.summary, status.driver.hint)
    availability = drivers().load(installation.driver).availability(context_of(cron.project))
    if not availability.is_available and installation.host == cron.project.system.host.name:
        yield Diagnosis("driver", Verdict.WARNING, f"{installation.driver}: {availability.reason}", availability.hint)
    if cron.settings.backend not in ("auto", installation.driver):
        yield Diagnosis(
            "driver",
            Verdict.WARNING,
            f"[cron] backend is {cron.settings.backend}, and {installation.driver} is installed",
            f"resil cron install --backend {cron.settings.backend} --replace",
        )
    if not Path(installation.python).exists() and installation.host == cron.project.system.host.name:
        yield Diagnosis(
            "driver",
            Verdict.CRITICAL,
            f"its interpreter {installation.python} is no longer there",
            "resil cron uninstall, and resil cron install from where resil lives now",
        )


# ---- what lies on the disk ------------------------------------------------------------------------------------


def _look_apart(cron: CronProject) -> tuple[dict[str, Any] | None, str]:
    from resilience.system.stuck import Look, StuckMemory, look_apart

    system = cron.project.system
    look = Look(f"cron directory of {cron.project.loaded.project}", lambda: _look(cron), LOOK_S)
    ((_, answer),) = look_apart({0: look}, StuckMemory.of(system), system.clock)
    if answer.error is not None:
        return None, f"{cron.directory}: {answer.error.message}"
    return answer.value, ""


def _look(cron: CronProject) -> dict[str, Any]:
    """All that the disk says, as plain data."""
    diagnoses = [*_state_directory(cron)]
    ignored: Sequence[Ignored] = ()
    mailed: list[tuple[str, str]] = []
    try:
        table = cron.read_table()
        installation = _installation(cron)
        ignored = table.ignored
        mailed = [(entry.place, entry.mail_to) for entry in table.entries if entry.mail_to]
        now = cron.project.system.clock.now()
        if not cron.directory.exists():
            diagnoses.append(
                Diagnosis("cron directory", Verdict.WARNING, f"{cron.directory} does not exist", "make one: resil init")
            )
        for entry in table.entries:
            diagnoses += judge_times(entry, cron.settings, installation, now)
            diagnoses += guarded(entry.name, lambda entry=entry: program_of(cron, entry))  # type: ignore[misc]
            diagnoses += guarded(entry.name, lambda entry=entry: past_of(cron, entry))  # type: ignore[misc]
        diagnoses += guarded("resil", lambda: _resil(cron))
        diagnoses.append(_count(len(table.entries), str(cron.directory)))
    except ResilError as error:
        diagnoses.append(Diagnosis("cron directory", Verdict.UNKNOWN, error.message, error.hint))
    return {
        "diagnoses": [(d.topic, d.verdict.value, d.text, d.advice) for d in diagnoses],
        "ignored": [(i.place, i.reason, i.hint, i.is_fault) for i in ignored],
        "mailed": mailed,
    }


def _count(count: int, directory: str) -> Diagnosis:
    if not count:
        return Diagnosis("entries", Verdict.OK, f"nothing is scheduled in {directory}", "resil cron add --help")
    return Diagnosis("entries", Verdict.OK, f"{plural(count, 'entry', 'entries')}: resil cron list")


def _installation(cron: CronProject) -> Installation | None:
    try:
        return cron.state.installation()
    except ResilError:
        return None  # said by the scheduler's own line


def _state_directory(cron: CronProject) -> Iterator[Diagnosis]:
    """Check that a tick could write, and no stranger: a slot that cannot be recorded is not run."""
    path = cron.state.path
    try:
        cron.state.check()
    except ResilError as error:
        yield Diagnosis("state directory", Verdict.CRITICAL, error.message, error.hint)
    directory = path
    try:
        directory = nearest_existing(path)
        try_to_write(directory)
        yield Diagnosis("state directory", Verdict.OK, f"{path} can be written")
    except OSError as error:
        yield Diagnosis(
            "state directory",
            Verdict.CRITICAL,
            f"cannot write in {directory}: {error.strerror or error}: no tick can take a slot, so nothing runs",
            "free some space (and inodes), or set state_dir under [run] in resil.toml",
        )


def _resil(cron: CronProject) -> Iterator[Diagnosis]:
    """Check that entries find `resil`: the shipped drop-ins, and most users' own, call it."""
    variables = environment_of(cron)
    found = shutil.which("resil", path=variables.get("PATH", ""))
    if found is None:
        yield Diagnosis(
            "resil", Verdict.CRITICAL, f"no `resil` on the PATH that runs get: {variables.get('PATH', '')}",
            'call it by its interpreter: "$RESIL_PYTHON" -P -m resilience; or install resil as a package',
        )  # fmt: skip
    else:
        yield Diagnosis("resil", Verdict.OK, f"runs find {found}")


# ---- who is told ----------------------------------------------------------------------------------------------


def _alerts(cron: CronProject, mailed: Sequence[tuple[str, str]]) -> Iterator[Diagnosis]:
    """Check that failures are notified, and that MAILTO can be served."""
    from resilience.alerts.routes import routes_of

    project = cron.project
    routes = routes_of(project)
    if not routes:
        yield Diagnosis(
            "alerts", Verdict.WARNING, "nobody is told of what fails: resil.toml names no channel",
            'for instance [alert] channels = ["email"]; try it: resil alert test',
        )  # fmt: skip
    from resilience.alerts.routes import mail_error
    from resilience.cron.mail import wrong_address

    for place, people in mailed:
        if wrong := wrong_address(people):
            yield Diagnosis("mail", Verdict.CRITICAL, f"{place}: MAILTO={people}: {wrong}", "MAILTO=you@example.org")
    if mailed and mail_error(project):
        place, people = mailed[0]
        more = f", and {len(mailed) - 1} more" if len(mailed) > 1 else ""
        yield Diagnosis(
            "mail", Verdict.CRITICAL, f"{place}{more}: MAILTO={people}, no channel can send mail, no sendmail either",
            "give [channel.email] its server in resil.toml; resil alert test email",
        )  # fmt: skip


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
    """Check that an entry's program exists: on the entry's own small PATH, not on the user's."""
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
    """Check that the interpreter in a script's first line (execve(2)) exists."""
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
    """The environment of an entry's run; without an entry, that of every run, with an example name and slot."""
    now = int(cron.project.system.clock.now())
    nobody = Entry(name="cron.hourly/NAME", place="", schedule="@hourly", kind=Kind.RUN, argv=())
    return cron.environment(entry or nobody, now)
