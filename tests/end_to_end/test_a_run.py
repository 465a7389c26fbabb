"""A run from its submit to its end, on the embedded scheduler, by the commands that a user types."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.end_to_end.conftest import Shell

TRAINING = """\
[run]
name = "gpt"
command = {command!r}
[attempt]
beat_s = 1
"""


def runs(shell: Shell) -> Any:
    said = shell.resil("status", "--json", "--fresh")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)["runs"]


def headline(shell: Shell) -> str:
    found = runs(shell)
    return str(found[0]["headline"]) if found else ""


def is_over(shell: Shell) -> bool:
    return not any(job["is_alive"] for run in runs(shell) for job in run["jobs"])


def submit(shell: Shell, command: str, *words: str) -> str:
    shell.settings(TRAINING.format(command=command))
    said = shell.resil("submit", *words, "--parsable")
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


def test_submit_says_what_was_queued_what_happens_and_how_to_stop_it(shell: Shell) -> None:
    shell.settings(TRAINING.format(command="sleep 30"))

    said = shell.resil("submit", "--array", "10")

    assert "array 1 of 10 jobs, one after another" in said.stdout
    for command in ("resil status gpt", "resil logs gpt -f", "resil kill gpt", "resil cancel gpt"):
        assert command in said.stdout


def test_a_run_that_finishes_leaves_its_other_jobs_nothing_to_do(shell: Shell) -> None:
    count = shell.directory / "count"
    submit(shell, f"echo x >> {count}", "--array", "5")

    shell.until(lambda: is_over(shell))

    assert count.read_text() == "x\n"
    (run,) = runs(shell)
    assert run["headline"] == "finished"
    assert [attempt["end"] for attempt in run["attempts"]] == ["finished"]


def test_a_run_that_crashes_is_tried_again_by_every_job(shell: Shell) -> None:
    submit(shell, "exit 7", "--array", "3")

    shell.until(lambda: is_over(shell))

    (run,) = runs(shell)
    assert [attempt["exit_code"] for attempt in run["attempts"]] == [7, 7, 7]
    assert run["headline"] == "not queued"


def test_a_kill_switch_ends_queued_jobs_in_seconds_and_is_taken_back_by_clear(shell: Shell) -> None:
    submit(shell, "sleep 60", "--array", "3")
    shell.until(lambda: headline(shell) == "running")

    thrown = shell.resil("kill", "gpt", "--why", "loss is NaN")

    switch = (shell.state_dir / "gpt" / "switches" / "kill").read_text()
    assert 'why = "loss is NaN"' in switch and 'scope = "job"' in switch
    assert "kill switch set" in thrown.stdout
    shell.resil("cancel", "gpt")
    shell.until(lambda: is_over(shell))
    refused = shell.resil("submit", "--array", "2")
    assert refused.returncode == 2 and "has a kill switch" in refused.stderr and "loss is NaN" in refused.stderr
    assert "cleared: kill" in shell.resil("clear", "gpt").stdout
    assert shell.resil("submit", "--array", "2").returncode == 0


def test_a_queued_job_that_meets_a_kill_switch_starts_no_training(shell: Shell) -> None:
    touched = shell.directory / "trained"
    submit(shell, f"touch {touched}; sleep 60", "--array", "3", "--hold")
    shell.resil("kill", "gpt")
    shell.resil("cancel", "gpt")
    shell.resil("submit", "--array", "2", "--force")

    shell.until(lambda: is_over(shell))
    assert not touched.exists()
    assert runs(shell)[0]["attempts"] == []


def test_scope_all_cancels_the_queued_siblings(shell: Shell) -> None:
    submit(shell, "sleep 60", "--array", "4")
    shell.until(lambda: headline(shell) == "running")
    shell.resil("kill", "gpt", "--scope", "all")
    assert 'scope = "all"' in (shell.state_dir / "gpt" / "switches" / "kill").read_text()

    shell.resil("submit", "--force")  # the first to start meanwhile: single, not of the array

    shell.until(lambda: runs(shell)[0]["jobs"][0]["counts"].get("CANCELLED", 0) >= 3)
    shell.resil("cancel", "gpt")


def test_more_jobs_queue_behind_the_living_ones(shell: Shell) -> None:
    first = submit(shell, "sleep 30", "--array", "2")

    behind = shell.resil("submit", "--array", "2", "--after", "auto")

    assert f"afterany:{first}" in behind.stdout
    (run,) = runs(shell)
    assert [job["job"] for job in run["jobs"]] == ["1", "4"] or len(run["jobs"]) == 2


def test_a_chain_is_single_jobs_each_behind_the_one_before(shell: Shell) -> None:
    ids = submit(shell, "true", "--chain", "3").split()

    assert len(ids) == 3
    shell.until(lambda: is_over(shell))
    assert runs(shell)[0]["headline"] == "finished"


def test_a_script_of_ones_own_runs_unchanged_and_knows_its_run(shell: Shell) -> None:
    script = shell.directory / "train.sh"
    script.write_text('#!/bin/bash\necho "run $RESIL_RUN args $*" > result\n')

    said = shell.resil("submit", "train.sh", "a b", "--run", "own")

    assert said.returncode == 0, said.stderr
    shell.until(lambda: (shell.directory / "result").exists() and "args" in (shell.directory / "result").read_text())
    assert (shell.directory / "result").read_text() == "run own args a b\n"
    assert script.read_text().startswith("#!/bin/bash\necho")


def test_arguments_that_look_like_options_reach_a_script_after_a_second_dashes(shell: Shell) -> None:
    script = shell.directory / "train.sh"
    script.write_text('#!/bin/bash\necho "$*" > result\n')

    said = shell.resil("submit", "train.sh", "--run", "own", "--", "--nice=5", "--", "--lr", "0.1")

    assert said.returncode == 0, said.stderr
    shell.until(lambda: (shell.directory / "result").exists() and (shell.directory / "result").read_text() != "")
    assert (shell.directory / "result").read_text() == "--lr 0.1\n"


def test_a_job_name_of_four_hundred_bytes_does_not_keep_a_run_from_its_log(shell: Shell) -> None:
    shell.settings(TRAINING.format(command="echo step 7") + f'[sbatch]\njob-name = "{"é" * 200}"\n')

    assert shell.resil("submit").returncode == 0

    shell.until(lambda: is_over(shell))
    assert runs(shell)[0]["headline"] == "finished" and runs(shell)[0]["step"] == 7


def test_of_submits_at_the_same_moment_one_queues_and_the_others_give_way(shell: Shell) -> None:
    submit(shell, "sleep 30")
    shell.resil("cancel", "gpt")
    shell.until(lambda: is_over(shell))

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda _: shell.resil("submit", "--array", "2"), range(4)))

    assert sorted(s.returncode for s in said)[0] == 0
    assert len([s for s in said if s.returncode == 0]) == 1, [s.stderr for s in said]
    assert all(s.returncode in (1, 75) for s in said if s.returncode)
    alive = [job for job in runs(shell)[0]["jobs"] if job["is_alive"]]
    assert len(alive) == 1


def test_standard_output_on_a_full_disk_is_said_and_the_job_is_queued(shell: Shell) -> None:
    shell.settings(TRAINING.format(command="sleep 30"))
    with open("/dev/full", "w") as full:
        said = subprocess.run(
            [sys.executable, "-m", "resilience", "submit"],
            cwd=shell.directory,
            env=shell.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert said.returncode == 1 and "cannot write to standard output" in said.stderr
    assert "resil status" in said.stderr and "bug" not in said.stderr
    assert runs(shell)[0]["headline"] in ("queued", "running")


def test_a_dry_run_shows_the_script_and_the_command_and_does_nothing(shell: Shell) -> None:
    shell.settings(TRAINING.format(command="sleep 30"))

    said = shell.resil("submit", "--array", "3", "-n", "--", "--nice=100")

    assert said.stdout.startswith("#!/bin/bash")
    assert "# would run: " in said.stdout and "--array=1-3%1" in said.stdout and "--nice=100" in said.stdout
    assert not shell.state_dir.exists()


def test_logs_show_the_training_and_the_start_and_end_lines(shell: Shell) -> None:
    submit(shell, "echo step 41; echo step 42")
    shell.until(lambda: is_over(shell))

    said = shell.resil("logs", "gpt")

    assert "step 42" in said.stdout and "START attempt 1" in said.stdout and "END attempt 1" in said.stdout
    assert runs(shell)[0]["step"] == 42


def test_the_time_limit_reaches_the_run_as_a_stop_switch(shell: Shell) -> None:
    waits = 'while [ ! -e "$RESIL_RUN_DIR/switches/stop.$RESIL_JOB_ID" ]; do sleep 0.1; done; exit 75'
    submit(shell, waits, "--time", "1:05", "--signal", "B:USR1@60", "--force")

    shell.until(lambda: is_over(shell))

    (attempt,) = runs(shell)[0]["attempts"]
    assert (attempt["end"], attempt["exit_code"]) == ("stopped", 75)


def test_a_private_run_stays_private_whatever_the_umask(shell: Shell) -> None:
    before = os.umask(0)
    try:
        submit(shell, "true")
    finally:
        os.umask(before)
    for path in (shell.state_dir / "gpt", *(shell.state_dir / "gpt").rglob("*")):
        if path.name.startswith(".") or "logs" in path.parts:
            continue
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def everything_of(shell: Shell) -> list[int]:
    """The processes that know this spool: daemon, watchers, batch shells, trainings."""
    mark = f"RESIL_LOCAL_SPOOL={shell.environment['RESIL_LOCAL_SPOOL']}".encode()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
    return found


def test_what_a_power_cut_took_is_said_and_what_was_queued_goes_on(shell: Shell) -> None:
    go_on = shell.directory / "go-on"
    submit(shell, f"[ -e {go_on} ] || sleep 60", "--array", "3")
    shell.until(lambda: headline(shell) == "running" and bool(runs(shell)[0]["attempts"]))
    time.sleep(6)  # a younger attempt may have begun after the queue was looked at

    for pid in everything_of(shell):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    go_on.touch()

    shell.until(lambda: "wrote no end" in shell.resil("status", "gpt", "--fresh").stdout)
    shell.until(lambda: is_over(shell))
    (run,) = runs(shell)
    assert run["headline"] == "finished"
    assert run["attempts"][0]["end"] == "lost"
    assert "attempt 1 (job 1_1 on" in run["lost"][0]
