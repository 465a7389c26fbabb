"""Who makes the ticks is chosen, installed once, taken out whole, and never half."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.cron import driver_choice as cron_drivers
from resilience.cron import environment as cron_environment
from resilience.cron.driver_choice import Offer, check_driver, choose, decide, drivers
from resilience.cron.drivers import Availability, crontab, systemd
from resilience.cron.install import AlreadyInstalled, install, stop, uninstall
from resilience.cron.late import late_notice
from resilience.cron.records import Heartbeat
from resilience.cron.state_directory import CronDirectory
from resilience.errors import ResilError, StateDirectoryError, UsageError
from resilience.plugins import PLUGIN_PATH
from resilience.runs.project import Project
from resilience.system.ports import SystemClock
from tests.cron.drivers.site import Site
from tests.lab.fakes import ME, NOW, make_project

MINE = b"MAILTO=me\n0 3 * * * mine\r\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(crontab, "find_daemon", lambda *_: "cron, process 1")
    monkeypatch.setattr(systemd, "DRIVER", systemd.SystemdDriver(linger=tmp_path / "site" / "linger"))
    monkeypatch.setenv(PLUGIN_PATH, str(tmp_path / "plugins"))
    (tmp_path / "plugins" / "drivers").mkdir(parents=True)
    (tmp_path / "site").mkdir()
    drivers.cache_clear()
    found = Site(tmp_path / "site")
    found.write_table(MINE)
    yield found
    drivers.cache_clear()


def directory_of(project: Project) -> CronDirectory:
    return CronDirectory(project.loaded.state_dir)


def seen_by(project: Project, *, user: str = "", host: str = "") -> Project:
    """The same project, as another person, or from another machine."""
    system = project.system
    named = system.host._replace(user=user or system.host.user, name=host or system.host.name)
    return replace(project, system=replace(system, host=named))


def everything(site: Site) -> Mapping[str, bytes]:
    """Every file there is, state directories included, but for the directory that a driver's output goes to."""
    return {
        str(path.relative_to(site.directory)): path.read_bytes()
        for path in sorted(site.directory.rglob("*"))
        if path.is_file() and path.name not in ("reloaded", "scrontab.jobs") and "slurm" not in path.parts
    }


# ---- which one ------------------------------------------------------------------------------------------------------


def test_the_best_driver_is_chosen_and_the_others_have_reasons(site: Site) -> None:
    project = site.project()
    steps: list[tuple[str, Any]] = [
        ("scrontab", lambda: (site.directory / "scron_parameters").write_text("(null)")),
        ("crontab", lambda: site.break_program("crontab", "echo 'You (me) are not allowed' >&2; exit 1")),
        ("systemd", lambda: (site.directory / "manager").unlink()),
        ("slurm", site.stop_controller),
        ("foreground", lambda: None),
    ]
    for name, and_then in steps:
        choice = choose(project)
        assert choice.name == name and choice.driver is drivers().load(name) and "best of the available" in choice.why
        better = [offer for offer in choice.offers if offer.rank < drivers().load(name).rank]
        assert all(not offer.availability.is_available and offer.availability.reason for offer in better)
        assert {offer.name for offer in choice.offers} == set(drivers().names())
        and_then()


def test_a_requested_driver_is_chosen_and_no_other_is_checked(site: Site) -> None:
    site.break_program("scrontab", 'touch "$SITE/asked"')
    choice = choose(site.project(), "systemd")
    assert choice.name == "systemd" and choice.why.startswith("requested") and len(choice.offers) == 1
    assert not (site.directory / "asked").exists()


def test_a_requested_driver_that_is_unavailable_is_an_error_with_the_reason(site: Site) -> None:
    (site.directory / "linger").rename(site.directory / "gone")
    with pytest.raises(ResilError, match="backend systemd is not available here") as caught:
        install(site.project(), "systemd")
    assert caught.value.hint or "linger" in caught.value.message
    assert directory_of(site.project()).installation() is None


def test_an_unknown_backend_is_a_usage_error_with_the_nearest_name(site: Site) -> None:
    with pytest.raises(UsageError, match="'crontap'") as caught:
        install(site.project(), "crontap")
    assert caught.value.hint == "did you mean crontab?"


