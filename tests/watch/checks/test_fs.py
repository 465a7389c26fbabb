"""`resil watch fs` on real file systems: full, filling, read-only, missing, hung, behind a quota."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from resilience.base.mounts import current_mounts, mount_of
from resilience.base.processes import descendants, is_waiting_in_kernel
from resilience.checkpoints.directory import StoreDirectory
from resilience.finding import Finding, Verdict
from resilience.watch.checks._filesystem import probe
from resilience.watch.checks._filesystem.probe import PlaceState, state_of
from resilience.watch.watch import watch
from resilience.watch.watchdogs import load_watchdog
from tests.checkpoints.trees import commit_tree
from tests.lab.disks import fill, make_read_only
from tests.lab.fakes import FakeClock
from tests.lab.hung import hung_directory
from tests.watch.checks.filesystem.watching import Watching, a_program, a_project, bound, mounted
from tests.watch.checks.outcome import outcome

MIB = 2**20
FIGURES = {"used_regex": "used ([0-9]+)", "limit_regex": "of ([0-9]+)"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 4 MiB."""
    with mounted(tmp_path / "disk", "size=4m") as directory:
        yield directory


@pytest.fixture
def fs(tmp_path: Path) -> Watching:
    return Watching(tmp_path)


def ballast(disk: Path, mib: float) -> None:
    (disk / "ballast").write_bytes(bytes(int(mib * MIB)))


def test_an_empty_disk_is_ok_with_figures_for_graphs(fs: Watching, disk: Path) -> None:
    found = fs.expect("OK", disk)
    assert found.subject == f"login1:{disk}"
    (figure,) = found.figures
    assert (figure.label, figure.unit, figure.minimum, figure.maximum) == ("used", "B", 0, 4 * MIB)
    assert figure.warn == int(0.85 * 4 * MIB) and figure.crit == int(0.95 * 4 * MIB)


def test_a_completely_full_disk_is_critical_whatever_the_percentages(fs: Watching, disk: Path) -> None:
    fill(disk)
    found = fs.expect("CRITICAL space", disk, "100% of 4.0 MiB used, 0 B free (statvfs, just now); it is full")
    assert "--top" in found.advice
    fs.expect("CRITICAL space", disk, crit_percent="100%")
    fs.expect("CRITICAL space", disk, warn_free_bytes="64KiB")


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({"warn_percent": "75%"}, Verdict.OK),  # exactly at the threshold
        ({"warn_percent": "74%"}, Verdict.WARNING),
        ({"warn_percent": "50%", "crit_percent": "74%"}, Verdict.CRITICAL),
        ({"warn_free_bytes": "1MiB"}, Verdict.OK),
        ({"warn_free_bytes": "1.1MiB"}, Verdict.WARNING),
        ({"warn_free_bytes": "3MiB", "crit_free_bytes": "2MiB"}, Verdict.CRITICAL),
        ({"warn_percent": "90%", "warn_free_bytes": "2MiB"}, Verdict.WARNING),  # any that is crossed counts
        ({"warn_percent": "70%", "warn_free_bytes": "64KiB"}, Verdict.WARNING),
        ({"usable_percent": "80%"}, Verdict.WARNING),  # 3 of 3.2 MiB
        ({"usable_percent": "75%"}, Verdict.CRITICAL),
        ({}, Verdict.OK),
    ],
)
def test_three_quarters_full_is_judged_by_the_requested_thresholds(
    fs: Watching, disk: Path, settings: dict[str, str], verdict: Verdict
) -> None:
    ballast(disk, 3)
    found = fs.finding(disk, **settings)
    assert found.verdict is verdict
    if settings == {"usable_percent": "80%"}:
        assert "93.7% of 3.2 MiB usable (80%) used" in found.summary


def test_space_reserved_for_root_is_not_free(tmp_path: Path, fs: Watching) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(8 * MIB)
    if shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin") is None:
        pytest.skip("mkfs.ext4 is not installed")
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-F", "-m", "40", "-O", "^has_journal", image], check=True)
    with mounted(tmp_path / "reserved", "loop", kind="ext4", source=str(image)) as directory:
        (figure,) = fs.finding(directory).figures
        df = subprocess.run(["df", "--output=avail", "-B1", directory], capture_output=True, text=True)
    assert figure.maximum is not None and figure.maximum - figure.value == int(df.stdout.split("\n")[1])


