"""`resil watch fs` on real file systems: full, filling, read-only, missing, hung, behind a quota."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from resilience.finding import Verdict
from resilience.watch.watch import watch
from resilience.watch.watchdogs import load_watchdog
from tests.fakes import FakeClock
from tests.guard.disks import fill, make_read_only
from tests.system.hung import hung_folder
from tests.watch.checks.filesystem.watching import a_project, a_tick, bound, mounted, refused, report_of, the_finding

MIB = 2**20


@pytest.fixture
def disk(tmp_path: Path) -> object:
    """A tmpfs of 4 MiB."""
    with mounted(tmp_path / "disk", "size=4m") as folder:
        yield folder


def a_program(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_an_empty_disk_is_ok_with_figures_for_graphs(tmp_path: Path, disk: Path) -> None:
    found = the_finding(a_project(tmp_path), "fs", disk)
    assert (found.verdict, found.fault, found.subject) == (Verdict.OK, "", f"login1:{disk}")
    (figure,) = found.figures
    assert (figure.label, figure.unit, figure.minimum, figure.maximum) == ("used", "B", 0, 4 * MIB)
    assert figure.warn == int(0.85 * 4 * MIB) and figure.crit == int(0.95 * 4 * MIB)


def test_a_disk_that_is_full_to_the_brim_is_critical(tmp_path: Path, disk: Path) -> None:
    fill(disk)
    found = the_finding(a_project(tmp_path), "fs", disk)
    assert (found.verdict, found.fault) == (Verdict.CRITICAL, "space")
    assert "100% of 4.0 MiB used, 0 B free (statvfs, just now); it is full" in found.summary
    assert "--top" in found.advice


def test_full_is_critical_even_where_no_percentage_says_so(tmp_path: Path, disk: Path) -> None:
    fill(disk)
    assert the_finding(a_project(tmp_path), "fs", disk, crit_percent="100%").verdict is Verdict.CRITICAL
    assert the_finding(a_project(tmp_path), "fs", disk, warn_free_bytes="64KiB").verdict is Verdict.CRITICAL


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
def test_three_quarters_full_is_judged_by_what_was_asked_for(
    tmp_path: Path, disk: Path, settings: dict[str, str], verdict: Verdict
) -> None:
    (disk / "ballast").write_bytes(bytes(3 * MIB))
    assert the_finding(a_project(tmp_path), "fs", disk, **settings).verdict is verdict


def test_what_counts_as_usable_is_said(tmp_path: Path, disk: Path) -> None:
    (disk / "ballast").write_bytes(bytes(3 * MIB))
    found = the_finding(a_project(tmp_path), "fs", disk, usable_percent="80%")
    assert "93.7% of 3.2 MiB usable (80%) used" in found.summary


def test_what_root_keeps_for_itself_is_no_room(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(8 * MIB)
    if shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin") is None:
        pytest.skip("mkfs.ext4 is not installed")
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-F", "-m", "40", "-O", "^has_journal", image], check=True)
    with mounted(tmp_path / "reserved", "loop", kind="ext4", source=str(image)) as folder:
        found = the_finding(a_project(tmp_path), "fs", folder)
        (row,) = subprocess.run(["df", "--output=avail", "-B1", folder], capture_output=True, text=True).stdout.split(
            "\n"
        )[1:2]
    (figure,) = found.figures
    assert figure.maximum is not None and figure.maximum - figure.value == int(row)


def test_a_read_only_bind_mount_is_found(tmp_path: Path, disk: Path) -> None:
    with bound(disk, tmp_path / "ro", "ro") as folder:
        found = the_finding(a_project(tmp_path), "fs", folder)
        assert (found.verdict, found.fault) == (Verdict.WARNING, "read-only")
        assert the_finding(a_project(tmp_path), "fs", folder, read_only=True).verdict is Verdict.OK


def test_a_remount_of_what_could_be_written_is_critical_and_ends_with_it(tmp_path: Path, disk: Path) -> None:
    project = a_project(tmp_path)
    assert the_finding(project, "fs", disk).verdict is Verdict.OK
    make_read_only(disk, True)
    for _ in range(2):
        found = the_finding(project, "fs", disk)
        assert (found.verdict, found.fault) == (Verdict.CRITICAL, "read-only")
        assert "it could be written before" in found.summary
    make_read_only(disk, False)
    assert the_finding(project, "fs", disk).verdict is Verdict.OK


def test_a_read_only_disk_fills_no_further(tmp_path: Path, disk: Path) -> None:
    fill(disk)
    make_read_only(disk, True)
    assert the_finding(a_project(tmp_path), "fs", disk, read_only=True).verdict is Verdict.OK


def test_a_read_only_folder_above_the_project_is_no_matter_where_the_project_has_a_disk_of_its_own(
    tmp_path: Path, disk: Path
) -> None:
    with mounted(disk / "project", "size=1m"):
        project = a_project(disk)
        above = the_finding(project, "fs", disk, read_only=False)
        make_read_only(disk, True)
        assert the_finding(project, "fs", disk).verdict is Verdict.CRITICAL  # it could be written before
        other = a_project(disk, host="n02")
        assert the_finding(other, "fs", disk).verdict is Verdict.WARNING
    assert above.verdict is Verdict.OK


def test_a_disk_below_the_project_that_cannot_be_written_is_critical_at_once(tmp_path: Path) -> None:
    with mounted(tmp_path / "project", "size=1m"):
        project = a_project(tmp_path)
        make_read_only(tmp_path / "project", True)
        found = a_tick(project, "fs")
    assert [f.fault for f in found[f"login1:{tmp_path / 'project'}"]] == ["read-only"]


def test_a_path_that_does_not_exist_says_how_far_it_goes(tmp_path: Path, disk: Path) -> None:
    found = the_finding(a_project(tmp_path), "fs", disk / "a" / "b")
    assert (found.verdict, found.fault) == (Verdict.CRITICAL, "missing")
    assert f"the nearest folder above is {disk}, on the file system mounted at {disk} (tmpfs)" in found.summary


def test_a_file_system_that_is_gone_is_missing_though_its_folder_is_there(tmp_path: Path) -> None:
    project = a_project(tmp_path)
    with mounted(tmp_path / "disk", "size=1m") as folder:
        before = the_finding(project, "fs", folder)
    for _ in range(2):
        found = the_finding(project, "fs", folder)
        assert (found.verdict, found.fault, found.subject) == (Verdict.CRITICAL, "missing", before.subject)
        assert f"mounted at {folder}: that is not mounted any more" in found.summary
    with mounted(tmp_path / "disk", "size=1m"):
        assert the_finding(project, "fs", folder).verdict is Verdict.OK


def test_a_file_system_that_was_found_and_is_gone_is_missing_under_its_name(tmp_path: Path) -> None:
    project = a_project(tmp_path, environ={"SCRATCH": str(tmp_path / "disk")})
    with mounted(tmp_path / "disk", "size=1m") as folder:
        assert a_tick(project, "fs")[f"login1:{folder}"][0].verdict is Verdict.OK
    for _ in range(2):
        found = a_tick(project, "fs")[f"login1:{folder}"][0]
        assert (found.verdict, found.fault) == (Verdict.CRITICAL, "missing")
    folder.rmdir()
    assert a_tick(project, "fs")[f"login1:{folder}"][0].fault == "missing"
    with mounted(tmp_path / "disk", "size=1m"):
        assert a_tick(project, "fs")[f"login1:{folder}"][0].verdict is Verdict.OK


def test_a_path_that_moved_for_good_is_accepted_after_a_week(tmp_path: Path) -> None:
    clock = FakeClock()
    project = a_project(tmp_path, clock=clock)
    with mounted(tmp_path / "disk", "size=1m") as folder:
        the_finding(project, "fs", folder)
    clock.time += 6 * 86400
    assert the_finding(project, "fs", folder).fault == "missing"
    clock.time += 2 * 86400
    assert the_finding(project, "fs", folder).fault != "missing"


def test_a_link_that_leads_nowhere_says_where(tmp_path: Path) -> None:
    link = tmp_path / "scratch"
    link.symlink_to("/nowhere/at/all")
    found = the_finding(a_project(tmp_path), "fs", link)
    assert (found.verdict, found.fault) == (Verdict.CRITICAL, "dangling")
    assert f"{link} is a symbolic link to /nowhere/at/all" in found.summary


def test_links_in_a_circle_are_said(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "circle" in the_finding(a_project(tmp_path), "fs", tmp_path / "a").summary


def test_a_file_stands_for_the_file_system_that_it_lies_on(tmp_path: Path, disk: Path) -> None:
    (disk / "log").write_text("x")
    found = the_finding(a_project(tmp_path), "fs", disk / "log")
    assert found.verdict is Verdict.OK and "of 4.0 MiB used" in found.summary and "it is a file" in found.summary


def test_a_path_through_a_file_is_missing(tmp_path: Path, disk: Path) -> None:
    (disk / "log").write_text("x")
    found = the_finding(a_project(tmp_path), "fs", disk / "log" / "deeper")
    assert found.fault == "missing" and "is a file, not a folder" in found.summary


def test_what_may_not_be_entered_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).endswith("closed/inside"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)  # root, who runs these tests in CI, may enter everything
    found = the_finding(a_project(tmp_path), "fs", tmp_path / "closed" / "inside")
    assert (found.verdict, found.fault) == (Verdict.UNKNOWN, "unreadable")


@pytest.mark.parametrize(
    ("number", "words"), [(116, "stale file handle"), (107, "has ended"), (5, "input/output error")]
)
def test_a_dead_server_is_critical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    def statvfs(path: object) -> object:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    found = the_finding(a_project(tmp_path), "fs", tmp_path)
    assert (found.verdict, found.fault) == (Verdict.CRITICAL, "stale")
    assert words in found.summary


def test_a_file_system_without_a_size_is_unknown(tmp_path: Path) -> None:
    found = the_finding(a_project(tmp_path), "fs", "/proc")
    assert (found.verdict, found.fault) == (Verdict.UNKNOWN, "no-size")


def test_a_fuse_mount_that_never_answers_is_unknown_by_the_deadline_and_hides_nothing(
    tmp_path: Path, disk: Path
) -> None:
    project = a_project(tmp_path, "[watch]\ndeadline_s = 1.0\n")
    try:
        with hung_folder(tmp_path / "hung") as hung:
            began = time.monotonic()
            found = a_tick(project, "fs", paths=(str(hung / "x"), str(disk)))
            assert time.monotonic() - began < 15
            assert found[f"login1:{disk}"][0].verdict is Verdict.OK
            (stuck,) = found[str(hung / "x")]
            assert (stuck.verdict, stuck.fault) == (Verdict.UNKNOWN, "stuck")
    except OSError as error:
        pytest.skip(f"mounting /dev/fuse is not permitted: {error}")


def test_with_no_configuration_what_a_training_needs_is_looked_at_once(tmp_path: Path, disk: Path) -> None:
    scratch = disk / "alice"
    scratch.mkdir()
    link = tmp_path / "work"
    link.symlink_to(disk)
    environ = {"SCRATCH": str(scratch), "WORK": str(link), "STORE": str(tmp_path / "none"), "DATA": "relative"}
    found = a_tick(a_project(tmp_path, environ=environ), "fs")
    assert "$SCRATCH, $WORK" in found[f"login1:{disk}"][0].summary
    assert found[f"login1:{tmp_path / 'none'}"][0].verdict is Verdict.WARNING  # $STORE is not on this node
    roles = " ".join(f.summary for findings in found.values() for f in findings)
    assert all(role in roles for role in ("project folder", "home", "/dev/shm", "/tmp"))
    assert len(found) == len({f.subject for findings in found.values() for f in findings})


def test_two_nodes_disks_of_the_same_name_are_two(tmp_path: Path, disk: Path) -> None:
    names = {the_finding(a_project(tmp_path, host=host), "fs", disk).subject for host in ("n01", "n02")}
    assert names == {f"n01:{disk}", f"n02:{disk}"}


def test_home_variables_and_paths_relative_to_the_project_are_filled_in(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "data").mkdir()
    project = a_project(tmp_path, environ={"SCRATCH": str(tmp_path)})
    found = a_tick(project, "fs", paths=("~", "data", "$SCRATCH/project", "${SCRATCH}", str(tmp_path)))
    assert set(found) == {f"login1:{tmp_path}{end}" for end in ("/home", "/project/data", "/project", "")}


@pytest.mark.parametrize(
    ("path", "words"),
    [("", "empty text"), ("  ", "empty text"), ("a\0b", "NUL"), ("$NOWHERE/x", "$NOWHERE is not set here"),
     ("~nobody-of-that-name/x", "no user 'nobody-of-that-name'")],
)  # fmt: skip
def test_a_path_that_cannot_be_meant_is_refused(tmp_path: Path, path: str, words: str) -> None:
    assert words in refused(a_project(tmp_path), "fs", paths=(path,))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"warn_percent": "120%"}, "warn_percent = '120%'"),
        ({"warn_percent": "0.85"}, "write 85%"),
        ({"warn_percent": "96", "crit_percent": "90"}, "warn_percent = 96 lies beyond crit_percent = 90"),
        ({"warn_free_bytes": "100"}, 'the unit is missing; write for instance "100GiB"'),
        ({"warn_free_bytes": "10%"}, "'10%' is not a size"),
        ({"warn_free_bytes": "-5GiB"}, "warn_free_bytes = '-5GiB'"),
        ({"warn_free_bytes": "1GiB", "crit_free_bytes": "2GiB"}, "warn_free_bytes = 1.0 GiB is less than"),
        ({"warn_runway_s": "1h", "crit_runway_s": "2h"}, "warn_runway_s = 1 h is shorter than"),
        ({"warn_runway_s": "-1h"}, "warn_runway_s"),
        ({"usable_percent": "0"}, "usable_percent = 0"),
        ({"checkpoint_bytes": "2300"}, "checkpoint_bytes = 2300"),
        ({"used_regex": "("}, "used_regex is set, and there is no command"),
        ({"command": ("q",), "used_regex": "(", "limit_regex": "(x)"}, "used_regex = '(' is no regular expression"),
        ({"du": True}, "set du_limit_bytes"),
        ({"du": True, "du_limit_bytes": "2TiB"}, "paths names no folder"),
        ({"du_limit_bytes": "2TiB"}, "du is not asked for"),
        ({"purge_days": -3.0}, "purge_days = -3 is no number of days"),
        ({"purge_days": float("nan")}, "purge_days = nan is no number of days"),
        (
            {"du": True, "du_limit_bytes": "2TiB", "command": ("q",), "percent_regex": "(x)"},
            "du and command are both set",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_the_name_of_the_key(
    tmp_path: Path, settings: dict[str, object], words: str
) -> None:
    from resilience.errors import SettingsError

    try:
        text = refused(a_project(tmp_path), "fs", **settings)
    except SettingsError as error:
        text = f"{error.message}; {error.hint}"
    assert words in text


def test_a_single_threshold_beyond_the_others_default_is_meant_so(tmp_path: Path, disk: Path) -> None:
    (disk / "ballast").write_bytes(bytes(int(3.9 * MIB)))  # 97.5 %
    assert the_finding(a_project(tmp_path), "fs", disk, warn_percent="97").verdict is Verdict.WARNING
    assert the_finding(a_project(tmp_path), "fs", disk, crit_percent="60").verdict is Verdict.CRITICAL


def test_a_sites_own_quota_command_is_asked_first_and_named(tmp_path: Path, disk: Path) -> None:
    program = a_program(tmp_path, "idrquota", 'echo "$1 of $2: 4.6 TiB / 5 TiB"')
    command = {
        "command": (str(program), "{path}", "{user}"),
        "used_regex": r": ([\d.]+ \w+) /",
        "limit_regex": r"/ (.+)$",
    }
    found = the_finding(a_project(tmp_path), "fs", disk, **command)
    assert (found.verdict, found.fault) == (Verdict.WARNING, "space")
    assert f"92% of 5.0 TiB used, 410 GiB free (`{program} {{path}} {{user}}`, asked just now)" in found.summary
    assert {figure.label for figure in found.figures} == {"used", "used quota"}  # the disk itself is judged as well


def test_the_age_of_a_sites_figures_is_said(tmp_path: Path, disk: Path) -> None:
    program = a_program(tmp_path, "q", "echo 50%")
    found = the_finding(
        a_project(tmp_path), "fs", disk, command=(str(program),), percent_regex="([0-9]+)%", command_max_age_s="30m"
    )
    assert "50% used" in found.summary and "30 min old" in found.summary


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 0", "it printed nothing"),
        ("echo nonsense", "it printed no use"),
        ("echo 'no such project' >&2; exit 3", "it ended with 3: no such project"),
        ("sleep 30", "did not end within"),
        ("yes x | head -c 20000000; exit 1", "it ended with 1"),
    ],
)
def test_a_site_command_that_fails_is_unknown_and_the_disk_is_judged_without_it(
    tmp_path: Path, disk: Path, body: str, words: str
) -> None:
    program = a_program(tmp_path, "q", body)
    settings = {"command": (str(program),), "used_regex": "used ([0-9]+)", "limit_regex": "of ([0-9]+)"}
    found = the_finding(a_project(tmp_path, "[watch]\ndeadline_s = 1.5\n"), "fs", disk, **settings)
    assert (found.verdict, found.fault) == (Verdict.UNKNOWN, "silent") and words in found.summary
    assert any("(statvfs, just now)" in line for line in found.looked)


def test_a_site_command_that_is_not_there_is_unknown_and_hides_no_full_disk(tmp_path: Path, disk: Path) -> None:
    settings = {"paths": (str(disk),), "command": ("/nowhere/q",), "percent_regex": "(.)"}
    (disk / "ballast").write_bytes(bytes(int(3.9 * MIB)))
    full, unknown = a_tick(a_project(tmp_path), "fs", **settings)[f"login1:{disk}"]
    assert (full.fault, full.verdict) == ("space", Verdict.CRITICAL)
    assert unknown.verdict is Verdict.UNKNOWN and "cannot run /nowhere/q" in unknown.summary


def test_a_growth_is_remembered_over_a_look_at_which_the_source_was_silent(tmp_path: Path, disk: Path) -> None:
    clock = FakeClock()
    project = a_project(tmp_path, clock=clock)
    counter = tmp_path / "counter"
    program = a_program(tmp_path, "q", f"[ -e {tmp_path}/silent ] || echo used $(cat {counter}) of 1000")
    settings = {"command": (str(program),), "used_regex": "used ([0-9]+)", "limit_regex": "of ([0-9]+)"}
    for tick in range(20):
        counter.write_text(str(100 + 20 * tick))
        (tmp_path / "silent").touch() if tick == 12 else (tmp_path / "silent").unlink(missing_ok=True)
        last = a_tick(project, "fs", paths=(str(disk),), **settings)[f"login1:{disk}"]
        clock.time += 600
        assert any(finding.fault == "silent" for finding in last) is (tick == 12)
    assert [(f.fault, f.verdict) for f in last] == [("runway", Verdict.CRITICAL)]
    assert any("seen for 3 hours" in line for line in last[0].looked)


def test_du_counts_when_it_is_asked_for_and_its_total_is_kept(tmp_path: Path, disk: Path) -> None:
    clock = FakeClock()
    project = a_project(tmp_path, clock=clock)
    (disk / "mine").mkdir()
    (disk / "mine" / "a").write_bytes(bytes(900 * 1024))
    settings = {"du": True, "du_limit_bytes": "1MiB"}
    found = the_finding(project, "fs", disk / "mine", **settings)
    assert found.verdict is Verdict.WARNING and re.search(r"87.8% of 1.0 MiB used, .*\(du, just now\)", found.summary)
    shutil.rmtree(disk / "mine")
    (disk / "mine").mkdir()
    clock.time += 3600
    found = the_finding(project, "fs", disk / "mine", **settings)
    assert "(du, 1 h old)" in found.summary
    clock.time += 6 * 3600
    assert the_finding(project, "fs", disk / "mine", **settings).verdict is Verdict.OK


def test_a_growth_that_is_remembered_tells_when_the_disk_is_full(tmp_path: Path) -> None:
    clock = FakeClock()
    project = a_project(tmp_path, clock=clock)
    with mounted(tmp_path / "disk", "size=64m") as folder, (folder / "log").open("wb", buffering=0) as file:
        for tick in range(24):  # 1 MiB every ten minutes
            file.write(bytes(MIB))
            last = a_tick(project, "fs", paths=(str(folder),))[f"login1:{folder}"]
            clock.time += 600
            assert tick > 8 or [f.verdict for f in last] == [Verdict.OK]
    (found,) = last
    assert (found.verdict, found.fault) == (Verdict.CRITICAL, "runway")
    assert found.summary == "7 hours left at 144 MiB a day: 40.0 MiB free"


def test_the_next_checkpoint_that_does_not_fit_is_critical(tmp_path: Path, disk: Path) -> None:
    saved = disk / "ckpts"
    saved.mkdir()
    clock = FakeClock(time=time.time() + 3600)
    project = a_project(tmp_path, clock=clock)
    for step, size in ((100, 1.2), (200, 1.3)):
        (saved / f"step{step}").mkdir()
        (saved / f"step{step}" / "weights").write_bytes(bytes(int(size * MIB)))
    settings = {"checkpoints": str(saved), "warn_percent": "100"}
    assert the_finding(project, "fs", disk, **settings).verdict is Verdict.OK
    (disk / "log").write_bytes(bytes(MIB // 2))
    found = the_finding(project, "fs", disk, **settings)
    assert (found.verdict, found.fault) == (Verdict.CRITICAL, "checkpoint")
    assert found.summary == "the next checkpoint does not fit: it takes 1.3 MiB, and 1020 KiB is free"


def test_checkpoints_to_come_are_counted_with_size_and_interval_of_the_settings(tmp_path: Path, disk: Path) -> None:
    settings = {"checkpoints": str(disk), "checkpoint_bytes": "1MiB", "checkpoint_every_s": "3h", "warn_percent": "100"}
    found = the_finding(a_project(tmp_path), "fs", disk, **settings)
    assert (found.verdict, found.fault) == (Verdict.WARNING, "checkpoint")
    assert found.summary == "room for 4 more checkpoints of 1.0 MiB, one every 3 h: 12 hours at 8.0 MiB a day"


def test_checkpoints_elsewhere_are_no_matter_of_this_disk(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    settings = {"checkpoints": str(tmp_path / "elsewhere"), "checkpoint_bytes": "1GiB", "checkpoint_every_s": "3h"}
    assert the_finding(a_project(tmp_path), "fs", disk, **settings).verdict is Verdict.OK


def test_checkpoints_are_learned_from_the_project_and_its_journal_without_any_settings(tmp_path: Path) -> None:
    now = time.time()
    with mounted(tmp_path / "project", "size=16m") as folder:
        project = a_project(tmp_path, clock=FakeClock(time=now))
        journal = folder / ".resil" / "gpt" / "journal"
        journal.mkdir(parents=True)
        saves = [{"event": "save", "time": now - 3600 * n, "rank": 0, "step": 100 - n} for n in range(1, 4)]
        (journal / "17.0.jsonl").write_text("".join(json.dumps(save) + "\n" for save in reversed(saves)))
        for number in range(1, 4):
            (folder / "checkpoints" / f"step{100 - number}").mkdir(parents=True)
            (folder / "checkpoints" / f"step{100 - number}" / "weights").write_bytes(bytes(2 * MIB))
            os.utime(folder / "checkpoints" / f"step{100 - number}", (now - 3600 * number,) * 2)
        (found,) = a_tick(project, "fs")[f"login1:{folder}"]
        assert (found.verdict, found.fault) == (Verdict.CRITICAL, "checkpoint")
        assert found.summary == "room for 4 more checkpoints of 2.0 MiB, one every 1 h: 5 hours at 48.0 MiB a day"
        assert any("from the run's journal" in line for line in found.looked)
        more = [{**saves[0], "time": now - 3600 * n} for n in range(4, 12)]  # older ones were saved and removed
        (journal / "16.0.jsonl").write_text("".join(json.dumps(save) + "\n" for save in reversed(more)))
        assert a_tick(project, "fs")[f"login1:{folder}"][0].verdict is Verdict.OK


def test_a_folder_that_reports_a_size_of_its_own_is_a_subject_of_its_own(
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
    found = a_tick(a_project(tmp_path, environ={"SCRATCH": str(disk), "PROJECT": str(lab)}), "fs")
    assert found[str(disk)][0].verdict is Verdict.OK
    assert found[str(lab)][0].verdict is Verdict.WARNING and "$PROJECT" in found[str(lab)][0].summary


def test_a_pattern_that_backtracks_for_ever_is_ended_and_keeps_nobody_else_back(tmp_path: Path, disk: Path) -> None:
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
    (bad, good) = watch(project, [load_watchdog(project, "bad"), load_watchdog(project, "fs", {"paths": [str(disk)]})])
    assert time.monotonic() - began < 30
    assert (bad.verdict, good.verdict) == (Verdict.UNKNOWN, Verdict.OK)


def test_two_watchdogs_of_one_kind_have_each_their_own_memory(tmp_path: Path, disk: Path) -> None:
    tables = "".join(
        f'[watch.{n}]\nkind = "fs"\npaths = ["{disk}"]\nwarn_percent = {p}\n' for n, p in (("a", 10), ("b", 90))
    )
    project = a_project(tmp_path, tables)
    (disk / "ballast").write_bytes(bytes(2 * MIB))
    one, other = watch(project, [load_watchdog(project, "a"), load_watchdog(project, "b")])
    assert (one.verdict, other.verdict) == (Verdict.WARNING, Verdict.OK)
    assert {p.name for p in (tmp_path / "project" / ".resil" / ".watch").glob("*.json")} == {"a.json", "b.json"}


def test_files_that_will_be_purged_are_told(tmp_path: Path, disk: Path) -> None:
    now = time.time()
    for name, days in (("old", 25), ("older", 31), ("new", 1)):
        (disk / name).write_bytes(bytes(4096))
        os.utime(disk / name, (now - days * 86400,) * 2)
    project = a_project(tmp_path, clock=FakeClock(time=now))
    found = the_finding(project, "fs", disk, purge_days="30")
    assert (found.verdict, found.fault) == (Verdict.WARNING, "purge")
    assert "2 files" in found.summary and "within 7 d (some are due now)" in found.summary
    assert found.evidence == (str(disk / "older"),)
    (disk / "new").unlink()
    found = the_finding(project, "fs", disk, purge_days="30")
    assert found.verdict is Verdict.CRITICAL and "the newest among them" in found.summary
    assert the_finding(project, "fs", disk).verdict is Verdict.OK


@pytest.mark.parametrize("field", ["history", "mounts", "du", "looked"])
@pytest.mark.parametrize("value", ["7", "[7, null, {}]", '{"a": [1, 2, 3, 4]}', '{"time": "x"}'])
def test_what_was_remembered_and_then_edited_by_hand_harms_nothing(
    tmp_path: Path, disk: Path, field: str, value: str
) -> None:
    project = a_project(tmp_path)
    the_finding(project, "fs", disk)
    (memory,) = (tmp_path / "project" / ".resil" / ".watch").glob("*.json")
    text = memory.read_text()
    edited = re.sub(rf'"{field}": ?(\{{.*?\}}|\[.*?\]|true|"[^"]*")(?=,"|\}}\])', f'"{field}":{value}', text, count=1)
    assert edited != text
    memory.write_text(edited)
    assert the_finding(project, "fs", disk).verdict is Verdict.OK


def test_everything_that_was_looked_at_is_explained(tmp_path: Path, disk: Path) -> None:
    text = "\n".join(the_finding(a_project(tmp_path), "fs", disk).looked)
    assert f"{disk} lies on tmpfs (tmpfs), mounted at {disk}" in text
    assert "warns beyond 85%; critical beyond 95%" in text
    assert "statvfs" in text


def test_a_look_costs_little_memory(tmp_path: Path, disk: Path) -> None:
    clock = FakeClock()
    project = a_project(tmp_path, clock=clock)
    for _ in range(5):
        report_of(project, "fs", paths=(str(disk),))
        clock.time += 300
    assert sum(path.stat().st_size for path in (tmp_path / "project" / ".resil" / ".watch").glob("*")) < 20_000
