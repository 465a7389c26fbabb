"""`resil watch job` as a user types it, with the embedded scheduler and real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.end_to_end.conftest import Shell

RUN = """\
[run]
name = "gpt"
command = {command!r}
[attempt]
beat_s = 1
"""


def watch(shell: Shell, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    said = shell.resil("watch", "job", "--json", *words)
    findings = [finding for report in json.loads(said.stdout)["reports"] for finding in report["findings"]]
    return said.returncode, {finding["subject"]: finding for finding in reversed(findings)}


def test_on_a_machine_where_nothing_was_ever_submitted_all_is_well(shell: Shell) -> None:
    said = shell.resil("watch", "job")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("JOB OK - runs: no run has been submitted here yet")
    assert list(shell.directory.iterdir()) == [], "and looking leaves nothing behind"


def test_a_run_from_its_submit_to_the_kill_switch(shell: Shell) -> None:
    shell.settings(RUN.format(command="sleep 60"))
    assert shell.resil("submit", "--array", "3").returncode == 0
    shell.until(lambda: "running for" in watch(shell)[1]["gpt"]["summary"])

    code, found = watch(shell)
    assert (code, found["gpt"]["verdict"]) == (0, "OK")
    assert {figure["label"]: figure["value"] for figure in found["gpt"]["figures"]}["queued"] == 2

    shell.resil("cancel", "gpt")
    shell.until(lambda: shell.resil("watch", "job").stdout.startswith("JOB OK - gpt: cancelled on purpose by "))
    # Its processes may still be ending, which comes first in status.
    shell.until(lambda: "cancelled on purpose by " in shell.resil("status", "gpt").stdout)

    assert shell.resil("kill", "gpt", "--why", "enough").returncode == 0
    code, found = watch(shell)
    assert (code, found["gpt"]["verdict"]) == (0, "OK") and "enough" in found["gpt"]["summary"]


def test_a_run_that_ended_by_itself_is_critical_with_what_to_do(shell: Shell) -> None:
    shell.settings(RUN.format(command="exit 7"))
    assert shell.resil("submit").returncode == 0
    shell.until(lambda: watch(shell)[1]["gpt"]["fault"] == "not-queued")
    said = shell.resil("watch", "job")
    assert said.returncode == 2
    assert said.stdout.startswith("JOB CRITICAL - gpt: neither running nor queued")
    assert "resil submit --run gpt" in said.stdout and "resil kill gpt" in said.stdout


def test_a_run_that_was_submitted_held_waits_as_was_meant(shell: Shell) -> None:
    shell.settings(RUN.format(command="sleep 60"))
    assert shell.resil("submit", "--", "--hold").returncode == 0
    code, found = watch(shell)
    assert (code, found["gpt"]["fault"]) == (0, ""), found
    assert "held by its owner" in found["gpt"]["summary"]


def test_a_crash_loop_is_churn(shell: Shell) -> None:
    shell.settings(RUN.format(command="exit 7") + "[act]\nfailures = 0\n")  # else the breaker tells it
    assert shell.resil("submit", "--array", "5").returncode == 0
    shell.until(lambda: watch(shell)[1]["gpt"]["fault"] == "not-queued")
    assert shell.resil("submit", "--", "--hold").returncode == 0
    findings = json.loads(shell.resil("watch", "job", "--json").stdout)["reports"][0]["findings"]
    assert {f["fault"] for f in findings} == {"", "requeue-churn"}
    churn = next(f for f in findings if f["fault"] == "requeue-churn")
    assert churn["verdict"] == "WARNING" and "5 attempts began" in churn["summary"]
    assert any("exited, exit code 7" in line for line in churn["evidence"])


def test_a_run_whose_processes_were_killed_is_dead_and_not_for_one_tick_alive(shell: Shell) -> None:
    shell.settings(RUN.format(command="echo $PPID $$ > pids; sleep 60"))
    assert shell.resil("submit").returncode == 0
    shell.until(lambda: (shell.directory / "pids").exists() and (shell.directory / "pids").read_text() != "")
    for pid in (shell.directory / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    shell.until(lambda: watch(shell)[1]["gpt"]["verdict"] == "CRITICAL")
    assert watch(shell)[0] == 2


def test_a_name_that_nobody_has_is_critical_and_an_expression_that_is_none_is_a_usage_error(shell: Shell) -> None:
    code, found = watch(shell, "nosuch")
    assert (code, found["nosuch"]["fault"]) == (2, "not-queued")
    said = shell.resil("watch", "job", "/(/")
    assert said.returncode == 3 and "not a regular expression" in said.stdout + said.stderr
    assert "Traceback" not in said.stderr


def test_a_watchdog_inside_a_job_of_the_run_counts_this_job(shell: Shell) -> None:
    """Tokens tell the jobs of a run from a watchdog of the same name, as a name alone does not."""
    shell.settings(RUN.format(command="resil watch job gpt --json --scheduler local > own.json; echo $? > own.code"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert shell.resil("submit", PATH=path).returncode == 0
    shell.until(lambda: (shell.directory / "own.code").exists() and (shell.directory / "own.code").read_text() != "")
    found = json.loads((shell.directory / "own.json").read_text())["reports"][0]["findings"]
    assert [(one["subject"], one["fault"]) for one in found] == [("gpt", ""), ("queue of local", "")]
    assert (shell.directory / "own.code").read_text().strip() == "0"


def test_the_pulse_has_a_log_of_its_own(shell: Shell) -> None:
    shell.settings(RUN.format(command="sleep 60") + '[watch.job]\npulse_file = "pulse.log"\n')
    assert shell.resil("submit").returncode == 0
    shell.until(lambda: "running for" in watch(shell)[1]["gpt"]["summary"])
    for _ in range(3):
        watch(shell)
    lines = (shell.directory / "pulse.log").read_text().splitlines()
    assert len(lines) <= 2 and "] PULSE: gpt is " in lines[-1]

    own = next((shell.state_dir / "gpt" / "logs").iterdir())
    before = own.read_text()
    code, _ = watch(shell, "--pulse-file", str(own))
    assert code == 1 and own.read_text() == before
