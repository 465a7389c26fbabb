"""One tick: an error of one target, one watchdog or its readings is a finding of that one only."""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import ProbeError, SettingsError
from resilience.finding import Figure, Finding, Report, Verdict
from resilience.runs.project import Project
from resilience.system.stuck import StuckMemory
from resilience.watch import watch as watching
from resilience.watch import watchdogs
from resilience.watch.reading import NO_MEMORY, Memory, Target
from resilience.watch.reading_store import ReadingFile
from resilience.watch.watch import watch, watchdogs_of, with_own_finding
from tests.lab.disks import fill, small_disk
from tests.lab.fakes import FakeClock, make_project
from tests.lab.hung import hung_directory
from tests.runs.a_check import ACheck, AReading, a_watchdog, used_of
from tests.system.people import needs_root
from tests.watch.checks.outcome import outcome


@pytest.fixture(autouse=True)
def own_stuck_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StuckMemory, "of", classmethod(lambda cls, system: cls([tmp_path / "node" / "stuck"])))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def project(tmp_path: Path, clock: FakeClock) -> Project:
    return make_project(tmp_path, clock=clock, environ={"XDG_STATE_HOME": str(tmp_path / "fallback")})


def one(project: Project, check: ACheck | None = None, **settings: Any) -> tuple[Finding, ...]:
    (report,) = watch(project, [a_watchdog(check, **settings)])
    return report.findings


def look(words: str) -> Any:
    """Return a probe that fails in one way."""

    def probe(target: Target, before: Any) -> Any:
        raise {"probe": ProbeError("no", hint="try"), "bug": ZeroDivisionError("x"), "exit": SystemExit(0)}[words]

    return probe


def test_findings_come_worst_first_and_the_report_has_the_worst_verdict(project: Project) -> None:
    used = {"/a": 10, "/b": 95, "/c": 20}

    def look_slowly_at_a(target: Target, before: Any) -> Any:
        time.sleep(0.2 if target.name == "/a" else 0)  # the order is the targets', whoever answers first
        return {target.name: AReading(used[target.name])}

    (report,) = watch(project, [a_watchdog(ACheck(look=look_slowly_at_a), paths=("/a", "/b", "/c"))])
    assert [finding.subject for finding in report.findings] == ["/b", "/a", "/c"]
    assert report.verdict is Verdict.CRITICAL and report.check == "a"
    assert report.findings[0].figures == (Figure(label="used", value=95.0, unit="%", crit=90.0),)


@pytest.mark.parametrize(
    ("probe", "words"),
    [(look("probe"), "no"), (look("bug"), "ZeroDivisionError"), (look("exit"), "SystemExit"),
     (lambda target, before: os.kill(os.getpid(), 9), "signal 9"), (lambda target, before: 7, "AttributeError"),
     (lambda target, before: {target.name: 7}, "TypeError"),
     (lambda target, before: {target.name: AReading(object())}, "plain data"),  # type: ignore[arg-type]
     (lambda target, before: time.sleep(100), "no answer within 0.5 s")],
)  # fmt: skip
def test_a_probe_that_fails_is_unknown_and_hides_no_other_target(project: Project, probe: Any, words: str) -> None:
    def probes(target: Target, before: Any) -> Any:
        return probe(target, before) if target.name == "/bad" else {target.name: AReading(1)}

    targets = lambda: [Target("/bad", ("/bad", "/bad/too"), deadline_s=0.5), Target("/good")]  # noqa: E731
    reports = {
        r.check: r for r in watch(project, [a_watchdog(ACheck(look=probes, find=targets)), a_watchdog(name="other")])
    }
    verdicts = {finding.subject: finding for finding in reports["a"].findings}
    assert verdicts["/good"].verdict is Verdict.OK and reports["other"].verdict is Verdict.OK
    for subject in ("/bad", "/bad/too"):
        assert verdicts[subject].verdict is Verdict.UNKNOWN and words in verdicts[subject].summary


def test_a_target_that_does_not_respond_is_the_same_fault_in_every_tick(project: Project) -> None:
    check = ACheck(look=lambda target, before: time.sleep(100), find=lambda: [Target("/bad", deadline_s=0.2)])
    first, second = one(project, check)[0], one(project, check)[0]
    assert first.fault == second.fault == "stuck" and "STUCK since" in second.summary


