"""A program of one's own gets the alert as JSON, sees no secret, and says by its exit code what became of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.alerts.alert import Alert
from resilience.alerts.channels.command import CHANNEL, CommandSettings
from resilience.records import from_record
from resilience.system.ports import System
from resilience.system.secrets import Secret
from tests.alerts.channels.alerts import HOSTILE, a_thousand, an_alert, hostile
from tests.alerts.channels.sender import Sender
from tests.alerts.channels.servers import takes_at_most


def program(directory: Path, body: str) -> CommandSettings:
    path = directory / "tell"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return CommandSettings(argv=(str(path), "--now"), timeout_s=5)


SENDER = Sender(CHANNEL)
send, refused = SENDER.send, SENDER.refused


def test_the_program_reads_the_alert_on_its_standard_input(system: System, tmp_path: Path) -> None:
    settings = program(tmp_path, f"cat > {tmp_path}/got; echo thanks")
    assert send(settings, system)["answer"].endswith("accepted the message: thanks")
    got = json.loads((tmp_path / "got").read_text())
    assert got["headline"].startswith("CRITICAL: /scratch: 98% used") and got["schema"] == "resil/1"
    assert from_record(Alert, got, strict=True) == an_alert()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_texts_arrive_as_json(system: System, tmp_path: Path, text: str) -> None:
    send(program(tmp_path, f"cat > {tmp_path}/got"), system, hostile(text))
    assert json.loads((tmp_path / "got").read_text())["notices"][0]["subject"][:4000] == text[:4000]
    assert (tmp_path / "got").stat().st_size < 2_000_000


def test_a_thousand_incidents_are_bounded(system: System, tmp_path: Path) -> None:
    send(program(tmp_path, f"cat > {tmp_path}/got"), system, a_thousand())
    got = json.loads((tmp_path / "got").read_text())
    assert len(got["notices"]) == 25 and got["total"] == 1000


def test_the_program_sees_no_secret(system: System, tmp_path: Path, canary: str) -> None:
    settings = program(tmp_path, f"env > {tmp_path}/env; cat /proc/$$/cmdline > {tmp_path}/argv; cat >/dev/null")
    send(settings, system)
    seen = (tmp_path / "env").read_text() + (tmp_path / "argv").read_text()
    assert "PATH=" in seen and "--now" in seen
    assert canary not in seen and "RESIL_CANARY" not in seen


def test_a_variable_that_is_named_is_passed_on(system: System, tmp_path: Path) -> None:
    system = replace(system, environ={**system.environ, "PAGER_ROOM": "7"})
    send(replace(program(tmp_path, f"env > {tmp_path}/env"), environment=("PAGER_ROOM",)), system)
    assert "PAGER_ROOM=7" in (tmp_path / "env").read_text()


@pytest.mark.parametrize(
    ("body", "transient", "said"),
    [
        ("exit 75", True, "ended with 75 (temporary failure)"),
        ("echo 'no network' >&2; exit 1", True, "no network"),
        ("exit 7", True, "ended with 7"),
        ("echo who >&2; exit 67", False, "no such user"),
        ("exit 78", False, "configuration"),
        ("kill -9 $$", True, "ended by signal 9"),
    ],
)
def test_the_exit_code_determines_the_outcome(
    system: System, tmp_path: Path, body: str, transient: bool, said: str
) -> None:
    error = refused(program(tmp_path, body), system)
    assert error.transient is transient and said in error.message


def test_a_program_may_leave_unread_what_it_is_given(system: System, tmp_path: Path) -> None:
    send(program(tmp_path, "exec 0<&-; exit 0"), system)


def test_a_program_that_hangs_is_killed_with_its_children(system: System, tmp_path: Path) -> None:
    settings = replace(program(tmp_path, "sleep 60 & sleep 60"), timeout_s=0.5)
    with takes_at_most(5):
        error = refused(settings, system)
    assert error.transient and "0.5 s" in error.message


def test_what_the_program_prints_of_a_secret_is_redacted(system: System, tmp_path: Path, canary: str) -> None:
    Secret(canary)
    (tmp_path / "planted-secrets").mkdir()
    (tmp_path / "planted-secrets" / "said").write_text(canary)
    error = refused(program(tmp_path, f"cat {tmp_path}/planted-secrets/said >&2; exit 1"), system)
    assert "REDACTED" in error.message and canary not in error.message


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({}, "needs a program"),
        ({"argv": ("",)}, "needs a program"),
        ({"argv": ("mail -s x ada",)}, "shell command line"),
        ({"argv": ("a", "b\0c")}, "NUL"),
        ({"argv": ("a",), "timeout_s": 0.0}, "must be positive"),
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any], word: str) -> None:
    assert word in SENDER.objection(CommandSettings(**wrong))
