"""Killed, or refused by the kernel, at any system call: what is listed is complete, and nothing committed is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from resilience.checkpoints import fence
from resilience.checkpoints.adopt import remove_orphans, seal
from resilience.checkpoints.commit import commit, write_share
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.quarantine import reason, restore, set_aside
from resilience.checkpoints.trash import discard, empty
from resilience.errors import CheckpointError
from tests.checkpoints.saves import RUN, committed, listed, new_store, read, write_part
from tests.lab.disks import fill, small_disk
from tests.lab.waiting import until
from tests.system.writer import OF_THE_INTERPRETER, REFUSED, Writer, writer

SPREAD = 10
"""Every so many system calls in each run of the tests; all of them in the long campaigns."""
soak = (
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1"),
)
SOME = [pytest.param(SPREAD, id="some"), pytest.param(1, marks=soak, id="every")]

PRELOAD = """
import os
from resilience.checkpoints import fence
from resilience.checkpoints.commit import commit, write_share
from resilience.checkpoints.digest import best_algorithm
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.adopt import seal
from resilience.checkpoints.quarantine import restore, set_aside
from resilience.checkpoints.trash import discard, empty
from resilience.errors import CheckpointError
import xxhash
from resilience.checkpoints.formats import check_content, Content
check_content(Content('/', {}))

def refused(act, *arguments, **more):
    try:
        act(*arguments, **more)
    except OSError:
        os._exit(7)
    except CheckpointError:
        os._exit(8)
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writer]:
    with writer(tmp_path_factory.mktemp("strace") / "log", PRELOAD) as running:
        yield running


def _commit(store: StoreDirectory) -> str:
    return f"refused(commit, StoreDirectory({str(store.path)!r}), '.part-00000040.a2.1', {{'run': {RUN!r}}})"


def _first(path: Path) -> StoreDirectory:
    """One committed checkpoint; and a part."""
    store = new_store(path)
    committed(store, 30)
    fence.begin(store, 2)
    write_part(store, 40, attempt=2)
    return store


def _replaced(path: Path) -> StoreDirectory:
    """The step of the part was committed by an older attempt."""
    store = new_store(path)
    committed(store, 30)
    committed(store, 40)
    fence.begin(store, 2)
    write_part(store, 40, attempt=2)
    return store


def _shared(path: Path) -> StoreDirectory:
    store = _first(path)
    for node in range(2):
        write_share(store.path / ".part-00000040.a2.1", node, 2)
    return store


def _in_trash(path: Path) -> StoreDirectory:
    store = _first(path)
    for step in (10, 20):
        discard(store, committed(store, step, attempt=2))
    return store


def _unsealed(path: Path) -> StoreDirectory:
    """A framework has saved step 40 under a name of its own."""
    store = _first(path)
    (store.path / ".part-00000040.a2.1").rename(store.path / "checkpoint-40")
    return store


def _seal(store: StoreDirectory) -> str:
    return f"refused(seal, StoreDirectory({str(store.path)!r}), 'checkpoint-40', 40, run={RUN!r}, attempt=2)"


Prepare = Callable[[Path], StoreDirectory]
Request = Callable[[StoreDirectory], str]
TO_KILL: dict[str, tuple[Prepare, Request, tuple[dict[int, int], ...]]] = {
    "commit": (_first, _commit, ({30: 1}, {30: 1, 40: 2})),
    "commit of shares": (
        _shared, lambda store: _commit(store)[:-1] + ", nodes=2)", ({30: 1}, {30: 1, 40: 2}),
    ),
    "commit that replaces": (_replaced, _commit, ({30: 1, 40: 1}, {30: 1, 40: 2})),
    "seal": (_unsealed, _seal, ({30: 1}, {30: 1, 40: 2})),
    "begin of a newer attempt": (
        _replaced, lambda store: f"fence.begin(StoreDirectory({str(store.path)!r}), 3)", ({30: 1, 40: 1},),
    ),
    "discard": (
        _first, lambda store: f"discard(StoreDirectory({str(store.path)!r}), 'step-00000030')", ({30: 1}, {}),
    ),
    "deletion": (
        _in_trash, lambda store: f"empty(StoreDirectory({str(store.path)!r}), busy=1)", ({30: 1},),
    ),
}  # fmt: skip
"""What is prepared, what is killed, and what may be listed afterwards: before, or after."""


