"""[guard] in resil.toml: what the guard looks at, and when it acts. Pure.

The batch script exports what was set as `RESIL_GUARD__KEY`; `from_env` reads these, and arguments win over them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from resilience.errors import GuardError, QuantityError
from resilience.layout import GUARD_PREFIX
from resilience.quantities import parse_bytes, parse_duration_s, parse_percent

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


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
        switch_owners: whose switch files are obeyed: owner, group or any. Default: what the folder's mode allows.
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

    poll_s: float = 5.0
    beat_s: float = 10.0
    mirror: str = "auto"
    kill_switch: bool = True
    kill_timeout_s: float = 0.0
    save_switch: bool = True
    switch_owners: str = ""
    superseded: bool = True
    cron: bool = True
    signals: tuple[str, ...] = ("USR1", "TERM")
    host_memory: bool = True
    host_memory_percent: float = 95.0
    host_memory_free_bytes: int = 0
    host_memory_forecast: bool = True
    shm_percent: float = 95.0
    gpu_memory: str = "auto"
    gpu_memory_free_bytes: int = 512 * 2**20
    gpu_memory_collect: bool = False
    walltime: bool = True
    stop_after: float = 0.0
    walltime_safety: float = 1.5
    walltime_margin_s: float = 10.0
    walltime_ask_s: float = 120.0
    first_save_s: float = 60.0
    save_overlap: str = "wait"
    loss_nonfinite: str = "stop"
    loss_nonfinite_in_a_row: int = 1
    loss_spike: str = "report"
    loss_spike_mads: float = 10.0
    loss_spike_in_a_row: int = 3
    loss_window: int = 200
    round_s: float = 10.0
    agreement_timeout_s: float = 300.0
    join_timeout_s: float = 60.0
    skew_steps: int = 16
    decide_by: str = "step"
    on_leader_lost: str = "save_alone"
    interface: str = ""
    exit_timeout_s: float = 900.0
    force_exit: str = "auto"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name), type(field.default), field.name)


_CHOICES = {
    "mirror": ("auto", "process", "thread", "off"),
    "switch_owners": ("", "owner", "group", "any"),
    "gpu_memory": ("auto", "on", "off"),
    "loss_nonfinite": ("stop", "save", "save_and_stop", "report", "off"),
    "loss_spike": ("report", "save", "off"),
    "force_exit": ("auto", "on", "off"),
    "save_overlap": ("wait", "skip"),
    "decide_by": ("step", "time"),
    "on_leader_lost": ("save_alone", "stop", "wait"),
}
_DAY_S, _EIB = 86400.0, 2.0**60
_RANGES = {
    "poll_s": (0.01, 3600.0),
    "beat_s": (0.05, 3600.0),
    "kill_timeout_s": (0.0, 7 * _DAY_S),
    "host_memory_percent": (1.0, 100.0),
    "host_memory_free_bytes": (0, _EIB),
    "shm_percent": (1.0, 100.0),
    "gpu_memory_free_bytes": (0, _EIB),
    "stop_after": (0.0, 366 * _DAY_S),
    "walltime_safety": (1.0, 100.0),
    "walltime_margin_s": (0.0, _DAY_S),
    "walltime_ask_s": (0.0, _DAY_S),
    "first_save_s": (0.0, _DAY_S),
    "loss_nonfinite_in_a_row": (1, 10**6),
    "loss_spike_mads": (1.0, 10.0**6),
    "loss_spike_in_a_row": (1, 10**6),
    "loss_window": (20, 10**5),
    "round_s": (0.1, 3600.0),
    "agreement_timeout_s": (1.0, 7 * _DAY_S),
    "join_timeout_s": (0.0, _DAY_S),
    "skew_steps": (0, 2**31),
    "exit_timeout_s": (0.0, 7 * _DAY_S),
}
_SIGNALS = ("USR1", "USR2", "TERM", "HUP", "INT")
_UNITS = {"_percent": " %", "_bytes": " bytes", "_s": " s", "_steps": " steps", "stop_after": " s"}


def read_settings(environ: Mapping[str, str], **arguments: Any) -> GuardSettings:
    """Given the environment and the caller's arguments, return the settings; arguments win.

    Texts may have units: `85%`, `10m`, `2GiB`. A bare number is in the unit that the setting's name tells. An empty
    variable sets nothing, except for `signals`: no signal. Raise GuardError, naming the setting or the variable, if a
    name is unknown, with the nearest one, or if a value means nothing, with what it may be.
    """
    kinds = {field.name: type(field.default) for field in fields(GuardSettings)}
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if variable.startswith(GUARD_PREFIX):
            name = variable.removeprefix(GUARD_PREFIX).lower()
            _check_name(name, kinds, variable)
            if text.strip() or kinds[name] is tuple:
                values[name] = _read(name, text, kinds[name], variable)
    for name, value in arguments.items():
        _check_name(name, kinds, name)
        values[name] = _read(name, value, kinds[name], name)
    return GuardSettings(**values)


def _read(name: str, value: Any, kind: type, shown: str) -> Any:
    """Convert a value and check it at once, so that the message shows what was written, and where."""
    try:
        converted = _convert(name, value, kind)
    except QuantityError as error:
        raise GuardError(f"{shown} = {_short(value)}: {error.message}", hint=error.hint) from None
    except (TypeError, ValueError, ArithmeticError):
        raise _impossible(shown, value, kind, name) from None
    _check(name, converted, kind, shown)
    return converted


def _check(name: str, value: Any, kind: type, shown: str) -> None:
    """Raise GuardError if the setting `name` cannot have this value."""
    is_number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not (is_number if kind in (int, float) else isinstance(value, kind)):
        raise _impossible(shown, value, kind, name)
    if kind is tuple:
        for signal in value:
            _check_signal(signal, shown)
    if name in _CHOICES:
        _check_choice(shown, value, _CHOICES[name])
    if name in _RANGES:
        low, high = _RANGES[name]
        if name.endswith("_percent") and 0 < value <= 1:
            hint = f"percentages go to 100: {name} = {value * 100:g} is probably meant"
            raise GuardError(f"{shown} = {value:g} means {value:g} %, which every machine exceeds", hint=hint)
        if not low <= value <= high:  # NaN included
            hint = f"it may be from {low:g} to {high:g}{_unit(name)}"
            raise GuardError(f"{shown} = {_short(value)} is out of range", hint=hint)


def _check_name(name: str, known: Iterable[str], shown: str) -> None:
    if name not in known:
        near = _nearest(name, known)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
        raise GuardError(f"the guard knows no setting {shown!r}", hint=hint)


def _check_choice(shown: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = _nearest(value, choices)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(filter(None, choices))}"
        raise GuardError(f"{shown} = {_short(value)} is not possible", hint=hint)


def _check_signal(name: Any, shown: str) -> None:
    if name in _SIGNALS:
        return
    hint = f"there are: {', '.join(_SIGNALS)}"
    if name in ("KILL", "STOP"):
        hint = f"no process can catch SIG{name} (signal(7)), so nothing can be saved at it; {hint}"
    elif isinstance(name, str) and (near := _nearest(name, _SIGNALS)):
        hint = f"did you mean {near}? {hint}"
    raise GuardError(f"{shown} = {_short(name)} is not possible", hint=hint)


def _nearest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only for what is wrong: it costs milliseconds

    return next(iter(get_close_matches(word[:100], list(known), n=1, cutoff=0.5)), "")


def _impossible(shown: str, value: Any, kind: type, name: str) -> GuardError:
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", tuple: "names of signals"}
    of = f", in{_unit(name)}" if kind in (int, float) and _unit(name) else ""
    return GuardError(f"{shown} = {_short(value)} is not possible", hint=f"it may be {wanted[kind]}{of}")


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits has none, and a stranger's class may fail
        text = f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _convert(name: str, value: Any, kind: type) -> Any:
    if kind is bool:
        return _truth(value)
    if kind is tuple:
        return _signal_names(value)
    if isinstance(value, bool):
        if kind is str and "on" in _CHOICES.get(name, ()):
            return "on" if value else "off"
        raise ValueError
    if kind is str:
        if not isinstance(value, str):
            raise ValueError
        return value.strip().lower() if name in _CHOICES else value.strip()
    if isinstance(value, str):
        value = _quantity(name, value)
    if kind is float:
        return float(value)
    whole = value if isinstance(value, int) else float(value)
    if isinstance(whole, float) and not math.isnan(whole) and whole != math.floor(whole):
        raise ValueError
    return int(whole)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | str) and str(value).strip().lower() in _TRUE | _FALSE:
        return str(value).strip().lower() in _TRUE
    raise ValueError


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


def _quantity(name: str, text: str) -> float:
    """A number in the setting's own unit, whether the text has a unit or not."""
    if name.endswith("_bytes"):
        return parse_bytes(text)
    if name.endswith("_percent"):
        return parse_percent(text)
    if _unit(name) == " s":
        try:
            return float(text)
        except ValueError:
            return parse_duration_s(text)
    return float(text)
