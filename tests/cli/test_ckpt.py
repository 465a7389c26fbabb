"""`resil ckpt`: what a person types about checkpoints, and what a script reads of it."""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.manifest import FORMAT, Manifest, to_text
from resilience.checkpoints.names import OWN, SEALS, STORE, committed_name, part_name
from resilience.checkpoints.store import RECORD, Store
from resilience.checkpoints.verified import write_verified
from resilience.checkpoints.verify import verify
from resilience.cli.open_store import complete_bad, complete_checkpoints
from resilience.errors import CheckpointError
from tests.checkpoints.saves import committed
from tests.checkpoints.trees import rewrite, with_algorithm
from tests.lab.hung import hung_directory
from tests.lab.shell import SETTINGS, Shell

TABLE = '[checkpoints]\npath = "checkpoints"\n'


@pytest.fixture
def store(shell: Shell) -> StoreDirectory:
    """The project's directory of checkpoints, named in its resil.toml; of the run gpt."""
    shell.settings(SETTINGS + TABLE)
    return StoreDirectory.create(shell.directory / "checkpoints", "gpt")


def saved(store: StoreDirectory, *steps: int) -> list[Checkpoint]:
    return [store.find(committed(store, step, attempt=0)) for step in steps]


def flip(checkpoint: Checkpoint, name: str = "model.bin") -> None:
    """Flip one bit, and leave size and times."""
    path = checkpoint.path / name
    info, content = path.stat(), bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def truncate(checkpoint: Checkpoint, name: str = "model.bin") -> None:
    os.truncate(checkpoint.path / name, 3)


# ---- which directory ------------------------------------------------------------------------------------------


