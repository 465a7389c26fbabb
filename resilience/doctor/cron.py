"""`resil cron doctor`: problems that keep entries from running or alerts from being delivered, with advice.

Changes nothing. A child with a deadline reads paths whose file system may hang.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.cron.entries import runs_of
from resilience.cron.records import Entry, Ignored, Kind, Overlap
from resilience.cron.status import READ_S, CronStatus, Health, cron_status
from resilience.cron.words import span_text
from resilience.doctor.diagnosis import Diagnosis, guarded, try_state_directory
from resilience.errors import ProbeError, ResilError
from resilience.finding import Verdict
from resilience.job import Liveness
from resilience.messages import plural, quoted
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Installation
    from resilience.settings.cron_settings import CronSettings

CHOOSE_S = 15.0
"""Time limit for choosing an available driver."""

_VERDICTS = {
    Health.ALIVE: Verdict.OK, Health.WAITING: Verdict.OK, Health.STOPPED: Verdict.WARNING,
    Health.ABSENT: Verdict.CRITICAL, Health.LATE: Verdict.CRITICAL, Health.DEAD: Verdict.CRITICAL,
    Health.UNKNOWN: Verdict.UNKNOWN,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CronExamination:
    """All diagnoses of `resil cron doctor`.

    Attributes:
        diagnoses: the scheduler first, then the entries.
        ignored: items of the cron directory that are not run.
    """

    diagnoses: tuple[Diagnosis, ...]
    ignored: tuple[Ignored, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Return whether an entry cannot run."""
        worst = any(diagnosis.verdict is Verdict.CRITICAL for diagnosis in self.diagnoses)
        return worst or any(ignored.is_fault for ignored in self.ignored)

    @property
    def is_unknown(self) -> bool:
        """Return whether a check could not be made."""
        return any(diagnosis.verdict is Verdict.UNKNOWN for diagnosis in self.diagnoses)


def examine_cron(cron: CronProject) -> CronExamination:
    """Check the scheduler, the entries and the alerts. Never raises: a check that fails is UNKNOWN."""
    status = cron_status(cron)
    diagnoses = [*guarded("scheduler", lambda: _scheduler(cron, status))]
    seen, trouble = _check_in_child(cron)
    if seen is None:
        diagnoses.append(Diagnosis("cron directory", Verdict.UNKNOWN, trouble, "retry, or check from another node"))
        return CronExamination(tuple(diagnoses))
    diagnoses += [Diagnosis(topic, Verdict(verdict), *words) for topic, verdict, *words in seen["diagnoses"]]
    diagnoses += guarded("alerts", lambda: _alerts(cron, seen["mailed"]))
    return CronExamination(tuple(diagnoses), tuple(Ignored(*record) for record in seen["ignored"]))


def outlook(cron: CronProject) -> Diagnosis:
    """Return one diagnosis: the scheduler's health; without a scheduler, the driver that is available."""
    status = cron_status(cron)
    judgement = status.judgement
    if judgement.health is not Health.ABSENT:
        verdict = _VERDICTS[judgement.health]
        return Diagnosis("cron", verdict, f"{judgement.health.value}: {judgement.reason}", judgement.advice)
    verdict = Verdict.WARNING if status.rows else Verdict.OK
    waiting = f", and {plural(len(status.rows), 'entry', 'entries')} would run" if status.rows else ""
    try:
        name, _ = available_driver(cron)
    except ProbeError as error:
        return Diagnosis("cron", Verdict.UNKNOWN, f"no scheduler is installed{waiting}; {error.message}", error.hint)
    except ResilError as error:
        return Diagnosis("cron", Verdict.WARNING, f"no scheduler is installed{waiting}; {error.message}", error.hint)
    return Diagnosis("cron", verdict, f"no scheduler is installed{waiting}; {name} is available", "resil cron install")


def available_driver(cron: CronProject) -> tuple[str, str]:
    """Return the driver that `resil cron install` would choose, and the reason.

    Runs in a child: each driver has its own deadline, and a controller that hangs would cost their sum. Raise
    ResilError if no driver is available, ProbeError if the check did not end in time.
    """
    from resilience.cron.driver_choice import choose
    from resilience.system.child import run_in_child

    def choice() -> tuple[str, str]:
        chosen = choose(cron.project, cron.settings.backend)
        return chosen.name, chosen.why

    ((_, answer),) = run_in_child({0: (choice, CHOOSE_S)})
    if answer.is_overdue:
        text = f"the available backends could not be determined within {CHOOSE_S:g} s"
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
        verdict = Verdict.WARNING  # no entry can be missed
    yield Diagnosis("scheduler", verdict, f"{judgement.health.value}: {judgement.reason}", judgement.advice)
    if status.heartbeat is not None and status.heartbeat.trouble:
        yield Diagnosis("last tick", Verdict.WARNING, status.heartbeat.trouble, "details: resil cron tick")
    yield from _driver(cron, status)


