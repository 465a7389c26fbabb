"""A supervisor keeps the files of an attempt where no template does, and asks the command to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from resilience.attempts.ledger import read_ledger
from resilience.guard.rank_info import RankInfo
from resilience.supervisor.asking import create_file, parse_request, remove_file
from resilience.supervisor.attempt import claim_attempt, end_of, find_attempt
from resilience.supervisor.memory import MemoryWatch
from resilience.supervisor.supervisor import command_environment, own_environment
from tests.guard.memory.memory_cgroups import Machine, a_real_cgroup
from tests.lab.disks import fill, needs_fuse, small_disk
from tests.lab.hung import hung_directory
from tests.lab.waiting import until
from tests.supervisor.stage import Stage, child_of, handler, read_line

STEPS = """
import sys, time
for step in range(1, 2000):
    print(f"iteration {step}/2000 | loss 2.1{step:04d}", flush=True)
    time.sleep(0.01)
"""
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
STEP_OF_TWO = JOB | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}


def test_the_attempt_is_recorded_with_its_end_and_the_end_of_its_output(stage: Stage) -> None:
    stage.environ = JOB
    assert stage.finish("sh", "-c", "echo iteration 5/9; echo ModuleNotFoundError >&2; exit 3")[0] == 3
    (attempt,) = stage.attempts()
    assert (attempt.number, attempt.job_id, attempt.label, str(attempt.end)) == (1, 7, "7", "exited")
    assert (attempt.exit_code, stage.events(7)) == (3, ["attempt_start", "launch", "attempt_end"])
    log = (stage.run.path / "logs" / "gpt-7.out").read_text()
    assert sorted(log.splitlines()) == ["ModuleNotFoundError", "iteration 5/9"]
    assert not list((stage.run.path / "attempts").glob("*.beat"))
    (row,) = read_ledger(stage.run)
    assert row.failure is not None and row.exit_code == 3 and row.job == "7"


def test_failures_in_a_row_are_counted_for_the_breaker(stage: Stage) -> None:
    for code in ("1", "1", "0", "1"):
        stage.finish("sh", "-c", f"exit {code}")
    assert [stage.file(f"attempts/{number:04d}.end")["burnt"] for number in (1, 2, 3, 4)] == [1, 2, 0, 1]
    assert [one.label for one in stage.attempts()] == ["0_1", "0_2", "0_3", "0_4"]


def test_the_step_in_the_output_is_in_the_heartbeat(stage: Stage) -> None:
    stage.environ = JOB
    with stage.start(sys.executable, "-S", "-c", STEPS, stdout=subprocess.DEVNULL) as process:
        until(lambda: stage.beats().get("step", 0) > 20)
        beat = stage.beats()
        assert beat["attempt"] == 1 and beat["rank"]["0"]["pid"] == child_of(process)
        until(lambda: (stage.run.path / "attempts" / "0001.beat").exists())
        process.terminate()
        assert process.wait(20) == 143
    assert stage.beats()["rank"]["0"]["left"] is True


def test_output_without_steps_is_progress_too(stage: Stage) -> None:
    with stage.start("sh", "-c", "while :; do echo working; sleep 0.05; done") as process:
        first = until(lambda: stage.beats().get("rank", {}).get("0", {}).get("advanced"))
        until(lambda: stage.beats()["rank"]["0"]["advanced"] > first + 0.3)
        process.terminate()
        process.communicate(timeout=20)


def test_the_files_of_a_template_are_left_alone(stage: Stage) -> None:
    stage.environ = JOB | {"RESIL_JOB_ID": "7", "RESIL_ATTEMPT": "3", "RESIL_ERROR_FILE": "/e/0003.error"}
    code, out, _ = stage.finish("sh", "-c", "echo $RESIL_ATTEMPT $TORCHELASTIC_ERROR_FILE; sleep 0.3")
    assert (code, out) == (0, b"3 /e/0003.error.0\n")
    for folder in ("attempts", "journal", "logs"):
        assert list((stage.run.path / folder).iterdir()) == []
    assert stage.beats()["attempt"] == 3


def test_the_variables_of_another_job_are_not_this_ones(stage: Stage) -> None:
    stage.environ = JOB | {"RESIL_JOB_ID": "6", "RESIL_ATTEMPT": "3", "RESIL_SUPERVISED": "6.1"}
    assert stage.finish("sh", "-c", "echo $RESIL_ATTEMPT $RESIL_JOB_ID")[1] == b"1 7\n"


def test_a_guard_in_the_command_keeps_its_heartbeat(stage: Stage) -> None:
    stage.environ = JOB
    beat = f"{stage.run.path}/beats/7.{os.uname().nodename}"
    script = (
        f"until [ -e {beat} ]; do sleep 0.05; done; echo 'step = 12345' > {beat}.new; mv {beat}.new {beat}; sleep 0.5"
    )
    assert stage.finish("sh", "-c", script)[0] == 0
    assert Path(beat).read_text() == "step = 12345\n"


def test_of_the_ranks_of_a_step_one_writes_what_is_per_run(stage: Stage) -> None:
    stage.environ = STEP_OF_TWO | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    first = stage.start("sh", "-c", "echo $RESIL_ATTEMPT; read x", stdin=subprocess.PIPE)
    stage.environ = STEP_OF_TWO | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    assert stage.finish("sh", "-c", "echo $RESIL_ATTEMPT; exit 2")[:2] == (2, b"1\n")
    assert first.communicate(b"\n", timeout=20)[0] == b"1\n"
    assert len(stage.attempts()) == 1 and stage.attempts()[0].exit_code == 0
    logs = sorted(path.name for path in (stage.run.path / "logs").iterdir())
    assert logs == ["gpt-7.out", "gpt-7.rank1.out"], "the other one only because it has failed"


def test_the_rank_that_failed_first_is_the_cause_and_not_the_end_of_the_others(stage: Stage) -> None:
    """srun and torchrun end the other ranks then, by SIGTERM; a crash loop of rank 1 counts as one."""
    stage.environ = STEP_OF_TWO | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    with stage.start("sleep", "100") as first:
        stage.launched(first)
        stage.environ = STEP_OF_TWO | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
        assert stage.finish("sh", "-c", "echo 'KeyError: boom'; exit 2")[0] == 2
        first.terminate()
        assert first.wait(20) == 143
    (attempt,) = stage.attempts()
    assert (str(attempt.end), attempt.exit_code) == (
        "exited",
        2,
    ) and attempt.why == f"rank 1 on {os.uname().nodename} failed: exit code 2"
    assert stage.file("attempts/0001.end")["burnt"] == 1
    (row,) = read_ledger(stage.run)
    assert row.failure is not None and "KeyError: boom" in [quote.text for quote in row.failure.quotes]


def test_numbers_are_taken_once(tmp_path: Path) -> None:
    places = [RankInfo(run_dir=str(tmp_path), job_id=str(job), launch_id=f"{job}-0") for job in range(1, 13)]
    taken: list[int] = []
    threads = [threading.Thread(target=lambda one=one: taken.append(claim_attempt(one, "x").number)) for one in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 13))
    assert sorted(find_attempt(one, 0.0) for one in places) == sorted(taken)
    assert find_attempt(RankInfo(run_dir=str(tmp_path), launch_id="13-0"), 0.0) == 0


# ---- asking the command


def test_a_kill_switch_ends_a_command_that_understands_nothing_else(stage: Stage) -> None:
    with stage.start("sleep", "100") as process:
        stage.launched(process)
        stage.switch("kill", 'why = "wrong data"\n')
        assert process.wait(20) == 143
    (attempt,) = stage.attempts()
    assert str(attempt.end) == "terminated" and attempt.why.endswith(": wrong data")
    assert stage.events() == ["attempt_start", "launch", "kill_term", "attempt_end"]


def test_a_kill_switch_asks_by_the_signal_that_the_command_understands(stage: Stage) -> None:
    with stage.start(*handler("USR1", "TERM", code=0), options=("--stop", "USR1")) as process:
        assert read_line(process) == b"ready"
        stage.switch("kill")
        assert read_line(process) == b"SIGUSR1"
        assert process.wait(20) == 0
    assert str(stage.attempts()[0].end) == "stopped"
    assert stage.finish("echo", "started")[:2] == (75, b"")
    assert len(stage.attempts()) == 1


def test_a_reader_that_does_not_read_keeps_no_request_from_the_command(stage: Stage) -> None:
    flood = "trap 'echo asked; exit 7' USR1; head -c 300000 /dev/zero >&2 & echo ready; while :; do sleep 0.05; done"
    with stage.start("sh", "-c", flood, options=("--stop=USR1",)) as process:
        assert read_line(process) == b"ready"
        time.sleep(0.2)  # until stderr is full; if it is not yet, this shows nothing
        stage.switch("kill")
        assert read_line(process) == b"asked"
        assert len(process.communicate(timeout=20)[1]) >= 300_000
        assert process.returncode == 7


def test_a_stopped_command_is_continued_to_hear_the_request(stage: Stage) -> None:
    with stage.start(*handler("USR1"), options=("--stop=USR1",)) as process:
        assert read_line(process) == b"ready"
        os.kill(child_of(process), signal.SIGSTOP)
        stage.switch("kill")
        assert process.wait(20) == 7


def test_the_end_of_the_job_asks_by_a_file_and_removes_it(stage: Stage) -> None:
    stage.environ = JOB | {"SLURM_JOB_END_TIME": str(int(time.time()) + 100)}
    script = "until [ -e STOP ]; do sleep 0.05; done; cat STOP; exit 75"
    code, out, err = stage.finish("sh", "-c", script, options=("--stop", "./STOP", "--lead", "200s"))
    assert code == 75 and b"before the time limit" in out and b"asking the command to stop" in err
    assert not (stage.path / "STOP").exists()
    assert str(stage.attempts()[0].end) == "stopped"


def test_a_job_with_time_left_is_not_asked(stage: Stage) -> None:
    stage.environ = JOB | {"SLURM_JOB_END_TIME": str(int(time.time()) + 10_000)}
    code, _, err = stage.finish("sh", "-c", "sleep 0.5", options=("--stop", "TERM"))
    assert (code, err) == (0, b"")


def test_the_stop_file_of_a_batch_shell_is_followed(stage: Stage) -> None:
    stage.environ = JOB | {"RESIL_JOB_ID": "7", "RESIL_ATTEMPT": "3"}
    with stage.start(*handler("USR2"), options=("--stop", "SIGUSR2")) as process:
        assert read_line(process) == b"ready"
        stage.switch("stop.7", 'why = "300 s left"\n')
        assert read_line(process) == b"SIGUSR2"
        assert process.wait(20) == 7


def test_a_save_switch_asks_once_and_is_removed(stage: Stage) -> None:
    script = "trap 'echo saved' USR2; echo ready; while :; do sleep 0.05; done"
    with stage.start("sh", "-c", script, options=("--save", "USR2")) as process:
        assert read_line(process) == b"ready"
        switch = stage.switch("save")
        assert read_line(process) == b"saved"
        until(lambda: not switch.exists())
        process.terminate()
        out, _ = process.communicate(timeout=20)
    assert out == b""


def test_a_finished_run_starts_nothing(stage: Stage) -> None:
    (stage.run.path / "finished").write_text("attempt = 1\n")
    code, out, err = stage.finish("echo", "started")
    assert (code, out) == (0, b"") and b"is finished" in err


def test_an_open_breaker_starts_nothing(stage: Stage) -> None:
    breaker = stage.run.path / "attempts" / "breaker"
    breaker.write_text('acting = true\nretry_at = 0\nwhy = "3 in a row"\n')
    code, out, err = stage.finish("echo", "started")
    assert (code, out) == (75, b"") and b"3 in a row" in err
    breaker.write_text('acting = false\nretry_at = 0\nwhy = "3 in a row"\n')
    assert stage.finish("echo", "started")[:2] == (0, b"started\n")


# ---- faults of the run directory


def test_a_full_disk_costs_records_only(stage: Stage, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk:
        (disk / "switches").mkdir()
        fill(disk)
        stage.environ = {"RESIL_RUN_DIR": str(disk)}
        code, out, err = stage.finish("sh", "-c", "echo trained; sleep 0.3; exit 4")
        assert (code, out) == (4, b"trained\n")
        assert err.startswith(b"resil: warning: nothing is recorded: cannot use the run directory")


def test_a_disk_that_fills_up_later_does_not_end_the_command(stage: Stage, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "200k") as disk:
        (disk / "switches").mkdir()
        stage.environ = {"RESIL_RUN_DIR": str(disk)}
        with stage.start("sh", "-c", "echo ready; read x; seq 100000; exit 4", stdin=subprocess.PIPE) as process:
            assert read_line(process) == b"ready"
            fill(disk)
            out, err = process.communicate(b"\n", timeout=30)
        assert process.returncode == 4 and out.endswith(b"100000\n") and err == b""


def test_a_run_directory_that_is_gone_costs_records_only(stage: Stage) -> None:
    stage.environ = {"RESIL_RUN_DIR": str(stage.path / "gone")}
    code, out, err = stage.finish("echo", "trained")
    assert (code, out) == (0, b"trained\n") and b"nothing is recorded" in err
    assert not (stage.path / "gone").exists()


SHORT = """
import sys
from resilience.supervisor import supervisor
for name in sys.argv[1].split(","):
    setattr(supervisor, name, 0.5)