def test_a_read_only_bind_mount_is_detected(tmp_path: Path, fs: Watching, disk: Path) -> None:
    with bound(disk, tmp_path / "ro", "ro") as directory:
        fs.expect("WARNING read-only", directory)
        fs.expect("OK", directory, read_only=True)


def test_a_read_only_remount_is_critical_until_it_is_writable_again(fs: Watching, disk: Path) -> None:
    fs.expect("OK", disk)
    make_read_only(disk, True)
    for _ in range(2):
        fs.expect("CRITICAL read-only", disk, "it was writable before")
    make_read_only(disk, False)
    fs.expect("OK", disk)


def test_a_read_only_disk_fills_no_further(fs: Watching, disk: Path) -> None:
    fill(disk)
    make_read_only(disk, True)
    fs.expect("OK", disk, read_only=True)


def test_a_read_only_directory_above_the_project_is_no_matter_where_the_project_has_a_disk_of_its_own(
    disk: Path,
) -> None:
    with mounted(disk / "project", "size=1m"):
        fs = Watching(disk)
        fs.expect("OK", disk, read_only=False)
        make_read_only(disk, True)
        fs.expect("CRITICAL read-only", disk)  # it could be written before
        Watching(disk, host="n02").expect("WARNING read-only", disk)


def test_a_disk_below_the_project_that_cannot_be_written_is_critical_at_once(tmp_path: Path) -> None:
    with mounted(tmp_path / "project", "size=1m") as directory:
        fs = Watching(tmp_path)
        make_read_only(directory, True)
        found = fs.tick()
    assert list(map(outcome, found[f"login1:{directory}"])) == ["CRITICAL read-only"]


def test_a_missing_path_is_reported_with_its_existing_part(fs: Watching, disk: Path) -> None:
    words = f"the nearest existing parent is {disk}, on the file system mounted at {disk} (tmpfs)"
    fs.expect("CRITICAL missing", disk / "a" / "b", words)


def test_an_unmounted_file_system_is_missing_although_its_directory_exists(tmp_path: Path, fs: Watching) -> None:
    with mounted(tmp_path / "disk", "size=1m") as directory:
        before = fs.finding(directory)
    for _ in range(2):
        found = fs.expect(
            "CRITICAL missing", directory, "its file system is not mounted any more", f"earlier at {directory}"
        )
        assert found.subject == before.subject
    with mounted(tmp_path / "disk", "size=1m"):
        fs.expect("OK", directory)


def test_a_file_system_that_disappears_is_missing_under_its_name(tmp_path: Path) -> None:
    fs = Watching(tmp_path, environ={"SCRATCH": str(tmp_path / "disk")})

    def scratch() -> str:
        return outcome(fs.tick()[f"login1:{tmp_path}/disk"][0])

    with mounted(tmp_path / "disk", "size=1m") as directory:
        assert scratch() == "OK"
    assert [scratch(), scratch()] == ["CRITICAL missing"] * 2
    directory.rmdir()
    assert scratch() == "CRITICAL missing"
    with mounted(tmp_path / "disk", "size=1m"):
        assert scratch() == "OK"


def test_a_path_moved_permanently_is_accepted_after_a_week(tmp_path: Path, fs: Watching) -> None:
    with mounted(tmp_path / "disk", "size=1m") as directory:
        fs.finding(directory)
    fs.clock.time += 6 * 86400
    assert fs.finding(directory).fault == "missing"
    fs.clock.time += 2 * 86400
    assert fs.finding(directory).fault != "missing"


def test_dangling_links_and_link_loops_are_reported(tmp_path: Path, fs: Watching) -> None:
    for name, target in (("scratch", "/nowhere/at/all"), ("a", "b"), ("b", "a")):
        (tmp_path / name).symlink_to(target)
    link = tmp_path / "scratch"
    fs.expect("CRITICAL dangling", link, f"{link} is a dangling symbolic link to /nowhere/at/all")
    assert "too many levels" in fs.finding(tmp_path / "a").summary


def test_a_file_is_probed_as_its_file_system(fs: Watching, disk: Path) -> None:
    (disk / "log").write_text("x")
    fs.expect("OK", disk / "log", "of 4.0 MiB used", "the file system of this file")
    fs.expect("CRITICAL missing", disk / "log" / "deeper", "is a file, not a directory")


def test_an_inaccessible_directory_is_unknown(tmp_path: Path, fs: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).endswith("closed/inside"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)  # root, who runs these tests in CI, may enter everything
    fs.expect("UNKNOWN unreadable", tmp_path / "closed" / "inside")