@pytest.mark.parametrize("spread", SOME)
@pytest.mark.parametrize("what", TO_KILL)
def test_killed_at_any_system_call_lists_what_was_or_what_is_new_and_both_whole(
    process: Writer, tmp_path: Path, what: str, spread: int
) -> None:
    prepare, request, allowed = TO_KILL[what]
    points = [
        point
        for point in process.kill_points(request(prepare(tmp_path / "whole")))
        if point[0] not in {*OF_THE_INTERPRETER, "clock_nanosleep"}  # as many pauses as the disk is slow
    ]
    assert len(points) > 3
    seen = []
    chosen = [*points[:: spread if len(points) > spread else 1], points[-1]]
    for number, (name, count) in enumerate(chosen):
        store = prepare(tmp_path / f"{number}")
        outcome = process.run(request(store), f"{name}:signal=SIGKILL:when={count}")
        assert outcome.code == -signal.SIGKILL, f"{name} {count}"
        found = listed(store)
        assert found in allowed, f"{name} {count}"
        seen.append(found)
        # The attempt after it: nothing is in its way.
        fence.begin(store, 4)
        assert store.parts() == [] and len(store.checkpoints()) == len(found), f"{name} {count}"
        commit(store, write_part(store, 50, attempt=4), {"run": RUN})
        assert listed(store) == found | {50: 4}
        assert empty(store, busy=1).failed == () and store.trash() == []
    assert seen[0] == allowed[0] and seen[-1] == allowed[-1], "the points lie before and after the change"


def _with_seal(path: Path) -> StoreDirectory:
    store = _unsealed(path)
    seal(store, "checkpoint-40", 40, run=RUN, attempt=2)
    return store


def _aside(path: Path, prepare: Prepare) -> StoreDirectory:
    store = prepare(path)
    set_aside(store, store.checkpoints()[-1], why="mine")
    return store


@pytest.mark.parametrize("spread", SOME)
@pytest.mark.parametrize("prepare", [_first, _with_seal], ids=["committed", "sealed"])
@pytest.mark.parametrize("does", ["quarantine", "restore"])
def test_killed_at_any_system_call_of_a_quarantine_or_a_restore_nothing_is_lost(
    process: Writer, tmp_path: Path, does: str, prepare: Prepare, spread: int
) -> None:
    """It is there or set aside, whole, with its reason and its seal, and can be taken back."""

    def begin(path: Path) -> tuple[StoreDirectory, str]:
        if does == "restore":
            store = _aside(path, prepare)
            return store, f"restore(StoreDirectory({str(path)!r}), {store.bad()[0]!r})"
        store = prepare(path)
        return store, f"(lambda s: set_aside(s, s.checkpoints()[-1], why='mine'))(StoreDirectory({str(path)!r}))"

    full = listed(prepare(tmp_path / "full"))
    fewer = {step: full[step] for step in sorted(full)[:-1]}
    points = [
        point for point in process.kill_points(begin(tmp_path / "whole")[1]) if point[0] not in OF_THE_INTERPRETER
    ]
    seen = []
    for number, (name, count) in enumerate([*points[::spread], points[-1]]):
        store, request = begin(tmp_path / f"{number}")
        assert process.run(request, f"{name}:signal=SIGKILL:when={count}").code == -signal.SIGKILL
        seen.append(listed(store))
        assert seen[-1] in (full, fewer), f"{name} {count}"
        remove_orphans(store)  # the tick of the next quarter of an hour
        assert len(store.bad()) == (seen[-1] == fewer), f"{name} {count}"
        for one in store.bad():
            assert reason(store, one)["why"] == "mine"
            restore(store, one)
        assert listed(store) == full, f"{name} {count}"
        set_aside(store, store.checkpoints()[-1], why="again")
        assert listed(store) == fewer and len(store.bad()) == 1
    first, last = (full, fewer) if does == "quarantine" else (fewer, full)
    assert seen[0] == first and seen[-1] == last, "the points lie before and after the change"


ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS")
CALLS = ("write", "fsync", "close", "rename", "mkdir", "openat")