sys.exit(supervisor.run_command(supervisor.RunOptions(tuple(sys.argv[2:]))))
"""


@needs_fuse
def test_a_hung_run_directory_keeps_neither_the_command_nor_its_exit_code(stage: Stage, tmp_path: Path) -> None:
    """No signal ends a process that waits in FUSE: nothing of the supervisor itself may wait there."""
    with hung_directory(tmp_path / "hung") as hung:
        stage.environ = {"RESIL_RUN_DIR": str(hung)}
        words = [sys.executable, "-c", SHORT, "CLAIM_S,END_S", "sh", "-c", "seq 100000; exit 4"]
        done = subprocess.run(words, env=stage.full_environment, capture_output=True, timeout=20)
    assert done.returncode == 4 and done.stdout.endswith(b"\n100000\n")
    assert b"does not respond: starting without a record" in done.stderr


@needs_fuse
def test_a_run_directory_that_hangs_later_does_not_keep_the_exit_code(stage: Stage) -> None:
    words = [sys.executable, "-c", SHORT, "END_S", "sh", "-c", "echo ready; read x; echo trained; exit 4"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=stage.full_environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert read_line(process) == b"ready"
        with (
            hung_directory(stage.run.path / "attempts", over=True),
            hung_directory(stage.run.path / "beats", over=True),
        ):
            assert process.communicate(b"\n", timeout=20)[0] == b"trained\n"
            assert process.returncode == 4
    until(lambda: stage.file("attempts/0001.end").get("exit_code") == 4, "the process left behind to write the end")


def test_what_ignores_sigterm_is_killed_after_a_kill_switch(stage: Stage) -> None:
    ignores = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    words = [sys.executable, "-c", SHORT, "KILL_WAIT_S", "sh", "-c", ignores]
    with subprocess.Popen(words, env=stage.full_environment, stdout=subprocess.PIPE) as process:
        assert read_line(process) == b"ready"
        stage.switch("kill", 'why = "wrong data"\n')
        assert process.wait(20) == 137
    assert stage.events()[-3:] == ["kill_term", "kill_kill", "attempt_end"]
    assert stage.attempts()[0].why.endswith(": wrong data") and str(stage.attempts()[0].end) == "terminated"


# ---- without a job of resil


def test_a_project_with_settings_gets_a_run_and_one_without_gets_none(stage: Stage) -> None:
    stage.has_run = False
    stage.finish("sh", "-c", "exit 3")
    assert not (stage.path / ".resil").exists()
    stage.finish("sh", "-c", "exit 3", options=("--run", "laptop"))
    assert (stage.path / ".resil" / "laptop" / "attempts" / "0001.end").exists()
    (stage.path / "resil.toml").write_text('[run]\nname = "llama"\n')
    stage.finish("sh", "-c", "exit 3")
    assert (stage.path / ".resil" / "llama" / "attempts" / "0001.end").exists()
    (stage.path / "resil.toml").write_text("not toml")
    code, _, err = stage.finish("sh", "-c", "exit 3")
    assert code == 3 and err.startswith(b"resil: warning: nothing is recorded")


LOADED = "import sys; from resilience.cli.entry import run; print(run(['run', '--', 'true']), *sys.modules)"
HEAVY = {"typer", "psutil", "requests", "jinja2", "slack_sdk", "pydantic", "subprocess", "resilience.settings.load"}


def test_a_supervisor_stays_small(stage: Stage) -> None:
    """It lives as long as its command, beside every rank."""
    done = subprocess.run([sys.executable, "-c", LOADED], env=stage.full_environment, capture_output=True, text=True)
    code, *modules = done.stdout.split()
    assert code == "0" and not HEAVY & set(modules)


# ---- values


def test_variables_are_set_only_where_unset() -> None:
    place = RankInfo(run="gpt", run_dir="/r/gpt", job_id="1601", restart=2, rank=3)
    found = command_environment({"PATH": "/bin"}, place, 4)
    assert found["TORCH_FR_DUMP_TEMP_FILE"] == "/r/gpt/traces/1601.2/rank_"
    assert found["TORCH_FR_BUFFER_SIZE"] == found["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert found["TORCHELASTIC_ERROR_FILE"] == "/r/gpt/attempts/0004.error.3"
    assert found["NCCL_RAS_ADDR"] == "localhost:28101" and found["RESIL_ATTEMPT"] == "4" and found["PATH"] == "/bin"
    own = {"TORCH_FR_DUMP_TEMP_FILE": "/x", "TORCHELASTIC_ERROR_FILE": "/y", "NCCL_RAS_ADDR": "z"}
    assert own.items() <= command_environment(own, place, 4).items()
    assert "TORCH_FR_DUMP_TEMP_FILE" not in command_environment({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/x"}, place, 4)
    off = command_environment({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, place, 4)
    assert off["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "0" and "TORCH_FR_BUFFER_SIZE" not in off
    alone = command_environment({}, RankInfo(), 0)
    assert not {"NCCL_RAS_ADDR", "TORCH_FR_DUMP_TEMP_FILE", "TORCHELASTIC_ERROR_FILE", "RESIL_ATTEMPT"} & set(alone)


def test_what_another_job_or_a_dead_supervisor_has_left_is_dropped() -> None:
    theirs = {"RESIL_ATTEMPT": "3", "RESIL_JOB_ID": "6", "SLURM_JOB_ID": "7", "RESIL_RUN": "gpt"}
    assert own_environment(theirs) == {"SLURM_JOB_ID": "7", "RESIL_RUN": "gpt"}
    ours = theirs | {"RESIL_JOB_ID": "7"}
    assert own_environment(ours) == ours
    assert own_environment({"RESIL_SUPERVISED": f"0.{2**22 - 1}", "RESIL_ATTEMPT": "3"}) == {}
    here = {"RESIL_SUPERVISED": f"0.{os.getpid()}", "RESIL_ATTEMPT": "3"}
    assert own_environment(here) == here


@pytest.mark.parametrize(
    ("code", "asked", "received", "expected"),
    [
        (0, "", "", ("exited", "")),
        (75, "", "", ("stopped", "")),
        (138, "300 s left", "", ("stopped", "300 s left")),
        (0, "300 s left", "SIGTERM", ("stopped", "300 s left")),
        (1, "300 s left", "", ("terminated", "300 s left")),
        (143, "", "SIGTERM", ("terminated", "SIGTERM")),
        (137, "", "", ("exited", "killed by SIGKILL")),
        (0, "", "SIGHUP", ("exited", "")),
    ],
)
def test_an_end_has_a_reason(code: int, asked: str, received: str, expected: tuple[str, str]) -> None:
    end, why = end_of(code, is_finished=False, asked=asked, asked_signal=10 if asked else 0, received=received)
    assert (end.value, why) == expected
    assert end_of(0, is_finished=True, asked="", asked_signal=0, received="")[0].value == "finished"


def test_requests_are_signals_or_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_request("--stop", None) is None
    for text in ("USR1", "sigusr1", str(int(signal.SIGUSR1))):
        found = parse_request("--stop", text)
        assert found is not None and (found.signal, found.describe()) == (signal.SIGUSR1, "SIGUSR1")
    request = parse_request("--stop", "./STOP")
    assert request is not None and request.path == f"{tmp_path}/STOP"
    created = create_file(request.path, "why not")
    assert created is not None and create_file(request.path, "again") is None
    (tmp_path / "STOP").unlink()
    (tmp_path / "STOP").write_text("another's")
    remove_file(request.path, created)
    assert (tmp_path / "STOP").read_text() == "another's"


def test_the_oom_killer_is_named(stage: Stage) -> None:
    with a_real_cgroup(120 * 2**20) as cgroup:
        take = [sys.executable, "-S", "-c", "b'x' * 2**28"]
        words = ["sh", "-c", f'echo $$ >{cgroup.task}/cgroup.procs; exec "$@"', "-", sys.executable, "-m", "resilience"]
        done = subprocess.run([*words, "run", "--", *take], env=stage.full_environment, cwd=stage.path, timeout=60)
    assert done.returncode == 137
    assert stage.attempts()[0].why.startswith("killed by SIGKILL; the kernel's OOM killer has killed a process of")


@pytest.mark.parametrize("version", [1, 2])
def test_high_memory_of_the_cgroup_is_told_once_and_explains_a_kill(tmp_path: Path, version: int) -> None:
    machine = Machine(tmp_path)
    job = machine.slurm(version, used=50 * 2**20, limits={"job_12": 100 * 2**20})
    watch = MemoryWatch(str(tmp_path))
    assert watch.look(0.0) is None and watch.explain_kill() == ""
    usage = job / ("memory.usage_in_bytes" if version == 1 else "memory.current")
    usage.write_text(f"{96 * 2**20}\n")
    high = watch.look(1.0)
    assert high is not None and round(high.percent) == 96 and "job" in high.owner
    assert watch.look(2.0) is None and "memory was at 96 % of the job's cgroup" in watch.explain_kill()


def test_without_a_cgroup_the_process_tree_counts() -> None:
    watch = MemoryWatch("/nowhere")
    assert watch.look(0.0) is None and watch.peak is None
    own = MemoryWatch()
    own.look(0.0)
    assert own.peak is not None and own.peak.used_bytes > 2**20