def _driver(cron: CronProject, status: CronStatus) -> Iterator[Diagnosis]:
    """Check the installed driver; without one, name an available driver."""
    from resilience.cron.driver_choice import drivers
    from resilience.watch.watchdogs import context_of

    installation = status.installation
    if installation is None:
        name, why = available_driver(cron)
        yield Diagnosis("driver", Verdict.OK, f"{name} is available: {why}", "resil cron install")
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
            f"[cron] backend is {cron.settings.backend}, but {installation.driver} is installed",
            f"resil cron install --backend {cron.settings.backend} --replace",
        )
    if not Path(installation.python).exists() and installation.host == cron.project.system.host.name:
        yield Diagnosis(
            "driver",
            Verdict.CRITICAL,
            f"its interpreter {installation.python} no longer exists",
            "install it again with this resil: resil cron uninstall; resil cron install",
        )


# ---- the cron directory ------------------------------------------------------------------------------------


def _check_in_child(cron: CronProject) -> tuple[dict[str, Any] | None, str]:
    from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child

    system = cron.project.system
    look = ChildProbe(f"cron directory of {cron.project.loaded.project}", lambda: _check_directory(cron), READ_S)
    ((_, answer),) = probe_in_child({0: look}, StuckMemory.of(system), system.clock)
    if answer.error is not None:
        return None, f"{cron.directory}: {answer.error.message}"
    return answer.value, ""


def _check_directory(cron: CronProject) -> dict[str, Any]:
    """Return the diagnoses that need the disk, as plain data for the parent process."""
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
                Diagnosis(
                    "cron directory", Verdict.WARNING, f"{cron.directory} does not exist", "create it: resil init"
                )
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
        return None  # reported by the check of the scheduler


def _state_directory(cron: CronProject) -> Iterator[Diagnosis]:
    """Check that ticks can write here and other users cannot: a slot that cannot be recorded is not run."""
    path = cron.state.path
    try:
        cron.state.check()
    except ResilError as error:
        yield Diagnosis("state directory", Verdict.CRITICAL, error.message, error.hint)
    written = try_state_directory(path)
    if written.verdict is Verdict.OK:
        yield written
    else:
        text = f"{written.text}: no tick can record a slot, so no entry runs"
        yield replace(
            written, text=text, advice="free some space (and inodes), or set state_dir under [run] in resil.toml"
        )


def _resil(cron: CronProject) -> Iterator[Diagnosis]:
    """Check that entries find `resil`: the shipped drop-ins call it."""
    variables = environment_of(cron)
    found = shutil.which("resil", path=variables.get("PATH", ""))
    if found is None:
        yield Diagnosis(
            "resil", Verdict.CRITICAL, f"`resil` is not on the PATH of entries: {variables.get('PATH', '')}",
            'call it by its interpreter: "$RESIL_PYTHON" -P -m resilience; or install resil as a package',
        )  # fmt: skip
    else:
        yield Diagnosis("resil", Verdict.OK, f"on the PATH of entries: {found}")


# ---- alerts ----------------------------------------------------------------------------------------------


def _alerts(cron: CronProject, mailed: Sequence[tuple[str, str]]) -> Iterator[Diagnosis]:
    """Check that failures are notified, and that mail to MAILTO can be sent."""
    from resilience.alerts.routes import routes_of

    project = cron.project
    routes = routes_of(project)
    if not routes:
        yield Diagnosis(
            "alerts", Verdict.WARNING, "failures are not notified: resil.toml names no channel",
            'for instance [alert] channels = ["email"]; test it: resil alert test',
        )  # fmt: skip
    from resilience.alerts.routes import mail_error
    from resilience.cron.mail import wrong_address

    for place, address in mailed:
        if wrong := wrong_address(address):
            yield Diagnosis("mail", Verdict.CRITICAL, f"{place}: MAILTO={address}: {wrong}", "MAILTO=you@example.org")
    if mailed and mail_error(project):
        place, address = mailed[0]
        more = f", and {len(mailed) - 1} more" if len(mailed) > 1 else ""
        yield Diagnosis(
            "mail", Verdict.CRITICAL, f"{place}{more}: MAILTO={address}: neither a channel nor sendmail can send it",
            "set the server in [channel.email] of resil.toml; test it: resil alert test email",
        )  # fmt: skip