def test_a_driver_that_raises_does_not_hide_the_others(site: Site, tmp_path: Path) -> None:
    (tmp_path / "plugins" / "drivers" / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "plugins" / "drivers" / "rude.py").write_text(
        "class Rude:\n    summary, rank = 'rude', 1\n"
        "    def availability(self, context):\n        raise KeyError('x')\n"
        "    def plan(self, installation, settings, context): ...\n"
        "    install = uninstall = state = plan\n"
        "DRIVER = Rude()\n"
    )
    drivers.cache_clear()
    choice = choose(site.project())
    assert choice.name == "scrontab"
    why = {offer.name: offer.availability.reason for offer in choice.offers}
    assert "nothing_of_that_name" in why["broken"] and "KeyError" in why["rude"]


def test_without_any_driver_the_reasons_are_shown(site: Site) -> None:
    offers = tuple(Offer(name, 1, Availability(False, f"no {name}")) for name in ("a", "b"))
    with pytest.raises(ResilError, match="a: no a; b: no b") as caught:
        decide("auto", offers)
    assert "resil cron tick" in caught.value.hint
    assert check_driver("foreground", site.context()).availability.is_available


def test_a_backend_that_cannot_be_installed_gives_way_to_the_next_and_it_is_told(site: Site) -> None:
    site.break_program("scrontab", "case $1 in -l) ;; *) echo 'scrontab: error: Invalid option' >&2; exit 1 ;; esac")
    done = install(site.project())
    assert done.choice.name == "crontab" and "best of the available" in done.choice.why
    (note,) = done.notes
    assert note.startswith("scrontab could not be installed: scrontab rejected the table") and "Invalid option" in note
    installed = directory_of(site.project()).installation()
    assert installed is not None and installed.driver == "crontab"
    assert site.table("scrontab") is None


def test_a_requested_backend_that_cannot_be_installed_is_an_error(site: Site) -> None:
    site.break_program("scrontab", "case $1 in -l) ;; *) echo 'scrontab: error: Invalid option' >&2; exit 1 ;; esac")
    with pytest.raises(ResilError, match="Invalid option") as refused:
        install(site.project(), "scrontab")
    assert "your lines" not in refused.value.hint
    assert directory_of(site.project()).installation() is None and site.table() == MINE


def test_the_settings_say_which_where_the_command_line_does_not(site: Site) -> None:
    assert install(site.project(settings='[cron]\nbackend = "crontab"\n')).choice.name == "crontab"


# ---- install --------------------------------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing_at_all_and_shows_every_word(site: Site) -> None:
    project = site.project()
    before = everything(site)
    shown = install(project, "crontab", dry_run=True)
    assert everything(site) == before and not project.loaded.state_dir.exists()
    assert shown.lines == () and any("* * * * * /bin/sh -c" in step.text for step in shown.steps)


def test_installing_twice_changes_nothing_and_is_reported(site: Site) -> None:
    project = site.project()
    first = install(project, "crontab")
    assert first.lines and first.installation == directory_of(project).installation()
    after = everything(site)
    for again in (install(project, "crontab"), install(project), install(project, replace=True)):
        assert again.lines == () and again.steps == () and "already" in again.choice.why
        assert again.installation == first.installation
    assert everything(site) == after


def test_changes_are_updated_under_the_same_token(site: Site) -> None:
    first = install(site.project(), "crontab").installation
    again = install(site.project(more={"SLURM_CONF": "/etc/other.conf"}), "crontab")
    assert again.lines and again.installation.token == first.token
    assert again.installation.facts["$SLURM_CONF"] == "/etc/other.conf"
    assert directory_of(site.project()).installation() == again.installation
    assert (site.table() or b"").count(first.token.encode()) == 2


def test_a_line_that_was_removed_is_restored(site: Site) -> None:
    project = site.project()
    install(project, "crontab")
    whole = site.table()
    site.write_table(MINE)
    assert install(project).lines and site.table() == whole


def test_a_kill_between_the_record_and_the_line_is_repaired_by_the_next_install(site: Site) -> None:
    project = site.project()
    made = install(project, "crontab").installation
    uninstall(project)
    directory_of(project).install(made)  # as after kill -9 in between
    assert install(project).lines and (site.table() or b"").count(made.token.encode()) == 2