def test_the_directory_is_that_of_the_option_else_of_the_settings_else_this_one(
    shell: Shell, store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = saved(store, 5)
    assert shell.resil("ckpt", "latest").out == f"{one.path}\n"
    other = StoreDirectory.create(shell.directory.parent / "other", "")
    (two,) = saved(other, 7)
    assert shell.resil("ckpt", "latest", "--store", "../other").out == f"{two.path}\n"
    monkeypatch.chdir(other.path)
    assert shell.resil("ckpt", "latest").out == f"{two.path}\n"


def test_in_a_job_it_is_the_one_of_the_job(
    shell: Shell, store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(store, 5)
    (of_job,) = saved(StoreDirectory.create(shell.directory / "elsewhere", ""), 7)
    monkeypatch.setenv("RESIL_ATTEMPT", "2")
    monkeypatch.setenv("RESIL_CHECKPOINTS__PATH", str(of_job.store))
    assert shell.resil("ckpt", "latest").out == f"{of_job.path}\n"


def test_without_any_it_says_how_to_name_one(shell: Shell) -> None:
    said = shell.resil("ckpt", "list")
    assert said.code == 2 and "--store PATH" in said.err and "[checkpoints]" in said.err and said.out == ""


def test_the_directory_of_the_option_may_be_this_one(shell: Shell) -> None:
    said = shell.resil("ckpt", "list", "--store", ".")
    assert said.code == 1 and "is not a directory of checkpoints" in said.err


def test_a_path_that_is_a_file_is_a_mistake_and_no_fault_of_the_disk(shell: Shell) -> None:
    (shell.directory / "model.pt").write_text("mine")
    for words in (("list",), ("latest",)):
        said = shell.resil("ckpt", *words, "--store", "model.pt")
        assert said.code == 2 and "model.pt is not a directory" in said.err and "--store" in said.err


def test_a_path_that_is_no_directory_of_checkpoints_is_refused_and_left_alone(shell: Shell) -> None:
    (shell.directory / "data").mkdir()
    (shell.directory / "data" / "x").write_text("mine")
    for words in (("list",), ("show",), ("verify",), ("pin", "5"), ("quarantine", "5"), ("restore", "5")):
        said = shell.resil("ckpt", *words, "--store", "data")
        assert said.code == 1 and "is not a directory of checkpoints" in said.err and "resil ckpt adopt" in said.err
    assert shell.resil("ckpt", "list", "--store", "nowhere").err.count("does not exist") == 1
    assert [path.name for path in (shell.directory / "data").iterdir()] == ["x"]


def test_checkpoints_that_were_copied_without_our_own_directory_are_looked_after(
    shell: Shell, store: StoreDirectory
) -> None:
    saved(store, 100, 200, 300)
    shutil.rmtree(store.own)
    assert shell.resil("ckpt", "list").out.count("step-") == 3
    assert shell.resil("ckpt", "verify", "--all", "--deep").out.count("good (digest)") == 3
    assert shell.resil("ckpt", "pin", "100").code == 0
    shutil.rmtree(store.own)
    assert shell.resil("ckpt", "quarantine", "300").code == 0
    assert shell.resil("ckpt", "latest").out == f"{store.path}/{committed_name(200)}\n"
    assert shell.resil("ckpt", "pin", "100").code == 0
    assert shell.resil("ckpt", "restore", "300").code == 0


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="mounts a file system that hangs: RESIL_SOAK=1")
def test_a_directory_that_hangs_is_said_in_seconds(shell: Shell) -> None:
    with hung_directory(shell.directory / "dead") as dead:
        for words in (("list",), ("latest",), ("verify", "--deep"), ("prune", "--dry-run")):
            began = time.monotonic()
            said = shell.resil("ckpt", *words, "--store", str(dead))
            assert (said.code, time.monotonic() - began < 10) == (75, True), said
            assert "does not respond" in said.err


# ---- list and show --------------------------------------------------------------------------------------------


def test_list_shows_each_checkpoint_and_names_all_that_is_none(shell: Shell, store: StoreDirectory) -> None:
    first, second, third = saved(store, 100, 200, 300)
    rewrite(first, replace(first.manifest(), label="before-lr-drop"))
    flip(second)
    assert shell.resil("ckpt", "verify", "--all", "--deep").code == 1
    shell.resil("ckpt", "pin", "300", "--why", "the one of the paper")
    shell.resil("ckpt", "quarantine", "200")
    (store.path / part_name(400, 7, 1)).mkdir()
    for name in ("notes.txt", "logs", "a", "b", "c"):
        (store.path / name).mkdir()
    out = shell.resil("ckpt", "list").out
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert "label before-lr-drop" in rows[first.name] and "just now" in rows[first.name]
    assert "pinned: the one of the paper" in rows[third.name]
    assert ".part-00000400.a7.1: a save in flight" in out
    assert "set aside: model.bin has other content than was committed" in rows[second.name]
    assert "a, b, c, logs and 1 more" in out, "left alone"
    listed = shell.resil("ckpt", "list", "--json").json
    assert [one["name"] for one in listed["checkpoints"]] == [first.name, third.name]
    assert listed["checkpoints"][1]["pin"]["why"] == "the one of the paper"
    assert listed["checkpoints"][0]["verified"]["level"] == "digest" and listed["foreign"][-1] == "notes.txt"
    assert (listed["bad"][0]["file"], listed["parts"]) == ("model.bin", [".part-00000400.a7.1"])


def test_one_that_is_deleted_while_it_is_listed_is_no_damage(
    shell: Shell, store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(store, 100, 200)
    find = StoreDirectory.checkpoints

    def checkpoints(self: StoreDirectory) -> list[Checkpoint]:
        found = find(self)
        shutil.rmtree(found[0].path, ignore_errors=True)
        return found

    monkeypatch.setattr(StoreDirectory, "checkpoints", checkpoints)
    out = shell.resil("ckpt", "list").out
    assert committed_name(200) in out and committed_name(100) not in out and "manifest" not in out


def test_one_that_cannot_be_read_hides_no_other(shell: Shell, store: StoreDirectory) -> None:
    first, second = saved(store, 100, 200)
    (first.path / OWN).rename(first.path / "hidden")
    (first.path / OWN).symlink_to("x" * 300)
    out = shell.resil("ckpt", "list").out
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert "cannot be read: File name too long" in rows[first.name] and second.name in rows


def test_show_tells_of_the_newest_or_of_one_by_step_name_or_path(shell: Shell, store: StoreDirectory) -> None:
    first, second = saved(store, 100, 200)
    rewrite(first, replace(first.manifest(), metrics={"loss": 2.5}, world=8, attempt=3))
    assert f"{second.name}  {second.path}" in shell.resil("ckpt", "show").out
    for name in ("100", first.name, str(first.path), f"checkpoints/{first.name}"):
        out = shell.resil("ckpt", "show", name).out
        assert "by attempt 3" in out and "8 ranks" in out and "loss 2.5" in out and "optimizer/deep/1.bin" in out
    assert len(shell.resil("ckpt", "show", "100", "--json").json["files"]) == 3
    said = shell.resil("ckpt", "show", "300")
    assert said.code == 1 and "no checkpoint 300" in said.err and second.name in said.err


def test_a_directory_of_many_files_that_are_none_is_listed_on_a_screen(shell: Shell, store: StoreDirectory) -> None:
    for number in range(100):
        os.mknod(store.path / f"file-{number}")
    saved(store, 5)
    out = shell.resil("ckpt", "list").out
    assert "and 96 more" in out and len(out.splitlines()) < 10 and len(out) < 1000


# ---- latest ---------------------------------------------------------------------------------------------------


def test_a_path_into_another_directory_is_refused(shell: Shell, store: StoreDirectory) -> None:
    """Otherwise the one of the same name here would be called good, pinned or set aside."""
    saved(store, 5)
    (other,) = saved(StoreDirectory.create(shell.directory / "other", ""), 5)
    truncate(other)
    for words in (("verify",), ("show",), ("pin",), ("unpin",), ("quarantine",), ("adopt",)):
        said = shell.resil("ckpt", *words, "other/step-00000005", "--store", "checkpoints")
        assert said.code == 2 and "one directory at a time" in said.err, words
    said = shell.resil("ckpt", "verify", "other/step-00000005", "checkpoints/step-00000005")
    assert said.code == 2 and said.out == ""
    assert shell.resil("ckpt", "verify", "./checkpoints/step-00000005/", "checkpoints/5").code == 0
    (shell.directory / "link").symlink_to("checkpoints")
    assert shell.resil("ckpt", "verify", "link/step-00000005", "--store", "checkpoints").code == 0
    assert shell.resil("ckpt", "verify", "other/step-00000005").code == 1
    assert shell.resil("ckpt", "verify", "other/step-00000005", "5").code == 1, "the bare name is of that directory"


def test_latest_prints_nothing_but_the_path_of_the_newest(shell: Shell, store: StoreDirectory) -> None:
    said = shell.resil("ckpt", "latest")
    assert (said.code, said.out) == (1, "") and "no checkpoint yet" in said.err
    *_, newest = saved(store, 9, 100, 20)[:2]
    said = shell.resil("ckpt", "latest")
    assert (said.code, said.out, said.err) == (0, f"{newest.path}\n", "")


def test_a_first_start_has_no_directory_yet(shell: Shell) -> None:
    shell.settings(SETTINGS + TABLE)
    said = shell.resil("ckpt", "latest")
    assert (said.code, said.out) == (1, "") and "no checkpoint yet" in said.err


def test_a_path_that_cannot_be_looked_at_is_no_first_start(shell: Shell) -> None:
    (shell.directory / "loop").symlink_to("loop")
    said = shell.resil("ckpt", "latest", "--store", "loop/checkpoints")
    assert (said.code, said.out) == (75, "") and "symbolic links" in said.err
    assert "does not exist" in shell.resil("ckpt", "latest", "--store", "nowhere").err
    with pytest.raises(CheckpointError, match="symbolic links") as refused:
        Store(shell.directory / "loop" / "checkpoints").latest()
    assert refused.value.transient


@pytest.mark.parametrize("damage", ['{"format": 99, "run": "gpt"}', "{", ""])
def test_a_directory_that_cannot_be_understood_is_no_first_start(
    shell: Shell, store: StoreDirectory, damage: str
) -> None:
    """1 is: none yet, upon which a script begins anew."""
    saved(store, 100)
    (store.own / STORE).write_text(damage)
    said = shell.resil("ckpt", "latest")
    assert (said.code, said.out) == (75, "") and ("damaged" in said.err or "newer version" in said.err), said


def test_a_bug_is_no_first_start(shell: Shell, store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: StoreDirectory) -> list[Checkpoint]:
        raise KeyError("a bug")

    monkeypatch.setattr(StoreDirectory, "checkpoints", fail)
    for words in ((), ("--verified",), ("--store", str(store.path))):
        said = shell.resil("ckpt", "latest", *words)
        assert (said.code, said.out) == (75, "") and "internal error" in said.err


def test_a_directory_that_is_gone_after_a_save_is_no_first_start(shell: Shell, store: StoreDirectory) -> None:
    """An empty mount point looks like a run that has not begun."""
    assert shell.resil("submit").code == 0
    attempt = 'job_id = 7\nlabel = "7"\nrestart = 0\nhost = "n"\nstart = 1\npid = 1\n'
    (shell.run_dir / "attempts" / "0001").write_text(attempt)
    (shell.run_dir / "journal" / "7.0.jsonl").write_text('{"event": "save", "step": 40, "time": 5, "attempt": 1}\n')
    for _ in range(2):
        said = shell.resil("ckpt", "latest")
        assert (said.code, said.out) == (4, "") and "step 40 was saved" in said.err and "mounted" in said.err
        if store.path.exists():
            store.path.rename(shell.directory / "unmounted")


def test_a_run_whose_record_says_that_it_has_saved_is_no_first_start(shell: Shell, store: StoreDirectory) -> None:
    """`resil run` and scripts of one's own keep no attempts."""
    assert shell.resil("submit").code == 0
    (shell.run_dir / RECORD).write_text('{"committed": true}')
    said = shell.resil("ckpt", "latest")
    assert (said.code, said.out) == (4, "") and "run gpt has saved" in said.err


def test_latest_passes_over_what_is_damaged_and_moves_nothing(shell: Shell, store: StoreDirectory) -> None:
    first, second, third = saved(store, 100, 200, 300)
    truncate(third)
    (second.path / "optimizer" / "0.bin").unlink()
    before = sorted(store.path.iterdir())
    said = shell.resil("ckpt", "latest")
    assert (said.code, said.out) == (0, f"{first.path}\n")
    assert "model.bin is truncated" in said.err and "optimizer/0.bin is missing" in said.err
    truncate(first)
    said = shell.resil("ckpt", "latest")
    assert (said.code, said.out) == (4, "") and "none is good" in said.err
    assert sorted(store.path.iterdir()) == before


def test_some_that_were_set_aside_are_no_first_start(shell: Shell, store: StoreDirectory) -> None:
    saved(store, 100)
    shell.resil("ckpt", "quarantine", "100")
    assert shell.resil("ckpt", "latest").code == 4


def test_latest_verified_reads_every_byte_and_goes_one_back(shell: Shell, store: StoreDirectory) -> None:
    first, second = saved(store, 100, 200)
    flip(second)
    assert shell.resil("ckpt", "latest").out == f"{second.path}\n"
    said = shell.resil("ckpt", "latest", "--verified")
    assert said.out == f"{first.path}\n" and "model.bin has other content" in said.err
    assert said.err.count("warning") == 1, "of each, once"


def test_what_was_read_within_a_day_is_not_read_again(shell: Shell, store: StoreDirectory) -> None:
    first, second = saved(store, 100, 200)
    write_verified(second, verify(second), time.time() - 3600)
    flip(second)
    assert shell.resil("ckpt", "latest", "--verified").out == f"{second.path}\n"
    (second.path / "model.bin").touch()  # written to
    assert shell.resil("ckpt", "latest", "--verified").out == f"{first.path}\n"


def test_what_cannot_be_compared_is_neither_good_nor_a_first_start(shell: Shell, store: StoreDirectory) -> None:
    for checkpoint in saved(store, 100, 200):
        with_algorithm(checkpoint, "sha3000")
    said = shell.resil("ckpt", "latest", "--verified")
    assert (said.code, said.out) == (75, ""), said
    assert shell.resil("ckpt", "verify", "--deep").code == 75


def test_what_cannot_be_read_is_unknown(shell: Shell, store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(store, 100)

    def fail(self: StoreDirectory) -> list[Checkpoint]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))

    monkeypatch.setattr(StoreDirectory, "checkpoints", fail)
    for words in (("latest",), ("list",), ("verify",), ("prune",)):
        said = shell.resil("ckpt", *words)
        assert (said.code, said.out) == (75, "") and "Input/output error" in said.err, said


def test_one_that_stays_unreadable_can_be_set_aside(
    shell: Shell, store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = saved(store, 100, 200)
    assert shell.resil("ckpt", "verify", "--deep").code == 0
    read = Checkpoint.manifest

    def manifest(self: Checkpoint) -> Manifest:
        if self.step == 200:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.manifest_path))
        return read(self)

    monkeypatch.setattr(Checkpoint, "manifest", manifest)
    said = shell.resil("ckpt", "latest")
    assert (said.code, said.out) == (75, "") and "resil ckpt quarantine" in said.err
    assert shell.resil("ckpt", "quarantine", second.name, "--why", "a lost disk").code == 0
    assert shell.resil("ckpt", "latest").out == f"{first.path}\n"


