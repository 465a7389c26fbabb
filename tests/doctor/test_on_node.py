"""The questions to a node: asked by a real job of the embedded scheduler, judged from what arrives."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.doctor.diagnosis import Diagnosis
from resilience.doctor.on_node import NO_DIRECTORY, NOT_WRITABLE, examine_on_node, judge_answers, no_answer, script_of
from resilience.finding import Verdict
from resilience.job import ExitCode, Job, JobId, JobState
from resilience.runs.templates.directives import parse_directives
from tests.end_to_end import conftest
from tests.end_to_end.conftest import Shell
from tests.lab.fakes import DOWN, FakeScheduler, a_job, make_project

shell = conftest.shell
"""A project with the embedded scheduler."""


@pytest.fixture
def mail_server() -> Iterator[int]:
    """A server that greets and answers as SMTP asks (RFC 5321), and takes no mail."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, connection.makefile("rwb") as stream:
                    stream.write(b"220 lab\r\n")
                    stream.flush()
                    for line in stream:
                        stream.write(b"221 bye\r\n" if line.lower().startswith(b"quit") else b"250 ok\r\n")
                        stream.flush()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def settings(port: int, command: str = f"{sys.executable} train.py", more: str = "") -> str:
    return (
        f'[run]\nname = "gpt"\ncommand = "{command}"\n{more}\n[alert]\nchannels = ["email"]\n'
        f'[channel.email]\nto = ["ada@example.org"]\nhost = "127.0.0.1"\nport = {port}\n'
    )


def asked(shell: Shell) -> tuple[dict[str, Any], str, int]:
    import json

    done = shell.resil("doctor", "--on-node", "--json")
    diagnoses = json.loads(done.stdout)["diagnoses"]
    after = [d["topic"] for d in diagnoses].index("node")
    return {d["topic"]: d for d in diagnoses[after:]}, done.stderr, done.returncode


def test_a_job_answers_all_three_questions_and_leaves_nothing(shell: Shell, mail_server: int) -> None:
    shell.settings(settings(mail_server))
    found, said, code = asked(shell)
    assert {topic: d["verdict"] for topic, d in found.items()} == {
        "node": "OK", "state directory on a node": "OK", "training": "OK", "mail": "OK"
    }, found  # fmt: skip
    assert code == 0 and "asks on a node; waiting up to 10 min" in said
    assert f"127.0.0.1:{mail_server} accepted a connection" in found["mail"]["text"]
    assert list(shell.state_dir.iterdir()) == []
    assert "doctor" not in shell.resil("status", "--all").stdout


def test_a_mail_server_that_refuses_and_a_python_without_the_guard_are_told(shell: Shell) -> None:
    bare = shell.directory / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    shell.settings(settings(1, command=str(bare)))
    found, _, code = asked(shell)
    assert code == 1 and found["mail"]["verdict"] == "CRITICAL" and "refused" in found["mail"]["text"]
    assert found["training"]["verdict"] == "WARNING" and "No module named" in found["training"]["text"]
    assert "--no-deps" in found["training"]["advice"]


@pytest.mark.parametrize(
    ("setup", "topic", "said"),
    [
        ('["no-such-module load x", "true"]', "setup", "`no-such-module load x` of setup under [run] ended with 127"),
        ('["trap - EXIT", "exit 3"]', "training", "ended the script"),
        ('["set -e; false; true"]', "setup", "`false` of setup"),
    ],
)
def test_a_setup_that_fails_on_the_node_is_named_and_hides_nothing_else(
    shell: Shell,
    mail_server: int,
    setup: str,
    topic: str,
    said: str,
) -> None:
    shell.settings(settings(mail_server, more=f"setup = {setup}"))
    found, _, code = asked(shell)
    assert code == 1 and found[topic]["verdict"] == "CRITICAL" and said in found[topic]["text"], found
    assert found["mail"]["verdict"] == "OK"


