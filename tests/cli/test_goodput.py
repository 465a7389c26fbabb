"""`resil goodput`: what the run directory and the scheduler tell becomes the ledger of time."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from resilience.errors import SchedulerUnavailable
from resilience.job import JobState
from resilience.report.goodput import Category
from resilience.report.reading import parse_gpus, read_goodput
from tests.lab.fakes import a_job
from tests.lab.shell import Shell

BEGIN = 1_795_000_000
"""When the run was submitted."""


class History:
    """Writes a run directory as batch shells and guards do. Times are seconds since BEGIN."""

    def __init__(self, shell: Shell) -> None:
        self.run = shell.run_dir
        for name in ("attempts", "journal", "beats", "hangs", "scripts", "logs"):
            (self.run / name).mkdir(parents=True)
        (self.run / "run.toml").write_text("")

    def submit(self, at: float, job: int, *argv: str, script: str = "", event: str = "intent") -> None:
        intent = {"event": event, "token": f"t{job}", "time": BEGIN + at, "scheduler": "fake", "job_id": str(job)}
        with (self.run / "submissions.jsonl").open("a") as file:
            file.write(json.dumps(intent | {"argv": ["sbatch", *argv], "script": script}) + "\n")
            file.write(json.dumps({"event": "submitted", "token": f"t{job}", "job_id": str(job)}) + "\n")

    def attempt(self, number: int, job: int, start: float, *, restart: int = 0, task: str = "") -> None:
        table = f'job_id = {job}\nlabel = "{job}{task}"\nrestart = {restart}\nhost = "n1"\npid = 7\n'
        (self.run / "attempts" / f"{number:04d}").write_text(f"{table}start = {BEGIN + start:.0f}\n")
        self.tell(job, "batch", start, "attempt_start", attempt=number, nodes="n[1-2]")
        self.tell(job, "batch", start + 10, "launch", attempt=number)
        self.tell(job, "0", start + 20, "start", attempt=number, step=0, world=16)

    def end(self, number: int, at: float, end: str = "exited", code: int | None = 1, **more: object) -> None:
        table = {"exit_code": code, "time": int(BEGIN + at), **more}
        text = f'end = "{end}"\n' + "".join(f"{key} = {value}\n" for key, value in table.items() if value is not None)
        (self.run / "attempts" / f"{number:04d}.end").write_text(text)

    def tell(self, job: int, whose: str, at: float, event: str, **fields: Any) -> None:
        with (self.run / "journal" / f"{job}.{whose}.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, "time": BEGIN + at, **fields}) + "\n")

    def train(self, number: int, job: int, start: float, first: int, last: int) -> None:
        """Do a step a second from `start` on; the first one is seen at once."""
        self.tell(job, "0", start - 5, "resume", attempt=number, step=first)
        steps = sorted({first + 1, *range(first + 60, last, 60), last})
        for step in steps:
            self.tell(job, "progress", start + step - first, "progress", attempt=number, step=step)


@pytest.fixture
def history(shell: Shell) -> History:
    return History(shell)


def read(shell: Shell, **options: Any) -> dict[Category, float]:
    found = read_goodput(shell.project, shell.project.directory("gpt"), **options)
    assert sum(found.ms.values()) == found.wall_ms
    return {category: ms / 1000 for category, ms in found.ms.items() if ms}


def two_attempts(history: History) -> None:
    """The first fails after 600 steps, of which 300 are durable; the second finishes."""
    history.submit(0, 101, "--array=1-9", "--gpus-per-node=8")
    history.attempt(1, 101, 100, task="_1")
    history.train(1, 101, 199, 0, 600)
    history.tell(101, "0", 799.5, "save", attempt=1, step=300)
    history.tell(101, "0", 799.75, "error", attempt=1, step=600)
    history.end(1, 810)
    history.attempt(2, 102, 900, task="_2")
    history.run.joinpath("attempts", "0002").write_text(
        history.run.joinpath("attempts", "0002").read_text().replace('"102_2"', '"101_2"')
    )
    history.train(2, 102, 999, 300, 1000)
    history.tell(102, "0", 1705, "end", attempt=2, step=1000)
    history.end(2, 1710, "finished", 0)
    (history.run / "finished").write_text("attempt = 2\n")


def test_a_run_directory_tells_all_of_it_without_a_scheduler(shell: Shell, history: History) -> None:
    two_attempts(history)
    shell.fake.trouble = SchedulerUnavailable("squeue did not answer")
    assert read(shell) == {
        Category.PRODUCTIVE: 299.5 + 699, Category.REDONE: 299.5, Category.START_UP: 200,
        Category.QUEUE: 100 + 90, Category.TAIL: 22,
    }  # fmt: skip
    assert shell.fake.calls == [], "nothing was left open"


def test_the_command_shows_shares_figures_attempts_and_ends_within_80_columns(shell: Shell, history: History) -> None:
    two_attempts(history)
    out = shell.resil("goodput").out
    assert re.search(r"^gpt: 28 min 30 s, from 20.* to 20.*, 2 attempts$", out, re.MULTILINE)
    assert re.search(r"^productive +16 min 38 s +58.4 % +steps that were kept$", out, re.MULTILINE)
    assert re.search(r"^unknown +0 s +0.0 % +nothing tells; never counted as productive$", out, re.MULTILINE)
    assert re.search(r"^ETTR +58.4 % +productive / wall clock with queue \(arXiv 2410.21680\)$", out, re.MULTILINE)
    assert re.search(r"^without queue +65.7 % ", out, re.MULTILINE)
    assert re.search(r"^effective time +65.* % .*arXiv 2402.15627", out, re.MULTILINE)
    assert re.search(r"^GPU hours +6.8 .*\n +4.4  of them productive", out, re.MULTILINE), "8 GPUs on each of 2 nodes"
    assert re.search(r"^2 +finished +13 min 30 s +11 min 39 s +700 +- +start-up 1 min 40 s", out, re.MULTILINE)
    assert re.search(r"^finished +1 +13 min 30 s +11 min 39 s +11 s", out, re.MULTILINE)
    assert "\nsave stall" not in out, "no time in it"
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_every_span_and_all_categories(shell: Shell, history: History) -> None:
    two_attempts(history)
    found = shell.resil("goodput", "gpt", "--json").json["goodput"]
    assert set(found["ms"]) == set(Category) and sum(found["ms"].values()) == found["end_ms"] - found["start_ms"]
    assert sum(one["end_ms"] - one["start_ms"] for one in found["spans"]) == 1_710_000
    assert [one["ended"] for one in found["by_attempt"]] == ["unknown", "finished"]


@pytest.mark.parametrize("since", ["2026-11-18T11:21:00+00:00", str(BEGIN)])
def test_since_a_date_or_for_a_duration(shell: Shell, history: History, since: str) -> None:
    two_attempts(history)
    if since.isdecimal():
        since = f"{int(time.time()) - BEGIN - 860}s"
    found = shell.resil("goodput", "--since", since, "--json").json["goodput"]
    assert found["start_ms"] == pytest.approx((BEGIN + 860) * 1000, abs=5000)
    assert [one["attempt"] for one in found["by_attempt"]] == [2]


@pytest.mark.parametrize("since", ["soon", "2026-13-01", "-5s"])
def test_since_a_moment_that_is_none_is_refused(shell: Shell, history: History, since: str) -> None:
    said = shell.resil("goodput", f"--since={since}")
    assert said.code == 2 and since in said.err and "--since 2026-11-20 or --since 7d" in said.err


def test_a_run_without_attempts_says_so(shell: Shell, history: History) -> None:
    said = shell.resil("goodput")
    assert (said.code, said.out) == (0, "run gpt has no attempt yet: there is no time to show\n")
    two_attempts(history)
    assert shell.resil("goodput", "--since", "1s").out == "run gpt has no attempt since 1s: there is no time to show\n"


def test_an_attempt_that_ended_in_the_second_in_which_it_began_has_a_time_and_a_page(
    shell: Shell, history: History
) -> None:
    history.submit(100, 101)
    history.attempt(1, 101, 100)
    history.end(1, 100)
    assert shell.resil("goodput").out == "run gpt has 1 attempt, which took less than a second\n"
    found = shell.resil("goodput", "--json").json["goodput"]
    assert found["start_ms"] == found["end_ms"] == 1000 * (BEGIN + 100), "not 1970"
    assert shell.resil("report", "-o", "page.html").code == 0
    assert "1970" not in (shell.directory / "page.html").read_text()


def test_what_the_journal_leaves_open_is_asked_of_the_scheduler_once(shell: Shell, history: History) -> None:
    history.attempt(1, 101, 100)
    history.train(1, 101, 199, 0, 60)
    history.end(1, 900, "lost", None, seen_by=2)
    history.attempt(2, 102, 880)
    history.end(2, 980, "stopped", 75)
    (history.run / "attempts" / "0001.why").unlink(missing_ok=True)
    shell.fake.trouble = SchedulerUnavailable("sacct did not answer")
    found = read(shell)
    assert found[Category.UNKNOWN] == 890 - 259, "until the second was launched"
    note = shell.resil("goodput").out
    assert "sacct did not answer" in note and "no end was recorded of 1 attempt (1)" in note
    shell.fake.trouble = None
    known: dict[str, Any] = {"state": JobState.NODE_FAIL, "submit_time": BEGIN + 40.0, "start_time": BEGIN + 95.0}
    shell.fake.records = [replace(a_job(101), raw_id=101, **known, end_time=BEGIN + 300.0)]
    found = read(shell)
    assert found[Category.QUEUE] == 60, "from the submit on"
    assert found[Category.TAIL] == 41 and found[Category.PRODUCTIVE] == 59, "no save was told, so none is missed"


def test_what_was_trained_after_the_last_save_of_a_run_that_did_not_finish_is_lost(
    shell: Shell, history: History
) -> None:
    two_attempts(history)
    (history.run / "finished").unlink()
    history.end(2, 1710, "exited", 1)
    found = read(shell)
    assert found[Category.REDONE] == 299.5 + 699, "nothing after step 300 is durable"


def test_steps_of_a_run_whose_only_save_never_became_durable_are_lost(shell: Shell, history: History) -> None:
    history.submit(0, 101)
    history.attempt(1, 101, 100)
    history.train(1, 101, 199, 0, 600)
    history.tell(101, "0", 799.25, "save_begin", attempt=1, step=600)
    history.end(1, 810)
    found = read(shell)
    assert Category.PRODUCTIVE not in found and found[Category.REDONE] > 590


def test_a_job_that_was_submitted_after_its_start_by_another_clock_waited_for_an_unknown_time(
    shell: Shell, history: History
) -> None:
    two_attempts(history)
    lines = (history.run / "submissions.jsonl").read_text()
    history.submit(5000, 102)
    (history.run / "attempts" / "0002").write_text(
        (history.run / "attempts" / "0002").read_text().replace('"101_2"', '"102"')
    )
    found = read(shell)
    assert Category.HELD not in found and found[Category.UNKNOWN] == 90
    (history.run / "submissions.jsonl").write_text(lines)


def test_a_run_that_began_again_at_its_first_step_says_what_that_counts_as(shell: Shell, history: History) -> None:
    two_attempts(history)
    assert "began again" not in shell.resil("goodput").out
    path = history.run / "journal" / "102.0.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '"resume"' not in line))
    path = history.run / "journal" / "102.progress.jsonl"
    path.unlink()
    history.tell(102, "progress", 1000, "progress", attempt=2, step=10)
    history.tell(102, "progress", 1600, "progress", attempt=2, step=600)
    assert "attempt 2 began again at step 0" in shell.resil("goodput").out


def test_a_run_that_is_queued_still_lives_and_a_held_one_is_held(shell: Shell, history: History) -> None:
    two_attempts(history)
    (history.run / "finished").unlink()
    history.end(2, 1710, "stopped", 75)
    shell.fake.records = [a_job(101, comment="resil:gpt:t101", state=JobState.PENDING, reason="Priority")]
    assert read(shell)[Category.QUEUE] > 86400
    shell.fake.records = [replace(shell.fake.records[0], reason="JobHeldUser")]
    assert read(shell)[Category.HELD] > 86400
    shell.fake.records = [replace(shell.fake.records[0], state=JobState.RUNNING)]
    assert read(shell)[Category.UNKNOWN] > 86400, "it runs, and has no attempt"
    shell.fake.records = []
    assert Category.HELD not in read(shell)
    (history.run / "attempts" / "breaker").write_text(f"opened = {BEGIN + 1710}\nattempt = 2\nacting = true\n")
    assert read(shell, ask_scheduler=False)[Category.HELD] > 86400


def test_a_requeued_job_waits_from_its_last_end_and_its_attempts_share_a_journal(
    shell: Shell, history: History
) -> None:
    history.submit(0, 101)
    history.attempt(1, 101, 100)
    history.train(1, 101, 199, 0, 60)
    history.end(1, 260, "terminated", 143)
    history.attempt(2, 101, 400, restart=1)
    history.train(2, 101, 499, 0, 60)
    history.end(2, 560, "finished", 0)
    (history.run / "finished").touch()
    found = read(shell)
    assert found[Category.QUEUE] == 100 + 140 and found[Category.REDONE] == found[Category.PRODUCTIVE] == 59


def test_an_adopted_job_was_not_submitted_when_it_was_adopted(shell: Shell, history: History) -> None:
    history.submit(700, 101, event="adopted")
    history.attempt(1, 101, 100)
    history.train(1, 101, 199, 0, 60)
    history.end(1, 260, "finished", 0)
    (history.run / "finished").touch()
    assert Category.QUEUE not in read(shell)


def test_the_heartbeat_tells_newer_steps_than_the_last_line_of_progress(shell: Shell, history: History) -> None:
    history.submit(0, 101)
    history.attempt(1, 101, 100)
    history.train(1, 101, 199, 0, 60)
    beat = f"attempt = 1\ntime = 1.0\nstep = 99\n[rank.0]\npid = 7\nstep = 99\nadvanced = {BEGIN + 298}.0\n"
    (history.run / "beats" / "101.n1").write_text(beat)
    history.end(1, 310, "exited", 137)
    assert read(shell)[Category.TAIL] == 12


def test_a_hang_is_read_from_its_evidence(shell: Shell, history: History) -> None:
    history.submit(0, 101)
    history.attempt(1, 101, 100)
    history.train(1, 101, 199, 0, 60)
    (history.run / "hangs" / "0001-60.txt").write_text("why\n")
    history.end(1, 3000, "terminated", 143)
    assert read(shell)[Category.HANG] == 3000 - 259


def test_an_attempt_without_an_end_runs_if_its_heart_beats(shell: Shell, history: History) -> None:
    history.submit(0, 101)
    history.attempt(1, 101, 100)
    history.train(1, 101, 199, 0, 60)
    beat = history.run / "attempts" / "0001.beat"
    beat.write_text("1 1 1\n")
    found = shell.resil("goodput", "--json").json["goodput"]
    assert found["is_running"] and found["by_attempt"][0]["ended"] == "running"
    os.utime(beat, (BEGIN, BEGIN))
    found = shell.resil("goodput", "--json").json["goodput"]
    assert not found["is_running"] and found["by_attempt"][0]["ended"] == "lost"
    assert read(shell)[Category.UNKNOWN] > 86400, "nothing tells since when"
    job = a_job(101, JobState.NODE_FAIL, start_time=BEGIN + 95.0, end_time=BEGIN + 300.0)
    shell.fake.records = [job]
    assert read(shell)[Category.TAIL] == 41, "the scheduler tells when it ended"


def test_damaged_and_strange_files_cost_what_they_told(shell: Shell, history: History) -> None:
    two_attempts(history)
    with (history.run / "journal" / "101.progress.jsonl").open("a") as file:
        file.write(f'{{"event": "progress", "time": {BEGIN + 300}, "attempt": [1], "step": 7}}\n')
        file.write('{"event":"prog\n[1]\nnull\n{"event":"progress","time":null}\n' + "[" * 100_000 + "\n")
    (history.run / "journal" / "102.0.jsonl").unlink()
    os.mkfifo(history.run / "journal" / "102.0.jsonl")
    (history.run / "hangs" / "x-y.html").touch()
    assert read(shell)[Category.PRODUCTIVE] > 900
    (history.run / "journal" / "102.0.jsonl").unlink()
    (history.run / "journal" / "102.0.jsonl").mkdir()
    assert re.search(r"^  note: .*102.0.jsonl", shell.resil("goodput").out, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("--gpus=64", {"gpus": 64}),
        ("--gpus a100:64 --gres=gpu:8", {"gpus": 64, "gres": 8}),
        ("--gpus-per-node=h100:4 --ntasks-per-node=4", {"gpus-per-node": 4, "ntasks-per-node": 4}),
        ("--gres=nvme:1", {}),
        ("--gres=gpu:8,nvme:1", {"gres": 8}),
        ("--gres=gres:gpu:h200:8", {"gres": 8}),
        ("--gpus-per-task=1 --ntasks=16 --gpus-per-task=2", {"gpus-per-task": 2, "ntasks": 16}),
        ("--gpus=all train --my--gpus=3", {}),
    ],
)
def test_options_of_sbatch_tell_the_gpus(options: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(options) == gpus


def test_the_script_tells_gpus_as_well_and_the_command_line_wins(shell: Shell, history: History) -> None:
    script = history.run / "scripts" / "1.sh"
    script.write_text("#!/bin/bash\n#SBATCH --gres=gpu:8\n#SBATCH --gpus-per-task=1\nsrun train --gpus=99\n")
    two_attempts(history)
    lines = (history.run / "submissions.jsonl").read_text()
    (history.run / "submissions.jsonl").write_text(lines.replace('"--gpus-per-node=8"', '"--gres=gpu:4"'))
    text = (history.run / "submissions.jsonl").read_text().replace('"script": ""', f'"script": "{script}"')
    (history.run / "submissions.jsonl").write_text(text)
    assert shell.resil("goodput", "--json").json["goodput"]["by_attempt"][0]["gpus"] == 8, "4 on each of 2 nodes"
