"""Checkpoint files: complete or absent wherever the job is killed; the newest is found, labelled ones are kept."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.integrations.checkpoint_files import checkpoint_path, move_into_place, newest_checkpoint, remove_older
from tests.lab.disks import fill, small_disk
from tests.system.writer import OF_THE_INTERPRETER, REFUSED, Writer, sampled, writer

PRELOAD = """
from resilience.integrations.checkpoint_files import move_into_place, remove_older

def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        os._exit(7)
"""
LOOKS = {"newfstatat", "statx", "getdents64", "fcntl", "lseek", "close", "getrandom"}
"""System calls that change nothing on disk: a kill there is equal to a kill at the next one that does."""

LEFT = "removed-by-resil-0123abcd-resil-step=00000001.ckpt"
"""Left by a job that was killed during a deletion."""


def made(directory: Path, step: int, label: str = "") -> Path:
    path = checkpoint_path(directory, step, label)
    path.write_text("it")
    return path


def write(path: Path, kind: str, text: str) -> Path:
    """Write a checkpoint as a trainer does: a file, or a directory of files and directories."""
    if kind == "file":
        path.write_text(text)
    else:
        (path / "deep").mkdir(parents=True)
        (path / "deep" / "shard").write_text(text)
        (path / "meta").write_text(text)
    return path


def content(path: Path) -> object:
    """Return a file's text, or a directory's names with theirs."""
    return {inner.name: content(inner) for inner in path.iterdir()} if path.is_dir() else path.read_text()


def whole(kind: str, text: str) -> object:
    """Return the `content` of a checkpoint of `write`."""
    return text if kind == "file" else {"deep": {"shard": text}, "meta": text}


def checkpoints(directory: Path) -> dict[str, object]:
    """Return all names of checkpoints, as in `ls resil-*.ckpt`."""
    return {path.name: content(path) for path in directory.glob("resil-*.ckpt")}


def killed_everywhere(process: Writer, request: str, prepare: Callable[[], None], check: Callable[[str], None]) -> None:
    """Kill the process at each of its system calls, each time after `prepare`, and `check` the result."""
    prepare()
    points = [point for point in process.kill_points(request) if point[0] not in LOOKS | OF_THE_INTERPRETER]
    check("not killed")
    assert {name for name, _ in points} & {"rename", "renameat", "renameat2"}
    for name, count in sampled(points):
        prepare()
        assert process.run(request, f"{name}:signal=KILL:when={count}").code == -signal.SIGKILL
        check(f"killed at {name} {count}")


# ---- names


def test_the_newest_is_that_with_the_most_steps_and_half_a_file_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    made(tmp_path, 99)
    newest = made(tmp_path, 100, "before-drop")
    made(tmp_path, 101).rename(tmp_path / "resil-step=00000101.part")
    (tmp_path / "last.ckpt").write_text("another's")
    assert newest_checkpoint(tmp_path) == str(newest)


def test_steps_are_compared_as_numbers(tmp_path: Path) -> None:
    made(tmp_path, 99_999_999)
    newest = made(tmp_path, 100_000_000)
    assert newest_checkpoint(tmp_path) == str(newest)


def test_a_label_names_no_other_directory(tmp_path: Path) -> None:
    assert checkpoint_path(tmp_path, 7, "../x").parent == tmp_path


def test_no_directory_has_no_checkpoint_and_one_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "gone") is None
    remove_older(tmp_path / "gone", 1)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="symbolic links"):
        newest_checkpoint(loop)


# ---- what is done


def test_older_ones_go_and_those_with_a_label_stay(tmp_path: Path) -> None:
    kept = [made(tmp_path, 1, "mine"), made(tmp_path, 4), made(tmp_path, 5)]
    made(tmp_path, 2)
    write(checkpoint_path(tmp_path, 3), "directory", "it")
    remove_older(tmp_path, 2)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    remove_older(tmp_path, 0)  # would leave the training without a checkpoint
    assert sorted(tmp_path.iterdir()) == sorted([kept[0], kept[-1]])


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_an_incomplete_file_of_a_killed_job_is_removed_once_a_newer_checkpoint_exists(
    tmp_path: Path, kind: str
) -> None:
    given_up = write(checkpoint_path(tmp_path, 4).with_suffix(".part"), kind, "half")
    kept = [
        made(tmp_path, 5),
        write(checkpoint_path(tmp_path, 6).with_suffix(".part"), kind, "may be on its way"),
        write(checkpoint_path(tmp_path, 4, "mine").with_suffix(".part"), kind, "whoever writes this"),
    ]
    move_into_place(write(tmp_path / "part", kind, "7"), checkpoint_path(tmp_path, 3, "other"))
    assert given_up.exists(), "a move removes nothing"
    remove_older(tmp_path, 2)
    assert sorted(tmp_path.iterdir()) == sorted([*kept, checkpoint_path(tmp_path, 3, "other")])


@pytest.mark.parametrize("there", ["", "file", "directory"])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_checkpoint_is_moved_into_place_with_its_content(tmp_path: Path, kind: str, there: str) -> None:
    path = checkpoint_path(tmp_path, 7)
    if there:
        write(path, there, "of an attempt before")
    move_into_place(write(path.with_suffix(".part"), kind, "new"), path)
    assert content(tmp_path) == {path.name: whole(kind, "new")}


def test_fifos_and_dangling_links_do_not_block_a_move(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 7)
    path.symlink_to(tmp_path / "nowhere")
    part = write(path.with_suffix(".part"), "directory", "new")
    (part / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(part / "fifo")
    move_into_place(part, path)
    assert (path / "link").is_symlink() and (path / "fifo").exists()


# ---- killed


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("directory", ""),
        ("directory", "directory"),
        ("directory", "file"),
        ("file", ""),
        ("file", "file"),
        ("file", "directory"),
    ],
)
def test_a_move_that_is_killed_at_any_system_call_loses_no_checkpoint(tmp_path: Path, kind: str, there: str) -> None:
    directory = tmp_path / "checkpoints"
    before, path = checkpoint_path(directory, 6), checkpoint_path(directory, 7)
    part = path.with_suffix(".part")
    new, old = whole(kind, "new"), whole(there, "old") if there else None
    seen = []

    def prepare() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        write(before, "directory", "before")
        if there:
            write(path, there, "old")
        write(part, kind, "new")

    def check(where: str) -> None:
        newest = newest_checkpoint(directory)
        assert newest is not None, where
        seen.append(content(Path(newest)))
        if newest.endswith(path.name):
            assert seen[-1] in (new, old), where
        else:
            assert (newest, seen[-1], there) == (str(before), whole("directory", "before"), ""), where
        assert checkpoints(directory).get(path.name) in (new, old, None), where
        assert newest == str(path) or "directory" in (kind, there) or not there, f"{where}: two files take one rename"
        if not part.exists():
            write(part, kind, "new")
        move_into_place(part, path)
        assert content(directory) == {before.name: whole("directory", "before"), path.name: new}, where

    with writer(tmp_path / "strace", PRELOAD) as process:
        killed_everywhere(process, f"move_into_place(Path({str(part)!r}), Path({str(path)!r}))", prepare, check)
    assert new in seen and (old or whole("directory", "before")) in seen, "the points lie before and after the rename"


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_removal_killed_at_any_system_call_leaves_complete_checkpoints(tmp_path: Path, kind: str) -> None:
    """Also those left by killed calls: half-deleted, replaced, and renamed ones."""
    directory = tmp_path / "checkpoints"
    kept = {checkpoint_path(directory, 1, "mine").name, *(checkpoint_path(directory, step).name for step in (5, 6, 7))}

    def prepare() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for step in (3, 4, 5, 7):
            write(checkpoint_path(directory, step), kind, "whole")
        write(checkpoint_path(directory, 1, "mine"), kind, "whole")
        write(directory / f"replaced-by-resil-0123abcd-{checkpoint_path(directory, 6).name}", kind, "whole")
        write(directory / f"replaced-by-resil-0123abcd-{checkpoint_path(directory, 7).name}", kind, "old")
        write(directory / LEFT, kind, "half")

    def check(where: str) -> None:
        assert all(found == whole(kind, "whole") for found in checkpoints(directory).values()), where
        assert newest_checkpoint(directory) == str(checkpoint_path(directory, 7)), where
        remove_older(directory, 3)
        assert content(directory) == dict.fromkeys(kept, whole(kind, "whole")), where

    with writer(tmp_path / "strace", PRELOAD) as process:
        killed_everywhere(process, f"remove_older(Path({str(directory)!r}), 3)", prepare, check)


@pytest.mark.parametrize("label", ["", "mine"])
def test_a_replaced_checkpoint_without_a_successor_counts_and_is_renamed_back(tmp_path: Path, label: str) -> None:
    path = write(checkpoint_path(tmp_path, 7, label), "directory", "old")
    part = write(path.with_suffix(".part"), "directory", "new")
    with writer(tmp_path.parent / f"{tmp_path.name}.strace", PRELOAD) as process:
        process.run(f"move_into_place(Path({str(part)!r}), Path({str(path)!r}))", "rename:signal=KILL:when=2")
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest != str(path) and newest.endswith(path.name)
    assert content(Path(newest)) == whole("directory", "old") and content(part) == whole("directory", "new")
    following = checkpoint_path(tmp_path, 8)
    move_into_place(write(following.with_suffix(".part"), "file", "8"), following)
    assert newest_checkpoint(tmp_path) == str(following)
    assert checkpoints(tmp_path) == {path.name: whole("directory", "old"), following.name: "8"}


# ---- refused


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_checkpoint_is_not_renamed_before_it_is_on_disk(tmp_path: Path, error: str) -> None:
    path = write(checkpoint_path(tmp_path, 7), "directory", "old")
    part = write(path.with_suffix(".part"), "directory", "new")
    request = f"refused(move_into_place, Path({str(part)!r}), Path({str(path)!r}))"
    with writer(tmp_path.parent / f"{tmp_path.name}.strace", PRELOAD) as process:
        for count in range(1, 5):  # two files and two directories
            assert process.run(request, f"fsync:error={error}:when={count}").code == REFUSED
            assert content(tmp_path) == {path.name: whole("directory", "old"), part.name: whole("directory", "new")}
        assert process.run(request, f"fsync:error={error}:when=5").code == REFUSED, "the directory that has the name"
    assert newest_checkpoint(tmp_path) == str(path) and content(path) == whole("directory", "new")
    assert whole("directory", "old") in [content(other) for other in tmp_path.glob("replaced-*")], (
        "not known to be needless"
    )
    remove_older(tmp_path, 1)
    assert content(tmp_path) == {path.name: whole("directory", "new")}


def test_a_file_system_that_cannot_sync_directories_is_good_enough(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 7)
    part = write(path.with_suffix(".part"), "directory", "new")
    with writer(tmp_path.parent / f"{tmp_path.name}.strace", PRELOAD) as process:
        request = f"refused(move_into_place, Path({str(part)!r}), Path({str(path)!r}))"
        assert process.run(request, "fsync:error=EINVAL:when=1").code == REFUSED, "a file"
        assert process.run(request, "fsync:error=EINVAL:when=4+").code == 0, "the part, and the directory it is in"


@pytest.mark.parametrize("count", [1, 2])
def test_a_failed_rename_leaves_the_old_checkpoint(tmp_path: Path, count: int) -> None:
    path = write(checkpoint_path(tmp_path, 7), "directory", "old")
    part = write(path.with_suffix(".part"), "directory", "new")
    with writer(tmp_path.parent / f"{tmp_path.name}.strace", PRELOAD) as process:
        request = f"refused(move_into_place, Path({str(part)!r}), Path({str(path)!r}))"
        assert process.run(request, f"rename:error=EACCES:when={count}").code == REFUSED
    assert content(tmp_path) == {path.name: whole("directory", "old"), part.name: whole("directory", "new")}


@pytest.mark.parametrize("refusal", ["EBUSY", "EACCES", "ENOSPC"])
def test_a_failed_delete_is_logged_and_does_not_end_the_training(
    tmp_path: Path, refusal: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(checkpoint_path(tmp_path, 7), "directory", "old")
    part = write(path.with_suffix(".part"), "directory", "new")
    write(checkpoint_path(tmp_path, 6), "directory", "before")
    calls = [f"move_into_place, Path({str(part)!r}), Path({str(path)!r})", f"remove_older, Path({str(tmp_path)!r}), 1"]
    with writer(tmp_path.parent / f"{tmp_path.name}.strace", PRELOAD) as process:
        for call in calls:
            assert process.run(f"refused({call})", f"unlink,unlinkat,rmdir:error={refusal}").code == 0
            assert "The next save retries" in capfd.readouterr().err
            assert newest_checkpoint(tmp_path) == str(path) and content(path) == whole("directory", "new")
    assert len(list(tmp_path.iterdir())) == 3
    remove_older(tmp_path, 1)
    assert content(tmp_path) == {path.name: whole("directory", "new")}


def test_a_file_that_cannot_be_deleted_keeps_the_space_of_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, 7)
    (tmp_path / LEFT).mkdir()
    for number in range(20):
        write(tmp_path / LEFT / f"{number}", "directory", "half")
    shutil.rmtree(tmp_path / LEFT / "10")
    with small_disk(tmp_path / LEFT / "10") as busy:
        made(tmp_path, 6)
        remove_older(tmp_path, 1)
        assert sorted(path.name for path in tmp_path.iterdir()) == [LEFT, checkpoint_path(tmp_path, 7).name]
        assert list((tmp_path / LEFT).iterdir()) == [busy]
        assert "Device or resource busy" in caplog.text and str(tmp_path) in caplog.text
    remove_older(tmp_path, 1)
    assert not (tmp_path / LEFT).exists()


def test_a_half_deleted_checkpoint_never_counts_again(tmp_path: Path) -> None:
    """Also if it was replaced, and its replacement was removed since."""
    for step in (7, 8):
        write(checkpoint_path(tmp_path, step), "directory", "whole")
    write(tmp_path / f"replaced-by-resil-0123abcd-{checkpoint_path(tmp_path, 7).name}", "directory", "old")
    with writer(tmp_path.parent / f"{tmp_path.name}.strace", PRELOAD) as process:
        process.run(f"remove_older(Path({str(tmp_path)!r}), 1)", "unlinkat:error=EBUSY:when=2+")
    assert newest_checkpoint(tmp_path) == str(checkpoint_path(tmp_path, 8))
    shutil.rmtree(checkpoint_path(tmp_path, 8))
    assert newest_checkpoint(tmp_path) is None and len(list(tmp_path.iterdir())) == 2


def test_nothing_is_deleted_before_its_rename_is_on_disk(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for step in (6, 7):
        write(checkpoint_path(tmp_path, step), "directory", "whole")
    with writer(tmp_path.parent / f"{tmp_path.name}.strace", PRELOAD) as process:
        assert process.run(f"refused(remove_older, Path({str(tmp_path)!r}), 1)", "fsync:error=EIO").code == 0
    assert [content(path) for path in tmp_path.iterdir()] == [whole("directory", "whole")] * 2
    assert "Input/output error" in capfd.readouterr().err


def test_a_checkpoint_that_cannot_be_renamed_stays_complete(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made(tmp_path, 7)
    with small_disk(checkpoint_path(tmp_path, 6)) as busy:
        write(busy / "big", "directory", "whole")
        remove_older(tmp_path, 1)
        assert content(busy / "big") == whole("directory", "whole")
        assert "Device or resource busy" in caplog.text


def test_a_full_disk_stops_neither_the_move_nor_the_removal_that_makes_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        path = write(checkpoint_path(disk, 7), "directory", "old" * 10_000)
        write(checkpoint_path(disk, 6), "directory", "before" * 5_000)
        part = path.with_suffix(".part")
        write(part, "directory", "new")
        ballast = fill(disk)
        with pytest.raises(OSError, match="No space left"):
            (part / "more").write_text("more" * 1000)
        (part / "more").unlink()
        move_into_place(part, path)
        remove_older(disk, 1)
        assert content(path) == whole("directory", "new")
        assert sorted(disk.iterdir()) == [ballast, path]
        (disk / "room").write_bytes(bytes(100_000))


# ---- whose files


@pytest.mark.parametrize("name", ["resil-step=00000006.ckpt", "resil-step=00000007.ckpt", LEFT])
def test_a_link_leads_no_delete_out_of_the_directory(tmp_path: Path, name: str) -> None:
    elsewhere = write(tmp_path / "elsewhere", "directory", "mine")
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    (directory / name).symlink_to(elsewhere)
    inside = write(checkpoint_path(directory, 5), "directory", "it")
    (inside / "deep" / "link").symlink_to(elsewhere)
    (inside / "link").symlink_to(elsewhere / "meta")
    path = checkpoint_path(directory, 7)
    move_into_place(write(path.with_suffix(".part"), "directory", "new"), path)
    remove_older(directory, 1)
    assert content(directory) == {path.name: whole("directory", "new")}
    assert content(elsewhere) == whole("directory", "mine")


def test_files_with_other_names_are_left_alone(tmp_path: Path) -> None:
    others = ["removed-by-resil-x", "replaced-by-resil-0123abcd", "removed-resil-step=00000001.ckpt", "last.ckpt"]
    for name in others:
        (tmp_path / name).write_text("mine")
    move_into_place(write(tmp_path / "part", "directory", "new"), tmp_path / "my own name")
    remove_older(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "my own name"])


def test_of_twins_that_save_the_same_step_one_is_there_at_any_time(tmp_path: Path) -> None:
    path = write(checkpoint_path(tmp_path, 7), "directory", "twin 0")
    moved = []

    def save(name: str) -> None:
        for turn in range(100):
            part = write(tmp_path / f"{name}.{turn}.part", "directory", name)
            try:
                move_into_place(part, path)
                moved.append(name)
            except OSError:  # the other process was faster
                shutil.rmtree(part)

    twins = [threading.Thread(target=save, args=(f"twin {number}",)) for number in (1, 2)]
    for twin in twins:
        twin.start()
    found = []
    while any(twin.is_alive() for twin in twins):
        found.append(newest_checkpoint(tmp_path))
    assert moved and None not in found
    remove_older(tmp_path, 1)
    assert content(tmp_path) in [{path.name: whole("directory", name)} for name in moved]
