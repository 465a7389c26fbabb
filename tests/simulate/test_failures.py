"""Where failures come from: the bundled rates, CSV files, published traces, the ledger of a run."""

from __future__ import annotations

import random
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.attempts.failure import Confidence, FailureClass
from resilience.attempts.failure import Failure as Classified
from resilience.attempts.ledger import LedgerRow
from resilience.errors import UsageError
from resilience.runs.attempts import AttemptEnd
from resilience.settings.sections import ActSettings
from resilience.simulate.failures import BUNDLED, Capacity, bundled, parse_failures, preemptions, trace_of_ledger
from resilience.simulate.scenario import DAY_S, Failure, Rate, Rates, Trace

RECORDED = Path(__file__).parents[1] / "recorded" / "gpus"
HOUR = 3600.0


def test_the_bundled_rates_are_those_of_their_sources() -> None:
    llama = bundled("llama3")
    assert sum(one.per_node_day for one in llama.rates) == pytest.approx(419 / 54 / 2048)
    assert llama.mtbf_s(2048) == pytest.approx(54 * DAY_S / 419)
    gpu = sum(one.per_node_day for one in llama.rates if one.kind is FailureClass.GPU_FAULT) * 54 * 2048
    assert gpu == pytest.approx(268), "the category GPU of the table"
    for name, per_node_day in (("rsc-1", 6.50e-3), ("rsc-2", 2.34e-3)):
        (rate,) = bundled(name).rates
        assert rate.kind is FailureClass.NODE_FAILURE and rate.per_node_day == pytest.approx(per_node_day)
    assert len(BUNDLED) == 3 and all("arXiv" in source for source in BUNDLED.values())


def test_arrivals_at_random_have_the_rates_and_the_nodes() -> None:
    rates = Rates((Rate(FailureClass.GPU_FAULT, 0.03), Rate(FailureClass.EXCEPTION, 0.01)))
    found = list(islice(rates.arrivals(100, random.Random(1)), 20_000))
    assert found[-1].at / len(found) == pytest.approx(DAY_S / 4, rel=0.03)
    of_gpus = [one for one in found if one.kind is FailureClass.GPU_FAULT]
    assert len(of_gpus) / len(found) == pytest.approx(0.75, rel=0.03)
    assert {one.node for one in of_gpus} == {f"n{number}" for number in range(100)}
    assert {one.node for one in found if one.kind is FailureClass.EXCEPTION} == {""}
    assert not list(Rates().arrivals(100, random.Random(1)))


def test_a_trace_begins_anywhere_and_again_after_its_end() -> None:
    trace = Trace((Failure(10.0, FailureClass.NETWORK), Failure(70.0, FailureClass.NETWORK)), 100.0)
    for seed in range(20):
        times = [one.at for one in islice(trace.arrivals(1, random.Random(seed)), 50)]
        gaps = [later - early for early, later in pairwise(times)]
        assert times[0] >= 0 and {round(gap) for gap in gaps} == {40, 60}


def test_a_csv_of_failures_is_read_in_any_order_with_words_for_times() -> None:
    text = "# of June\ntime,node,class,repair\n2h,,disk_full,90min\n3600,n7,gpu_fault,\n\n2d,,,\n"
    expected = (Failure(HOUR, FailureClass.GPU_FAULT, "n7"), Failure(2 * HOUR, FailureClass.DISK_FULL, "", 5400.0))
    assert parse_failures(text, "x") == Trace(expected, 2 * DAY_S)


def test_dates_count_from_the_first_row() -> None:
    for first, second in (("2026-06-01T00:00:00+00:00", "2026-06-02T00:00:00+00:00"), ("1780272000", "1780358400")):
        found = parse_failures(f"time,node,class\n{first},,\n{second},n1,network\n", "x")
        assert found == Trace((Failure(DAY_S, FailureClass.NETWORK, "n1"),), DAY_S)


def test_a_csv_of_rates_is_summed_up_by_class() -> None:
    text = "class,failures,node_days,repair\nnetwork,3,1000,\nnetwork,1,1000,\nnetwork,1,1000,8h\nexception,0,10,\n"
    found = parse_failures(text, "x")
    assert found == Rates((Rate(FailureClass.NETWORK, 0.004), Rate(FailureClass.NETWORK, 0.001, 8 * HOUR)))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "f.csv is empty"),
        ("# nothing\n", "f.csv is empty"),
        ("a,b,c\n1,2,3\n", "begins with 'a,b,c'"),
        ("time,node,class\n5,n1,gpu_falt\n", "line 2: 'gpu_falt' is no class of failures"),
        ("time,node,class\n5,n1,finished\n", "line 2: 'finished' is no class of failures"),
        ("#\ntime,node,class\n5,n1,network\nsoon,n1,network\n", "line 4: 'soon' is not a duration"),
        ("time,node,class\n-5,n1,network\n", "line 2: '-5'"),
        ("time,node,class\n5\n", "line 2: there is no column 'class'"),
        ("time,node,class,repair\n5,,network,-1\n", "line 2: '-1' is negative"),
        ("time,node,class\n", "f.csv has no length"),
        ("time,node,class\n2026-06-01,n1,network\n", "f.csv has no length"),
        ("class,failures,node_days\nnetwork,many,1\n", "line 2: 'many' is not a number"),
        ("class,failures,node_days\nnetwork,1,0\n", "line 2: failures are at least 0"),
        ("Time,GPUs\n1,5\n", "f.csv has no length"),
        ("Time,GPUs\n1,5\n2,nan\n", "line 3: 'nan' is not a number"),
        ("Time,GPUs\n1,5\n2,-5\n", "line 3: '-5' GPUs"),
        ("0,add,n1\n5,lost,n1\n", "line 2: 'lost' is neither add nor remove"),
        (f"time,node,class\n5,{'n' * 140_000},network\n", "f.csv is no CSV"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(text: str, error: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_failures(text, "f.csv")
    assert error in refused.value.message


CELL = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["1", "-1", "1e300", "2h", "2026-06-01", "network", "n1", "", '"', "add", "remove", "nan", "1e9"]),
)
HEADS = ["time,node,class,repair\n", "class,failures,node_days,repair\n", ",Time,GPUs\n", "0,add,n1\n", "", "\ufeff#\n"]


