"""Prune deletes what retention lets go and nothing else, also if it is killed, fails, or finds the newest damaged."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints import prune, starts, trash, verified
from resilience.checkpoints.commit import commit
from resilience.checkpoints.digest import digest_file
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.manifest import FileEntry, Manifest, to_text
from resilience.checkpoints.names import OWN, SEALS, TRASH, committed_name, part_name, seal_name
from resilience.checkpoints.pins import Pin, is_pinned, pin, read_pins, unpin
from resilience.checkpoints.retention import Best, Kept, Policy
from resilience.checkpoints.verify import verify
from resilience.errors import UsageError
from tests.lab.disks import fill, small_disk
from tests.lab.hung import hung_directory
from tests.system.writer import OF_THE_INTERPRETER, writer

NOW = time.time()
PRELOAD = """
from resilience.checkpoints import prune
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.retention import Policy
"""
DAY = 86400.0


def soak(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of the long campaigns."""
    reason = "takes minutes: set RESIL_SOAK=1"
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason=reason)(test)
    pytest.mark.soak(test)
    return test


def save(store: StoreDirectory, *steps: int, attempt: int = 1, **fields: Any) -> None:
    """Commit a checkpoint of two files for each step."""
    for step in steps:
        part = store.path / part_name(step, attempt, 1)
        (part / "shards").mkdir(parents=True)
        (part / "model.bin").write_bytes(os.urandom(512))
        (part / "shards" / "0.bin").write_bytes(os.urandom(64))
        commit(store, part.name, fields)


@pytest.fixture
def store(tmp_path: Path) -> StoreDirectory:
    """A directory with the checkpoints 100 to 500."""
    made = StoreDirectory.create(tmp_path / "checkpoints")
    save(made, 100, 200, 300, 400, 500)
    return made


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def steps(store: StoreDirectory) -> list[int]:
    return [one.step for one in store.checkpoints()]


def run(store: StoreDirectory, policy: Policy | None = None, now: float = NOW, **values: Any) -> prune.Pruned:
    return prune.run(store, policy or Policy(), now=now, **values)


def record(store: StoreDirectory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store.own / "prune.json").read_text())
    return found


def flip(path: Path) -> None:
    """Flip one bit, and leave size and times."""
    info, raw = path.stat(), bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def test_what_the_policy_lets_go_is_deleted_and_recorded(store: StoreDirectory) -> None:
    pruned = run(store, Policy(every_steps=200))
    assert steps(store) == [200, 400, 500]
    assert [one.name for one in pruned.deleted] == ["step-00000100", "step-00000300"]
    assert pruned.freed_bytes == 2 * (512 + 64)
    assert store.trash() == [] and pruned.failed == ()
    assert record(store) == {
        "at": NOW,
        "deleted": ["step-00000100", "step-00000300"],
        "freed_bytes": 1152,
        "failed": [],
    }
    assert all(verify(one).is_good for one in store.checkpoints())


def test_a_dry_run_says_the_same_and_deletes_nothing(store: StoreDirectory) -> None:
    said = run(store, dry_run=True)
    assert steps(store) == [100, 200, 300, 400, 500]
    assert not (store.own / "prune.json").exists()
    assert said == run(store)


def test_the_digests_of_a_commit_do_not_count_as_a_verification(store: StoreDirectory) -> None:
    flip(store.path / "step-00000500" / "model.bin")
    flip(store.path / "step-00000400" / "shards" / "0.bin")
    pruned = run(store, Policy(latest=1))
    assert steps(store) == [200, 300, 400, 500]
    assert "step-00000500" in pruned.failed[0] and "model.bin" in pruned.failed[0]
    assert "step-00000400" in pruned.failed[1] and "shards/0.bin" in pruned.failed[1]
    assert record(store)["failed"] == list(pruned.failed)


def test_while_less_than_two_verify_nothing_is_deleted(store: StoreDirectory) -> None:
    for step in (200, 300, 400, 500):
        flip(store.path / committed_name(step) / "model.bin")
    assert run(store, Policy(latest=1)).deleted == ()
    assert steps(store) == [100, 200, 300, 400, 500]


