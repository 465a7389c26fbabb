"""DistributedDataParallel over gloo under the real torchrun: one step for all, nothing lost, the correct exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from resilience.guard.triggers.signals import AGAIN_S
from tests.end_to_end.conftest import Shell, shell  # noqa: F401  (a fixture)
from tests.integrations.launched import HERE, TORCHRUN, Launched, needs
from tests.lab.slurm.processes import Process, kill_all, until

pytestmark = needs("torch")
TRAINING = str(HERE / "torch_training.py")
FOREVER = "1000000"


def command(world: int, directory: Path, steps: str = FOREVER) -> list[str]:
    return [*TORCHRUN, f"--nproc-per-node={world}", TRAINING, str(directory), steps]


def stopped_at(launched: Launched, world: int) -> int:
    """Return the step at which all ranks stopped, the same for all."""
    steps = {launched.last(rank, "stop")["step"] for rank in range(world)}
    assert len(steps) == 1, steps
    return int(steps.pop())


SOAK = [
    pytest.mark.soak,
    pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="a minute of processor time: set RESIL_SOAK=1"),
]


@pytest.mark.parametrize("world", [pytest.param(2, marks=SOAK), pytest.param(4, marks=SOAK)])
def test_a_kill_switch_stops_all_ranks_at_one_step_and_the_next_attempt_loses_none_and_repeats_none(
    launched: Launched, world: int
) -> None:
    launched.launch(command(world, launched.directory))
    launched.until_step(21, world)
    launched.throw("kill", 'who = "bob"\nwhy = "a test"\n')
    assert launched.wait() == 1  # torchrun's own code whenever a worker's is not 0
    stop = stopped_at(launched, world)
    assert launched.last(0, "saved")["step"] == stop
    assert {launched.last(rank, "left")["exit_code"] for rank in range(world)} == {75}
    end = launched.end()
    assert (end["step"], end["exit_code"], end["stopped"]) == (stop, 75, True)

    launched.launch(command(world, launched.directory))  # while the switch is set
    assert launched.wait() == 1
    assert launched.diary(0)[-1]["event"] == "not_started"  # torchrun may end the others before they check
    assert all(launched.count(rank, "start") == 1 for rank in range(world))

    launched.clear("kill")
    launched.launch(command(world, launched.directory, str(stop + 40)))
    assert launched.wait() == 0
    for rank in range(world):
        assert launched.last(rank, "start")["step"] == stop
        assert launched.last(rank, "left") | {"step": stop + 40, "exit_code": 0} == launched.last(rank, "left")


@SOAK[0]
@SOAK[1]
def test_a_signal_to_one_worker_stops_all_at_one_step(launched: Launched) -> None:
    launched.launch(command(2, launched.directory))
    launched.until_step(21, 2)
    os.kill(launched.last(1, "start")["pid"], signal.SIGUSR1)
    assert launched.wait() == 1
    assert launched.last(0, "saved")["step"] == stopped_at(launched, 2)
    assert "SIGUSR1" in launched.last(0, "stop")["why"]


def test_sigterm_to_torchrun_is_forwarded_and_saves_and_stops(launched: Launched) -> None:
    launched.launch(command(2, launched.directory))
    launched.until_step(21, 2)
    assert launched.process is not None
    launched.process.terminate()  # its workers have 30 s from now
    assert launched.wait() != 0
    assert launched.last(0, "saved")["step"] == stopped_at(launched, 2)
    assert "SIGTERM" in launched.last(0, "stop")["why"]


@SOAK[0]
@SOAK[1]
def test_no_rank_leaves_while_another_saves_because_torchrun_would_end_that_one(launched: Launched) -> None:
    launched.launch(command(2, launched.directory), SAVE_S="3")
    launched.until_step(21, 2)
    launched.throw("kill")
    launched.wait()
    assert launched.last(1, "left")["time"] >= launched.last(0, "saved")["time"] > launched.last(1, "stop")["time"] + 2
    assert launched.end()["stopped"]


def orphans(launched: Launched) -> list[Process]:
    """Return the two workers of a torchrun that was killed, and could not end them."""
    launched.until_step(21, 2)
    workers = [Process.of(launched.last(rank, "start")["pid"]) for rank in range(2)]
    assert launched.process is not None
    launched.process.kill()
    launched.wait()
    return [worker for worker in workers if worker is not None]


def test_workers_of_a_killed_torchrun_read_the_kill_switch_and_end(launched: Launched) -> None:
    launched.launch(command(2, launched.directory))
    workers = orphans(launched)
    try:
        assert [worker.alive for worker in workers] == [True, True]
        launched.throw("kill")
        for worker in workers:
            worker.wait_gone()
        assert launched.last(0, "saved")["step"] == stopped_at(launched, 2)
        assert {launched.last(rank, "left")["exit_code"] for rank in range(2)} == {75}
        end = launched.end()
        assert (end["exit_code"], end["stopped"], end["well"]) == (75, True, 2)
    finally:
        kill_all(lambda: {worker.pid for worker in workers if worker.alive})


@SOAK[0]
@SOAK[1]
def test_workers_of_a_killed_torchrun_are_ended_by_a_second_term_also_in_a_save(launched: Launched) -> None:
    """No SIGKILL follows as a third request."""
    launched.launch(command(2, launched.directory), SAVE_S="1000")
    workers = orphans(launched)
    try:
        for worker in workers:
            worker.send(signal.SIGTERM)
        until(lambda: launched.count(0, "save_begin") == 1, "rank 0 to save")
        time.sleep(AGAIN_S)  # a TERM sooner than that is the same one, forwarded
        began = time.monotonic()
        for worker in workers:
            worker.send(signal.SIGTERM)
        for worker in workers:
            worker.wait_gone()
        assert time.monotonic() - began < 20
        assert launched.count(0, "saved") == 0
    finally:
        kill_all(lambda: {worker.pid for worker in workers if worker.alive})


def test_the_batch_shell_believes_the_training_and_not_torchruns_1(
    shell: Shell,  # noqa: F811
    tmp_path: Path,
) -> None:
    directory = tmp_path / "training"
    directory.mkdir()
    launch = " ".join([*TORCHRUN[1:], "--nproc-per-node=2", TRAINING, str(directory), FOREVER])
    settings = f'[run]\nname = "gpt"\ncommand = "{sys.executable} {launch}"\n[attempt]\nbeat_s = 1\n'
    shell.settings(settings)
    assert shell.resil("submit", RESIL_GUARD__POLL_S="0.1", PYTHONWARNINGS="ignore").returncode == 0
    diary = directory / "rank1.jsonl"
    shell.until(lambda: diary.exists() and '"step"' in diary.read_text())
    assert shell.resil("kill", "gpt", "--why", "a test").returncode == 0
    end = shell.state_dir / "gpt" / "attempts" / "0001.end"
    shell.until(end.exists)
    assert 'end = "stopped"' in end.read_text()
    assert "exit_code = 75" in end.read_text()
    assert not (shell.state_dir / "gpt" / "finished").exists()


@SOAK[0]
@SOAK[1]
def test_the_batch_shell_calls_a_crash_under_torchrun_a_crash(shell: Shell, tmp_path: Path) -> None:  # noqa: F811
    crash = tmp_path / "crash.py"
    crash.write_text("import os, sys; sys.exit(75 if os.environ['RANK'] == '0' and not os.environ['RESIL_RUN'] else 3)")
    launch = " ".join([*TORCHRUN[1:], "--nproc-per-node=2", str(crash)])
    shell.settings(f'[run]\nname = "gpt"\ncommand = "{sys.executable} {launch}"\n[attempt]\nbeat_s = 1\n')
    assert shell.resil("submit", PYTHONWARNINGS="ignore").returncode == 0
    end = shell.state_dir / "gpt" / "attempts" / "0001.end"
    shell.until(end.exists)
    assert 'end = "exited"' in end.read_text()
    assert "exit_code = 1" in end.read_text()
