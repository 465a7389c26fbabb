"""A guard with a store: saves into parts, durable once every rank has committed."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import CheckpointError
from resilience.guard import GuardError, Request, TrainingGuard
from resilience.guard.agreement.base import Agreement
from resilience.guard.gate import Gate
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.saves import SaveBlock, Saves
from resilience.guard.store_ranks import ConnectedStore, StoreRanks
from tests.guard.agreement.ranks import meeting
from tests.guard.guards import Requester, make_guard, train
from tests.guard.stores import FakeStore
from tests.guard.test_saves import SAVE, events, kinds
from tests.lab.waiting import until

Future = concurrent.futures.Future


@pytest.fixture
def store(tmp_path: Path) -> FakeStore:
    path = tmp_path / "checkpoints"
    path.mkdir()
    return FakeStore(path)


# ---- one process -----------------------------------------------------------------------------------------------------


def test_a_save_is_durable_when_its_checkpoint_is_committed(run: Path, store: FakeStore) -> None:
    requester = Requester(Request("requester", "please", stop=False, label="good"))
    with make_guard(run, store=store, triggers=[requester]) as guard:
        decision = train(guard)
        store.is_held = True
        with guard.saving(metrics={"loss": 2}) as part:
            assert part.path == store.path / f".part-{decision.step}.1" and part.path.is_dir() and part.is_first
            with guard.saving() as inner:
                assert inner.path == part.path
        until(lambda: "save_staged" in kinds(run))
        guard.step()
        assert "save" not in kinds(run) and requester.outcomes == []
        store.is_held = False
        until(lambda: requester.outcomes == ["saved"])
    assert store.calls == [
        "connect", ("loaded", 1), ("save", decision.step, 1, "good", {"loss": 2.0}), ("ended", False)
    ]  # fmt: skip
    assert store.committed == [(f"{decision.step}.1", f"step-{decision.step}.1")]
    assert kinds(run) == ["decision", "save_begin", "save_staged", "save", "end"]
    assert guard.exit_code == 0


def test_an_asynchronous_save_is_written_when_its_handles_have_succeeded(run: Path, store: FakeStore) -> None:
    future: Future[None] = Future()
    with make_guard(run, store=store) as guard:
        guard.step()
        with guard.saving() as part:
            part.until(future)
        time.sleep(0.1)
        assert store.parts[0].errors == []
        future.set_result(None)
        until(lambda: bool(store.committed))
    assert store.parts[0].errors == [None]


@pytest.mark.parametrize("how", ["in the block", "in its handle", "in the commit"])
def test_a_failed_save_is_told_to_the_store_and_keeps_its_own_error(
    run: Path, store: FakeStore, said: list[str], how: str
) -> None:
    future: Future[None] = Future()
    requester = Requester(SAVE)
    with make_guard(run, store=store, triggers=[requester], say=said.append) as guard:
        train(guard)
        if how == "in the block":
            with pytest.raises(OSError, match="disk full"), guard.saving():
                raise OSError("disk full")
        elif how == "in its handle":
            with guard.saving() as part:
                part.until(future)
            future.set_exception(OSError("disk full"))
        else:
            store.ranks.report(f"commit {guard.count}.1", fault="OSError('disk full')")
            with guard.saving():
                pass
        until(lambda: requester.outcomes == ["failed"])
    assert "OSError" in events(run, "save_failed")[0]["error"] and "disk full" in events(run, "save_failed")[0]["error"]
    assert [str(error) for error in store.parts[0].errors] == ["None" if how == "in the commit" else "disk full"]
    assert store.committed == [] and guard.exit_code == 1
    assert store.calls[-1] == ("ended", True)


def test_a_store_that_cannot_begin_a_save_is_a_failed_save(run: Path, store: FakeStore, said: list[str]) -> None:
    with make_guard(run, store=store, say=said.append) as guard:
        guard.step()
        store.path.rmdir()
        with pytest.raises(FileNotFoundError), guard.saving():
            raise AssertionError("the block is not entered")
        store.path.mkdir()
        with guard.saving():
            pass
        until(lambda: bool(store.committed))
    assert [event["event"] for event in events(run, "save_failed", "save")] == ["save_failed", "save"]
    assert store.committed == [("1.2", "step-1.2")], "the second save of this step"
    assert guard.exit_code == 0


def test_a_save_that_hangs_at_the_end_is_cut_off(run: Path, store: FakeStore, said: list[str]) -> None:
    with make_guard(run, store=store, say=said.append, exit_timeout_s=0.3) as guard:
        guard.step()
        store.is_held = True
        with guard.saving():
            pass
    assert store.parts[0].why_cut_off.startswith("cut off after")
    assert guard.exit_code == 1 and store.calls[-1] == ("ended", True)


def test_a_store_that_refuses_ends_the_start_in_its_own_words(run: Path, store: FakeStore, said: list[str]) -> None:
    store.refuses = "/data holds the checkpoints of the run other, not of demo"
    before = set(threading.enumerate())
    guard = make_guard(run, store=store, say=said.append)
    with pytest.raises(CheckpointError, match="of the run other"), guard:
        raise AssertionError("the training does not start")
    assert not set(threading.enumerate()) - before
    (end,) = events(run, "end")
    assert end["exit_code"] == 1 and "of the run other" in end["why"]
    with make_guard(run) as other:
        other.step()


def test_the_store_is_told_where_a_training_resumes(run: Path, store: FakeStore) -> None:
    with make_guard(run, store=store) as guard:
        guard.resumed(400)
        guard.step()
    assert store.calls == ["connect", ("loaded", 400), ("ended", False)]


def test_guard_steps_passes_the_path_to_a_function_that_takes_it(run: Path, store: FakeStore) -> None:
    took: list[Any] = []

    def save(label: str, path: Path) -> None:
        took.append((label, path))

    def save_elsewhere(path: str = "mine") -> None:
        took.append(path)

    for keeps, function in ((store, save), (None, save_elsewhere)):
        with make_guard(run, store=keeps, triggers=[Requester("enough")], say=lambda text: None) as guard:
            for _ in guard.steps(range(10**9), save=function):
                time.sleep(0.001)
    assert took == [("", store.parts[0].path), "mine"]


@pytest.mark.parametrize("state", ["without a store", "closed"])
def test_a_path_without_an_open_store_is_refused_in_words(run: Path, store: FakeStore, state: str) -> None:
    guard = make_guard(run, store=store if state == "closed" else None, say=lambda text: None)
    with guard:
        guard.step()
        if state == "without a store":
            with pytest.raises(GuardError, match="store="), guard.saving() as part:
                _ = part.path
            return
    with pytest.raises(GuardError, match="closed"), guard.saving():
        raise AssertionError


def test_metrics_are_numbers(run: Path) -> None:
    with make_guard(run) as guard, pytest.raises(GuardError, match="pass numbers"):
        guard.saving(metrics={"loss": "low"})  # type: ignore[dict-item]


def test_a_guard_that_is_off_still_saves_into_the_store_unless_there_are_ranks(store: FakeStore) -> None:
    with TrainingGuard.from_env({"RESIL_GUARD": "off"}, store=store) as guard:
        guard.step()
        with guard.saving() as part:
            assert part.path.is_dir()
    assert guard.exit_code == 0 and store.committed
    ranks = {"RANK": "0", "WORLD_SIZE": "2"}
    guard = TrainingGuard.from_env({"RESIL_GUARD": "off", **ranks}, store=store)
    with guard, pytest.raises(GuardError, match="over 2 ranks"), guard.saving():
        raise AssertionError


def test_a_scripted_guard_saves_into_the_store(store: FakeStore) -> None:
    with TrainingGuard.from_env({"RESIL_GUARD": "test:save@2,stop@3"}, store=store) as guard:
        while not (decision := guard.step()).stop:
            if decision.save:
                with guard.saving():
                    pass
    assert store.committed == [("2.1", "step-2.1")]


# ---- ranks -----------------------------------------------------------------------------------------------------------


def seen(**place: Any) -> StoreRanks:
    info = RankInfo(**place)
    return StoreRanks(info, Agreement(Gate()), Recorder(info))


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({"rank": 5, "world": 8, "local_rank": 1, "nodes": 2, "node": 1}, (1, 2, False)),
        ({"rank": 4, "world": 8, "local_rank": 0, "nodes": 2, "node": 1}, (1, 2, True)),
        ({"rank": 4, "world": 8, "local_rank": 0, "nodes": 2}, (0, 1, False)),
        ({"rank": 4, "world": 8, "nodes": 2, "node": 1}, (0, 1, False)),
        ({"rank": 0, "world": 8}, (0, 1, True)),
    ],
)
def test_one_rank_works_for_each_node_and_rank_0_for_all_where_nodes_are_unknown(
    place: dict[str, Any], expected: tuple[int, int, bool]
) -> None:
    ranks = seen(**place)
    assert (ranks.node, ranks.nodes, ranks.is_first_of_node) == expected


def test_an_agreement_that_carries_no_reports_cannot_serve_a_store_over_ranks(store: FakeStore) -> None:
    place = RankInfo(world=2)
    with pytest.raises(GuardError, match="over 2 ranks cannot commit"):
        ConnectedStore(store, place, Agreement(Gate()), Recorder(place))
    assert store.calls == []


def note(ended: dict[int, BaseException | None], saving: SaveBlock, fault: BaseException | None) -> None:
    ended[saving.step] = fault


@pytest.mark.parametrize("error", [None, OSError("disk full on rank 1")])
def test_ranks_commit_together_and_a_failure_of_one_is_told_to_the_others(
    tmp_path: Path, error: Exception | None
) -> None:
    ended: list[dict[int, BaseException | None]] = [{}, {}, {}]
    with meeting(3) as ranks:
        for rank, agreement in enumerate(ranks.ranks):
            place = RankInfo(rank=rank, world=3, local_rank=rank)
            mine = FakeStore(tmp_path)
            connected = ConnectedStore(mine, place, agreement, Recorder(place))
            saves = Saves(functools.partial(note, ended[rank]))
            saving = SaveBlock()
            saving.step, saving.part = 400, connected.begin_save(400, "", {})
            if rank == 1 and error is not None:
                saving.fail(error)
            saves.add(saving)
        until(lambda: all(ended))
    if error is None:
        assert ended == [{400: None}] * 3
    else:
        assert ended[1] == {400: error}
        assert [str(ended[rank][400]) for rank in (0, 2)] == ["rank 1: disk full on rank 1"] * 2
