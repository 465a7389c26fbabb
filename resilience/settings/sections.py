"""The tables of resil.toml about the run itself; the keys of a table are the fields of its dataclass. Pure.

The name of a field, and so of its key, ends with the unit: `_s` takes seconds or a duration (`"10m"`),
`_bytes` a size (`"40TiB"`), `_percent` a percentage (`"85%"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.settings.alert_policy import AlertPolicy

if TYPE_CHECKING:  # not needed by watchdogs, and as slow to import as all the tables below
    from resilience.checkpoints.settings import CheckpointSettings
    from resilience.guard.settings import GuardSettings
    from resilience.settings.cron_settings import CronSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """[run]: the training and its state directory.

    Attributes:
        name: the run's name, which identifies its state. Default: the name of the project directory.
        command: the training command, as typed in a shell.
        template: name of the sbatch template that launches the training: see `resil templates`.
        setup: shell lines before the launch: modules, virtual environment.
        state_dir: parent of the run directories, on a file system that all nodes share.
        group: Unix group that may control the run; empty: the owner only.
        switch_owners: owners whose switch files are accepted: owner, group or any. Default: group where `group` is
            set, else owner.
        finish_on_success: whether exit code 0 of the training marks the run as finished.
        allow_inject: whether `resil inject` may break this run on purpose. Recorded at each submit.
    """

    name: str = ""
    command: str = ""
    template: str = "python"
    setup: tuple[str, ...] = ()
    state_dir: str = ".resil"
    group: str = ""
    switch_owners: str = ""
    finish_on_success: bool = True
    allow_inject: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitSettings:
    """[submit]: defaults of `resil submit`.

    Attributes:
        array: as `--array`: `10` means ten jobs, one after another.
        signal: the signal sent to the batch shell shortly before the time limit.
        signal_lead_s: how long before the time limit; SLURM may send the signal up to 60 s earlier.
        requeue: whether SLURM may requeue a job after a node failure or a preemption. Default: the site's JobRequeue.
    """

    array: str = ""
    signal: str = "USR1"
    signal_lead_s: float = 300.0
    requeue: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """[attempt]: only one attempt of a run may train at a time.

    Attributes:
        beat_s: interval of the batch shell's heartbeat.
        previous_wait_s: how long a job waits for the previous attempt to end.
    """

    beat_s: float = 10.0
    previous_wait_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActSettings:
    """[act]: whether resil acts when attempts of a run fail one after another, and when.

    Attributes:
        enabled: whether the breaker may hold the queued jobs of a run, exclude bad hosts from them, end its jobs at
            their start, and ask one to save and stop. If not, each action is only named.
        failures: attempts in a row without a new durable checkpoint, whatever their causes, that open the breaker.
            0: never.
        half_open: further attempts where the cause may heal, one at a time, after 10 s, doubled each time up to 5 min.
        neutral: attempts in a row that preemptions, time limits or lost nodes ended without a new durable checkpoint,
            and that open it as well. 0: never.
        keep_queued: how many jobs or array tasks a starting job, or `resil watch job`, keeps queued behind the running
            one, by queueing the run's last script again. 0: none; never for a run that is finished, killed, cancelled,
            or whose breaker is open.
        requeue: whether a job requeues itself when its attempt ends, until the run is finished, killed or cancelled. It
            keeps its id, and `keep_queued` queues nothing then.
        treatments: what a restart does for a class of causes, where that differs from the default: `network = "retry"`.
            A class as `resil why` names it; neutral, heals, elsewhere, save_and_stop, retry, twice, fall_back or
            never.
    """

    enabled: bool = False
    failures: int = 3
    half_open: int = 6
    neutral: int = 20
    keep_queued: int = 0
    requeue: bool = False
    treatments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """[nodes]: what nodes should have.

    Attributes:
        preflight: whether a job checks its nodes before the launch. If some fail, and queued jobs of the run can do
            without them, these exclude them and the job ends. Without [act] `enabled` that is only told.
        spares: how many nodes a job has beyond `nodes` of [sbatch], idle until one of these is lost, fails the
            preflight or is named by a failure: then the training is launched again in the same job. SLURM only.
        mounts: directories that must be there and writable on every node: data sets, checkpoints, local scratch.
        rules: for a figure of a check, what is bad, where that differs from the default:
            `"memory.shm_free_bytes" = "< 64GiB"`, or against other nodes and earlier checks `"compute.compute_s" =
            "> 20%"`.
        evidence: directory of what is known about the nodes of this cluster, for projects or a group that share it:
            all of them then avoid the same nodes. Default: `nodes/evidence` in the state directory.
    """

    preflight: bool = False
    spares: int = 0
    mounts: tuple[str, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """[scheduler]: the scheduler that runs the jobs.

    Attributes:
        name: auto, slurm or local (the embedded scheduler). `auto` selects SLURM where its commands are installed.
        deadline_s: timeout of a call to the scheduler. After a submission with an unknown outcome, the search for the
            job may take another 30 s.
    """

    name: str = "auto"
    deadline_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """[watch]: settings of all watchdogs. Each watchdog also has a table of its own, such as [watch.fs].

    Attributes:
        checks: the watchdogs that `resil watch --all` runs. Default: all watchdogs, and every table [watch.NAME].
        deadline_s: timeout of the probe of one target; a target that exceeds it is reported as stuck.
        state_deadline_s: how long the state directory may take to respond before a directory on the node is used
            instead.
    """

    checks: tuple[str, ...] = ()
    deadline_s: float = 10.0
    state_deadline_s: float = 5.0


class PluginTable(NamedTuple):
    """The unconverted table of a plugin: [watch.NAME] or [channel.NAME].

    The plugin's dataclass reads the table when the plugin is used (settings/convert.py): `resil status` loads no
    watchdog.

    Attributes:
        kind: the plugin's name: the table's key `kind`, else its name. Several tables may have the same kind.
        values: the keys and values as in the file or the environment.
    """

    kind: str
    values: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings in resil.toml.

    Attributes:
        guard: [guard]: settings of the guard; None: all defaults.
        checkpoints: [checkpoints]: where the checkpoints are, and which are kept; None: all defaults.
        cron: [cron]: the scheduler for hosts without cron; None: all defaults, see `cron_settings`.
        watches: [watch.NAME]: keys of one watchdog. `kind = "fs"` defines another watchdog of that kind.
        channels: [channel.NAME]: one notification channel.
        sbatch: [sbatch]: sbatch's own long options, written into the script: `partition = "gpu"`, `exclusive = true`.
            `resil submit` warns of an option that sbatch does not have, unless a plugin of the site adds it.
        environment: [environment]: variables exported before the launch.
        launcher: [template]: variables of the template, for instance `gpus_per_node = 8`. `resil submit` warns of a
            variable that the template does not have.
    """

    run: RunSettings = field(default_factory=RunSettings)
    submit: SubmitSettings = field(default_factory=SubmitSettings)
    attempt: AttemptSettings = field(default_factory=AttemptSettings)
    act: ActSettings = field(default_factory=ActSettings)
    nodes: NodeSettings = field(default_factory=NodeSettings)
    guard: GuardSettings | None = None
    checkpoints: CheckpointSettings | None = None
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)
    alert: AlertPolicy = field(default_factory=AlertPolicy)
    cron: CronSettings | None = None
    watches: Mapping[str, PluginTable] = field(default_factory=dict)
    channels: Mapping[str, PluginTable] = field(default_factory=dict)
    sbatch: Mapping[str, str | int | bool] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    launcher: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def cron_settings(self) -> CronSettings:
        """Return [cron], or its defaults if the file has no such table."""
        from resilience.settings.cron_settings import CronSettings

        return self.cron or CronSettings()


def tables_with(key: str) -> list[str]:
    """Return the tables of resil.toml that have this key. Tables of sbatch and of plugins are not searched."""
    from resilience.checkpoints.settings import CheckpointSettings  # only needed for an error message
    from resilience.guard.settings import GuardSettings
    from resilience.settings.cron_settings import CronSettings

    made = {table.name: table.default_factory for table in fields(Settings) if is_dataclass(table.default_factory)}
    owners: dict[str, Any] = {**made, "guard": GuardSettings, "checkpoints": CheckpointSettings, "cron": CronSettings}
    return [table for table, owner in owners.items() if key in {field.name for field in fields(owner)}]