def test_what_cannot_be_read_is_neither_good_nor_deleted(
    store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *arguments: Any, **values: Any) -> tuple[int, str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("resilience.checkpoints.verify.digest_file", refuse)
    pruned = run(store)
    assert steps(store) == [100, 200, 300, 400, 500]
    assert "Input/output error" in pruned.failed[0]


def test_nothing_is_read_while_nothing_could_be_deleted(store: StoreDirectory) -> None:
    run(store, Policy(latest=5))
    assert names(store.own / "verified") == []
    run(store, Policy(latest=4))
    assert names(store.own / "verified") == ["step-00000400.json", "step-00000500.json"]


def test_after_a_return_to_an_earlier_step_what_is_saved_there_stays_and_is_read(store: StoreDirectory) -> None:
    save(store, 310, 320, attempt=2)
    run(store)
    assert steps(store) == [310, 320, 400, 500]
    save(store, 330, attempt=2)
    run(store)
    assert steps(store) == [320, 330, 400, 500]
    save(store, 600, 700, attempt=2)
    run(store)
    assert steps(store) == [600, 700]


def test_a_verification_is_trusted_for_a_day_as_long_as_sizes_hold(store: StoreDirectory) -> None:
    run(store)
    save(store, 600)
    flip(store.path / "step-00000500" / "model.bin")
    run(store, now=NOW + DAY / 2)
    assert steps(store) == [500, 600]  # 500 was not read a second time
    save(store, 700)
    os.truncate(store.path / "step-00000600" / "model.bin", 511)
    pruned = run(store, now=NOW + DAY / 2)
    assert steps(store) == [500, 600, 700] and "model.bin" in pruned.failed[0]
    pruned = run(store, now=NOW + 2 * DAY)
    assert "step-00000500" in pruned.failed[-1]
    assert steps(store) == [500, 600, 700]


def test_what_was_overwritten_since_its_verification_is_read_again(store: StoreDirectory) -> None:
    """By a second save into the same directory, for instance."""
    run(store)
    save(store, 600)
    (store.path / "step-00000500" / "model.bin").write_bytes(bytes(512))
    assert "step-00000500" in run(store, now=NOW + DAY / 2).failed[0]
    assert steps(store) == [400, 500, 600]


def test_a_verification_from_the_future_is_not_trusted(store: StoreDirectory) -> None:
    run(store, now=NOW + 9 * DAY)  # the clock was wrong
    save(store, 600)
    flip(store.path / "step-00000500" / "model.bin")
    assert "step-00000500" in run(store).failed[0]
    assert steps(store) == [400, 500, 600]


def test_the_one_last_resumed_from_and_pinned_ones_stay(store: StoreDirectory) -> None:
    starts.begin(store, 3, "step-00000200")
    pin(store, "step-00000100", Pin("paper", "ada", NOW))
    assert [one.reason for one in run(store).verdicts[:2]] == ["pinned", "last resumed from"]
    assert steps(store) == [100, 200, 400, 500]
    assert read_pins(store) == {"step-00000100": Pin("paper", "ada", NOW)}
    assert unpin(store, "step-00000100") and not unpin(store, "step-00000100")
    run(store)
    assert steps(store) == [200, 400, 500]


def test_a_damaged_pin_pins(store: StoreDirectory) -> None:
    pin(store, "step-00000100", Pin())
    (store.own / "pins" / "step-00000100.json").write_bytes(b"\0\0")
    run(store)
    assert steps(store) == [100, 400, 500]
    assert is_pinned(store, "step-00000100") and read_pins(store) == {"step-00000100": Pin()}


def test_a_full_disk_is_when_old_ones_are_deleted_and_a_start_is_not_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "512k") as disk:
        store = StoreDirectory.create(disk / "ckpt")
        save(store, 100, 200, 300)
        fill(disk)
        assert StoreDirectory.create(disk / "ckpt").ident() == store.ident()
        assert len(run(store).deleted) == 1
        assert steps(store) == [200, 300] and store.trash() == []


def test_what_is_pinned_while_prune_reads_stays(store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any) -> Any:
        pin(store, "step-00000300", Pin("this one is it"))
        return verify(*arguments)

    monkeypatch.setattr(prune, "verify", slow)
    assert Kept("step-00000300", "pinned") in run(store).verdicts
    assert steps(store) == [300, 400, 500]