@pytest.mark.parametrize(
    ("number", "words"), [(116, "stale file handle"), (107, "has exited"), (5, "input/output error")]
)
def test_a_dead_server_is_critical(
    tmp_path: Path, fs: Watching, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def statvfs(path: object) -> object:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    fs.expect("CRITICAL stale", tmp_path, words)


def test_a_file_system_without_a_size_is_unknown(fs: Watching) -> None:
    fs.expect("UNKNOWN no-size", "/proc")


def test_a_hung_fuse_mount_is_unknown_at_the_deadline_and_hides_nothing(tmp_path: Path, disk: Path) -> None:
    fs = Watching(tmp_path, settings="[watch]\ndeadline_s = 1.0\n")
    with hung_directory(tmp_path / "hung") as hung:
        began = time.monotonic()
        found = fs.tick(hung / "x", disk)
        assert time.monotonic() - began < 15
        assert found[f"login1:{disk}"][0].verdict is Verdict.OK
        assert list(map(outcome, found[str(hung / "x")])) == ["UNKNOWN stuck"]


def test_a_disk_that_was_repaired_and_is_full_is_not_hidden_by_the_probe_that_hung(tmp_path: Path) -> None:
    fs = Watching(tmp_path, settings="[watch]\ndeadline_s = 0.5\n")
    libc = ctypes.CDLL(None)
    with hung_directory(tmp_path / "hung") as hung:
        for _ in range(2):
            assert list(map(outcome, fs.tick(hung)[str(hung)])) == ["UNKNOWN stuck"]
        libc.umount2(bytes(hung), 2)  # umount -l; the server stays silent, and the first probe waits for it
        try:
            assert libc.mount(b"none", bytes(hung), b"tmpfs", 0, b"size=1m") == 0
            (hung / "ballast").write_bytes(b"1" * 2**20)
            assert [outcome(found) for one in fs.tick(hung).values() for found in one] == ["CRITICAL space"]
        finally:
            libc.umount2(bytes(hung), 2)


def test_with_no_configuration_each_place_that_a_training_needs_is_probed_once(tmp_path: Path, disk: Path) -> None:
    scratch, link = disk / "alice", tmp_path / "work"
    scratch.mkdir()
    link.symlink_to(disk)
    environ = {"SCRATCH": str(scratch), "WORK": str(link), "STORE": str(tmp_path / "none"), "DATA": "relative"}
    found = Watching(tmp_path, environ=environ).tick()
    assert "$SCRATCH, $WORK" in found[f"login1:{disk}"][0].summary
    assert found[f"login1:{tmp_path / 'none'}"][0].verdict is Verdict.WARNING  # $STORE is not on this node
    roles = " ".join(f.summary for findings in found.values() for f in findings)
    assert all(role in roles for role in ("project directory", "home", "/dev/shm", "/tmp"))
    assert len(found) == len({f.subject for findings in found.values() for f in findings})


def test_a_link_that_leads_to_another_disk_is_followed_while_the_first_is_there(fs: Watching, disk: Path) -> None:
    link = fs.directory / "link"
    with mounted(fs.directory / "other", "size=8m") as other:
        for target, size in ((disk, "4.0 MiB"), (other, "8.0 MiB")):
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            fs.expect("OK", link, size)


def test_two_nodes_disks_of_the_same_name_are_two(tmp_path: Path, disk: Path) -> None:
    names = {Watching(tmp_path, host=host).finding(disk).subject for host in ("n01", "n02")}
    assert names == {f"n01:{disk}", f"n02:{disk}"}


def test_home_variables_and_relative_paths_are_expanded(tmp_path: Path) -> None:
    (tmp_path / "project" / "data").mkdir(parents=True)
    fs = Watching(tmp_path, environ={"SCRATCH": str(tmp_path)})
    found = fs.tick("~", "data", "$SCRATCH/project", "${SCRATCH}", tmp_path)
    assert set(found) == {f"login1:{tmp_path}{end}" for end in ("/home", "/project/data", "/project", "")}


@pytest.mark.parametrize(
    ("path", "words"),
    [("", "is empty"), ("  ", "is empty"), ("a\0b", "a control character"), ("$NOWHERE/x", "$NOWHERE is not set"),
     ("~nobody-of-that-name/x", "unknown user 'nobody-of-that-name'")],
)  # fmt: skip
def test_an_invalid_path_is_rejected(fs: Watching, path: str, words: str) -> None:
    assert words in fs.refused(paths=(path,))


def test_an_invalid_path_does_not_hide_the_others(fs: Watching, disk: Path) -> None:
    found = fs.tick("$NOWHERE/x", disk)
    assert [finding.verdict for finding in found[f"login1:{disk}"]] == [Verdict.OK]
    (invalid,) = found["$NOWHERE/x"]
    assert invalid.verdict is Verdict.UNKNOWN and "$NOWHERE is not set" in invalid.summary
    assert invalid.fault == "settings" and "write the full path" in invalid.advice


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"warn_percent": "120%"}, "warn_percent = '120%'"),
        ({"warn_percent": "0.85"}, "write 85%"),
        ({"warn_percent": "96", "crit_percent": "90"}, "warn_percent = 96 is above crit_percent = 90"),
        ({"warn_free_bytes": "100"}, 'is the unit missing?; for example "100GiB"'),
        ({"warn_free_bytes": "10%"}, "'10%' is not a size"),
        ({"warn_free_bytes": "-5GiB"}, "warn_free_bytes = '-5GiB'"),
        ({"warn_free_bytes": "1GiB", "crit_free_bytes": "2GiB"}, "warn_free_bytes = 1.0 GiB is less than"),
        ({"warn_runway_s": "1h", "crit_runway_s": "2h"}, "warn_runway_s = 1 h is shorter than"),
        ({"warn_runway_s": "-1h"}, "warn_runway_s"),
        ({"usable_percent": "0"}, "usable_percent = 0"),
        ({"checkpoint_bytes": "2300"}, "checkpoint_bytes = 2300"),
        ({"used_regex": "("}, "used_regex is set without command"),
        ({"command": ("q",), "used_regex": "(", "limit_regex": "(x)"}, "used_regex = '(' is not a regular expression"),
        ({"du": True}, "set du_limit_bytes"),
        ({"du": True, "du_limit_bytes": "2TiB"}, "needs a directory in paths"),
        ({"du_limit_bytes": "2TiB"}, "is set without du = true"),
        ({"purge_days": -3.0}, "purge_days = -3 in [watch.fs]"),
        ({"purge_days": float("nan")}, "must be a number"),
        (
            {"du": True, "du_limit_bytes": "2TiB", "command": ("q",), "percent_regex": "(x)"},
            "du and command are both set",
        ),
    ],
)
def test_invalid_settings_are_rejected_with_the_name_of_the_key(
    fs: Watching, settings: dict[str, object], words: str
) -> None:
    assert words in fs.refused(**settings)