def test_one_of_a_newer_version_is_neither_good_nor_bad(shell: Shell, store: StoreDirectory) -> None:
    first, second = saved(store, 100, 200)
    second.manifest_path.write_text(to_text(replace(second.manifest(), format=FORMAT + 1)))
    said = shell.resil("ckpt", "latest")
    assert said.out == f"{first.path}\n" and "format" in said.err and "damaged" not in said.err
    assert shell.resil("ckpt", "verify", "200").code == 75
    assert f"has format {FORMAT + 1}" in shell.resil("ckpt", "list").out
    assert second.path.exists() and not store.bad()


# ---- verify ---------------------------------------------------------------------------------------------------


def test_verify_names_what_is_damaged_with_expected_and_found(shell: Shell, store: StoreDirectory) -> None:
    first, second = saved(store, 100, 200)
    assert shell.resil("ckpt", "verify").out == f"{second.name}: good (structure)\n"
    flip(second)
    assert shell.resil("ckpt", "verify").code == 0, "a flipped bit shows only when it is read"
    said = shell.resil("ckpt", "verify", "--all", "--deep")
    good, bad, advice = said.out.splitlines()
    assert said.code == 1 and good == f"{first.name}: good (digest)"
    assert "model.bin has other content" in bad and "expected" in bad and "found" in bad
    assert advice == f"  to set it aside: resil ckpt quarantine {second.name}"
    one, other = shell.resil("ckpt", "verify", "100", "200", "--deep", "--json").json["checkpoints"]
    assert (one["is_good"], other["is_good"], other["fault"]["file"]) == (True, False, "model.bin")
    assert (
        "damaged model.bin" in " ".join(shell.resil("ckpt", "list").out.split())
        and shell.resil("ckpt", "latest").out == f"{first.path}\n"
    )