def test_the_setup_chooses_the_python(shell: Shell, mail_server: int) -> None:
    shell.settings(
        settings(mail_server, "python3 train.py", f'setup = ["export PATH={shell.directory}:$PATH", "echo x"]')
    )
    (shell.directory / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (shell.directory / "python3").chmod(0o755)
    found, _, _ = asked(shell)
    assert found["training"]["verdict"] == "OK" and sys.executable in found["training"]["text"]


# ---- without an answer


def ask_fake(tmp_path: Path, scheduler: FakeScheduler, wait_s: float = 30.0) -> list[Diagnosis]:
    return list(examine_on_node(make_project(tmp_path, scheduler), wait_s, lambda _: None))


def test_a_job_that_waits_in_the_queue_is_cancelled_at_the_deadline_and_unknown(tmp_path: Path) -> None:
    scheduler = FakeScheduler()
    (found,) = ask_fake(tmp_path, scheduler)
    assert found.verdict is Verdict.UNKNOWN and "PENDING (Priority)" in found.text
    assert "cancel" in scheduler.calls and not list((tmp_path / "project" / ".resil").iterdir())


def test_a_scheduler_that_refuses_or_is_silent_is_unknown(tmp_path: Path) -> None:
    (found,) = ask_fake(tmp_path, FakeScheduler(trouble=DOWN))
    assert (found.verdict, found.advice) == (Verdict.UNKNOWN, DOWN.hint)
    (found,) = ask_fake(tmp_path, FakeScheduler(uncertain={1}))
    assert found.verdict is Verdict.UNKNOWN


def test_a_job_that_ends_without_an_answer_says_which_of_the_two_sees_what(tmp_path: Path) -> None:
    class Ending(FakeScheduler):
        def submit(self, submission: Any) -> Any:
            done = super().submit(submission)
            self.records[:] = [a_job(self.next_id, JobState.FAILED, nodes="n7", exit_code=ExitCode(NO_DIRECTORY))]
            return done

    (found,) = ask_fake(tmp_path, Ending())
    assert found.verdict is Verdict.CRITICAL and "on n7 does not see the state directory" in found.text


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (None, "has ended (unknown), and no answer of it arrived"),
        (a_job(1, JobState.COMPLETED), "has ended (COMPLETED), and no answer"),
        (a_job(1, JobState.FAILED, exit_code=ExitCode(NOT_WRITABLE)), "cannot write into the state directory"),
    ],
)
def test_each_silence_is_told(job: Job | None, said: str) -> None:
    assert said in no_answer(JobId(1), job, Path("/s/.doctor/x")).text


def judged(*answers: str) -> dict[str, Diagnosis]:
    return {d.topic: d for d in judge_answers([line.split("\t") for line in answers], JobId(1), 2.0)}


def test_each_answer_is_judged() -> None:
    assert judged("node\tn1", "project\t")["project directory"].verdict is Verdict.CRITICAL
    assert judged("node\tn1", "sendmail\t")["mail"].verdict is Verdict.CRITICAL
    assert judged("node\tn1", "sendmail\t/usr/sbin/sendmail")["mail"].verdict is Verdict.UNKNOWN
    assert "no answer within 10 s" in judged("mail\tfailed\tsmtp:25\t124\t")["mail"].text
    assert "cannot run there either" in judged("mail\tno-python\t/opt/py")["mail"].text
    assert judged("untold\tthe training runs in an image")["training"].verdict is Verdict.UNKNOWN


# ---- the script


def test_the_job_is_one_small_one_of_the_kind_that_the_training_gets(tmp_path: Path) -> None:
    text = """[run]
name = "gpt"
command = "python train.py"
[sbatch]
partition = "gpu"
nodes = 16
ntasks_per_node = 8
gpus = "a100:128"
exclusive = true
time = "20:00:00"
requeue = true
"""
    script = script_of(make_project(tmp_path, settings=text), tmp_path / "a b'c")
    options = dict(parse_directives(script).options)
    assert options == {
        "job-name": "resil-doctor", "output": "/dev/null", "time": "5", "nodes": "1", "ntasks": "1",
        "partition": "gpu", "gpus": "a100:1", "requeue": None,
    }  # fmt: skip
