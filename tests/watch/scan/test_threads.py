"""Where looks are slow, many threads take over from the first process."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.watch.scan import folder
from resilience.watch.scan import worker as pace
from resilience.watch.scan.worker import Pace
from tests.watch.scan.trees import a_tree, du, kib, look, settle, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = a_tree(tmp_path / "tree", tops=5, subs=45, files=1)
    for number in range(700):
        write(tree / "large" / f"{number}", 10)
    settle(tree)
    return tree


def test_the_first_process_hands_over_when_looks_turn_out_slow(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLOW_LOOK_S", 0.0)
    memory = tmp_path / "memory"
    found = look(root, memory)
    assert "16 threads" in found.pace
    assert found.is_complete
    assert (kib(found), found.totals.files[0], found.totals.folders[0]) == (du(root), 925, 232)
    again = look(root, memory)
    assert "16 threads" in again.pace
    assert (again.read, again.verified, again.looks) == (0, 232, 232)
    assert again.totals == found.totals


def test_a_change_is_found_by_threads_too(tmp_path: Path, root: Path) -> None:
    memory = tmp_path / "memory"
    threads = Pace(1, 16, "as on a network")
    look(root, memory, pace=threads)
    write(root / "large" / "new")
    write(root / "t4" / "s5" / "new")
    found = look(root, memory, pace=threads)
    assert found.read == 2
    assert kib(found) == du(root)


def test_the_looks_at_one_large_folder_are_shared_out(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    from resilience.watch.scan import worker as threads

    look_once = folder.look

    def slowly(entry: object) -> object:
        time.sleep(0.004)  # a server far away
        return look_once(entry)  # type: ignore[arg-type]

    monkeypatch.setattr(threads, "look", slowly)
    found = look(root, pace=Pace(1, 16, "as on a network"))
    assert kib(found) == du(root)
    assert found.took_s < 925 * 0.004  # one after the other it would take longer than that


def test_trouble_in_one_thread_is_trouble_of_its_folder(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resilience.watch.scan import worker as threads

    look_once = folder.look

    def broken(entry: object) -> object:
        if entry.name == "500":  # type: ignore[attr-defined]
            raise OSError(5, "the disk is broken")
        return look_once(entry)  # type: ignore[arg-type]

    monkeypatch.setattr(threads, "look", broken)
    found = look(root, pace=Pace(1, 16, "as on a network"), deadline_s=60)
    bad = [path for path, number in zip(found.tree.paths, found.tree.trouble, strict=True) if number]
    assert bad == [b"large"]
    assert not found.out_of_time