def test_a_quick_verification_does_not_clear_what_a_deep_one_has_found(shell: Shell, store: StoreDirectory) -> None:
    first, second = saved(store, 100, 200)
    flip(second)
    assert shell.resil("ckpt", "verify", "--deep").code == 1
    said = shell.resil("ckpt", "verify")
    assert said.code == 1 and "has other content than was committed" in said.out
    assert shell.resil("ckpt", "latest").out == f"{first.path}\n"
    flip(second)
    assert shell.resil("ckpt", "verify", "--deep").code == shell.resil("ckpt", "verify").code == 0


def test_verify_loads_for_real_with_the_users_command(shell: Shell, store: StoreDirectory) -> None:
    (one,) = saved(store, 100)
    program = shell.directory / "load.sh"
    program.write_text('#!/bin/sh\necho "$@" "$RESIL_CHECKPOINT" >seen\nexit $1\n')
    program.chmod(0o755)
    assert shell.resil("ckpt", "verify", "--with", "./load.sh 0").code == 0
    assert (shell.directory / "seen").read_text() == f"0 {one.path} {one.path}\n"
    said = shell.resil("ckpt", "verify", "--with", "./load.sh 3")
    assert said.code == 1 and "./load.sh ended with code 3" in said.out and "resil ckpt quarantine" in said.out
    truncate(one)
    (shell.directory / "seen").unlink()
    assert shell.resil("ckpt", "verify", "--with", "./load.sh 0").code == 1
    assert not (shell.directory / "seen").exists(), "a damaged one is not loaded"
    assert shell.resil("ckpt", "verify", "--with", "no-such-program").code == 2
    assert shell.resil("ckpt", "verify", "--with", "'open").code == 2


