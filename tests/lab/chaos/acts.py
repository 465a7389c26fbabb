"""The faults of a night that come from outside: by `resil inject`, by signals, by SLURM's commands, on the disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.lab.chaos.plan import Fault
from tests.lab.chaos.run import ChaosRun
from tests.lab.disks import fill, make_read_only
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import environ

Act = Callable[[ChaosRun, Fault, str, str], None]
"""Called with the node and the raw id of the job whose rank has come to the fault, and waits."""
LOST = "the data loader has lost its index"


def lose_node(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    run.cluster.fail_node(node)
    run.answer(fault)
    run.cluster.start_slurmd(node)


def lose_slurmd(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    run.cluster.lose_slurmd(node)
    run.answer(fault)
    run.cluster.start_slurmd(node)


def kill_batch_shell(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    for pid in run.cluster.processes():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if environ(pid).get("SLURM_JOB_ID") == job and words[1:2] and words[1].endswith(b"slurm_script"):
                os.kill(pid, signal.SIGKILL)
    run.answer(fault)


def _without_controller(take: Callable[[Cluster], None], bring_back: Callable[[Cluster], None]) -> Act:
    """Let the training fail while slurmctld is not there."""

    def act(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
        take(run.cluster)
        try:
            run.answer(fault, LOST)
            run.until(lambda: run.end(run.met(fault)[0][1]), "the end to be recorded without SLURM")
        finally:
            bring_back(run.cluster)

    return act


def _scontrol(*words: str) -> Act:
    def act(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
        task, _ = run.running()  # the raw id of an array's last task is that of the array
        run.cluster.run([word.format(job=task) for word in words], run.user, check=True)
        run.answer(fault)

    return act


def cut_checkpoint(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    path = _newest_file(run, fault)
    os.truncate(path, path.stat().st_size // 2)
    run.answer(fault, LOST)


def cut_all(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    run.until(lambda: not run.store.parts(), "the save in flight")
    for one in run.store.checkpoints():
        path = one.path / f"weights.{fault.rank}.safetensors"
        os.truncate(path, path.stat().st_size // 2)
    run.answer(fault, LOST)


def flip_bit(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    path = _newest_file(run, fault)
    words = ["--locations", "weights", "--first-bit", "1", "--allow-nan", "--seed", str(run.night.seed)]
    run.ask("inject", "checkpoint", str(path), *words, "--output", "altered")
    path.write_bytes((run.project / "altered").read_bytes())  # the tool makes a copy, and the disk changes the file
    run.answer(fault, LOST)


def _newest_file(run: ChaosRun, fault: Fault) -> Path:
    newest = run.store.checkpoints()[-1]
    run.damaged.append((run.met(fault)[0][1], newest.step))
    return newest.path / f"weights.{fault.rank}.safetensors"


def _inject(*words: str, is_killed: bool = False) -> Act:
    """A fault of `resil inject`; with `is_killed` its injector is killed, and its keeper undoes it."""

    def act(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
        injector = run.inject(*(word.format(rank=fault.rank) for word in words))
        if is_killed:
            injector.kill()
        run.answer(fault)

    return act


def fill_disk(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    ballast = fill(run.disk)
    run.answer(fault)
    if not fault.of.lasts:
        run.mends.append((len(run.messages), lambda: ballast.unlink(missing_ok=True)))


def lock_disk(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    make_read_only(run.disk, True)
    run.answer(fault)
    run.mends.append((len(run.messages), lambda: make_read_only(run.disk, False)))


def person(run: ChaosRun) -> None:
    """Mend the oldest cause that a person is told of, and let the run go on."""
    if run.mends and run.is_told("breaker-open", after=run.mends[0][0]):
        run.mends.pop(0)[1]()
        if "no job of it was held" in run.ask("breaker", "close") and not run.queued:
            run.submit()


ACTS: dict[str, Act] = {
    "kill": _inject("kill", "--rank", "{rank}"),
    "segfault": _inject("kill", "--rank", "{rank}", "--signal", "SEGV"),
    "exit": _inject("exit", "--rank", "{rank}", "--code", "3"),
    "memory": _inject("oom", "--rank", "{rank}"),
    "stop": _inject("stop", "--rank", "{rank}", "--for", "10m"),
    "stop_orphaned": _inject("stop", "--rank", "{rank}", "--for", "10m", is_killed=True),
    "slow": _inject("slow", "--rank", "{rank}", "--factor", "3", "--for", "4s"),
    "pause": _inject("hang", "--rank", "{rank}", "--for", "5s"),
    "leak": _inject("leak", "--rank", "{rank}", "--rate", "32MiB", "--most", "64MiB", "--for", "4s"),
    "disk_full_once": _inject("disk-full", "--for", "10m"),
    "clock_forward": _inject("clock", "forward", "--by", "2h", "--for", "8s"),
    "clock_back": _inject("clock", "back", "--by", "2h", "--for", "8s"),
    "answers_hang": _inject("scheduler", "hang", "--for", "8s"),
    "answers_garbage": _inject("scheduler", "garbage", "--for", "8s"),
    "answers_lag": _inject("scheduler", "lag", "--lag", "10s", "--for", "8s"),
    "node": lose_node,
    "slurmd": lose_slurmd,
    "batch_shell": kill_batch_shell,
    "controller_hangs": _without_controller(Cluster.stop_controller, Cluster.continue_controller),
    "controller_ends": _without_controller(Cluster.terminate_controller, Cluster.start_controller),
    "requeue": _scontrol("scontrol", "requeue", "{job}"),
    "cancel": _scontrol("scancel", "{job}"),
    "walltime": _scontrol("scontrol", "update", "jobid={job}", "EndTime=now+12"),
    "flip": flip_bit,
    "cut": cut_checkpoint,
    "all_cut": cut_all,
    "disk_full": fill_disk,
    "disk_stays_full": fill_disk,
    "read_only": lock_disk,
}
