"""The tables of resil.toml that belong to the run itself: each is the fields of a dataclass. Pure.

A field's name carries its unit, and so does the key in the file: `_s` takes seconds or a duration (`"10m"`),
`_bytes` a size (`"40TiB"`), `_percent` a percentage (`"85%"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.settings.alert_policy import AlertPolicy

if TYPE_CHECKING:  # a watchdog needs nothing of it, and it takes as long to make as all the tables below
    from resilience.guard.settings import GuardSettings
    from resilience.settings.cron_settings import CronSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """[run]: what is trained, and where its state is kept.

    Attributes:
        name: the run's name; everything is keyed by it. Default: the name of the project directory.
        command: the training, as you would type it in a shell.
        template: which sbatch template launches it: see `resil templates`.
        setup: shell lines before the launch: modules, virtual environment.
        state_dir: where run directories are kept, on a file system that all nodes share.
        group: Unix group that may steer the run; empty keeps it private.
        switch_owners: whose switch files are obeyed: owner, group or any. Default: group where `group` is set, else
            owner.
        finish_on_success: whether exit code 0 of the training means that the run is finished.
    """

    name: str = ""
    command: str = ""
    template: str = "python"
    setup: tuple[str, ...] = ()
    state_dir: str = ".resil"
    group: str = ""
    switch_owners: str = ""
    finish_on_success: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitSettings:
    """[submit]: how `resil submit` queues the run when nothing else is said.

    Attributes:
        array: as `--array`: `10` means ten jobs one after another.
        signal: the signal that the batch shell gets when the time is nearly over.
        signal_lead_s: how long before the time limit; SLURM may send it up to 60 s earlier.
        requeue: whether SLURM may put a job back after a node failure or a preemption; unset leaves it to the site.
    """

    array: str = ""
    signal: str = "USR1"
    signal_lead_s: float = 300.0
    requeue: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """[attempt]: one attempt at a time.

    Attributes:
        beat_s: how often the batch shell shows that it lives.
        previous_wait_s: how long a job waits for the attempt before it to be truly gone.
    """

    beat_s: float = 10.0
    previous_wait_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """[scheduler]: who runs the jobs.

    Attributes:
        name: auto, slurm or local (the embedded one). `auto` takes SLURM where its commands are installed.
        deadline_s: no call to it takes longer than this; a submit whose fate is unclear may look for its job 30 s
            longer.
    """

    name: str = "auto"
    deadline_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """[watch]: what all watchdogs share. Each has a table of its own besides, such as [watch.fs].

    Attributes:
        checks: what `resil watch --all` runs. Default: every watchdog there is, and every table [watch.NAME].
        deadline_s: how long a look at one target may take before it is said to be stuck.
        state_deadline_s: how long the state directory may take to answer before another place remembers.
    """

    checks: tuple[str, ...] = ()
    deadline_s: float = 10.0
    state_deadline_s: float = 5.0


class PluginTable(NamedTuple):
    """A table that belongs to a plugin, as it was written: [watch.NAME] or [channel.NAME].

    Its plugin's dataclass reads it when it is needed (settings/convert.py): `resil status` loads no watchdog.

    Attributes:
        kind: the plugin's name. The table's own, unless it says `kind = "fs"`: so there may be several of a kind.
        values: the keys, as TOML or the environment has them.
    """

    kind: str
    values: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything resil.toml may say.

    Attributes:
        guard: [guard]: what the guard is told; None: nothing, so that all its defaults hold.
        cron: [cron]: the scheduler where there is no cron; None: nothing was said, see `cron_settings`.
        watches: [watch.NAME]: one watchdog's own keys. `kind = "fs"` makes a second one of a kind.
        channels: [channel.NAME]: one way to tell people.
        sbatch: [sbatch]: sbatch's own long options, written into the script: `partition = "gpu"`, `exclusive = true`.
        environment: [environment]: variables exported before the launch.
        launcher: [template]: variables of the template, for instance `gpus_per_node = 8`.
    """

    run: RunSettings = field(default_factory=RunSettings)
    submit: SubmitSettings = field(default_factory=SubmitSettings)
    attempt: AttemptSettings = field(default_factory=AttemptSettings)
    guard: GuardSettings | None = None
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
        """[cron], or its defaults where there is none."""
        from resilience.settings.cron_settings import CronSettings

        return self.cron or CronSettings()


def tables_with(key: str) -> list[str]:
    """The tables of resil.toml that have a key of this name; those of sbatch and of plugins are not known here."""
    from resilience.guard.settings import GuardSettings  # only for those who put it in the wrong place
    from resilience.settings.cron_settings import CronSettings

    made = {table.name: table.default_factory for table in fields(Settings) if is_dataclass(table.default_factory)}
    owners: dict[str, Any] = {**made, "guard": GuardSettings, "cron": CronSettings}
    return [table for table, owner in owners.items() if key in {field.name for field in fields(owner)}]
