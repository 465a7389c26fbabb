"""The trash: nothing in it is ever listed, and it is emptied slowly, completely, and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.checkpoints import trash
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import SEALS, TRASH, VERIFIED, seal_name
from resilience.checkpoints.trash import discard, empty
from tests.checkpoints.saves import committed, new_store
from tests.lab.disks import small_disk


@pytest.fixture
def store(tmp_path: Path) -> StoreDirectory:
    return new_store(tmp_path / "ckpt")


def test_what_is_discarded_twice_under_one_name_is_deleted_twice(store: StoreDirectory) -> None:
    for _ in range(2):
        name = committed(store, 40)
        (store.own / VERIFIED / f"{name}.json").write_text("{}")
        discard(store, name)
    assert (store.checkpoints(), len(store.trash())) == ([], 2)
    assert list((store.own / VERIFIED).iterdir()) == [], "what was known of it went with it"
    assert empty(store).deleted == 2 * (4 + 4), "four files and four directories each, ours among them"
    assert store.trash() == [] and empty(store) == (0, ())


def test_a_sealed_checkpoint_goes_with_its_seal_and_one_that_must_stay_keeps_it(store: StoreDirectory) -> None:
    (store.path / "last.ckpt").write_text("x")
    seal = seal_name(7, "last.ckpt")
    (store.own / SEALS / seal).write_text("{}")
    (store.path / TRASH).rmdir()
    (store.path / TRASH).touch()  # so that the rename fails
    with pytest.raises(NotADirectoryError):
        discard(store, "last.ckpt", seal=seal)
    assert [one.name for one in store.checkpoints()] == ["last.ckpt"]
    (store.path / TRASH).unlink()
    discard(store, "last.ckpt", seal=seal)
    assert not (store.own / SEALS / seal).exists() and not (store.path / "last.ckpt").exists()
    assert empty(store).deleted == 1


def test_what_is_not_there_cannot_be_discarded(store: StoreDirectory) -> None:
    with pytest.raises(FileNotFoundError):
        discard(store, "step-00000040")
    assert store.trash() == []


def test_what_cannot_be_deleted_is_named_and_stops_no_other(store: StoreDirectory) -> None:
    for step in (10, 20, 30):
        discard(store, committed(store, step))
    first, busy, last = (store.path / ".trash" / name for name in store.trash())
    with small_disk(busy / "mounted") as disk:
        (disk / "file").touch()
        done = empty(store)
        assert store.trash() == [busy.name] and [path.name for path in busy.iterdir()] == ["mounted"]
        assert done.failed[0] == f"cannot delete {disk}: Device or resource busy"
        assert not first.exists() and not last.exists()
    assert empty(store).failed == () and store.trash() == []


def test_no_link_is_followed(store: StoreDirectory, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").touch()
    name = committed(store, 40)
    (store.path / name / "link").symlink_to(mine)
    (store.path / "alias").symlink_to(mine)
    discard(store, name)
    discard(store, "alias")
    assert empty(store).failed == () and store.trash() == []
    assert (mine / "precious").exists()


def test_it_works_a_tenth_of_the_time_and_longer_pauses_spare_a_slow_file_server(store: StoreDirectory) -> None:
    now, pauses = [0.0], list[float]()
    for took_s, expected in ((0.006, [0.22, 0.22]), (0.5, [4.5] * 8)):
        discard(store, committed(store, 40))  # eight files and directories

        def clock(took_s: float = took_s) -> float:
            now[0] += took_s
            return now[0]

        pauses.clear()
        empty(store, sleep=lambda pause_s: pauses.append(round(pause_s, 2)), clock=clock)
        assert pauses == expected, "nine times as long as the work"


def test_only_so_many_failures_are_kept(store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trash, "_delete", lambda *path: iter([OSError(5, "Input/output error", "x")] * 20))
    discard(store, committed(store, 40))
    assert empty(store) == (0, ("cannot delete x: Input/output error",) * trash.MOST_FAILURES)
