"""What the batch shell promises around a launch: exit codes, signals, switches. With a real bash."""

from __future__ import annotations

import json
import os
import signal
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.waiting import until
from tests.runs.templates.batch import PYTHON, Batch, Script

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")


def catcher(name: str, code: int) -> str:
    """A training that exits with `code` when it gets the signal."""
    return (
        f"{PYTHON} -c 'import signal, sys, time; signal.signal(signal.{name}, lambda *_: sys.exit({code})); "
        f'print("ready", flush=True); time.sleep(60)\''
    )


def stops(batch: Batch, then: str, **wishes: Any) -> Script:
    """A training that is ready, and goes on as told when the stop switch of its job is there."""
    wait = f'echo ready; until [ -e "{batch.switch("stop.7")}" ]; do sleep 0.05; done'
    return batch.start(f"{wait}; {then}", says="ready", **wishes)


# ---- exit codes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 75, 130, 255])
def test_the_exit_code_of_the_training_is_that_of_the_job(batch: Batch, code: int) -> None:
    assert batch.run(f"exit {code}").wait() == code
    assert batch.end(1)["exit_code"] == code


def test_a_pipe_does_not_mask_a_crash(batch: Batch) -> None:
    assert batch.run("(exit 3) | cat").wait() == 3


def test_a_training_that_is_killed_shows_as_128_and_the_signal(batch: Batch) -> None:
    assert batch.run("kill -9 $$").wait() == 137


def test_a_command_that_is_no_bash_does_not_break_the_script(batch: Batch) -> None:
    script = batch.run("python 'unclosed")
    assert script.wait() not in (0, 75)
    assert batch.end(1)["end"] == "exited"


def test_a_failing_setup_stops_the_job_before_the_launch(batch: Batch) -> None:
    failed = "the setup failed with 2 at: ls no-such-file"
    batch.launches_nothing(failed, code=2, setup=("true", "ls no-such-file"))
    assert batch.end(1) | {"end": "exited", "exit_code": 2, "launched": False} == batch.end(1)


def test_a_setup_may_use_unset_variables_and_set_options_and_traps_of_its_own(batch: Batch) -> None:
    script = batch.start("sleep 0.5; exit 9", setup=('echo "$NOT_SET"', "set -e", "trap - USR1"), says="START")
    time.sleep(0.2)
    assert script.wait_after(signal.SIGUSR1) == 9


# ---- how an attempt ends ----------------------------------------------------------------------------------------


def test_a_training_that_exits_0_has_finished_the_run(batch: Batch) -> None:
    batch.run("true")
    finished = tomllib.loads((batch.run_dir / "finished").read_text())
    assert finished | {"attempt": 1, "job": "7"} == finished
    assert batch.end(1)["end"] == "finished"


@pytest.mark.parametrize(("pid", "code"), [("$$", 1), ("1$$", 75)], ids=["its own", "that of a launcher"])
def test_an_exit_with_1_behind_a_good_stop_is_believed_where_no_launcher_makes_it(
    batch: Batch, pid: str, code: int
) -> None:
    start = '\'{"event":"start","time":5,"attempt":1,"rank":0,"pid":%s}\\n\''
    end = '{"event":"end","time":5,"attempt":1,"rank":0,"exit_code":75,"stopped":true,"ranks":1,"well":1}'
    journal = batch.run_dir / "journal" / "7.0.jsonl"
    script = batch.run(f"printf {start} {pid} >{journal}; echo '{end}' >>{journal}; exit 1")
    assert script.wait() == batch.end(1)["exit_code"] == code, script.text
    assert batch.end(1)["end"] == ("exited" if code == 1 else "stopped")


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_is_not_finished_when_the_guard_of_a_rank_says_that_it_failed_after_all(batch: Batch, code: int) -> None:
    journal, finished = batch.run_dir / "journal", batch.run_dir / "finished"
    end = '{"event":"end","time":5,"attempt":1,"rank":%d,"exit_code":%d,"stopped":false,"why":"disk full"}\\n'
    batch.run(
        f"printf '{end % (0, 0)}' >{journal}/7.0.jsonl; printf '{end % (1, code)}' >{journal}/7.1.jsonl; "
        f"printf 'attempt = 1\\n' >{finished}; exit {code}"
    )
    assert finished.exists() == (code == 0)
    assert (batch.end(1)["end"], batch.end(1)["exit_code"]) == (("exited", 1) if code else ("finished", 0))
    assert ("unfinished" in batch.events()) == bool(code)