def test_a_single_threshold_may_exceed_the_others_default(fs: Watching, disk: Path) -> None:
    ballast(disk, 3.9)  # 97.5 %
    fs.expect("WARNING space", disk, warn_percent="97")
    fs.expect("CRITICAL space", disk, crit_percent="60")


def test_a_sites_own_quota_command_is_queried_first_and_named(fs: Watching, disk: Path) -> None:
    program = a_program(fs.directory, "idrquota", 'echo "$1 of $2: 4.6 TiB / 5 TiB"')
    figures = {"used_regex": r": ([\d.]+ \w+) /", "limit_regex": r"/ (.+)$"}
    words = f"92% of 5.0 TiB used, 410 GiB free (`{program} {{path}} {{user}}`, read just now)"
    found = fs.expect("WARNING space", disk, words, command=(program, "{path}", "{user}"), **figures)
    assert {figure.label for figure in found.figures} == {"used", "used quota"}  # the disk itself is judged as well


def test_the_age_of_a_sites_figures_is_reported(fs: Watching, disk: Path) -> None:
    program = a_program(fs.directory, "q", "echo 50%")
    found = fs.finding(disk, command=(program,), percent_regex="([0-9]+)%", command_max_age_s="30m")
    assert "50% used" in found.summary and "30 min old" in found.summary


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 0", "no output"),
        ("echo nonsense", "finds no usage"),
        ("echo 'no such project' >&2; exit 3", "exit code 3: no such project"),
        ("sleep 30", "did not end within"),
        ("yes x | head -c 20000000; exit 1", "exit code 1"),
    ],
)
def test_a_site_command_that_fails_is_unknown_and_the_disk_is_judged_without_it(
    tmp_path: Path, disk: Path, body: str, words: str
) -> None:
    fs = Watching(tmp_path, settings="[watch]\ndeadline_s = 1.5\n")
    found = fs.expect("UNKNOWN silent", disk, words, command=(a_program(tmp_path, "q", body),), **FIGURES)
    assert any("(statvfs, just now)" in line for line in found.looked)


