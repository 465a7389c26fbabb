"""`resil nodes check` on this node, and before a launch: what they print, their exit codes, what they keep."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.cli import preflight
from resilience.cli.options import open_project
from resilience.cluster import Node
from resilience.job import JobId, JobState
from resilience.nodes import checking
from resilience.nodes.check import Asked
from resilience.nodes.checking import find_target
from resilience.nodes.fleet import NodeReading
from tests.lab.fakes import DOWN
from tests.lab.shell import SETTINGS, Shell

QUICK = ("--with", "memory", "--with", "mou*")


def test_a_good_node_passes_and_its_figures_are_kept_for_the_next_check(shell: Shell) -> None:
    shell.settings(SETTINGS)
    assert shell.resil("submit").code == 0
    said = shell.resil("nodes", "check", *QUICK)
    assert said.code == 0 and "PASS" in said.out and "memory, mounts: no fault" in said.out, said.out
    (line,) = (shell.run_dir.parent / "nodes" / "history.jsonl").read_text().splitlines()
    assert json.loads(line)["figures"]["memory.available_percent"] > 0
    assert shell.resil("nodes", "check", *QUICK, "--json").json["nodes"][0]["readings"]["memory"]["memory"]


def test_a_missing_directory_fails_with_its_reason_and_what_to_try(shell: Shell, tmp_path: Path) -> None:
    shell.settings(f'{SETTINGS}[nodes]\nmounts = ["{tmp_path}/scratch"]\n')
    said = shell.resil("nodes", "check", *QUICK)
    assert said.code == 1 and f"{tmp_path}/scratch: No such file or directory" in said.out and "-> see it" in said.out


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ('"memory.available_percent" = "lots"', "'lots' is no rule for memory.available_percent"),
        ('"memroy.available_percent" = "< 5"', "there is no check for 'memroy.available_percent'"),
    ],
)
def test_a_rule_that_is_none_is_refused_before_any_node_is_asked(shell: Shell, rules: str, message: str) -> None:
    shell.settings(f"{SETTINGS}[nodes]\nrules = {{{rules}}}\n")
    said = shell.resil("nodes", "check", *QUICK)
    assert said.code == 2 and message in said.err


def test_a_check_of_ones_own_is_asked_and_one_that_is_none_is_named(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node_checks").mkdir()
    own = tmp_path / "node_checks" / "licence.py"
    own.write_text("""
from resilience.nodes.checks import Check, Fault, Outcome
CHECK = Check(probe=lambda expected, environ: {"seats": 0}, rules={"seats": "== 0"})
""")
    monkeypatch.setenv("RESIL_PLUGINS", f"{os.environ['RESIL_PLUGINS']}:{tmp_path}")
    shell.settings(SETTINGS)
    said = shell.resil("nodes", "check", "--with", "licence")
    assert said.code == 1 and "seats is 0 (rule: == 0)" in said.out
    own.write_text("CHECK = print\n")
    said = shell.resil("nodes", "check", "--with", "licence")
    assert said.code == 2 and "must be a Check" in said.err


def test_without_a_running_job_of_the_run_there_is_nothing_to_check(shell: Shell) -> None:
    shell.settings(SETTINGS)
    assert shell.resil("submit").code == 0
    said = shell.resil("nodes", "check", "gpt")
    assert said.code == 2 and "no job of run gpt is running" in said.err


def test_the_nodes_of_the_running_job_are_asked_by_its_internal_id(shell: Shell) -> None:
    """srun does not know 101_2."""
    shell.settings(SETTINGS)
    assert shell.resil("submit", "--array", "3").code == 0
    (job,) = shell.fake.records
    running = {"id": JobId(job.id.array, 2), "raw_id": 103, "state": JobState.RUNNING, "nodes": "n[1-2]"}
    shell.fake.records.append(replace(job, **running))  # type: ignore[arg-type]
    target = find_target(open_project(), "gpt")
    assert (target.hosts, target.job) == (("n1", "n2"), "103")
    assert target.text == f"n[1-2] of job {job.id.array}_2"


# ---- before a launch ------------------------------------------------------------------------------------------------


@pytest.fixture
def full(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The nodes of a job of four whose /scratch is full."""
    bad: set[str] = set()

    def ask(command: object, hosts: tuple[str, ...], *rest: object) -> Asked:
        mounts = {host: {"/scratch": "No space left on device" if host in bad else 100.0} for host in hosts}
        return Asked(tuple(NodeReading(host=host, readings={"mounts": mounts[host]}) for host in hosts))

    monkeypatch.setattr(checking, "ask_nodes", ask)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    monkeypatch.setattr(preflight, "avoid", lambda project, directory, hosts: ("8",) if "n9" not in bad else ())
    return bad


def before(shell: Shell, capsys: pytest.CaptureFixture[str], act: str = "enabled = true") -> tuple[int, str]:
    shell.settings(f"{SETTINGS}[act]\n{act}\n")
    assert shell.resil("submit", "--force").code == 0
    capsys.readouterr()
    code = preflight.main(str(shell.run_dir))
    return code, capsys.readouterr().out.splitlines()[-1]


