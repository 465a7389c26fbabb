"""A run that does not run dry on the embedded scheduler, where no watchdog looks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.end_to_end.conftest import Shell

soak = pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="one of several stories; RESIL_SOAK=1 runs all")
SETTINGS = """\
[run]
name = "gpt"
command = "sh train.sh"
[act]
enabled = true
{act}
[attempt]
beat_s = 1
[submit]
signal_lead_s = 1
"""
WAITS_FOR_A_SUCCESSOR = """\
echo x >>count
n=$(grep -c x count)
[ "$n" = 2 ] && exit 0
until [ "$(grep -c '"event":"submitted"' .resil/gpt/submissions.jsonl)" -gt "$n" ]; do sleep 0.1; done
exit 75
"""
REQUEUED = "echo x >>count; case $(grep -c x count) in 1) exit 75 ;; 2) exit 3 ;; esac\n"
OVER_TIME = "echo x >>count; [ $(grep -c x count) = 2 ] || sleep 600\n"


def begin(shell: Shell, training: str, act: str, *words: str) -> str:
    """Submit one job of a run; return its id."""
    shell.settings(SETTINGS.format(act=act))
    (shell.directory / "train.sh").write_text(training)
    said = shell.resil("submit", "--parsable", *words)
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


def ends(shell: Shell) -> list[tuple[str, int]]:
    """Job and exit code of each attempt."""
    found = json.loads(shell.resil("attempts", "--json").stdout)["attempts"]
    return [(row["job"], row["exit_code"]) for row in found]


def submitted(shell: Shell) -> int:
    """How many submissions were accepted."""
    return (shell.state_dir / "gpt" / "submissions.jsonl").read_text().count('"event":"submitted"')


def until_finished(shell: Shell) -> None:
    """Wait for the run to finish, and for its last attempt to record that."""
    directory = shell.state_dir / "gpt"
    shell.until((directory / "finished").exists)
    shell.until(lambda: all(path.with_suffix(".end").exists() for path in directory.glob("attempts/????")))


@soak
def test_a_starting_job_queues_the_next_one_without_any_watchdog(shell: Shell) -> None:
    first = begin(shell, WAITS_FOR_A_SUCCESSOR, "keep_queued = 1")
    until_finished(shell)
    assert ends(shell) == [(first, 75), (f"{int(first) + 1}_1", 0)]


def test_a_job_requeues_itself_until_the_run_is_finished(shell: Shell) -> None:
    job = begin(shell, REQUEUED, "keep_queued = 2\nrequeue = true")
    until_finished(shell)
    assert ends(shell) == [(job, 75), (job, 3), (job, 0)]
    assert submitted(shell) == 1


@soak
def test_a_job_requeues_itself_at_its_time_limit(shell: Shell) -> None:
    shell.environment["RESIL_LOCAL_KILL_WAIT_S"] = "30"
    job = begin(shell, OVER_TIME, "requeue = true", "--time", "0:10")
    until_finished(shell)
    assert ends(shell) == [(job, 143), (job, 0)]


@soak
def test_two_ticks_and_two_starting_jobs_at_once_queue_it_once(shell: Shell) -> None:
    begin(shell, "touch began; sleep 600", "keep_queued = 0")
    shell.until((shell.directory / "began").exists)
    shell.settings(SETTINGS.format(act="keep_queued = 2"))
    run_dir = str(shell.state_dir / "gpt")
    starts = [sys.executable, "-m", "resilience.cli.keep_queued", run_dir, str(shell.directory / "resil.toml")]

    def ask(words: list[str]) -> str:
        done = subprocess.run(words, cwd=shell.directory, env=shell.environment, capture_output=True, text=True)
        return done.stdout + done.stderr

    with ThreadPoolExecutor(4) as pool:
        said = [*pool.map(ask, [starts, [sys.executable, "-m", "resilience", "watch", "job"]] * 2)]
    assert sum("queued 2 jobs behind" in text for text in said) == 1 and submitted(shell) == 2, said
