"""`resil watch ranks`: a table of what it says, and what it reads and keeps."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.errors import SettingsError
from resilience.nodes.evidence import Source, evidence_folder
from resilience.ranks.stragglers import Straggler
from resilience.records import from_record, to_record
from resilience.runs.project import Project
from resilience.runs.submit import perform, prepare
from resilience.runs.submit_plan import SubmitRequest
from resilience.watch.checks.ranks import CHECK, RanksReading, RanksSettings
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import context_of
from tests.cli.test_ranks import write_beats
from tests.lab.fakes import NOW, FakeScheduler, make_project
from tests.watch.checks.outcome import outcome

WELL = RanksReading(ranks=8, step_s=1.0, hosts="n[1-4]")
SLOW = Straggler((3,), "n2", 1.3, "rank 3 on n2 takes 1.30 times as long as the median rank, last in 9 of 10 windows")


@pytest.mark.parametrize(
    ("readings", "expected", "says"),
    [
        ([WELL], ["OK"], "1 s per step, no rank makes the others wait"),
        ([replace(WELL, nothing="3 of 10 windows")], ["OK"], "3 of 10 windows"),
        ([replace(WELL, stragglers=(SLOW,))], ["WARNING straggler"], "rank 3 on n2 takes 1.30 times as long"),
        ([replace(WELL, stragglers=(replace(SLOW, factor=3.0),))], ["CRITICAL straggler"], "rank 3 on n2"),
        ([WELL] * 4 + [replace(WELL, step_s=1.2, hosts="n[1-3,9]")] * 2, ["WARNING slower"], "new since then: n9"),
        (
            [WELL] * 4 + [replace(WELL, step_s=3.5)] * 2,
            ["CRITICAL slower"],
            "3.50 times as long as the 1 s it took before",
        ),
        ([WELL] * 4 + [replace(WELL, step_s=1.2, ranks=4)] * 2, ["OK"], "1.2 s per step"),
        (
            [WELL] * 4 + [replace(WELL, step_s=1.2, stragglers=(SLOW,))] * 2,
            ["WARNING straggler", "WARNING slower"],
            "rank 3",
        ),
        (
            [WELL] * 4 + [replace(WELL, step_s=1.2)] * 2 + [RanksReading(nothing="it does not train")],
            ["OK"],
            "not train",
        ),
        (
            [WELL, RanksReading(), WELL, RanksReading(), WELL, *[replace(WELL, step_s=1.2)] * 2],
            ["WARNING slower"],
            "1.20",
        ),
    ],
)
def test_what_it_says(readings: list[RanksReading], expected: list[str], says: str) -> None:
    stored = [from_record(RanksReading, json.loads(json.dumps(to_record(one)))) for one in readings]
    series = [Timed(3600.0 * n, one) for n, one in enumerate(stored)]
    found = CHECK.judge("gpt", series, RanksSettings(), 0.0)
    assert [outcome(one) for one in found] == expected and says in found[0].summary


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = make_project(tmp_path, FakeScheduler(), '[run]\nname = "gpt"\ncommand = "python train.py"\n')
    perform(project, prepare(project, SubmitRequest(run="gpt")))
    return project


def look(project: Project, *runs: str) -> dict[str, RanksReading]:
    context, settings = context_of(project), RanksSettings(runs=runs)
    (target,) = CHECK.targets(settings, context)
    return dict(CHECK.probe(target, settings, context, {}))


def test_it_reads_the_heartbeats_and_keeps_the_node_as_evidence_once(project: Project) -> None:
    directory = project.directory("gpt")
    write_beats(directory.path, slow=3)
    for path in (directory.path / "beats").iterdir():
        os.utime(path, (NOW, NOW))
    for _ in range(2):
        reading = look(project)["gpt"]
        assert (reading.ranks, reading.hosts, reading.nothing) == (4, "n[1-2]", "")
        assert reading.step_s == pytest.approx(1.1)
        assert [(one.ranks, one.host) for one in reading.stragglers] == [((3,), "n2")]
    (one,) = evidence_folder(project).read(NOW).evidence
    assert (one.node, one.source, one.run, one.why) == ("n2", Source.SLOW, "gpt", reading.stragglers[0].why)


def test_equal_ranks_are_no_evidence(project: Project) -> None:
    directory = project.directory("gpt")
    write_beats(directory.path, slow=-1)
    for path in (directory.path / "beats").iterdir():
        os.utime(path, (NOW, NOW))
    assert look(project)["gpt"].stragglers == () and evidence_folder(project).read(NOW).evidence == ()


def test_runs_that_do_not_train_are_told_as_such(project: Project) -> None:
    assert look(project) == {"gpt": RanksReading(nothing="no heartbeat: it does not train now, or has no guard")}
    (project.directory("gpt").path / "finished").write_text("")
    assert look(project, "gpt") == {"gpt": RanksReading(nothing="it is finished")}
    assert look(project) == {"runs": RanksReading(nothing="no run trains")}


def test_a_run_that_does_not_exist_is_unknown_and_not_well(project: Project) -> None:
    reading = look(project, "gtp", "gpt")["gtp"]
    (found,) = CHECK.judge("gtp", [Timed(0.0, reading)], RanksSettings(), 0.0)
    assert outcome(found) == "UNKNOWN missing" and found.summary.startswith("there is no such run in ")


@pytest.mark.parametrize(("degraded", "failed"), [(1.0, 3.0), (4.0, 3.0), (1.1, float("nan"))])
def test_factors_out_of_order_are_refused(degraded: float, failed: float, project: Project) -> None:
    with pytest.raises(SettingsError, match="must be more than 1"):
        CHECK.targets(RanksSettings(degraded=degraded, failed=failed), context_of(project))
