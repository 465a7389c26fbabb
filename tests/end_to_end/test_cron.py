"""`resil cron` as a user types it: real schedulers in the foreground, real runs, real jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import PATIENCE_S, Shell

SETTINGS = '[run]\nname = "gpt"\ncommand = "true"\n[cron]\ntick_s = 1\njitter_s = 0\nbackend = "foreground"\n'
HOUR_S = 3600


@pytest.fixture
def desk(shell: Shell) -> Shell:
    """A project whose scheduler is asked every second."""
    for directory in (shell.directory, shell.directory.parent):
        directory.chmod(0o755)
    shell.settings(SETTINGS)
    return shell


@contextmanager
def scheduler(shell: Shell) -> Iterator[subprocess.Popen[str]]:
    """`resil cron run`, ended at the end."""
    words = [sys.executable, "-m", "resilience", "cron", "run"]
    with (shell.directory / "run.out").open("w") as out:
        process = subprocess.Popen(words, cwd=shell.directory, env=shell.environment, stdout=out, stderr=out, text=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def runs(shell: Shell, *words: str) -> list[dict[str, Any]]:
    said = shell.resil("cron", "history", *words, "--json")
    assert said.returncode == 0, said.stderr
    found: list[dict[str, Any]] = json.loads(said.stdout)["runs"]
    return found


def done(shell: Shell) -> int:
    """How many runs have ended well: from the files, because a poll by `resil` would keep the machine busy."""
    directory = shell.state_dir / ".cron" / "history"
    return len(list(directory.glob("*/*@DONE")))


def status(shell: Shell) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell.resil("cron", "status", "--json").stdout)
    return found


def make_due(shell: Shell, key: str) -> None:
    """As if the entry had been known for an hour, and nobody had been there since."""
    path = shell.state_dir / ".cron" / "seen"
    seen = json.loads(path.read_text())
    seen[key][0] -= HOUR_S
    path.write_text(json.dumps(seen))


def test_from_the_first_line_to_the_stop_and_on_again(desk: Shell) -> None:
    added = desk.resil("cron", "add", "beat", "--cron", "@every 2s", "--", "echo", "it's alive")
    assert added.returncode == 0 and "next runs of crontab/beat" in added.stdout
    installed = desk.resil("cron", "install")
    assert installed.returncode == 0 and "resil cron run" in installed.stdout, installed.stderr
    with scheduler(desk) as process:
        desk.until(lambda: done(desk) >= 2)
        said = desk.resil("cron")
        assert said.returncode == 0 and "alive" in said.stdout and "crontab/beat" in said.stdout
        assert ("ok " in said.stdout or ".. " in said.stdout) and "last tick: " in said.stdout
        found = status(desk)
        assert found["driver"]["liveness"] == "ALIVE" and found["lateness"]["runs"] >= 2
        assert desk.resil("cron", "logs", "beat").stdout == "it's alive\n"

        stopped = desk.resil("cron", "stop", "--why", "enough")
        assert stopped.returncode == 0 and "resil cron install" in stopped.stdout
        assert desk.resil("cron", "status").returncode == 1 and status(desk)["stopped"]["why"] == "enough"
        time.sleep(3)  # what was under way has ended
        before = done(desk)
        assert "no tick is made" in desk.resil("cron", "tick").stdout
        assert "no tick is made" in desk.resil("cron", "run", "--once").stdout
        time.sleep(4)  # two slots
        assert done(desk) == before, "nothing runs any more"

        again = desk.resil("cron", "install")
        assert again.returncode == 0 and "resumed" in again.stdout
        if process.poll() is not None:  # it ended when it was stopped; the person starts it again
            with scheduler(desk):
                desk.until(lambda: done(desk) > before)
        else:
            desk.until(lambda: done(desk) > before)
    assert process.returncode == 0, (desk.directory / "run.out").read_text()
    slots = [run["slot"] for run in runs(desk, "-n", "100") if run["outcome"] == "done"]
    assert len(slots) == len(set(slots)) and all(slot % 2 == 0 for slot in slots)
    removed = desk.resil("cron", "remove", "beat")
    assert removed.returncode == 0 and desk.resil("cron", "list").stdout.startswith("nothing is scheduled")


def test_a_scheduler_that_was_killed_is_said_to_be_dead_with_the_way_back(desk: Shell) -> None:
    desk.resil("cron", "add", "beat", "--cron", "@every 2s", "--", "true")
    desk.resil("cron", "install")
    with scheduler(desk) as process:
        desk.until(lambda: (desk.state_dir / ".cron" / "heartbeat").exists())
        assert status(desk)["health"] == "alive"
        process.kill()
        process.wait(PATIENCE_S)
        said = desk.resil("cron", "status")
        assert said.returncode == 1 and "dead" in said.stdout and "cron run" in said.stdout
        doctor = desk.resil("cron", "doctor")
        assert doctor.returncode == 1 and "CRITICAL" in doctor.stdout


def test_a_run_can_be_followed_while_it_runs(desk: Shell) -> None:
    script = "for i in 1 2 3; do echo line $i; sleep 1; done"
    desk.resil("cron", "add", "slow", "--minutely", "--shell", "--", script)
    assert desk.resil("cron", "tick").returncode == 0
    make_due(desk, "cron.minutely+slow")
    tick = subprocess.Popen([sys.executable, "-m", "resilience", "cron", "tick"], cwd=desk.directory,
                            env=desk.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        desk.until(lambda: bool(list((desk.state_dir / ".cron" / "runs").glob("cron*@running@*"))))
        assert runs(desk)[-1]["outcome"] in ("running", "done")
        said = desk.resil("cron", "logs", "slow", "-f")
        assert said.stdout == "line 1\nline 2\nline 3\n", said.stderr
    finally:
        assert tick.wait(PATIENCE_S) == 0
    (ended,) = [run for run in runs(desk, "slow") if run["outcome"] == "done"]
    assert 2 < ended["took_s"] < 60


def test_what_was_added_to_be_submitted_becomes_a_job_whose_words_are_shown(desk: Shell) -> None:
    desk.resil("cron", "add", "eval", "--hourly", "--submit", "--shell", "--", "echo from job $SLURM_JOB_ID; exit 3")
    assert desk.resil("cron", "tick").returncode == 0
    make_due(desk, "cron.hourly+eval.slurm")
    said = desk.resil("cron", "tick")
    assert said.returncode == 0 and "as job " in said.stdout, said.stderr
    job = next(run["job"] for run in runs(desk, "eval") if run["job"])
    output = desk.state_dir / ".cron" / "output" / "cron.hourly+eval.slurm" / f"{job}.out"
    desk.until(lambda: output.exists() and "from job" in output.read_text())
    assert desk.resil("cron", "logs", "eval").stdout.strip() == f"from job {job}"


def test_what_the_doctor_finds_is_what_does_not_run(desk: Shell) -> None:
    directory = desk.directory / "cron" / "cron.minutely"
    directory.mkdir(parents=True)
    for made in (directory, directory.parent):
        made.chmod(0o755)
    for name, text, mode in (
        ("good", "#!/bin/sh\necho good >> ran\n", 0o755),
        ("bad.sh", "#!/bin/sh\necho bad >> ran\n", 0o755),
        ("open", "#!/bin/sh\necho open >> ran\n", 0o777),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(mode)
    desk.resil("cron", "tick")
    make_due(desk, "cron.minutely+good")
    desk.resil("cron", "tick")
    assert (desk.directory / "ran").read_text() == "good\n"
    said = desk.resil("cron", "doctor", "--json")
    faults = {ignored["place"] for ignored in json.loads(said.stdout)["ignored"] if ignored["is_fault"]}
    assert said.returncode == 1 and faults == {"cron/cron.minutely/bad.sh", "cron/cron.minutely/open"}


def test_a_canary_flies_through_the_scheduler_and_every_channel(desk: Shell) -> None:
    taker = desk.directory / "take"
    taker.write_text('#!/bin/sh\ncat > "$(dirname "$0")/taken"\n')
    taker.chmod(0o755)
    desk.settings(SETTINGS + f'[alert]\nchannels = ["command"]\n[channel.command]\nargv = ["{taker}"]\n')
    nobody = desk.resil("cron", "canary", "--wait", "1s")
    assert nobody.returncode == 75 and "resil cron status" in nobody.stdout, "no scheduler lives"
    with scheduler(desk):
        said = desk.resil("cron", "canary", "--wait", "60s")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "ok  command after " in said.stdout and "canary" in (desk.directory / "taken").read_text()
    (desk.directory / "resil.toml").write_text(SETTINGS)
    assert desk.resil("cron", "canary").returncode == 2, "there is no channel"


def test_a_hung_controller_keeps_nobody_from_the_status(desk: Shell, tmp_path: Path) -> None:
    """`squeue` never answers; what is known from the disk is shown, and the rest is UNKNOWN."""
    programs = tmp_path / "hung"
    programs.mkdir()
    for name in ("squeue", "sbatch", "scontrol", "scancel", "sinfo", "sacct"):
        (programs / name).write_text("#!/bin/sh\nsleep 1000\n")
        (programs / name).chmod(0o755)
    desk.resil("cron", "add", "beat", "--hourly", "--", "true")
    now = time.time()
    state = desk.state_dir / ".cron"
    state.mkdir(parents=True, exist_ok=True)
    (state / "driver.json").write_text(json.dumps({
        "driver": "slurm", "token": "0" * 16, "time": now - 9000, "by": "ada", "host": "login1", "mode": "daemon",
        "project": str(desk.directory), "python": sys.executable, "facts": {},
    }))  # fmt: skip
    beat = {"time": now, "expected": now + 60, "alive_since": now - 9000, "driver": "slurm", "host": "n1", "ticks": 9}
    (state / "heartbeat").write_text(json.dumps(beat))
    hung: dict[str, Any] = {"PATH": f"{programs}:{os.environ['PATH']}", "RESIL_SCHEDULER__NAME": "slurm",
            "RESIL_SCHEDULER__DEADLINE_S": "2"}  # fmt: skip
    said = desk.resil("cron", "status", "--json", **hung)
    found = json.loads(said.stdout)
    assert said.returncode == 0 and found["health"] == "alive", "the ticks come: a controller that hangs is not death"
    assert found["driver"]["liveness"] == "UNKNOWN" and found["entries"][0]["name"] == "cron.hourly/beat"
