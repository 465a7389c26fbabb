"""Regression tests for the faults of the replaced watchdog, slurm-status.py of BigScience and ml-engineering.

They use the real SLURM client on recorded squeue rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from resilience.finding import Finding
from resilience.job import JobState
from resilience.schedulers.slurm import Slurm
from resilience.system.process import CommandFailed, Completed
from resilience.watch.checks._job.probe import queue_subject
from resilience.watch.checks.job import CHECK
from tests.lab.fakes import NOW, FakeClock, FakeScheduler
from tests.schedulers.answers import row as squeue_row
from tests.watch.checks.job.stage import CRITICAL, OK, UNKNOWN, WARNING, Stage

LONG = "tr11-176B-exp1-a-name-that-is-far-longer-than-the-forty-characters-of-squeue"


def row(**columns: str) -> str:
    """Return a row of a job that started an hour ago and has 19 h left."""
    times = {"StartTime": str(int(NOW) - 3600), "EndTime": str(int(NOW) + 19 * 3600)}
    return squeue_row(**(times | columns))


@dataclass
class Squeue:
    """A runner whose squeue prints these rows; every other client fails."""

    rows: list[str] = field(default_factory=list)
    error: str = ""
    asked: list[Sequence[str]] = field(default_factory=list)

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        self.asked.append(argv)
        return Completed(tuple(argv), 1, "", "slurm_load_ctl_conf error: Unable to contact slurm controller")

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        self.asked.append(argv)
        if self.error:
            raise CommandFailed(Completed(tuple(argv), 1, "", self.error))
        yield from (line for text in self.rows for line in text.split("\n"))


@dataclass
class Night:
    """One project beside a cluster, and its findings."""

    stage: Stage
    squeue: Squeue

    def tick(self, *rows: str, **settings: Any) -> list[Finding]:
        self.squeue.rows = list(rows)
        return self.stage.tick(**settings)

    def faults(self, name: str, *rows: str, **settings: Any) -> dict[str, Any]:
        found = self.tick(*rows, names=(f"={name}",), **settings)
        return {f.fault: f.verdict for f in found if f.subject != queue_subject("slurm")}


@pytest.fixture
def night(tmp_path: Path) -> Night:
    squeue, stage = Squeue(), Stage(tmp_path, FakeScheduler(name="slurm"))
    stage.project._clients["slurm"] = Slurm(clock=FakeClock(), runner=squeue, environ={})
    return Night(stage, squeue)


def test_a_group_without_members_does_not_query_an_empty_user(night: Night) -> None:
    """30: `getent group` without members made a malformed `squeue --user=`."""
    night.tick(row(Name="gpt"), names=("gpt",), users=())
    (argv,) = night.squeue.asked
    assert "--me" in argv and not any(word.startswith("--user") for word in argv)


def test_any_colleagues_job_can_be_watched(night: Night) -> None:
    """30: whichever member of the group submitted it."""
    night.tick(row(Name="gpt", UserName="bob"), names=("gpt",), users=("bob", "ann"))
    assert "--user=ann,bob" in night.squeue.asked[0]


@pytest.mark.parametrize("rows", [[], ["12"]])
def test_exit_codes_distinguish_alive_from_dead(night: Night, rows: list[str]) -> None:
    """33: the exit code was 0 in both cases."""
    faults = night.faults("gpt", *(row(JobArrayID=number, Name="gpt") for number in rows))
    assert faults == ({"": OK} if rows else {"not-queued": CRITICAL})


def test_the_watchdogs_own_job_of_the_same_name_is_not_the_training(tmp_path: Path, night: Night) -> None:
    """35: the published example finds itself RUNNING and can never alert."""
    environ = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "tr11-176B-ml"}
    inside = Stage(tmp_path, night.stage.queue, environ=environ)
    inside.project._clients["slurm"] = Slurm(clock=FakeClock(), runner=night.squeue, environ={})
    faults = Night(inside, night.squeue).faults("tr11-176B-ml", row(JobArrayID="4711", Name="tr11-176B-ml"))
    assert faults == {"own-name": WARNING, "not-queued": CRITICAL}


def test_names_longer_than_forty_characters_are_found(night: Night) -> None:
    """37: `%.40j` cut them, so that they never were equal: an alert for ever."""
    assert night.faults(LONG, row(Name=LONG)) == {"": OK}
    assert night.faults(LONG[:40], row(Name=LONG)) == {"not-queued": CRITICAL}


def test_a_name_that_only_contains_the_watched_one_is_another(night: Night) -> None:
    """31: lines were picked by substring first."""
    assert night.faults("gpt", row(Name="gpt-eval")) == {"not-queued": CRITICAL}


def test_states_are_not_cut_to_eight_letters(night: Night) -> None:
    """37, 40: COMPLETI, CONFIGUR and SUSPENDE were `fix me`, and counted as alive."""
    shown = {state: night.faults("gpt", row(Name="gpt", State=state)) for state in ("CONFIGURING", "SUSPENDED")}
    assert shown["CONFIGURING"] == {"configuring": WARNING}
    assert shown["SUSPENDED"] == {"suspended": WARNING}
    ending = row(Name="gpt", State="COMPLETING", EndTime=str(int(NOW) - 1000))
    assert night.faults("gpt", ending) == {"ends-soon": WARNING, "completing": WARNING}


def test_array_expressions_are_not_cut(night: Night) -> None:
    """37: `%.10i` showed `591970_[2-`."""
    pending = row(JobArrayID="591970_[2-1000%1]", State="PENDING", ArrayTaskID="2-1000%1", Name="gpt", StartTime="N/A",
                  EndTime="N/A", Reason="JobArrayTaskLimit")  # fmt: skip
    finding = night.tick(pending, names=("gpt",))[0]
    assert finding.verdict is OK and "591970_[2-1000%1]" in finding.summary and "999 jobs pending" in finding.summary


@pytest.mark.parametrize("name", ["a b", " ", "", "a\nb", "x\t y", "%j %T", "a|b"])
def test_names_with_blanks_do_not_break_the_reading(night: Night, name: str) -> None:
    """38: a row with other than eight words raised ValueError, and no alert was sent."""
    other = row(JobArrayID="13", Name=name)
    assert night.faults("gpt", other) == {"not-queued": CRITICAL}
    assert night.faults("gpt", other, row(Name="gpt")) == {"": OK}
    assert night.faults("gpt", other) == {"not-queued": UNKNOWN}, "just seen, and no second source confirms its end"


def test_a_controller_that_is_down_is_neither_a_dead_job_nor_ok(night: Night) -> None:
    """39: squeue's failure ended the watchdog before any alert, and `| tee` hid its exit code."""
    night.squeue.error = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    verdicts = []
    for _ in range(4):
        (finding,) = night.tick(names=("gpt",), unknown_critical_after_s=1800.0)
        verdicts.append(finding.verdict)
        night.stage.wait(900)
    assert verdicts == [UNKNOWN, UNKNOWN, CRITICAL, CRITICAL]
    assert finding.fault == "unreachable" and finding.advice