def test_a_bad_node_ends_the_job_with_the_reason(
    shell: Shell, full: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    full.add("n3")
    code, last = before(shell, capsys)
    assert (code, last) == (
        75,
        "the check before the start failed; job 8 will run without n3 (n3: mounts: /scratch: No space left on device)",
    )
    lines = (shell.run_dir / "checks" / "7.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["PASS", "PASS", "FAIL", "PASS"]


def test_a_node_that_fails_in_a_job_is_known_to_all_runs_unless_most_fail(
    shell: Shell, full: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    full.update({"n1", "n2", "n3"})
    before(shell, capsys)
    assert "nothing is known" in shell.resil("nodes").out
    full -= {"n1", "n2"}
    before(shell, capsys)
    before(shell, capsys)
    (node,) = shell.resil("nodes", "--json").json["nodes"]
    assert (node["node"], node["state"], len(node["evidence"])) == ("n3", "excluded", 1)
    assert node["why"] == "a check failed: mounts: /scratch: No space left on device"


@pytest.mark.parametrize(
    ("bad", "act", "said"),
    [
        ((), "enabled = true", "the 4 nodes of job 7: checked, no node fails"),
        (("n1", "n2", "n3"), "enabled = true", "most nodes fail, so it is not the nodes: the job trains here"),
        (("n3",), "enabled = false", "it would go on without n3; to let it: enabled = true under [act]"),
        (("n3", "n9"), "enabled = true", "no queued job of the run can do without n3: the job trains here"),
    ],
)
def test_otherwise_it_trains_and_says_why(
    bad: tuple[str, ...], act: str, said: str, shell: Shell, full: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    full.update(bad)
    assert before(shell, capsys, act) == (0, said)


@pytest.fixture
def alone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A job of a single node, n1, whose /scratch is full."""

    def ask(*_: object) -> NodeReading:
        return NodeReading(host="n1", readings={"mounts": {"/scratch": "No space left on device"}})

    monkeypatch.setattr(checking, "ask_here", ask)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    return shell


def queue_one_more(shell: Shell) -> None:
    """Queue a job that may run on n1 or n2."""
    shell.fake.cluster = tuple(Node(name, "IDLE", partitions=("gpu",)) for name in ("n1", "n2", "n3"))
    shell.fake.records.append(replace(shell.fake.records[-1], id=JobId(8), partition="gpu", node_count=1))


def test_a_job_of_one_node_goes_on_elsewhere_and_later_ticks_take_nothing_back(
    alone: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.settings(f"{SETTINGS}[act]\nenabled = true\n")
    assert alone.resil("submit").code == 0
    queue_one_more(alone)
    assert preflight.main(str(alone.run_dir)) == 75
    assert "will run without n1" in capsys.readouterr().out
    assert {str(one.id): one.excluded for one in alone.fake.records}["8"] == "n1"
    assert [path.name for path in (alone.run_dir / "checks").iterdir()] == ["7.jsonl"]
    alone.resil("watch", "job")
    assert {str(one.id): one.excluded for one in alone.fake.records}["8"] == "n1"
    (node,) = alone.resil("nodes", "--json").json["nodes"]
    assert (node["node"], node["state"]) == ("n1", "excluded")


def test_what_fails_on_each_single_node_of_a_run_is_not_the_nodes(
    alone: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone.settings(SETTINGS)
    assert alone.resil("submit").code == 0
    for number, job in ((1, "7"), (2, "8"), (3, "9"), (4, "10")):
        assert {one["state"] for one in alone.resil("nodes", "--json").json["nodes"]} <= {"excluded"}
        full = NodeReading(host=f"n{number}", readings={"mounts": {"/scratch": "No space left on device"}})
        monkeypatch.setattr(checking, "ask_here", lambda *_, full=full: full)
        monkeypatch.setenv("SLURM_JOB_ID", job)
        preflight.main(str(alone.run_dir))
    nodes = alone.resil("nodes", "--json").json["nodes"]
    assert len(nodes) == 4 and {one["state"] for one in nodes} == {"good"}


def test_bad_nodes_that_cannot_be_excluded_now_are_named_and_it_trains(
    alone: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.settings(f"{SETTINGS}[act]\nenabled = true\n")
    assert alone.resil("submit").code == 0
    alone.fake.trouble = DOWN
    assert preflight.main(str(alone.run_dir)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == "FAIL n1: mounts: /scratch: No space left on device"
    assert said[-1].startswith("n1 cannot be excluded from the queued jobs now: ") and "not checked" not in said[-1]
    assert said[-1].endswith(": the job trains here")


def test_a_job_that_is_still_to_be_queued_is_queued_without_the_bad_node(
    alone: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    """The batch shell queues it at the same time, and may be later than the check."""
    alone.settings(f"{SETTINGS}[act]\nenabled = true\nkeep_queued = 1\n")
    assert alone.resil("submit").code == 0
    alone.fake.cluster = tuple(Node(name, "IDLE", partitions=("gpu",)) for name in ("n1", "n2", "n3"))
    alone.fake.records[0] = replace(alone.fake.records[0], state=JobState.RUNNING, nodes="n1", partition="gpu")
    assert preflight.main(str(alone.run_dir)) == 75, capsys.readouterr().out
    assert len(alone.fake.submissions) == 2 and alone.fake.submissions[1].options["exclude"] == "n1"


def test_the_history_stays_short(shell: Shell, full: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "KEPT_LINES", 5)
    shell.settings(SETTINGS)
    assert shell.resil("submit").code == 0
    for _ in range(4):
        shell.resil("nodes", "check", "--with", "mounts")
    assert len((shell.run_dir.parent / "nodes" / "history.jsonl").read_text().splitlines()) <= 10


@pytest.mark.parametrize(
    ("bad", "has", "expected"),
    [
        ({"n2"}, "2 n1 n2 n3", (11, "n1,n3 these are left; the check failed: n2: mounts: /scratch: No space left on")),
        ({"n1", "n4"}, "3 n1 n2 n3 n4", (75, "the check before the start failed; job 8 will run without n[1,4]")),
    ],
)
def test_with_spares_the_job_starts_without_the_bad_node(
    bad: set[str], has: str, expected: tuple[int, str], shell: Shell, full: set[str],
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    full |= bad
    monkeypatch.setenv("RESIL_LEFT", has)
    code, last = before(shell, capsys)
    assert code == expected[0] and last.startswith(expected[1])
