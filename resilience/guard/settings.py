"""[guard] in resil.toml: what the guard looks at, and when it acts. Pure.

The batch script exports what was set as `RESIL_GUARD__KEY`; `from_env` reads these, and arguments win over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from resilience.errors import GuardError, QuantityError
from resilience.layout import GUARD_PREFIX
from resilience.messages import nearest, suggest
from resilience.quantities import parse_bool, parse_in_unit

_DAY_S, _EIB = 86400.0, 2.0**60


def _within(default: float, low: float, high: float) -> Any:
    """A field of numbers from `low` to `high`."""
    return field(default=default, metadata={"range": (low, high)})


def _one_of(default: str, *others: str) -> Any:
    """A field of these words, the first of them where nothing is said."""
    return field(default=default, metadata={"choices": (default, *others)})


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """[guard]: when the training saves and stops by itself. Percentages go to 100.

    Attributes:
        poll_s: how often rank 0 looks at the switch files, and each node at its memory.
        beat_s: how often the heartbeat is written to the run directory.
        mirror: who writes it: auto, process (one beside the ranks of a node), thread, or off.
        kill_switch: whether `switches/kill` stops the training at a step, after a save. If not, the batch shell of a
            template still ends it, by SIGTERM.
        kill_timeout_s: how long a thrown kill switch gives the training to come to a step; then the batch shell ends
            it. 0: from the slowest step and save that were measured, and 5 min as long as there are none.
        save_switch: whether `switches/save` makes it save.
        switch_owners: whose switch files are obeyed: owner, group or any. Default: what the directory's mode allows.
        superseded: whether a newer attempt of the run stops this one, without a save.
        cron: whether a scheduler of cron that is late is told, in the journal and by an alert.
        signals: which signals ask to save and stop. A second INT takes effect at once; so does a second TERM, a second
            later and outside of a save.
        host_memory: whether the memory of the node, of the job's cgroups and of /dev/shm is watched.
        host_memory_percent: stop when so much of the smallest limit is used.
        host_memory_free_bytes: or when less is left than this; 0 for no such limit.
        host_memory_forecast: whether to stop at the next save when the memory will not last until the job's end, and
            at once when a fast rise hardly leaves time for one.
        shm_percent: stop when /dev/shm is so full.
        gpu_memory: whether the memory of this process's GPU is watched; auto is on where its figures mean something.
        gpu_memory_free_bytes: stop when less is left than this.
        gpu_memory_collect: whether to collect garbage and empty torch's cache before judging.
        walltime: whether to stop in time before the job's time limit.
        stop_after: how long an attempt may train, in seconds or as "19h50m", for sites without a time limit: it is
            stopped in time before, and ended then. 0: no such limit.
        walltime_safety: how many times the slowest recent step and save must fit into the time left.
        walltime_margin_s: seconds that must be left besides.
        walltime_ask_s: how often the scheduler is asked whether the time limit was changed; 0 for never.
        first_save_s: how long a save is taken to last until one was measured.
        save_overlap: what a save alone does that is asked for while another one is in flight: wait (the training waits
            until that is durable, and saves) or skip (it is passed over; a save switch is obeyed afterwards).
        loss_nonfinite: what a loss that is NaN or infinite does: stop (nothing saved, exit code 1), save (and go on),
            save_and_stop, report, off.
        loss_nonfinite_in_a_row: how many of them it takes.
        loss_spike: what a spike does: report, save, off.
        loss_spike_mads: how many median absolute deviations above the median of the window make a spike.
        loss_spike_in_a_row: how many of them it takes.
        loss_window: how many losses the median is taken of.
        round_s: how long rank 0 waits for all promises before it tries again.
        agreement_timeout_s: how long a rank that has promised waits for rank 0 before AgreementLost is raised, and
            after how long without an answer rank 0 is taken for gone by one that has not.
        join_timeout_s: how long ranks wait for rank 0's word before the first step.
        skew_steps: ranks whose counts differ by more cannot agree; 0 for no such limit.
        decide_by: step (all ranks save and stop after the same step) or time (at the same moment, each after its own
            step: for ranks that nothing holds together in every step, local SGD for instance).
        on_leader_lost: what a rank does once rank 0 is gone for good: save_alone (it looks at the switches by itself,
            and saves and stops alone when it is told to stop), stop (it does so at once), or wait (for another rank 0).
        interface: host name or address that rank 0 listens on. Default: the job's own.
        exit_timeout_s: how long after a decision to stop the process is ended by force, with all stacks, but not
            before three times its slowest save; 0 for never. After a stop ranks wait for each other so long, too.
        force_exit: auto (in jobs of a resil template), on, or off.
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
    save_overlap: str = _one_of("wait", "skip")
    loss_nonfinite: str = _one_of("stop", "save", "save_and_stop", "report", "off")
    loss_nonfinite_in_a_row: int = _within(1, 1, 10**6)
    loss_spike: str = _one_of("report", "save", "off")
    loss_spike_mads: float = _within(10.0, 1.0, 10.0**6)
    loss_spike_in_a_row: int = _within(3, 1, 10**6)
    loss_window: int = _within(200, 20, 10**5)
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
_UNITS = {"_percent": " %", "_bytes": " bytes", "_s": " s", "_steps": " steps", "stop_after": " s"}


