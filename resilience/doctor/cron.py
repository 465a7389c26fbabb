"""`resil cron doctor`: what would keep something from running, or people from hearing of it, and what to do.

Looks, and changes nothing. Whatever may lie on a file system that hangs is looked at by a child with a deadline.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.cron.status import LOOK_S, CronStatus, Health, cron_status
from resilience.doctor.cluster import Diagnosis
from resilience.doctor.cron_entry import environment_of, judge_times, past_of, program_of
from resilience.errors import ProbeError, ResilError
from resilience.finding import Verdict
from resilience.job import Liveness

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Ignored, Installation

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
        ignored: what lies in the cron folder and does not run.
    """

    diagnoses: tuple[Diagnosis, ...]
    ignored: tuple[Ignored, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Whether something that somebody means to run does not."""
        worst = any(diagnosis.verdict is Verdict.CRITICAL for diagnosis in self.diagnoses)
        return worst or any(ignored.is_fault for ignored in self.ignored)

    @property
    def is_unknown(self) -> bool:
        """Whether something could not be looked at."""
        return any(diagnosis.verdict is Verdict.UNKNOWN for diagnosis in self.diagnoses)


def examine_cron(cron: CronProject) -> CronExamination:
    """Look at all of it. Never raises: what cannot be looked at is UNKNOWN."""
    status = cron_status(cron)
    diagnoses = [*_guarded("scheduler", lambda: _scheduler(cron, status))]
    seen, trouble = _look_apart(cron)
    if seen is None:
        diagnoses.append(Diagnosis("cron folder", Verdict.UNKNOWN, trouble, "look again, or from another node"))
        return CronExamination(tuple(diagnoses))
    diagnoses += [_diagnosis(record) for record in seen["diagnoses"]]
    diagnoses += _guarded("alerts", lambda: _alerts(cron, seen["mailed"]))
    return CronExamination(tuple(diagnoses), tuple(_ignored(record) for record in seen["ignored"]))


def _guarded(topic: str, look: Callable[[], Iterator[Diagnosis]]) -> Iterator[Diagnosis]:
    """What a look finds; one that fails has found that it cannot tell."""
    try:
        yield from look()
    except ResilError as error:
        yield Diagnosis(topic, Verdict.UNKNOWN, error.message, error.hint)
    except Exception as error:  # an outsider's plugin may raise anything
        yield Diagnosis(topic, Verdict.UNKNOWN, f"cannot tell: {type(error).__name__}: {error}")


def outlook(cron: CronProject) -> Diagnosis:
    """All of it in one line: how the scheduler is; where there is none, what could make its ticks here."""
    status = cron_status(cron)
    judgement = status.judgement
    if judgement.health is not Health.ABSENT:
        verdict = _VERDICTS[judgement.health]
        return Diagnosis("cron", verdict, f"{judgement.health.value}: {judgement.reason}", judgement.advice)
    verdict = Verdict.WARNING if status.rows else Verdict.OK
    waiting = f", and {_entries(len(status.rows))} would run" if status.rows else ""
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
    """Whether what was installed can serve; where nothing is, what could."""
    from resilience.cron.driver_choice import drivers
    from resilience.watch.watchdogs import scene_of

    installation = status.installation
    if installation is None:
        name, why = could_serve(cron)
        yield Diagnosis("driver", Verdict.OK, f"{name} could serve: {why}", "resil cron install")
        return
    if status.driver is not None and status.driver.liveness is Liveness.UNKNOWN:
        yield Diagnosis("driver", Verdict.UNKNOWN, status.driver.summary, status.driver.hint)
    availability = drivers().load(installation.driver).availability(scene_of(cron.project))
    if not availability.is_available and installation.host == cron.project.world.host.name:
        yield Diagnosis("driver", Verdict.WARNING, f"{installation.driver}: {availability.reason}", availability.hint)
    if cron.settings.backend not in ("auto", installation.driver):
        yield Diagnosis(
            "driver",
            Verdict.WARNING,
            f"[cron] backend is {cron.settings.backend}, and {installation.driver} is installed",
            f"resil cron install --backend {cron.settings.backend} --replace",
        )
    if not Path(installation.python).exists() and installation.host == cron.project.world.host.name:
        yield Diagnosis(
            "driver",
            Verdict.CRITICAL,
            f"its interpreter {installation.python} is no longer there",
            "resil cron uninstall, and resil cron install from where resil lives now",
        )


# ---- what lies on the disk ------------------------------------------------------------------------------------


def _look_apart(cron: CronProject) -> tuple[dict[str, Any] | None, str]:
    from resilience.system.stuck import Look, StuckMemory, look_apart

    world = cron.project.world
    look = Look(f"cron folder of {cron.project.loaded.project}", lambda: _look(cron), LOOK_S)
    ((_, answer),) = look_apart({0: look}, StuckMemory.of(world), world.clock)
    if answer.error is not None:
        return None, f"{cron.folder}: {answer.error.message}"
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
        now = cron.project.world.clock.now()
        if not cron.folder.exists():
            diagnoses.append(
                Diagnosis("cron folder", Verdict.WARNING, f"{cron.folder} does not exist", "make one: resil init")
            )
        for entry in table.entries:
            diagnoses += judge_times(entry, cron.settings, installation, now)
            diagnoses += _guarded(entry.name, lambda entry=entry: program_of(cron, entry))  # type: ignore[misc]
            diagnoses += _guarded(entry.name, lambda entry=entry: past_of(cron, entry))  # type: ignore[misc]
        diagnoses += _guarded("resil", lambda: _resil(cron))
        diagnoses.append(_count(len(table.entries), str(cron.folder)))
    except ResilError as error:
        diagnoses.append(Diagnosis("cron folder", Verdict.UNKNOWN, error.message, error.hint))
    return {
        "diagnoses": [(d.topic, d.verdict.value, d.text, d.advice) for d in diagnoses],
        "ignored": [(i.place, i.reason, i.hint, i.is_fault) for i in ignored],
        "mailed": mailed,
    }


def _diagnosis(record: Sequence[str]) -> Diagnosis:
    topic, verdict, text, advice = record
    return Diagnosis(topic, Verdict(verdict), text, advice)


def _ignored(record: Sequence[Any]) -> Ignored:
    from resilience.cron.records import Ignored

    return Ignored(*record)


def _count(count: int, folder: str) -> Diagnosis:
    if not count:
        return Diagnosis("entries", Verdict.OK, f"nothing is scheduled in {folder}", "resil cron add --help")
    return Diagnosis("entries", Verdict.OK, f"{_entries(count)}: resil cron list")


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _installation(cron: CronProject) -> Installation | None:
    try:
        return cron.state.installation()
    except ResilError:
        return None  # said by the scheduler's own line


def _state_directory(cron: CronProject) -> Iterator[Diagnosis]:
    """Whether a tick could write, and nobody else: what cannot be recorded is not run."""
    from resilience.doctor.doctor import nearest_existing, try_to_write

    path = cron.state.path
    try:
        cron.state.check()
    except ResilError as error:
        yield Diagnosis("state directory", Verdict.CRITICAL, error.message, error.hint)
    folder = path
    try:
        folder = nearest_existing(path)
        try_to_write(folder)
        yield Diagnosis("state directory", Verdict.OK, f"{path} can be written")
    except OSError as error:
        yield Diagnosis(
            "state directory",
            Verdict.CRITICAL,
            f"cannot write in {folder}: {error.strerror or error}: no tick can take a slot, so nothing runs",
            "free some space (and inodes), or set state_dir under [run] in resil.toml",
        )


def _resil(cron: CronProject) -> Iterator[Diagnosis]:
    """Whether what runs finds `resil`: the shipped drop-ins, and most of people's own, call it."""
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
    """Whether anybody hears of what fails, and whether MAILTO can be obeyed."""
    from resilience.alerts.routes import routes_of

    project = cron.project
    routes = routes_of(project)
    if not routes:
        yield Diagnosis(
            "alerts", Verdict.WARNING, "nobody is told of what fails: resil.toml names no channel",
            'for instance [alert] channels = ["email"]; try it: resil alert test',
        )  # fmt: skip
    from resilience.alerts.routes import mail_trouble
    from resilience.cron.mail import wrong_address

    for place, people in mailed:
        if wrong := wrong_address(people):
            yield Diagnosis("mail", Verdict.CRITICAL, f"{place}: MAILTO={people}: {wrong}", "MAILTO=you@example.org")
    if mailed and mail_trouble(project):
        place, people = mailed[0]
        more = f", and {len(mailed) - 1} more" if len(mailed) > 1 else ""
        yield Diagnosis(
            "mail", Verdict.CRITICAL, f"{place}{more}: MAILTO={people}, no channel can send mail, no sendmail either",
            "give [channel.email] its server in resil.toml; resil alert test email",
        )  # fmt: skip
