"""All ranks of real processes are asked; the ones that cannot answer are named with the reason."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.errors import NoSuchJob
from resilience.guard.heartbeat.beat import GONE, LEFT, Progress, RankBeat, compose
from resilience.guard.heartbeat.run_directory import SILENT
from resilience.ranks import collect as module
from resilience.ranks.beats import NodeBeat
from resilience.ranks.beats import RankBeat as BeatOfRank
from resilience.ranks.collect import Evidence, collect, still_inside
from resilience.ranks.page import render_html, render_text
from resilience.runs.run_directory import RunDirectory
from resilience.system.answers import answer_lines
from resilience.system.ports import System
from tests.guard.guards import make_run
from tests.guard.ranks import a_node
from tests.lab.disks import needs_fuse
from tests.lab.hung import hung_directory
from tests.lab.waiting import until

RECORDED = Path(__file__).parents[1] / "recorded" / "stacks"
HANG = "def all_reduce():\n    time.sleep(1000)\ndef preprocess():\n    while True: ctypes.PyDLL(None).sleep(1000)"
"""The second holds the GIL, and a signal ends its sleep."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "gpt")
    (run / "run.toml").write_text("[guard]\nbeat_s = 0.1\n")
    return run


def ask(run: Path, path: Path | str = "/nowhere") -> tuple[Evidence, ...]:
    project: Any = SimpleNamespace(system=System(environ={**os.environ, "PATH": f"{path}:/bin:/usr/bin"}))
    return collect(project, RunDirectory(run))


def beat(run: Path, host: str, ranks: dict[int, str], attempt: int = 3, pid: int = 2**22 + 1) -> Path:
    """The heartbeat of a node, on which nobody answers."""
    (run / "beats").mkdir(exist_ok=True)
    text = compose(
        attempt, host, {rank: RankBeat(pid, Progress(time.time()), end) for rank, end in ranks.items()}, time.time()
    )
    file = run / "beats" / f"12.{host}"
    file.write_text(text)
    return file


def why(evidence: Evidence) -> dict[int, str]:
    return {one.rank: one.why for one in evidence.ranks}


def test_real_ranks_that_wait_hold_the_gil_or_are_stopped_are_told_apart(run: Path) -> None:
    with a_node(run) as node:
        ranks = [node.start(rank, world=4, host="n1", first=HANG) for rank in range(4)]
        for rank, statement in zip(ranks, ("all_reduce()", "all_reduce()", "preprocess()"), strict=False):
            rank.begin(statement)
        until(lambda: len(node.beats().get("rank", {})) == 4)
        ranks[3].process.send_signal(signal.SIGSTOP)
        (found,) = ask(run)
        again = ask(run)[0].groups
    assert (found.run, found.job_id, found.attempt, [one.pid for one in found.ranks]) == (
        "gpt", "12", 3, [rank.process.pid for rank in ranks],
    )  # fmt: skip
    assert [(one.ranks, one.function) for one in found.groups.groups] == [((0, 1), "all_reduce"), ((2,), "preprocess")]
    assert [(one.rank, one.host) for one in found.groups.odd] == [(3, "n1"), (2, "n1")]
    assert why(found) == {0: "", 1: "", 2: "", 3: "its process is stopped (state T)"}
    assert again == found.groups, "they may be asked again"


