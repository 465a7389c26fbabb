"""The faults of a night that come from outside: by `resil inject`, by signals, by SLURM's commands, on the disk."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.lab.chaos.plan import Fault
from tests.lab.chaos.run import ChaosRun, Waited
from tests.lab.disks import kept_full, make_read_only

Act = Callable[[ChaosRun, Fault, str, str], None]
"""Called with the node and the raw id of the job whose rank has come to the fault, and waits."""
LOST = "the data loader has lost its index"
PRELOAD, MOUNT = ("--by", "preload", "--for", "10m"), ("--by", "mount", "--for", "10m")
ALTERATIONS = (
    "--first-bit 1 --last-bit 11", "--allow-sign-change --burst 3", "--bit-mask 110101", "--scaling-factor -4.5",
    "--attempts 5 --weight element", "--attempts 50 --type percentage", "--precision 32 --attempts 2",
)  # fmt: skip
"""What `resil inject checkpoint` does to the weights; one of them in a night."""


def lose_node(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    injector = run.inject("scheduler", "lost-node", "--real", "--node", node, "--for", "10m")
    run.answer(fault)
    run.cluster.daemon(node).wait_gone()
    run.cluster.start_slurmd(node)  # in the node's cgroup; the injector finds it there
    run.cluster.adopt(node)
    _end(injector)


def lose_slurmd(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    run.cluster.lose_slurmd(node)
    run.answer(fault)
    run.cluster.start_slurmd(node)


def hang_controller(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    """Let the training fail while slurmctld is not there."""
    run.cluster.stop_controller()
    try:
        run.answer(fault, LOST)
        run.until(lambda: run.end(run.met(fault)[0][1]), "the end to be recorded without SLURM")
    finally:
        run.cluster.continue_controller()


def real_controller(how: str) -> Act:
    """The same, as an administrator does it."""

    def act(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
        words = ("scheduler", how, "--real", "--for", "10m")
        _inject(*words, ends_with_attempt=True, word=LOST)(run, fault, node, job)
        run.cluster.adopt("slurmctld")

    return act


def _scontrol(*words: str) -> Act:
    def act(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
        task, _ = run.running()  # the raw id of an array's last task is that of the array
        run.cluster.run([word.format(job=task) for word in words], run.user, check=True)
        run.answer(fault)

    return act


def cut_checkpoint(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    path = _newest_file(run, fault)
    run.damaged.append((run.met(fault)[0][1], int(path.parent.name.rpartition("-")[2])))
    os.truncate(path, path.stat().st_size // 2)
    run.answer(fault, LOST)


def cut_all(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    run.until(lambda: not run.store.parts(), "the save in flight")
    for one in run.store.checkpoints():
        path = one.path / f"weights.{fault.rank}.safetensors"
        os.truncate(path, path.stat().st_size // 2)
    run.answer(fault, LOST)


def alter(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    """Alter the newest checkpoint in one of the ways of `resil inject checkpoint`."""
    path = _newest_file(run, fault)
    _alter(run, path)
    run.damaged.append((run.met(fault)[0][1], int(path.parent.name.rpartition("-")[2])))
    run.answer(fault, LOST)


def alter_and_undo(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    path = _newest_file(run, fault)
    before = path.read_bytes()
    _alter(run, path, "--save-sequence", "sequence")
    run.ask("inject", "checkpoint", str(path), "--undo", "sequence", "--output", "restored")
    path.write_bytes((run.project / "restored").read_bytes())
    if path.read_bytes() != before:
        raise Waited("the bytes that the checkpoint had")
    run.answer(fault, LOST)


def _alter(run: ChaosRun, path: Path, *more: str) -> None:
    for name in ("altered", "sequence", "restored"):
        (run.project / name).unlink(missing_ok=True)
    way = random.Random(run.night.seed).choice(ALTERATIONS)
    words = ["--locations", "weights", "--allow-nan", "--seed", str(run.night.seed), *way.split(), *more]
    run.ask("inject", "checkpoint", str(path), *words, "--output", "altered")
    path.write_bytes((run.project / "altered").read_bytes())  # the tool makes a copy, and the disk changes the file


def _newest_file(run: ChaosRun, fault: Fault) -> Path:
    return run.store.checkpoints()[-1].path / f"weights.{fault.rank}.safetensors"


def _inject(*words: str, is_killed: bool = False, ends_with_attempt: bool = False, word: str = "") -> Act:
    """A fault of `resil inject`. With `is_killed` its injector is killed, and its keeper undoes it; with
    `ends_with_attempt` it is undone once the attempt has ended. `word`: of the exception that ends it."""

    def act(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
        injector = run.inject(*(one.format(rank=fault.rank, node=node) for one in words))
        if is_killed:
            injector.kill()
        run.answer(fault, word)
        if ends_with_attempt:
            try:
                run.until(lambda: run.end(run.met(fault)[0][1]), f"the end of the attempt with {fault}")
            finally:
                _end(injector)

    return act


def _end(injector: subprocess.Popen[str]) -> None:
    injector.send_signal(signal.SIGTERM)
    injector.communicate(timeout=60)


def fill_disk(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    full = run.over.enter_context(ExitStack())
    full.enter_context(kept_full(run.disk))
    run.answer(fault)
    if not fault.of.lasts:
        run.mends.append((len(run.messages), full.close))


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
    "kill_node": _inject("kill", "--node", "{node}"),
    "segfault": _inject("kill", "--rank", "{rank}", "--signal", "SEGV"),
    "exit": _inject("exit", "--rank", "{rank}", "--code", "3"),
    "memory": _inject("oom", "--rank", "{rank}"),
    "memory_error": _inject("oom", "--rank", "{rank}", "--how", "error"),
    "stop": _inject("stop", "--rank", "{rank}", "--for", "10m"),
    "stop_orphaned": _inject("stop", "--rank", "{rank}", "--for", "10m", is_killed=True),
    "stop_batch": _inject("stop", "--batch", "--for", "4s"),
    "slow": _inject("slow", "--rank", "{rank}", "--factor", "3", "--for", "4s"),
    "pause": _inject("hang", "--rank", "{rank}", "--for", "5s"),
    "leak": _inject("leak", "--rank", "{rank}", "--rate", "32MiB", "--most", "64MiB", "--for", "4s"),
    "disk_full_once": _inject("disk-full", "--for", "10m"),
    "quota": _inject("disk-full", "--quota", *PRELOAD, ends_with_attempt=True),
    "read_only_once": _inject("read-only", *PRELOAD, ends_with_attempt=True),
    "eio": _inject("eio", *PRELOAD, ends_with_attempt=True),
    "eio_mounted": _inject("eio", *MOUNT),
    "stale": _inject("stale", *PRELOAD, ends_with_attempt=True),
    "stale_mounted": _inject("stale", *MOUNT),
    "slow_disk": _inject("slow-disk", "--delay", "0.1", "--for", "8s"),
    "clock_forward": _inject("clock", "forward", "--by", "2h", "--for", "8s"),
    "clock_back": _inject("clock", "back", "--by", "2h", "--for", "8s"),
    "answers_hang": _inject("scheduler", "hang", "--for", "8s"),
    "answers_down": _inject("scheduler", "down", "--for", "8s"),
    "answers_garbage": _inject("scheduler", "garbage", "--for", "8s"),
    "answers_lag": _inject("scheduler", "lag", "--lag", "10s", "--for", "8s"),
    "node": lose_node,
    "slurmd": lose_slurmd,
    "batch_shell": _inject("kill", "--batch"),
    "controller_stops": real_controller("hang"),
    "controller_hangs": hang_controller,
    "controller_ends": real_controller("down"),
    "requeue": _scontrol("scontrol", "requeue", "{job}"),
    "cancel": _scontrol("scancel", "{job}"),
    "walltime": _scontrol("scontrol", "update", "jobid={job}", "EndTime=now+12"),
    "altered": alter,
    "altered_undone": alter_and_undo,
    "cut": cut_checkpoint,
    "all_cut": cut_all,
    "disk_full": fill_disk,
    "disk_stays_full": fill_disk,
    "read_only": lock_disk,
}
