"""`resil stacks`: of a run whose ranks are real processes, and of one where nothing answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.ranks import collect as module
from tests.guard.ranks import a_node
from tests.lab.shell import SETTINGS, Shell
from tests.lab.waiting import until


@pytest.fixture
def shell(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    shell.settings(SETTINGS + "[guard]\nbeat_s = 0.1\n")
    assert shell.resil("submit").code == 0
    yield shell


@pytest.fixture
def training(shell: Shell) -> Iterator[Shell]:
    """Two ranks; the second is late to the collective."""
    with a_node(shell.run_dir) as node:
        for rank, function in enumerate(("all_reduce", "load_batch")):
            started = node.start(rank, first=f"def {function}():\n    time.sleep(1000)")
            started.begin(f"{function}()")
        until(lambda: len(node.beats().get("rank", {})) == 2)
        yield shell


def test_the_odd_rank_is_named_and_the_page_is_written(training: Shell, tmp_path: Path) -> None:
    said = training.resil("stacks", "--html", str(tmp_path / "gpt.html"))
    assert said.code == 0
    first, *_ = said.out.splitlines()
    assert re.fullmatch(
        r"gpt, attempt 3 \(job 12\), [-0-9: ]+: rank 1 on n1: in the user's code at <string>:2 in load_batch; "
        r"the other: in a collective \(all_reduce\) at <string>:2 in all_reduce", first
    )  # fmt: skip
    assert "load_batch" in (tmp_path / "gpt.html").read_text()
    (job,) = training.resil("stacks", "gpt", "--json").json["jobs"]
    assert [(one["rank"], one["host"]) for one in job["odd"]] == [(1, "n1")]
    assert [one["ranks"] for one in job["groups"]] == [[0], [1]] and job["groups"][0]["where"] == "in a collective"


@pytest.mark.parametrize("where", [".", "missing/gpt.html"])
def test_a_page_that_cannot_be_written_is_told_before_the_ranks_are_asked(
    shell: Shell, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "collect", None)
    said = shell.resil("stacks", "--html", str(tmp_path / where))
    assert said.code == 2 and "no page can be written as" in said.err


def test_a_run_that_does_not_train_says_what_to_try(shell: Shell) -> None:
    said = shell.resil("stacks")
    assert said.code == 1 and "none is running, or it has no guard\n  try: see: resil status gpt; " in said.err


def test_ranks_that_do_not_answer_are_a_failure(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    (shell.run_dir / "beats" / "12.n9").write_text('attempt = 3\nhost = "n9"\n[rank.0]\npid = 7\n')
    said = shell.resil("stacks")
    assert said.code == 1 and "rank 0 on n9: no answer from n9, whose last heartbeat was" in said.out
