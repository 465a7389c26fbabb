"""`resil cron doctor`: problems that keep entries from running or alerts from being delivered, with advice.

Changes nothing. A child with a deadline reads paths whose file system may hang.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.cron.entries import runs_of
from resilience.cron.health import Health
from resilience.cron.records import Entry, Ignored, Kind, Overlap, Table
from resilience.cron.status import READ_S, CronStatus, cron_status
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
    seen, error = _check_in_child(cron)
    if seen is None:
        diagnoses.append(Diagnosis("cron directory", Verdict.UNKNOWN, error, "retry, or check from another node"))
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
    waiting = f", and {plural(len(status.rows), 'entry', 'entries')} would run" if status.rows else ""
    text = f"no scheduler is installed{waiting}"
    try:
        name, _ = available_driver(cron)
    except ResilError as error:
        verdict = Verdict.UNKNOWN if isinstance(error, ProbeError) else Verdict.WARNING
        return Diagnosis("cron", verdict, f"{text}; {error.message}", error.hint)
    verdict = Verdict.WARNING if waiting else Verdict.OK
    return Diagnosis("cron", verdict, f"{text}; {name} is available", "resil cron install")


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
    return answer.value[0], answer.value[1]


# ---- the scheduler --------------------------------------------------------------------------------------------


def _scheduler(cron: CronProject, status: CronStatus) -> Iterator[Diagnosis]:
    from resilience.cron.drivers._slurm.keeper import chain_problem

    judgement = status.judgement
    verdict = _VERDICTS[judgement.health]
    if judgement.health is Health.ABSENT and not status.rows:
        verdict = Verdict.WARNING  # no entry can be missed
    yield Diagnosis("scheduler", verdict, f"{judgement.health.value}: {judgement.reason}", judgement.advice)
    if status.heartbeat is not None and status.heartbeat.trouble:
        yield Diagnosis("last tick", Verdict.WARNING, status.heartbeat.trouble, "details: resil cron tick")
    if problem := chain_problem(cron.state.path, status.installation):
        yield Diagnosis("driver", Verdict.WARNING, problem, "when that is mended: resil cron install")
    yield from _driver(cron, status)


def _driver(cron: CronProject, status: CronStatus) -> Iterator[Diagnosis]:
    """Check the installed driver; without one, name an available driver."""
    from resilience.cron.driver_choice import drivers
    from resilience.watch.watchdogs import context_of

    found = partial(Diagnosis, "driver")
    installation = status.installation
    if installation is None:
        name, why = available_driver(cron)
        yield found(Verdict.OK, f"{name} is available: {why}", "resil cron install")
        yield from _whole_nodes(cron, name, cron.settings.mode)
        return
    name, is_here = installation.driver, installation.host == cron.project.system.host.name
    if status.driver is not None and status.driver.liveness is Liveness.UNKNOWN:
        yield found(Verdict.UNKNOWN, status.driver.summary, status.driver.hint)
    availability = drivers().load(name).availability(context_of(cron.project))
    if not availability.is_available and is_here:
        yield found(Verdict.WARNING, f"{name}: {availability.reason}", availability.hint)
    if (wanted := cron.settings.backend) not in ("auto", name):
        text = f"[cron] backend is {wanted}, but {name} is installed"
        yield found(Verdict.WARNING, text, f"resil cron install --backend {wanted} --replace")
    if is_here and not Path(installation.python).exists():
        text = f"its interpreter {installation.python} no longer exists"
        advice = "install it again with this resil: resil cron uninstall; resil cron install"
        yield found(Verdict.CRITICAL, text, advice)
    yield from _whole_nodes(cron, name, installation.mode)


def _whole_nodes(cron: CronProject, driver: str, mode: str) -> Iterator[Diagnosis]:
    """Warn of a daemon in a partition that gives each job whole nodes: one job that ticks occupies a node all day."""
    if driver not in ("slurm", "scrontab") or mode == "pulse":
        return
    config = cron.project.scheduler().config()
    named = cron.settings.sbatch.get("partition") or cron.project.system.environ.get("SBATCH_PARTITION")
    for partition in str(named or config.default_partition).split(","):
        if partition in config.whole_nodes:
            text = f"partition {partition} gives each job whole nodes: the scheduler's job occupies one all day"
            advice = 'set mode = "pulse" in [cron], or a partition that shares nodes in [cron] sbatch; then: '
            yield Diagnosis("driver", Verdict.WARNING, text, advice + "resil cron install")


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
    diagnoses, table = [*_state_directory(cron)], Table()
    try:
        table, now = cron.read_table(), cron.project.system.clock.now()
        installation = None
        with suppress(ResilError):  # reported by the check of the scheduler
            installation = cron.state.installation()
            copied = cron.state.installation(or_copied=True)
            if installation is None and copied is not None:
                text = f"this project is a copy of {copied.project}, whose scheduler ticks only there"
                diagnoses.append(Diagnosis("scheduler", Verdict.WARNING, text, "start one here: resil cron install"))
        if not cron.directory.exists():
            text = f"{cron.directory} does not exist"
            diagnoses.append(Diagnosis("cron directory", Verdict.WARNING, text, "create it: resil init"))
        for entry in table.entries:
            diagnoses += judge_times(entry, cron.settings, installation, now)
            diagnoses += guarded(entry.name, lambda entry=entry: program_of(cron, entry))  # type: ignore[misc]
            diagnoses += guarded(entry.name, lambda entry=entry: past_of(cron, entry))  # type: ignore[misc]
        diagnoses += guarded("resil", lambda: _resil(cron))
        count = len(table.entries)
        text, advice = f"{plural(count, 'entry', 'entries')}: resil cron list", ""
        if not count:
            text, advice = f"nothing is scheduled in {cron.directory}", "resil cron add --help"
        diagnoses.append(Diagnosis("entries", Verdict.OK, text, advice))
    except ResilError as error:
        diagnoses.append(Diagnosis("cron directory", Verdict.UNKNOWN, error.message, error.hint))
    return {
        "diagnoses": [(d.topic, d.verdict.value, d.text, d.advice) for d in diagnoses],
        "ignored": [(i.place, i.reason, i.hint, i.is_fault) for i in table.ignored],
        "mailed": [(entry.place, entry.mail_to) for entry in table.entries if entry.mail_to],
    }


def _state_directory(cron: CronProject) -> Iterator[Diagnosis]:
    """Check that ticks can write here and other users cannot: a slot that cannot be recorded is not run."""
    try:
        cron.state.check()
    except ResilError as error:
        yield Diagnosis("state directory", Verdict.CRITICAL, error.message, error.hint)
    written = try_state_directory(cron.state.path)
    if written.verdict is not Verdict.OK:
        advice = "free some space (and inodes), or set state_dir under [run] in resil.toml"
        written = replace(written, text=f"{written.text}: no tick can record a slot, so no entry runs", advice=advice)
    yield written


def _resil(cron: CronProject) -> Iterator[Diagnosis]:
    """Check that entries find `resil`: the shipped drop-ins call it."""
    path = environment_of(cron).get("PATH", "")
    if found := shutil.which("resil", path=path):
        yield Diagnosis("resil", Verdict.OK, f"on the PATH of entries: {found}")
    else:
        advice = 'call it by its interpreter: "$RESIL_PYTHON" -P -m resilience; or install resil as a package'
        yield Diagnosis("resil", Verdict.CRITICAL, f"`resil` is not on the PATH of entries: {path}", advice)


# ---- alerts ----------------------------------------------------------------------------------------------


def _alerts(cron: CronProject, mailed: Sequence[tuple[str, str]]) -> Iterator[Diagnosis]:
    """Check that failures are notified, and that mail to MAILTO can be sent."""
    from resilience.alerts.routes import mail_error, routes_of
    from resilience.cron.mail import wrong_address

    if not routes_of(cron.project):
        text = "failures are not notified: resil.toml names no channel"
        advice = 'for instance [alert] channels = ["email"]; test it: resil alert test'
        yield Diagnosis("alerts", Verdict.WARNING, text, advice)
    fault = partial(Diagnosis, "mail", Verdict.CRITICAL)
    for place, address in mailed:
        if wrong := wrong_address(address):
            yield fault(f"{place}: MAILTO={address}: {wrong}", "MAILTO=you@example.org")
    if mailed and mail_error(cron.project):
        more = f", and {len(mailed) - 1} more" if len(mailed) > 1 else ""
        yield fault(
            f"{mailed[0][0]}{more}: MAILTO={mailed[0][1]}: neither a channel nor sendmail can send it",
            "set the server in [channel.email] of resil.toml; test it: resil alert test email",
        )


# ---- one entry --------------------------------------------------------------------------------------------------


def judge_times(
    entry: Entry, settings: CronSettings, installation: Installation | None, now: float
) -> Iterator[Diagnosis]:
    """Yield problems with an entry's times: a schedule that never matches, or a run that may take too long. Pure.

    A run that has not ended at the next slot costs that slot, if `overlap` is `skip`.
    """
    from resilience.cron.table.expression import parse_schedule

    warning = partial(Diagnosis, entry.name, Verdict.WARNING)
    schedule = parse_schedule(entry.schedule, entry.zone)
    if schedule.is_reboot:
        return
    if schedule.next_after(now) is None:
        text = f"{entry.schedule} never matches: the entry never runs"
        yield Diagnosis(entry.name, Verdict.CRITICAL, text, f"correct {entry.place}")
        return
    timeout_s, period_s, limits = entry.options.timeout_s, schedule.period_s(now), limits_of(settings, installation)
    every = format_duration(period_s)
    if period_s < limits.tick_s:
        text = f"is due every {every}, but {limits.driver} ticks every {format_duration(limits.tick_s)}"
        advice = "make it due less often, or let a process tick at every slot: slurm in mode daemon, or foreground"
        yield warning(f"{text}: other slots are run late or missed", advice)
    if entry.kind is Kind.SUBMIT:
        return
    if entry.options.overlap is Overlap.SKIP:
        if not timeout_s:
            yield warning("has no timeout: after a hang it never runs again", "add one: # resil: timeout=10m")
        elif timeout_s > period_s:
            text = f"may run for {format_duration(timeout_s)} and is due every {every}: overlapping slots are skipped"
            yield warning(text, f"# resil: timeout={span_text(period_s)}, or overlap=allow")
    if limits.run_s and (timeout_s > limits.run_s or not timeout_s):
        advice = "run it as a job of its own (NAME.slurm), shorten its timeout, or raise the limit in [cron]"
        yield warning(f"may exceed {limits.name} ({format_duration(limits.run_s)}), and is ended then", advice)


class Limits(NamedTuple):
    """What a driver imposes on entries.

    Attributes:
        driver: its name.
        tick_s: interval between ticks; 0: a process ticks at every slot.
        run_s: how long an entry can run, in seconds; 0: no limit.
        name: name of that limit.
    """

    driver: str = ""
    tick_s: float = 0.0
    run_s: float = 0.0
    name: str = ""


def limits_of(settings: CronSettings, installation: Installation | None) -> Limits:
    """Return the limits of the installed driver. Pure."""
    driver, mode = (installation.driver, installation.mode) if installation is not None else ("", "")
    if driver in ("crontab", "systemd"):
        return Limits(driver, 60.0)
    if mode == "pulse":
        name = "the limit of a pulse's job, [cron] pulse_limit_s"
        return Limits(f"{driver} (pulse)", settings.pulse_s, settings.pulse_limit_s, name)
    if driver == "slurm":
        return Limits(driver, 0.0, settings.time_limit_s, "the limit of the scheduler's job, [cron] time_limit_s")
    return Limits(driver)


def program_of(cron: CronProject, entry: Entry) -> Iterator[Diagnosis]:
    """Check that an entry's program exists, on the entry's PATH and not on the user's; of a line, also its shell."""
    from resilience.cron.table.crontab_file import program_of as program_in

    if entry.kind is Kind.SUBMIT or not entry.argv:
        return
    fault, variables = partial(Diagnosis, entry.name, Verdict.CRITICAL), environment_of(cron, entry)
    path = variables.get("PATH", "")
    for program in filter(None, dict.fromkeys((entry.argv[0], program_in(entry.argv)))):
        file = cron.project.loaded.project / program
        if "/" not in program:
            if shutil.which(program, path=path) is None and not _is_builtin(cron, entry.argv[0], program, variables):
                advice = "use an absolute path; the PATH: resil cron doctor --environment"
                yield fault(f"there is no program {program!r} on the entry's PATH", advice)
        elif not file.is_file():
            yield fault(f"{file} does not exist", f"correct {entry.place}")
        elif not os.access(file, os.X_OK):
            yield fault(f"{file} is not executable", f"chmod +x {quoted(file)}")
        else:
            yield from _interpreter(fault, file, path)