@pytest.mark.parametrize("leave", [lambda: os._exit(0), lambda: sys.exit(0)], ids=["os._exit", "sys.exit"])
def test_a_watchdog_cannot_end_the_watch_while_it_lists_its_targets(project: Project, leave: Any) -> None:
    found = one(project, ACheck(find=leave))
    assert found[0].verdict is Verdict.UNKNOWN and "the check failed: SystemExit" in found[0].summary


def test_a_watchdog_whose_targets_are_none_is_unknown_and_hides_no_other(project: Project) -> None:
    bad = ACheck(find=lambda: ["/scratch"])
    found = {r.check: r.findings for r in watch(project, [a_watchdog(bad), a_watchdog(name="other")])}
    assert found["other"][0].verdict is Verdict.OK
    assert found["a"][0].verdict is Verdict.UNKNOWN and "'/scratch', which is no Target" in found["a"][0].summary


def test_missing_plugin_directories_are_unknown(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIL_PLUGINS", "/no/such/plugins")
    watchdogs.checks.cache_clear()
    try:
        (report,) = watchdogs_of(project, ())[1]
    finally:
        watchdogs.checks.cache_clear()
    assert report.verdict is Verdict.UNKNOWN and "/no/such/plugins" in report.findings[0].summary


@pytest.mark.parametrize("error", [SettingsError("bad", hint="mend"), ZeroDivisionError("x"), KeyError("y")])
def test_a_watchdog_that_cannot_name_its_targets_is_unknown_alone(project: Project, error: Exception) -> None:
    def find() -> Any:
        raise error

    bad, good = watch(project, [a_watchdog(ACheck(find=find)), a_watchdog(name="other")])
    assert bad.verdict is Verdict.UNKNOWN and bad.findings[0].subject == "a" and bad.findings[0].advice
    assert good.verdict is Verdict.OK


def test_a_judge_that_fails_is_unknown_for_that_subject_alone(project: Project) -> None:
    def say(subject: str, readings: Any) -> Any:
        if subject == "/b":
            raise ValueError("cannot say")
        return [Finding(subject=subject, verdict=Verdict.OK, summary="fine")]

    findings = {finding.subject: finding for finding in one(project, ACheck(say=say), paths=("/a", "/b", "/c"))}
    assert findings["/b"].verdict is Verdict.UNKNOWN and "ValueError: cannot say" in findings["/b"].summary
    assert findings["/a"].verdict is findings["/c"].verdict is Verdict.OK


@pytest.mark.parametrize("answer", [None, [7], [Finding(subject="/a", verdict="odd", summary="")]])  # type: ignore[arg-type]
def test_a_judge_that_returns_anything_but_findings_is_unknown(project: Project, answer: Any) -> None:
    assert one(project, ACheck(say=lambda subject, readings: answer))[0].verdict is Verdict.UNKNOWN


def test_a_judge_that_never_returns_is_stopped(project: Project) -> None:
    check = ACheck(say=lambda subject, readings: all(count(1)), find=lambda: [Target("/a", deadline_s=0.3)])
    assert outcome(one(project, check)[0]) == "UNKNOWN stuck"


def test_a_subject_without_a_finding_is_ok_and_one_that_was_not_probed_unknown(project: Project) -> None:
    check = ACheck(
        say=lambda subject, readings: [],
        look=lambda target, before: {"/seen": AReading(1)},
        find=lambda: [Target("disk", ("/seen", "/missed"))],
    )
    findings = {finding.subject: finding for finding in one(project, check)}
    assert findings["/seen"].verdict is Verdict.OK
    assert outcome(findings["/missed"]) == "UNKNOWN probe"


def test_nothing_to_probe_is_not_ok_for_requested_paths(project: Project) -> None:
    check = ACheck(find=list)
    (asked,) = watch(project, [a_watchdog(check)])
    (there,) = watch(project, [a_watchdog(check, is_requested=False)])
    assert asked.verdict is Verdict.UNKNOWN and "resil watch a /a" in asked.findings[0].advice
    assert there.verdict is Verdict.OK
    check.on_nothing = "make something"  # type: ignore[attr-defined]
    (asked,) = watch(project, [a_watchdog(check)])
    assert asked.findings[0].advice == "make something", "a check may know better"


def test_a_tick_takes_as_long_as_its_longest_deadline_over_all_watchdogs(project: Project) -> None:
    find = lambda: [Target(f"/{n}", deadline_s=1.0) for n in range(10)]  # noqa: E731
    check = ACheck(look=lambda target, before: time.sleep(100), find=find)
    started = time.monotonic()
    reports = list(watch(project, [a_watchdog(check, name=f"a{n}") for n in range(3)]))
    assert time.monotonic() - started < 10
    assert [len(report.findings) for report in reports] == [10, 10, 10]


@pytest.mark.parametrize("seconds", ["0", "1e300"])
@pytest.mark.parametrize("key", ["deadline_s", "state_deadline_s"])
def test_deadlines_out_of_range_are_rejected(tmp_path: Path, key: str, seconds: str) -> None:
    with pytest.raises(SettingsError, match=key):
        list(watch(make_project(tmp_path, settings=f"[watch]\n{key} = {seconds}\n"), [a_watchdog()]))


def test_the_judge_gets_all_readings_and_the_probe_the_newest(project: Project, clock: FakeClock) -> None:
    def probe(target: Target, before: Any) -> Any:
        return {"/a": AReading(before["/a"].reading.used + 1 if before else 1, ("x",))}

    check = ACheck(look=probe)
    summaries = []
    for _ in range(5):
        summaries.append(one(project, check)[0].summary)
        clock.sleep(60)
    assert summaries[0] == "1% used, before []"
    assert summaries[-1] == "5% used, before [3, 4]"  # as many as it wants, the newest included


def test_a_watchdog_without_stored_readings_writes_no_file(project: Project) -> None:
    assert one(project, ACheck(memory=NO_MEMORY))[0].summary == "10% used, before []"
    assert not (project.loaded.state_dir / ".watch").exists()


def remembered(project: Project, text: str = "") -> ReadingFile:
    """Return the stored readings of the watchdog; with a text, store that first."""
    file = ReadingFile(project.loaded.state_dir / ".watch" / "a.json")
    if text:
        file.path.parent.mkdir(parents=True)
        file.path.write_text(text)
    return file


def test_stored_readings_that_break_the_judge_are_ignored_and_reported(project: Project) -> None:
    def say(subject: str, readings: Any) -> Any:
        summary = str(sum(used_of(readings)))
        return [Finding(subject=subject, verdict=Verdict.OK, summary=summary)]

    remembered(project, json.dumps({"subjects": {"/a": [[1.0, {"used": "text"}]]}}))
    finding = one(project, ACheck(say=say))[0]
    assert (finding.verdict, finding.summary) == (Verdict.OK, "10") and "could not judge" in finding.looked[-1]


def test_a_damaged_readings_file_is_quarantined_and_reported(project: Project) -> None:
    path = remembered(project, "{").path
    finding = one(project)[0]
    assert finding.verdict is Verdict.OK and "damaged" in finding.looked[-1]
    assert len(list(path.parent.glob("a.json.damaged-*"))) == 1
    assert one(project)[0].looked == ()


@needs_root
def test_a_full_state_directory_moves_the_readings_to_this_node_and_back(tmp_path: Path, clock: FakeClock) -> None:
    with small_disk(tmp_path / "disk") as disk:
        settings = f'[run]\nname = "gpt"\nstate_dir = "{disk}/state"\n'
        project = make_project(tmp_path, settings=settings, clock=clock, environ={"XDG_STATE_HOME": f"{tmp_path}/s"})
        ballast = fill(disk)
        assert "cannot" in one(project)[0].looked[-1]
        clock.sleep(60)
        finding = one(project)[0]
        assert finding.summary == "10% used, before [10]" and finding.verdict is Verdict.OK
        ballast.unlink()
        clock.sleep(60)
        assert one(project)[0].looked == ()
        assert len(list((tmp_path / "s").rglob("a.json"))) == 0
        clock.sleep(60)
        assert one(project)[0].summary == "10% used, before [10, 10]"


def test_a_hung_state_directory_costs_its_deadline_once_and_then_nothing(tmp_path: Path, clock: FakeClock) -> None:
    with hung_directory(tmp_path / "hung") as hung:
        settings = f'[run]\nname = "gpt"\nstate_dir = "{hung}/state"\n[watch]\nstate_deadline_s = 2\n'
        project = make_project(tmp_path, settings=settings, clock=clock, environ={"XDG_STATE_HOME": f"{tmp_path}/s"})
        first = one(project)[0]
        assert first.verdict is Verdict.OK and any("no answer within 2 s" in line for line in first.looked)
        clock.sleep(60)
        started = time.monotonic()
        again = one(project)[0]
        assert again.summary == "10% used, before [10]"  # remembered on this node
        assert any("STUCK since" in line for line in again.looked)
        assert time.monotonic() - started < 10.0
        assert len(list((tmp_path / "node" / "stuck").iterdir())) == 1  # that of the state directory


def test_ten_thousand_subjects_of_one_target_are_one_probe(project: Project) -> None:
    names = [f"/logs/{n}" for n in range(10_000)]
    check = ACheck(look=lambda target, before: dict.fromkeys(names, AReading(1)), find=lambda: [Target("/logs")])
    one(project, check)
    started = time.process_time()
    findings = one(project, check)
    assert len(findings) == 10_000 and findings[0].summary == "1% used, before []"  # the clock stands: the same moment
    assert time.process_time() - started < 5


def test_a_watchdog_that_cannot_be_used_is_a_finding_among_the_others(tmp_path: Path) -> None:
    settings = '[run]\nname = "gpt"\n[watch.fs]\nno_such_key = 1\n[watch.mine]\nkind = "no-such-kind"\n'
    project = make_project(tmp_path, settings=settings)
    watchdogs, broken = watchdogs_of(project, ["fs", "mine", "log"])
    assert [watchdog.name for watchdog in watchdogs] == ["log"]
    faults = {(report.check, report.findings[0].fault, report.verdict) for report in broken}
    assert faults == {("fs", "settings", Verdict.UNKNOWN), ("mine", "settings", Verdict.UNKNOWN)}


def test_the_end_of_a_fault_of_the_watchdog_itself_is_reported() -> None:
    finding = Finding(subject="/a", verdict=Verdict.OK, summary="")
    report = Report(check="fs", findings=(finding,), time=0.0)
    assert with_own_finding(report).findings[1:] == (
        Finding(subject="fs", verdict=Verdict.OK, summary="the check ran"),
    )
    broken = Report(check="fs", findings=(Finding(subject="fs", verdict=Verdict.UNKNOWN, summary=""),), time=0.0)
    assert with_own_finding(broken) == broken


def alerting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notify: Any) -> Project:
    from resilience.alerts import notify as module

    monkeypatch.setattr(module, "notify", notify)
    return make_project(tmp_path, settings='[run]\nname = "gpt"\n[alert]\nchannels = ["console"]\n')


