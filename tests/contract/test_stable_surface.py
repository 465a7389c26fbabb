"""The stable surface (docs/reference/stability.md): no command, option or JSON key goes away unnoticed.

Two golden files have one line each: `tests/golden/commands.txt` for every command and option of `resil`,
`tests/golden/json_keys.txt` for every key that a `--json` document has in real runs on small fixtures. A line that goes
away fails. New lines are added by `RESIL_UPDATE_GOLDEN=1 pytest tests/contract/test_stable_surface.py`, which removes
none; read the diff before you commit it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from resilience.alerts.routes import channels
from resilience.checkpoints import fence
from resilience.checkpoints.commit import commit
from resilience.checkpoints.directory import StoreDirectory
from resilience.cli.main import app
from resilience.cluster import Node
from resilience.cron.driver_choice import drivers
from resilience.cron.records import Outcome
from resilience.cron.state_directory import Seen
from resilience.job import JobState
from resilience.ranks import collect
from resilience.runs.project import schedulers
from tests.checkpoints.saves import write_part
from tests.cli import test_demo, test_drill
from tests.cli.test_ranks import write_beats
from tests.inject.checkpoint.files import safetensors
from tests.lab.fakes import a_job
from tests.lab.shell import ALERTING, SETTINGS, Desk, Office, Shell, full, make_shell
from tests.report.run_on_disk import write_attempts
from tests.system.people import NOBODY, acting_as, open_the_way

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"
UPDATE = bool(os.environ.get("RESIL_UPDATE_GOLDEN"))
NAMES = frozenset({
    "jobs[].counts", "waiting", "channels", "environment", "installation.facts", "entries[].options",
    "largest[].owners", "growing[].owners", "goodput.ms", "time.ms", "by_attempt[].ms", "by_class[].ms",
})  # fmt: skip
"""Objects whose keys are names of states, channels, variables or people, not keys of ours."""


def hold_golden(name: str, found: set[str]) -> None:
    """Compare with a golden file: every line of it must be found; new ones must be added to it."""
    path = GOLDEN / name
    frozen = set(path.read_text().splitlines()) if path.exists() else set()
    gone, new = frozen - found, found - frozen
    assert not gone, f"the stable surface lost {sorted(gone)}: see docs/reference/stability.md"
    if new and UPDATE:
        path.write_text("".join(f"{line}\n" for line in sorted(frozen | new)))
        return
    assert not new, f"new on the stable surface: {sorted(new)}: add them with RESIL_UPDATE_GOLDEN=1"


# ---- commands and options


def surface(command: Any, parent: Any, name: str) -> Iterator[str]:
    """Every command below one, and its parameters, one line each."""
    context = command.context_class(command, info_name=name, parent=parent, **command.context_settings)
    yield context.command_path
    for number, parameter in enumerate(command.get_params(context)):
        named = {"i": "INTEGER", "f": "FLOAT"}.get(parameter.type.name[0].lower(), "TEXT")  # Typers differ in the rest
        kind = "|".join(getattr(parameter.type, "choices", ())) or named
        kind = "" if getattr(parameter, "is_flag", False) else f" {kind}"
        many = "..." if parameter.multiple or parameter.nargs == -1 else ""
        if parameter.param_type_name == "argument":
            yield f"{context.command_path} ({number + 1}: {parameter.make_metavar(context)})"
        else:
            words = [*parameter.opts, *parameter.secondary_opts]
            yield from (f"{context.command_path} {word}{kind}{many}" for word in words)
    for child in command.list_commands(context) if hasattr(command, "list_commands") else ():
        found = command.get_command(context, child)
        if not found.hidden:
            yield from surface(found, context, child)


def test_no_command_and_no_option_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RESIL_PLUGINS", raising=False)
    monkeypatch.chdir(tmp_path)
    hold_golden("commands.txt", set(surface(typer.main.get_command(app), None, "resil")))


# ---- JSON keys


def keys(value: Any, path: str, below: str = "") -> Iterator[str]:
    """The paths of every key in a document."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if below in NAMES or any(below.endswith(f".{name}") for name in NAMES):
                key = "*"
            here = f"{below}.{key}" if below else str(key)
            yield f"{path}.{here}"
            yield from keys(inner, path, here)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, path, f"{below}[]")


class Documents:
    """A person who asks for JSON, and the keys of all that was printed."""

    def __init__(self, shell: Shell) -> None:
        self.shell, self.found = shell, set[str]()

    def ask(self, *words: str) -> Any:
        document = self.shell.resil(*words, "--json").json
        self.found |= set(keys(document, document["kind"]))
        return document


