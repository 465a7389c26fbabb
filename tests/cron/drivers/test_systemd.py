"""The driver systemd: units that systemd itself finds in order, and a manager that stays when people log out."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.cron.drivers import availability_of, state_of
from resilience.cron.drivers._tables import unit_name
from resilience.cron.drivers.systemd import SystemdDriver
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from tests.cron.drivers.site import Site, a_python_that_says_what_it_was_told, an_installation
from tests.lab.fakes import ME

SETTINGS = CronSettings()
ANALYZE = shutil.which("systemd-analyze")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def driver(tmp_path: Path) -> SystemdDriver:
    return SystemdDriver(linger=tmp_path / "linger", runtime=tmp_path / "run")


def units(context: Context) -> tuple[Path, Path]:
    directory, name = context.system.config_home / "systemd" / "user", unit_name(an_installation(context, "systemd"))
    return directory / f"{name}.service", directory / f"{name}.timer"


def verify(path: Path) -> str:
    """What systemd itself finds wrong with a unit: `systemd-analyze verify`."""
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "--user", "--man=no", "--generators=no", "verify", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={"XDG_RUNTIME_DIR": str(path.parent), "HOME": str(path.parent)},
    )
    return "\n".join(line for line in (done.stdout + done.stderr).splitlines() if path.stem in line)


# ---- the units ------------------------------------------------------------------------------------------------------

ODD = ["plain", "it's a 100%h", 'say "hi" \\n back\\slash', "$HOME ${PATH} !x ;#&|*?", "süß"]


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze is installed here")
@pytest.mark.parametrize("odd", ODD)
def test_systemd_itself_finds_nothing_wrong_with_the_units(site: Site, driver: SystemdDriver, odd: str) -> None:
    context = site.context(odd)
    python = site.directory / f"venv {odd}" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    facts = {"$PATH": "/usr/bin:/bin", "$RESIL_CONFIG": f"{context.project}/resil.toml"}
    driver.install(replace(an_installation(context, "systemd"), python=str(python), facts=facts), SETTINGS, context)
    for path in units(context):
        assert verify(path) == ""
    service = units(context)[0]
    service.write_text(service.read_text().replace("ExecStart=", "ExecStart=/gone/"))
    assert verify(service), "it does find what is wrong"


def as_systemd_runs(service: str) -> list[str]:
    """Return the command of a unit. systemd.syntax(7): C's escapes in double quotes; `%%` is `%`, `$$` is `$`."""
    (line,) = re.findall(r"^ExecStart=/bin/sh -c \"(.*)\"$", service, re.MULTILINE)
    assert "$" not in line.replace("$$", "") and "%" not in line.replace("%%", "")
    escaped = re.sub(r"([%$])\1", r"\1", line)
    return ["/bin/sh", "-c", re.sub(r"\\(.)", lambda found: {"t": "\t"}.get(found[1], found[1]), escaped)]


@pytest.mark.parametrize("odd", [*ODD, "a\tb"])
def test_the_command_arrives_word_for_word_with_the_recorded_environment_alone(
    site: Site, driver: SystemdDriver, odd: str
) -> None:
    context = site.context(odd)
    with a_python_that_says_what_it_was_told(site.directory / f"venv {odd}") as python:
        facts = {"$PATH": "/usr/bin:/bin", "$PYTHONPATH": "/x", "$RESIL_RUN__NAME": f"a {odd}"}
        installation = replace(an_installation(context, "systemd"), python=str(python), facts=facts)
        driver.install(installation, SETTINGS, context)
        foreign = {"PATH": "/nowhere", "PYTHONHOME": "/y", "DBUS_SESSION_BUS_ADDRESS": "z"}
        subprocess.run(as_systemd_runs(units(context)[0].read_text()), env=foreign, cwd="/", check=True, timeout=60)
        words, environ, cwd = json.loads((python.parent / "told.json").read_text())
    assert words == ["-P", "-m", "resilience", "cron", "tick", "--no-wait", "--driver", "systemd"]
    assert {f"${key}": value for key, value in environ.items() if key != "LC_CTYPE"} == facts
    assert cwd == str(context.project)