def test_without_a_channel_no_notification_is_sent(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watching.send_alerts(project, []) == ()


def test_the_output_of_alerting_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def notify(project: Project, reports: Any, notes: Any, typed: str) -> tuple[str, ...]:
        print("printed")
        return (f"notified of {len(reports)}",)

    assert watching.send_alerts(alerting(tmp_path, monkeypatch, notify), []) == ("notified of 0", "printed")


@pytest.mark.parametrize("how", ["raise", "die", "hang"])
def test_alerting_that_crashes_or_hangs_is_reported_and_changes_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def notify(project: Project, reports: Any, notes: Any, typed: str) -> tuple[str, ...]:
        if how == "hang":
            time.sleep(100)
        return os._exit(1) if how == "die" else (1 / 0,)  # type: ignore[return-value]

    (said,) = watching.send_alerts(alerting(tmp_path, monkeypatch, notify), [], deadline_s=0.5)
    assert said.startswith("alerts may not have been sent: ")


def test_stored_readings_keep_the_requested_spacing(project: Project, clock: FakeClock) -> None:
    check = ACheck(memory=Memory(count=3, spacing_s=100))
    for _ in range(6):
        one(project, check)
        clock.sleep(50)
    series = remembered(project).load(clock.now()).series["/a"]
    assert [clock.now() - timed.time for timed in series] == [200, 100, 50]
