"""[guard] in resil.toml: the resources that the guard monitors, and the limits at which it acts. Pure.

The batch script exports the settings as `RESIL_GUARD__KEY`; `from_env` reads them, and arguments override them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from resilience.errors import GuardError, QuantityError
from resilience.layout import GUARD_PREFIX
from resilience.messages import cut, nearest, suggest
from resilience.quantities import parse_bool, parse_in_unit

_DAY_S, _EIB = 86400.0, 2.0**60


def _within(default: float, low: float, high: float) -> Any:
    """Return a field for numbers from `low` to `high`."""
    return field(default=default, metadata={"range": (low, high)})


def _one_of(default: str, *others: str) -> Any:
    """Return a field for one of these words; the first is the default."""
    return field(default=default, metadata={"choices": (default, *others)})


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """[guard]: when the guard saves and stops the training. Percentages go to 100.

    Attributes:
        poll_s: interval at which rank 0 reads the switch files, and each node checks its memory.
        beat_s: interval at which the heartbeat is written to the run directory.
        mirror: heartbeat writer: auto, process (one per node, beside the ranks), thread, or off.
        kill_switch: stop the training at a step when `switches/kill` is set, after a save. If false, the batch shell of
            a template still ends the training with SIGTERM.
        kill_timeout_s: how long the training may take to reach a step after the kill switch was set; then the batch
            shell ends the training. 0: derived from the slowest measured step and save; 5 min before any was measured.
        save_switch: save when `switches/save` is set.
        switch_owners: accept switch files of: owner, group or any. Default: from the permissions of the directory.
        superseded: stop without a save when a newer attempt of the run exists.
        cron: report a late cron scheduler, in the journal and by an alert.
        signals: signals that request a save and a stop. A second INT takes effect at once; so does a second TERM, if at
            least a second later and not during a save.
        host_memory: monitor the memory of the node, of the job's cgroups and of /dev/shm.
        host_memory_percent: stop when this share of the smallest limit is used.
        host_memory_free_bytes: stop when less than this is free; 0 for no limit.
        host_memory_forecast: stop at the next save if the memory will run out before the job's end, and at once if a
            fast rise leaves little time for a save.
        shm_percent: stop when this share of /dev/shm is used.
        gpu_memory: monitor the memory of this process's GPU; auto enables this where the driver's values are reliable.
        gpu_memory_free_bytes: stop when less than this is free.
        gpu_memory_collect: collect garbage and empty torch's cache before each check.
        walltime: stop in time before the job's time limit.
        stop_after: time limit of an attempt, in seconds or as "19h50m", for sites without a time limit. The training is
            stopped in time before, and ended then. 0: no limit.
        walltime_safety: how many times the slowest recent step and save must fit into the remaining time.
        walltime_margin_s: additional seconds that must remain.
        walltime_ask_s: interval at which the scheduler is queried for a changed time limit; 0 for never.
        first_save_s: assumed duration of a save before one was measured.
        every: how often the guard requests a save: `500 steps` (at multiples), `30 min` (since the last save began), or
            `auto` (from what saves and failures cost). Default: never; the training saves when it wants.
        redo_max: the most work that a failure may destroy, in seconds or as "30m"; `every = "auto"` saves often enough
            for that, unless the file system is too slow. 0: no limit.
        save_overlap: handling of a requested save without a stop while as many saves as allowed are in flight: wait
            (the training waits until one is durable, then saves) or skip (no save; a save switch is retried
            afterwards).
        saves_in_flight: how many saves may be in flight at once. Each needs space for a checkpoint, and memory for a
            copy of the state where saves are asynchronous.
        loss_nonfinite: action when the loss is NaN or infinite: stop (without a save, exit code 1), save (and
            continue), save_and_stop, report, off.
        loss_nonfinite_in_a_row: number of such losses in a row that triggers the action.
        loss_spike: action on a loss spike: report, save, off.
        loss_spike_mads: a spike is this many median absolute deviations above the median of the window.
        loss_spike_in_a_row: number of spikes in a row that triggers the action.
        loss_window: number of losses in the window.
        loss_plateau_steps: report a loss whose median has not reached a new best for this many steps; 0 for never.
        grad_norm_nonfinite: action when the gradient norm is NaN or infinite: stop (without a save, exit code 1), save
            (and continue), save_and_stop, report, off.
        grad_norm_nonfinite_in_a_row: number of such norms in a row that triggers the action. A loss scaler skips up to
            34 steps in a row until it has found its scale.
        grad_norm_spike: action on a spike of the gradient norm: report, save, off. Judged like those of the loss.
        sdc: watch the steps of `guard.sdc(...)` for silent data corruption: wrong values without an error. Replays the
            last two steps if a tensor is abnormal; needs memory for two copies of the training's state on the host.
        sdc_times: a tensor is abnormal if its largest absolute value is above this many times that of recent steps.
        sdc_ceiling: it is abnormal above this in any case.
        sdc_window: number of recent clean steps.
        sdc_replicas_every: compare the replicas of a data-parallel training every so many steps; 0 for never.
        round_s: how long rank 0 waits for the promises of all ranks before it retries.
        agreement_timeout_s: how long a rank that has promised waits for rank 0 before AgreementLost is raised; also how
            long rank 0 may be silent before other ranks consider it gone.
        join_timeout_s: how long ranks wait for rank 0 before the first step.
        skew_steps: the ranks make no decision while their step counts differ by more than this; 0 for no limit.
        decide_by: step (all ranks save and stop after the same step) or time (at the same moment, each rank after its
            own step: for ranks that do not synchronise in every step, such as local SGD).
        on_leader_lost: action of a rank once rank 0 is gone for good: save_alone (the rank reads the switches itself,
            and saves and stops alone when requested), stop (save and stop at once), or wait (for a new rank 0).
        interface: host name or address that rank 0 listens on. Default: that of the job.
        exit_timeout_s: how long after a decision to stop the process is terminated, with all stacks, but not before
            three times its slowest save; 0 for never. Also how long ranks wait for each other after a stop.
        force_exit: terminate a process that hangs after a stop: auto (in jobs of a resil template), on, or off.
    """

    poll_s: float = _within(5.0, 0.01, 3600.0)
    beat_s: float = _within(10.0, 0.05, 3600.0)
    mirror: str = _one_of("auto", "process", "thread", "off")
    kill_switch: bool = True
    kill_timeout_s: float = _within(0.0, 0.0, 7 * _DAY_S)
    save_switch: bool = True
    switch_owners: str = _one_of("", "owner", "group", "any")
    superseded: bool = True
    cron: bool = True
    signals: tuple[str, ...] = ("USR1", "TERM")
    host_memory: bool = True
    host_memory_percent: float = _within(95.0, 1.0, 100.0)
    host_memory_free_bytes: int = _within(0, 0, _EIB)
    host_memory_forecast: bool = True
    shm_percent: float = _within(95.0, 1.0, 100.0)
    gpu_memory: str = _one_of("auto", "on", "off")
    gpu_memory_free_bytes: int = _within(512 * 2**20, 0, _EIB)
    gpu_memory_collect: bool = False
    walltime: bool = True
    stop_after: float = _within(0.0, 0.0, 366 * _DAY_S)
    walltime_safety: float = _within(1.5, 1.0, 100.0)
    walltime_margin_s: float = _within(10.0, 0.0, _DAY_S)
    walltime_ask_s: float = _within(120.0, 0.0, _DAY_S)
    first_save_s: float = _within(60.0, 0.0, _DAY_S)
    every: str = ""
    redo_max: float = _within(0.0, 0.0, 30 * _DAY_S)
    save_overlap: str = _one_of("wait", "skip")
    saves_in_flight: int = _within(1, 1, 8)
    loss_nonfinite: str = _one_of("stop", "save", "save_and_stop", "report", "off")
    loss_nonfinite_in_a_row: int = _within(1, 1, 10**6)
    loss_spike: str = _one_of("report", "save", "off")
    loss_spike_mads: float = _within(10.0, 1.0, 10.0**6)
    loss_spike_in_a_row: int = _within(3, 1, 10**6)
    loss_window: int = _within(200, 20, 10**5)
    loss_plateau_steps: int = _within(0, 0, 2**31)
    grad_norm_nonfinite: str = _one_of("stop", "save", "save_and_stop", "report", "off")
    grad_norm_nonfinite_in_a_row: int = _within(40, 1, 10**6)
    grad_norm_spike: str = _one_of("report", "save", "off")
    sdc: bool = False
    sdc_times: float = _within(100.0, 2.0, 1e12)
    sdc_ceiling: float = _within(1e6, 1.0, 1e30)
    sdc_window: int = _within(100, 2, 10**6)
    sdc_replicas_every: int = _within(100, 0, 2**31)
    round_s: float = _within(10.0, 0.1, 3600.0)
    agreement_timeout_s: float = _within(300.0, 1.0, 7 * _DAY_S)
    join_timeout_s: float = _within(60.0, 0.0, _DAY_S)
    skew_steps: int = _within(16, 0, 2**31)
    decide_by: str = _one_of("step", "time")
    on_leader_lost: str = _one_of("save_alone", "stop", "wait")
    interface: str = ""
    exit_timeout_s: float = _within(900.0, 0.0, 7 * _DAY_S)
    force_exit: str = _one_of("auto", "on", "off")

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check(setting, getattr(self, setting.name), setting.name)


_SIGNALS = ("USR1", "USR2", "TERM", "HUP", "INT")
_UNITS = {"_percent": " %", "_bytes": " bytes", "_s": " s", "_steps": " steps", "stop_after": " s", "redo_max": " s"}
_DURATIONS = ("stop_after", "redo_max")
"""Settings in seconds whose names do not say so."""


def read_settings(environ: Mapping[str, str], **arguments: Any) -> GuardSettings:
    """Given the environment and the caller's arguments, return the settings; arguments take precedence.

    Texts may have units: `85%`, `10m`, `2GiB`. A bare number is in the unit of the setting's name. An empty variable is
    ignored, except for `signals`: no signal. Raise GuardError for an unknown name, suggesting the nearest one, and for
    an invalid value, with the valid ones.
    """
    settings = {setting.name: setting for setting in fields(GuardSettings)}
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if variable.startswith(GUARD_PREFIX):
            setting = _setting(variable.removeprefix(GUARD_PREFIX).lower(), settings, variable)
            if text.strip() or _kind(setting) is tuple:
                values[setting.name] = _read(setting, text, variable)
    for name, value in arguments.items():
        values[name] = _read(_setting(name, settings, name), value, name)
    return GuardSettings(**values)


def _setting(name: str, settings: Mapping[str, Field[Any]], shown: str) -> Field[Any]:
    if name not in settings:
        raise GuardError(f"unknown guard setting {shown!r}", hint=suggest(name, settings))
    return settings[name]


def _kind(setting: Field[Any]) -> type:
    return type(setting.default)


def _read(setting: Field[Any], value: Any, shown: str) -> Any:
    """Convert a value and check the result, so that the message shows the original text and its source."""
    try:
        converted = _convert(setting, value)
    except QuantityError as error:
        raise GuardError(f"{shown} = {_short(value)}: {error.message}", hint=error.hint) from None
    except (TypeError, ValueError, ArithmeticError):
        raise _invalid(setting, value, shown) from None
    _check(setting, converted, shown)
    return converted


def _check(setting: Field[Any], value: Any, shown: str) -> None:
    """Raise GuardError if the value is invalid for the setting."""
    kind, name = _kind(setting), setting.name
    is_number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not (is_number if kind in (int, float) else isinstance(value, kind)):
        raise _invalid(setting, value, shown)
    if kind is tuple:
        for signal in value:
            _check_signal(signal, shown)
    if name == "every" and value:
        _check_every(value, shown)
    choices = setting.metadata.get("choices")
    if choices and value not in choices:
        raise GuardError(f"{shown} = {_short(value)} is invalid", hint=suggest(value, filter(None, choices)))
    if "range" in setting.metadata:
        low, high = setting.metadata["range"]
        if name.endswith("_percent") and 0 < value <= 1:
            hint = f"percentages go to 100: {name} = {value * 100:g} is probably meant"
            raise GuardError(f"{shown} = {value:g} means {value:g} %, which every machine exceeds", hint=hint)
        if not low <= value <= high:  # NaN included
            hint = f"set a value from {low:g} to {high:g}{_unit(name)}"
            raise GuardError(f"{shown} = {_short(value)} is out of range", hint=hint)


def _check_every(value: str, shown: str) -> None:
    from resilience.cadence import parse_every

    try:
        parse_every(value)
    except QuantityError as error:
        raise GuardError(f"{shown} = {_short(value)}: {error.message}", hint=error.hint) from None


def _check_signal(name: Any, shown: str) -> None:
    if name in _SIGNALS:
        return
    hint = f"there are: {', '.join(_SIGNALS)}"
    if name in ("KILL", "STOP"):
        hint = f"no process can catch SIG{name} (signal(7)); {hint}"
    elif isinstance(name, str) and (near := nearest(name, _SIGNALS)):
        hint = f"did you mean {near}? {hint}"
    raise GuardError(f"{shown} = {_short(name)} is invalid", hint=hint)


def _invalid(setting: Field[Any], value: Any, shown: str) -> GuardError:
    kinds = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a word",
        tuple: "names of signals",
    }
    kind, unit = _kind(setting), _unit(setting.name)
    of = f", in{unit}" if kind in (int, float) and unit else ""
    return GuardError(f"{shown} = {_short(value)} is invalid", hint=f"set {kinds[kind]}{of}")


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # repr() fails for an integer of thousands of digits, and may fail for a user's class
        text = f"a {type(value).__name__}"
    return cut(text, 200)


def _convert(setting: Field[Any], value: Any) -> Any:
    kind, choices = _kind(setting), setting.metadata.get("choices", ())
    if kind is bool:
        if not isinstance(value, int | str):
            raise ValueError
        return parse_bool(str(value))
    if kind is tuple:
        return _signal_names(value)
    if isinstance(value, bool):
        if "on" in choices:
            return "on" if value else "off"
        raise ValueError
    if kind is str:
        if not isinstance(value, str):
            raise ValueError
        return value.strip().lower() if choices else value.strip()
    if isinstance(value, str):
        value = parse_in_unit(setting.name + "_s" * (setting.name in _DURATIONS), value)
    if kind is float:
        return float(value)
    whole = value if isinstance(value, int) else float(value)
    if isinstance(whole, float) and not math.isnan(whole) and whole != math.floor(whole):
        raise ValueError
    return int(whole)


def _signal_names(value: Any) -> tuple[str, ...]:
    """Return signal names without `SIG` and without duplicates; `none` and `off` give no signal."""
    import signal

    if isinstance(value, str):
        value = value.replace(",", " ").split()
        if [word.lower() for word in value] in (["none"], ["off"]):
            return ()
    elif isinstance(value, signal.Signals):
        value = [value]
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError
    names = [word.name if isinstance(word, signal.Signals) else str(word).strip().upper() for word in value]
    return tuple(dict.fromkeys(name.removeprefix("SIG") for name in names))
