"""`resil breaker`, and a breaker as `resil status` and `resil watch job` show it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from resilience.job import JobState
from tests.lab.fakes import DOWN
from tests.lab.shell import SETTINGS, Shell, make_shell

OPEN = 'opened = 1800000000\nattempt = 3\nburnt = 3\nacting = true\nby = "job 1_3"\nretry_at = 0\nwhy = "3 failed"\n'


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    made = make_shell(tmp_path, monkeypatch, capsys)
    made.settings(SETTINGS + "[act]\nenabled = true\n")
    assert made.resil("submit", "--array", "10").code == 0
    return made


def opened(shell: Shell) -> Path:
    path = shell.run_dir / "attempts" / "breaker"
    path.write_text(OPEN)
    return path


def test_open_holds_and_close_releases(shell: Shell) -> None:
    said = shell.resil("breaker", "open", "--why", "wait for the data")
    assert said.code == 0 and "held: 101" in said.out
    assert shell.fake.records[0].reason == "JobHeldUser"
    assert "wait for the data" in shell.resil("breaker").out
    said = shell.resil("breaker", "close")
    assert said.code == 0 and "released: 101" in said.out and shell.fake.records[0].reason == "Priority"
    assert "closed" in shell.resil("breaker", "status").out
    assert shell.resil("breaker", "close", "gpt").code == 0, "again"


def test_status_shows_an_open_breaker_and_how_to_continue(shell: Shell) -> None:
    opened(shell)
    out = shell.resil("status").out
    assert "breaker open" in out and "3 failed" in out and "resil breaker close gpt" in out
    (run,) = shell.resil("status", "--json").json["runs"]
    assert run["breaker"]["burnt"] == 3
    (one,) = shell.resil("breaker", "status", "--json").json["runs"]
    assert one["open"]["why"] == "3 failed" and one["decision"]["state"] == "closed"


def test_status_says_that_the_breaker_holds_the_jobs_and_never_to_release_them_past_it(shell: Shell) -> None:
    shell.resil("breaker", "open", "--why", "wait for the data")
    out = shell.resil("status").out
    assert "held by the breaker" in out and "scontrol" not in out and "held by its owner" not in out
    watched = shell.resil("watch", "job").out
    assert "held by the breaker" in watched and "held by its owner" not in watched, "as `resil status` says"


@pytest.mark.parametrize("reason", ["JobHeldAdmin", "job requeued in held state"])
def test_status_knows_what_the_breaker_holds_whatever_slurm_calls_it(shell: Shell, reason: str) -> None:
    """`scontrol hold` of root or an operator is that of an administrator; with `requeue = true` the job is requeued."""
    opened(shell)
    shell.fake.records[0] = replace(shell.fake.records[0], reason=reason)
    (shell.run_dir / "attempts" / "breaker.held").write_text("101\n")
    out = shell.resil("status").out
    assert "held by the breaker" in out and "scontrol" not in out and "ask them why" not in out


def test_what_an_administrator_holds_is_not_what_the_breaker_holds(shell: Shell) -> None:
    opened(shell)
    shell.fake.records[0] = replace(shell.fake.records[0], reason="JobHeldAdmin")
    assert "held by an administrator" in shell.resil("status").out


def test_a_breaker_that_the_next_tick_opens_is_not_closed_without_a_word(shell: Shell) -> None:
    path = shell.run_dir / "attempts" / "0001"
    path.write_text('job_id = 101\nlabel = "101_1"\nrestart = 0\nhost = "n7"\npid = 7\nstart = 1\n')
    path.with_suffix(".end").write_text('end = "exited"\nexit_code = 1\ntime = 60\n')
    log = "OSError: [Errno 28] No space left on device\n"
    (shell.run_dir / "logs" / "gpt-101_1.out").write_text(log)
    out = shell.resil("breaker").out
    assert out.startswith("gpt  closed so far: no restart heals it: disk full")


def test_watch_job_reports_one_fault_for_a_crash_loop_and_its_effects(shell: Shell) -> None:
    opened(shell)
    held = shell.resil("watch", "job")
    assert held.code == 2 and "the breaker is open" in held.out and "resil breaker close gpt" in held.out
    shell.fake.records[0] = replace(shell.fake.records[0], state=JobState.FAILED)
    reports = shell.resil("watch", "job", "--json").json["reports"]
    faults = [finding["fault"] for report in reports for finding in report["findings"] if finding["subject"] == "gpt"]
    assert faults == ["breaker-open"], "not that no job is queued as well"


def test_a_host_that_the_queued_jobs_avoid_is_shown_and_allowed_again_when_it_is_closed(shell: Shell) -> None:
    record = '{"hosts":[{"host":"n7","why":"2 attempts ended by gpu fault there","jobs":["101"]}]}'
    opened(shell)
    path = shell.run_dir / "attempts" / "0001"
    path.write_text('job_id = 1\nlabel = "1"\nrestart = 0\nhost = "n7"\npid = 7\nstart = 1\n')
    (shell.run_dir / "attempts" / "excluded.json").write_text(record)
    shell.fake.records[0] = replace(shell.fake.records[0], excluded="n[7-8]")
    sentence = "n7 seems to be bad, and is excluded from job 101: 2 attempts ended by gpu fault there"
    assert sentence in shell.resil("attempts").out
    reports = shell.resil("watch", "job", "gpt", "--json").json["reports"]
    assert sentence in [line for report in reports for one in report["findings"] for line in one["evidence"]]
    breaker = shell.run_dir / "attempts" / "breaker"
    breaker.unlink()
    told = shell.resil("watch", "job", "gpt", "--explain")
    assert told.code == 0 and sentence in told.out, "also while all is well"
    breaker.write_text(OPEN)
    assert "job 101 may use n7 again" in shell.resil("breaker", "close").out
    assert shell.fake.records[0].excluded == "n8"


def test_without_an_answer_of_the_scheduler_it_is_closed_and_says_so(shell: Shell) -> None:
    shell.resil("breaker", "open")
    shell.fake.trouble = DOWN
    said = shell.resil("breaker", "close")
    assert said.code == 75 and "squeue" in said.err
    assert "the breaker of gpt is closed; to release the jobs that it holds, later: resil breaker close gpt" in said.err
    shell.fake.trouble = None
    assert "released: 101" in shell.resil("breaker", "close").out


def test_a_submit_is_refused_while_it_is_open(shell: Shell) -> None:
    opened(shell)
    shell.fake.records.clear()
    said = shell.resil("submit")
    assert said.code == 2 and "its jobs would end at once: 3 failed" in said.err and not shell.fake.records
    assert shell.resil("submit", "--force").code == 0


def test_an_unknown_run_is_refused(shell: Shell) -> None:
    assert shell.resil("breaker", "close", "nope").code == 2


def test_the_tick_opens_the_breaker_that_it_reports(shell: Shell) -> None:
    for number in (1, 2, 3):
        path = shell.run_dir / "attempts" / f"000{number}"
        path.write_text(f'job_id = {number}\nlabel = "{number}"\nrestart = 0\nhost = "n1"\npid = 7\nstart = {number}\n')
        path.with_suffix(".end").write_text(f'end = "exited"\nexit_code = 1\ntime = {number + 1}\n')
    look = shell.resil("watch", "job", "gpt")
    assert "breaker" not in look.out + look.err, "a typed target is a look"
    said = shell.resil("watch", "job")
    assert "the breaker of gpt opens: 3 attempts in a row" in said.err and "held job 101" in said.err
    assert "the breaker is open" in said.out and said.code == 2
    assert "opens" not in shell.resil("watch", "job").err


def test_without_an_answer_of_the_scheduler_it_is_open_and_says_so(shell: Shell) -> None:
    shell.fake.trouble = DOWN
    said = shell.resil("breaker", "open")
    assert said.code == 75
    assert (
        "the breaker of gpt is open, so jobs end at their start; to hold them as well: resil breaker open gpt"
        in said.err
    )


def test_a_damaged_file_is_not_blamed_on_the_settings(shell: Shell) -> None:
    opened(shell).write_text("opened = [")
    out = shell.resil("breaker").out
    assert out.startswith("gpt  open: its file is damaged\n") and "[act]" not in out
