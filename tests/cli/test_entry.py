"""Every way in which a command can end has its exit code and its sentence; the quick path does what Typer's does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from resilience import errors
from resilience.cli import entry, show_status
from resilience.errors import ResilError, SchedulerUnavailable, SubmissionUncertain
from resilience.finding import Verdict
from resilience.watch import watchdogs
from tests.lab.fakes import DOWN
from tests.lab.shell import SETTINGS, Shell


def family(kind: type[ResilError]) -> Iterator[type[ResilError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from family(child)


KINDS: list[type[ResilError]] = list(dict.fromkeys(family(ResilError)))
USAGE = {"UsageError", "SettingsError", "TemplateError", "QuantityError", "HostlistError"}
TEMPORARY = {"SchedulerUnavailable", "SubmissionUncertain", "DeliveryError"}


def fails_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def show(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(show_status, "show_status", show)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_of_ours_has_its_exit_code_and_tells_what_to_try(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, kind: type[ResilError]
) -> None:
    fails_with(monkeypatch, kind("it broke", hint="mend it"))
    said = shell.resil("status")
    assert said.err == "resil: error: it broke\n  try: mend it\n"
    assert said.code == (2 if kind.__name__ in USAGE else 75 if kind.__name__ in TEMPORARY else 1)
    assert said.out == ""


def test_a_transient_error_of_any_kind_asks_to_try_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(monkeypatch, ResilError("busy", transient=True))
    said = shell.resil("status")
    assert (said.code, said.err) == (75, "resil: error: busy\n")
    assert SchedulerUnavailable("x").exit_code == SubmissionUncertain("x").exit_code == 75


@pytest.mark.parametrize(
    "words",
    [("sumbit",), ("status", "--arary"), ("status", "a", "b"), ("logs", "--lines", "many"), ("kill", "--scope", "x"),
     ("status", "--interval", "0"), ("submit", "--chain", "x"), ("config", "chekc"), ("--no-such",)],
)  # fmt: skip
def test_a_command_line_that_cannot_be_meant_exits_with_2_and_says_where_help_is(
    shell: Shell, words: tuple[str, ...]
) -> None:
    said = shell.resil(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("resil: error: ") and "--help" in said.err


def test_an_option_without_its_value_names_the_help_of_its_command(shell: Shell) -> None:
    assert "try: resil kill --help" in shell.resil("kill", "--why").err
    assert "try: resil cron add --help" in shell.resil("cron", "add", "--daily", "x", "--name").err


def test_ctrl_c_exits_as_the_shell_expects(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(monkeypatch, KeyboardInterrupt())
    said = shell.resil("status")
    assert (said.code, said.err) == (130, "")


def test_an_error_that_is_a_bug_says_so_and_how_to_see_more(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(monkeypatch, ZeroDivisionError("division by zero"))
    said = shell.resil("status")
    assert said.code == 1
    assert said.err.startswith("resil: internal error: ZeroDivisionError: division by zero\n")
    assert "RESIL_TRACEBACK=1" in said.err
    monkeypatch.setenv("RESIL_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        entry.run(["status"])


def test_a_reader_that_went_away_is_no_error(shell: Shell) -> None:
    for words in (["status"], ["--help"], ["config", "show"], ["templates", "--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [sys.executable, "-m", "resilience", *words], stdout=writing, stderr=subprocess.PIPE, timeout=60,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        os.close(writing)
        assert (done.returncode, done.stderr) == (0, b""), words


def test_the_process_exits_with_the_commands_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "run", lambda words: 75 if words == ["a", "b"] else 0)
    monkeypatch.setattr(sys, "argv", ["resil", "a", "b"])
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert caught.value.code == 75


@pytest.mark.parametrize(
    "words", [("status",), ("status", "gpt"), ("status", "gtp"), ("status", ".resil/gpt"), ("status", "")]
)
@pytest.mark.parametrize("runs", [0, 1, 2])
@pytest.mark.parametrize("is_down", [False, True])
def test_the_short_way_to_status_prints_what_the_long_way_prints(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], runs: int, is_down: bool
) -> None:
    for name in ("gpt", "llama")[:runs]:
        assert shell.resil("submit", "--run", name, "--array", "3").code == 0
    shell.fake.trouble = DOWN if is_down else None
    assert entry.quick_path(words) is not None
    assert shell.resil("status", "--fresh").code in (0, 75)

    def said() -> tuple[int, str, str]:
        found = shell.resil(*words)
        return found.code, re.sub(r", queue seen [\d.]+ m?s ago", "", found.out), found.err  # busy machines take longer

    short = said()
    monkeypatch.setattr(entry, "quick_path", lambda _: None)
    assert said() == short


def test_everything_else_goes_the_long_way() -> None:
    for words in ([], ["status", "--json"], ["status", "-a"], ["status", "a", "b"], ["logs"], ["--help"]):
        assert entry.quick_path(words) is None


PLUGIN = """
from dataclasses import dataclass
from resilience.finding import Finding
from resilience.watch.reading import NO_MEMORY, Target
from resilience.finding import Verdict

@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    \"\"\"Its settings.\"\"\"

@dataclass(frozen=True, slots=True)
class Reading:
    \"\"\"What it saw.\"\"\"

    word: str

class Check:
    summary, Settings, Reading, memory, argument, example = "a thing", Settings, Reading, NO_MEMORY, "", "resil watch x"

    def targets(self, settings, context):
        TARGETS
        return [Target("thing")]

    def probe(self, target, settings, context, before):
        return {"thing": Reading("seen")}

    def judge(self, subject, readings, settings, now):
        return [Finding(subject=subject, verdict=Verdict.VERDICT, fault="bent", summary="it is VERDICT")]