@given(st.sampled_from(HEADS), st.lists(st.lists(CELL, max_size=5).map(",".join), max_size=5).map("\n".join))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(head: str, text: str) -> None:
    try:
        found = parse_failures(head + text, "f.csv")
    except UsageError as error:
        assert error.message.startswith("f.csv")
        return
    if isinstance(found, Capacity):
        assert found.length_s > 0
    else:
        assert found.mtbf_s(4) > 0


# ---- published traces -----------------------------------------------------------------------------------------------


def published(name: str, gpus_per_node: int = 1) -> Capacity:
    found = parse_failures((RECORDED / name).read_text(), name, gpus_per_node)
    assert isinstance(found, Capacity)
    return found


def test_the_traces_of_pccheck_and_bamboo_are_read() -> None:
    pccheck = published("pccheck.csv")
    assert pccheck.length_s == pytest.approx(13_482) and pccheck.most == 56 and pccheck.points[-1][1] == 0
    bamboo = published("bamboo-p3.csv", gpus_per_node=4)
    assert bamboo.points[-1][1] == 4 * (177 - 167) and bamboo.most == 4 * 32
    assert bamboo.length_s == pytest.approx(40_920)


def test_a_job_waits_while_there_are_too_few_gpus_and_may_be_hit_while_there_are_enough() -> None:
    capacity = Capacity(((0.0, 8), (10.0, 6), (20.0, 3), (30.0, 2), (50.0, 5), (60.0, 4), (90.0, 9)))
    found = preemptions(capacity, 2, 2).failures
    kind = FailureClass.PREEMPTED
    assert found == (
        Failure(10.0, kind, share=1 - 1 / 2),  # one node of four: with probability 1/2 one of our two
        Failure(20.0, kind, lasts_s=30.0),
        Failure(30.0, kind, lasts_s=20.0),
        Failure(60.0, kind, share=1 - 1 / 3),  # one of three nodes, one of them in part
    )
    later = preemptions(Capacity(((0.0, 2), (40.0, 4), (90.0, 4))), 2, 2)
    assert later.failures == (Failure(0.0, kind, lasts_s=40.0),), "too few from the beginning"
    with pytest.raises(UsageError, match="at most 9 GPUs, and the job needs 20"):
        preemptions(capacity, 10, 2)


# ---- the ledger of a run --------------------------------------------------------------------------------------------


def row(
    number: int, end: float | None, kind: FailureClass | None, *, durable: int | None = None, host: str = ""
) -> LedgerRow:
    failure = None
    if kind is not None:
        failure = Classified(
            failure=kind, confidence=Confidence.LIKELY, reason="why", fingerprint=kind.value, host=host
        )
    return LedgerRow(
        attempt=number, job=str(number), start_time=1000.0 * number, end_time=end, end=AttemptEnd.EXITED, exit_code=1,
        first_step=1, last_step=5, durable_step=durable, failure=failure,
    )  # fmt: skip


def test_a_ledger_is_replayed_and_a_crash_loop_in_it_is_one_cause_that_lasted() -> None:
    rows = [
        row(1, 1900.0, FailureClass.GPU_FAULT, durable=10, host="n7.cluster"),
        row(2, 2900.0, FailureClass.EXCEPTION, durable=20),
        row(3, 3100.0, FailureClass.EXCEPTION),
        row(4, 4100.0, FailureClass.EXCEPTION),
        row(5, 5900.0, FailureClass.WALLTIME, durable=30),
        row(6, 6900.0, FailureClass.EXCEPTION, durable=40),
        row(7, None, None),
    ]
    found = trace_of_ledger(rows, 9000.0, ActSettings())
    assert found is not None and found.length_s == 8000.0
    assert found.failures == (
        Failure(900.0, FailureClass.GPU_FAULT, "n7"),
        Failure(1900.0, FailureClass.EXCEPTION, "", 1200.0),
        Failure(5900.0, FailureClass.EXCEPTION),
    )
    assert trace_of_ledger([], 9000.0, ActSettings()) is None
