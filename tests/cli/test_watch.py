"""The commands that watchdogs' files make, and what they print."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.cli import run_watch as show_watch
from resilience.cli.run_watch import lines, performance, show_reports, terminal_lines, to_json
from resilience.finding import Figure, Finding, Report, Verdict
from resilience.watch import watchdogs
from tests.contract.watchdogs import write_own_plugin
from tests.lab.shell import SETTINGS, Shell


@pytest.fixture
def watching(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    watchdogs.checks.cache_clear()
    own = write_own_plugin(tmp_path / "own")
    monkeypatch.setenv("RESIL_PLUGINS", f"{tmp_path / 'plugins'}:{own}")
    for name, free in {"many": 9, "few": 3}.items():
        (shell.directory / name).write_text(str(free))
    yield shell
    watchdogs.checks.cache_clear()


def test_the_list_says_what_each_looks_at_and_where_its_settings_stand(watching: Shell) -> None:
    watching.settings(SETTINGS + '[watch.matlab]\nkind = "licence"\n[watch.odd]\nkind = "no-such"\n')
    rows = {line.split()[0]: line for line in watching.resil("watch", "--list").out.splitlines()[1:]}
    assert {"ckpt", "cron", "fs", "inodes", "job", "log", "nodes", "ranks", "licence", "matlab", "odd"} == set(rows)
    assert "licences that are left" in rows["matlab"] and "[watch.matlab]" in rows["matlab"]
    assert "resil.toml" in rows["matlab"] and "defaults" in rows["licence"]
    assert "there is no watchdog 'no-such'" in rows["odd"]
    document = watching.resil("watch", "--list", "--json").json
    row = next(row for row in document["watchdogs"] if row["name"] == "matlab")
    assert (row["kind"], row["in_all"]) == ("licence", True) and "resil.toml" in row["place"]


def test_the_list_says_what_all_leaves_out(watching: Shell) -> None:
    watching.settings(SETTINGS + '[watch]\nchecks = ["licence"]\n')
    rows = {line.split()[0]: line for line in watching.resil("watch", "--list").out.splitlines()[1:]}
    assert "not in [watch] checks" in rows["fs"] and "not in" not in rows["licence"]


def test_a_path_that_is_typed_counts_from_the_current_directory(
    watching: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching.settings(SETTINGS)
    (watching.directory / "sub" / "deep").mkdir(parents=True)
    monkeypatch.chdir(watching.directory / "sub")
    assert f"{watching.directory}/sub/deep:" in watching.resil("watch", "fs", "deep", "--no-alert").out


@pytest.mark.parametrize("words", [("--json", "licence", "many"), ("licence", "many", "--json")])
def test_a_common_option_may_stand_before_the_name_and_behind_it(watching: Shell, words: tuple[str, ...]) -> None:
    said = watching.resil("watch", *words)
    assert said.code == 0 and said.json["reports"][0]["check"] == "licence"


def test_a_settings_file_that_is_named_behind_the_watchdog_may_be_what_makes_it(watching: Shell) -> None:
    (watching.directory / "other.toml").write_text('[watch.matlab]\nkind = "licence"\nservers = ["few"]\n')
    for words in (("matlab", "-c", "other.toml"), ("-c", "other.toml", "matlab"), ("matlab", "--config=other.toml")):
        said = watching.resil("watch", *words)
        assert (said.code, said.out.partition(" |")[0]) == (1, "MATLAB WARNING - few: 3 licences left")


def test_help_lists_the_watchdogs_even_where_the_settings_are_broken(watching: Shell) -> None:
    watching.settings("[watch\n")
    said = watching.resil("watch", "--help")
    assert said.code == 0 and all(name in said.out for name in ("ckpt", "fs", "inodes", "job", "log", "licence"))


def test_the_deadline_of_the_command_line_is_the_one_of_a_look(watching: Shell, tmp_path: Path) -> None:
    plugin = tmp_path / "own" / "checks" / "licence.py"
    plugin.write_text(
        plugin.read_text().replace("        try:\n", "        __import__('time').sleep(100)\n        try:\n")
    )
    said = watching.resil("watch", "licence", "many", "--deadline", "300 parsecs")
    assert (said.code, said.out) == (3, "") and "300 parsecs" in said.err
    said = watching.resil("watch", "licence", "many", "--deadline", "0.3")
    assert said.code == 3 and "no answer within 0.3 s" in said.out


@pytest.mark.parametrize(("name", "by"), [("fs", "bytes"), ("inodes", "inodes"), ("scratch", "bytes")])
def test_top_asks_for_the_largest_directories_of_the_paths(
    watching: Shell, monkeypatch: pytest.MonkeyPatch, name: str, by: str
) -> None:
    asked: list[Any] = []

    def show_top(project: Any, paths: Any, **options: Any) -> int:
        asked.append((paths, options))
        return 0

    stand_in = types.ModuleType("resilience.cli.show_top")
    stand_in.show_top = show_top  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "resilience.cli.show_top", stand_in)
    watching.settings(SETTINGS + '[watch.scratch]\nkind = "fs"\npaths = ["/dev/shm"]\n')
    words = () if name == "scratch" else ("/tmp", "/var")
    assert watching.resil("watch", name, *words, "--top", "--limit", "7", "--deadline", "2m", "--json").code == 0
    paths = ("/dev/shm",) if name == "scratch" else ("/tmp", "/var")
    assert asked == [(paths, {"limit": 7, "deadline_s": 120.0, "as_json": True, "by": by, "fresh": False})]


def test_only_what_has_directories_offers_their_list(watching: Shell) -> None:
    assert "--top" in watching.resil("watch", "fs", "--help").out
    assert "--top" not in watching.resil("watch", "licence", "--help").out


LICENCE = SETTINGS + '[alert]\nchannels = ["console"]\n[watch.licence]\nservers = ["few"]\n'


@pytest.fixture
def notified(watching: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the reports that were handed to alerting."""
    from resilience.alerts import notify as module

    marker = watching.directory / "notified"

    def notify(project: Any, reports: Any, notes: Any, typed: str) -> tuple[str, ...]:
        marker.write_text(" ".join(f"{report.check}:{report.verdict.value}" for report in reports))
        return ("notified a colleague",)

    monkeypatch.setattr(module, "notify", notify)
    watching.settings(LICENCE)
    return marker


