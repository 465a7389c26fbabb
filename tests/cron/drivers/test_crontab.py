"""The driver crontab: its line works wherever it stands, and nobody else's is ever touched."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from resilience.cron.drivers import availability_of, crontab, state_of
from resilience.cron.drivers._tables import script_file
from resilience.cron.drivers.crontab import DRIVER, CrontabDriver
from resilience.cron.records import Heartbeat
from resilience.cron.state_directory import CronDirectory
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.ports import SystemClock
from tests.cron.drivers.real_cron import (
    OTHER,
    PROJECT,
    USER,
    a_cron_daemon,
    a_home,
    a_user_with_a_crontab,
    raw_table,
    requirements,
)
from tests.cron.drivers.site import Site, a_python_that_says_what_it_was_told, an_installation
from tests.cron.drivers.test_tables import TABLES
from tests.lab.fakes import NOW

SETTINGS = CronSettings()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(crontab, "find_daemon", lambda *_: "cron, process 1")
    return Site(tmp_path)


def as_cron_runs(line: str) -> list[str]:
    """What cron hands to the shell for a line: crontab(5), and `child_process` in cron's do_command.c."""
    command, result, escaped = line.split(" ", 5)[5], "", False
    for character in command:
        if character == "%" and not escaped:
            break
        if character == "%":
            result = result[:-1]
        result += character
        escaped = character == "\\"
    return ["/bin/sh", "-c", result]


# ---- nobody else's line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_the_same_after_install_and_uninstall(site: Site, name: str) -> None:
    context = site.context()
    installation = an_installation(context, "crontab")
    site.write_table(TABLES[name])
    assert DRIVER.install(installation, SETTINGS, context)
    assert (site.table() or b"").endswith(TABLES[name])
    assert state_of(DRIVER, installation, SETTINGS, context).liveness is Liveness.ALIVE
    DRIVER.uninstall(installation, SETTINGS, context)
    assert (site.table() or b"") == TABLES[name]


def test_where_there_was_no_table_there_is_none_afterwards(site: Site) -> None:
    context = site.context()
    DRIVER.install(an_installation(context, "crontab"), SETTINGS, context)
    assert site.table()
    DRIVER.uninstall(an_installation(context, "crontab"), SETTINGS, context)
    assert site.table() is None


@pytest.mark.skipif(bool(requirements()), reason=requirements())
@pytest.mark.parametrize("name", [name for name in TABLES if not name.startswith(("blanks", "another", "no newline"))])
def test_a_real_crontab_has_the_same_bytes_afterwards(site: Site, name: str) -> None:
    raw = TABLES[name].replace(b"\r\n\r\n", b"\r\n")  # cron takes a carriage return on a line of its own for an entry
    raw = b"".join(raw.splitlines(keepends=True)[:9990]) if "thousand" in name else raw
    with a_user_with_a_crontab(OTHER) as user:
        context = site.context()
        host = context.system.host._replace(user=OTHER)
        context = context._replace(system=replace(context.system, runner=user, environ={}, host=host))
        table = raw.decode("utf-8", "surrogateescape")
        if table.strip():
            done = user.run(["crontab", "-"], timeout_s=60, stdin=table)
            assert raw_table(OTHER) == raw, done
        installation = an_installation(context, "crontab")
        assert DRIVER.install(installation, SETTINGS, context)
        assert DRIVER.install(installation, SETTINGS, context) == ()
        expected = raw if table.strip() else b""
        assert raw_table(OTHER).endswith(expected) and raw_table(OTHER).count(installation.token.encode()) == (
            2 + expected.count(installation.token.encode())
        )
        DRIVER.uninstall(installation, SETTINGS, context)
        assert raw_table(OTHER) == expected


@pytest.mark.skipif(bool(requirements()), reason=requirements())
def test_a_real_crontab_that_is_full_says_so_and_stays(site: Site) -> None:
    full = "".join(f"# {number}\n" for number in range(10_000))  # as many lines as Debian's takes
    with a_user_with_a_crontab(OTHER) as user:
        if user.run(["crontab", "-"], timeout_s=60, stdin=f"{full}# one more\n").returncode == 0:
            pytest.skip("this crontab takes more than 10,000 lines")
        user.run(["crontab", "-"], timeout_s=60, stdin=full)
        context = site.context()
        host = context.system.host._replace(user=OTHER)
        context = context._replace(system=replace(context.system, runner=user, environ={}, host=host))
        with pytest.raises(ResilError, match="crontab is too long"):
            DRIVER.install(an_installation(context, "crontab"), SETTINGS, context)
        assert raw_table(OTHER) == full.encode()


