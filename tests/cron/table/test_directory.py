"""The cron directory as it lies on the disk: what is dropped there runs, and what does not is told."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from resilience.cron.records import Entry, Ignored, Kind, Table
from resilience.cron.table.directory import CronReader
from resilience.cron.table.expression import parse_schedule
from resilience.cron.table.options import OptionError
from resilience.errors import StateDirectoryError
from resilience.settings.cron_settings import CronSettings
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

OTHER = 12345
SETTINGS = CronSettings()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a cron directory that only its owner can write."""
    tmp_path.chmod(0o755)
    for name in ("cron", "cron/cron.hourly", "cron/cron.daily"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def drop(path: Path, content: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.write_text(content)
    path.chmod(mode)
    return path


def read(project: Path, **more: object) -> Table:
    return CronReader(project / "cron", SETTINGS, project=project, **more).table()  # type: ignore[arg-type]


def names(table: Table) -> list[str]:
    return [entry.name for entry in table.entries]


def told(table: Table, place: str) -> Ignored:
    (ignored,) = [one for one in table.ignored if one.place == place]
    return ignored


def test_dropping_a_file_in_a_directory_schedules_it(project: Path) -> None:
    drop(project / "cron/cron.hourly/backup")
    drop(project / "cron/cron.daily/report.slurm", "#!/bin/bash\n#SBATCH -n1\n", 0o644)
    drop(project / "cron/crontab", "*/5 * * * * ./look # resil: name=look\n", 0o644)
    table = read(project)
    assert [(entry.name, entry.place, entry.kind, entry.schedule) for entry in table.entries] == [
        ("cron.daily/report.slurm", "cron/cron.daily/report.slurm", Kind.SUBMIT, "@daily"),
        ("cron.hourly/backup", "cron/cron.hourly/backup", Kind.RUN, "@hourly"),
        ("crontab/look", "cron/crontab:1", Kind.RUN, "*/5 * * * *"),
    ]
    assert table.entries[1].path == str(project / "cron/cron.hourly/backup")
    assert table.entries[1].options.jitter_s == SETTINGS.jitter_s
    assert table.ignored == ()


def test_all_six_directories_are_read(project: Path) -> None:
    directories = ["minutely", "quarter_hourly", "hourly", "daily", "weekly", "monthly"]
    for name in directories:
        (project / f"cron/cron.{name}").mkdir(mode=0o755, exist_ok=True)
        drop(project / f"cron/cron.{name}/x")
    assert sorted(names(read(project))) == sorted(f"cron.{name}/x" for name in directories)


def test_missing_files_are_fine(tmp_path: Path, project: Path) -> None:
    assert CronReader(tmp_path / "nowhere", SETTINGS).table() == Table()
    assert read(project) == Table()


def test_a_change_of_the_machines_time_zone_counts_from_the_next_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hour_of_next() -> int:
        (entry,) = read(project).entries
        slot = parse_schedule(entry.schedule, entry.zone).next_after(1767225600)
        assert slot is not None
        return slot % 86400 // 3600

    drop(project / "cron/cron.daily/x")
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        assert hour_of_next() == 15
        monkeypatch.setenv("TZ", "UTC")
        assert hour_of_next() == 0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_directory_that_cannot_be_read_is_no_empty_table(project: Path) -> None:
    (project / "cron/cron.hourly").rmdir()
    (project / "cron/cron.daily").rmdir()
    (project / "cron").rmdir()
    drop(project / "cron")
    with pytest.raises(StateDirectoryError, match="Not a directory"):
        read(project)


@needs_root
def test_a_directory_that_is_closed_to_us_is_no_empty_table(project: Path) -> None:
    open_the_way(project / "x")
    (project / "cron").chmod(0o700)
    with acting_as(NOBODY), pytest.raises(StateDirectoryError, match="Permission denied"):
        read(project)
    (project / "cron").chmod(0o755)
    drop(project / "cron/cron.daily/x")
    (project / "cron/cron.hourly").chmod(0o700)
    with acting_as(NOBODY):
        table = read(project)
    assert names(table) == ["cron.daily/x"]
    assert told(table, "cron/cron.hourly").is_fault


def test_invalid_settings_are_reported_even_for_an_empty_directory(project: Path) -> None:
    with pytest.raises(OptionError, match="catch_up=never"):
        CronReader(project / "cron", CronSettings(catch_up="never"), project=project).table()


def test_other_file_system_errors_block_nothing(project: Path) -> None:
    hourly = project / "cron/cron.hourly"
    os.mkfifo(hourly / "fifo", 0o755)
    os.mkfifo(hourly / "fifo.slurm", 0o755)
    os.mkfifo(project / "cron/crontab", 0o755)
    (hourly / "directory").mkdir()
    (hourly / "loop").symlink_to("loop")
    (hourly / "lost").symlink_to("nothing")
    (hourly / "lost.slurm").symlink_to("nothing")
    (hourly / "terminal").symlink_to("/dev/tty")
    listener = socket.socket(socket.AF_UNIX)
    before = Path.cwd()
    os.chdir(hourly)  # a socket's name is at most 107 bytes long
    try:
        listener.bind("socket")
    finally:
        os.chdir(before)
        listener.close()
    drop(hourly / "good")
    table = read(project)
    assert names(table) == ["cron.hourly/good"]
    for name, reason in (
        ("fifo", "a FIFO"),
        ("fifo.slurm", "a FIFO"),
        ("directory", "a directory"),
        ("loop", "a circular symbolic link"),
        ("lost", "a broken symbolic link"),
        ("lost.slurm", "a broken symbolic link"),
        ("terminal", "a device"),
        ("socket", "a socket"),
    ):
        assert reason in told(table, f"cron/cron.hourly/{name}").reason
    assert told(table, "cron/cron.hourly/lost").is_fault
    assert told(table, "cron/crontab").is_fault


def test_names_that_are_not_text_are_reported(project: Path) -> None:
    path = os.fsencode(project / "cron/cron.hourly") + b"/caf\xe9\n"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
    assert "other than letters" in told(read(project), "cron/cron.hourly/caf\\xe9\\n").reason


def test_a_job_script_from_an_empty_pattern_is_not_submitted(project: Path) -> None:
    drop(project / "cron/cron.hourly/*.slurm", "#!/bin/bash\n")
    assert read(project).entries == ()


# ---- what lies beside -----------------------------------------------------------------------------------------


def test_what_is_in_the_wrong_place_is_reported(project: Path) -> None:
    (project / "cron/cron.houry").mkdir()
    drop(project / "cron/cron.houry/x")
    drop(project / "cron/backup")
    drop(project / "cron/notes", mode=0o644)
    table = read(project)
    said = {one.place: (one.is_fault, one.hint) for one in table.ignored}
    assert table.entries == () and said == {
        "cron/cron.houry": (True, "did you mean cron.hourly?"),
        "cron/backup": (True, "move it, for instance: mv cron/backup cron/cron.hourly/"),
        "cron/notes": (False, ""),
    }


def test_other_directories_and_hidden_files_are_no_fault(project: Path) -> None:
    (project / "cron/slurm").mkdir()
    (project / "cron/.git").mkdir()
    (project / "cron/lost").symlink_to("nothing")
    table = read(project)
    assert [(one.place, one.is_fault) for one in table.ignored] == [("cron/lost", False), ("cron/slurm", False)]


def test_a_file_instead_of_a_directory_is_reported(project: Path) -> None:
    drop(project / "cron/cron.weekly")
    assert told(read(project), "cron/cron.weekly").reason == "it is not a directory"
    (project / "cron/cron.quarter_hourly").symlink_to(project / "cron/cron.weekly")
    assert told(read(project), "cron/cron.quarter_hourly").reason == "it is not a directory"
    (project / "cron/cron.monthly").symlink_to("nothing")
    assert told(read(project), "cron/cron.monthly").reason == "it is a broken symbolic link"
    (project / "cron/crontab").mkdir()
    assert told(read(project), "cron/crontab").reason == "it is not a file"


def test_a_broken_link_instead_of_the_cron_directory_is_reported(project: Path) -> None:
    (project / "there").symlink_to("nothing")
    assert told(CronReader(project / "there", SETTINGS, project=project).table(), "there").is_fault
    (project / "cron/crontab").symlink_to("nothing")
    (project / "cron/cron.hourly/x").symlink_to("nothing")
    table = read(project)
    assert told(table, "cron/crontab").is_fault
    assert told(table, "cron/cron.hourly/x").hint == f"rm {project}/cron/cron.hourly/x"
    (project / "cron/crontab").unlink()
    (project / "cron/crontab").symlink_to("/dev/null/x")
    assert "Not a directory" in told(read(project), "cron/crontab").reason


# ---- whose it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o777, 0o1777])
@pytest.mark.parametrize("where", ["cron/cron.hourly", "cron", "."])
def test_a_world_writable_directory_runs_nothing_and_the_fix_is_shown(project: Path, where: str, mode: int) -> None:
    drop(project / "cron/cron.hourly/backup")
    drop(project / "cron/cron.daily/report")
    drop(project / "cron/crontab", "0 1 * * * x\n", 0o644)
    (project / where).chmod(mode)
    table = read(project)
    here = where == "cron/cron.hourly"
    assert names(table) == (["cron.daily/report", table.entries[-1].name] if here else [])
    for place in ("cron/cron.hourly/backup", "cron/cron.hourly" if here else "cron"):
        ignored = told(table, place)
        assert ignored.is_fault
        assert "is world-writable" in ignored.reason
        assert ignored.hint == f"chmod o-w {(project / where).resolve()}"
    (project / where).chmod(0o755)
    assert len(read(project).entries) == 3


@pytest.mark.parametrize("name", ["cron/cron.hourly/backup", "cron/crontab"])
def test_a_file_that_everybody_can_write_does_not_run(project: Path, name: str) -> None:
    drop(project / name, "#!/bin/sh\n", 0o777)
    table = read(project)
    assert table.entries == ()
    assert told(table, name).hint == f"chmod o-w {project / name}"


@needs_root
@pytest.mark.parametrize("name", ["cron/cron.hourly/backup", "cron/crontab"])
def test_another_ones_file_does_not_run(project: Path, name: str) -> None:
    path = drop(project / name, "#!/bin/sh\n")
    os.chown(path, OTHER, OTHER)
    assert "belongs to 12345" in told(read(project), name).reason
    os.chown(path, 0, 0)
    for directory in (project, *project.glob("**/")):
        os.chown(directory, NOBODY, NOBODY)
    assert read(project, uid=NOBODY).entries or name == "cron/crontab"  # root's file in one's own directory
    assert "belongs to nobody" in told(read(project, uid=OTHER), name).reason


@needs_root
def test_a_private_group_counts_as_the_owner_and_another_group_does_not(project: Path) -> None:
    """With the umask 002 that goes with groups of one's own, everything is writable by one's group."""
    import grp
    import pwd

    private = next((one for one in pwd.getpwall() if one.pw_uid and _has_a_group_of_its_own(one.pw_name)), None)
    if private is None:
        pytest.skip("no user on this machine has a group of its own")
    shared = next(one for one in grp.getgrall() if one.gr_gid not in {0, private.pw_gid})
    paths = [project, *project.rglob("*"), drop(project / "cron/cron.hourly/backup")]
    for gid, expected in ((private.pw_gid, ["cron.hourly/backup"]), (shared.gr_gid, [])):
        for path in paths:
            os.chown(path, private.pw_uid, gid)
            path.chmod(0o775)
        assert names(read(project, uid=private.pw_uid)) == expected
    assert told(read(project, uid=private.pw_uid), "cron").hint == f"chmod g-w {project.resolve()}/cron"


def _has_a_group_of_its_own(name: str) -> bool:
    import grp
    import pwd

    user = pwd.getpwnam(name)
    return any(g.gr_gid == user.pw_gid and g.gr_name == name and not g.gr_mem for g in grp.getgrall())


@needs_root
def test_another_ones_directory_runs_nothing(project: Path) -> None:
    drop(project / "cron/cron.hourly/backup")
    os.chown(project / "cron/cron.hourly", OTHER, OTHER)
    assert "belongs to 12345" in told(read(project), "cron/cron.hourly").reason
    assert told(read(project), "cron/cron.hourly/backup").is_fault


@needs_root
def test_a_members_drop_in_runs_where_the_group_operates_the_project(project: Path) -> None:
    import grp

    group = grp.getgrgid(NOBODY)
    path = drop(project / "cron/cron.hourly/backup")
    os.chown(path, OTHER, NOBODY)
    for directory in (project / "cron", project / "cron/cron.hourly"):
        os.chown(directory, 0, NOBODY)
        directory.chmod(0o2770)
    assert names(read(project, group=group.gr_name)) == ["cron.hourly/backup"]
    assert read(project).entries == ()
    (project / "cron/cron.hourly").chmod(0o770)
    assert "does not control it safely" in told(read(project, group=group.gr_name), "cron/cron.hourly/backup").reason


def test_an_unknown_group_is_reported_and_trusts_no_one(project: Path) -> None:
    drop(project / "cron/cron.hourly/backup")
    table = read(project, group="no-such-group")
    assert names(table) == ["cron.hourly/backup"]
    assert "group 'no-such-group' does not exist" in told(table, "cron").reason


# ---- links ----------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(project: Path) -> Path:
    directory = project / "bin"
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    return directory


def test_a_link_inside_the_policy_runs(project: Path, elsewhere: Path) -> None:
    drop(elsewhere / "backup.sh", "#!/bin/sh\n# resil: rerun\n")
    (elsewhere / "newest").symlink_to("backup.sh")
    (project / "cron/cron.hourly/backup").symlink_to("../../bin/newest")
    (project / "cron/cron.hourly/job.slurm").symlink_to(elsewhere / "backup.sh")
    backup, job = read(project).entries
    assert (backup.name, backup.path, backup.options.rerun) == (
        "cron.hourly/backup",
        str(project / "cron/cron.hourly/backup"),
        True,
    )
    assert job.kind is Kind.SUBMIT


def test_a_link_may_stand_for_a_whole_directory_or_for_the_crontab(project: Path, elsewhere: Path) -> None:
    drop(elsewhere / "backup")
    drop(elsewhere / "table", "0 1 * * * x # resil: name=x\n", 0o644)
    (project / "cron/cron.weekly").symlink_to(elsewhere)
    (project / "cron/crontab").symlink_to(elsewhere / "table")
    assert names(read(project)) == ["cron.weekly/backup", "crontab/x"]
    (project / "there").symlink_to(project / "cron")
    assert names(CronReader(project / "there", SETTINGS, project=project).table()) == [
        "cron.weekly/backup",
        "crontab/x",
    ]


@pytest.mark.parametrize("what", ["bin", "bin/backup.sh", "hop"])
def test_a_link_is_judged_by_where_it_leads_and_by_every_directory_that_turns_it(
    project: Path, elsewhere: Path, what: str
) -> None:
    drop(elsewhere / "backup.sh")
    (project / "hop").mkdir(mode=0o755)
    (project / "hop/on").symlink_to(elsewhere)
    (project / "cron/cron.hourly/backup").symlink_to(project / "hop/on/backup.sh")
    assert names(read(project)) == ["cron.hourly/backup"]
    (project / what).chmod(0o777)
    table = read(project)
    assert table.entries == ()
    assert told(table, "cron/cron.hourly/backup").hint == f"chmod o-w {(project / what).resolve()}"


def test_a_link_through_a_directory_that_everybody_can_exchange_is_refused(project: Path) -> None:
    inner = project / "open/inner"
    inner.mkdir(parents=True)
    inner.chmod(0o755)
    drop(inner / "x")
    (project / "cron/cron.hourly/backup").symlink_to(inner / "x")
    (project / "open").chmod(0o1777)  # like /tmp: nobody can rename what is ours there
    assert names(read(project)) == ["cron.hourly/backup"]
    (project / "open").chmod(0o777)
    assert told(read(project), "cron/cron.hourly/backup").hint == f"chmod o-w {project.resolve() / 'open'}"


def test_a_link_for_a_whole_directory_is_judged_by_every_directory_that_turns_it(
    project: Path, elsewhere: Path
) -> None:
    drop(elsewhere / "backup")
    (project / "hop").mkdir()
    (project / "hop").chmod(0o777)
    (project / "hop/on").symlink_to(elsewhere)
    (project / "cron/cron.weekly").symlink_to(project / "hop/on")
    assert told(read(project), "cron/cron.weekly").hint == f"chmod o-w {project.resolve()}/hop"
    assert told(read(project), "cron/cron.weekly/backup").is_fault
    (project / "hop/cron").symlink_to(project / "cron")
    (project / "there").symlink_to(project / "hop/cron")
    assert told(CronReader(project / "there", SETTINGS, project=project).table(), "there").is_fault


@needs_root
def test_a_link_to_a_file_in_another_ones_directory_is_refused(project: Path, elsewhere: Path) -> None:
    drop(elsewhere / "backup.sh")
    (project / "cron/cron.hourly/backup").symlink_to(elsewhere / "backup.sh")
    os.chown(elsewhere, OTHER, OTHER)
    assert "belongs to 12345" in told(read(project), "cron/cron.hourly/backup").reason


@needs_root
def test_a_link_to_another_ones_crontab_or_cron_directory_is_refused(project: Path, elsewhere: Path) -> None:
    drop(elsewhere / "table", "0 1 * * * x\n", 0o644)
    os.chown(elsewhere / "table", OTHER, OTHER)
    (project / "cron/crontab").symlink_to(elsewhere / "table")
    assert told(read(project), "cron/crontab").is_fault
    os.chown(elsewhere, OTHER, OTHER)
    (elsewhere / "cron.hourly").mkdir()
    drop(elsewhere / "cron.hourly/x")
    (project / "there").symlink_to(elsewhere)
    table = CronReader(project / "there", SETTINGS, project=project).table()
    assert table.entries == ()
    assert told(table, "there").is_fault


def test_a_file_that_vanishes_while_it_is_read_is_no_fault(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(project / "cron/cron.hourly/good")
    listed = os.listdir
    monkeypatch.setattr(
        os, "listdir", lambda path: [*listed(path), "moment"] if "hourly" in str(path) else listed(path)
    )
    assert read(project) == Table(read(project).entries, ())
    assert names(read(project)) == ["cron.hourly/good"]


# ---- just before it starts ------------------------------------------------------------------------------------


def test_changes_since_the_table_was_read_are_detected(project: Path) -> None:
    path = drop(project / "cron/cron.hourly/backup")
    line = drop(project / "cron/crontab", "0 1 * * * x\n", 0o644)
    backup, x = read(project).entries

    def again(entry: Entry) -> Ignored | None:
        return CronReader(project / "cron", SETTINGS, project=project).recheck(entry)

    assert again(backup) is None
    assert again(x) is None
    (project / "cron").chmod(0o777)
    assert "world-writable" in str(again(backup))
    (project / "cron").chmod(0o755)
    path.chmod(0o777)
    assert "world-writable" in str(again(backup))
    path.unlink()
    assert "it no longer exists" in str(again(backup))
    path.symlink_to("/dev/null")
    assert "a device" in str(again(backup))
    path.unlink()
    path.parent.rmdir()
    assert again(backup) is not None
    line.unlink()
    assert again(x) is None


def test_the_beginning_of_an_endless_crontab_is_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.cron.table.directory.CRONTAB_BYTES", 64)
    drop(project / "cron/crontab", "0 1 * * * first\n" + "#" * 40 + "\n0 2 * * * second\n", 0o644)
    table = read(project)
    assert [entry.argv[2] for entry in table.entries] == ["first"]
    assert "only the first" in told(table, "cron/crontab").reason
    assert told(table, "cron/crontab").is_fault


def test_the_users_own_name_before_a_command_is_a_systems_crontab(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    drop(project / "cron/crontab", "0 1 * * * ada ./backup\n", 0o644)
    assert "like the user column" in told(read(project), "cron/crontab:1").reason
