"""What a job of the scheduler's chain is told, and what it writes down of its successors."""

from __future__ import annotations

import pytest

from resilience.cron.chain import Words, chain_record, parse_words
from resilience.cron.drivers._slurm.keeper import Kept
from resilience.cron.records import Outcome, RunRecord
from resilience.errors import UsageError
from tests.lab.fakes import NOW

TROUBLE = Kept(1, problem="sbatch refused: QOSMaxSubmitJobPerUserLimit")


def test_the_batch_scripts_words_are_understood() -> None:
    words = ["--token", "abc", "--scheduler", "slurm", "--slot", "1800000000"]
    assert parse_words(words) == Words("abc", "slurm", 1_800_000_000)
    assert parse_words(["--token", "abc", "--scheduler", "local", "--slot", ""]).slot == 0


@pytest.mark.parametrize("words", [[], ["--help"], ["--scheduler", "slurm"], ["--token", "a", "--more", "b"]])
def test_a_manual_call_is_refused_with_a_hint(words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        parse_words(words)
    assert "resil cron install" in refused.value.hint


def records(*kept: Kept, every_s: float = 300) -> list[RunRecord]:
    """What is written of one look after the other."""
    written: list[RunRecord] = []
    for number, look in enumerate(kept):
        record = chain_record(written, look, NOW + number * every_s, "n1", "88")
        written += [] if record is None else [record]
    return written


def test_an_error_is_recorded_once_an_hour_and_its_end_once() -> None:
    written = records(Kept(2), *[TROUBLE] * 13, Kept(2), Kept(2))
    assert [record.outcome for record in written] == [Outcome.REFUSED, Outcome.REFUSED, Outcome.DONE]
    assert "QOSMaxSubmit" in written[0].summary
    assert "1 queued" in written[0].summary


def test_a_different_error_is_recorded_at_once() -> None:
    other = Kept(None, problem="squeue did not answer")
    assert [record.summary.rpartition(": ")[2] for record in records(TROUBLE, other, TROUBLE)] == [
        "QOSMaxSubmitJobPerUserLimit", "squeue did not answer", "QOSMaxSubmitJobPerUserLimit"
    ]  # fmt: skip


def test_a_failure_recorded_by_bash_ends_with_the_first_job_that_works() -> None:
    broken = RunRecord(name="scheduler", slot=int(NOW) + 5, outcome=Outcome.FAILED, time=NOW)
    over = chain_record([broken], Kept(2), NOW, "n1", "88")
    assert over is not None
    assert (over.outcome, over.slot) == (Outcome.DONE, int(NOW) + 6)
