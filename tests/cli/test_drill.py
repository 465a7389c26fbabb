"""`resil drill`: its plan, its table, its exit codes, and when it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from resilience.drills import rehearse
from resilience.drills.rehearse import Result
from resilience.drills.words import Judgement, Outcome, Seen
from resilience.errors import SchedulerUnavailable
from tests.lab.shell import SETTINGS, Shell

SEEN = Seen(done="SIGKILL", step=30, durable=20, ranks=1, stopped_s=1.2, end="killed by SIGKILL", resumed_s=8.4,
            resumed_at=20, last_step=31, lost_bytes=2**20)  # fmt: skip


def result(name: str = "kill-rank", outcome: Outcome = Outcome.PASS, *, advice: str = "", seen: Seen = SEEN) -> Result:
    judgement = Judgement(outcome, f"{name} did", advice)
    return Result(name=name, drill=rehearse.find(name), judgement=judgement, seen=seen, seconds=12.0)


def plays(monkeypatch: pytest.MonkeyPatch, *results: Result) -> dict[str, Any]:
    """Let drills end with these results; what was asked for is in the answer."""
    asked: dict[str, Any] = {}

    def play(project: Any, facts: Any, chosen: Sequence[str], *, say: Any, **options: Any) -> Iterator[Result]:
        asked.update(options, chosen=tuple(chosen))
        say("queued 3 jobs")
        yield from results

    monkeypatch.setattr(rehearse, "rehearse", play)
    return asked


@pytest.fixture
def stored(shell: Shell) -> Shell:
    shell.settings(SETTINGS + '[checkpoints]\npath = "checkpoints"\n')
    return shell


def test_the_table_has_what_was_measured_and_what_to_change(stored: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = plays(monkeypatch, result(), result("stop-rank", Outcome.FAIL, advice="set on_hang", seen=Seen()))
    said = stored.resil("drill", "kill-rank", "stop-rank")
    assert said.code == 1 and asked["chosen"] == ("kill-rank", "stop-rank")
    rows = [line.split() for line in said.out.splitlines() if line.startswith(("kill-rank  ", "stop-rank  "))]
    assert rows[0] == ["kill-rank", "PASS", "-", "1", "s", "step", "20", "8", "s", "11", "steps", "1.0", "MiB"]
    assert rows[1][:2] == ["stop-rank", "FAIL"] and "  change: set on_hang" in said.out
    assert "queued 3 jobs" in said.out


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([Outcome.PASS, Outcome.PASS], 0),
        ([Outcome.PASS, Outcome.UNKNOWN], 75),
        ([Outcome.UNKNOWN, Outcome.FAIL], 1),
        ([Outcome.PASS], 75),  # the other was not made
    ],
)
def test_the_exit_code_says_whether_all_passed(
    stored: Shell, monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], code: int
) -> None:
    plays(monkeypatch, *(result(outcome=one) for one in outcomes))
    assert stored.resil("drill", "kill-rank", "walltime", "--json").code == code


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SchedulerUnavailable("no answer")])
def test_what_was_done_before_an_interrupt_or_an_error_is_shown(
    stored: Shell, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def play(*_: Any, **__: Any) -> Iterator[Result]:
        yield result()
        raise error

    monkeypatch.setattr(rehearse, "rehearse", play)
    said = stored.resil("drill", "--all", "--json")
    document = json.loads(said.out)
    assert [one["drill"] for one in document["drills"]] == ["kill-rank"] and document["interrupted"]
    assert said.code not in (0, 1)
    assert "kill-rank  PASS" in stored.resil("drill", "--all").out
    plays(monkeypatch, result())
    assert stored.resil("drill", "kill-rank", "--json").json["interrupted"] is False


def test_without_a_name_the_plan_is_shown_and_nothing_is_run(stored: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = plays(monkeypatch)
    said = stored.resil("drill")
    assert said.code == 0 and "Nothing was run" in said.out and asked == {}
    assert "missing: nobody would be told" in said.out
    document = stored.resil("drill", "walltime", "--plan", "--json").json
    assert [one["drill"] for one in document["drills"]] == ["walltime"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["kill-rnk"], "there is no drill 'kill-rnk'"),
        (["kill-rank", "--all"], "cannot be given together"),
        (["--all", "--limit", "2s"], "--limit 2s"),
        (["--all", "--command", "python x.py --out_dir=/scratch/x"], "out_dir=/scratch/x"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    stored: Shell, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    asked = plays(monkeypatch)
    said = stored.resil("drill", *words)
    assert said.code == 2 and says in said.err and asked == {}


def test_a_training_without_known_checkpoints_is_refused_unless_that_was_agreed_to(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = plays(monkeypatch, result())
    refused = shell.resil("drill", "kill-rank")
    assert refused.code == 2 and "path is not set" in refused.err and asked == {}
    assert "careful: " in shell.resil("drill", "--plan").out
    agreed = shell.resil("drill", "kill-rank", "--yes")
    assert agreed.code == 0 and "warning: " in agreed.err


def test_without_settings_the_missing_command_is_named_first(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = plays(monkeypatch)
    shell.settings("")
    refused = shell.resil("drill", "kill-rank")
    assert refused.code == 2 and "there is no command to run" in refused.err and asked == {}


def test_a_real_run_with_jobs_is_refused(stored: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = plays(monkeypatch)
    assert stored.resil("submit").code == 0
    refused = stored.resil("drill", "kill-rank")
    assert refused.code == 2 and "run gpt has jobs" in refused.err and asked == {}
