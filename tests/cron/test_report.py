"""What ticks tell, and that it costs an idle tick nothing and delays none."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from resilience.alerts.state import open_alert_state
from resilience.cron.ping import last_ping
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Entry, Heartbeat, Ignored, Kind, Outcome, RunRecord, Table
from resilience.cron.report import TickReporter, reported, send_failures, summary_of
from resilience.cron.run import tick
from resilience.cron.ticker import TickResult
from resilience.doctor.settings import check_settings
from resilience.errors import SettingsError
from resilience.runs.project import Project
from resilience.settings.load import load
from tests.cron.stage import PATIENCE_S, Stage, until

BACKUP = Entry(name="cron.hourly/backup", place="cron/cron.hourly/backup", schedule="@hourly", kind=Kind.RUN,
               argv=("/bin/true",))  # fmt: skip


def a_tick(cron: CronProject, *ended: RunRecord, gap: bool = False, trouble: str = "") -> TickResult:
    now = time.time()
    heartbeat = Heartbeat(
        time=now,
        expected=now + 60,
        alive_since=now if gap else now - 600,
        ticks=9,
        driver="foreground",
        trouble=trouble,
    )
    cron.state.beat(heartbeat)
    for run in ended:
        cron.state.record(run.name.replace("/", "+"), run)
    return TickResult(heartbeat=heartbeat, records=ended)


def a_run(outcome: Outcome, slot: int = 0, **fields: object) -> RunRecord:
    slot = slot or int(time.time())
    return RunRecord(name=BACKUP.name, slot=slot, outcome=outcome, time=time.time(), **fields)  # type: ignore[arg-type]


def settle_dead_runs(reporter: TickReporter) -> None:
    child = reporter._children.get("report")
    assert child is None or child.wait(PATIENCE_S)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_failed_run_is_one_incident_and_its_recovery_is_reported(stage: Stage) -> None:
    reporter, table = TickReporter(stage.cron), Table(entries=(BACKUP,))
    reporter.ended(a_tick(stage.cron, a_run(Outcome.FAILED, 100, exit_code=3, summary="disk full")), table)
    until(stage.told, "the alert")
    settle_dead_runs(reporter)
    reporter.ended(a_tick(stage.cron, a_run(Outcome.FAILED, 200, exit_code=3, summary="disk full")), table)
    settle_dead_runs(reporter)
    assert len(stage.told()) == 1 and "cron.hourly/backup" in stage.told()[0] and "disk full" in stage.told()[0]
    reporter.ended(a_tick(stage.cron, a_run(Outcome.DONE, 300, exit_code=0)), table)
    settle_dead_runs(reporter)
    assert "RESOLVED" in stage.told()[-1] and len(stage.told()) == 2


def test_a_scheduler_that_comes_back_ends_the_incident_of_its_absence(stage: Stage) -> None:
    from resilience.alerts.notify import notify
    from resilience.watch.watch import watch, watchdogs_of

    long_ago = time.time() - 86400
    stage.cron.state.beat(Heartbeat(time=long_ago, expected=long_ago + 60, alive_since=long_ago, driver="foreground"))
    watchdogs, _ = watchdogs_of(stage.project, ["cron"])
    notify(stage.project, list(watch(stage.project, watchdogs)))
    assert "CRITICAL" in stage.told()[0]
    reporter = TickReporter(stage.cron)
    reporter.ended(a_tick(stage.cron, gap=True), Table())
    settle_dead_runs(reporter)
    assert "RESOLVED" in stage.told()[-1]


def test_an_idle_tick_starts_no_child(stage: Stage) -> None:
    reporter = TickReporter(stage.cron)
    reporter.ended(a_tick(stage.cron, gap=True), Table())
    settle_dead_runs(reporter)
    later = TickReporter(stage.cron)  # another process, a minute later
    for _ in range(3):
        later.ended(a_tick(stage.cron), Table())
        assert not later._children


def test_a_pending_resolution_is_checked_again_soon(tmp_path: Path) -> None:
    stage = Stage(tmp_path, alert='channels = ["console"]\ngroup_s = 3600')
    reporter, table = TickReporter(stage.cron), Table(entries=(BACKUP,))
    reporter.ended(a_tick(stage.cron, a_run(Outcome.FAILED, 100)), table)
    settle_dead_runs(reporter)
    reporter.ended(a_tick(stage.cron, a_run(Outcome.DONE, 200)), table)
    settle_dead_runs(reporter)
    assert len(stage.told()) == 1
    assert time.time() - reported(stage.cron).looked > 600, (
        "the next look is due in a minute, not in a quarter of an hour"
    )


def test_runs_that_end_well_start_no_child_unless_an_incident_may_end_with_them(stage: Stage) -> None:
    table = Table(entries=(BACKUP,))
    reporter = TickReporter(stage.cron)
    reporter.ended(a_tick(stage.cron, gap=True), table)
    settle_dead_runs(reporter)
    later = TickReporter(stage.cron)
    later.ended(a_tick(stage.cron, a_run(Outcome.DONE, 100)), table)
    assert not later._children
    later.ended(a_tick(stage.cron, a_run(Outcome.FAILED, 200)), table)
    settle_dead_runs(later)
    last = TickReporter(stage.cron)
    last.ended(a_tick(stage.cron, a_run(Outcome.DONE, 300)), table)
    settle_dead_runs(last)
    assert "RESOLVED" in stage.told()[-1]


def test_an_ongoing_problem_is_checked_again_without_new_runs(stage: Stage) -> None:
    (stage.cron.state.path).mkdir(parents=True)
    (stage.cron.state.path / "reported").write_text(json.dumps({"looked": time.time() - 3600}))
    reporter = TickReporter(stage.cron)
    reporter.ended(a_tick(stage.cron), Table())
    assert reporter._children
    settle_dead_runs(reporter)


def test_without_recipients_no_child_is_started(tmp_path: Path) -> None:
    stage = Stage(tmp_path, alert="")
    reporter = TickReporter(stage.cron)
    reporter.ended(a_tick(stage.cron, a_run(Outcome.FAILED), gap=True), Table(entries=(BACKUP,)))
    assert not reporter._children


def test_the_watchdog_learns_the_table_and_what_is_ignored_by_mistake(stage: Stage) -> None:
    reporter = TickReporter(stage.cron)
    ignored = Ignored("cron/cron.hourly/x", "everybody may write there", "chmod o-w cron", is_fault=True)
    table = Table(entries=(BACKUP,), ignored=(ignored, Ignored("cron/README.md", "it is no program")))
    reporter.ended(a_tick(stage.cron), table)
    settle_dead_runs(reporter)
    written = json.loads((stage.cron.state.path / "table.json").read_text())
    assert written == {"entries": [BACKUP.name], "ignored": [[ignored.place, ignored.reason, ignored.hint]]}
    assert any("everybody may write" in line for line in stage.told())


def test_an_error_of_the_tick_itself_is_reported(stage: Stage) -> None:
    reporter = TickReporter(stage.cron)
    reporter.ended(a_tick(stage.cron, trouble="the crontab cannot be read"), None)
    settle_dead_runs(reporter)
    assert any("the crontab cannot be read" in line for line in stage.told())


def test_a_stopped_scheduler_tells_nothing(stage: Stage) -> None:
    stage.cron.state.stop("ada", "", time.time())
    reporter = TickReporter(stage.cron)
    reporter.ended(TickResult(stopped="stopped by ada"), None)
    assert not reporter._children


def test_it_never_raises_into_a_tick(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("resilience.cron.report.TickReporter._write_table", fail)
    reporter = TickReporter(stage.cron)
    (line,) = reporter.ended(a_tick(stage.cron), Table())
    assert "a bug" in line
    reporter.close()


def test_failures_to_send_are_shown_by_the_status(tmp_path: Path) -> None:
    stage = Stage(tmp_path, cron='ping_url = "https://ping.invalid/secret-123456"')
    stage.cron.state.path.mkdir(parents=True)
    assert send_failures(stage.cron) == ()
    (stage.cron.state.path / "ping").write_text(json.dumps({"time": time.time() - 60, "error": "no such host"}))
    (stage.cron.state.path / "reported").write_text(json.dumps({"failed": time.time(), "trouble": ["no sendmail"]}))
    ping, mail = send_failures(stage.cron)
    assert "dead man's switch" in ping and "no such host" in ping and "secret" not in ping
    assert mail == "no sendmail"
    (stage.cron.state.path / "reported").write_text("[]")
    assert len(send_failures(stage.cron)) == 1


def test_a_server_that_never_answers_delays_no_tick(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stage = Stage(tmp_path, cron=f'ping_url = "http://127.0.0.1:{server.getsockname()[1]}/x"')
        for _ in range(3):
            tick(stage.cron, driver="foreground")
        assert not last_ping(stage.cron).time, "three ticks are over before one answer was given up"
        until(lambda: last_ping(stage.cron).time, "the note")


def test_a_console_without_a_file_speaks_on_the_standard_error_of_the_tick(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stage = Stage(tmp_path)
    (tmp_path / "resil.toml").write_text(
        f'[run]\nstate_dir = "{tmp_path}/state"\n[alert]\nchannels = ["console"]\ngroup_s = 0\n'
    )
    project = Project(stage.project.system, load(stage.project.system))
    cron = open_cron(project)
    reporter = TickReporter(cron)
    reporter.ended(a_tick(cron, a_run(Outcome.FAILED, 100, summary="disk full")), Table(entries=(BACKUP,)))
    settle_dead_runs(reporter)
    assert "disk full" in capfd.readouterr().err


@pytest.mark.parametrize("cron", ['digest_at = "morning"', 'ping_url = "http://example.org/secret-123456"'])
def test_invalid_settings_are_reported_by_the_check_and_by_each_tick(tmp_path: Path, cron: str) -> None:
    stage = Stage(tmp_path, cron=cron)
    with pytest.raises(SettingsError) as caught:
        check_settings(stage.project)
    (line,) = TickReporter(stage.cron).ended(a_tick(stage.cron), None)
    assert caught.value.message in line and "secret" not in line


def test_the_summary_has_counts_and_no_output_of_runs() -> None:
    run = RunRecord(name="a/b", slot=1, outcome=Outcome.FAILED, time=1.0, summary="password=hunter2")
    text = summary_of(TickResult(records=(run,)), "", 2.0)
    assert "1 failed" in text and "a/b: failed" in text and "hunter2" not in text
    beat = Heartbeat(time=1.0, expected=60.0, alive_since=1.0)
    assert summary_of(TickResult(heartbeat=beat), "", 1.25) == "nothing was due; the tick took 0.2 s"


def test_a_real_tick_whose_entry_fails_tells_it(stage: Stage) -> None:
    stage.crontab("* * * * * /bin/false # resil: name=bad timeout=1m")
    tick(stage.cron, driver="foreground")  # the entry is new: its slots begin now
    seen = stage.cron.state.seen()
    from resilience.cron.state_directory import Seen

    stage.cron.state.write_seen({key: Seen(one.since - 120, one.schedule) for key, one in seen.items()})
    done = tick(stage.cron, driver="foreground")
    assert [run.outcome for run in done.ended] == [Outcome.FAILED]
    until(lambda: any("crontab/bad" in line for line in stage.told()), "the alert")
    incidents = open_alert_state(stage.project).ledger.incidents()
    assert ("cron", "crontab/bad", "failed") in {(i.check, i.subject, i.fault) for i in incidents}
