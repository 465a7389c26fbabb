"""Output is safe for a terminal, coloured only for people, and JSON for programs; warnings come in nobody's way."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.cli.output import (
    DEADLINE_S,
    clean,
    handled,
    paint,
    patience,
    print_json,
    reading,
    table,
    warn_of_dead_letters,
)
from tests.alerts.stand_in import an_alert
from tests.lab.fakes import NOW, make_project
from tests.lab.hung import hung_directory
from tests.lab.waiting import until

HOSTILE = "a\x1b[2J\x9b31m\r\n\t\x00\x7f\u202e\u2028\udcff\U000e0001é漢"


def test_nothing_in_a_text_from_outside_can_steer_a_terminal() -> None:
    assert clean(HOSTILE) == "a?[2J?31m?????????é漢"


@given(st.text())
def test_a_cleaned_text_is_printable_and_as_long_as_it_was(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable()
    cleaned.encode()


@pytest.mark.parametrize(
    ("is_terminal", "environ", "painted"),
    [(True, {"TERM": "xterm"}, True), (False, {"TERM": "xterm"}, False), (True, {"TERM": "dumb"}, False),
     (True, {"TERM": "xterm", "NO_COLOR": ""}, False)],
)  # fmt: skip
def test_colours_are_for_people_who_want_them(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, environ: dict[str, str], painted: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert paint("x", "red") == ("\x1b[31mx\x1b[0m" if painted else "x")
    assert paint("x", "") == "x"


def test_a_table_is_as_wide_as_it_must_be_and_leaves_empty_columns_out() -> None:
    assert table(("JOB", "WHY", "NODES"), [("7", "", "n[1-2]"), ("1234567", "", "n\n3")], indent=2) == [
        "  JOB      NODES",
        "  7        n[1-2]",
        "  1234567  n?3",
    ]


def test_json_is_one_document_that_reads_back_and_shows_no_control_character(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json("test", {"name": HOSTILE, "plain": "é漢"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"schema": "resil/1", "kind": "test", "name": HOSTILE, "plain": "é漢"}
    assert all(character.isprintable() or character == "\n" for character in out)
    assert '"é漢"' in out
    out.encode()


@given(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False, allow_infinity=False) | st.none(), max_size=3))
def test_any_content_reads_back(content: dict[str, object]) -> None:
    import io
    from contextlib import redirect_stdout

    with redirect_stdout(io.StringIO()) as out:
        print_json("test", {"content": content})
    assert json.loads(out.getvalue())["content"] == content
    out.getvalue().encode()


def test_somebody_who_waits_is_told_once_and_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    with patience("it is slow", after_s=60):
        pass
    assert capsys.readouterr().err == ""
    import time

    with patience("it is slow", after_s=0.01):
        time.sleep(0.3)
    assert capsys.readouterr().err == "resil: it is slow\n"


FOLDER = Path(".resil") / ".alerts" / "dead"


def test_a_person_sees_how_much_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    (tmp_path / "model").write_bytes(bytes(2**20))
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with reading("reading step-5", 2**21, every_s=0.01):
        (tmp_path / "model").read_bytes()
        until(lambda: "reading step-5: 50 % of 2.0 MiB" in screen.getvalue(), what="the progress", timeout_s=10)
    assert screen.getvalue().endswith("\r\x1b[K"), "nothing is left of it"
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())  # type: ignore[assignment]
    with reading("reading step-5", 2**21, every_s=0.01):
        time.sleep(0.05)
    assert screen.getvalue() == "", "no terminal"


def test_nothing_is_said_where_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = make_project(tmp_path)
    warn_of_dead_letters(project)
    (project.loaded.project / FOLDER).mkdir(parents=True)
    (project.loaded.project / FOLDER / ".a1.email.123.tmp").write_text("of a writer that was killed")
    warn_of_dead_letters(project)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("apart", [True, False])
def test_how_many_there_are_is_said_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], apart: bool
) -> None:
    project = make_project(tmp_path)
    directory = project.loaded.project / FOLDER
    directory.mkdir(parents=True)
    for number in range(2):
        (directory / f"a{number}.email").write_text("{}")
    warn_of_dead_letters(project, in_child=apart)
    assert capsys.readouterr() == (
        "",
        "resil: 2 alerts could not be delivered: see resil alert\n",
    )


def test_those_that_a_full_disk_did_not_take_count_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from resilience.alerts.state import open_alert_state

    project = make_project(tmp_path, environ={"XDG_STATE_HOME": str(tmp_path / "state")})
    outbox = open_alert_state(project).outbox
    outbox.put(an_alert(), "email", NOW)
    (project.loaded.project / FOLDER).write_text("in the way of the directory")
    outbox.give_up(outbox.pending()[0], "no such recipient", "", NOW, "n1")
    warn_of_dead_letters(project)
    assert "1 alert" in capsys.readouterr().err


def test_a_state_directory_that_hangs_keeps_no_command_up(tmp_path: Path) -> None:
    with hung_directory(tmp_path / "hung") as directory:
        project = make_project(tmp_path, settings=f'[run]\nstate_dir = "{directory}"\n')
        began = time.monotonic()
        warn_of_dead_letters(project)
        assert time.monotonic() - began < DEADLINE_S + 3


def test_a_shell_that_completes_is_told_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path)
    directory = project.loaded.project / FOLDER
    directory.mkdir(parents=True)
    (directory / "a1.email").write_text("{}")
    monkeypatch.setenv("_RESIL_COMPLETE", "complete_bash")
    warn_of_dead_letters(project)
    assert capsys.readouterr().err == ""


def test_it_loads_nothing_that_is_not_needed() -> None:
    import subprocess

    code = "import resilience.cli.output, sys; print([m for m in ('hashlib', 'typer', 'json') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_handler_hears_the_signals_for_as_long_as_it_has_them() -> None:
    heard: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with handled(lambda number, frame: heard.append(number), signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_below_nohup_a_hangup_stays_ignored() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled(lambda number, frame: heard.append(number), signal.SIGHUP):
            os.kill(os.getpid(), signal.SIGHUP)
        assert heard == [] and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
