"""What every driver of cron promises: the built-in ones, and the guide's, dropped into a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from resilience.cron import driver_choice as cron_drivers
from resilience.cron.driver_choice import driver_of
from resilience.cron.drivers import (
    Availability,
    Driver,
    DriverState,
    Step,
    _tables,
    availability_of,
    crontab,
    state_of,
    systemd,
)
from resilience.cron.records import Heartbeat, Installation
from resilience.cron.state_directory import CronDirectory
from resilience.job import Liveness
from resilience.plugins import PLUGIN_PATH, Family
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from tests.cron.drivers.site import Site, an_installation
from tests.lab.fakes import NOW

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "write-a-driver.md"
BUILT_IN = Family("drivers", "DRIVER", ()).names()
EVERYBODY = (*BUILT_IN, "sitecron")
SETTINGS = CronSettings()
BEFORE = b"MAILTO=me@example.org\n# mine\n0 3 * * * /bin/true\n"


class Stage(NamedTuple):
    """A driver on a machine where it can be used."""

    driver: Driver
    site: Site
    context: Context
    installation: Installation


def heartbeat(stage: Stage) -> None:
    """A process of ours ticks."""
    beat = Heartbeat(time=NOW, expected=NOW + 60, alive_since=NOW, host="login1", pid=os.getpid())
    CronDirectory(stage.context.state_dir).beat(beat)


def nothing(_: Stage) -> None:
    """Nothing happens."""


BLIND: dict[str, Callable[[Stage], object]] = {
    "crontab": lambda stage: stage.site.break_program("crontab", "echo 'Segmentation fault' >&2; exit 139"),
    "scrontab": lambda stage: stage.site.break_program("scrontab", "echo 'Unable to contact slurmctld' >&2; exit 1"),
    "systemd": lambda stage: stage.site.break_program("systemctl", "echo 'Connection timed out' >&2; exit 1"),
    "slurm": lambda stage: stage.site.stop_controller(),
    "foreground": lambda stage: (stage.context.state_dir / ".cron" / "heartbeat").write_text("{"),
    "sitecron": lambda stage: (stage.site.directory / "sitecron").rename(stage.site.directory / "unmounted"),
}
"""How each comes to be unable to look."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    text = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert text is not None
    plugins = tmp_path / "plugins"
    (plugins / "drivers").mkdir(parents=True)
    (plugins / "drivers" / "sitecron.py").write_text(text[1])
    monkeypatch.setenv(PLUGIN_PATH, str(plugins))
    monkeypatch.setattr(_tables, "READ_S", 20.0)
    monkeypatch.setattr(crontab, "find_daemon", lambda *_: "cron, process 1")
    monkeypatch.setattr(systemd, "DRIVER", systemd.SystemdDriver(linger=tmp_path / "site" / "linger"))
    cron_drivers.drivers.cache_clear()
    (tmp_path / "site").mkdir()
    found = Site(tmp_path / "site")
    (found.directory / "sitecron").mkdir()
    (found.directory / "sitecron" / "colleague").write_bytes(BEFORE)
    found.write_table(BEFORE, "crontab")
    found.write_table(BEFORE.replace(b"MAILTO=me@example.org\n", b""), "scrontab")
    yield found
    cron_drivers.drivers.cache_clear()


def stage_of(site: Site, name: str, project: str = "one", token: str = "0123456789abcdef") -> Stage:
    context = site.context(project)
    system = context.system
    environ = {**system.environ, "SITECRON": str(site.directory / "sitecron")}
    context = context._replace(system=type(system)(system.clock, system.runner, environ, system.host, system.cwd))
    installation = an_installation(context, name, token, "daemon" if name == "slurm" else "")
    CronDirectory(context.state_dir).install(installation)  # as `resil cron install` does first
    return Stage(driver_of(name), site, context, installation)


def test_there_are_the_five_that_the_house_promises() -> None:
    assert {"scrontab", "crontab", "systemd", "slurm", "foreground"} <= set(BUILT_IN)
    ranks = [driver_of(name).rank for name in ("scrontab", "crontab", "systemd", "slurm", "foreground")]
    assert ranks == sorted(set(ranks)), "what `auto` prefers"


@pytest.mark.parametrize("name", EVERYBODY)
def test_it_says_in_a_line_what_it_is(site: Site, name: str) -> None:
    driver = driver_of(name)
    assert 5 < len(driver.summary) < 100 and "\n" not in driver.summary and isinstance(driver.rank, int)


@pytest.mark.parametrize("name", EVERYBODY)
def test_it_is_available_where_it_can_be_used_and_says_why(site: Site, name: str) -> None:
    stage = stage_of(site, name)
    before = site.snapshot()
    found = availability_of(stage.driver, stage.context)
    assert isinstance(found, Availability) and found.is_available and found.reason, found
    assert site.snapshot() == before


