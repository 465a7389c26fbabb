"""Alerts as people live with them: a watchdog's verdict whatever a channel does, two nodes, real servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from resilience.demo.receivers import receivers
from tests.end_to_end.conftest import Shell

CHECK = '''
from dataclasses import dataclass
from pathlib import Path
from resilience.finding import Finding
from resilience.watch.reading import NO_MEMORY, Target
from resilience.finding import Verdict

@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """[watch.trouble]: reads its verdict from a file."""

@dataclass(frozen=True, slots=True)
class Reading:
    """A word."""
    word: str

class Check:
    summary = "a file that says how things are"
    Settings = Settings
    Reading = Reading
    memory = NO_MEMORY
    argument = ""
    example = "resil watch trouble"

    def targets(self, settings, context):
        return [Target("disk")]

    def probe(self, target, settings, context, before):
        return {"disk": Reading(Path("trouble.txt").read_text().strip())}

    def judge(self, subject, readings, settings, now):
        verdict = Verdict(readings[-1].reading.word)
        fault = "" if verdict is Verdict.OK else "space"
        return [Finding(subject=subject, verdict=verdict, fault=fault, summary=f"it is {verdict.value}")]

CHECK = Check()
'''

CHANNEL = '''
import os, sys, time
from dataclasses import dataclass
from resilience.errors import SettingsError

@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """[channel.bad]."""

class Channel:
    summary = "one that fails"
    Settings = Settings

    def check(self, settings):
        {check}

    def compose(self, alert, settings, thread):
        return alert.id

    def send(self, message, settings, system):
        {send}

CHANNEL = Channel()
'''
BAD = {
    "aborts": CHANNEL.format(check="pass", send="os.abort()"),
    "raises": CHANNEL.format(check="pass", send="raise RuntimeError('https://hooks.example/canary-secret')"),
    "prints": CHANNEL.format(check="pass", send="print('OK - all is well'); sys.stdout.flush(); return {}"),
    "exits": CHANNEL.format(check="pass", send="os._exit(0)"),
    "has a bad secret file": CHANNEL.format(
        check="raise SettingsError('the secret is open', hint='chmod')", send="pass"
    ),
    "cannot be imported": "import no_such_module",
    "aborts when it is imported": "import os; os.abort()",
    "is no channel": "CHANNEL = 7",
}


@pytest.fixture
def watching(shell: Shell) -> Shell:
    """A project with a watchdog that says what a file says."""
    plugins = shell.directory.parent / "plugins"
    for family in ("checks", "channels"):
        (plugins / family).mkdir(parents=True)
    (plugins / "checks" / "trouble.py").write_text(CHECK)
    shell.environment["RESIL_PLUGINS"] = str(plugins)
    (shell.directory / "trouble.txt").write_text("CRITICAL")
    return shell


def say(shell: Shell, word: str) -> None:
    (shell.directory / "trouble.txt").write_text(word)


# ---- a watchdog's verdict is its own


@pytest.mark.parametrize("how", BAD)
def test_whatever_a_channel_does_the_verdict_the_output_and_the_exit_code_stay(watching: Shell, how: str) -> None:
    watching.settings('[run]\nname = "gpt"\n[alert]\nchannels = ["bad"]\n')
    plain = watching.resil("watch", "trouble", "--no-alert")
    assert (plain.returncode, plain.stdout.startswith("TROUBLE CRITICAL - disk")) == (2, True)
    (watching.directory.parent / "plugins" / "channels" / "bad.py").write_text(BAD[how])
    alerted = watching.resil("watch", "trouble")
    assert (alerted.returncode, alerted.stdout) == (plain.returncode, plain.stdout)
    assert "canary" not in alerted.stderr and "Traceback" not in alerted.stderr
    if how != "prints":
        assert "bad failed to deliver a message" in alerted.stderr
        assert "queued for bad" in watching.resil("alert", "list").stdout, "and it is not lost"


# ---- from fault to person and back


@contextmanager
def web_server() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A webhook's other end."""
    taken: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", taken
        server.shutdown()
        thread.join(5)


def test_a_fault_is_notified_once_by_mail_and_slack_acknowledged_and_resolved(watching: Shell) -> None:
    with receivers() as inbox:
        watching.settings(
            '[run]\nname = "gpt"\n[alert]\nchannels = ["email", "slack"]\ngroup_s = 0\n'
            f'[channel.email]\nto = ["ada@example.org"]\nhost = "127.0.0.1"\nport = {inbox.smtp_port}\n'
            '[channel.slack]\nwebhook_variable = "HOOK"\n'
        )
        watching.environment["HOOK"] = inbox.slack_url
        for _ in range(3):
            assert watching.resil("watch", "trouble").returncode == 2
        assert len(inbox.subjects) == len(inbox.texts) == 1, "a long fault is one message"
        (incident,) = json.loads(watching.resil("alert", "list", "--json").stdout)["incidents"]
        assert watching.resil("alert", "ack", incident["episode"], "-m", "at it").returncode == 0
        say(watching, "OK")
        assert watching.resil("watch", "trouble").returncode == 0
        assert len(inbox.subjects) == len(inbox.texts) == 2, "and its end is told"
        shown = watching.resil("alert", "show", incident["episode"]).stdout
        assert shown.count("email delivered") == shown.count("slack delivered") == 2 and "at it" in shown
        said = watching.resil("alert", "test")
        assert said.returncode == 0 and said.stdout.count(": delivered in") == 2


def test_a_node_without_a_way_out_leaves_it_to_one_that_has(watching: Shell) -> None:
    with web_server() as (url, taken):
        watching.settings(
            '[run]\nname = "gpt"\n[alert]\nchannels = ["hook"]\n'
            '[channel.hook]\nkind = "webhook"\nurl_variable = "HOOK"\n'
        )
        assert watching.resil("watch", "trouble", HOOK="http://127.0.0.1:9/hook").returncode == 2
        assert watching.resil("alert", "flush", HOOK="http://127.0.0.1:9/hook").returncode == 75
        done = watching.resil("alert", "flush", HOOK=url)
        assert done.returncode == 0 and "hook delivered FIRST" in done.stdout
        assert len(taken) == 1
        assert watching.resil("alert", "flush", HOOK=url).stdout == "nothing is queued\n"
