"""What is listed is complete, by the attempt that may commit, and says what is in it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from resilience.checkpoints import commit as commit_module
from resilience.checkpoints import fence
from resilience.checkpoints.commit import commit, write_share
from resilience.checkpoints.digest import list_files
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import MANIFEST, OWN, PINS, TRASH
from resilience.errors import CheckpointError
from tests.checkpoints.saves import RUN, committed, content, listed, new_store, read, write_part
from tests.checkpoints.trees import RECORDED


@pytest.fixture
def store(tmp_path: Path) -> StoreDirectory:
    return new_store(tmp_path / "ckpt")


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_commit_lists_the_save_and_says_what_is_in_it(store: StoreDirectory) -> None:
    fields = {"run": RUN, "world": 8, "metrics": {"loss": 2.5}, "label": "warm", "started_at": 3.0}
    answer = commit(store, write_part(store, 40), fields)
    (one,) = store.checkpoints()
    assert read(one) == content(40, 1)
    manifest = one.manifest()
    assert (manifest.world, manifest.metrics, manifest.label, manifest.run) == (8, {"loss": 2.5}, "warm", RUN)
    size = sum(map(len, content(40, 1).values()))
    assert answer | {"digest_s": 0} == {
        "name": "step-00000040", "bytes": size, "reused_bytes": 0, "inodes": 6, "digest_s": 0, "outcome": "committed"
    }  # fmt: skip
    assert (manifest.size_bytes, manifest.inodes) == (size, 6)
    assert _names(store.path) == [OWN, TRASH, "step-00000040"], "no part is left"
    assert _names(one.path / OWN) == [MANIFEST]


def test_the_shares_of_nodes_are_committed_together(store: StoreDirectory) -> None:
    part = write_part(store, 40)
    counts = [write_share(store.path / part, node, 3) for node in range(3)]
    assert sum(counts) == 3 and commit(store, part, {"run": RUN}, nodes=3)["outcome"] == "committed"
    assert listed(store) == {40: 1}
    assert _names(store.path / "step-00000040" / OWN) == [MANIFEST]


def test_a_step_that_this_attempt_has_committed_is_not_committed_again(store: StoreDirectory) -> None:
    committed(store, 40)
    token = store.find(40).manifest().token
    answer = commit(store, write_part(store, 40, save=2), {"run": RUN})
    assert (answer["outcome"], answer["name"], store.find(40).manifest().token) == ("already", "step-00000040", token)
    assert store.parts() == []


def test_a_training_that_went_back_replaces_a_step_that_it_reaches_in_another_state(store: StoreDirectory) -> None:
    """Of both, the earlier one may be of the state from which the training turned away."""
    committed(store, 40)
    slow, later = write_part(store, 40, save=2), write_part(store, 40, save=3)
    for part in (slow, later):
        (store.path / part / "model.bin").write_bytes(f"another state {part}".encode())
    answer = commit(store, later, {"run": RUN})
    assert (answer["outcome"], answer["name"]) == ("replaced", "step-00000040.2")
    assert commit(store, slow, {"run": RUN})["outcome"] == "already", "a slow old one never replaces a newer one"
    (checkpoint,) = store.checkpoints()
    assert (checkpoint.path / "model.bin").read_bytes() == f"another state {later}".encode()
    assert store.parts() == []


def test_a_training_that_was_launched_again_in_its_attempt_counts_its_saves_anew(store: StoreDirectory) -> None:
    commit(store, write_part(store, 40, save=2), {"run": RUN, "started_at": 1000.0})
    outcomes = []
    for began in (900.0, 2000.0):
        part = write_part(store, 40, save=1)
        (store.path / part / "model.bin").write_bytes(b"%d" % began)
        outcomes.append(commit(store, part, {"run": RUN, "started_at": began})["outcome"])
    assert outcomes == ["already", "replaced"]
    assert (store.find(40).path / "model.bin").read_bytes() == b"2000"


def test_a_later_attempt_replaces_a_step(store: StoreDirectory) -> None:
    committed(store, 40)
    for attempt in range(2, 12):
        fence.begin(store, attempt)
        answer = commit(store, write_part(store, 40, attempt), {"run": RUN})
        assert (answer["outcome"], answer["name"]) == ("replaced", f"step-00000040.{attempt}")
        assert store.find(40).manifest().attempt == attempt
    assert listed(store) == {40: 11} and len(store.checkpoints()) == 1 and len(store.trash()) == 10


def test_outside_of_a_job_the_later_save_of_a_step_replaces_the_earlier(tmp_path: Path) -> None:
    store = new_store(tmp_path / "ckpt", attempt=0)
    assert [committed(store, 40, 0, save) for save in (1, 2)] == ["step-00000040", "step-00000040.2"]
    assert [one.name for one in store.checkpoints()] == ["step-00000040.2"]


def test_a_pinned_checkpoint_is_not_replaced_but_joined(store: StoreDirectory) -> None:
    committed(store, 40)
    (store.own / PINS / "step-00000040.json").write_text("{}")
    fence.begin(store, 2)
    committed(store, 40, attempt=2)
    assert [one.name for one in store.checkpoints()] == ["step-00000040", "step-00000040.2"]
    assert store.find(40).name == "step-00000040.2", "the newest is the later one"


def test_a_checkpoint_that_cannot_be_judged_is_not_replaced(store: StoreDirectory) -> None:
    (store.path / committed(store, 40) / OWN / MANIFEST).write_text("{")
    fence.begin(store, 2)
    committed(store, 40, attempt=2)
    assert [one.name for one in store.checkpoints()] == ["step-00000040", "step-00000040.2"]


def test_a_replacement_whose_commit_was_killed_before_the_old_one_went_is_completed_at_the_next_start(
    store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(store, 40)
    fence.begin(store, 2)
    monkeypatch.setattr(commit_module, "discard_replaced", lambda store: [])
    committed(store, 40, attempt=2)
    assert len(store.checkpoints()) == 2 and store.find(40).manifest().attempt == 2
    fence.begin(store, 3)
    assert [one.name for one in store.checkpoints()] == ["step-00000040.2"]


def test_a_name_that_is_taken_meanwhile_is_not_overwritten(
    store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = write_part(store, 40, attempt=1, save=2)
    check, calls = fence.check, []

    def taken(store: StoreDirectory, attempt: int) -> None:
        calls.append(attempt)
        if len(calls) == 2:  # before the rename
            committed(store, 40)
        check(store, attempt)

    monkeypatch.setattr(fence, "check", taken)
    assert commit(store, part, {"run": RUN})["outcome"] == "already"
    assert listed(store) == {40: 1} and store.parts() == []


# ---- refused


def _empty(part: Path) -> None:
    for path in list_files(part).sizes:
        (part / path).unlink()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing was written": (_empty, "nothing was written into .*part.path"),
    "a link": (lambda part: (part / "link").symlink_to("model.bin"), "link is a symbolic link"),
    "a FIFO": (lambda part: os.mkfifo(part / "pipe"), "pipe is a FIFO"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_part_that_is_no_checkpoint_is_refused_in_words(store: StoreDirectory, what: str) -> None:
    prepare, words = REFUSED[what]
    part = write_part(store, 40)
    prepare(store.path / part)
    with pytest.raises(CheckpointError, match=words):
        commit(store, part, {})
    assert (store.checkpoints(), store.parts()) == ([], [part])


CHANGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "one more": (
        lambda part: (part / "late.bin").write_text("x"),
        "late.bin has 1 bytes, and had no file",
    ),
    "one less": (lambda part: (part / "model.bin").unlink(), "model.bin has no file, and had 750 bytes"),
    "longer": (lambda part: (part / "model.bin").write_text("x"), "model.bin has 1 bytes, and had 750 bytes"),
    "no share": (lambda part: (part / OWN / "share.1.json").unlink(), "the digests of node 1 are not in"),
    "another kind": (lambda part: write_share(part, 1, 2, "crc32"), "different kinds: crc32, xxh3_128"),
    "another world": (lambda part: write_share(part, 1, 3), "node 1 counts 3 nodes, and 2 were expected"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_shares_that_do_not_agree_with_the_part_are_refused(store: StoreDirectory, what: str) -> None:
    change, words = CHANGED[what]
    part = write_part(store, 40)
    for node in range(2):
        write_share(store.path / part, node, 2)
    change(store.path / part)
    with pytest.raises(CheckpointError, match=words):
        commit(store, part, {}, nodes=2)
    assert (store.checkpoints(), store.parts()) == ([], [part])


def test_a_file_that_a_failed_writer_left_short_is_refused_and_named(store: StoreDirectory) -> None:
    part = write_part(store, 40)
    shutil.copytree(RECORDED / "dcp", store.path / part / "dcp")
    shard = max((store.path / part / "dcp").glob("__*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{part} is not complete: dcp/{shard.name} .* expected .* found"):
        commit(store, part, {"run": RUN})
    assert (store.checkpoints(), store.parts()) == ([], [part])


def test_more_files_than_anybody_can_handle_are_refused_before_they_are_read(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}").touch()
    with pytest.raises(CheckpointError, match=r"more than 3 files \(save fewer and larger files"):
        list_files(tmp_path, most=3)
    assert len(list_files(tmp_path, most=4).sizes) == 4


def test_what_nfs_keeps_of_a_removed_file_is_no_file_of_a_checkpoint(store: StoreDirectory) -> None:
    part = write_part(store, 40)
    (store.path / part / ".nfs0000000000c1").write_text("x")
    commit(store, part, {"run": RUN})
    assert {entry.path for entry in store.find(40).manifest().files} == set(content(40, 1))


def test_a_name_that_is_no_text_is_committed(store: StoreDirectory) -> None:
    part = write_part(store, 40)
    odd = os.fsdecode(b"odd-\xff")
    (store.path / part / odd).write_text("x")
    for node in range(2):
        write_share(store.path / part, node, 2)
    commit(store, part, {"run": RUN}, nodes=2)
    assert odd in {entry.path for entry in store.find(40).manifest().files}


# ---- the fence


def test_an_older_attempt_commits_nothing_after_a_newer_one_has_begun(store: StoreDirectory) -> None:
    part = write_part(store, 40)
    fence.begin(store, 2)
    assert store.parts() == [] and fence.newest_attempt(store) == 2
    late = write_part(store, 50)
    for name in (part, late):
        with pytest.raises(CheckpointError, match="attempt 2 has begun, so attempt 1 no longer commits"):
            commit(store, name, {"run": RUN})
    with pytest.raises(CheckpointError, match="attempt 2 has begun"):
        fence.begin(store, 1)
    assert store.checkpoints() == []
    fence.begin(store, 2)
    assert committed(store, 50, attempt=2) and store.parts() == []


def test_a_process_outside_of_a_job_takes_no_part_of_a_job_away(store: StoreDirectory) -> None:
    of_the_job, own = write_part(store, 40), write_part(store, 40, attempt=0)
    fence.begin(store, 0)
    assert (store.parts(), fence.newest_attempt(store)) == ([of_the_job], 1)
    assert own not in _names(store.path)
    assert committed(store, 50, attempt=0)


@contextmanager
def at_line(number: int, act: Callable[[], object]) -> Iterator[list[int]]:
    """Call `act` once, before line `number` that this thread executes in the code of checkpoints; yield their count."""
    lines = [0]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if "/resilience/checkpoints/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines[0] += 1
            if lines[0] == number:
                sys.settrace(None)
                act()
                sys.settrace(trace)
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)


def _lines(act: Callable[[], object]) -> int:
    with at_line(0, lambda: None) as lines:
        act()
    return lines[0]


def test_a_newer_attempt_that_begins_at_any_line_of_a_commit_sees_the_checkpoint_or_stops_it(tmp_path: Path) -> None:
    """The new attempt chooses what to resume from right after its begin: what it saw must stay the newest."""

    def prepare(name: str) -> tuple[StoreDirectory, str]:
        store = new_store(tmp_path / name)
        return store, write_part(store, 40, files=("model.bin",))

    seen: list[list[int]] = []
    commit(*prepare("imports"), {"run": RUN})
    first = prepare("first")
    outcomes = set()
    for number in range(1, _lines(lambda: commit(*first, {"run": RUN})) + 1):
        store, part = prepare(f"{number}")

        def begin(store: StoreDirectory = store) -> None:
            fence.begin(store, 2)
            seen.append([one.step for one in store.checkpoints()])

        try:
            with at_line(number, begin):
                commit(store, part, {"run": RUN})
            outcome = "committed"
        except (CheckpointError, FileNotFoundError):
            outcome = "refused"
        assert seen.pop() == [one.step for one in store.checkpoints()] == ([40] if outcome == "committed" else [])
        assert store.parts() == []
        outcomes.add(outcome)
    assert outcomes == {"committed", "refused"} and not seen


def test_a_commit_at_any_line_of_the_begin_of_a_newer_attempt_is_seen_or_refused(tmp_path: Path) -> None:
    def prepare(name: str) -> tuple[StoreDirectory, str]:
        store = new_store(tmp_path / name)
        return store, write_part(store, 40, files=("model.bin",))

    first, _ = prepare("first")
    outcomes = set()
    for number in range(1, _lines(lambda: fence.begin(first, 2)) + 1):
        store, part = prepare(f"{number}")
        outcome: list[str] = []

        def save(store: StoreDirectory = store, part: str = part, outcome: list[str] = outcome) -> None:
            try:
                commit(store, part, {"run": RUN})
                outcome.append("committed")
            except (CheckpointError, FileNotFoundError):
                outcome.append("refused")

        with at_line(number, save):
            fence.begin(store, 2)
        assert [one.step for one in store.checkpoints()] == ([40] if outcome == ["committed"] else [])
        assert store.parts() == []
        outcomes.update(outcome)
    assert outcomes == {"committed", "refused"}