def read_settings(environ: Mapping[str, str], **arguments: Any) -> GuardSettings:
    """Given the environment and the caller's arguments, return the settings; arguments win.

    Texts may have units: `85%`, `10m`, `2GiB`. A bare number is in the unit that the setting's name tells. An empty
    variable sets nothing, except for `signals`: no signal. Raise GuardError, naming the setting or the variable, if a
    name is unknown, with the nearest one, or if a value means nothing, with what it may be.
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
        raise GuardError(f"the guard knows no setting {shown!r}", hint=suggest(name, settings))
    return settings[name]


def _kind(setting: Field[Any]) -> type:
    return type(setting.default)


def _read(setting: Field[Any], value: Any, shown: str) -> Any:
    """Convert a value and check it at once, so that the message shows what was written, and where."""
    try:
        converted = _convert(setting, value)
    except QuantityError as error:
        raise GuardError(f"{shown} = {_short(value)}: {error.message}", hint=error.hint) from None
    except (TypeError, ValueError, ArithmeticError):
        raise _impossible(setting, value, shown) from None
    _check(setting, converted, shown)
    return converted


def _check(setting: Field[Any], value: Any, shown: str) -> None:
    """Raise GuardError if the setting cannot have this value."""
    kind, name = _kind(setting), setting.name
    is_number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not (is_number if kind in (int, float) else isinstance(value, kind)):
        raise _impossible(setting, value, shown)
    if kind is tuple:
        for signal in value:
            _check_signal(signal, shown)
    choices = setting.metadata.get("choices")
    if choices and value not in choices:
        raise GuardError(f"{shown} = {_short(value)} is not possible", hint=suggest(value, filter(None, choices)))
    if "range" in setting.metadata:
        low, high = setting.metadata["range"]
        if name.endswith("_percent") and 0 < value <= 1:
            hint = f"percentages go to 100: {name} = {value * 100:g} is probably meant"
            raise GuardError(f"{shown} = {value:g} means {value:g} %, which every machine exceeds", hint=hint)
        if not low <= value <= high:  # NaN included
            hint = f"it may be from {low:g} to {high:g}{_unit(name)}"
            raise GuardError(f"{shown} = {_short(value)} is out of range", hint=hint)


def _check_signal(name: Any, shown: str) -> None:
    if name in _SIGNALS:
        return
    hint = f"there are: {', '.join(_SIGNALS)}"
    if name in ("KILL", "STOP"):
        hint = f"no process can catch SIG{name} (signal(7)), so nothing can be saved at it; {hint}"
    elif isinstance(name, str) and (near := nearest(name, _SIGNALS)):
        hint = f"did you mean {near}? {hint}"
    raise GuardError(f"{shown} = {_short(name)} is not possible", hint=hint)


def _impossible(setting: Field[Any], value: Any, shown: str) -> GuardError:
    kinds = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a word",
        tuple: "names of signals",
    }
    kind, unit = _kind(setting), _unit(setting.name)
    of = f", in{unit}" if kind in (int, float) and unit else ""
    return GuardError(f"{shown} = {_short(value)} is not possible", hint=f"it may be {kinds[kind]}{of}")


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits has none, and a stranger's class may fail
        text = f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


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
        value = parse_in_unit("stop_after_s" if setting.name == "stop_after" else setting.name, value)
    if kind is float:
        return float(value)
    whole = value if isinstance(value, int) else float(value)
    if isinstance(whole, float) and not math.isnan(whole) and whole != math.floor(whole):
        raise ValueError
    return int(whole)


def _signal_names(value: Any) -> tuple[str, ...]:
    """USR1, usr1, SIGUSR1 and signal.SIGUSR1 are one; each is taken once; `none` and `off` are no signal."""
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