def test_two_characters_that_look_like_a_carriage_return_stay_two(site: Site) -> None:
    before = b"0 3 * * * printf 'a\\r\\n'\n"
    site.write_table(before)
    context = site.context()
    DRIVER.install(an_installation(context, "crontab"), SETTINGS, context)
    assert (site.table() or b"").endswith(before)


def test_a_concurrent_write_is_kept(site: Site) -> None:
    site.write_table(b"0 3 * * * mine\n")
    site.break_program(
        "crontab",
        'if [ "$1" = - ] && [ ! -e "$SITE/once" ]; then cat >/dev/null; touch "$SITE/once"\n'
        'printf "0 3 * * * mine\\n7 7 * * * theirs\\n" >"$SITE/crontab.table"; exit 0; fi',
    )
    context = site.context()
    assert DRIVER.install(an_installation(context, "crontab"), SETTINGS, context)
    assert (site.table() or b"").endswith(b"0 3 * * * mine\n7 7 * * * theirs\n")
    assert state_of(DRIVER, an_installation(context, "crontab"), SETTINGS, context).liveness is Liveness.ALIVE


def test_a_table_that_never_holds_still_is_an_error_and_not_a_loop(site: Site) -> None:
    site.break_program(
        "crontab", 'if [ "$1" = - ]; then cat >/dev/null; echo "# $$" >"$SITE/crontab.table"; exit 0; fi'
    )
    context = site.context()
    with pytest.raises(ResilError, match="keeps changing"):
        DRIVER.install(an_installation(context, "crontab"), SETTINGS, context)


