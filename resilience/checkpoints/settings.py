"""Settings of the store: where checkpoints are, which are kept, and how long a verification may take. Pure.

The batch script exports the table [checkpoints] as `RESIL_CHECKPOINTS__KEY`; `read_store_settings` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from resilience.checkpoints.names import Pattern, parse_committed
from resilience.checkpoints.retention import Best, Policy
from resilience.errors import ResilError, SettingsError
from resilience.layout import CHECKPOINTS_PREFIX
from resilience.messages import cut, suggest
from resilience.quantities import parse_bool, parse_in_unit

TRACKERS = ("latest_checkpointed_iteration.txt", "latest")
"""Files in which Megatron and DeepSpeed name the newest complete checkpoint: for messages."""
_BEST = re.compile(r"\s*(\S+)(?:\s+(\d{1,6}))?(?:\s+(min|max))?\s*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MOST = {"latest": 10**6, "every_steps": 10**15, "every_hours": 87600.0, "within": 3.2e9, "verify_budget_s": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """[checkpoints]: where the checkpoints of a run are, and which of them are kept.

    Attributes:
        path: the directory of checkpoints, on a file system that all nodes share; relative to the project. `{run}` in
            it is the run's name: each run needs a directory of its own.
        pattern: how a framework names its checkpoints there: `checkpoint-{step}`, `iter_{step:07d}`. Empty: the
            training saves with a Store, which names them.
        tracker: file in which the framework names its newest complete checkpoint: `latest_checkpointed_iteration.txt`
            (Megatron) or `latest` (DeepSpeed).
        manage: whether checkpoints that a framework named may be deleted or set aside as well.
        latest: keep this many of the newest.
        every_steps: keep the first at or after each multiple of this many steps; 0: none.
        every_hours: keep the first of each period of this many hours; 0: none.
        within: keep each that is younger than this: `"2d"`, or a number of seconds; 0: none.
        best: keep the best by a metric that the training gives to the save: `{ metric = "loss", n = 3, mode = "min" }`;
            also as text: `"loss 3 min"`.
        verify_budget_s: how long a start may read the chosen checkpoint to verify it; the rest is read in the
            background.
        reuse: whether a file that has not changed since the checkpoint before the last is stored once, as a hard link:
            on local file systems, Lustre and GPFS, with the package xxhash.
    """

    path: str = ""
    pattern: str = ""
    tracker: str = ""
    manage: bool = False
    latest: int = 2
    every_steps: int = 0
    every_hours: float = 0.0
    within: float = 0.0
    best: Mapping[str, str] = field(default_factory=dict)
    verify_budget_s: float = 60.0
    reuse: bool = False

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 0 <= getattr(self, name) <= most:  # NaN included
                raise SettingsError(f"{name} = {getattr(self, name):g} is out of range", hint=f"0 to {most:g}")
        if self.pattern and parse_committed(Pattern(self.pattern).name_of(1)) is not None:
            raise SettingsError(
                f"pattern = {self.pattern!r} names checkpoints as a Store does",
                hint="use guard.saving(), or let the framework name them otherwise",
            )
        if "/" in self.tracker or self.tracker in (".", ".."):
            raise SettingsError(
                f"tracker = {self.tracker!r} is not the name of a file in the directory of checkpoints",
                hint=f"for instance {' or '.join(TRACKERS)}",
            )
        self.policy()  # raises if nothing would be kept

    def policy(self) -> Policy:
        """Return which checkpoints are kept. Raise UsageError if none would be."""
        best = Best(self.best["metric"], int(self.best["n"]), self.best["mode"]) if self.best else None
        return Policy(
            latest=self.latest,
            every_steps=self.every_steps,
            every_hours=self.every_hours,
            within_s=self.within,
            best=best,
        )


def read_store_settings(environ: Mapping[str, str], **arguments: Any) -> CheckpointSettings:
    """Given the environment and the caller's arguments, return the settings; arguments take precedence.

    Texts may have units: `2d`, `60s`. An empty variable is ignored. Raise SettingsError for an unknown name, with the
    nearest one, and for an invalid value, with its source.
    """
    known = {one.name for one in fields(CheckpointSettings)}
    values: dict[str, Any] = {}
    found = {name: text for name, text in environ.items() if name.startswith(CHECKPOINTS_PREFIX) and text.strip()}
    for shown, value in (found | arguments).items():
        name = shown.removeprefix(CHECKPOINTS_PREFIX).lower() if shown in found else shown
        if name not in known:
            raise SettingsError(f"unknown setting of checkpoints {shown!r}", hint=suggest(name, sorted(known)))
        try:
            values[name] = _convert(name, value)
            CheckpointSettings(**{"every_steps": 1, name: values[name]})  # so that the message names the source
        except ResilError as error:
            raise SettingsError(f"{shown} = {_short(value)}: {error.message}", hint=error.hint) from None
        except (TypeError, ValueError, ArithmeticError):
            raise SettingsError(f"{shown} = {_short(value)} is invalid", hint=_EXAMPLES[name]) from None
    try:
        return CheckpointSettings(**values)
    except ResilError as error:  # values that contradict each other
        raise SettingsError(error.message, hint=error.hint) from None


_EXAMPLES = {
    "path": 'path = "checkpoints"',
    "pattern": 'pattern = "checkpoint-{step}"',
    "tracker": f'tracker = "{TRACKERS[0]}"',
    "manage": "set true or false",
    "latest": "set a whole number: latest = 2",
    "every_steps": "set a whole number: every_steps = 10000",
    "every_hours": "set a number: every_hours = 24",
    "within": 'set a duration: within = "2d"',
    "best": 'best = { metric = "loss", n = 3, mode = "min" }, where mode is min or max',
    "verify_budget_s": 'set a duration: verify_budget_s = "60s"',
    "reuse": "set true or false",
}


def _convert(name: str, value: Any) -> Any:
    if name == "best":
        return _best(value)
    if name in ("manage", "reuse"):
        if not isinstance(value, int | str):
            raise ValueError
        return parse_bool(str(value))
    if name in _MOST:
        if isinstance(value, bool):
            raise ValueError
        number = parse_in_unit(f"{name}_s" if name == "within" else name, value) if isinstance(value, str) else value
        if name in ("latest", "every_steps"):
            if number != int(number):
                raise ValueError
            return int(number)
        return float(number)
    text = str(value.__fspath__()) if hasattr(value, "__fspath__") else value
    if not isinstance(text, str) or _CONTROL.search(text):
        raise ValueError
    if name == "path" and "$" in text:
        raise SettingsError("variables are not expanded", hint='write the path out, or export it: "$SCRATCH/..."')
    return text.strip()


def _best(value: Any) -> dict[str, str]:
    """Return `{"metric", "n", "mode"}` of a table with these keys, or of the text `loss 3 min`."""
    if isinstance(value, Mapping):
        table = {"n": 1, "mode": "min", **value}
        if not value:
            return {}
        if set(table) != {"metric", "n", "mode"}:
            raise ValueError
        value = f"{table['metric']} {table['n']} {table['mode']}"
    match = _BEST.fullmatch(value)
    if match is None or match[2] == "0":
        raise ValueError
    return {"metric": match[1], "n": match[2] or "1", "mode": match[3] or "min"}


def as_variable(value: Any) -> str:
    """Return a setting as text that `read_store_settings` reads."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value.values()) if isinstance(value, Mapping) else str(value)


def _short(value: Any) -> str:
    return cut(repr(value), 200)
