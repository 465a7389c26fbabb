"""What keeps an entry from running is found, with the fix, before the night in which it should have run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.driver_choice import drivers
from resilience.cron.health import Health
from resilience.cron.mail import wrong_address
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Entry, EntryOptions, Heartbeat, Installation, Kind, Outcome, Overlap, RunRecord
from resilience.cron.status import cron_status
from resilience.doctor.cron import CronExamination, environment_of, examine_cron, judge_times, limits_of, outlook
from resilience.finding import Verdict
from resilience.settings.cron_settings import CronSettings
from tests.cron.fake_driver import fake_driver
from tests.lab.fakes import NOW, FakeScheduler, make_project
from tests.system.people import NOBODY, needs_root, open_the_way

SETTINGS = CronSettings()


@pytest.fixture
def cron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CronProject]:
    """A project whose scheduler is well."""
    (tmp_path / "plugins" / "drivers").mkdir(parents=True)
    (tmp_path / "plugins" / "drivers" / "fake.py").write_text(
        fake_driver('return DriverState(Liveness.ALIVE, "it ticks")')
    )
    monkeypatch.setenv("RESIL_PLUGINS", str(tmp_path / "plugins"))
    drivers.cache_clear()
    made = open_cron(make_project(tmp_path, environ={"PATH": os.environ["PATH"]}, host="login1"))
    (made.directory / "cron.hourly").mkdir(parents=True)
    for directory in (made.directory, made.directory.parent, made.directory / "cron.hourly"):
        directory.chmod(0o755)
    python, project = sys.executable, str(made.directory.parent)
    made.state.install(
        Installation(
            driver="fake", token="0" * 16, time=NOW - 9000, by="ada", host="login1", project=project, python=python
        )
    )
    made.state.beat(Heartbeat(time=NOW - 30, expected=NOW + 30, alive_since=NOW - 9000, driver="fake"))
    yield made
    drivers.cache_clear()


def drop(cron: CronProject, name: str, text: str = "#!/bin/sh\ntrue\n", mode: int = 0o755) -> Path:
    path = cron.directory / "cron.hourly" / name
    path.write_text(text)
    path.chmod(mode)
    return path


def crontab(cron: CronProject, text: str) -> None:
    (cron.directory / "crontab").write_text(text)
    (cron.directory / "crontab").chmod(0o644)


def said(found: CronExamination, verdict: Verdict) -> str:
    return "\n".join(f"{d.topic}: {d.text} -> {d.advice}" for d in found.diagnoses if d.verdict is verdict)


def test_a_project_that_is_well_has_nothing_critical(cron: CronProject) -> None:
    drop(cron, "backup")
    crontab(cron, "*/5 * * * *  true  # resil: name=probe timeout=2m\n")
    found = examine_cron(cron)
    assert not found.is_broken and not found.is_unknown, found
    assert "2 entries" in said(found, Verdict.OK)


# ---- what does not run


def test_whatever_is_ignored_is_told_with_why_and_the_fix(cron: CronProject) -> None:
    drop(cron, "backup.sh")
    drop(cron, "draft", mode=0o644)
    drop(cron, "README")
    drop(cron, "typo", "#!/bin/sh\n# resil: timout=5m\ntrue\n")
    drop(cron, "open", mode=0o777)
    crontab(cron, "* * * *  true\n0 4 * * 8  true > log\n")
    found = examine_cron(cron)
    faults = {ignored.place: ignored for ignored in found.ignored if ignored.is_fault}
    assert found.is_broken
    assert set(faults) >= {"cron/cron.hourly/backup.sh", "cron/cron.hourly/typo", "cron/cron.hourly/open",
                           "cron/crontab:1", "cron/crontab:2"}  # fmt: skip
    assert "timeout" in faults["cron/cron.hourly/typo"].hint
    assert "chmod" in faults["cron/cron.hourly/open"].hint
    assert all(fault.reason and fault.hint for fault in faults.values())
    assert not next(i for i in found.ignored if i.place.endswith("README")).is_fault


def test_a_readme_alone_is_no_fault(cron: CronProject) -> None:
    drop(cron, "README.md", mode=0o644)
    found = examine_cron(cron)
    assert found.ignored and not found.is_broken


def test_a_schedule_that_never_comes_is_critical() -> None:
    entry = Entry(name="crontab/x", place="cron/crontab:1", schedule="0 0 30 2 *", kind=Kind.RUN, argv=("true",))
    try:
        found = list(judge_times(entry, SETTINGS, None, NOW))
    except Exception as error:  # the reader refuses it already, so that it stands among what is ignored
        assert "never" in str(error)
    else:
        assert found[0].verdict is Verdict.CRITICAL


def test_a_line_that_never_comes_is_told_by_the_doctor(cron: CronProject) -> None:
    crontab(cron, "0 0 30 2 *  true\n")
    assert examine_cron(cron).is_broken


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("#!/no/such/interpreter\n", "/no/such/interpreter"),
        ("#!/usr/bin/env no-such-python\n", "no-such-python"),
        ("#!/bin/sh\r\ntrue\r\n", "Windows"),
    ],
)
def test_a_script_whose_interpreter_is_not_there_is_critical(cron: CronProject, text: str, what: str) -> None:
    drop(cron, "backup", text)
    found = examine_cron(cron)
    told = said(found, Verdict.CRITICAL) + "\n".join(i.reason for i in found.ignored if i.is_fault)
    assert found.is_broken and what in told


def test_an_interpreter_with_env_and_options_is_found(cron: CronProject) -> None:
    drop(cron, "backup", "#!/usr/bin/env -S LANG=C sh -e\n")
    assert "interpreter" not in said(examine_cron(cron), Verdict.CRITICAL)


@pytest.mark.parametrize("line", ["no-such-program x", "/no/such/program x", "./notes x"])
def test_a_line_whose_program_is_not_there_is_critical(cron: CronProject, line: str) -> None:
    (cron.directory.parent / "notes").write_text("x")
    crontab(cron, f"0 4 * * *  {line}\n")
    assert examine_cron(cron).is_broken


def test_a_program_that_only_the_person_has_on_the_path_is_missed(cron: CronProject, tmp_path: Path) -> None:
    """The small PATH of what runs is what counts, not the one of the shell in which it was tried."""
    crontab(cron, "0 4 * * *  mine\n")
    found = said(examine_cron(cron), Verdict.CRITICAL)
    assert "'mine'" in found and "--environment" in found


# ---- times


def times(schedule: str = "@hourly", kind: Kind = Kind.RUN, settings: CronSettings = SETTINGS,
          installation: Installation | None = None, **options: object) -> list[str]:  # fmt: skip
    entry = Entry(name="x", place="", schedule=schedule, kind=kind, argv=("true",), options=EntryOptions(**options))  # type: ignore[arg-type]
    return [diagnosis.text for diagnosis in judge_times(entry, settings, installation, NOW)]


def by_slurm(mode: str) -> Installation:
    return Installation(driver="slurm", token="0", time=NOW, by="ada", host="h", project="/p", python="/p", mode=mode)


def test_a_run_that_may_outlast_its_period_is_told() -> None:
    assert times(timeout_s=3600.0) == []
    (text,) = times("*/5 * * * *", timeout_s=600.0)
    assert "every 5 min" in text and "skipped" in text
    assert times("*/5 * * * *", timeout_s=600.0, overlap=Overlap.ALLOW) == []
    assert times("*/5 * * * *", kind=Kind.SUBMIT, timeout_s=600.0) == []
    assert times("@reboot", timeout_s=600.0) == []


def test_a_run_without_a_timeout_can_block_its_entry_for_ever() -> None:
    (text,) = times(timeout_s=0.0)
    assert "never runs again" in text


def test_a_run_that_may_outlast_the_schedulers_own_job_is_told() -> None:
    (text,) = times("@daily", timeout_s=7200.0, installation=by_slurm("pulse"))
    assert "pulse_limit_s" in text
    assert times("@daily", timeout_s=7200.0, installation=by_slurm("daemon")) == []
    assert times("@daily", timeout_s=7200.0) == []
    assert limits_of(SETTINGS, None) == ("", 0.0, 0.0, "")


@pytest.mark.parametrize(
    ("schedule", "driver", "mode", "told"),
    [
        ("@every 30s", "crontab", "", "due every 30 s, but crontab ticks every 1 min"),
        ("* * * * *", "crontab", "", ""),
        ("*/5 * * * *", "slurm", "pulse", "due every 5 min, but slurm (pulse) ticks every 15 min"),
        ("*/15 * * * *", "slurm", "pulse", ""),
        ("@every 10s", "slurm", "daemon", ""),
        ("@every 10s", "foreground", "", ""),
        ("@reboot", "slurm", "pulse", ""),
    ],
)
def test_an_entry_due_more_often_than_its_backend_ticks_is_told(
    schedule: str, driver: str, mode: str, told: str
) -> None:
    installation = replace(by_slurm(mode), driver=driver)
    for kind in Kind:
        found = times(schedule, kind, installation=installation, timeout_s=1.0)
        assert [told in text for text in found] == ([True] if told else [])


# ---- the past, the scheduler, the mail


@pytest.mark.parametrize(
    ("driver", "mode", "sbatch", "is_told"),
    [
        ("slurm", "daemon", "", True),
        ("slurm", "pulse", "", False),
        ("slurm", "daemon", 'sbatch = { partition = "shared" }', False),
        ("slurm", "daemon", 'sbatch = { partition = "shared,whole" }', True),
        ("crontab", "", "", False),
    ],
)
def test_a_daemon_that_would_occupy_a_whole_node_is_told(
    tmp_path: Path, driver: str, mode: str, sbatch: str, is_told: bool
) -> None:
    fake = FakeScheduler()
    fake.answers = replace(fake.answers, default_partition="whole", whole_nodes=("whole",))
    cron = open_cron(make_project(tmp_path, fake, f'[run]\nname = "gpt"\n[cron]\n{sbatch}\n', host="login1"))
    cron.state.install(replace(by_slurm(mode), driver=driver, project=str(cron.directory.parent), host="login1"))
    found = said(examine_cron(cron), Verdict.WARNING)
    assert ("partition whole gives each job whole nodes" in found and '"pulse"' in found) is is_told


def test_a_copied_project_is_told_that_nothing_ticks_there(cron: CronProject, tmp_path: Path) -> None:
    drop(cron, "backup")
    cron.state.beat(Heartbeat(time=NOW - 30, expected=NOW + 30, alive_since=NOW - 9000, driver="crontab"))
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "project"
    shutil.copytree(cron.directory.parent, copy)
    copied = open_cron(make_project(tmp_path / "copy", environ={"PATH": os.environ["PATH"]}, host="login1"))
    found = examine_cron(copied)
    assert found.is_broken and "not installed: nothing is installed" in said(found, Verdict.CRITICAL)
    assert f"copy of {cron.directory.parent}, whose scheduler" in said(found, Verdict.WARNING)
    assert "fake is available" in outlook(copied).text and "1 entry would run" in outlook(copied).text
    assert cron_status(copied).judgement.health is Health.ABSENT
    assert not examine_cron(cron).is_broken, "the original"
    shutil.rmtree(cron.directory.parent)
    assert "copy of" not in said(examine_cron(copied), Verdict.WARNING), "the project was moved"


@pytest.mark.parametrize(
    ("shell", "line", "missing"),
    [
        ("/bin/sh", "no-such-program x | sort >> log", "no-such-program"),
        ("/bin/sh", "./notes && true", "./notes"),
        ("/bin/sh", "cd /tmp && no-such-program", ""),
        ("/bin/sh", "if true; then true; fi", ""),
        ("/bin/sh", "X=1 no-such-program", ""),
        ("/bin/sh", "~/no-such-program", ""),
        ("/bin/sh", "true;", ""),
        ("/bin/sh", "shopt -s nullglob", "shopt"),
        ("/bin/bash", "shopt -s nullglob", ""),
        ("/bin/no-such-shell", "true", "/bin/no-such-shell"),
    ],
)
def test_the_first_command_of_a_shell_line_is_looked_up_by_its_shell(
    cron: CronProject, shell: str, line: str, missing: str
) -> None:
    (cron.directory.parent / "notes").write_text("x")
    crontab(cron, f"SHELL={shell}\n0 4 * * *  {line}\n")
    found = said(examine_cron(cron), Verdict.CRITICAL)
    assert (missing.strip(".") in found and "crontab/" in found) if missing else found == ""


def test_an_entry_whose_last_run_failed_is_named(cron: CronProject) -> None:
    drop(cron, "backup")
    cron.state.record("cron.hourly+backup", RunRecord(name="cron.hourly/backup", slot=int(NOW), time=NOW,
                                                      outcome=Outcome.TIMEOUT, summary="ended after 1 h"))  # fmt: skip
    found = said(examine_cron(cron), Verdict.WARNING)
    assert "timeout: ended after 1 h" in found and "resil cron logs" in found


def test_entries_without_a_scheduler_do_not_run(cron: CronProject) -> None:
    drop(cron, "backup")
    cron.state.uninstall()
    (cron.state.path / "heartbeat").unlink()
    found = examine_cron(cron)
    assert found.is_broken and "resil cron install" in said(found, Verdict.CRITICAL)
    (cron.directory / "cron.hourly" / "backup").unlink()
    assert not examine_cron(cron).is_broken, "where nothing is scheduled, nothing is missed"


def test_an_interpreter_that_is_gone_is_critical(cron: CronProject) -> None:
    before = cron.state.installation()
    assert before is not None
    cron.state.uninstall()
    cron.state.install(Installation.from_json(before.to_json() | {"python": "/old/venv/bin/python"}))
    assert "/old/venv/bin/python" in said(examine_cron(cron), Verdict.CRITICAL)


def test_mailto_without_a_way_to_mail_is_critical(cron: CronProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.alerts.routes._has_sendmail", lambda: False)
    crontab(cron, "MAILTO=ada@example.org\n0 4 * * *  true\n")
    found = said(examine_cron(cron), Verdict.CRITICAL)
    assert "ada@example.org" in found and "[channel.email]" in found
    crontab(cron, 'MAILTO=""\n0 4 * * *  true\n')
    assert "MAILTO" not in said(examine_cron(cron), Verdict.CRITICAL)


@pytest.mark.parametrize(
    ("key", "what"),
    [("ping_url", "http://ping.example.org/secret"), ("ping_url_file", "there-is-no-such-file")],
)
def test_a_dead_mans_switch_that_no_tick_can_reach_is_told(cron: CronProject, key: str, what: str) -> None:
    changed: dict[str, Any] = {key: what}
    cron = replace(cron, settings=replace(cron.settings, **changed))
    found = said(examine_cron(cron), Verdict.WARNING)
    assert "ping: no tick can ping:" in found and "secret" not in found


def test_a_mailto_that_is_no_address_is_critical_before_a_mail_is_lost() -> None:
    assert wrong_address("ada@example.org, Bob <bob@example.org>,") == ""
    assert "'not an address'" in wrong_address("ada@example.org, not an address")


def test_mailto_with_an_email_channel_is_well(tmp_path: Path, cron: CronProject) -> None:
    crontab(cron, "MAILTO=ada@example.org\n0 4 * * *  true\n")
    text = '[run]\nname = "gpt"\ncommand = "x"\n[channel.email]\nhost = "mail.example.org"\nto = ["ada@example.org"]\n'
    again = open_cron(make_project(tmp_path, settings=text, environ={"PATH": os.environ["PATH"]}, host="login1"))
    assert "MAILTO" not in said(examine_cron(again), Verdict.CRITICAL)


def test_a_state_directory_that_others_may_write_is_critical(cron: CronProject) -> None:
    cron.state.path.chmod(0o777)
    found = said(examine_cron(cron), Verdict.CRITICAL)
    assert "no entries run" in found and "chmod" in found


@needs_root
def test_a_state_directory_that_cannot_be_written_is_critical(cron: CronProject) -> None:
    """A directory of somebody else's, seen as that other person sees it: in a child that is nobody."""
    from resilience.system.child import run_in_child

    cron.state.path.chmod(0o755)
    open_the_way(cron.state.path.parent)

    def look() -> str:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        from resilience.doctor.cron import _state_directory

        return json.dumps([(d.verdict.value, d.text) for d in _state_directory(cron)])

    ((_, answer),) = run_in_child({0: (look, 30.0)})
    assert answer.error is None, answer.error
    assert any(verdict == "CRITICAL" for verdict, _ in json.loads(answer.value))


# ---- the environment


def test_the_environment_that_is_shown_is_the_one_that_runs_get(cron: CronProject) -> None:
    found = environment_of(cron)
    assert found["RESIL_PYTHON"] == sys.executable and found["SHELL"] == "/bin/sh"
    assert found["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert found["RESIL_CRON_ENTRY"] and found["RESIL_CRON_SLOT"].isdigit()


# ---- in one line, for `resil doctor`


def test_resil_doctor_has_one_line_on_a_scheduler_that_lives(cron: CronProject) -> None:
    from resilience.doctor.doctor import examine

    (line,) = [d for d in examine(cron.project).diagnoses if d.topic == "cron"]
    assert line.verdict is Verdict.OK and "alive: it ticks" in line.text


def test_resil_doctor_says_what_could_make_the_ticks_where_nothing_does(cron: CronProject) -> None:
    cron.state.uninstall()
    (cron.state.path / "heartbeat").unlink()
    idle = outlook(cron)
    assert idle.verdict is Verdict.OK and "fake is available" in idle.text and idle.advice == "resil cron install"
    drop(cron, "backup")
    meant = outlook(cron)
    assert meant.verdict is Verdict.WARNING and "1 entry would run" in meant.text
