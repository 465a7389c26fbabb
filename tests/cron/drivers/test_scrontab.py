"""The driver scrontab, against a stand-in that behaves as SLURM 24.11 and 26.05 were recorded to; live where it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.drivers import availability_of, state_of
from resilience.cron.drivers._tables import mark, unit_name
from resilience.cron.drivers.scrontab import DRIVER, pause_minutes
from resilience.cron.records import Installation
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.settings.cron_settings import CronSettings
from resilience.system.ports import SystemClock
from resilience.watch.watchdogs import context_of
from tests.cron.drivers.site import SCRONTAB, Site, an_installation
from tests.lab.fakes import make_project

DAEMON, PULSE = CronSettings(), CronSettings(mode="pulse")

TABLES = {
    "nothing": b"",
    "the recorded one": b"#SCRON -J cronjob -t 1 -o /dev/null --mem=10\n* * * * * /bin/true\n@hourly  sleep 5\n",
    "options that wait for their entry": b"@daily x\n#SCRON --mem=1T --partition=gpu\n",
    "no newline at the end": b"# mine\n@hourly sleep 5",
    "a disabled entry": b"#DISABLED: #SCRON -J theirs -t 1\n#DISABLED: * * * * * /bin/true\n",
    "bytes that are no text": b"# \xff\xfe\r\n@hourly echo \xe9\n",
    "ten thousand lines": b"".join(b"# %d\n" % number for number in range(10_000)),
}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def installed(site: Site, settings: CronSettings = DAEMON) -> Installation:
    context = site.context()
    installation = an_installation(context, "scrontab", mode=settings.mode)
    DRIVER.install(installation, settings, context)
    return installation


def jobs(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((site.directory / "scrontab.jobs").read_text())["jobs"]
    return found


def scrontab(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    """The stand-in, as a person calls it."""
    argv = [sys.executable, "-I", "-S", str(SCRONTAB), *words]
    return subprocess.run(argv, env=site.environ(), capture_output=True, text=True, timeout=60)


# ---- the stand-in behaves as recorded -------------------------------------------------------------------------------


def test_the_stand_in_answers_as_slurm_was_recorded_to(site: Site) -> None:
    me = site.environ()["LOGNAME"]
    assert (scrontab(site, "-l").stdout, scrontab(site, "-l").returncode) == (f"no crontab for {me}\n", 1)
    table = "#SCRON -J cronjob -t 1 -o /dev/null --mem=10\n* * * * * /bin/true\n@hourly  sleep 5\n"
    (site.directory / "cron.txt").write_text(table)
    assert scrontab(site, str(site.directory / "cron.txt")).returncode == 0
    assert [(job["id"], job["name"], job["spec"]) for job in jobs(site)] == [
        (60, "cronjob", "* * * * *"),
        (61, "sleep", "@hourly"),
    ], "the options are for the next entry only; the job's name is the command's first word"
    scrontab(site, "--tick")
    assert [(job["id"], job["restarts"]) for job in jobs(site)] == [(60, 1), (61, 1)], "one job id for ever"
    scrontab(site, "--scancel", "60")
    assert scrontab(site, "-l").stdout.split("\n")[:3] == [
        "#DISABLED: #SCRON -J cronjob -t 1 -o /dev/null --mem=10",
        "#DISABLED: * * * * * /bin/true",
        "@hourly  sleep 5",
    ]
    (site.directory / "bad.txt").write_text("* * * /bin/true\n")
    bad = scrontab(site, str(site.directory / "bad.txt"))
    assert bad.returncode == 1 and "something is broken" in bad.stderr and "errors in your crontab" in bad.stdout
    assert scrontab(site, "-r").returncode == 0 and jobs(site) == []
    (site.directory / "scron_parameters").write_text("(null)")
    off = scrontab(site, "-l")
    assert (off.stderr, off.returncode) == ("scrontab: fatal: scrontab is disabled on this cluster\n", 1)


# ---- nobody else's line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_the_same_after_install_and_uninstall(site: Site, name: str) -> None:
    site.write_table(TABLES[name], "scrontab")
    installation = installed(site)
    assert (site.table("scrontab") or b"").endswith(TABLES[name])
    (ours, *theirs) = jobs(site)
    assert ours["comment"] == mark(installation.token) and "mem" not in ours["options"]
    assert all("mem" not in job["options"] or job["name"] != ours["name"] for job in theirs)
    DRIVER.uninstall(installation, DAEMON, site.context())
    assert (site.table("scrontab") or b"") == TABLES[name]


def test_foreign_settings_and_options_never_reach_our_entry(site: Site) -> None:
    site.write_table(b"#SCRON --partition=gpu --mem=1T\n", "scrontab")
    installed(site)
    (ours,) = jobs(site)
    assert not {"partition", "mem"} & set(ours["options"])


# ---- what the entry is ----------------------------------------------------------------------------------------------


def test_a_daemon_has_a_job_that_ends_before_its_limit_and_starts_at_the_next_minute(site: Site) -> None:
    installation = installed(site)
    (ours,) = jobs(site)
    assert ours["spec"] == "* * * * *" and ours["options"]["time"] == "1440"
    assert "signal" not in ours["options"], "24.11 refuses it; the shell becomes the scheduler, which ends at SIGTERM"
    assert "cron run --driver scrontab" in ours["script"] and "exec /usr/bin/env" in ours["script"]
    assert ours["name"] == unit_name(installation) and installation.token in ours["script"]


def test_a_pulse_is_a_short_job_every_quarter_of_an_hour(site: Site) -> None:
    installed(site, PULSE)
    (ours,) = jobs(site)
    assert ours["spec"] == "*/15 * * * *" and ours["options"]["time"] == "30" and "signal" not in ours["options"]
    assert "cron tick --driver scrontab" in ours["script"] and "--no-wait" not in ours["script"], (
        "the end of the job is the end of what it started"
    )


@pytest.mark.parametrize(
    ("pulse_s", "minutes"),
    [(1, 1), (60, 1), (119, 1), (420, 6), (900, 15), (1800, 30), (3599, 30), (3600, 60), (1e5, 60)],
)
def test_pulses_come_at_even_pauses_that_divide_an_hour(pulse_s: float, minutes: int) -> None:
    assert pause_minutes(pulse_s) == minutes


def test_an_hourly_pulse_is_written_as_one(site: Site) -> None:
    installed(site, CronSettings(mode="pulse", pulse_s=3600))
    assert jobs(site)[0]["spec"] == "0 * * * *"


def test_options_of_sbatch_go_along_and_those_that_are_ours_are_refused(site: Site) -> None:
    installed(site, CronSettings(sbatch={"partition": "cpu", "account": "abc", "exclusive": ""}))
    options = jobs(site)[0]["options"]
    assert (options["partition"], options["account"], options["exclusive"]) == ("cpu", "abc", "")
    for bad in ({"job-name": "x"}, {"time": "1"}, {"constraint": "a b"}):
        with pytest.raises(ResilError, match=next(iter(bad))):
            DRIVER.lines(an_installation(site.context(), "scrontab"), CronSettings(sbatch=bad), site.context())


def test_the_script_of_the_job_arrives_word_for_word(site: Site) -> None:
    """A `%` is nothing special in a scrontab, and the project may be called as it likes."""
    context = site.context('it\'s 100% a \\ "project"')
    told = site.directory / "told.json"
    python = site.directory / "a python"
    python.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump([sys.argv[1:], dict(os.environ), os.getcwd()], open({str(told)!r}, 'w'))\n"
    )
    python.chmod(0o755)
    installation = replace(an_installation(context, "scrontab", mode="pulse"), python=str(python))
    DRIVER.install(installation, PULSE, context)
    script = site.directory / "script"
    script.write_text(jobs(site)[0]["script"])
    environ = {"SLURM_JOB_ID": "60", "PYTHONPATH": "/x", "PATH": "/usr/bin:/bin"}
    subprocess.run(["/bin/sh", str(script)], env=environ, timeout=60, check=True)
    words, seen, cwd = json.loads(told.read_text())
    assert words[-4:] == ["cron", "tick", "--driver", "scrontab"] and cwd == str(context.project)
    assert seen["SLURM_JOB_ID"] == "60" and "PYTHONPATH" not in seen
    assert jobs(site)[0]["options"]["output"] == "/dev/null", "an option cannot have a blank in it"


def test_its_output_is_beside_the_heartbeat_and_percent_signs_are_escaped(site: Site) -> None:
    DRIVER.install(an_installation(site.context("100%j"), "scrontab"), DAEMON, site.context("100%j"))
    state = site.context("100%j").state_dir
    assert jobs(site)[0]["options"]["output"] == f"{state}/.cron/driver/scrontab.out".replace("%", "%%")


# ---- how it is ------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_disables_the_entry_and_that_is_seen_and_undone(site: Site) -> None:
    site.write_table(b"@hourly sleep 5\n", "scrontab")
    installation = installed(site)
    assert state_of(DRIVER, installation, DAEMON, site.context()).liveness is Liveness.ALIVE
    scrontab(site, "--scancel", str(jobs(site)[0]["id"]))
    state = state_of(DRIVER, installation, DAEMON, site.context())
    assert state.liveness is Liveness.GONE and "its job was cancelled" in state.summary
    assert "resil cron install" in state.hint
    assert DRIVER.plan(installation, DAEMON, site.context())
    assert DRIVER.install(installation, DAEMON, site.context())
    assert state_of(DRIVER, installation, DAEMON, site.context()).liveness is Liveness.ALIVE
    DRIVER.uninstall(installation, DAEMON, site.context())
    assert site.table("scrontab") == b"@hourly sleep 5\n"


def test_a_disabled_entry_can_be_removed(site: Site) -> None:
    installation = installed(site)
    scrontab(site, "--scancel", str(jobs(site)[0]["id"]))
    DRIVER.uninstall(installation, DAEMON, site.context())
    assert site.table("scrontab") is None


def test_a_foreign_disabled_entry_stays_disabled(site: Site) -> None:
    site.write_table(b"@hourly sleep 5\n", "scrontab")
    context = site.context()
    (site.directory / "all").write_bytes(site.table("scrontab") or b"")
    scrontab(site, str(site.directory / "all"))
    scrontab(site, "--scancel", str(jobs(site)[0]["id"]))
    DRIVER.install(an_installation(context, "scrontab"), DAEMON, context)
    assert [job["name"] for job in jobs(site)] == [unit_name(an_installation(context, "scrontab"))]
    assert scrontab(site, "-l").stdout.endswith("#DISABLED: @hourly sleep 5\n")


def test_it_is_available_only_where_the_cluster_has_it_enabled(site: Site) -> None:
    assert availability_of(DRIVER, site.context()).is_available
    (site.directory / "scron_parameters").write_text("(null)")
    found = availability_of(DRIVER, site.context())
    assert not found.is_available and "disabled on this cluster" in found.reason
    assert "ScronParameters=enable" in found.hint
    assert (
        state_of(DRIVER, an_installation(site.context(), "scrontab"), DAEMON, site.context()).liveness
        is Liveness.UNKNOWN
    )


def test_a_missing_program_is_reported(site: Site) -> None:
    (site.bin / "scrontab").unlink()
    site.write_program("scontrol", "echo 'ScronParameters         = (null)'\n")
    found = availability_of(DRIVER, site.context())
    assert not found.is_available and "cannot run scrontab" in found.reason and "enabled" not in found.reason
    site.write_program(
        "scontrol", "printf 'SchedulerType = x\\nScronParameters         = enable,explicit_scancel\\n'\n"
    )
    assert "the cluster has scrontab enabled" in availability_of(DRIVER, site.context()).reason


def test_a_controller_that_is_down_is_unknown_and_nothing_is_written(site: Site) -> None:
    site.write_table(TABLES["the recorded one"], "scrontab")
    installation = an_installation(site.context(), "scrontab")
    site.break_program(
        "scrontab",
        "echo 'scrontab: fatal: slurm_request_crontab failed: Unable to contact slurm controller' >&2; exit 1",
    )
    assert "Unable to contact" in availability_of(DRIVER, site.context()).reason
    for act in (DRIVER.install, DRIVER.uninstall, DRIVER.plan):
        with pytest.raises(ResilError, match="Unable to contact"):
            act(installation, DAEMON, site.context())
    assert site.table("scrontab") == TABLES["the recorded one"]


def test_a_table_that_is_refused_stays_as_it_was(site: Site) -> None:
    site.write_table(b"@hourly sleep 5\nthis is no entry\n", "scrontab")
    with pytest.raises(ResilError, match="something is broken"):
        installed(site)
    assert site.table("scrontab") == b"@hourly sleep 5\nthis is no entry\n"


def test_the_next_pulse_is_known(site: Site) -> None:
    installation = installed(site, PULSE)
    context = site.context()
    state = state_of(DRIVER, installation, PULSE, context)
    assert state.next_tick is not None and state.next_tick % 900 == 0
    assert 0 < state.next_tick - context.system.clock.now() <= 900


# ---- live -----------------------------------------------------------------------------------------------------------


def live() -> str:
    """Why there is no scrontab to be asked; empty: there is."""
    if shutil.which("scrontab") is None:
        return "no scrontab is installed here: Debian 12's SLURM has no such program"
    if os.environ.get("RESIL_LIVE_SCRONTAB") != "1":
        return "RESIL_LIVE_SCRONTAB is not 1: it edits your own scrontab, and brings it back"
    return ""


@pytest.mark.skipif(bool(live()), reason=live())
def test_a_live_scrontab_has_the_same_bytes_afterwards(tmp_path: Path) -> None:
    context = context_of(make_project(tmp_path, environ=dict(os.environ), clock=SystemClock()))
    before = DRIVER.read(context)
    installation = an_installation(context, "scrontab", mode="pulse")
    assert DRIVER.install(installation, PULSE, context)
    try:
        assert state_of(DRIVER, installation, PULSE, context).liveness is Liveness.ALIVE
        assert DRIVER.install(installation, PULSE, context) == ()
    finally:
        DRIVER.uninstall(installation, PULSE, context)
    assert DRIVER.read(context) == before
