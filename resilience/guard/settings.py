"""[guard] in resil.toml: what the guard looks at, and when it acts. Pure.

The batch script exports what was set as `RESIL_GUARD__KEY`; `from_env` reads these, and arguments win over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from resilience.errors import GuardError, QuantityError
from resilience.quantities import parse_bytes, parse_duration_s, parse_percent

PREFIX = "RESIL_GUARD__"
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """[guard]: when the training saves and stops by itself. Percentages go to 100.

    Attributes:
        poll_s: how often rank 0 looks at the switch files, and each node at its memory.
        beat_s: how often the heartbeat is written to the run directory.
        mirror: who writes it: auto, process (one beside the ranks of a node), thread, or off.
        kill_switch: whether `switches/kill` stops the training, after a save.
        save_switch: whether `switches/save` makes it save.
        switch_owners: whose switch files are obeyed: owner, group or any. Default: what the folder's mode allows.
        superseded: whether a newer attempt of the run stops this one, without a save.
        signals: which signals ask to save and stop. The second INT or TERM takes effect at once.
        host_memory: whether the memory of the node, of the job's cgroups and of /dev/shm is watched.
        host_memory_percent: stop when so much of the smallest limit is used.
        host_memory_free_bytes: or when less is left than this; 0 for no such limit.
        host_memory_forecast: whether to stop at the next save when the memory will not last until the job's end.
        shm_percent: stop when /dev/shm is so full.
        gpu_memory: whether the memory of this process's GPU is watched; auto is on where its figures mean something.
        gpu_memory_free_bytes: stop when less is left than this.
        gpu_memory_collect: whether to collect garbage and empty torch's cache before judging.
        walltime: whether to stop in time before the job's time limit.
        walltime_safety: how many times the slowest recent step and save must fit into the time left.
        walltime_margin_s: seconds that must be left besides.
        first_save_s: how long a save is taken to last until one was measured.
        loss_nonfinite: what a loss that is NaN or infinite does: stop (nothing saved, exit code 1), save (and go on),
            save_and_stop, report, off.
        loss_nonfinite_in_a_row: how many of them it takes.
        loss_spike: what a spike does: report, save, off.
        loss_spike_mads: how many median absolute deviations above the median of the window make a spike.
        loss_spike_in_a_row: how many of them it takes.
        loss_window: how many losses the median is taken of.
        round_s: how long rank 0 waits for all promises before it tries again.
        agreement_timeout_s: how long a rank that has promised waits for rank 0 before AgreementLost is raised.
        join_timeout_s: how long ranks wait for rank 0's word before the first step.
        skew_steps: ranks whose counts differ by more cannot agree; 0 for no such limit.
        interface: host name or address that rank 0 listens on. Default: the job's own.
        exit_timeout_s: how long after a decision to stop the process is ended by force, with all stacks; 0 for never.
        force_exit: auto (in jobs of a resil template), on, or off.
    """

    poll_s: float = 5.0
    beat_s: float = 10.0
    mirror: str = "auto"
    kill_switch: bool = True
    save_switch: bool = True
    switch_owners: str = ""
    superseded: bool = True
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
    walltime_safety: float = 1.5
    walltime_margin_s: float = 10.0
    first_save_s: float = 60.0
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
    interface: str = ""
    exit_timeout_s: float = 900.0
    force_exit: str = "auto"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if name.endswith("_percent") and 0 < value <= 1:
                hint = f"percentages go to 100: {name} = {value * 100:g} is probably meant"
                raise GuardError(f"{name} = {value:g} means {value:g} %, which every machine exceeds", hint=hint)
            if not low <= value <= high:  # NaN included
                raise GuardError(f"{name} = {value!r} is out of range", hint=f"it may be from {low:g} to {high:g}")
        for signal in self.signals:
            _check_choice("signals", signal, _SIGNALS)


_CHOICES = {
    "mirror": ("auto", "process", "thread", "off"),
    "switch_owners": ("", "owner", "group", "any"),
    "gpu_memory": ("auto", "on", "off"),
    "loss_nonfinite": ("stop", "save", "save_and_stop", "report", "off"),
    "loss_spike": ("report", "save", "off"),
    "force_exit": ("auto", "on", "off"),
}
_DAY_S, _EIB = 86400.0, 2.0**60
_RANGES = {
    "poll_s": (0.01, 3600.0),
    "beat_s": (0.05, 3600.0),
    "host_memory_percent": (1.0, 100.0),
    "host_memory_free_bytes": (0, _EIB),
    "shm_percent": (1.0, 100.0),
    "gpu_memory_free_bytes": (0, _EIB),
    "walltime_safety": (1.0, 100.0),
    "walltime_margin_s": (0.0, _DAY_S),
    "first_save_s": (0.0, _DAY_S),
    "loss_nonfinite_in_a_row": (1, 10**6),
    "loss_spike_mads": (1.0, 10.0**6),
    "loss_spike_in_a_row": (1, 10**6),
    "loss_window": (8, 10**5),
    "round_s": (0.1, 3600.0),
    "agreement_timeout_s": (1.0, 7 * _DAY_S),
    "join_timeout_s": (0.0, _DAY_S),
    "skew_steps": (0, 2**31),
    "exit_timeout_s": (0.0, 7 * _DAY_S),
}
_SIGNALS = ("USR1", "USR2", "TERM", "HUP", "INT")


def read_settings(environ: Mapping[str, str], **arguments: Any) -> GuardSettings:
    """Given the environment and the caller's arguments, return the settings; arguments win.

    Raise GuardError if a name is unknown, with the nearest one, or a value means nothing.
    """
    types = get_type_hints(GuardSettings)
    known = [field.name for field in fields(GuardSettings)]
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if variable.startswith(PREFIX):
            name = variable.removeprefix(PREFIX).lower()
            _check_name(name, known, variable)
            values[name] = _convert(name, text, types[name], variable)
    for name, value in arguments.items():
        _check_name(name, known, name)
        values[name] = _convert(name, value, types[name], name)
    return GuardSettings(**values)


def _check_name(name: str, known: list[str], shown: str) -> None:
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise GuardError(f"the guard knows no setting {shown!r}", hint=hint)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = get_close_matches(str(value), choices, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(filter(None, choices))}"
        raise GuardError(f"{name} = {value!r} is not possible", hint=hint)


def _convert(name: str, value: Any, wanted: Any, shown: str) -> Any:
    try:
        if wanted is bool:
            return _truth(value)
        if wanted is str:
            if isinstance(value, bool):
                return "on" if value else "off"
            return str(value)
        if get_args(wanted):  # the one list: names of signals
            words = value.replace(",", " ").split() if isinstance(value, str) else [str(word) for word in value]
            return tuple(word.strip().upper().removeprefix("SIG") for word in words)
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, str):
            value = _quantity(name, value)
        return int(value) if wanted is int else float(value)
    except QuantityError as error:
        raise GuardError(f"{shown} = {value!r}: {error.message}", hint=error.hint) from None
    except (TypeError, ValueError, OverflowError):
        raise GuardError(f"{shown} = {value!r} is not possible") from None


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in _TRUE | _FALSE:
        return str(value).lower() in _TRUE
    raise ValueError


def _quantity(name: str, text: str) -> float:
    if name.endswith("_bytes"):
        return parse_bytes(text)
    if name.endswith("_percent"):
        return parse_percent(text)
    if name.endswith("_s"):
        try:
            return float(text)
        except ValueError:
            return parse_duration_s(text)
    return float(text)