def test_two_prunes_at_once_delete_what_one_would(store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(prune, "verify", verify)
        assert run(store).failed == ()
        return verify(*arguments)

    monkeypatch.setattr(prune, "verify", slow)
    assert run(store).failed == ()
    assert steps(store) == [400, 500]


def test_an_unknown_metric_deletes_nothing_and_is_recorded(store: StoreDirectory) -> None:
    save(store, 600, metrics={"loss": 2.0})
    with pytest.raises(UsageError, match="'los'"):
        run(store, Policy(best=Best("los")))
    assert steps(store) == [100, 200, 300, 400, 500, 600]
    assert "'los'" in record(store)["failed"][0]
    run(store, Policy(best=Best("loss")))
    assert record(store)["failed"] == []


def test_manifests_that_are_damaged_or_newer_than_this_version_stay(store: StoreDirectory) -> None:
    path = store.path / "step-00000100" / OWN / "manifest.json"
    path.write_text(path.read_text().replace('"step":100', '"step":101'))
    newer = store.find(200).manifest_path
    body = json.loads(newer.read_text())["manifest"] | {"format": 99}
    newer.write_text(to_text(Manifest(**body | {"files": tuple(FileEntry(*one) for one in body["files"])})))
    pruned = run(store)
    assert steps(store) == [100, 200, 400, 500]
    assert len(pruned.failed) == 1 and "step-00000100" in pruned.failed[0]


def seal(store: StoreDirectory, step: int) -> None:
    """Seal a file, as a framework has written it, beside the data."""
    name = f"checkpoint-{step}"
    (store.path / name).mkdir()
    (store.path / name / "weights").write_bytes(b"w" * step)
    entry = FileEntry("weights", *digest_file(store.path / name / "weights", "crc32"))
    manifest = Manifest(token=str(step), step=step, algorithm="crc32", files=(entry,))
    (store.own / SEALS / seal_name(step, name)).write_text(to_text(manifest))


def test_what_a_framework_named_is_deleted_only_with_manage(tmp_path: Path) -> None:
    store = StoreDirectory.create(tmp_path / "out")
    for step in (10, 20, 30):
        seal(store, step)
    (store.path / "checkpoint-40").mkdir()  # not sealed: no checkpoint
    assert all("manage = false" in one.reason for one in run(store).verdicts)
    assert steps(store) == [10, 20, 30]
    run(store, manage=True)
    assert steps(store) == [20, 30]
    assert names(store.own / SEALS) == [seal_name(20, "checkpoint-20"), seal_name(30, "checkpoint-30")]
    assert (store.path / "checkpoint-40").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk: root")
def test_a_full_disk_is_relieved(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        store = StoreDirectory.create(disk)
        save(store, 100, 200, 300)
        with (disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while ballast.write(b"x" * 4096):
                pass
        with pytest.raises(OSError, match="No space"):
            pin(store, "step-00000300", Pin("why"))
        assert "would go" not in str(run(store, dry_run=True).failed) and steps(store) == [100, 200, 300]
        pruned = run(store)
        assert (steps(store), pruned.failed, store.trash()) == ([200, 300], (), [])
        assert record(store)["deleted"] == ["step-00000100"]


def test_a_record_that_cannot_be_written_is_said_and_stops_nothing(
    store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for module in (prune, verified):
        monkeypatch.setattr(module, "write_record", refuse)
    assert run(store, dry_run=True).failed == ()
    assert run(store).failed == (f"cannot write {store.own / 'prune.json'}: Read-only file system",)
    assert steps(store) == [400, 500]


def test_what_cannot_be_taken_away_stays_and_is_told(store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if "step-00000200" in str(source):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    pruned = run(store)
    assert steps(store) == [200, 400, 500]
    assert [one.name for one in pruned.deleted] == ["step-00000100", "step-00000300"]
    (words,) = record(store)["failed"]
    assert words.startswith("cannot delete") and words.endswith("step-00000200: Permission denied")


def test_what_cannot_be_deleted_is_told_and_the_next_prune_goes_on(
    store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def fail(path: Any, *arguments: Any, **values: Any) -> None:
        if "/step-00000200." in str(path) and str(path).endswith("model.bin"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        unlink(path, *arguments, **values)

    monkeypatch.setattr(os, "unlink", fail)
    failed = run(store).failed
    assert steps(store) == [400, 500] and len(store.trash()) == 1
    assert any(words.endswith("model.bin: Input/output error") for words in failed)
    assert record(store)["failed"] == list(failed)
    monkeypatch.undo()
    assert run(store).failed == () and store.trash() == []


class Killed(BaseException):
    """What a process does after SIGKILL: nothing, no `except OSError` either."""


def test_killed_at_any_change_of_the_disk_no_part_of_a_checkpoint_is_listed(
    store: StoreDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    for at in range(1, 200):
        copy = StoreDirectory(tmp_path / "copy")
        shutil.copytree(store.path, copy.path)
        with monkeypatch.context() as patch:
            calls = 0

            def counted(name: str) -> Callable[..., Any]:
                original = getattr(os, name)

                def call(*arguments: Any, **values: Any) -> Any:
                    nonlocal calls
                    calls += 1
                    if calls >= at:  # a dead process makes no later call either  # noqa: B023
                        raise Killed
                    return original(*arguments, **values)

                return call

            for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
                patch.setattr(os, name, counted(name))
            with suppress(Killed):
                run(copy)
        assert steps(copy)[-2:] == [400, 500]
        assert all(verify(one).is_good for one in copy.checkpoints())
        run(copy)
        assert (steps(copy), copy.trash(), record(copy)["failed"]) == ([400, 500], [], [])
        shutil.rmtree(copy.path)
        if calls < at:
            break
    assert 20 < calls < at


@soak
def test_killed_at_any_system_call_no_part_of_a_checkpoint_is_listed(store: StoreDirectory, tmp_path: Path) -> None:
    copy = StoreDirectory(tmp_path / "copy")
    request = f"prune.run(StoreDirectory({str(copy.path)!r}), Policy(), now={NOW})"
    with writer(tmp_path / "log", PRELOAD) as process:
        shutil.copytree(store.path, copy.path)
        points = [point for point in process.kill_points(request) if point[0] not in OF_THE_INTERPRETER]
        assert len(points) > 200
        for name, count in points:
            shutil.rmtree(copy.path)
            shutil.copytree(store.path, copy.path)
            outcome = process.run(request, f"{name}:signal=SIGKILL:when={count}")
            assert outcome.code == -signal.SIGKILL, f"{name} {count}"
            assert steps(copy)[-2:] == [400, 500], f"{name} {count}"
            assert all(verify(one).is_good for one in copy.checkpoints()), f"{name} {count}"
            run(copy)
            assert (steps(copy), copy.trash(), record(copy)["failed"]) == ([400, 500], [], []), f"{name} {count}"


def test_a_directory_of_very_many_files_is_deleted_in_little_memory(
    store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2_000_000 if "RESIL_SOAK" in os.environ else 50_000
    deleted = 0

    class Entry:
        path = "/nowhere/very-many/file-with-an-ordinary-name-00001.pt"

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return follow_symlinks

    class Entries:
        def __enter__(self) -> Iterator[Entry]:
            return (Entry() for _ in range(count))

        def __exit__(self, *error: object) -> None:
            pass

    def unlink(path: object) -> None:
        nonlocal deleted
        deleted += path == Entry.path

    (store.path / TRASH).mkdir(exist_ok=True)
    (store.path / TRASH / "step-00000001.abcd").mkdir()
    slept: list[float] = []
    monkeypatch.setattr(os, "scandir", lambda path: Entries())
    monkeypatch.setattr(os, "unlink", unlink)
    tracemalloc.start()
    try:
        emptied = trash.empty(store, sleep=slept.append)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert deleted == count and emptied == (count + 1, ())
    assert peak < 200_000  # a list of so many paths has megabytes
    assert slept  # and it paused


def test_a_child_prunes_and_answers(store: StoreDirectory) -> None:
    save(store, 600, metrics={"loss": 2.0})
    worker = prune.start_prune(store, Policy(best=Best("loss"), every_steps=400))
    try:
        until = time.monotonic() + 60
        while (answer := worker.poll()) is None and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        worker.kill()
    assert answer == {"deleted": [committed_name(step) for step in (100, 200, 300)], "freed_bytes": 1728, "failed": []}
    assert steps(store) == [400, 500, 600] and record(store)["deleted"] == answer["deleted"]


@soak
def test_a_hung_file_system_holds_up_the_child_and_not_the_training(store: StoreDirectory) -> None:
    with hung_directory(store.path, over=True):
        worker = prune.start_prune(store, Policy())
        try:
            took_s = []
            for _ in range(20):
                began = time.monotonic()
                assert worker.poll() is None
                took_s.append(time.monotonic() - began)
                time.sleep(0.05)
        finally:
            began = time.monotonic()
            worker.kill()
        assert max(*took_s, time.monotonic() - began) < 0.5
    assert steps(store) == [100, 200, 300, 400, 500]
    assert run(store).failed == () and steps(store) == [400, 500]
