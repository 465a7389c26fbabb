"""`resil watch nodes`: a table of what it says of each reading, and what it reads of a cluster."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.cluster import Node
from resilience.errors import SchedulerUnavailable, SettingsError
from resilience.job import JobState
from resilience.nodes.evidence import Evidence, Source, evidence_folder
from resilience.records import from_record, to_record
from resilience.runs.project import Project
from resilience.runs.submit import perform, prepare
from resilience.runs.submit_plan import SubmitRequest
from resilience.system.ports import SystemClock
from resilience.watch.checks.nodes import CHECK, NodesReading, NodesSettings, judge_reading
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import context_of
from tests.lab.fakes import DOWN, ME, NOW, FakeScheduler, make_project
from tests.nodes import fake_srun
from tests.watch.checks.outcome import outcome

SETTINGS = '[run]\nname = "gpt"\ncommand = "python train.py"\n[act]\nenabled = true\n'
WELL = NodesReading(partition="gpu", needed=4, total=8, usable=7, idle=2)


@pytest.mark.parametrize(
    ("seen", "expected", "says"),
    [
        (WELL, ["OK"], "3 nodes to spare: 7 of 8 nodes of partition gpu usable, 2 idle"),
        (replace(WELL, usable=5), ["OK"], "1 node to spare"),
        (replace(WELL, usable=4), ["WARNING no-spares"], "0 nodes to spare: 4 of 8"),
        (replace(WELL, usable=4, total=4), ["OK"], "0 nodes to spare: 4 of 4"),
        (replace(WELL, usable=3), ["CRITICAL no-nodes"], "the job cannot start: it needs 4 nodes; 3 of 8"),
        (replace(WELL, usable=3, is_running=True), ["WARNING no-nodes"], "the next job cannot start"),
        (replace(WELL, avoided=("n7",)), ["OK"], "1 excluded (n7)"),
        (
            replace(WELL, lost={"n3": "idle, drain (fan)"}),
            ["WARNING taken-away"],
            "its running job loses n3: idle, drain (fan)",
        ),
        (replace(WELL, beyond={"n7": "no other is left"}), ["WARNING not-excluded"], "n7: no other is left"),
        (replace(WELL, usable=1, lost={"n3": "down"}), ["CRITICAL no-nodes", "WARNING taken-away"], "needs 4"),
        (NodesReading(nothing="it has no job"), ["OK"], "it has no job"),
    ],
)
def test_what_it_says(seen: NodesReading, expected: list[str], says: str) -> None:
    found = judge_reading("gpt", seen, NodesSettings())
    assert [outcome(one) for one in found] == expected and says in found[0].summary


def test_how_many_are_few_is_a_setting() -> None:
    assert outcome(judge_reading("gpt", WELL, NodesSettings(warn_spares=4))[0]) == "WARNING no-spares"
    assert outcome(judge_reading("gpt", replace(WELL, usable=4), NodesSettings(warn_spares=0))[0]) == "OK"


@pytest.fixture
def queue() -> FakeScheduler:
    cluster = tuple(Node(f"n{number}", "ALLOCATED", partitions=("gpu",)) for number in range(1, 7))
    return FakeScheduler(cluster=(*cluster, Node("n9", "IDLE", partitions=("cpu",))))


@pytest.fixture
def project(tmp_path: Path, queue: FakeScheduler) -> Project:
    project = make_project(tmp_path, queue, SETTINGS)
    perform(project, prepare(project, SubmitRequest(run="gpt")))
    queue.records[0] = replace(queue.records[0], partition="gpu", node_count=4)
    return project


def look(project: Project, *runs: str) -> NodesReading:
    context, settings = context_of(project), NodesSettings(runs=runs)
    (target,) = CHECK.targets(settings, context)
    (reading,) = CHECK.probe(target, settings, context, {}).values()
    return reading


def test_it_counts_the_nodes_of_the_partition_and_names_those_that_are_taken_away(
    project: Project, queue: FakeScheduler
) -> None:
    assert look(project) == NodesReading(partition="gpu", needed=4, total=6, usable=6)
    queue.records[0] = replace(queue.records[0], state=JobState.RUNNING, nodes="n[1-4]")
    queue.cluster = (replace(queue.cluster[0], flags=("DRAIN",), reason="fan"), *queue.cluster[1:])
    reading = look(project)
    assert (reading.usable, reading.lost, reading.is_running) == (5, {"n1": "allocated, drain (fan)"}, True)
    assert queue.calls[-2:] == ["jobs", "nodes"]


def test_bad_nodes_beyond_the_cap_are_named_unless_nothing_would_be_excluded(
    project: Project, queue: FakeScheduler
) -> None:
    evidence = [
        Evidence(node=f"n{number}", time=NOW - number, source=Source.CHECK, why="full", about=f"{number}")
        for number in (5, 6)
    ]
    evidence_folder(project).add(evidence, NOW)
    assert look(project).beyond == {"n5": "1 node of 6 may be excluded"}
    (project.directory("gpt").path / "run.toml").write_text("[act]\nenabled = false\n")
    assert look(project).beyond == {}


def test_nodes_that_the_user_excludes_are_not_to_spare(tmp_path: Path, queue: FakeScheduler) -> None:
    project = make_project(tmp_path, queue, SETTINGS)
    perform(project, prepare(project, SubmitRequest(run="gpt", exclude="n[1-2]", avoid="n3")))
    queue.records[0] = replace(queue.records[0], partition="gpu", node_count=4)
    reading = look(project)
    assert (reading.usable, reading.avoided) == (4, ("n1", "n2")), "n3 is good again"


def test_a_run_without_a_job_or_that_is_finished_needs_no_nodes(project: Project, queue: FakeScheduler) -> None:
    queue.records.clear()
    assert look(project).nothing == "it has no job" and queue.calls[-1] == "jobs"
    assert look(project, "bert").nothing == "it has no job in a cluster"
    (project.directory("gpt").path / "finished").write_text("")
    assert look(project).nothing == "no run has a job in a cluster"


def test_without_an_answer_nothing_is_known(project: Project, queue: FakeScheduler) -> None:
    queue.troubles["nodes"] = DOWN
    with pytest.raises(SchedulerUnavailable):
        look(project)


def test_a_negative_number_of_spares_is_refused(project: Project) -> None:
    with pytest.raises(SettingsError, match="must be at least 0"):
        CHECK.targets(NodesSettings(warn_spares=-1), context_of(project))


# ---- on every node --------------------------------------------------------------------------------------------------

LOCAL = '[watch.nodes]\nlook = ["local"]\n[watch.local]\nkind = "fs"\npaths = ["{path}"]\n'


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `srun` that runs the tasks here."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_srun.__file__} "$@" </dev/null\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(fake_srun.__file__).parents[2]))


def running(tmp_path: Path, queue: FakeScheduler, path: str) -> tuple[Project, NodesSettings]:
    project = make_project(tmp_path, queue, SETTINGS + LOCAL.format(path=path), clock=SystemClock())
    perform(project, prepare(project, SubmitRequest(run="gpt")))
    queue.records[0] = replace(
        queue.records[0], state=JobState.RUNNING, nodes="n[1-3]", partition="gpu", node_count=3, user=ME
    )
    return project, NodesSettings(look=("local",))


def told(project: Project, settings: NodesSettings) -> dict[str, str]:
    context = context_of(project)
    (target,) = CHECK.targets(settings, context)
    ((subject, reading),) = CHECK.probe(target, settings, context, {}).items()
    stored = from_record(NodesReading, json.loads(json.dumps(to_record(reading))))
    found = CHECK.judge(subject, [Timed(0.0, stored)], settings, 0.0)
    return {one.subject: f"{outcome(one)}: {one.summary}" for one in found}


def test_a_watchdog_looks_on_every_node_and_a_node_without_an_answer_is_unknown(
    tmp_path: Path, queue: FakeScheduler, srun: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, settings = running(tmp_path, queue, str(tmp_path))
    monkeypatch.setenv("PLANT_n2", "exit 1")
    said = told(project, settings)
    assert {subject: text.split(":")[0] for subject, text in said.items()} == {
        "gpt": "UNKNOWN no-answer", f"n1:{tmp_path}": "OK", f"n3:{tmp_path}": "OK",
    }  # fmt: skip
    assert "not looked on n2: " in said["gpt"]


def test_what_srun_says_is_one_line_and_jobs_that_end_are_not_looked_at(
    tmp_path: Path, queue: FakeScheduler, srun: None
) -> None:
    project, settings = running(tmp_path, queue, str(tmp_path))
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\nprintf 'srun: error: no\nsrun: Check it\n' >&2; exit 1\n")
    assert told(project, settings)["gpt"].endswith("not looked on n[1-3]: srun: error: no srun: Check it")
    queue.records[0] = replace(queue.records[0], state=JobState.COMPLETING)
    assert "not looked" not in told(project, settings)["gpt"]


def test_a_fault_of_a_nodes_own_disk_has_its_name(tmp_path: Path, queue: FakeScheduler, srun: None) -> None:
    project, settings = running(tmp_path, queue, str(tmp_path / "gone"))
    said = told(project, settings)
    bad = {subject: text for subject, text in said.items() if not text.startswith("OK")}
    assert set(bad) == {f"n{number}:{tmp_path}/gone" for number in (1, 2, 3)}, said


def test_nobody_looks_in_jobs_of_others(tmp_path: Path, queue: FakeScheduler, srun: None) -> None:
    project, settings = running(tmp_path, queue, str(tmp_path))
    context = context_of(project)
    queue.records[0] = replace(queue.records[0], user="bob")
    queue.me = "bob"
    (reading,) = CHECK.probe(CHECK.targets(settings, context)[0], settings, context, {}).values()
    assert reading.nothing == "it has no job" or "belongs to bob" in reading.unseen[0]


def test_it_does_not_run_itself(project: Project) -> None:
    with pytest.raises(SettingsError, match="cannot run itself"):
        CHECK.targets(NodesSettings(look=("nodes",)), context_of(project))