CHECK = Check()
"""


@pytest.fixture
def watching(shell: Shell) -> Iterator[Shell]:
    """A shell with watchdogs of one's own, one for each verdict, and one that cannot be loaded."""
    watchdogs.checks.cache_clear()
    directory = shell.directory.parent / "plugins" / "checks"
    directory.mkdir()
    for verdict in Verdict:
        text = PLUGIN.replace("VERDICT", verdict.value).replace("TARGETS", "pass")
        (directory / f"{verdict.value.lower()}.py").write_text(text)
    (directory / "broken.py").write_text("import no_such_module_at_all\n")
    shell.settings(SETTINGS + '[watch]\nchecks = ["ok", "warning", "broken"]\n')
    yield shell
    watchdogs.checks.cache_clear()


@pytest.mark.parametrize("verdict", list(Verdict))
def test_watch_exits_with_the_verdict_of_a_nagios_plugin(watching: Shell, verdict: Verdict) -> None:
    said = watching.resil("watch", verdict.value.lower())
    assert said.code == verdict.exit_code
    assert said.out == f"{verdict.value} {verdict.value} - thing: it is {verdict.value}\n"


@pytest.mark.parametrize(
    "words",
    [(), ("okk",), ("ok", "--no-such"), ("--no-such",), ("ok", "word"), ("ok", "--every", "soon"),
     ("ok", "--count", "3"), ("ok", "--every", "0"), ("ok", "--deadline", "x"), ("--all", "ok"), ("--list", "ok"),
     ("broken",), ("",),
     ("ok", "-c", "missing.toml"), ("--all", "-c", "missing.toml"), ("--list", "-c", "missing.toml")],
)  # fmt: skip
def test_a_watch_that_cannot_be_meant_is_unknown_and_never_a_verdict(watching: Shell, words: tuple[str, ...]) -> None:
    said = watching.resil("watch", *words)
    assert (said.code, said.out) == (3, "")
    assert said.err.startswith("resil: error: ") and "  try: " in said.err


def test_an_unknown_watchdog_is_told_the_nearest(watching: Shell) -> None:
    assert "did you mean warning?" in watching.resil("watch", "warnin").err
    assert "did you mean warning?" in watching.resil("watch", "warnin", "--explain").err


def test_a_watch_that_fails_by_a_bug_is_unknown(watching: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("resilience.cli.run_watch.run_watch", fail)
    said = watching.resil("watch", "ok")
    assert said.code == 3 and "internal error: ZeroDivisionError" in said.err
    monkeypatch.setattr("resilience.cli.run_watch.run_watch", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert watching.resil("watch", "ok").code == 130


@pytest.mark.parametrize("words", [("--all",), ("ok",), ("warning",), ("critical",), ("okk",), ("broken",)])
def test_the_short_way_to_watch_prints_what_the_long_way_prints(
    watching: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    assert entry.quick_path(("watch", *words)) is not None
    short = watching.resil("watch", *words)
    monkeypatch.setattr(entry, "quick_path", lambda _: None)
    assert watching.resil("watch", *words) == short


def test_a_reader_that_went_away_does_not_change_the_verdict_of_a_watch(watching: Shell) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "resilience", "watch", "critical"], stdout=writing, stderr=subprocess.PIPE, timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, cwd=watching.directory,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (2, b"")


def test_a_full_disk_under_standard_output_does_not_change_the_verdict_of_a_watch(watching: Shell) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "resilience", "watch", "warning"], stdout=full, stderr=subprocess.PIPE, timeout=60,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, cwd=watching.directory, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "resil: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("cron", "tick"), {}),
        (("cron", "tick", "--driver", "crontab"), {"--driver": "crontab"}),
        (("cron", "tick", "--config=/p/resil.toml", "--driver=x"), {"--config": "/p/resil.toml", "--driver": "x"}),
        (("cron", "tick", "--no-wait"), None),
        (("cron", "tick", "--json"), None),
        (("cron", "tick", "--driver"), None),
        (("cron", "tick", "--driver", "--json"), None),
        (("cron", "tick", "now"), None),
        (("cron", "run"), None),
        (("cron",), None),
        ((), None),
    ],
)
def test_only_what_needs_no_parsing_takes_the_short_way(words: tuple[str, ...], options: dict[str, str] | None) -> None:
    found = entry.quick_path(words)
    assert (found.args[0] if isinstance(found, partial) else None) == options


def test_both_ways_leave_a_sign_of_life_and_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "resil.toml").write_text(f'[run]\nstate_dir = "{tmp_path}/state"\n')
    (tmp_path / "cron").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    said = []
    for is_short in (True, False):
        with monkeypatch.context() as patched:
            if not is_short:
                patched.setattr(entry, "quick_path", lambda _: None)
            assert entry.run(("cron", "tick", "--driver", "crontab")) == 0
        said.append(capfd.readouterr())
        beat = tmp_path / "state" / ".cron" / "heartbeat"
        assert '"driver": "crontab"' in beat.read_text()
        beat.unlink()
    assert said[0] == said[1]


def test_a_settings_file_that_is_not_there_is_told_both_ways(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("cron", "tick", "--config", "/nowhere/resil.toml")
    code = entry.run(words)
    short = capfd.readouterr()
    monkeypatch.setattr(entry, "quick_path", lambda _: None)
    assert (entry.run(words), capfd.readouterr()) == (code, short)
    assert code == 2 and "/nowhere/resil.toml" in short.err
