"""`resil doctor`: checks of scheduler, state directory, runs and settings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from resilience import layout
from resilience.base.mounts import MEMORY_TYPES, current_mounts, mount_of
from resilience.cluster import ClusterConfig
from resilience.doctor.checkpoints import TOPIC as CHECKPOINTS
from resilience.doctor.checkpoints import diagnose_checkpoints
from resilience.doctor.diagnosis import (
    Diagnosis,
    diagnose_cluster,
    diagnose_nodes,
    guarded,
    try_state_directory,
)
from resilience.doctor.settings import check_settings
from resilience.doctor.training import TOPIC, diagnose_training
from resilience.errors import ResilError, UsageError
from resilience.finding import Verdict
from resilience.job import JobId
from resilience.messages import quoted
from resilience.plugins import Family
from resilience.runs.injections import describe_injection, read_injections
from resilience.runs.project import Project
from resilience.runs.switches import policy_of_run, read_switch
from resilience.runs.templates.script import template_library

if TYPE_CHECKING:
    from resilience.schedulers import Scheduler

CLIENTS = ("sbatch", "squeue", "scontrol", "scancel", "srun")


@dataclass(frozen=True, slots=True)
class Examination:
    """All diagnoses, in the order of the checks."""

    diagnoses: tuple[Diagnosis, ...]

    @property
    def worst(self) -> Verdict:
        """Return the worst verdict."""
        return max((diagnosis.verdict for diagnosis in self.diagnoses), default=Verdict.OK)


def examine(project: Project) -> Examination:
    """Check settings, scheduler, state directory, templates, runs and cron. Never raises: a failed check is
    UNKNOWN."""
    checks: tuple[tuple[str, Callable[[Project], Iterator[Diagnosis]]], ...] = (
        ("settings", _settings),
        ("scheduler", _scheduler),
        ("state directory", _state_directory),
        (CHECKPOINTS, diagnose_checkpoints),
        ("alerts", _alert_state),
        (TOPIC, diagnose_training),
        ("plugins", _plugins),
        ("templates", _templates),
        ("runs", _runs),
        ("cron", _cron),
    )
    diagnoses = (guarded(topic, partial(check, project)) for topic, check in checks)
    return Examination(tuple(chain.from_iterable(diagnoses)))


def _settings(project: Project) -> Iterator[Diagnosis]:
    path = project.loaded.path
    try:
        check_settings(project)
    except ResilError as error:
        where = f"{path}: " if path is not None else ""
        yield Diagnosis("settings", Verdict.CRITICAL, f"{where}{error.message}", error.hint)
        return
    if path is None:
        yield Diagnosis(
            "settings", Verdict.OK, "no resil.toml; using the defaults", "write a commented one: resil init"
        )
    else:
        yield Diagnosis("settings", Verdict.OK, f"{path} was read, and each setting is valid")


def _scheduler(project: Project) -> Iterator[Diagnosis]:
    name = project.scheduler_name()
    path = project.system.environ.get("PATH")
    if name == "slurm":
        missing = [client for client in CLIENTS if shutil.which(client, path=path) is None]
        if missing:
            yield Diagnosis(
                "SLURM commands",
                Verdict.CRITICAL,
                f"not on PATH: {', '.join(missing)}",
                'log in to a node of the cluster, or load its module; without SLURM: [scheduler] name = "local"',
            )
            return
    try:
        scheduler = project.scheduler()
    except UsageError as error:
        yield Diagnosis("scheduler", Verdict.CRITICAL, error.message, error.hint)
        return
    try:
        config = scheduler.config()
    except ResilError as error:
        yield Diagnosis("scheduler", Verdict.UNKNOWN, f"{name}: {error.message}", error.hint)
        return
    yield from _describe(config)
    if config.scheduler == "slurm":
        yield from guarded("accounting", lambda: _accounting(scheduler, config))
        yield from guarded("scrontab", lambda: _scrontab(project, config))
        yield from guarded("nodes", lambda: (diagnose_nodes(scheduler.nodes()),))
    yield from diagnose_cluster(config)
    variables = sorted(key for key in project.system.environ if key.startswith("SBATCH_"))
    if variables:
        yield Diagnosis(
            "environment", Verdict.WARNING, f"set: {', '.join(variables)}; they override #SBATCH lines", "unset them"
        )


def _describe(config: ClusterConfig) -> Iterator[Diagnosis]:
    if config.scheduler == "local":
        yield Diagnosis(
            "scheduler",
            Verdict.OK,
            "embedded: jobs run on this machine",
            "to use a cluster, run resil on its login node",
        )
    else:
        cluster = f" on cluster {config.cluster}" if config.cluster else ""
        text = f"SLURM {config.version}{cluster} answered `scontrol show config`"
        yield Diagnosis("scheduler", Verdict.OK, text)


def _accounting(scheduler: Scheduler, config: ClusterConfig) -> Iterator[Diagnosis]:
    """Query sacct: slurm.conf may name a slurmdbd that is dead."""
    if config.accounting is None:
        yield Diagnosis("accounting", Verdict.UNKNOWN, "`scontrol show config` does not name AccountingStorageType")
    elif not config.accounting:
        text = "off in slurm.conf: SLURM forgets how a job ended after MinJobAge (300 s)"
        yield Diagnosis("accounting", Verdict.OK, text)
    else:
        try:
            scheduler.history([JobId(1)])
        except ResilError as error:
            yield Diagnosis("accounting", Verdict.UNKNOWN, f"`sacct -j 1` failed: {error.message}", error.hint)
        else:
            yield Diagnosis("accounting", Verdict.OK, "`sacct -j 1` answered")


def _scrontab(project: Project, config: ClusterConfig) -> Iterator[Diagnosis]:
    """Run `scrontab -l`: slurm.conf may enable what has no program here."""
    from resilience.cron.drivers import ProgramUnavailable
    from resilience.cron.drivers.scrontab import DRIVER
    from resilience.watch.watchdogs import context_of

    try:
        DRIVER.read(context_of(project))
    except ProgramUnavailable as error:
        if config.scrontab:
            text = f"slurm.conf enables it, but `scrontab -l` failed: {error.message}"
            yield Diagnosis("scrontab", Verdict.WARNING, text, "log in to a node that has it, or use another backend")
        else:
            yield Diagnosis("scrontab", Verdict.OK, f"not usable here: {error.message}")
    except ResilError as error:
        yield Diagnosis("scrontab", Verdict.UNKNOWN, error.message, error.hint)
    else:
        yield Diagnosis("scrontab", Verdict.OK, "`scrontab -l` answered")


def _state_directory(project: Project) -> Iterator[Diagnosis]:
    path = project.loaded.state_dir
    written = try_state_directory(path)
    yield written
    if written.verdict is not Verdict.OK:
        return
    mount = mount_of(path, current_mounts())
    if mount is None:
        yield Diagnosis(
            "file system", Verdict.UNKNOWN, "the type of the file system is unknown", "it must be shared by all nodes"
        )
    elif project.scheduler_name() == "local" and mount.type not in MEMORY_TYPES:
        yield Diagnosis("file system", Verdict.OK, f"{mount.type} at {mount.point}; jobs run on this machine")
    elif mount.is_node_local:
        yield Diagnosis(
            "file system",
            Verdict.WARNING,
            f"{mount.type} at {mount.point} is probably local to this node",
            "jobs on other nodes would not see switches and journals; choose a shared directory as state_dir",
        )
    else:
        yield Diagnosis(
            "file system",
            Verdict.OK,
            f"{mount.type} at {mount.point}: such file systems are shared",
            "ask a node: resil doctor --on-node",
        )


def _alert_state(project: Project) -> Iterator[Diagnosis]:
    """Yield an error if other users may write the alert state, which is then not used."""
    from resilience.alerts.state import DIRECTORY, distrust

    refusal = distrust(project.loaded.state_dir / DIRECTORY, project.loaded.settings.run.group)
    if refusal is not None:
        yield Diagnosis("alerts", Verdict.CRITICAL, refusal.message, refusal.hint)


def _plugins(project: Project) -> Iterator[Diagnosis]:
    if error := Family("checks", "CHECK").missing_directories():
        yield Diagnosis("plugins", Verdict.WARNING, error.message, error.hint)


def _templates(project: Project) -> Iterator[Diagnosis]:
    try:
        names = sorted({info.name for info in template_library(project).list()})
        yield Diagnosis("templates", Verdict.OK, ", ".join(names))
    except (ResilError, OSError) as error:
        yield Diagnosis("templates", Verdict.CRITICAL, str(error), "reinstall resil")


def _runs(project: Project) -> Iterator[Diagnosis]:
    for directory in project.runs():
        try:
            policy = policy_of_run(directory)
            for kind in (layout.KILL_SWITCH, layout.SAVE_SWITCH):
                switch = read_switch(directory, kind, policy)
                if switch is None:
                    continue
                text = f"{kind} switch of {switch.who}" + ("" if switch.honoured else f", rejected: {switch.refusal}")
                yield Diagnosis(
                    f"run {directory.run}", Verdict.WARNING, text, f"to clear it: resil clear {quoted(directory.run)}"
                )
            for one in (one for one in read_injections(directory) if one.is_on):
                text, advice = (
                    f"injected on purpose: {describe_injection(one)}",
                    f"to undo it: resil inject undo {one.id}",
                )
                yield Diagnosis(f"run {directory.run}", Verdict.WARNING, text, advice)
        except ResilError as error:
            yield Diagnosis(f"run {directory.run}", Verdict.UNKNOWN, error.message, error.hint)


def _cron(project: Project) -> Iterator[Diagnosis]:
    """Yield the scheduler's health; without a scheduler, an available driver. See `resil cron doctor`."""
    from resilience.cron.project import open_cron
    from resilience.doctor.cron import outlook

    yield outlook(open_cron(project))