@pytest.mark.parametrize(
    "words",
    [
        ("licence",),
        ("licence", "--json", "--explain"),
        ("licence", "--config", "resil.toml"),
        ("--all",),
        ("licence", "few", "--alert"),
        ("--alert", "licence", "few"),
        ("licence", "--warn-free", "5", "--alert"),
    ],
)
def test_faults_of_what_the_settings_name_and_of_what_is_asked_for_are_notified(
    watching: Shell, notified: Path, words: tuple[str, ...]
) -> None:
    assert watching.resil("watch", *words).err == "resil: notified a colleague\n"
    assert "licence:WARNING" in notified.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("licence", "few"),
        ("licence", "--warn-free", "5"),
        ("licence", "--deadline", "5s"),
        ("licence", "--scheduler", "local"),
        ("--all", "--deadline", "5s"),
    ],
)
def test_typed_targets_and_options_are_a_look_and_say_so(
    watching: Shell, notified: Path, words: tuple[str, ...]
) -> None:
    said = watching.resil("watch", *words)
    assert (said.code, notified.exists()) == (1 if words[0] == "licence" else said.code, False)
    assert said.err == "resil: console not notified: typed targets and options are a look; --alert notifies\n"


@pytest.mark.parametrize("words", [("few", "--no-alert"), ("--no-alert",), ("many",)])
def test_a_look_says_nothing_of_alerts_where_none_is_wanted_or_needed(
    watching: Shell, notified: Path, words: tuple[str, ...]
) -> None:
    assert watching.resil("watch", "licence", *words).err == "" and not notified.exists()