def test_a_run_is_not_finished_by_exit_0_when_the_settings_say_so(batch: Batch) -> None:
    batch.run("true", finish_on_success=False)
    assert not batch.is_finished
    assert batch.end(1)["end"] == "exited"


def test_a_training_that_was_asked_to_stop_and_exits_0_has_not_finished_the_run(batch: Batch) -> None:
    assert stops(batch, "exit 0").wait_after(signal.SIGUSR1) == 0
    assert not batch.is_finished
    assert batch.end(1)["end"] == "exited"


def test_a_training_that_exits_75_stopped_on_purpose(batch: Batch) -> None:
    batch.run("exit 75")
    assert batch.end(1)["end"] == "stopped"
    assert not batch.is_finished


def test_every_line_of_the_journal_is_json_and_tells_the_attempt(batch: Batch) -> None:
    batch.run("exit 3", environment={"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2", "SLURM_RESTART_COUNT": "1"})
    lines = (batch.run_dir / "journal" / "7.batch.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["event"] for record in records] == ["attempt_start", "launch", "attempt_end"]
    for record in records:
        assert record | {"attempt": 1, "job_id": 7, "label": "5_2", "restart": 1} == record
        assert record["host"]
        assert abs(record["time"] - time.time()) < 60
    assert records[2] | {"end": "exited", "exit_code": 3} == records[2]


def test_the_training_is_told_what_it_needs(batch: Batch) -> None:
    command = "env >environment; exit 1"
    batch.run(command, job=23457, signal_lead_s=120, environment={"SLURM_JOB_END_TIME": "1800000000"})
    told = batch.environment
    assert {name: told.get(name) for name in told if name.startswith("RESIL_")} == {
        "RESIL_RUN": "demo",
        "RESIL_RUN_DIR": str(batch.run_dir),
        "RESIL_ATTEMPT": "1",
        "RESIL_JOB_ID": "23457",
        "RESIL_RESTART_COUNT": "0",
        "RESIL_ERROR_FILE": str(batch.run_dir / "attempts" / "0001.error"),
        "RESIL_END_TIME": "1800000000",
        "RESIL_SIGNAL_LEAD_S": "120",
        "RESIL_SCHEDULER": "local",
        "RESIL_LOCAL_SPOOL": str(batch.spool),
    }
    assert told["PYTHONUNBUFFERED"] == "1"
    assert told["MASTER_PORT"] == str(10000 + 23457 % 22000)
    assert told["MASTER_ADDR"]
    assert told["NCCL_RAS_ADDR"] == f"localhost:{28100 + 23457 % 800}"
    dumps = f"{batch.run_dir}/traces/23457.0/rank_"
    assert told["TORCH_FR_DUMP_TEMP_FILE"] == told["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == dumps
    assert told["TORCH_FR_BUFFER_SIZE"] == told["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert (batch.run_dir / "traces" / "23457.0").stat().st_mode & 0o777 == 0o700


def test_the_training_keeps_its_umask_and_the_run_directory_gets_private_files(batch: Batch) -> None:
    old = os.umask(0o022)
    try:
        batch.run("umask >mask; exit 75")
    finally:
        os.umask(old)
    assert (batch.root / "mask").read_text().strip() == "0022"
    assert all(path.stat().st_mode & 0o077 == 0 for path in batch.run_dir.rglob("*") if path.is_file())


# ---- signals ----------------------------------------------------------------------------------------------------


def test_the_signal_writes_the_stop_switch_and_the_shell_keeps_waiting(batch: Batch) -> None:
    assert stops(batch, "sleep 0.3; exit 75").wait_after(signal.SIGUSR1) == 75
    stop = tomllib.loads(batch.switch("stop.7").read_text())
    assert stop["scope"] == "job"
    assert "SIGUSR1" in stop["why"]
    assert batch.end(1)["end"] == "stopped"
    assert "stop_requested" in batch.events()


def test_another_signal_can_be_chosen(batch: Batch) -> None:
    script = stops(batch, "exit 75", signal="HUP")
    script.send(signal.SIGUSR1)
    until(lambda: "signal" in batch.events(), "it to be noted")
    assert not batch.switch("stop.7").exists()
    assert script.wait_after(signal.SIGHUP) == 75


def test_the_code_of_a_training_that_ends_before_it_was_heard_to_begin_is_not_lost(batch: Batch) -> None:
    probe = batch.root / "probe"
    probe.write_text("""\
        waits() { case $BASH_COMMAND in
          "printf 'pid"*) sleep 0.8 ;;
          'kill -0 "$resil_waiter"'*) sleep 1.5 ;;
        esac; }
        set -o functrace; trap waits DEBUG
    """)
    assert batch.run("exit 4", environment={"BASH_ENV": str(probe)}).wait() == 4


@pytest.mark.parametrize("count", range(1, 5))
def test_no_signal_is_lost_between_two_commands(batch: Batch, count: int) -> None:
    """Bash itself sends the signal before the command number `count` of the function that acts on signals."""
    probe = batch.root / "probe"
    probe.write_text(
        "probed=0; probe() { if [[ ${FUNCNAME[1]:-} == resil_act && ${resil_launched:-} == true ]]; then\n"
        f"((++probed != {count})) || kill -s USR1 $$; fi; }}\n"
        "set -o functrace; trap probe DEBUG\n"
    )
    stop = batch.switch("stop.7")
    wait = f'until [ -e "{stop}" ]; do sleep 0.05; done'
    script = batch.run(wait, environment={"BASH_ENV": str(probe)})
    assert "SIGUSR1" in tomllib.loads(stop.read_text())["why"] and script.process.returncode == 0


def test_a_hail_of_signals_never_loses_the_exit_code(batch: Batch) -> None:
    training = 'import sys, time; print("ready", flush=True); time.sleep(1.5); sys.exit(42)'
    script = batch.start(f"exec {PYTHON} -c '{training}'", signal="USR2", says="ready")
    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCONT, signal.SIGQUIT, signal.SIGALRM]
    while script.process.poll() is None:
        for number in numbers:
            script.process.send_signal(number)
        time.sleep(0.02)
    assert script.wait() == 42


def test_sigterm_is_handed_on_and_the_true_code_kept(batch: Batch) -> None:
    script = batch.start(catcher("SIGTERM", 7), says="ready")
    assert script.wait_after(signal.SIGTERM) == 7
    assert batch.end(1) | {"end": "terminated", "exit_code": 7} == batch.end(1)
    assert "terminating" in batch.events()


def test_sigterm_reaches_the_training_inside_a_compound_command_and_not_tee(batch: Batch) -> None:
    script = batch.start(f"cd /tmp && {catcher('SIGTERM', 7)} | tee {batch.root}/copy; exit ${{PIPESTATUS[0]}}")
    until(lambda: (batch.root / "copy").exists() and "ready" in (batch.root / "copy").read_text(), "the training")
    assert script.wait_after(signal.SIGTERM) == 7


def test_after_sigterm_the_shell_keeps_waiting_for_a_training_that_ignores_it(batch: Batch) -> None:
    script = batch.start("trap '' TERM; echo ready; sleep 1; exit 5", says="ready")
    for _ in range(5):
        script.send(signal.SIGTERM)
        time.sleep(0.05)
    assert script.wait() == 5
    assert batch.end(1)["end"] == "terminated"


def test_sigterm_before_the_launch_prevents_it(batch: Batch) -> None:
    script = batch.start("touch launched", setup=("echo setting up; sleep 0.5",), says="setting up")
    assert script.wait_after(signal.SIGTERM) == 75 and not batch.launched


def test_a_stop_switch_of_an_earlier_start_of_the_same_job_is_removed(batch: Batch) -> None:
    batch.switch("stop.7").write_text('why = "stale"\n')
    batch.switch("stop.8").write_text('why = "another job"\n')
    batch.run("exit 75", environment={"SLURM_RESTART_COUNT": "1"})
    assert not batch.switch("stop.7").exists()
    assert batch.switch("stop.8").exists()


# ---- the kill switch --------------------------------------------------------------------------------------------


def test_a_finished_run_exits_0_at_once_without_a_question_a_wait_or_a_set_up(batch: Batch) -> None:
    (batch.run_dir / "finished").write_text("")
    batch.attempt(1, job=6)  # silent and without an end: a run that goes on would wait for it
    batch.state(6, "RUNNING")
    script = batch.start("touch launched", setup=("touch set-up",), beat_s=60)
    assert script.wait(20) == 0, "a busy machine may take a few seconds; what it must not wait for takes 60 and more"
    assert "finished" in script.text
    assert "waiting" not in script.text
    assert not (batch.root / "set-up").exists()
    assert not batch.launched
    assert [path.name for path in (batch.run_dir / "attempts").iterdir()] == ["0001"], "and it begins no attempt"


def test_a_kill_switch_stops_the_job_before_the_launch_and_says_who_and_why(batch: Batch) -> None:
    batch.switch("kill").write_text(
        'who = "ada"\nwhen = "2026-11-20T10:00:00+01:00"\nwhy = "loss is \\"nan\\""\nscope = "job"\n'
    )
    owner = batch.switch("kill").owner()
    batch.launches_nothing(f'set by {owner} at 2026-11-20T10:00:00+01:00: loss is "nan"')


def test_a_bare_touch_is_a_kill_switch(batch: Batch) -> None:
    batch.switch("kill").touch()
    batch.launches_nothing()


def test_escape_sequences_in_a_kill_switch_do_not_reach_the_log(batch: Batch) -> None:
    batch.switch("kill").write_bytes(b'why = "\x1b]0;owned\x07 \x9b31m \xc2\x9b2J ok"\n')
    script = batch.run("true")
    assert script.wait() == 75
    assert not {0x1B, 0x07} & set(script.log.read_bytes())
    assert b"\xc2\x9b" not in script.log.read_bytes()


def symlink(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("")
    path.symlink_to(target)


NO_SWITCHES: dict[str, Callable[[Path], object]] = {
    "symbolic link": symlink,
    "dangling link": lambda path: path.symlink_to(path.with_name("nowhere")),
    "FIFO": os.mkfifo,
    "directory": Path.mkdir,
}


@pytest.mark.parametrize("kind", NO_SWITCHES)
def test_what_is_no_regular_file_is_named_and_neither_obeyed_nor_waited_for(batch: Batch, kind: str) -> None:
    NO_SWITCHES[kind](batch.switch("kill"))
    script = batch.run("exit 3")
    assert script.wait() == 3
    assert "not obeyed: it is not a regular file" in script.text
    assert script.text.count("not obeyed") == 1


@needs_root
@pytest.mark.parametrize(
    ("policy", "uid", "gid", "code"),
    [
        ("owner", 4242, 0, 3),
        ("owner", 0, 4242, 75),
        ("group", 4242, 0, 75),
        ("group", 4242, 4243, 3),
        ("any", 4242, 4243, 75),
    ],
)
def test_whose_switch_is_obeyed_is_a_matter_of_policy(batch: Batch, policy: str, uid: int, gid: int, code: int) -> None:
    batch.switch("kill").write_text("")
    os.chown(batch.switch("kill"), uid, gid)
    assert batch.run("exit 3", owner_policy=policy).wait() == code


@pytest.mark.parametrize(("meant", "code"), [("demo", 75), ("another", 3)])
def test_a_switch_copied_from_another_run_is_rejected_and_reported(batch: Batch, meant: str, code: int) -> None:
    batch.switch("kill").write_text(f'why = "enough"\nrun = "{meant}"\n')
    script = batch.run("exit 3")
    assert script.wait() == code
    assert ("is not obeyed: it is for run another, not for demo" in script.text) is (code == 3)


def test_scope_all_cancels_the_queued_siblings_and_nobody_else(batch: Batch) -> None:
    batch.switch("kill").write_text('scope = "all"\n')
    queued = [batch.state(8, "PENDING"), batch.state(9, "PENDING")]
    others = [
        batch.state(10, "RUNNING"),
        batch.state(11, "PENDING", "resil:demo2:token"),
        batch.state(12, "PENDING", "somebody else"),
        batch.state(13, "PENDING", "resil:demo:of-a-run-of-this-name-in-another-directory"),
    ]
    script = batch.run("true")
    assert script.wait() == 75
    assert "cancelled the queued jobs of this run: 8 9" in script.text or "9 8" in script.text
    assert all((directory / "cancel").exists() for directory in queued)
    assert not any((directory / "cancel").exists() for directory in others)


def test_a_kill_switch_that_appears_while_waiting_is_obeyed(batch: Batch) -> None:
    batch.attempt(1, job=6)
    batch.state(6, "RUNNING")
    script = batch.start("touch launched", says="waiting for attempt 0001")
    batch.switch("kill").touch()
    batch.launches_nothing(script=script)


def test_without_a_run_directory_nothing_is_made_and_nothing_launched(batch: Batch) -> None:
    batch.run_dir.rename(batch.root / "unmounted")
    batch.launches_nothing("is the file system mounted here?")
    assert not batch.run_dir.exists()