def test_a_missing_site_command_is_unknown_and_hides_no_full_disk(fs: Watching, disk: Path) -> None:
    ballast(disk, 3.9)
    full, unknown = fs.tick(disk, command=("/nowhere/q",), percent_regex="(.)")[f"login1:{disk}"]
    assert outcome(full) == "CRITICAL space"
    assert unknown.verdict is Verdict.UNKNOWN and "cannot run /nowhere/q" in unknown.summary


def test_growth_is_kept_over_a_tick_without_a_response_of_its_source(fs: Watching, disk: Path) -> None:
    counter, silent = fs.directory / "counter", fs.directory / "silent"
    program = a_program(fs.directory, "q", f"[ -e {silent} ] || echo used $(cat {counter}) of 1000")
    for tick in range(20):
        counter.write_text(str(100 + 20 * tick))
        silent.touch() if tick == 12 else silent.unlink(missing_ok=True)
        last = fs.tick(disk, command=(program,), **FIGURES)[f"login1:{disk}"]
        fs.clock.time += 600
        assert any(finding.fault == "silent" for finding in last) is (tick == 12)
    assert list(map(outcome, last)) == ["CRITICAL runway"]
    assert any("measured over 3 hours" in line for line in last[0].looked)


def test_du_runs_if_configured_and_its_total_is_kept(fs: Watching, disk: Path) -> None:
    mine, settings = disk / "mine", {"du": True, "du_limit_bytes": "1MiB"}
    mine.mkdir()
    (mine / "a").write_bytes(bytes(900 * 1024))
    found = fs.finding(mine, **settings)
    assert found.verdict is Verdict.WARNING and re.search(r"87.8% of 1.0 MiB used, .*\(du, just now\)", found.summary)
    (mine / "a").unlink()
    fs.clock.time += 3600
    assert "(du, 1 h old)" in fs.finding(mine, **settings).summary
    fs.clock.time += 6 * 3600
    fs.expect("OK", mine, **settings)


def test_remembered_growth_yields_the_time_until_the_disk_is_full(tmp_path: Path, fs: Watching) -> None:
    with mounted(tmp_path / "disk", "size=64m") as directory, (directory / "log").open("wb", buffering=0) as file:
        for tick in range(24):  # 1 MiB every ten minutes
            file.write(bytes(MIB))
            last = fs.finding(directory)
            fs.clock.time += 600
            assert tick > 8 or last.verdict is Verdict.OK
    assert (outcome(last), last.summary) == ("CRITICAL runway", "7 hours left at 144 MiB a day: 40.0 MiB free")


def test_the_next_checkpoint_that_does_not_fit_is_critical(tmp_path: Path, disk: Path) -> None:
    fs = Watching(tmp_path, clock=FakeClock(time=time.time() + 3600))
    for step, size in ((100, 1.2), (200, 1.3)):
        (disk / "ckpts" / f"step{step}").mkdir(parents=True)
        (disk / "ckpts" / f"step{step}" / "weights").write_bytes(bytes(int(size * MIB)))
    settings = {"checkpoints": str(disk / "ckpts"), "warn_percent": "100"}
    fs.expect("OK", disk, **settings)
    ballast(disk, 0.5)
    found = fs.expect("CRITICAL checkpoint", disk, **settings)
    assert found.summary == "the next checkpoint does not fit: it takes 1.3 MiB, and 1020 KiB is free"


def test_the_directory_of_the_settings_is_watched_and_its_manifests_tell_the_size(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "weights").write_bytes(bytes(int(1.3 * MIB)))
    commit_tree(StoreDirectory.create(disk / "gpt", "gpt"), 100, tmp_path / "tree")
    fs = Watching(tmp_path, settings=f'[checkpoints]\npath = "{disk}/{{run}}"\n')

    def of_the_disk() -> Finding:
        (found,) = (one for name, (one, *_) in fs.tick(warn_percent="100").items() if name.endswith(str(disk)))
        return found

    assert outcome(of_the_disk()) == "OK" and "; checkpoints" in of_the_disk().summary
    ballast(disk, 1.8)
    assert outcome(of_the_disk()) == "CRITICAL checkpoint" and "it takes 1.3 MiB" in of_the_disk().summary