# ---- pin, quarantine, prune -----------------------------------------------------------------------------------


def test_one_that_was_set_aside_comes_back(shell: Shell, store: StoreDirectory) -> None:
    first, second = saved(store, 100, 200)
    said = shell.resil("ckpt", "quarantine", "200", "--why", "the loss explodes")
    assert said.code == 0 and ".bad" in said.out and shell.resil("ckpt", "latest").out == f"{first.path}\n"
    assert "the loss explodes" in shell.resil("ckpt", "show", second.name).out
    assert shell.resil("ckpt", "show", second.name, "--json").json["set_aside"]["why"] == "the loss explodes"
    assert shell.resil("ckpt", "restore", f"checkpoints/.bad/{second.name}").code == 0
    assert shell.resil("ckpt", "latest").out == f"{second.path}\n"
    assert shell.resil("ckpt", "restore", "200").code == 1


def pruning(shell: Shell, more: str = "latest = 2\n") -> None:
    shell.settings(SETTINGS + TABLE + more)


def test_one_that_was_set_aside_is_named_by_its_step_and_the_one_in_its_place_comes_first(
    shell: Shell, store: StoreDirectory
) -> None:
    saved(store, 100, 200)
    shell.resil("ckpt", "quarantine", "200", "--why", "the loss explodes")
    assert "the loss explodes" in shell.resil("ckpt", "show", "200").out
    (again,) = saved(store, 200)
    for name in ("200", again.name, str(again.path)):
        assert "the loss explodes" not in shell.resil("ckpt", "show", name).out
    assert "the loss explodes" in shell.resil("ckpt", "show", f"{store.path}/.bad/{again.name}").out
    said = shell.resil("ckpt", "restore", "200")
    assert said.code == 1 and "exists" in said.err and "quarantine" in said.err
    shell.resil("ckpt", "quarantine", "200", "--why", "worse")
    assert shell.resil("ckpt", "restore", "200").code == 0 and "worse" not in shell.resil("ckpt", "list").out


