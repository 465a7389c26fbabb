"""`resil doctor`: checks of scheduler, state directory, runs and settings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from resilience import layout
from resilience.base.mounts import MEMORY_TYPES, current_mounts, mount_of
from resilience.cluster import ClusterConfig
from resilience.doctor.diagnosis import Diagnosis, diagnose_cluster, guarded, nearest_existing, try_to_write
from resilience.errors import ResilError, UsageError
from resilience.finding import Verdict
from resilience.runs.project import Project
from resilience.runs.switches import policy_of_run, read_switch
from resilience.runs.templates.script import template_library

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
        ("templates", _templates),
        ("runs", _runs),
        ("cron", _cron),
    )
    diagnoses = (guarded(topic, partial(check, project)) for topic, check in checks)
    return Examination(tuple(chain.from_iterable(diagnoses)))


def _settings(project: Project) -> Iterator[Diagnosis]:
    path = project.loaded.path
    if path is None:
        yield Diagnosis(
            "settings", Verdict.OK, "no resil.toml; using the defaults", "write a commented one: resil init"
        )
    else:
        yield Diagnosis("settings", Verdict.OK, str(path))


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
        yield Diagnosis("scheduler", Verdict.OK, f"SLURM {config.version}{cluster} responds")


def _state_directory(project: Project) -> Iterator[Diagnosis]:
    path = project.loaded.state_dir
    try:
        try_to_write(nearest_existing(path))
        yield Diagnosis("state directory", Verdict.OK, f"{path} can be written")
    except OSError as error:
        yield Diagnosis(
            "state directory",
            Verdict.CRITICAL,
            f"cannot write in {path}: {error.strerror or error}",
            "set state_dir under [run] in resil.toml to a directory of yours on the shared file system",
        )
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
        yield Diagnosis("file system", Verdict.OK, f"{mount.type} at {mount.point}, shared")


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
                    f"run {directory.run}", Verdict.WARNING, text, f"to clear it: resil clear {directory.run}"
                )
        except ResilError as error:
            yield Diagnosis(f"run {directory.run}", Verdict.UNKNOWN, error.message, error.hint)


def _cron(project: Project) -> Iterator[Diagnosis]:
    """Yield the scheduler's health; without a scheduler, an available driver. See `resil cron doctor`."""
    from resilience.cron.project import open_cron
    from resilience.doctor.cron import outlook

    yield outlook(open_cron(project))