def test_the_writer_process_has_py_spy_read_a_rank_that_does_not_answer(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a child of that process, which Yama allows; and a reader that hangs keeps nobody waiting."""
    reader = tmp_path / "py-spy"
    reader.write_text(f"#!/bin/sh\n[ -e {tmp_path}/hangs ] && exec sleep 60\ncat {RECORDED}/py_spy.txt\n")
    reader.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with a_node(run) as node:
        rank = node.start(0, host="n1")
        until(lambda: node.beats().get("rank"))
        rank.process.send_signal(signal.SIGSTOP)
        (found,) = ask(run)
        (tmp_path / "hangs").touch()
        (again,) = ask(run)
    assert (found.ranks[0].source, why(found)) == ("py-spy", {0: "its process is stopped (state T)"})
    assert [one.where.value for one in found.groups.groups] == ["in a collective"]
    assert (again.ranks[0].source, why(again)) == ("", {0: "its process is stopped (state T)"})


IN_KERNEL = "its process waits in the kernel, for a disk, a file server or a driver (state D)"
SAID = [
    ("T in do_signal_stop", "its process is stopped (state T)"),
    (
        "D in fuse_wait",
        "its process waits in the kernel, for a disk, a file server or a driver (state D), in fuse_wait",
    ),
    ("D", "its process waits in the kernel, for a disk, a file server or a driver (state D)"),
    ("?", "its process has just ended"),
    ("I", "its process is in state I"),
]


@pytest.mark.parametrize(("state", "reason"), SAID)
def test_what_the_mirror_saw_of_a_process_is_said_in_words(run: Path, state: str, reason: str) -> None:
    def answers(path: str) -> None:
        Path(path).write_text(f"1800000000 n2 pid 7: stacks, as requested\n{SILENT}{state}\n\n")

    beat(run, "n2", {0: ""})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "refresh_directory", answers)
        assert why(ask(run)[0]) == {0: reason}


@needs_fuse
def test_a_rank_in_a_hung_file_system_is_said_to_wait_in_the_kernel(run: Path, tmp_path: Path) -> None:
    with a_node(run) as node, hung_directory(tmp_path / "hung") as hung:
        for rank, statement in enumerate(("all_reduce()", f"os.stat({str(hung / 'data')!r})")):
            node.start(rank, host="n1", first=HANG).begin(statement)
        until(lambda: len(node.beats().get("rank", {})) == 2)
        (found,) = ask(run)
    assert [(one.rank, one.host) for one in found.groups.odd] == [(1, "n1")]
    assert "(state D)" in why(found)[1]


def test_a_node_that_does_not_answer_and_a_rank_that_is_gone_are_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    file = beat(run, "n2", {0: "", 1: GONE, 2: LEFT})
    os.utime(file, (time.time() - 120, time.time() - 120))
    (found,) = ask(run)
    assert why(found) == {
        0: "no answer from n2, whose last heartbeat was 2 min before",
        1: "its process has ended unexpectedly",
    }
    assert (run / "switches" / "stacks.12").exists() and found.groups.groups == ()


def test_what_ranks_answered_earlier_is_never_taken_for_the_answer(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    beat(run, "n1", {0: ""})
    earlier = f"{round(time.time())} n1 pid 7: stacks, as requested\nStack (most recent call first):\n\n"
    (run / "journal").mkdir(exist_ok=True)
    (run / "journal" / "12.0.stacks").write_text("\n" * module.MOST_BYTES + earlier)
    (found,) = ask(run)
    assert not found.ranks[0].text and "no answer from n1" in found.ranks[0].why


def test_an_attempt_that_has_ended_is_not_asked(run: Path) -> None:
    beat(run, "n2", {0: ""})
    (run / "attempts" / "0003").write_text('job_id = 12\nlabel = "12"\nstart = 1\n')
    (run / "attempts" / "0003.end").write_text('end = "exited"\ntime = 2\n')
    with pytest.raises(NoSuchJob, match="no training of run gpt sends heartbeats"):
        ask(run)
    assert not (run / "switches" / "stacks.12").exists()


def test_without_an_attempt_only_a_recent_heartbeat_counts(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    file = beat(run, "n2", {0: ""}, attempt=0)
    assert len(ask(run)) == 1
    os.utime(file, (1, 1))
    with pytest.raises(NoSuchJob):
        ask(run)


PY_SPY = [
    (f"cat {RECORDED}/py_spy.txt", "py-spy", "in a collective", ""),
    ("echo 'Error: Permission denied (os error 13)' >&2; echo more >&2; exit 1", "", "",
     "py-spy could not read rank 0: Error: Permission denied (os error 13)"),
    ("echo nothing", "", "", "py-spy could not read rank 0: nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "source", "where", "note"), PY_SPY, ids=["allowed", "forbidden", "nonsense"])
def test_py_spy_reads_a_rank_of_this_node_that_does_not_answer(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, source: str, where: str, note: str
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    (tmp_path / "py-spy").write_text(f'#!/bin/sh\n[ "$5" = {os.getpid()} ] || exit 3\n{program}\n')
    (tmp_path / "py-spy").chmod(0o755)
    beat(run, System().host.name, {0: ""}, pid=os.getpid())
    (found,) = ask(run, tmp_path)
    assert found.ranks[0].source == source
    assert [one.where.value for one in found.groups.groups] == ([where] if where else [])
    assert found.notes == ((note,) if note else ())
    assert ("runs (state R)" in found.ranks[0].why or "sleeps (state S)" in found.ranks[0].why) == (not source)


def test_other_nodes_are_asked_by_one_task_each_beside_the_training(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for srun shows which nodes are asked; one of them does not answer, and the others count."""
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    monkeypatch.setattr(module, "scheduler_of", lambda intents: "slurm")
    for host in ("n1", "n2", "n3"):
        beat(run, host, {int(host[1]): ""}, pid=100 + int(host[1]))
    stacks = (RECORDED / "py_spy.txt").read_text()
    member = [[3, "10.0.0.3", 103]]
    said: list[dict[str, Any]] = [
        {"host": "n1", "stacks": {"101": stacks}, "unread": {}, "ras": "", "kernel": ["NVRM: Xid"],
         "devices": ["all 4 GPUs idle"],
         "signals": [["launched 4 AllReduce, 2 others 5, unchanged for 4 s", 1, member]]},
        {"host": "n2", "stacks": {}, "unread": {"102": "Permission denied"}, "ras": "", "kernel": None,
         "devices": [], "signals": []},
    ]  # fmt: skip
    (tmp_path / "said").write_text("".join(answer_lines(one, one["host"]) for one in said))
    (tmp_path / "srun").write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/asked\ncat {tmp_path}/said\necho n3: late >&2; exit 1\n'
    )
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    (found,) = ask(run, tmp_path)
    asked = (tmp_path / "asked").read_text()
    assert "--overlap " in asked and "--jobid=12 --nodes=3" in asked and "--nodelist=n1,n2,n3" in asked
    assert [one.source for one in found.ranks] == ["py-spy", "", ""]
    assert found.nccl == (
        "NCCL: rank 3 on n3: launched 4 AllReduce, 2 others 5, unchanged for 4 s", "n1: all 4 GPUs idle",
    )  # fmt: skip
    assert found.kernel == (("n1", ("NVRM: Xid",)),)
    assert found.notes[0].startswith("not all nodes of job 12 could be looked at: srun ended with 1: n3: late")
    assert found.notes[1:] == ("py-spy could not read rank 2: Permission denied",)
    page = "\n".join(render_text(found)) + render_html([found])
    assert page.count("NVRM: Xid") == page.count("2 others 5") == 2


@pytest.mark.parametrize(
    ("signs", "is_still"),
    [
        ({}, True),
        ({"is_inside": False}, False),
        ({"advanced": 899.0}, False),
        ({"looked": 801.0}, False),
    ],
)
def test_only_a_look_after_the_last_step_tells_that_a_rank_stands_inside_a_collective(
    signs: dict[str, Any], is_still: bool
) -> None:
    usual: dict[str, Any] = {"advanced": 800.0, "looked": 900.0, "is_inside": True}
    rank = BeatOfRank(rank=5, pid=7, step=9, phase="train", **{**usual, **signs})
    node = NodeBeat("12", "n1", 3, 900.0, 900.0, (rank,))
    assert still_inside([node], "12") == ({5} if is_still else set()) and not still_inside([node], "13")
