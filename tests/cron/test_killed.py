"""A tick that is killed at any system call costs no slot, runs none twice, and queues no second job."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from resilience.base.processes import descendants, is_alive
from resilience.cron.state_directory import CronDirectory
from tests.cron.context import TOP, CronContext, wait_until
from tests.system.writer import Writer, writer

A, B, R = "cron.hourly+a", "cron.hourly+b.slurm", "cron.hourly+again"
SOAK = bool(os.environ.get("RESIL_SOAK"))
SPREAD = 1 if SOAK else 35
"""Every so many system calls: all of them take minutes."""

_PRELOAD = """
import ctypes, tempfile
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what outlives a killed tick becomes ours
open({pid_file!r}, "w").write(str(os.getpid()))
from resilience.cron.submit import settle_submits
from tests.cron.context import TOP, CronContext

def prepare(path):
    context = CronContext(Path(path))
    context.drop("cron.hourly/a")
    context.drop("cron.hourly/again", options="rerun")
    context.drop("cron.hourly/b.slurm")
    context.tick(TOP - 30)
    return context

def submit(path):
    context = CronContext(Path(path))
    cron = context.cron
    claim = cron.state.book.claim("cron.hourly+b.slurm", int(TOP), {}, lambda: TOP)
    list(settle_submits(cron, [claim], cron.read_table().entries))

with tempfile.TemporaryDirectory() as warm:  # what is loaded once need not be loaded, and killed, each time
    prepare(warm).tick(TOP)
"""


class Killer(NamedTuple):
    """Runs requests and kills them; `pid` is of the process that inherits what they leave behind."""

    writer: Writer
    pid: int


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    place = tmp_path_factory.mktemp("strace")
    pid_file = place / "pid"
    with writer(place / "log", _PRELOAD.replace("{pid_file!r}", repr(str(pid_file)))) as running:
        running.run("pass")
        yield Killer(running, int(pid_file.read_text()))


def _prepare(directory: Path, missed: int = 0) -> CronContext:
    directory.mkdir()
    context = CronContext(directory)
    context.drop("cron.hourly/a")
    context.drop("cron.hourly/again", options="rerun", body="echo $RESIL_CRON_SLOT >> ran.again")
    context.drop("cron.hourly/b.slurm")
    context.tick(TOP - 30 - missed * 3600)
    return context


def _killed(killer: Killer, tmp_path: Path, request: str, missed: int = 0) -> Iterator[tuple[CronContext, str]]:
    """The context after a kill at each of a spread of system calls."""
    points = list(killer.writer.kill_points(request.format(path=str(_prepare(tmp_path / "whole", missed).directory))))
    for number, (name, count) in enumerate(points):
        if number % SPREAD:
            continue
        context = _prepare(tmp_path / f"{number}", missed)
        outcome = killer.writer.run(request.format(path=str(context.directory)), f"{name}:signal=SIGKILL:when={count}")
        # The clock is set by hand: what was on its way when the tick was killed must have arrived first.
        wait_until(lambda: not any(map(is_alive, descendants(killer.pid))))
        if outcome.code == -9:
            yield context, f"{name} {count}"


def _settle(context: CronContext) -> None:
    """The ticks after: the next one, one after all is known to be dead, and the next slot's."""
    context.tick(TOP + 1)
    context.tick(TOP + 20)
    context.tick(TOP + 3600)
    assert all("@queued@" in name for name in context.names("runs"))


def test_a_tick_that_is_killed_at_any_system_call_costs_no_slot_and_runs_none_twice(
    killer: Killer, tmp_path: Path
) -> None:
    cut_short = done = 0
    for context, where in _killed(killer, tmp_path, "CronContext(Path({path!r})).tick(TOP)", missed=2):
        _settle(context)
        ran = Counter(context.ran())
        outcomes = {key: context.outcomes(key) for key in (A, B, R)}
        # Two entries write their slot: `again` may be repeated, `a` may not.
        again = context.home / "ran.again"
        repeated = Counter(map(int, again.read_text().split()))
        of_a = {slot: ran[slot] - repeated[slot] for slot in (int(TOP), int(TOP) + 3600)}
        assert of_a[int(TOP)] <= 1 and of_a[int(TOP) + 3600] == 1, where
        assert outcomes[A][int(TOP)] in ("done", "cut short"), where
        if outcomes[A][int(TOP)] == "done":
            assert of_a[int(TOP)] == 1, where
        else:
            cut_short += 1
        told = {sum(record.count for record in context.history(key)) for key in outcomes}
        assert told == {4}, f"each slot is told of once: {where}"
        assert outcomes[R] == {TOP - 1: "missed", TOP: "done", TOP + 3600: "done"} and repeated[int(TOP)] >= 1, where
        tokens = Counter(context.queued())
        assert len(tokens) == 2 or "skipped" in outcomes[B].values(), where
        assert set(tokens.values()) == {1}, where
        done += 1
    assert done >= 4 and cut_short < done


def test_a_submit_that_is_killed_at_any_system_call_queues_one_job(killer: Killer, tmp_path: Path) -> None:
    done = 0
    for context, where in _killed(killer, tmp_path, "submit({path!r})"):
        context.tick(TOP + 1)
        context.tick(TOP + 20)
        assert len(context.queued()) == 1, where
        assert context.outcomes(B) == {TOP: "submitted"}, where
        (name,) = context.names("runs")
        assert "@queued@fake-101" in name, where
        done += 1
    assert done >= 3


@pytest.mark.parametrize("what", ["record", "beat"])
def test_missed_slots_are_told_of_once_when_the_tick_that_found_them_dies(tmp_path: Path, what: str) -> None:
    context = _prepare(tmp_path / "x", missed=2)
    pid = os.fork()
    if pid == 0:
        setattr(CronDirectory, what, lambda *_: os._exit(0))
        context.tick(TOP)
    os.waitpid(pid, 0)
    _settle(context)
    for key in (A, B, R):
        assert [run.count for run in context.history(key)] == [2, 1, 1], key


def test_a_tick_killed_before_its_supervisor_started_is_reported_once_that_is_certain(tmp_path: Path) -> None:
    context = _prepare(tmp_path / "x")
    pid = os.fork()
    if pid == 0:
        context.cron.state.book.claim(A, int(TOP), {}, lambda: TOP)
        os._exit(0)
    os.waitpid(pid, 0)
    assert context.tick(TOP + 1).ended[0].name != "cron.hourly/a", "it may be on its way still"
    told = [record for record in context.tick(TOP + 20).ended if record.name == "cron.hourly/a"]
    assert [str(record.outcome) for record in told] == ["cut short"]
    assert context.tick(TOP + 60).ended == ()