def test_one_of_a_framework_is_taken_back_by_its_step(shell: Shell) -> None:
    shell.settings(SETTINGS + TABLE + 'pattern = "checkpoint-{step}"\nmanage = true\n')
    (shell.directory / "checkpoints").mkdir()
    (shell.directory / "checkpoints" / "checkpoint-400").write_bytes(b"x")
    os.utime(shell.directory / "checkpoints" / "checkpoint-400", (1e9, 1e9))
    for words in (("adopt", "checkpoint-400"), ("quarantine", "400"), ("show", "400"), ("restore", "400")):
        assert shell.resil("ckpt", *words).code == 0, words
    assert shell.resil("ckpt", "latest").out.endswith("/checkpoint-400\n")


def test_prune_deletes_what_no_rule_keeps_and_a_dry_run_says_so_first(shell: Shell, store: StoreDirectory) -> None:
    checkpoints = saved(store, 100, 200, 300, 400)
    shell.resil("ckpt", "pin", "100")
    assert "is no longer pinned" in shell.resil("ckpt", "unpin", "100").out
    shell.resil("ckpt", "pin", "100")
    said = shell.resil("ckpt", "prune", "--dry-run")
    assert said.code == 0 and "1 checkpoint would go" in said.out and store.checkpoints() == checkpoints
    report = shell.resil("ckpt", "prune", "--json").json
    assert [one["deleted"] for one in report["checkpoints"]] == [False, True, False, False]
    assert report["freed_bytes"] > 0 and report["failed"] == []
    assert [one.step for one in store.checkpoints()] == [100, 300, 400] and store.trash() == []


def test_prune_deletes_nothing_while_the_newest_are_damaged(shell: Shell, store: StoreDirectory) -> None:
    checkpoints = saved(store, 100, 200, 300)
    for one in checkpoints[1:]:
        flip(one)
    said = shell.resil("ckpt", "prune")
    assert said.code == 1 and "does not count as verified" in said.err and store.checkpoints() == checkpoints