def test_many_that_install_at_once_lose_no_line(site: Site) -> None:
    site.write_table(b"0 3 * * * mine\n")
    contexts = [site.context(f"p{number}") for number in range(6)]
    made = [an_installation(context, "crontab", f"{number:016x}") for number, context in enumerate(contexts)]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(2):
                DRIVER.install(made[number], SETTINGS, real_clock(contexts[number]))
        except BaseException as error:
            errors.append(error)

    def real_clock(context: Context) -> Context:
        return context._replace(system=replace(context.system, clock=SystemClock()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    table = site.table() or b""
    assert all(table.count(one.token.encode()) == 2 for one in made) and table.endswith(b"0 3 * * * mine\n")


@pytest.mark.parametrize(
    ("table", "fault", "match"),
    [
        (b"* * * * * true\r\n", '[ "$1" = -e ] && exit 1', "carriage returns"),
        (
            b"0 3 * * * mine\n",
            '[ "$1" = - ] && { echo \'"-":7: bad minute\' >&2; echo "errors in crontab file" >&2; exit 1; }',
            "bad minute; errors in crontab file",
        ),
        (  # after the write, the first listing fails
            b"0 3 * * * mine\n",
            '[ "$1" = - ] && touch "$SITE/written"\n'
            '[ "$1" = -l ] && [ -e "$SITE/written" ] && { rm "$SITE/written"; echo boom >&2; exit 1; }',
            "boom",
        ),
    ],
)
def test_a_table_that_cannot_be_read_or_written_stays_as_it_was(
    site: Site, table: bytes, fault: str, match: str
) -> None:
    site.write_table(table)
    site.break_program("crontab", fault)
    context = site.context()
    with pytest.raises(ResilError, match=match):
        DRIVER.install(an_installation(context, "crontab"), SETTINGS, context)
    assert site.table() == table


# ---- whether it can be used ------------------------------------------------------------------------------------------

SAID = {
    "You (alice) are not allowed to use this program (crontab)\nSee crontab(1) for more information": "cron.allow",
    "You (alice) are not allowed to access to (crontab) because of pam configuration.": "cron.allow",
    "/var/spool/cron: Permission denied": "cron.allow",
    "crontab: can't open or create /var/run/crond.pid: Disk quota exceeded": "",
}


@pytest.mark.parametrize("said", SAID)
def test_a_user_without_access_to_crontab_gets_the_reason(site: Site, said: str) -> None:
    site.break_program("crontab", f"echo {shlex.quote(said)} >&2; exit 1")
    found = availability_of(DRIVER, site.context())
    assert not found.is_available and said.split("\n")[0] in found.reason and SAID[said] in found.hint
    assert (
        state_of(DRIVER, an_installation(site.context(), "crontab"), SETTINGS, site.context()).liveness
        is Liveness.UNKNOWN
    )


@pytest.mark.parametrize("said", ["no crontab for alice", "crontab: can't open 'alice': No such file or directory"])
def test_a_missing_table_is_no_error(site: Site, said: str) -> None:
    site.break_program("crontab", f'[ "$1" = -l ] && {{ echo {shlex.quote(said)} >&2; exit 1; }}')
    assert availability_of(DRIVER, site.context()).is_available


def with_processes(named: Mapping[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that /proc shows."""
    found = [SimpleNamespace(pid=pid, info={"name": name}) for pid, name in named.items()]
    monkeypatch.setattr(psutil, "process_iter", lambda attributes: found)
    monkeypatch.setattr(psutil, "pids", lambda: list(named))


def test_without_a_daemon_a_table_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    with_processes({1: "init"}, monkeypatch)
    driver = CrontabDriver(pid_files=())
    found = availability_of(driver, site.context())
    assert not found.is_available and "no cron daemon runs on login1" in found.reason and "enable --now" in found.hint
    site.write_table(
        "\n".join(DRIVER.lines(an_installation(site.context(), "crontab"), SETTINGS, site.context())[0]).encode()
        + b"\n"
    )
    state = state_of(driver, an_installation(site.context(), "crontab"), SETTINGS, site.context())
    assert state.liveness is Liveness.GONE and "no cron daemon" in state.summary
    with_processes({1: "init", 77: "crond"}, monkeypatch)
    assert availability_of(driver, site.context()).is_available


def test_where_processes_are_hidden_the_pid_file_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    with_processes({}, monkeypatch)
    hidden = CrontabDriver(pid_files=(str(tmp_path / "crond.pid"),))
    assert "hides whether" in availability_of(hidden, site.context()).reason
    (tmp_path / "crond.pid").write_text(f"{os.getpid()}\n")
    assert availability_of(hidden, site.context()).is_available
    (tmp_path / "crond.pid").write_text(f"{2**22 + 1}\n")
    assert not availability_of(hidden, site.context()).is_available, "the daemon that wrote it has ended"


def test_a_project_in_afs_is_not_for_cron_which_has_no_token(site: Site) -> None:
    found = availability_of(DRIVER, site.context()._replace(project=Path("/afs/cern.ch/user/a/alice")))
    assert not found.is_available and "AFS" in found.reason


def test_an_installation_elsewhere_cannot_be_checked_here(site: Site) -> None:
    context = site.context()
    there = replace(an_installation(context, "crontab"), host="login2")
    state = state_of(DRIVER, there, SETTINGS, context)
    assert state.liveness is Liveness.UNKNOWN and "login2" in state.summary and "ssh login2" in state.hint
    for act in (DRIVER.install, DRIVER.uninstall, DRIVER.plan):
        with pytest.raises(ResilError, match="login2"):
            act(there, SETTINGS, context)
    hers = replace(an_installation(context, "crontab"), by="carol")
    with pytest.raises(ResilError, match="carol"):
        DRIVER.uninstall(hers, SETTINGS, context)


def test_a_line_that_was_commented_out_is_detected_and_restored(site: Site) -> None:
    context = site.context()
    installation = an_installation(context, "crontab")
    DRIVER.install(installation, SETTINGS, context)
    lines = (site.table() or b"").decode().split("\n")
    site.write_table("\n".join([lines[0], f"#{lines[1]}", "0 3 * * * mine", ""]).encode())
    state = state_of(DRIVER, installation, SETTINGS, context)
    assert (
        state.liveness is Liveness.GONE and "was commented out" in state.summary and "resil cron install" in state.hint
    )
    assert DRIVER.install(installation, SETTINGS, context)
    assert state_of(DRIVER, installation, SETTINGS, context).liveness is Liveness.ALIVE
    assert site.table() == "\n".join([*lines[:2], "0 3 * * * mine", ""]).encode()


# ---- the line itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["plain", "with a blank", "100%", "it's", 'say "hi"', "$HOME `id` !x ;#&|*?", "süß"])
def test_the_command_arrives_word_for_word_whatever_the_paths_are_called(site: Site, odd: str) -> None:
    context = site.context(odd)
    with a_python_that_says_what_it_was_told(site.directory / f"venv {odd}") as python:
        facts = {
            "$PATH": "/usr/bin:/bin",
            "$RESIL_CONFIG": f"{context.project}/resil.toml",
            "$RESIL_RUN__NAME": f"a {odd}",
        }
        installation = replace(an_installation(context, "crontab"), python=str(python), facts=facts)
        DRIVER.install(installation, SETTINGS, context)
        line = (site.table() or b"").decode().split("\n")[1]
        foreign = {"PATH": "/nowhere", "HOME": "/x", "PYTHONPATH": "/x", "MAILTO": "x", "SHELL": "/bin/csh"}
        done = subprocess.run(as_cron_runs(line), env=foreign, cwd="/", capture_output=True, timeout=60)
        words, environ, cwd = json.loads((python.parent / "told.json").read_text())
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0), "cron would mail it, every minute"
    assert words == ["-P", "-m", "resilience", "cron", "tick", "--driver", "crontab"]
    assert {key: value for key, value in environ.items() if key != "LC_CTYPE"} == {
        name[1:]: value for name, value in facts.items()
    }
    assert cwd == str(context.project)
    assert (context.state_dir / ".cron" / "driver" / "crontab.out").read_text() == "on standard output\n"


def test_a_tick_that_cannot_start_is_silent_and_its_words_are_kept(site: Site) -> None:
    context = site.context()
    installation = replace(an_installation(context, "crontab"), python="/gone/python")
    DRIVER.install(installation, SETTINGS, context)
    line = (site.table() or b"").decode().split("\n")[1]
    done = subprocess.run(as_cron_runs(line), capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"") and done.returncode != 0
    assert "/gone/python" in (context.state_dir / ".cron" / "driver" / "crontab.out").read_text()


def test_the_output_of_a_failed_tick_is_found(site: Site) -> None:
    context = site.context()
    installation = replace(an_installation(context, "crontab"), python="/gone/python")
    DRIVER.install(installation, SETTINGS, context)
    assert state_of(DRIVER, installation, SETTINGS, context).hint == ""
    line = (site.table() or b"").decode().split("\n")[1]
    subprocess.run(as_cron_runs(line), capture_output=True, timeout=60)
    state = state_of(DRIVER, installation, SETTINGS, context)
    assert state.liveness is Liveness.ALIVE and "/gone/python" in state.hint
    CronDirectory(context.state_dir).beat(Heartbeat(time=NOW, expected=NOW + 60, alive_since=NOW))
    assert state_of(DRIVER, installation, SETTINGS, context).hint == "", "a later tick was well"


def test_a_cron_that_lists_a_header_of_its_own_gets_no_second_one(site: Site) -> None:
    """As ISC cron does: three lines above the table, made anew at each installation."""
    site.write_table(b"0 3 * * * mine\n")
    site.break_program(
        "crontab",
        """[ "$1" = -l ] && [ -e "$SITE/crontab.table" ] && printf '%s\\n' \\
        '# DO NOT EDIT THIS FILE - edit the master and reinstall.' \\
        '# (- installed on Fri Nov 20)' '# (Cron version V5)'""",
    )
    context = site.context()
    for _ in range(3):
        DRIVER.install(an_installation(context, "crontab"), SETTINGS, context)
        assert b"DO NOT EDIT" not in (site.table() or b"")
        DRIVER.uninstall(an_installation(context, "crontab"), SETTINGS, context)
        assert site.table() == b"0 3 * * * mine\n"


def test_without_the_state_directory_nothing_runs_and_no_mail_is_sent(site: Site) -> None:
    context = site.context()
    with a_python_that_says_what_it_was_told(site.directory / "venv") as python:
        line = DRIVER.lines(replace(an_installation(context, "crontab"), python=str(python)), SETTINGS, context)[0][1]
        done = subprocess.run(as_cron_runs(line), capture_output=True, timeout=60)
        assert (done.stdout, done.stderr) == (b"", b"") and not (python.parent / "told.json").exists()


def test_a_command_that_is_too_long_for_cron_goes_into_a_script(site: Site) -> None:
    context = site.context()
    with a_python_that_says_what_it_was_told(site.directory / "venv") as python:
        facts = {"$LD_LIBRARY_PATH": ":".join(f"/opt/module/{number}/lib" for number in range(100))}
        installation = replace(an_installation(context, "crontab"), python=str(python), facts=facts)
        assert [
            step.text for step in DRIVER.plan(installation, SETTINGS, context) if facts["$LD_LIBRARY_PATH"] in step.text
        ]
        DRIVER.install(installation, SETTINGS, context)
        assert DRIVER.install(installation, SETTINGS, context) == ()
        line = (site.table() or b"").decode().split("\n")[1]
        assert len(line) < 999 and script_file(context, "crontab").stat().st_mode & 0o777 == 0o700
        subprocess.run(as_cron_runs(line), capture_output=True, timeout=60)
        assert json.loads((python.parent / "told.json").read_text())[1]["LD_LIBRARY_PATH"] == facts["$LD_LIBRARY_PATH"]
    DRIVER.uninstall(installation, SETTINGS, context)
    assert not script_file(context, "crontab").exists()


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\\b"])
def test_inexpressible_characters_are_refused_before_anything_is_written(site: Site, bad: str) -> None:
    context = site.context()
    with pytest.raises(ResilError, match="a crontab cannot express"):
        DRIVER.install(replace(an_installation(context, "crontab"), project=f"/p/{bad}"), SETTINGS, context)
    assert site.table() is None


def test_the_next_tick_is_the_next_full_minute(site: Site) -> None:
    context = site.context()
    DRIVER.install(an_installation(context, "crontab"), SETTINGS, context)
    state = state_of(DRIVER, an_installation(context, "crontab"), SETTINGS, context)
    assert state.next_tick is not None and state.next_tick % 60 == 0 and NOW < state.next_tick <= NOW + 60


# ---- the real thing -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(requirements("cron")), reason=requirements("cron"))
def test_a_real_cron_ticks_and_everybody_elses_lines_stay(tmp_path: Path) -> None:
    """Installed by the command line, ticked by cron at a full minute, uninstalled: it takes up to that long."""
    theirs = "MAILTO=nobody\nPATH=/nowhere\nSHELL=/bin/false\n# \udcff\r\n5 3 1 1 * /bin/true 100\\%\n"
    with a_user_with_a_crontab() as user, a_cron_daemon(tmp_path / "cron.log"), a_home() as home:
        project = home / PROJECT
        (project / "resil.toml").write_text('[run]\nname = "real"\n')
        environ = {"PATH": f"{home}/bin:/usr/bin:/bin", "HOME": str(home), "LOGNAME": USER}

        def resil(*words: str) -> str:
            done = user.run(["resil", *words], timeout_s=200, env=environ, cwd=str(project))
            assert done.returncode == 0, done
            return done.stdout

        line = "@reboot /usr/bin/env SEEN=1 /usr/bin/touch 'ran by cron'  # resil: name=once"
        user.run(
            ["/bin/sh", "-c", f'umask 022; mkdir cron && echo "{line}" >cron/crontab'], timeout_s=60, cwd=str(project)
        )
        user.run(["crontab", "-"], timeout_s=60, stdin=theirs)
        before = raw_table()
        assert b"\r" in before
        assert "write these lines" in resil("cron", "install", "--backend", "crontab", "--dry-run")
        assert raw_table() == before
        assert "every minute" in resil("cron", "install", "--backend", "crontab")
        heartbeat = project / ".resil" / ".cron" / "heartbeat"
        deadline = time.monotonic() + 200
        while not heartbeat.exists() and time.monotonic() < deadline:
            time.sleep(0.25)
        output = project / ".resil" / ".cron" / "driver" / "crontab.out"
        assert heartbeat.exists(), output.read_text() if output.exists() else "cron never ran it"
        beat = json.loads(heartbeat.read_text())
        assert beat["driver"] == "crontab" and beat["time"] % 60 < 55, beat
        while not (project / "ran by cron").exists() and time.monotonic() < deadline:
            time.sleep(0.25)
        assert (project / "ran by cron").stat().st_uid == pwd.getpwnam(USER).pw_uid, "it ran, with the owner's rights"
        assert "no change: already installed" in resil("cron", "install")
        resil("cron", "uninstall")
        assert raw_table() == before
        assert not (project / ".resil" / ".cron" / "driver.json").exists()
