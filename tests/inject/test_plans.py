"""The plans of faults are pure: tables of what is seen, of what is meant, and of what is refused in words."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.errors import ProbeError, UsageError
from resilience.inject import Plan, hosts
from resilience.inject.faults import clock, exit, hang, kill, leak, oom, scheduler, slow, stop
from resilience.inject.processes import Process, is_elsewhere, is_helper, ranks_in, tree_of
from resilience.inject.targets import TargetSettings
from resilience.job import JobId, JobState, Liveness


def process(
    pid: int, parent: int = 1, rank: int = -1, step: int = -1, name: str = "python train.py", launched: bool = True
) -> list[Any]:
    return list(Process(pid, 1000 + pid, parent, rank, step, launched, name))


N1 = [
    process(10, 1, name="/bin/bash /spool/slurm_script", launched=False),
    process(11, 10, name="bash -o pipefail -c srun"),
]
N1 += [process(12, 11, name="srun python train.py"), process(20, 2, 0, 0), process(21, 20, 0, 0, "python worker")]
N2 = [process(30, 3, 1, 0), process(31, 30, 1, 0, "python worker")]
BEATS = {"0": ["n1", 20], "1": ["n2", 30]}
SEEN = {
    "run": "gpt", "job": "12", "shown_job": "12", "attempt": 3, "srun_job": "12",
    "hosts": ["n1", "n2"], "batch_host": "n1", "beats": BEATS, "processes": {"n1": N1, "n2": N2},
}  # fmt: skip
UNGUARDED = {**SEEN, "beats": {}}
RANK_1 = {"n2": [(30, 1030)]}


@pytest.mark.parametrize("seen", [SEEN, UNGUARDED])
def test_a_target_is_found_by_guards_or_by_environments(seen: dict[str, Any]) -> None:
    plan = kill.FAULT.plan(kill.KillSettings(rank=1), seen)
    assert plan.target == "rank 1 of job 12 (process 30 on n2)"
    assert plan.state["pids"] == RANK_1 and plan.state["attempt"] == 3
    batch = stop.FAULT.plan(TargetSettings(batch=True), seen)
    assert batch.target == "the batch shell of job 12 (process 10 on n1)"
    task = kill.FAULT.plan(kill.KillSettings(rank=1), {**seen, "job": "19", "shown_job": "12_3"})
    assert task.target.startswith("rank 1 of job 12_3 ("), "as resil status names it"
    node = kill.FAULT.plan(kill.KillSettings(node="n2"), seen)
    assert node.state["pids"] == {"n2": [(30, 1030), (31, 1031)]}
    step = kill.FAULT.plan(kill.KillSettings(step=True), seen)
    assert step.state["pids"] == {"n1": [(20, 1020)], **RANK_1} and step.target.startswith("all 2 ranks of job 12")


def test_without_a_guard_a_hang_is_a_stop_of_the_whole_tree_and_says_so() -> None:
    guarded = hang.FAULT.plan(TargetSettings(rank=1), SEEN)
    assert guarded.state["guarded"] == [1] and "by its guard" in guarded.does
    plain = hang.FAULT.plan(TargetSettings(rank=1), UNGUARDED)
    assert plain.state["pids"] == {"n2": [(30, 1030), (31, 1031)]} and "guarded" not in plain.state
    assert plain.state["alone"] == ["process 30 on n2", "process 31 on n2"] and "alone" not in guarded.state
    assert "SIGSTOP" in plain.does and "SIGCONT" in plain.undoes and "no guard" in plain.notes[0]


REFUSED = [
    (kill.FAULT, kill.KillSettings(rank=7), SEEN, "there is no rank 7 of job 12", "its ranks: 0, 1"),
    (kill.FAULT, kill.KillSettings(node="n9"), SEEN, "node n9 is none of job 12", "n1, n2"),
    (kill.FAULT, kill.KillSettings(rank=0, signal="FOO"), SEEN, "no signal 'FOO'", "SEGV"),
    (kill.FAULT, kill.KillSettings(rank=0, signal="STOP"), SEEN, "stops a process", "resil inject stop"),
    (kill.FAULT, kill.KillSettings(rank=0, signal="CONT"), SEEN, "SIGCONT ends no process", "SEGV"),
    (kill.FAULT, kill.KillSettings(batch=True), {**SEEN, "processes": {"n1": [], "n2": N2}}, "no batch shell", ""),
    (kill.FAULT, kill.KillSettings(step=True), {**UNGUARDED, "processes": {"n1": []}}, "no rank", "started"),
    (hang.FAULT, TargetSettings(batch=True), SEEN, "a batch shell has no guard", "resil inject stop --batch"),
    (slow.FAULT, slow.SlowSettings(rank=0, factor=1.0), SEEN, "must be more than 1", "--factor 2"),
    (slow.FAULT, slow.SlowSettings(batch=True), SEEN, "a batch shell has no guard", "stop --batch"),
    (leak.FAULT, leak.LeakSettings(rank=0), UNGUARDED, "only the process itself can do it", "guard"),
    (leak.FAULT, leak.LeakSettings(batch=True), SEEN, "a batch shell has no guard", "--rank"),
    (leak.FAULT, leak.LeakSettings(rank=0, rate_bytes=0.0), SEEN, "a leak of nothing", "--rate 16M"),
    (oom.FAULT, oom.OomSettings(rank=0, how="luck"), SEEN, "no way to run out of memory", "--how error"),
    (oom.FAULT, oom.OomSettings(batch=True), SEEN, "a batch shell has no guard", "kill --batch"),
    (exit.FAULT, exit.ExitSettings(rank=0, code=256), SEEN, "must be from 0 to 255", "--code 1"),
    (exit.FAULT, exit.ExitSettings(batch=True), SEEN, "a batch shell has no guard", "kill --batch"),
    (clock.FAULT, clock.ClockSettings(direction="up"), {}, "no direction", "back"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "settings", "seen", "why", "hint"), REFUSED)
def test_what_makes_no_sense_is_refused_in_words(fault: Any, settings: Any, seen: Any, why: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        fault.plan(settings, seen)
    assert why in refused.value.message and hint in refused.value.hint


def plan_scheduler(fault: str, name: str = "local", **more: Any) -> Plan:
    settings = {key: more.pop(key) for key in ("node", "real", "lag_s") if key in more}
    seen = {"scheduler": name, "state_dir": "/s", "host": "n1.site", "spool": "/spool", "others": [], "watchers": [],
            "daemons": [], "commands": ["squeue"], "conf": "", **more}  # fmt: skip
    return scheduler.FAULT.plan(scheduler.SchedulerSettings(fault=fault, **settings), seen)


DAEMON = [77, 5, 0, 0, ["/usr/sbin/slurmctld", "-D"], {}, "/"]


def test_a_scheduler_is_broken_for_all_calls_for_resil_alone_or_really() -> None:
    assert "for resil and for squeue" in plan_scheduler("hang").does
    assert "answers are those of 2 min ago" in plan_scheduler("lag", lag_s=120.0).does
    assert plan_scheduler("lost-node", watchers=[[5, 6, 12]]).is_moment
    assert plan_scheduler("lost-node", watchers=[[5, 6, 12]], node="n1").is_moment
    own = plan_scheduler("down", "slurm")
    assert "resil's own calls" in own.target and "cannot be reached" in own.target, "reports say which fault it was"
    assert "are untouched" in own.notes[0]
    real = plan_scheduler("hang", "slurm", real=True, daemons=[DAEMON])
    assert "sends SIGSTOP to slurmctld on n1.site (process 77)" in real.does
    down = plan_scheduler("down", "slurm", real=True, daemons=[DAEMON])
    assert all(plan.state["alone"] == ["the scheduler"] for plan in (plan_scheduler("hang"), own, real, down))
    assert down.undoes == "starts it again: /usr/sbin/slurmctld -D"


@pytest.mark.parametrize(
    ("fault", "more", "why"),
    [
        ("sleep", {}, "no fault of a scheduler"),
        ("hang", {"node": "n1"}, "--node is for lost-node"),
        ("hang", {"real": True}, "the embedded scheduler has no other"),
        ("hang", {"others": ["3", "4"]}, "jobs that do not allow faults: 3, 4"),
        ("lost-node", {}, "no running job"),
        ("lost-node", {"node": "n2", "watchers": [[5, 6, 12]]}, "n2 is no node of the embedded scheduler"),
        ("hang", {"name": "flux"}, "cannot be broken"),
        ("down", {"name": "slurm", "commands": []}, "no command of SLURM"),
        ("lost-node", {"name": "slurm"}, "only lost really"),
        ("lost-node", {"name": "slurm", "real": True}, "which node"),
        ("lag", {"name": "slurm", "real": True}, "--real knows no lag"),
        ("down", {"name": "slurm", "real": True}, "no slurmctld on n1.site that you may signal"),
    ],
)
def test_what_a_scheduler_cannot_suffer_is_refused(fault: str, more: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan_scheduler(fault, **more)


def test_processes_of_other_clusters_and_nodes_on_the_same_host_are_not_the_jobs() -> None:
    here = {"SLURM_CONF": "/etc/a/slurm.conf", "SLURMD_NODENAME": "n1"}
    assert not any(is_elsewhere(environ, here) for environ in (here, {}, {"SLURMD_NODENAME": "n1"}))
    others = ({"SLURM_CONF": "/etc/b/slurm.conf"}, {"SLURMD_NODENAME": "n2"})
    assert all(is_elsewhere(here | other, here) and not is_elsewhere(here | other, {}) for other in others)


def test_ranks_are_the_topmost_processes_and_helpers_are_none() -> None:
    agent = process(40, 1, -1, 0, "torchrun train.py")
    workers = [process(41, 40, 0, 0), process(42, 40, 1, 0), process(43, 42, 1, 0, "python loader")]
    mirror = process(50, 1, 0, 0, "python -c ... resilience.guard.heartbeat.process ...")
    workers_only = [Process(*one) for one in (agent, *workers, mirror)]
    assert {rank: one.pid for rank, one in ranks_in(workers_only).items()} == {0: 41, 1: 42}
    assert [one.pid for one in tree_of(Process(*workers[1]), workers_only)] == [42, 43]
    shell = process(60, 9, name="bash -o pipefail -c python train.py")
    alone = [Process(*one) for one in (shell, process(61, 60), process(62, 61))]
    assert {rank: one.pid for rank, one in ranks_in(alone).items()} == {0: 61}


@pytest.mark.parametrize(
    ("line", "helps"),
    [
        ("/venv/bin/python /venv/bin/resil run -- python train.py", True),
        ("/usr/bin/python3 -m resilience.cli.spares gpt", True),
        ("python -m resilience.demo._training", False),
        ("python /home/me/resil/train.py", False),
        ("python train.py --tool resil", False),
    ],
)
def test_helpers_of_resil_are_told_from_trainings(line: str, helps: bool) -> None:
    assert is_helper(Process(*process(1, name=line))) is helps


@pytest.mark.parametrize(
    ("liveness", "state", "number", "is_harmless"),
    [
        (Liveness.GONE, JobState.FAILED, 3, True),
        (Liveness.ALIVE, JobState.PENDING, 3, True),
        (Liveness.ALIVE, JobState.RUNNING, 4, True),
        (Liveness.ALIVE, JobState.RUNNING, 3, False),
        (Liveness.UNKNOWN, None, 3, False),
    ],
    ids=["gone", "queued again", "runs again elsewhere", "runs", "unknown"],
)
def test_a_node_that_does_not_answer_needs_no_undo_once_the_attempt_is_over(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    liveness: Liveness,
    state: JobState | None,
    number: int,
    is_harmless: bool,
) -> None:
    asked = list[float]()

    def refuse(scene: Any, job: str, orders: Any, answer: Any, timeout_s: float = hosts.SRUN_S) -> None:
        asked.append(timeout_s)
        raise ProbeError("requested node not in this job's allocation")

    monkeypatch.setattr(hosts, "ask", refuse)
    monkeypatch.setattr(hosts, "place_of", lambda _: SimpleNamespace(attempt=number, start=JobId(12)))
    job = None if state is None else SimpleNamespace(state=state)
    presence = SimpleNamespace(liveness=liveness, job=job)
    scheduler_of_run = SimpleNamespace(presence=lambda _: presence)
    directory = SimpleNamespace(path=tmp_path)
    (tmp_path / "injections").mkdir()
    scene: Any = SimpleNamespace(
        project=SimpleNamespace(scheduler=lambda _: scheduler_of_run), directory=directory, id=""
    )
    plan = stop.FAULT.plan(TargetSettings(rank=1), SEEN)
    with nullcontext() if is_harmless else pytest.raises(ProbeError):
        stop.FAULT.undo(plan.state, scene)
    assert asked == [hosts.SOON_S, hosts.SRUN_S][: 1 if is_harmless else 2], "an srun may wait for a job that is over"