def test_a_tick_ends_alone_and_its_runs_continue(site: Site, driver: SystemdDriver) -> None:
    context = site.context()
    driver.install(an_installation(context, "systemd"), SETTINGS, context)
    service, timer = (path.read_text() for path in units(context))
    assert "KillMode=process" in service and "--no-wait" in service and "Type=oneshot" in service
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(timer)
    assert parsed["Timer"]["OnCalendar"] == "*-*-* *:*:00" and parsed["Timer"]["AccuracySec"] == "1s"
    assert parsed["Timer"]["Unit"] == units(context)[0].name and parsed["Install"]["WantedBy"] == "timers.target"
    assert units(context)[0].stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze is installed here")
def test_the_timer_elapses_at_each_full_minute() -> None:
    assert ANALYZE is not None
    argv = [ANALYZE, "calendar", "--iterations=2", "--base-time=2026-11-20 10:00:30 UTC", "*-*-* *:*:00"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={"TZ": "UTC", "LC_ALL": "C"})
    assert "10:01:00" in done.stdout and "10:02:00" in done.stdout, done


@pytest.mark.parametrize("bad", ["a\nb", "a\udcffb"])
def test_characters_that_no_unit_can_express_are_refused_before_anything_is_written(
    site: Site, driver: SystemdDriver, bad: str
) -> None:
    context = site.context()
    with pytest.raises(ResilError, match=r"line break|UTF-8"):
        driver.install(replace(an_installation(context, "systemd"), project=f"/p/{bad}"), SETTINGS, context)
    assert not any(path.exists() for path in units(context))


# ---- nobody else's file ---------------------------------------------------------------------------------------------


def test_a_foreign_unit_is_never_changed(site: Site, driver: SystemdDriver) -> None:
    context = site.context()
    service = units(context)[0]
    service.parent.mkdir(parents=True)
    service.write_text("[Service]\nExecStart=/bin/true\n")
    installation = an_installation(context, "systemd")
    for act in (driver.plan, driver.install):
        with pytest.raises(ResilError, match="resil did not write it"):
            act(installation, SETTINGS, context)
    assert list(driver.uninstall(installation, SETTINGS, context)) == []
    assert service.read_text() == "[Service]\nExecStart=/bin/true\n" and not units(context)[1].exists()


def test_a_manager_that_will_not_leaves_nothing_half_done(site: Site, driver: SystemdDriver) -> None:
    site.break_program("systemctl", '[ "$3" = enable ] && { echo "Failed to enable unit: Access denied" >&2; exit 1; }')
    context = site.context()
    with pytest.raises(ResilError, match="Access denied"):
        driver.install(an_installation(context, "systemd"), SETTINGS, context)
    assert not any(path.exists() for path in units(context))


def test_a_failed_change_brings_the_older_units_back(site: Site, driver: SystemdDriver) -> None:
    context = site.context()
    driver.install(an_installation(context, "systemd"), SETTINGS, context)
    before = [path.read_text() for path in units(context)]
    site.break_program("systemctl", '[ "$3" = daemon-reload ] && [ ! -e "$SITE/x" ] && { touch "$SITE/x"; exit 1; }')
    newer = replace(an_installation(context, "systemd"), python="/new/python")
    with pytest.raises(ResilError, match="daemon-reload failed"):
        driver.install(newer, SETTINGS, context)
    assert [path.read_text() for path in units(context)] == before


# ---- whether it can be used -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "degraded", "starting"])
def test_a_manager_that_answers_and_lingers_will_do(site: Site, driver: SystemdDriver, state: str) -> None:
    (site.directory / "manager").write_text(f"{state}\n")
    assert availability_of(driver, site.context()).is_available


def test_without_linger_the_ticks_would_end_with_the_login(site: Site, driver: SystemdDriver) -> None:
    (site.directory / "linger" / ME).unlink()
    found = availability_of(driver, site.context())
    assert not found.is_available and "linger is off" in found.reason and "enable-linger" in found.hint
    site.break_program("loginctl", "echo Linger=yes; exit 0")
    assert availability_of(driver, site.context()).is_available