def test_an_answer_that_is_not_squeues_proves_nothing(night: Night) -> None:
    """39: a wrapper's banner, or a row that was cut, must not read as an empty queue."""
    for broken in ("Welcome to the cluster!", row(Name="gpt")[:40]):
        (finding,) = night.tick(broken, names=("gpt",))
        assert (finding.verdict, finding.fault) == (UNKNOWN, "unreachable")


@pytest.mark.parametrize(
    "reason",
    ["JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "BadConstraints", "PartitionDown", "JobLaunchFailure",
     "InvalidAccount", "InvalidQOS", "AssocGrpCpuLimit", "AssocGrpGRESMinutes", "launch failed requeued held",
     "ReqNodeNotAvail, UnavailableNodes:n[1-3]", "ReqNodeNotAvail(Unavailable:n1)"],
)  # fmt: skip
def test_a_job_that_can_never_start_is_not_healthy(night: Night, reason: str) -> None:
    """40: all of these were `waiting to be scheduled`."""
    waiting = row(State="PENDING", Name="gpt", StartTime="N/A", EndTime="N/A", NodeList="", Reason=reason)
    assert list(night.faults("gpt", waiting)) == ["will-never-start"]


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "SUSPENDED", "RESV_DEL_HOLD"])
def test_a_state_without_progress_is_not_healthy(night: Night, state: str) -> None:
    """40: these printed `fix me` and counted as alive."""
    assert OK not in night.faults("gpt", row(Name="gpt", State=state)).values()


def test_scheduled_is_not_enough_where_it_must_run(night: Night) -> None:
    """42: on a dedicated allocation a training that waits is a fault."""
    waiting = row(State="PENDING", Name="gpt", StartTime="N/A", EndTime="N/A", NodeList="", Reason="Priority",
                  SubmitTime=str(int(NOW)))  # fmt: skip
    assert night.faults("gpt", waiting, require="running", max_pending_s=600.0) == {"": OK}
    night.stage.wait(600)
    assert night.faults("gpt", waiting, require="running", max_pending_s=600.0) == {"pending-too-long": CRITICAL}


def test_a_name_may_be_a_pattern(night: Night) -> None:
    """44: requested in a comment of the original."""
    rows = row(Name="tr11-176B-ml"), row(JobArrayID="13", Name="tr12-1B")
    found = {f.subject: f.verdict for f in night.tick(*rows, names=("tr11-*", "/1B$/", "tr13*"))}
    assert found == {"tr11-*": OK, "/1B$/": OK, "tr13*": CRITICAL, queue_subject("slurm"): OK}


def test_a_start_in_the_past_is_no_negative_time(night: Night) -> None:
    """44: it printed `scheduled to start in -1 day, 23:59:00`."""
    waiting = row(
        State="PENDING", Name="gpt", StartTime=str(int(NOW) - 60), EndTime="N/A", NodeList="", Reason="Resources"
    )
    finding = night.tick(waiting, names=("gpt",))[0]
    assert "due to start now" in finding.summary and " -" not in finding.summary


def test_every_state_of_slurm_has_a_finding(night: Night) -> None:
    for state in JobState:
        assert night.faults("gpt", row(Name="gpt", State=state.value)), state


def test_the_job_check_has_the_plugin_interface() -> None:
    assert CHECK.Settings() == CHECK.Settings() and CHECK.argument == "names" and CHECK.memory.count == 1
