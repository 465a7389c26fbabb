"""One attempt at a time: numbers, heartbeats, waiting, being superseded. With a real bash and a pretended scheduler."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from resilience.runs.attempts import AttemptEnd
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import read_attempts
from tests.lab.waiting import until
from tests.runs.templates.batch import PYTHON, Batch, Script

# Would save on whatever signal it can catch; a child of its own session as tasks of srun are.
SAVES_ON_ANY_SIGNAL = (
    f"{PYTHON} -c 'import os, signal, sys, time\n"
    "for s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
    '    signal.signal(s, lambda *_: open("saved", "w").close())\n'
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    'print("training", os.getpid(), flush=True)\n'
    "while True: time.sleep(0.1)'"
)


def beat(attempt: Path, count: int) -> None:
    temporary = attempt.with_name("." + attempt.name)
    temporary.write_text(f"{int(attempt.name)} {count} {int(time.time())}\n")
    temporary.rename(attempt.with_name(attempt.name + ".beat"))


def waits_while_it_beats(script: Script, attempt: Path, beats: int) -> bool:
    for count in range(beats):
        beat(attempt, count)
        time.sleep(0.2)
    return script.process.poll() is None


# ---- numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hard_links", [True, False], ids=["hard links", "no hard links"])
def test_simultaneous_starts_get_numbers_of_their_own_and_train_one_after_another(
    batch: Batch, hard_links: bool
) -> None:
    environment = {} if hard_links else batch.program("ln", "#!/bin/sh\nexit 1\n")
    command = 'echo "begin $RESIL_ATTEMPT" >>order; sleep 0.05; echo "end $RESIL_ATTEMPT" >>order; exit 75'
    jobs = range(100, 108)
    scripts = [batch.start(command, job, environment=environment) for job in jobs]
    assert [script.wait(120) for script in scripts] == [75] * 8
    lines = (batch.root / "order").read_text().splitlines()
    assert lines == [f"{word} {number}" for number in range(1, 9) for word in ("begin", "end")]
    assert {batch.end(number)["end"] for number in range(1, 9)} == {"stopped"}
    assert not [path.name for path in (batch.run_dir / "attempts").iterdir() if path.name.startswith(".")]


def test_an_attempt_says_who_and_where_it_is(batch: Batch) -> None:
    script = batch.run("exit 3", environment={"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"})
    (attempt,) = read_attempts(RunDirectory(batch.run_dir))
    assert (attempt.number, attempt.job_id, attempt.label, attempt.restart) == (1, 7, "5_2", 0)
    assert (attempt.pid, attempt.end, attempt.exit_code) == (script.process.pid, AttemptEnd.EXITED, 3)
    assert abs(attempt.start_time - time.time()) < 60


def test_numbers_go_on_after_9999(batch: Batch) -> None:
    for number in (8, 9, 10000):
        batch.attempt(number, job=number).with_name(f"{number:04d}.end").write_text('end = "exited"\n')
    batch.run("exit 3")
    assert batch.end(10001)["exit_code"] == 3


def test_without_room_for_a_number_nothing_is_launched(batch: Batch) -> None:
    shutil.rmtree(batch.run_dir / "attempts")
    (batch.run_dir / "attempts").write_text("in the way")
    batch.launches_nothing("is the disk or the quota full?")


# ---- waiting for the attempt before -----------------------------------------------------------------------------


def test_after_a_clean_end_nobody_waits(batch: Batch) -> None:
    batch.run("exit 75", job=6)
    script = batch.run("exit 3", beat_s=30)  # a silence would be waited for far longer than for a script that ends
    assert script.wait() == 3
    assert "waiting" not in script.text


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED", "SOMETHING_NEW"])
def test_as_long_as_the_job_before_is_alive_nothing_is_launched(batch: Batch, state: str) -> None:
    batch.attempt(1, job=6)
    batch.state(6, state)
    waits = f"waiting for attempt 0001 to end: job 6 is {state}"
    batch.launches_nothing(waits, "gave up after", previous_wait_s=2)
    assert batch.end(2) | {"end": "stopped", "launched": False} == batch.end(2)


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "CANCELLED", "PENDING", None])
def test_a_job_that_is_over_or_forgotten_and_silent_is_marked_lost(batch: Batch, state: str | None) -> None:
    attempt = batch.attempt(1, job=6)
    beat(attempt, 17)
    part = attempt.with_name(f".{attempt.name}.beat.n1.4711.tmp")  # the heartbeat was killed as it wrote
    part.touch()
    if state:
        batch.state(6, state)
    script = batch.run("exit 3")
    assert script.wait() == 3
    assert "attempt 0001 ended without a record" in script.text
    assert batch.end(1)["end"] == "lost" and not part.exists()
    assert batch.events().count("attempt_lost") == 1
    assert "waiting" not in batch.run("exit 3", job=8).text


def test_a_job_that_is_over_for_the_scheduler_but_beats_is_not_gone(batch: Batch) -> None:
    attempt = batch.attempt(1, job=6)
    batch.state(6, "NODE_FAIL")
    script = batch.start("touch launched", previous_wait_s=60)
    assert waits_while_it_beats(script, attempt, beats=20) and not batch.launched
    assert script.wait() == 0, "once the heartbeat is still it goes on"


def test_a_scheduler_that_does_not_answer_is_unknown_and_unknown_is_not_gone(batch: Batch) -> None:
    batch.attempt(1, job=6)
    script = batch.start("touch launched", previous_wait_s=2)
    shutil.rmtree(batch.spool)
    batch.launches_nothing("job 6 is UNKNOWN", script=script)


def test_an_answer_of_the_scheduler_that_does_not_show_ourselves_is_not_believed(batch: Batch) -> None:
    batch.attempt(1, job=6)
    batch.state(6, "COMPLETED")
    script = batch.start("touch launched", previous_wait_s=2)
    (batch.spool / "jobs" / "7" / "state").unlink()
    batch.launches_nothing("job 6 is UNKNOWN", script=script)


def test_a_requeued_job_trusts_the_heartbeat_alone(batch: Batch) -> None:
    attempt = batch.attempt(1, job=7)
    script = batch.start("exit 3", previous_wait_s=60, environment={"SLURM_RESTART_COUNT": "1"})
    assert waits_while_it_beats(script, attempt, beats=15)
    assert "an earlier start of this job, its heartbeat is still" in script.text
    assert script.wait() == 3
    assert batch.end(1)["end"] == "lost"


def test_all_earlier_attempts_count_and_not_only_the_last(batch: Batch) -> None:
    batch.attempt(1, job=5)
    batch.state(5, "RUNNING")
    batch.attempt(2, job=6).with_name("0002.end").write_text('end = "exited"\n')
    batch.launches_nothing("attempt 0001", previous_wait_s=2)


def test_a_successor_that_waited_for_the_end_of_the_run_does_not_train(batch: Batch) -> None:
    attempt = batch.attempt(1, job=6)
    batch.state(6, "COMPLETING")
    script = batch.start("touch launched", says="waiting for attempt")
    (batch.run_dir / "finished").write_text("")
    attempt.with_name("0001.end").write_text('end = "finished"\n')
    batch.launches_nothing(script=script, code=0)


# ---- being superseded -------------------------------------------------------------------------------------------


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie; one that goes away while it is looked at is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_superseded_attempt_ends_its_training_without_saving(batch: Batch) -> None:
    script = batch.start(f"{SAVES_ON_ANY_SIGNAL} & {SAVES_ON_ANY_SIGNAL}")
    until(lambda: script.text.count("training") == 4, "four processes that train")
    pids = [int(line.split()[1]) for line in script.text.splitlines() if line.startswith("training")]
    batch.attempt(2, job=7)
    assert script.wait() == 75
    assert not (batch.root / "saved").exists()
    assert [pid for pid in pids if lives(pid)] == []
    assert batch.end(1) | {"end": "superseded", "exit_code": 75} == batch.end(1)
    assert "superseded" in batch.events()


def test_orphans_of_the_attempt_are_ended_as_well(batch: Batch) -> None:
    # As slurmstepd does with tasks of srun: no child of the batch shell.
    command = f'{PYTHON} -c \'import subprocess, sys; subprocess.Popen(["setsid", "sleep", "60"])\'; echo up; sleep 60'
    script = batch.start(command, says="up")
    batch.attempt(2, job=7)
    assert script.wait() == 75
    assert batch.processes() == []


def test_what_belongs_to_another_attempt_or_run_is_left_alone(batch: Batch) -> None:
    script = batch.start("echo up; sleep 60")
    other = Batch.make(batch.root / "other")
    stranger = other.start("echo up; sleep 5; exit 3")
    for one in (script, stranger):
        one.until_says("up")
    twin = batch.start("echo twin; exit 4", environment={"SLURM_RESTART_COUNT": "1"})
    assert script.wait() == 75
    assert twin.wait() == 4
    assert stranger.wait() == 3
    assert batch.end(1)["end"] == "superseded"


def test_a_twin_takes_over_only_when_the_first_one_is_gone(batch: Batch) -> None:
    first = batch.start("trap '' TERM USR1 INT; while :; do date +%s.%N >>first; sleep 0.02; done")
    until((batch.root / "first").exists, "the first training")
    second = batch.run("date +%s.%N >>second; exit 75", environment={"SLURM_RESTART_COUNT": "1"})
    assert first.wait() == 75
    assert second.wait() == 75
    assert float((batch.root / "first").read_text().split()[-1]) < float((batch.root / "second").read_text())


def test_a_second_copy_that_somebody_queued_does_not_end_a_healthy_run(batch: Batch) -> None:
    first = batch.start("echo up; sleep 4; exit 3", says="up")
    batch.launches_nothing(job=8, previous_wait_s=2)
    assert first.wait() == 3


def test_a_job_that_the_scheduler_has_given_up_is_superseded_by_the_next_one(batch: Batch) -> None:
    first = batch.start("echo up; sleep 60", says="up")
    batch.state(7, "NODE_FAIL")
    second = batch.run("exit 4", job=8)
    assert first.wait() == 75
    assert second.wait() == 4
    assert batch.end(1)["end"] == "superseded"


def test_a_superseded_attempt_that_has_not_launched_yet_never_does(batch: Batch) -> None:
    batch.attempt(1, job=6)
    batch.state(6, "RUNNING")
    script = batch.start("touch launched", environment={"SLURM_RESTART_COUNT": "0"}, says="waiting for attempt")
    batch.attempt(3, job=7)
    batch.launches_nothing(script=script)
    assert batch.end(2)["end"] == "superseded"


def test_being_superseded_during_the_setup_prevents_the_launch(batch: Batch) -> None:
    script = batch.start("touch launched", setup=("echo setting up; sleep 60",), says="setting up")
    batch.attempt(2, job=7)
    batch.launches_nothing(script=script)
    assert batch.end(1)["end"] == "superseded"


# ---- the heartbeat ----------------------------------------------------------------------------------------------


def test_the_heartbeat_advances_and_is_taken_away_at_the_end(batch: Batch) -> None:
    script = batch.start("sleep 2; exit 3")
    path = batch.run_dir / "attempts" / "0001.beat"
    until(path.exists, "a heartbeat")
    first = path.read_text().split()
    until(lambda: int(path.read_text().split()[1]) > int(first[1]) + 2, "it to advance")
    assert first[0] == "1"
    assert abs(int(first[2]) - time.time()) < 60
    script.wait()
    assert sorted(path.name for path in (batch.run_dir / "attempts").iterdir()) == ["0001", "0001.end"]


def test_the_heartbeat_does_not_delay_the_exit_and_leaves_no_process(batch: Batch) -> None:
    script = batch.start("exit 3", beat_s=60)
    assert script.wait(30) == 3, "half a beat is plenty, however busy the machine"
    assert batch.processes() == []


def test_the_heartbeat_ends_when_its_batch_shell_is_killed(batch: Batch) -> None:
    script = batch.start("echo up; exec sleep 60", says="up")
    script.send(signal.SIGKILL)
    script.wait()
    for pid in batch.processes():
        if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    until(lambda: not batch.processes(), "nothing to be left", timeout_s=30)


def test_a_file_system_too_slow_for_a_heartbeat_delays_nothing(batch: Batch) -> None:
    slow, written = batch.root / "slow", batch.root / "written"
    mv = f'#!/bin/sh\ncase $* in *.beat) : >{slow}; sleep 60; : >{written};; esac\nexec {shutil.which("mv")} "$@"\n'
    script = batch.start(f"until [ -e {slow} ]; do sleep 0.05; done; exit 3", environment=batch.program("mv", mv))
    assert script.wait(30) == 3
    assert not written.exists(), "nobody waited for it"


def test_a_full_disk_under_the_heartbeat_does_not_end_the_training(batch: Batch) -> None:
    script = batch.start("sleep 1; exit 3")
    beat = batch.run_dir / "attempts" / "0001.beat"
    until(beat.exists, "a heartbeat")
    beat.unlink()
    beat.mkdir()
    assert script.wait() == 3