def test_another_backend_is_reported_and_removed_only_with_replace(site: Site) -> None:
    project = site.project()
    old = install(project, "crontab").installation
    with pytest.raises(AlreadyInstalled, match="you installed crontab on login1") as caught:
        install(project, "scrontab")
    assert "--backend scrontab --replace" in caught.value.hint and caught.value.exit_code == 1
    assert site.table("scrontab") is None
    shown = install(project, "scrontab", replace=True, dry_run=True)
    assert "remove" in shown.steps[0].what and directory_of(project).installation() == old
    done = install(project, "scrontab", replace=True)
    assert site.table() == MINE and done.installation.token.encode() in (site.table("scrontab") or b"")
    assert any("removed our lines" in note for note in done.notes)
    assert directory_of(project).installation() == done.installation


def test_a_second_install_names_the_owner_of_the_first(site: Site) -> None:
    install(site.project(), "crontab")
    before = everything(site)
    with pytest.raises(AlreadyInstalled, match=f"{ME} installed crontab on login1") as caught:
        install(seen_by(site.project(), user="carol"), "scrontab")
    assert "carol" not in caught.value.message and caught.value.exit_code == 1
    assert everything(site) == before


def test_two_users_at_the_same_time_install_one_scheduler(site: Site) -> None:
    for _ in range(5):
        one, two = site.project(), seen_by(site.project(), user="carol")
        start, results = threading.Barrier(2), dict[str, Any]()

        def work(project: Project, start: threading.Barrier = start, results: dict[str, Any] = results) -> None:
            start.wait()
            try:
                results[project.system.host.user] = install(project, "foreground")
            except AlreadyInstalled as error:
                results[project.system.host.user] = error

        threads = [threading.Thread(target=work, args=(project,)) for project in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = directory_of(one).installation()
        assert counts is not None
        (lost,) = [found for found in results.values() if isinstance(found, AlreadyInstalled)]
        assert f"{counts.by} installed" in lost.message and not isinstance(results[counts.by], AlreadyInstalled)
        directory_of(one).uninstall()


def test_the_same_user_twice_at_the_same_time_has_one_line(site: Site) -> None:
    project = site.project(clock=SystemClock())  # the lock has a deadline of its own
    start = threading.Barrier(3)
    errors: list[BaseException] = []

    def work() -> None:
        start.wait()
        try:
            install(project, "crontab")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    made = directory_of(project).installation()
    assert made is not None and (site.table() or b"").count(b"* * * * * /bin/sh") == 1
    assert (site.table() or b"").endswith(MINE) and made.token.encode() in (site.table() or b"")


def test_on_another_machine_the_host_of_the_installation_is_shown(site: Site) -> None:
    project = site.project()
    install(project, "crontab")
    there = seen_by(project, host="login2")
    for act in (install, uninstall):
        with pytest.raises(ResilError, match="it is installed in the crontab of login1, and this is login2"):
            act(there)
    assert directory_of(project).installation() is not None and directory_of(project).stopped() is None
    done = uninstall(there, force=True)
    assert directory_of(project).installation() is None and "login1" in done.notes[0]
    left = directory_of(project).stopped()
    assert left is not None and "login1" in left["why"], "the line on login1 ticks on, and is to run nothing"
    install(there, "crontab")
    assert directory_of(project).stopped() is None


def test_on_another_machine_replace_moves_it_here(site: Site) -> None:
    project = site.project()
    install(project, "crontab")
    done = install(seen_by(project, host="login2"), "crontab", replace=True)
    assert done.installation.host == "login2" and any("could not remove it" in note for note in done.notes)
    assert directory_of(project).stopped() is None and not any("resumed" in note for note in done.notes)


def test_projects_live_side_by_side(site: Site) -> None:
    one, two = site.project("one"), site.project("two")
    install(one, "crontab")
    both = install(two, "crontab").installation
    uninstall(one)
    assert both.token.encode() in (site.table() or b"") and (site.table() or b"").count(b"* * * * * /bin") == 1
    uninstall(two)
    assert site.table() == MINE


def test_a_copy_of_a_project_leaves_the_others_line_alone(site: Site) -> None:
    """`cp -r` copies the note with its token as well."""
    one = site.project("one")
    made = install(one, "crontab").installation
    shutil.copytree(one.loaded.project, site.directory / "two" / "project", symlinks=True)
    whole = site.table()
    for act in (stop, uninstall):
        two = site.project("two")
        assert act(two).installation is None and site.table() == whole
        shutil.copy(directory_of(one).path / "driver.json", directory_of(two).path / "driver.json")
    shown = install(site.project("two"), "crontab", dry_run=True)
    assert shown.steps and shown.installation.token != made.token
    done = install(site.project("two"), "crontab")
    assert done.installation.token != made.token and (site.table() or b"").endswith(whole or b"?")
    assert install(one).lines == () and directory_of(one).installation() == made


def test_a_project_that_moved_takes_its_line_along(site: Site) -> None:
    one = site.project("one")
    made = install(one, "crontab").installation
    (site.directory / "one" / "project").rename(site.directory / "moved")
    (site.directory / "two").mkdir()
    (site.directory / "moved").rename(site.directory / "two" / "project")
    done = install(site.project("two"))
    assert done.lines and done.installation.token == made.token
    table = (site.table() or b"").decode("utf-8", "surrogateescape")
    assert str(site.directory / "one" / "project") not in table and table.count("* * * * * /bin") == 1


def test_another_way_to_the_same_project_changes_nothing(site: Site) -> None:
    one = site.project("one")
    install(one, "foreground")
    (site.directory / "two").mkdir()
    (site.directory / "two" / "project").symlink_to(one.loaded.project)
    again = install(site.project("two"))
    assert again.installation.project == str(one.loaded.project) and again.lines == ()


def test_the_previous_driver_is_restored_if_the_new_one_fails(site: Site) -> None:
    project = site.project()
    old = install(project, "crontab").installation
    whole = site.table()
    site.break_program(*FAULTS["scrontab"])
    with pytest.raises(ResilError):
        install(project, "scrontab", replace=True)
    assert directory_of(project).installation() == old and site.table() == whole
    assert directory_of(project).stopped() is None


# ---- nothing half done ----------------------------------------------------------------------------------------------

FAULTS = {
    "crontab": ("crontab", '[ "$1" = - ] && { cat >/dev/null; echo "no space left on device" >&2; exit 1; }'),
    "scrontab": ("scrontab", '[ "$1" = -l ] || { echo "scrontab: error: no" >&2; exit 1; }'),
    "systemd": ("systemctl", '[ "$3" = enable ] && { echo "Access denied" >&2; exit 1; }'),
}


@pytest.mark.parametrize("name", FAULTS)
def test_after_a_failure_everything_is_as_it_was(site: Site, name: str) -> None:
    project = site.project()
    stop(project, "for the night")
    site.break_program(*FAULTS[name])
    before = everything(site)
    with pytest.raises(ResilError):
        install(project, name)
    assert everything(site) == before and directory_of(project).installation() is None
    stopped = directory_of(project).stopped()
    assert stopped is not None and stopped["why"] == "for the night", "and it is still stopped"


def test_an_interrupt_in_the_middle_leaves_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    project = site.project()
    monkeypatch.setattr(crontab.CrontabDriver, "install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        install(project, "crontab")
    assert directory_of(project).installation() is None


def test_a_failure_never_deletes_another_installation(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    project = site.project()

    def overtaken(self: object, installation: Any, *_: object) -> None:
        directory_of(project).uninstall()
        directory_of(project).install(replace(installation, token="fedcba9876543210", by="carol"))
        raise ResilError("it failed")

    monkeypatch.setattr(crontab.CrontabDriver, "install", overtaken)
    with pytest.raises(ResilError, match="it failed"):
        install(project, "crontab")
    counts = directory_of(project).installation()
    assert counts is not None and counts.by == "carol"


def killed_after(seconds: float, work: Callable[[], object]) -> None:
    """Do it in a process that is killed in the middle; return when all that it had started has ended."""
    keeper = os.fork()
    if keeper:
        os.waitpid(keeper, 0)
        return
    try:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become ours, and can be waited for
        victim = os.fork()
        if victim == 0:
            os.setsid()
            work()
            os._exit(0)
        time.sleep(seconds)
        os.kill(victim, signal.SIGKILL)
        while True:
            os.wait()  # until there is nobody any more
    finally:
        os._exit(0)


def test_a_kill_at_any_moment_loses_nothing_and_the_next_install_makes_it_whole(site: Site) -> None:
    rng = random.Random(7)
    project = site.project(clock=SystemClock())
    install(project, "crontab")
    began = time.monotonic()
    uninstall(project)
    install(project, "crontab")
    longest_s = time.monotonic() - began
    uninstall(project)
    for _ in range(4):
        killed_after(rng.uniform(0, longest_s), lambda: install(project, "crontab"))
        table = site.table() or b""
        assert table.endswith(MINE) and table.count(b"\n") in (2, 4), "all of our lines or none"
        assert install(project, "crontab").installation.token.encode() in (site.table() or b"")
        assert (site.table() or b"").count(b"* * * * * /bin/sh") == 1
        killed_after(rng.uniform(0, longest_s), lambda: uninstall(project))
        assert (site.table() or b"").endswith(MINE)
        uninstall(project)
        assert site.table() == MINE and directory_of(project).installation() is None
        assert directory_of(project).stopped() is None


def test_an_uninstall_that_fails_leaves_it_installed_and_running(site: Site) -> None:
    project = site.project()
    made = install(project, "crontab").installation
    site.break_program("crontab", "echo 'Segmentation fault' >&2; exit 139")
    with pytest.raises(ResilError, match="Segmentation fault"):
        uninstall(project)
    assert directory_of(project).installation() == made and directory_of(project).stopped() is None


def test_a_note_that_cannot_be_read_is_put_aside_only_when_that_is_meant(site: Site) -> None:
    project = site.project()
    install(project, "crontab")
    note = directory_of(project).path / "driver.json"
    note.write_text("{")
    for act in (install, uninstall):
        with pytest.raises(StateDirectoryError, match="damaged"):
            act(project)
    assert uninstall(project, force=True).lines, "our lines are found by the project that they name"
    assert site.table() == MINE and not note.exists()


# ---- uninstall and stop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["crontab", "scrontab", "systemd", "foreground", "slurm"])
def test_uninstall_brings_every_byte_back(site: Site, name: str) -> None:
    project = site.project()
    before = site.snapshot()
    install(project, name)
    assert uninstall(project).installation is not None
    assert {key: value for key, value in site.snapshot().items() if key != "scrontab.jobs"} == before
    assert directory_of(project).installation() is None and directory_of(project).stopped() is None
    assert not site.slurm.alive()
    assert uninstall(project).installation is None, "nothing to undo is no error"


def test_unrecorded_lines_are_removed_by_uninstall_and_replaced_by_install(site: Site) -> None:
    project = site.project()
    install(project, "crontab")
    directory_of(project).uninstall()  # the state directory was removed
    assert uninstall(project).lines and site.table() == MINE
    install(project, "crontab")
    directory_of(project).uninstall()
    install(project, "crontab")
    made = directory_of(project).installation()
    assert made is not None and (site.table() or b"").count(b"* * * * * /bin") == 1
    assert made.token.encode() in (site.table() or b"")


def test_stop_removes_the_driver_and_install_restores_it(site: Site) -> None:
    project = site.project()
    made = install(project, "crontab").installation
    stopped = stop(project, "the file system is full")
    assert stopped.lines and site.table() == MINE
    assert directory_of(project).installation() == made
    note = directory_of(project).stopped()
    assert note is not None and note["why"] == "the file system is full" and note["time"] >= NOW
    shown = install(project, dry_run=True)
    assert shown.steps and "stopped" in shown.notes[0] and directory_of(project).stopped() is not None
    again = install(project)
    assert again.lines and "the file system is full" in again.notes[0]
    assert directory_of(project).stopped() is None and made.token.encode() in (site.table() or b"")


@pytest.mark.parametrize("name", ["slurm", "foreground", "scrontab"])
def test_stop_leaves_nothing_queued(site: Site, name: str) -> None:
    project = site.project()
    install(project, name)
    stop(project)
    assert not site.slurm.alive() and site.table("scrontab") is None
    assert directory_of(project).stopped() is not None


def test_a_colleague_can_stop_a_scheduler_that_she_cannot_uninstall(site: Site) -> None:
    project = site.project()
    install(project, "crontab")
    done = stop(seen_by(project, user="carol"), "it fills the disk")
    note = directory_of(project).stopped()
    assert note is not None and note["by"] == "carol"
    assert "do nothing from now on" in done.notes[0] and site.table() != MINE


def test_a_driver_that_cannot_be_removed_is_stopped_all_the_same(site: Site) -> None:
    project = site.project()
    install(project, "slurm")
    site.stop_controller()
    done = stop(project)
    assert directory_of(project).stopped() is not None and "squeue does not answer" in done.notes[0]


def test_a_scheduler_that_was_never_installed_can_be_stopped(site: Site) -> None:
    project = site.project()
    assert stop(project).installation is None and directory_of(project).stopped() is not None


def test_ticks_that_were_never_installed_are_expected_until_uninstall(site: Site) -> None:
    project = site.project()
    now = project.system.clock.now()
    directory_of(project).beat(Heartbeat(time=now - 7200, expected=now - 7140, alive_since=now - 9999, driver="tick"))
    assert late_notice(project)
    assert "no further ticks are expected" in uninstall(project).notes[0]
    assert not late_notice(project) and uninstall(project).notes == ()


# ---- what the ticks get ---------------------------------------------------------------------------------------------


def test_the_ticks_get_what_they_need_and_no_secret(site: Site) -> None:
    more = {
        "TZ": "Europe/Berlin",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_JWT": "eyJhbGciOi",
        "https_proxy": "http://user:secret@proxy:3128",
        "http_proxy": "http://proxy:3128",
        "RESIL_RUN__COMMAND": "python train.py",
        "RESIL_ATTEMPT": "7",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "XDG_DATA_DIRS": "/a:/b",
    }
    made = install(site.project(more=more), "foreground").installation
    facts = {name[1:]: value for name, value in made.facts.items()}
    assert facts["TZ"] == "Europe/Berlin" and facts["RESIL_RUN__COMMAND"] == "python train.py"
    assert facts["http_proxy"] == "http://proxy:3128" and facts["SLURM_CONF"] == "/etc/slurm/slurm.conf"
    assert facts["RESIL_CONFIG"].endswith("project/resil.toml") and facts["SHELL"] == "/bin/sh"
    assert facts["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert facts["PATH"].endswith("/usr/local/bin:/usr/bin:/bin") or "/usr/bin" in facts["PATH"].split(":")
    assert not {"SLURM_JWT", "https_proxy", "RESIL_ATTEMPT", "SSH_AUTH_SOCK", "XDG_DATA_DIRS"} & set(facts)
    assert made.python == sys.executable and Path(made.python).is_absolute()


def test_the_users_own_settings_do_not_override_a_later_resil_toml(site: Site) -> None:
    (site.directory / "config" / "resil").mkdir(parents=True)
    (site.directory / "config" / "resil" / "config.toml").write_text('[run]\nname = "gpt"\n')
    (site.directory / "bare").mkdir()
    project = make_project(site.directory / "bare", site.queue, "", site.environ(), host=site.host)
    assert project.loaded.path == site.directory / "config" / "resil" / "config.toml"
    assert "$RESIL_CONFIG" not in install(project, "foreground").installation.facts


def test_the_directory_of_sbatch_is_on_the_path_of_the_ticks(site: Site, tmp_path: Path) -> None:
    opt = tmp_path / "opt" / "slurm" / "bin"
    opt.mkdir(parents=True)
    (opt / "sbatch").write_text("#!/bin/sh\n")
    (opt / "sbatch").chmod(0o755)
    made = install(site.project(more={"PATH": f"{site.bin}:/usr/bin:/bin:{opt}"}), "foreground").installation
    directories = made.facts["$PATH"].split(":")
    assert str(opt) in directories or "/usr/bin" in directories[:3], "the first sbatch of the person's own PATH"


def test_an_interpreter_that_needs_a_library_or_a_checkout_gets_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needs in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        python = tmp_path / f"python-{needs}"
        python.write_text(f'#!/bin/sh\n[ -n "${needs}" ] || {{ echo "cannot load" >&2; exit 1; }}\n')
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        more = {"LD_LIBRARY_PATH": "/opt/python/lib", "PYTHONPATH": "/opt/resil"}
        facts = cron_environment.facts_of(site.project(more=more))
        assert facts[f"${needs}"] == more[needs]
        assert {"$PYTHONPATH", "$LD_LIBRARY_PATH"} & set(facts) == {f"${needs}"}, "and nothing else"


def test_an_interpreter_that_does_not_start_is_reported_before_anything_is_written(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'libpython.so: cannot open shared object file' >&2; exit 127\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    project = site.project()
    before = everything(site)
    with pytest.raises(ResilError, match="libpython"):
        install(project, "crontab")
    assert everything(site) == before


def test_every_driver_is_known_by_the_name_of_its_file() -> None:
    found: object = cron_drivers.driver_of("crontab")
    assert found is crontab.DRIVER