def _is_builtin(cron: CronProject, shell: str, word: str, variables: Mapping[str, str]) -> bool:
    """Return whether a shell knows a word by itself, or may: those of the C shell's family cannot be asked."""
    if Path(shell).name not in {"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"}:
        return True
    argv = [shell, "-c", 'command -v "$0"', word]
    return cron.project.system.runner.run(argv, timeout_s=READ_S, env=variables).returncode == 0


def _interpreter(fault: Callable[[str, str], Diagnosis], file: Path, path: str) -> Iterator[Diagnosis]:
    """Check that the interpreter in a script's first line (execve(2)) exists."""
    with file.open("rb") as opened:
        first = opened.read(256).partition(b"\n")[0]
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    if words and first.endswith(b"\r"):
        advice = f"sed -i 's/\\r$//' {quoted(file)}"
        yield fault(f"{file} has Windows line ends: its interpreter is not found", advice)
        return
    missing = words[0] if words and not Path(words[0]).exists() else ""
    if words and not missing and Path(words[0]).name == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        if names and shutil.which(names[0], path=path) is None:
            missing = f"{names[0]} (on the entry's PATH)"
    if missing:
        advice = "put the absolute path of an existing interpreter into its first line"
        yield fault(f"{file}: its interpreter does not exist: {missing}", advice)


def past_of(cron: CronProject, entry: Entry) -> Iterator[Diagnosis]:
    runs = runs_of(cron, entry.key)
    if runs and runs[-1].outcome.is_failure:
        text = f"last result: {runs[-1].outcome.value}{f': {runs[-1].summary}' if runs[-1].summary else ''}"
        yield Diagnosis(entry.name, Verdict.WARNING, text, f"its output: resil cron logs {quoted(entry.name)}")


def environment_of(cron: CronProject, entry: Entry | None = None) -> Mapping[str, str]:
    """Return the environment of an entry's run; without an entry, of an example entry."""
    now = int(cron.project.system.clock.now())
    example = Entry(name="cron.hourly/NAME", place="", schedule="@hourly", kind=Kind.RUN, argv=())
    return cron.environment(entry or example, now)
