"""Makes commands that are typed in this very process cheaper; what they say and do is the same.

A command probes the settings, the state directory and the alerts in a process each, since a disk may hang. Most tests
have none that hangs, and what takes longest in them are these forks. Typer builds the parser of a command each time.
"""

from __future__ import annotations

import functools
import io
import marshal
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout

import pytest
import typer

from resilience.errors import ProbeError, ResilError
from resilience.system import child
from resilience.system.child import Answer, KeyT
from resilience.system.ports import Clock
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child
from tests.lab import hung

build = functools.lru_cache(64)(typer.main.get_command)


def probe_here(probes: Mapping[KeyT, ChildProbe], memory: StuckMemory, clock: Clock) -> Iterator[tuple[KeyT, Answer]]:
    """As probe_in_child, without a child as long as no directory of the test hangs."""
    if hung.mounted or any(memory.find(look.place, clock.now()) for look in probes.values()):
        yield from probe_in_child(probes, memory, clock)
        return
    for key, look in probes.items():
        yield key, _answer_of(look)


def _answer_of(look: ChildProbe) -> Answer:
    began, said, value, error = time.monotonic(), io.StringIO(), None, None
    try:
        with redirect_stdout(said), redirect_stderr(said):
            value = marshal.loads(marshal.dumps(look.work()))  # only plain data comes back from a child
    except ResilError as problem:
        kind = next((kind for kind in child._KINDS if isinstance(problem, kind)), ProbeError)
        error = kind(problem.message, hint=problem.hint, transient=problem.transient)
    except Exception as problem:
        error = ProbeError(f"the probe failed: {type(problem).__name__}: {problem}", hint="this is a bug in the probe")
    return Answer(value, error, time.monotonic() - began, said=said.getvalue())


def make_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands of this test probe in this process, and build each parser once."""
    for module in ("runs.open_project", "alerts.state"):
        monkeypatch.setattr(f"resilience.{module}.probe_in_child", probe_here)
    monkeypatch.setattr(typer.main, "get_command", build)