def test_an_entry_of_the_cron_table_notifies_whatever_its_line_has(
    watching: Shell, notified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESIL_CRON_ENTRY", "crontab:3")
    watching.resil("watch", "licence", "few")
    assert notified.read_text() == "licence:WARNING"
    notified.unlink()
    assert watching.resil("watch", "licence", "few", "--no-alert").code == 1 and not notified.exists()


@pytest.mark.parametrize("words", [("--paths", "$NO_SUCH_VARIABLE"), ("$NO_SUCH_VARIABLE",), ("--warn-percent", "5x")])
def test_a_mistyped_option_is_no_incident_even_if_alerts_are_asked_for(
    watching: Shell, notified: Path, words: tuple[str, ...]
) -> None:
    said = watching.resil("watch", "fs", *words, "--alert")
    assert said.code == 3
    assert not notified.exists() or notified.read_text() == ""


def test_a_mistyped_path_does_not_keep_the_fault_of_another_from_being_notified(
    watching: Shell, notified: Path
) -> None:
    said = watching.resil("watch", "fs", "$NO_SUCH_VARIABLE", "/no/such/place", "--alert")
    assert said.code == 2 and "$NO_SUCH_VARIABLE is not set" in said.out
    assert notified.read_text() == "fs:CRITICAL"


def test_alerting_that_fails_does_not_change_the_verdict(
    watching: Shell, notified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resilience.alerts import notify as module

    monkeypatch.setattr(module, "notify", lambda *_, **__: 1 / 0)
    said = watching.resil("watch", "licence", "many", "--alert")
    assert said.code == 0 and "alerts may not have been sent" in said.err


def test_a_bug_in_one_tick_does_not_end_a_repeated_look(watching: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from resilience.cli import run_watch

    once, calls = run_watch._once, []

    def fails_first(*given: Any) -> int:
        calls.append(1)
        return once(*given) if len(calls) > 1 else 1 // 0

    monkeypatch.setattr(run_watch, "_once", fails_first)
    said = watching.resil("watch", "licence", "few", "--every", "0.05s", "--count", "2")
    assert said.code == 1 and "LICENCE WARNING" in said.out and "internal error: ZeroDivisionError" in said.err


def test_a_signal_while_alerts_are_sent_ends_a_repeated_look(watching: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def send(*_: object, **__: object) -> tuple[str, ...]:
        sent.append(1)
        os.kill(os.getpid(), signal.SIGTERM)
        return ()

    monkeypatch.setattr(show_watch, "send_alerts", send)
    said = watching.resil("watch", "licence", "few", "--alert", "--every", "0.05s", "--count", "2")
    assert said.code == 0 and sent == [1] and "the next look sends them" in said.err


@pytest.mark.parametrize("words", [("--top", "--every", "1m"), ("--limit", "3")])
def test_options_of_top_that_cannot_be_meant_are_refused(watching: Shell, words: tuple[str, ...]) -> None:
    said = watching.resil("watch", "fs", *words)
    assert said.code == 3 and "--top" in said.err


# https://www.monitoring-plugins.org/doc/guidelines.html#AEN201, its rules 1 to 8
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_RANGE = rf"(?:{_NUMBER})?"
DATUM = re.compile(rf"'(?:[^'=]|'')+'=(?:U|{_NUMBER})(?:s|%|B|c)?(?:;{_RANGE}){{0,4}}")


def finding(subject: str, verdict: Verdict = Verdict.OK, **fields: Any) -> Finding:
    return Finding(subject=subject, verdict=verdict, **{"summary": f"{verdict.value.lower()} here", **fields})


FULL = finding(
    "/scratch", Verdict.CRITICAL, summary="97% used", fault="space", advice="resil watch fs --top /scratch",
    figures=(Figure(label="used", value=97.0, unit="%", warn=85, crit=95, minimum=0, maximum=100),),
    evidence=tuple(f"line {n}" for n in range(8)), looked=("statvfs, just now",),
)  # fmt: skip
WELL = finding("/home", figures=(Figure(label="used", value=13_194_139_533_312, unit="B"),))
REPORTS = [
    Report(check="fs", findings=(FULL, WELL), time=5.0, took_s=0.12345),
    Report(check="log", findings=(finding("gpt", Verdict.UNKNOWN),), time=5.0),
]


def test_the_first_line_is_the_worst_finding_and_has_all_performance_data() -> None:
    first, *rest = lines(REPORTS[:1])
    assert first == (
        "FS CRITICAL - /scratch: 97% used (worst of 2) | '/scratch used'=97%;85;95;0;100 '/home used'=13194139533312B"
    )
    assert rest == [
        "  > line 0", "  > line 1", "  > line 2", "  > line 3", "  > line 4", "  try: resil watch fs --top /scratch",
        "FS OK - /home: ok here",
    ]  # fmt: skip


def test_two_findings_about_one_subject_have_its_figures_once() -> None:
    figures = (Figure(label="running", value=1),)
    found = (finding("gpt", Verdict.CRITICAL, fault="a", figures=figures), finding("gpt", fault="b", figures=figures))
    assert lines([Report(check="job", findings=found, time=5.0)])[0].endswith("(worst of 2) | 'gpt running'=1")


def test_all_watchdogs_together_begin_with_a_line_over_all() -> None:
    first, *rest = lines(REPORTS, everything=True)
    text, _, data = first.partition(" | ")
    assert text == "RESIL CRITICAL - 1 critical, 1 unknown, 1 ok in 2 watchdogs; worst: fs /scratch: 97% used"
    assert data.startswith("'fs /scratch used'=97%;85;95;0;100 '")
    assert [row for row in rest if not row.startswith("  ")] == [
        "FS CRITICAL - /scratch: 97% used", "LOG UNKNOWN - gpt: unknown here", "FS OK - /home: ok here",
    ]  # fmt: skip


def test_explaining_tells_how_it_is_known_and_all_evidence() -> None:
    shown = lines(REPORTS[:1], explain=True)
    assert "  > line 7" in shown and "  statvfs, just now" in shown


def test_one_finding_is_one_line() -> None:
    assert lines([Report(check="a", findings=(finding("x"),), time=0.0)]) == ["A OK - x: ok here"]


def test_nobody_who_looked_is_unknown() -> None:
    assert lines([]) == ["RESIL UNKNOWN - no watchdog ran"]


def test_text_from_outside_neither_steers_the_terminal_nor_begins_performance_data_nor_a_line() -> None:
    nasty = "a|b\n\x1b[2Jc\r\u202e"
    report = Report(
        check="fs", time=0.0,
        findings=(finding(nasty, Verdict.CRITICAL, summary=nasty, advice=nasty, evidence=(nasty,), looked=(nasty,)),),
    )  # fmt: skip
    shown = lines([report], explain=True)
    assert len(shown) == 4
    assert not set("".join(shown)) & set("|\n\r\x1b\u202e")


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(label="used", value=1), "'/s used'=1"),
        (Figure(label="used", value=0.25, unit="s"), "'/s used'=0.25s"),
        (Figure(label="used", value=1e15, unit="B"), "'/s used'=1000000000000000B"),
        (Figure(label="used", value=1e-7), "'/s used'=0"),
        (Figure(label="used", value=-3.5, crit=0, maximum=10.0), "'/s used'=-3.5;;0;;10"),
        (Figure(label="used", value=float("nan"), unit="B", warn=1), "'/s used'=U;1"),
        (Figure(label="used", value=float("inf"), warn=float("inf")), "'/s used'=U"),
        (Figure(label="a=b's|\x1b", value=1), "'/s a:b''s¦?'=1"),
        (Figure(label="/s free", value=1), "'/s free'=1"),
    ],
)
def test_performance_data_are_as_the_plugin_api_has_them(figure: Figure, text: str) -> None:
    assert performance(finding("/s"), figure) == text
    assert DATUM.fullmatch(text)


def test_the_label_of_a_figure_does_not_depend_on_how_many_there_are() -> None:
    alone = performance(FULL, FULL.figures[0])
    assert alone in lines(REPORTS[:1])[0]


def test_on_a_terminal_it_is_a_table_and_the_verdicts_have_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = terminal_lines(REPORTS)
    plain = [re.sub("\x1b\\[[0-9]*m", "", row) for row in shown]
    assert plain[0].split() == ["VERDICT", "WATCHDOG", "SUBJECT", "SUMMARY"]
    assert plain[1] == "CRITICAL  fs        /scratch  97% used" and "\x1b[31mCRITICAL\x1b[0m" in shown[1]
    assert plain[7].strip() == "try: resil watch fs --top /scratch"
    assert plain[7].index("try") == plain[0].index("SUBJECT")
    assert not any("|" in row for row in plain)


def test_of_ten_thousand_that_are_well_a_terminal_shows_a_few_and_says_so() -> None:
    findings = (FULL, *(finding(f"/{n}") for n in range(10_000)))
    shown = terminal_lines([Report(check="fs", findings=findings, time=0.0)])
    assert len(shown) < 40 and "and 9980 more OK" in shown[-1]
    assert len(lines([Report(check="fs", findings=findings, time=0.0)])) > 10_000  # a pipe gets all


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_code_is_the_worst_verdicts(
    capsys: pytest.CaptureFixture[str], verdict: Verdict, as_json: bool
) -> None:
    reports = [Report(check="a", findings=(finding("x"), finding("y", verdict)), time=0.0)]
    assert show_reports(reports, as_json=as_json) == verdict.exit_code
    assert show_reports([], as_json=as_json) == 3
    assert capsys.readouterr().err == ""


def test_json_has_everything_and_is_json_whatever_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    odd = finding("x\x1b|", figures=(Figure(label="a", value=float("inf")),))
    show_reports([*REPORTS, Report(check="odd", findings=(odd,), time=1.0)], as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert (found["schema"], found["kind"], found["verdict"], found["exit_code"]) == ("resil/1", "watch", "CRITICAL", 2)
    assert found["reports"][0]["findings"][0] | {"figures": []} == {
        "subject": "/scratch", "verdict": "CRITICAL", "summary": "97% used", "fault": "space", "run": "",
        "advice": "resil watch fs --top /scratch", "figures": [], "looked": ["statvfs, just now"],
        "evidence": [f"line {n}" for n in range(8)],
    }  # fmt: skip
    assert found["reports"][2]["findings"][0]["figures"][0]["value"] is None
    assert to_json([])["exit_code"] == 3


def test_the_table_of_a_finding_without_a_watchdogs_answer_still_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_watch.show_reports([], everything=True) == 3
    assert capsys.readouterr().out == "RESIL UNKNOWN - nothing in 0 watchdogs\n"