def test_prune_needs_the_settings_of_that_directory(shell: Shell, store: StoreDirectory) -> None:
    other = StoreDirectory.create(shell.directory / "other", "")
    saved(other, 100, 200, 300)
    said = shell.resil("ckpt", "prune", "--store", "other")
    assert said.code == 2 and "no resil.toml here sets path" in said.err and len(other.checkpoints()) == 3
    assert shell.resil("ckpt", "prune", "--store", "checkpoints").code == 0


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [('best = { metric = "lose" }\nlatest = 1\n', 2, "no checkpoint has the metric 'lose'"),
     ("latest = 0\n", 2, "would keep no checkpoint"), ("latest = -1\n", 2, "out of range")],
)  # fmt: skip
def test_prune_with_settings_that_mean_nothing_loses_nothing(
    shell: Shell, store: StoreDirectory, settings: str, code: int, words: str
) -> None:
    checkpoints = saved(store, 100, 200, 300, 400)
    pruning(shell, settings)
    said = shell.resil("ckpt", "prune")
    assert said.code == code and words in said.err and store.checkpoints() == checkpoints


def test_the_checkpoints_of_another_run_are_not_pruned(shell: Shell, store: StoreDirectory) -> None:
    saved(store, 100, 200, 300)
    shell.settings(SETTINGS.replace('"gpt"', '"bert"') + TABLE)
    said = shell.resil("ckpt", "prune")
    assert said.code == 1 and "of the run gpt, not of bert" in said.err and len(store.checkpoints()) == 3


# ---- adopt ----------------------------------------------------------------------------------------------------


def framework(shell: Shell, step: int, *, age_s: float = 3600.0) -> Path:
    """A directory as a framework saves it: checkpoint-500/."""
    path = shell.directory / "checkpoints" / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.bin").write_bytes(b"weights" * 100)
    for one in (path, path / "model.bin"):
        os.utime(one, (time.time() - age_s,) * 2)
    return path


def test_adopt_new_seals_what_is_complete_and_waits_for_the_rest(shell: Shell) -> None:
    shell.settings(SETTINGS + TABLE + 'pattern = "checkpoint-{step}"\n')
    assert shell.resil("ckpt", "adopt", "--new").code == 0, "no directory yet"
    old, young = framework(shell, 500), framework(shell, 600, age_s=1)
    said = shell.resil("ckpt", "latest")
    assert said.code == 4 and "without a seal" in said.err, "a fresh start would lose them"
    said = shell.resil("ckpt", "adopt", "--new")
    sealed, waits = said.out.splitlines()
    assert said.code == 0 and sealed.startswith("checkpoint-500 is sealed: step 500, 700 B in 1 file")
    assert waits.startswith("checkpoint-600 is not sealed") and "may still be written" in waits
    assert shell.resil("ckpt", "latest").out == f"{old}\n"
    assert "checkpoint-600" in shell.resil("ckpt", "list").out and young.exists()
    assert "checkpoint-600 is newer, and has no seal" in shell.resil("ckpt", "latest").err
    for one in old.iterdir():
        one.unlink()
    old.rmdir()
    shell.resil("ckpt", "adopt", "--new")
    assert not any((young.parent / ".resil" / SEALS).iterdir()), "its framework has deleted it"
    assert StoreDirectory.open(old.parent).run() == "gpt"


def test_adopt_by_hand_does_not_make_damage_good(shell: Shell) -> None:
    """A seal says what was there: a new one over what is left would say that this is all."""
    shell.settings(SETTINGS + TABLE + 'tracker = "latest"\n')
    folder = shell.directory / "checkpoints" / "global_step200"
    folder.mkdir(parents=True)
    for name in ("mp_rank_00_model_states.pt", "a.bin", "b.bin"):
        (folder / name).write_bytes(b"x" * 100)
    (folder.parent / "latest").write_text("global_step200")
    assert shell.resil("ckpt", "adopt", "--new").code == 0
    said = shell.resil("ckpt", "adopt", "global_step200")
    assert said.code == 0 and "has a seal" in said.out and "verify --deep" in said.out
    (folder / "b.bin").unlink()
    said = shell.resil("ckpt", "adopt", "global_step200")
    assert said.code == 1 and "1 of 3 files changed after it was sealed" in said.out and "seals" in said.out
    assert shell.resil("ckpt", "verify", "200").code == 1
    (seal,) = (folder.parent / OWN / SEALS).iterdir()
    seal.unlink()  # a person knows better
    assert shell.resil("ckpt", "adopt", "global_step200").code == 0
    assert shell.resil("ckpt", "verify", "200").code == 0