def judge_times(
    entry: Entry, settings: CronSettings, installation: Installation | None, now: float
) -> Iterator[Diagnosis]:
    """Yield problems with an entry's times: a schedule that never matches, or a run that may take too long. Pure.

    A run that has not ended at the next slot costs that slot, if `overlap` is `skip`.
    """
    from resilience.cron.table.expression import parse_schedule

    schedule = parse_schedule(entry.schedule, entry.zone)
    if schedule.is_reboot:
        return
    if schedule.next_after(now) is None:
        text = f"{entry.schedule} never matches: the entry never runs"
        yield Diagnosis(entry.name, Verdict.CRITICAL, text, f"correct {entry.place}")
        return
    if entry.kind is Kind.SUBMIT:
        return
    timeout_s, period_s = entry.options.timeout_s, schedule.period_s(now)
    if not timeout_s:
        if entry.options.overlap is Overlap.SKIP:
            text = "has no timeout: after a hang it never runs again"
            yield Diagnosis(entry.name, Verdict.WARNING, text, "add one: # resil: timeout=10m")
    elif timeout_s > period_s and entry.options.overlap is Overlap.SKIP:
        text = (
            f"may run for {format_duration(timeout_s)} and is due every {format_duration(period_s)}: "
            "overlapping slots are skipped"
        )
        advice = f"# resil: timeout={span_text(period_s)}, or overlap=allow"
        yield Diagnosis(entry.name, Verdict.WARNING, text, advice)
    limit_s, what = room_s(settings, installation)
    if limit_s and (timeout_s > limit_s or not timeout_s):
        text = f"may exceed {what} ({format_duration(limit_s)}), and is ended then"
        advice = "run it as a job of its own (NAME.slurm), shorten its timeout, or raise the limit in [cron]"
        yield Diagnosis(entry.name, Verdict.WARNING, text, advice)


def room_s(settings: CronSettings, installation: Installation | None) -> tuple[float, str]:
    """Return how long an entry can run under the driver, in seconds, and the limit's name; 0: no limit. Pure."""
    if installation is None or installation.driver != "slurm":
        return 0.0, ""
    if installation.mode == "pulse":
        return settings.pulse_limit_s, "the limit of a pulse's job, [cron] pulse_limit_s"
    return settings.time_limit_s, "the limit of the scheduler's job, [cron] time_limit_s"


def program_of(cron: CronProject, entry: Entry) -> Iterator[Diagnosis]:
    """Check that an entry's program exists, on the entry's PATH and not on the user's."""
    if entry.kind is Kind.SUBMIT or not entry.argv:
        return
    from resilience.cron.table.crontab_file import program_of as program_in

    program = entry.argv[0] if entry.path else program_in(entry.argv)
    path = environment_of(cron, entry).get("PATH", "")
    if not program:
        return
    if "/" not in program:
        if shutil.which(program, path=path) is None:
            yield Diagnosis(
                entry.name,
                Verdict.CRITICAL,
                f"there is no program {program!r} on the entry's PATH",
                "use an absolute path; the PATH: resil cron doctor --environment",
            )
        return
    file = cron.project.loaded.project / program
    if not file.is_file():
        yield Diagnosis(entry.name, Verdict.CRITICAL, f"{file} does not exist", f"correct {entry.place}")
    elif not os.access(file, os.X_OK):
        yield Diagnosis(entry.name, Verdict.CRITICAL, f"{file} is not executable", f"chmod +x {quoted(file)}")
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
            f"sed -i 's/\\r$//' {quoted(file)}",
        )  # fmt: skip
        return
    words = os.fsdecode(first[2:]).split()
    if not words:
        return
    missing = words[0] if not Path(words[0]).exists() else ""
    if not missing and Path(words[0]).name == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        if names and shutil.which(names[0], path=path) is None:
            missing = f"{names[0]} (on the entry's PATH)"
    if missing:
        yield Diagnosis(
            entry.name, Verdict.CRITICAL, f"{file}: its interpreter does not exist: {missing}",
            "put the absolute path of an existing interpreter into its first line",
        )  # fmt: skip


def past_of(cron: CronProject, entry: Entry) -> Iterator[Diagnosis]:
    runs = runs_of(cron, entry.key)
    if runs and runs[-1].outcome.is_failure:
        text = f"last result: {runs[-1].outcome.value}"
        if runs[-1].summary:
            text += f": {runs[-1].summary}"
        yield Diagnosis(entry.name, Verdict.WARNING, text, f"its output: resil cron logs {quoted(entry.name)}")


def environment_of(cron: CronProject, entry: Entry | None = None) -> Mapping[str, str]:
    """Return the environment of an entry's run; without an entry, of an example entry."""
    now = int(cron.project.system.clock.now())
    example = Entry(name="cron.hourly/NAME", place="", schedule="@hourly", kind=Kind.RUN, argv=())
    return cron.environment(entry or example, now)