def test_linger_may_be_unknown(site: Site) -> None:
    driver = SystemdDriver(linger=site.directory / "gone", runtime=site.directory / "run")
    found = availability_of(driver, site.context())
    assert not found.is_available and "cannot determine" in found.reason


def test_no_manager_no_ticks(site: Site, driver: SystemdDriver) -> None:
    (site.directory / "manager").unlink()
    found = availability_of(driver, site.context())
    assert not found.is_available and "offline" in found.reason
    state = state_of(driver, an_installation(site.context(), "systemd"), SETTINGS, site.context())
    assert state.liveness is Liveness.UNKNOWN and "No medium found" in state.summary


def test_the_way_to_the_manager_is_found_where_the_login_does_not_say_it(site: Site, driver: SystemdDriver) -> None:
    context = site.context()
    own = site.directory / "run" / str(context.system.host.uid)
    own.mkdir(parents=True)
    site.break_program("systemctl", 'echo "$XDG_RUNTIME_DIR" >"$SITE/seen"')
    availability_of(driver, context)
    assert (site.directory / "seen").read_text().strip() == str(own)


def test_a_stopped_timer_is_gone_and_is_restored(site: Site, driver: SystemdDriver) -> None:
    context = site.context()
    installation = an_installation(context, "systemd")
    driver.install(installation, SETTINGS, context)
    (site.directory / f"active.{units(context)[1].name}").unlink()
    state = state_of(driver, installation, SETTINGS, context)
    assert state.liveness is Liveness.GONE and "inactive" in state.summary
    (step,) = driver.plan(installation, SETTINGS, context)
    assert "enable --now" in step.text
    assert driver.install(installation, SETTINGS, context)
    assert state_of(driver, installation, SETTINGS, context).liveness is Liveness.ALIVE


def test_a_timer_is_removed_however_the_state_directory_is_spelled(site: Site, driver: SystemdDriver) -> None:
    context = site.context()
    installation = an_installation(context, "systemd")
    driver.install(installation, SETTINGS, context)
    (site.directory / "link").symlink_to(context.state_dir.parent)
    driver.uninstall(installation, SETTINGS, context._replace(state_dir=site.directory / "link" / ".resil"))
    assert not any(path.exists() for path in units(context))


def test_an_unrecorded_timer_is_removed_with_the_next_installation(site: Site, driver: SystemdDriver) -> None:
    context, other = site.context(), site.context("two")
    driver.install(an_installation(context, "systemd"), SETTINGS, context)
    driver.install(an_installation(other, "systemd", "aaaaaaaaaaaaaaaa"), SETTINGS, other)
    newer = an_installation(context, "systemd", "fedcba9876543210")
    assert state_of(driver, newer, SETTINGS, context).liveness is Liveness.GONE
    assert any("older timer" in step.what for step in driver.plan(newer, SETTINGS, context))
    assert driver.install(newer, SETTINGS, context)
    assert state_of(driver, newer, SETTINGS, context).liveness is Liveness.ALIVE
    assert not any(path.exists() for path in units(context)), "of the older one nothing is left"
    assert driver.uninstall(newer, SETTINGS, context)
    left = sorted(path.name for path in units(context)[0].parent.glob("resil-cron-*"))
    assert left == ["resil-cron-aaaaaaaa.service", "resil-cron-aaaaaaaa.timer"], "and of others everything"


def test_linger_disabled_later_is_reported(site: Site, driver: SystemdDriver) -> None:
    context = site.context()
    driver.install(an_installation(context, "systemd"), SETTINGS, context)
    assert state_of(driver, an_installation(context, "systemd"), SETTINGS, context).hint == ""
    (site.directory / "linger" / ME).unlink()
    assert "enable-linger" in state_of(driver, an_installation(context, "systemd"), SETTINGS, context).hint


def test_an_installation_elsewhere_cannot_be_checked_here(site: Site, driver: SystemdDriver) -> None:
    context = site.context()
    there = replace(an_installation(context, "systemd"), host="login2")
    assert state_of(driver, there, SETTINGS, context).liveness is Liveness.UNKNOWN
    with pytest.raises(ResilError, match="login2"):
        driver.uninstall(there, SETTINGS, context)