def test_adopt_one_by_hand_needs_a_step_and_a_pause(shell: Shell) -> None:
    shell.settings(SETTINGS + TABLE)
    path = framework(shell, 500)
    path.rename(path.with_name("best-2-of-7"))
    said = shell.resil("ckpt", "adopt", "checkpoints/best-2-of-7")
    assert said.code == 2 and "--step" in said.err
    assert shell.resil("ckpt", "adopt", "best-2-of-7", "--step", "500").code == 0
    framework(shell, 600, age_s=1)
    said = shell.resil("ckpt", "adopt", "checkpoint-600")
    assert said.code == 1 and "may still be written" in said.out
    said = shell.resil("ckpt", "adopt", "checkpoint-700")
    assert said.code == 2 and "there is no 'checkpoint-700'" in said.err


def test_two_runs_cannot_share_a_directory_by_sealing_into_it(shell: Shell, store: StoreDirectory) -> None:
    shell.settings(SETTINGS.replace('"gpt"', '"bert"') + TABLE + 'pattern = "checkpoint-{step}"\n')
    framework(shell, 500)
    said = shell.resil("ckpt", "adopt", "--new")
    assert said.code == 1 and "of the run gpt, not of bert" in said.err and not store.checkpoints()


def test_a_step_that_is_committed_already_may_be_sealed_as_well_and_both_stay(
    shell: Shell, store: StoreDirectory
) -> None:
    saved(store, 500)
    framework(shell, 500)
    assert shell.resil("ckpt", "adopt", "checkpoint-500").code == 0
    assert [one.name for one in store.checkpoints()] == ["step-00000500", "checkpoint-500"]


def test_adopt_new_is_silent_where_nothing_is_to_be_adopted(shell: Shell) -> None:
    said = shell.resil("ckpt", "adopt", "--new")
    assert (said.code, said.err) == (0, "") and "neither pattern nor tracker" in said.out
    assert shell.resil("ckpt", "adopt").code == 2


def test_what_a_framework_named_is_set_aside_only_with_manage(shell: Shell) -> None:
    shell.settings(SETTINGS + TABLE + 'pattern = "checkpoint-{step}"\n')
    path = framework(shell, 500)
    shell.resil("ckpt", "adopt", "--new")
    said = shell.resil("ckpt", "quarantine", "500")
    assert said.code == 2 and "manage = true" in said.err and path.exists()
    said = shell.resil("ckpt", "verify", "500", "--with", "false")
    assert said.code == 1 and "quarantine" not in said.out and "resil ckpt latest" in said.out
    shell.settings(SETTINGS + TABLE + 'pattern = "checkpoint-{step}"\nmanage = true\n')
    assert shell.resil("ckpt", "quarantine", "500").code == 0 and not path.exists()
    assert not any((path.parent / ".resil" / SEALS).iterdir())


# ---- completion -----------------------------------------------------------------------------------------------


def test_names_are_completed_the_newest_first_and_no_error_reaches_the_prompt(
    shell: Shell, store: StoreDirectory
) -> None:
    class Context:
        params: dict[str, object] = {}  # noqa: RUF012 - as click's

    saved(store, 100, 200)
    shell.resil("ckpt", "quarantine", "100")
    context: typer.Context = Context()  # type: ignore[assignment]
    assert complete_checkpoints(context, "step-") == [committed_name(200)]
    assert complete_bad(context, "") == [committed_name(100)]
    shell.settings("[torn")
    assert complete_checkpoints(context, "") == [] and shell.resil("ckpt", "--help").code == 0


def test_every_command_shows_an_example(shell: Shell) -> None:
    out = shell.resil("ckpt", "--help").out
    names = ("list", "show", "latest", "verify", "pin", "unpin", "quarantine", "restore", "prune", "adopt")
    for name in names:
        assert name in out and f"resil ckpt {name}" in " ".join(shell.resil("ckpt", name, "--help").out.split())