@pytest.mark.parametrize("name", [name for name in EVERYBODY if name not in ("foreground", "slurm")])
def test_without_its_program_it_is_not_available_and_nobody_is_hurt(site: Site, name: str, tmp_path: Path) -> None:
    stage = stage_of(site, name)
    (tmp_path / "empty").mkdir()
    system = stage.context.system
    bare = type(system)(system.clock, system.runner, {"PATH": str(tmp_path / "empty")}, system.host, system.cwd)
    context = stage.context._replace(system=bare)
    found = availability_of(stage.driver, context)
    assert not found.is_available and found.reason
    assert state_of(stage.driver, stage.installation, SETTINGS, context).liveness is Liveness.UNKNOWN


@pytest.mark.parametrize("name", ["crontab", "scrontab", "systemd"])
def test_a_program_that_hangs_is_left_and_nothing_is_known(
    site: Site, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stage_of(site, name)
    site.break_program({"systemd": "systemctl"}.get(name, name), "exec sleep 1000")
    monkeypatch.setattr(_tables, "READ_S", 0.3)
    context = stage.context._replace(scheduler_deadline_s=0.3)
    found = availability_of(stage.driver, context)
    assert not found.is_available and "0.3 s" in found.reason
    assert state_of(stage.driver, stage.installation, SETTINGS, context).liveness is Liveness.UNKNOWN


@pytest.mark.parametrize("name", EVERYBODY)
def test_a_dry_run_changes_nothing_and_shows_every_word(site: Site, name: str) -> None:
    stage = stage_of(site, name)
    before = site.snapshot()
    steps = stage.driver.plan(stage.installation, SETTINGS, stage.context)
    assert steps and all(isinstance(step, Step) and step.what and "\n" not in step.what for step in steps)
    assert any(stage.installation.python in step.text for step in steps)
    assert site.snapshot() == before and not stage.site.slurm.submitted


@pytest.mark.parametrize("name", EVERYBODY)
def test_to_install_twice_is_to_install_once(site: Site, name: str) -> None:
    stage = stage_of(site, name)
    first = stage.driver.install(stage.installation, SETTINGS, stage.context)
    assert name == "foreground" or first
    after, jobs = site.snapshot(), len(site.slurm.submitted)
    if name == "foreground":
        heartbeat(stage)
    assert list(stage.driver.plan(stage.installation, SETTINGS, stage.context)) == []
    assert list(stage.driver.install(stage.installation, SETTINGS, stage.context)) == []
    assert site.snapshot() == after and len(site.slurm.submitted) == jobs


@pytest.mark.parametrize("name", EVERYBODY)
def test_to_uninstall_brings_every_byte_back(site: Site, name: str) -> None:
    stage = stage_of(site, name)
    before = site.snapshot()
    stage.driver.install(stage.installation, SETTINGS, stage.context)
    assert name in ("foreground", "slurm") or site.snapshot() != before
    stage.driver.uninstall(stage.installation, SETTINGS, stage.context)
    jobs = {key: value for key, value in site.snapshot().items() if key != "scrontab.jobs"}
    assert jobs == before
    assert not site.slurm.alive()
    assert list(stage.driver.uninstall(stage.installation, SETTINGS, stage.context)) == [], "nothing there is no error"


@pytest.mark.parametrize("name", EVERYBODY)
def test_its_state_is_alive_then_gone_and_unknown_when_it_cannot_be_asked(site: Site, name: str) -> None:
    stage = stage_of(site, name)

    def state() -> DriverState:
        found = state_of(stage.driver, stage.installation, SETTINGS, stage.context)
        assert found.summary and "\n" not in found.summary
        return found

    assert state().liveness is Liveness.GONE and state().hint, "before"
    stage.driver.install(stage.installation, SETTINGS, stage.context)
    if name == "foreground":
        heartbeat(stage)
    found = state()
    assert found.liveness is Liveness.ALIVE, found
    assert found.next_tick is None or found.next_tick >= NOW
    if name == "foreground":
        CronDirectory(stage.context.state_dir).beat(
            Heartbeat(time=NOW, expected=NOW + 60, alive_since=NOW, host="login1", pid=2**22 + 1)
        )
    stage.driver.uninstall(stage.installation, SETTINGS, stage.context)
    assert state().liveness is Liveness.GONE
    BLIND[name](stage)
    assert state().liveness is Liveness.UNKNOWN


@pytest.mark.parametrize("name", EVERYBODY)
def test_two_projects_live_side_by_side(site: Site, name: str) -> None:
    one, two = stage_of(site, name), stage_of(site, name, "two", "fedcba9876543210")
    for stage in (one, two):
        stage.driver.install(stage.installation, SETTINGS, stage.context)
    alone = site.snapshot()
    one.driver.uninstall(one.installation, SETTINGS, one.context)
    if name != "foreground":
        assert state_of(one.driver, one.installation, SETTINGS, one.context).liveness is Liveness.GONE
        assert state_of(two.driver, two.installation, SETTINGS, two.context).liveness is Liveness.ALIVE
    one.driver.install(one.installation, SETTINGS, one.context)
    assert set(site.snapshot()) == set(alone)
    for stage in (one, two):
        stage.driver.uninstall(stage.installation, SETTINGS, stage.context)
    assert site.table("crontab") == BEFORE