Scenario = Callable[[Documents, pytest.MonkeyPatch], None]


def runs(person: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = person.shell
    shell.fake.cluster = (Node("n7", "IDLE"),)
    person.ask("submit", "--array", "3", "--dry-run")
    person.ask("submit", "--array", "3")
    shell.resil("kill", "--why", "x")
    attempt = 'number = 1\njob_id = 101\nlabel = "101_1"\nstart = 1.0\n'
    (shell.run_dir / "attempts" / "0001").write_text(attempt)
    shell.fake.records = [replace(job, state=JobState.RUNNING, raw_id=101) for job in shell.fake.records]
    shell.journal(101, event="kill_noticed", attempt=1, time=time.time(), why="bob", bound_s=95)
    save = {"event": "save", "time": time.time(), "attempt": 1, "step": 60}
    (shell.run_dir / "journal" / "101.0.jsonl").write_text(json.dumps(save) + "\n")
    cron = shell.directory / ".resil" / ".cron"
    cron.mkdir()
    beat = {"time": 1.0, "expected": 61.0, "alive_since": 1.0, "driver": "foreground"}
    (cron / "heartbeat").write_text(json.dumps(beat))
    (run,) = person.ask("status", "--fresh")["runs"]
    assert person.ask("goodput")["goodput"]["by_attempt"]
    assert run["save"] and run["kill"] and run["attempts"] and run["jobs"] and run["switches"]
    (shell.run_dir / "beats" / "101.n1").write_text("attempt = 1\n[rank.0]\npid = 7\n[rank.1]\npid = 8\ngone = true\n")
    thread = '\nThread 0x1 (most recent call first):\n  File "train.py", line 1 in step\n\n'
    monkeypatch.setattr(
        collect, "refresh_directory", lambda path: Path(path).write_text(f"1800000000 n1 pid 7: {thread}")
    )
    (job,) = person.ask("stacks")["jobs"]
    assert job["groups"][0]["frames"] and job["odd"]
    write_beats(shell.run_dir, slow=3)
    assert person.ask("ranks")["stragglers"]
    shell.fake.records = [a_job(12, name="plain", user="bob")]
    assert person.ask("adopt", "12")["notes"]
    shell.resil("nodes", "exclude", "n7")
    (node,) = person.ask("nodes")["nodes"]
    assert node["evidence"]
    for words in (("doctor",), ("config", "show"), ("templates",)):
        person.ask(*words)


def reporting(person: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = person.shell
    shell.resil("submit")
    write_attempts(shell.run_dir, 12, hours=0.2)
    store = StoreDirectory.create(shell.directory / "checkpoints", "gpt")
    fence.begin(store, 1)
    commit(store, write_part(store, 10), {"run": "gpt", "metrics": {"loss": 2.0}})
    office = Office(shell)
    office.tick(full())
    shell.settings((shell.directory / "resil.toml").read_text() + '[checkpoints]\npath = "checkpoints"\n')
    document = person.ask("report")
    for name in ("attempts", "steps", "incidents", "checkpoints", "nodes", "losses", "advice", "missing"):
        assert document[name], name


def watching(person: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = person.shell.directory
    person.ask("watch", "fs", "--no-alert", str(directory))
    person.ask("watch", "--list")
    data = directory / "data"
    (data / "big").mkdir(parents=True)
    (data / "big" / "file").write_bytes(b"x" * 5000)
    person.ask("watch", "fs", "--top", "data", "missing")
    (data / "big" / "more").write_bytes(b"x" * 500_000)
    (data / "locked").mkdir(mode=0)
    open_the_way(data / "x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    for _ in range(2):
        with acting_as(NOBODY) if os.geteuid() == 0 else nullcontext():
            document = person.ask("watch", "fs", "--top", "data")
    assert document["folders"][0]["unreadable"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert person.ask("watch", "fs", "--top", "data")["folders"][0]["growing"]


def alerting(person: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office(person.shell)
    office.order("list", "down")
    office.tick(full())
    person.ask("alert", "show", office.episode())  # sent by pager, queued for list
    office.order("list", "refuse")
    office.resil("flush")
    office.resil("silence", "--check", "fs", "--for", "2h")
    office.tick(full("/home"))
    office.order("list", "down")
    office.resil("unsilence", office.state.silences.active(time.time())[0].id)
    office.tick(full("/work"))
    office.resil("silence", "--check", "fs", "--for", "2h")
    person.ask("alert", "show", office.episode())
    document = person.ask("alert", "list")
    assert document["silences"] and document["dead"] and document["waiting"]
    person.ask("alert", "test")


def cron(person: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(person.shell)
    person.shell.settings(ALERTING.replace("[alert]", '[cron]\nbackend = "fake"\n[alert]'))
    Office(person.shell)  # its channels; its settings lack [cron]
    person.shell.settings(ALERTING.replace("[alert]", '[cron]\nbackend = "fake"\n[alert]'))
    desk.drop("say", "#!/bin/sh\n# resil: timeout=5m\nexit 3\n", directory="cron.minutely")
    desk.drop("notes.txt", mode=0o644)
    person.ask("cron", "install", "--dry-run")
    person.ask("cron", "install")
    person.ask("cron", "tick")
    state, slot = desk.project.state, int(time.time()) // 60 * 60
    state.write_seen({key: Seen(slot - 150, value.schedule) for key, value in state.seen().items()})
    assert person.ask("cron", "tick", "--dry-run")["due"]
    ticked = person.ask("cron", "tick")
    assert ticked["ended"] and ticked["skipped"]
    now = time.time()
    desk.record("cron.minutely/say", -60, Outcome.FAILED, started=now, pid=7, exit_code=3, host="n1", job_id="88",
                summary="bent", output="0.txt")  # fmt: skip
    document = person.ask("cron", "status")
    assert document["lateness"] and document["driver"] and document["heartbeat"] and document["next"]
    for words in (("list",), ("history",), ("doctor",), ("doctor", "--environment")):
        person.ask("cron", *words)
    tick = "import time; time.sleep(0.5); from resilience.cli.entry import run; run(['cron', 'tick'])"
    with subprocess.Popen(
        [sys.executable, "-c", tick],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.DEVNULL,
    ):  # fmt: skip
        assert person.ask("cron", "canary", "--wait", "30s")["channels"]
    output = desk.project.state.path / "output" / "cron.minutely+say"
    output.mkdir(parents=True, exist_ok=True)
    for number in range(25):
        (output / f"{number}.txt").write_text("x")
    assert person.ask("cron", "prune", "--dry-run")["removed"]
    person.shell.resil("cron", "add", "probe", "--hourly", "--json", "--", "true")
    document = person.shell.resil("cron", "add", "other", "--hourly", "--json", "--", "true").json
    person.found |= set(keys(document, document["kind"]))
    assert person.ask("cron", "remove", "other")["removed"]
    person.ask("cron", "stop")
    assert person.ask("cron", "status")["stopped"]
    person.ask("cron", "uninstall")


def simulating(person: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("simulate", "--nodes", "7", "--gpus-per-node", "4", "--stall-s", "5", "--days", "1", "--lives", "1")
    assert person.ask(*words, "--failures", "rsc-1")["formulas"]
    assert person.ask(*words, "--failures", "rsc-1", "--sweep", "spares")["points"]
    trace = REPOSITORY / "tests" / "recorded" / "gpus" / "pccheck.csv"
    assert person.ask(*words, "--failures", str(trace))["replay"]


def altering(person: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    path = safetensors(person.shell.directory / "model.safetensors")
    assert person.ask("inject", "checkpoint", path.name, "--list")["locations"]
    done = person.ask("inject", "checkpoint", path.name, "--save-sequence", "flips.json", "--seed", "1")
    assert done["alterations"]
    person.ask("inject", "checkpoint", done["output"], "--undo", "flips.json")


def demo(person: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    test_demo.plays(monkeypatch)
    person.ask("demo")
    test_drill.plays(monkeypatch, test_drill.result())
    person.ask("drill", "kill-rank", "--yes")
    person.ask("drill", "--plan")
    test_demo.plays_sdc(monkeypatch)
    person.ask("demo", "--sdc")


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Documents]:
    for cache in (schedulers, channels, drivers):
        cache.cache_clear()
    made = make_shell(tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made.settings(SETTINGS)
    yield Documents(made)
    for cache in (schedulers, channels, drivers):
        cache.cache_clear()


@pytest.mark.parametrize("scenario", [runs, reporting, watching, alerting, cron, simulating, altering, demo])
def test_no_json_key_goes_away(person: Documents, monkeypatch: pytest.MonkeyPatch, scenario: Scenario) -> None:
    scenario(person, monkeypatch)
    kinds = {line.partition(".")[0] for line in person.found}
    path = GOLDEN / "json_keys.txt"
    frozen = set(path.read_text().splitlines()) if path.exists() else set()
    other = {line for line in frozen if line.partition(".")[0] not in kinds}
    hold_golden("json_keys.txt", person.found | other)