def test_future_checkpoints_are_counted_with_size_and_interval_of_the_settings(fs: Watching, disk: Path) -> None:
    settings = {"checkpoints": str(disk), "checkpoint_bytes": "1MiB", "checkpoint_every_s": "3h", "warn_percent": "100"}
    found = fs.expect("WARNING checkpoint", disk, **settings)
    assert found.summary == "room for 4 more checkpoints of 1.0 MiB, one every 3 h: 12 hours at 8.0 MiB a day"


def test_checkpoints_on_another_disk_do_not_count(fs: Watching, disk: Path) -> None:
    elsewhere = fs.directory / "elsewhere"
    elsewhere.mkdir()
    fs.expect("OK", disk, checkpoints=str(elsewhere), checkpoint_bytes="1GiB", checkpoint_every_s="3h")


def test_checkpoints_are_learned_from_the_project_and_its_journal_without_any_settings(tmp_path: Path) -> None:
    now = time.time()
    with mounted(tmp_path / "project", "size=16m") as directory:
        fs, journal = Watching(tmp_path, clock=FakeClock(time=now)), directory / ".resil" / "gpt" / "journal"
        journal.mkdir(parents=True)

        def write_journal(job: int, saves: list[dict[str, object]]) -> None:
            (journal / f"{job}.0.jsonl").write_text("".join(json.dumps(save) + "\n" for save in reversed(saves)))

        saves = [{"event": "save", "time": now - 3600 * n, "rank": 0, "step": 100 - n} for n in range(1, 4)]
        write_journal(17, saves)
        for number in range(1, 4):
            checkpoint = directory / "checkpoints" / f"step{100 - number}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "weights").write_bytes(bytes(2 * MIB))
            os.utime(checkpoint, (now - 3600 * number,) * 2)
        (found,) = fs.tick()[f"login1:{directory}"]
        assert outcome(found) == "CRITICAL checkpoint"
        assert found.summary == "room for 4 more checkpoints of 2.0 MiB, one every 1 h: 5 hours at 48.0 MiB a day"
        assert any("from the run's journal" in line for line in found.looked)
        # older ones were saved and removed
        write_journal(16, [{**saves[0], "time": now - 3600 * n} for n in range(4, 12)])
        assert fs.tick()[f"login1:{directory}"][0].verdict is Verdict.OK