@pytest.mark.parametrize("spread", SOME)
@pytest.mark.parametrize("call", CALLS)
def test_whatever_the_kernel_refuses_nothing_incomplete_is_listed_and_the_next_save_is(
    process: Writer, tmp_path: Path, call: str, spread: int
) -> None:
    whole = _first(tmp_path / "whole")
    total = process.run(_commit(whole)).calls.count(call)
    assert total, "the commit makes the call"
    counts = range(1, total + 1) if spread == 1 else {1, (total + 1) // 2, total}
    for count in sorted(counts):
        for error in ERRORS if spread == 1 else (ERRORS[count % 4],):
            where = f"{call} {count} {error}"
            store = _first(tmp_path / where.replace(" ", "-"))
            code = process.run(_commit(store), f"{call}:error={error}:when={count}").code
            assert code in (0, REFUSED), where
            found = listed(store)
            if found != {30: 1, 40: 2}:
                assert found == {30: 1} and code == REFUSED, where
                assert commit(store, ".part-00000040.a2.1", {"run": RUN})["outcome"] == "committed", where
            assert listed(store) == {30: 1, 40: 2}, where
            assert store.parts() == []


def test_a_directory_that_cannot_be_synced_after_the_rename_is_not_said_to_be_committed(
    process: Writer, tmp_path: Path
) -> None:
    store = _first(tmp_path / "store")
    calls = process.run(_commit(_first(tmp_path / "whole"))).calls
    last = calls.count("fsync")
    assert "rename" in calls[: len(calls) - calls[::-1].index("fsync")]
    assert process.run(_commit(store), f"fsync:error=EIO:when={last}").code == REFUSED
    assert listed(store) == {30: 1, 40: 2}, "it is there, and may be lost in a power cut"


def test_a_share_that_cannot_be_written_is_no_share(process: Writer, tmp_path: Path) -> None:
    store = _first(tmp_path / "store")
    part = store.path / ".part-00000040.a2.1"
    request = f"refused(write_share, __import__('pathlib').Path({str(part)!r}), 0, 2)"
    for count in range(1, 5):  # three files, and its own
        assert process.run(request, f"fsync:error=EIO:when={count}").code == REFUSED
        assert not (part / ".resil" / "share.0.json").exists()
    write_share(part, 1, 2)
    with pytest.raises(CheckpointError, match="digests of node 0 are not in"):
        commit(store, part.name, {"run": RUN}, nodes=2)


def test_nothing_is_deleted_before_its_rename_is_on_disk(process: Writer, tmp_path: Path) -> None:
    store = _in_trash(tmp_path / "store")
    before = store.trash()
    request = f"refused(empty, StoreDirectory({str(store.path)!r}))"
    assert process.run(request, "fsync:error=EIO:when=1").code == REFUSED
    assert store.trash() == before and all(any((store.path / ".trash" / name).iterdir()) for name in before)


def test_a_full_disk_refuses_the_commit_keeps_what_is_there_and_lets_old_ones_go(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "512k") as disk:
        store = _first(disk / "ckpt")
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            commit(store, ".part-00000040.a2.1", {"run": RUN})
        assert listed(store) == {30: 1}
        (checkpoint,) = store.checkpoints()
        assert read(checkpoint)
        discard(store, checkpoint.name)
        assert empty(store).failed == ()
        assert commit(store, ".part-00000040.a2.1", {"run": RUN})["outcome"] == "committed"
        assert listed(store) == {40: 2}


@pytest.mark.parametrize("instants", [pytest.param(3, id="some"), pytest.param(500, marks=soak, id="many")])
def test_killed_at_any_instant_with_four_saves_in_flight_loses_nothing_acknowledged(
    tmp_path: Path, instants: int
) -> None:
    """Each program is a new attempt. The workers of a killed one are killed with it, or go on beside the next one."""
    dice = random.Random(int(os.environ.get("RESIL_SOAK_SEED", "1")))
    store = new_store(tmp_path / "ckpt")
    acknowledged = tmp_path / "acknowledged"
    acknowledged.touch()
    programs: list[int] = []
    try:
        for attempt in range(2, instants + 2):
            told = acknowledged.read_text()
            with _saving(store, attempt, acknowledged) as program:
                programs.append(program.pid)
                if instants < 100:  # time to commit, on a busy machine
                    until(partial(_grown, acknowledged, told), "a commit")
                time.sleep(dice.uniform(0, 0.8))
                assert program.poll() is None, "it ends only when it is killed"
                if dice.random() < 0.5:
                    os.killpg(program.pid, signal.SIGKILL)
            newest = max(map(int, acknowledged.read_text().split()), default=0)
            found = listed(store)
            assert max(found, default=0) >= newest, f"attempt {attempt}"
            assert set(found.values()) <= set(range(1, attempt + 1))
    finally:
        for pid in programs:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        until(lambda: not any(map(_is_group, programs)), "the end of the workers")
    fence.begin(store, instants + 2)
    assert empty(store, busy=1).failed == () and store.parts() == store.trash() == []
    assert newest > min(instants / 4, 20), "there was something to lose"


def _grown(path: Path, before: str) -> bool:
    return len(path.read_text()) > len(before)


@contextmanager
def _saving(store: StoreDirectory, attempt: int, acknowledged: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.checkpoints.endless_saves", store.path, str(attempt), acknowledged],
        cwd=Path(__file__).parents[2], start_new_session=True,
    )  # fmt: skip
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def _is_group(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True
