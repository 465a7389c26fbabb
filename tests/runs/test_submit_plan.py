"""What a submit hands to the scheduler follows from the request and the settings alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilience.errors import UsageError
from resilience.job import JobId
from resilience.runs.submit_plan import SubmitPlan, SubmitRequest, plan_submit, split_signal
from resilience.settings.sections import RunSettings, Settings, SubmitSettings


def plan(request: dict[str, Any] | None = None, logs: str = "/logs", **settings: Any) -> SubmitPlan:
    return plan_submit(SubmitRequest(run="gpt", **(request or {})), Settings(run=RunSettings(), **settings), logs)


OPTIONS: list[tuple[dict[str, Any], dict[str, str | None]]] = [
    ({}, {}),
    ({"array": "10"}, {"array": "1-10%1"}),
    ({"array": "1-10%3"}, {"array": "1-10%3"}),
    ({"chain": 3}, {}),
    ({"dependency": "12"}, {"dependency": "afterany:12"}),
    ({"after": JobId(12, 3)}, {"dependency": "afterany:12"}),
    ({"after": JobId(12), "dependency": "afterok:9"}, {"dependency": "afterany:12,afterok:9"}),
    ({"exclude": "n[1-3]", "time": "1:00:00", "begin": "now+1hour"},
     {"exclude": "n[1-3]", "time": "1:00:00", "begin": "now+1hour"}),
    ({"hold": True}, {"hold": None}),
    ({"signal": "B:USR2@120"}, {"signal": "B:USR2@120"}),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "options"), OPTIONS, ids=lambda value: str(value)[:40])
def test_only_what_was_asked_for_goes_onto_the_command_line(
    request_: dict[str, Any], options: dict[str, str | None]
) -> None:
    assert plan(request_).options == options


def test_the_settings_array_counts_unless_a_chain_or_an_own_script_is_wanted() -> None:
    submit = SubmitSettings(array="5")
    assert plan(submit=submit).options == {"array": "1-5%1"}
    assert plan({"array": "2"}, submit=submit).options == {"array": "1-2%1"}
    assert plan({"chain": 2}, submit=submit).options == {}
    assert plan({"script": Path("x.sh")}, submit=submit).options == {}


def test_an_own_script_gets_no_directives() -> None:
    planned = plan({"script": Path("x.sh"), "script_args": ("--lr", "1")}, sbatch={"partition": "gpu", "time": "60"})
    assert (planned.directives, planned.time_limit_s) == ((), None)


def test_a_rendered_script_says_everything_by_itself() -> None:
    planned = plan({"array": "3"}, sbatch={"partition": "gpu", "exclusive": True, "oversubscribe": False, "nodes": 4})
    assert dict(planned.directives) == {
        "job-name": "gpt",
        "output": "/logs/gpt-%A_%a.out",
        "open-mode": "append",
        "signal": "B:USR1@300",
        "partition": "gpu",
        "exclusive": None,
        "nodes": "4",
    }
    assert dict(plan().directives)["output"] == "/logs/gpt-%j.out"


def test_a_percent_sign_in_the_path_is_no_field_of_the_file_name() -> None:
    assert dict(plan(logs="/100%j/logs").directives)["output"] == "/100%%j/logs/gpt-%j.out"


@pytest.mark.parametrize(
    ("requeue", "flags"), [(None, set()), (True, {"requeue"}), (False, {"no-requeue"})]
)  # fmt: skip
def test_whether_slurm_may_requeue_is_the_sites_business_unless_set(requeue: bool | None, flags: set[str]) -> None:
    names = {name for name, _ in plan(submit=SubmitSettings(requeue=requeue)).directives}
    assert names & {"requeue", "no-requeue"} == flags


def test_the_signal_that_slurm_sends_is_the_one_that_the_script_waits_for() -> None:
    planned = plan(submit=SubmitSettings(signal="sigusr2", signal_lead_s=90.7))
    assert (planned.signal, planned.signal_lead_s) == ("USR2", 90)
    assert dict(planned.directives)["signal"] == "B:USR2@90"
    asked = plan({"signal": "B:TERM@60"})
    assert (asked.signal, asked.signal_lead_s, dict(asked.directives)["signal"]) == ("TERM", 60, "B:TERM@60")


@pytest.mark.parametrize(("name", "table"), [("array", "[submit]"), ("signal", "[submit]")])
def test_what_resil_writes_itself_cannot_stand_among_sbatchs_options(name: str, table: str) -> None:
    """`array = 10` there would reach sbatch as one task of index 10; a signal there, the script would not wait for."""
    with pytest.raises(UsageError, match=f"{name} cannot stand in \\[sbatch\\]") as caught:
        plan(sbatch={name: 10})
    assert table in caught.value.hint


@pytest.mark.parametrize(
    ("request_", "sbatch", "limit_s"),
    [({"time": "90"}, {}, 5400), ({}, {"time": 90}, 5400), ({"time": "10"}, {"time": "90"}, 600), ({}, {}, None),
     ({}, {"time": "UNLIMITED"}, None), ({"time": "10", "script": Path("x")}, {}, 600)],
)  # fmt: skip
def test_the_time_limit_that_counts_is_known(
    request_: dict[str, Any], sbatch: dict[str, Any], limit_s: int | None
) -> None:
    assert plan(request_, sbatch=sbatch).time_limit_s == limit_s


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"chain": -1}, "would queue nothing"),
    ({"chain": 2, "array": "3"}, "two ways to the same end"),
    ({"script_args": ("x",)}, "script of your own"),
    ({"after": JobId(1), "dependency": "2?3"}, "any of"),
    ({"time": "soon"}, "not a SLURM time"),
    ({"array": "0"}, "would queue nothing"),
    ({"dependency": "x"}, "not a job id"),
    ({"signal": "B:USR1@70000"}, "65535"),
]


@pytest.mark.parametrize(("request_", "why"), CONTRADICTIONS)
def test_a_request_that_contradicts_itself_is_refused(request_: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        plan(request_)
    assert caught.value.hint


@pytest.mark.parametrize(
    "word", ["--array=5", "--array", "--arr=5", "-a5", "-a", "-d1", "--dependency=1", "--comment=x", "--comm=x",
             "--parsable", "--test-only"],
)  # fmt: skip
def test_what_resil_itself_tells_sbatch_cannot_be_undone_behind_its_back(word: str) -> None:
    with pytest.raises(UsageError, match="would undo") as caught:
        plan({"extra_args": ("--qos=high", word)})
    assert caught.value.hint


def test_every_other_flag_of_sbatch_is_passed_through() -> None:
    plan({"extra_args": ("--qos=high", "-A", "x", "--partition=a", "--deadline=x", "-N2", "--constraint=c")})


SIGNALS = [
    ("B:USR1@300", ("USR1", 300)),
    ("USR1@300", ("USR1", 300)),
    ("b:usr1@300", ("USR1", 300)),
    ("SIGTERM", ("TERM", 60)),
    ("R:10@5", ("10", 5)),
    (" B:HUP@0 ", ("HUP", 0)),
]


@pytest.mark.parametrize(("text", "meant"), SIGNALS)
def test_a_signal_is_read_as_sbatch_reads_it(text: str, meant: tuple[str, int]) -> None:
    assert split_signal(text) == meant


@pytest.mark.parametrize(
    "text",
    ["", "B:", "@30", "B:@30", "X:USR1@30", "USR1@", "USR1@-3", "USR1@soon", "USR1@65536", "USR1@\u0663", "USR1@\u00b2",
     "USR1@" + "9" * 5000, "B:B:USR1@1", "US R1", "USR1;reboot", "SIG"],
)  # fmt: skip
def test_what_is_no_signal_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        split_signal(text)
    assert "B:USR1@300" in caught.value.hint