def test_a_directory_that_reports_a_size_of_its_own_is_a_subject_of_its_own(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a project quota of XFS, a tree quota of a filer or a CephFS quota does.
    lab = disk / "lab"
    lab.mkdir()
    real = os.statvfs

    def statvfs(path: Any) -> os.statvfs_result:
        values = list(real(path))
        if str(path).startswith(str(lab)):
            values[2:5] = [100, 10, 10]
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr("resilience.base.mounts.NODE_LOCAL_TYPES", frozenset({"ext4", "overlay"}))
    found = Watching(tmp_path, environ={"SCRATCH": str(disk), "PROJECT": str(lab)}).tick()
    assert found[str(disk)][0].verdict is Verdict.OK
    assert found[str(lab)][0].verdict is Verdict.WARNING and "$PROJECT" in found[str(lab)][0].summary


def test_a_pattern_that_backtracks_for_ever_is_stopped_and_delays_no_other_source(tmp_path: Path, disk: Path) -> None:
    program = a_program(tmp_path, "q", "echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab")
    text = f'''[watch]
deadline_s = 1.0
[watch.bad]
kind = "fs"
paths = ["{disk}"]
command = ["{program}"]
percent_regex = "((a+)+)$"
'''
    project = a_project(tmp_path, text)
    began = time.monotonic()
    both = [load_watchdog(project, "bad"), load_watchdog(project, "fs", {"paths": [str(disk)]})]
    bad, good = sorted(watch(project, both), key=lambda report: report.check)
    assert time.monotonic() - began < 30
    assert (bad.verdict, good.verdict) == (Verdict.UNKNOWN, Verdict.OK)


def test_two_watchdogs_of_one_kind_have_separate_readings(tmp_path: Path, disk: Path) -> None:
    tables = "".join(
        f'[watch.{n}]\nkind = "fs"\npaths = ["{disk}"]\nwarn_percent = {p}\n' for n, p in (("a", 10), ("b", 90))
    )
    project = a_project(tmp_path, tables)
    ballast(disk, 2)
    one, other = watch(project, [load_watchdog(project, "a"), load_watchdog(project, "b")])
    assert (one.verdict, other.verdict) == (Verdict.WARNING, Verdict.OK)
    assert {path.name for path in memories(tmp_path)} == {"a.json", "b.json"}


def memories(directory: Path) -> list[Path]:
    """Return the readings files of a project's watchdogs."""
    return list((directory / "project" / ".resil" / ".watch").glob("*.json"))


def test_files_that_will_be_purged_are_reported(tmp_path: Path, disk: Path) -> None:
    now = time.time()
    for name, days in (("old", 25), ("older", 31), ("new", 1)):
        (disk / name).write_bytes(bytes(4096))
        os.utime(disk / name, (now - days * 86400,) * 2)
    fs = Watching(tmp_path, clock=FakeClock(time=now))
    found = fs.expect("WARNING purge", disk, "2 files", "within 7 d (some are due now)", purge_days="30")
    assert found.evidence == (str(disk / "older"),)
    (disk / "new").unlink()
    fs.expect("CRITICAL purge", disk, "including the newest", purge_days="30")
    fs.expect("OK", disk)


@pytest.mark.parametrize("field", ["history", "mounts", "du", "looked"])
@pytest.mark.parametrize("value", ["7", "[7, null, {}]", '{"a": [1, 2, 3, 4]}', '{"time": "x"}'])
def test_readings_edited_by_hand_do_no_harm(fs: Watching, disk: Path, field: str, value: str) -> None:
    fs.finding(disk)
    (memory,) = memories(fs.directory)
    text = memory.read_text()
    edited = re.sub(rf'"{field}": ?(\{{.*?\}}|\[.*?\]|true|"[^"]*")(?=,"|\}}\])', f'"{field}":{value}', text, count=1)
    assert edited != text
    memory.write_text(edited)
    fs.expect("OK", disk)


def test_each_probe_is_explained(fs: Watching, disk: Path) -> None:
    text = "\n".join(fs.finding(disk).looked)
    assert f"{disk} is on tmpfs (tmpfs), mounted at {disk}" in text
    assert "warning above 85%; critical above 95%" in text
    assert "statvfs" in text


def test_a_tick_costs_little_memory(fs: Watching, disk: Path) -> None:
    for _ in range(5):
        fs.tick(disk)
        fs.clock.time += 300
    assert sum(path.stat().st_size for path in (fs.directory / "project" / ".resil" / ".watch").glob("*")) < 20_000


def test_a_path_is_probed_once_for_both_amounts_also_when_it_hangs(tmp_path: Path, disk: Path) -> None:
    with hung_directory(tmp_path / "hung") as hung:
        settings = f'[watch]\ndeadline_s = 0.5\n[watch.fs]\npaths = ["{hung}", "{disk}"]\n'
        project = a_project(tmp_path, settings + f'[watch.inodes]\npaths = ["{disk}", "{hung}"]\n')
        waiting = blocked_children()
        both = [load_watchdog(project, name) for name in ("fs", "inodes")]
        for _ in range(2):
            reports = {report.check: report for report in watch(project, both)}
            for name in ("fs", "inodes"):
                verdicts = {finding.subject: finding.verdict for finding in reports[name].findings}
                assert verdicts == {str(hung): Verdict.UNKNOWN, f"login1:{disk}": Verdict.OK}
        expect_one_blocked(waiting)
        (report,) = watch(project, both[1:])  # alone, later
        assert "STUCK since" in next(f.summary for f in report.findings if f.verdict is Verdict.UNKNOWN)
        expect_one_blocked(waiting)


def expect_one_blocked(before: set[int]) -> None:
    """One child still waits for the file system that hangs; others may wait for a disk for a moment."""
    limit = time.monotonic() + 20.0
    while len(blocked_children() - before) != 1:
        assert time.monotonic() < limit, f"{blocked_children()} wait, {before} before"
        time.sleep(0.05)


def blocked_children() -> set[int]:
    return {pid for pid in descendants(os.getpid()) if is_waiting_in_kernel(pid)}


def test_a_path_is_read_and_a_quota_tool_runs_once_for_both_amounts(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log_and_read(path: str) -> PlaceState:  # in the child
        with (tmp_path / "paths").open("a") as file:
            file.write(f"{path}\n")
        return state_of(path)

    monkeypatch.setattr(probe, "state_of", log_and_read)
    tools = tmp_path / "bin"
    tools.mkdir()
    a_program(tools, "quota", f"echo called >> {tmp_path}/calls; exit 1")
    a_program(tools, "xfs_quota", "exit 1")
    project = a_project(tmp_path, f'[watch.fs]\npaths = ["{tmp_path}"]\n[watch.inodes]\npaths = ["{tmp_path}"]\n',
                        environ={"PATH": f"{tools}:/usr/bin:/bin"})  # fmt: skip
    for names in (("fs", "inodes"), ("inodes", "fs")):
        for name in ("calls", "paths"):
            (tmp_path / name).unlink(missing_ok=True)
        reports = list(watch(project, [load_watchdog(project, name) for name in names]))
        assert {report.check for report in reports} == {"fs", "inodes"}
        assert (tmp_path / "paths").read_text() == f"{tmp_path}\n"
        mount = mount_of(str(tmp_path), current_mounts())
        if mount is None or mount.type not in ("ext4", "xfs", "btrfs"):
            pytest.skip("the temporary directory is on a file system without quotas")
        assert (tmp_path / "calls").read_text() == "called\n"
        for report in reports:
            assert any("quota: no quota here" in line for line in report.findings[0].looked), report


def used_by_the_training(fs: Watching, text: str, uses: Sequence[Path] = ()) -> None:
    """Write the records of a run: its batch script, and the start of its guard."""
    run = fs.project.loaded.state_dir / "gpt"
    for name in ("scripts", "journal"):
        (run / name).mkdir(parents=True, exist_ok=True)
    (run / "scripts" / "one").write_text(text)
    intent = {"event": "intent", "token": "t", "script": str(run / "scripts" / "one"), "argv": [], "time": 1.0}
    (run / "submissions.jsonl").write_text(json.dumps(intent) + "\n")
    start = {"event": "start", "rank": 0, "uses": [str(path) for path in uses]}
    (run / "journal" / "7.0.jsonl").write_text(json.dumps(start) + "\n")


def test_the_data_and_the_environment_of_the_training_are_watched_without_being_named(tmp_path: Path) -> None:
    fs = Watching(tmp_path, settings="[watch]\ndeadline_s = 1.0\n", environ={"DATASETS": f"{tmp_path}/data"})
    with mounted(tmp_path / "data", "size=1m") as data, mounted(tmp_path / "env", "size=1m") as env:
        (data / "c4").mkdir()
        ballast(data, 0.999)  # a full file system is no fault of one that is only read
        (tmp_path / "link").symlink_to("/no/such/target")
        words = f"--data=$DATASETS/c4 --none /no/such/path {tmp_path}/link/x /dev/shm/no/such"
        script = f"#!/bin/bash\nresil_command='python train.py {words}'\n"
        used_by_the_training(fs, script, [env, Path("/usr")])
        found = fs.tick()
        for directory in (data, env):
            (finding,) = found[f"login1:{directory}"]
            assert outcome(finding) == "OK" and finding.summary.endswith("; used by the training")
        assert not any("/no/such" in subject or "/usr" in subject or "link" in subject for subject in found)
        subprocess.run(["umount", "-l", env], check=True)
        (lost,) = fs.tick()[f"login1:{env}"]
        assert outcome(lost) == "CRITICAL missing" and "is not mounted any more" in lost.summary


def test_data_on_a_hung_file_system_is_stuck_and_not_named_twice(tmp_path: Path) -> None:
    fs = Watching(tmp_path, settings="[watch]\ndeadline_s = 3\n")
    with hung_directory(tmp_path / "data") as data:
        used_by_the_training(fs, f"python {data}/train.py --data {data}/c4 --val {data}/val\n")
        found = fs.tick()
        assert [outcome(finding) for finding in found[str(data)]] == ["UNKNOWN stuck"]


def test_a_full_image_that_the_user_names_is_no_fault(fs: Watching, tmp_path: Path) -> None:
    image = tmp_path / "image.sqsh"
    if shutil.which("mksquashfs") is None:
        pytest.skip("needs mksquashfs")
    (tmp_path / "content").mkdir()
    (tmp_path / "content" / "a").write_text("a" * 5000)
    subprocess.run(["mksquashfs", tmp_path / "content", image, "-quiet"], check=True, capture_output=True)
    with mounted(tmp_path / "apps", "loop,ro", kind="squashfs", source=str(image)) as directory:
        for kind in ("fs", "inodes"):
            (found,) = Watching(tmp_path, kind).tick(directory).values()
            assert [outcome(finding) for finding in found] == ["OK"]
