"""`resil status` takes a run, or none for all."""

from __future__ import annotations

from tests.cli.shell import Shell


def test_one_run_or_all_of_them(shell: Shell) -> None:
    for name in ("gpt", "llama"):
        shell.resil("submit", "--run", name)
    assert [run["run"] for run in shell.resil("status", "--json").json["runs"]] == ["gpt", "llama"]
    assert [run["run"] for run in shell.resil("status", "llama", "--json").json["runs"]] == ["llama"]
    assert [run["run"] for run in shell.resil("status", ".resil/gpt", "--json").json["runs"]] == ["gpt"]


def test_an_unknown_run_is_answered_with_the_nearest(shell: Shell) -> None:
    shell.resil("submit")
    said = shell.resil("status", "gtp")
    assert (said.code, said.out) == (2, "")
    assert "there is no run 'gtp'" in said.err and "did you mean gpt?" in said.err


def test_ten_looks_in_a_row_ask_the_scheduler_once_and_fresh_asks_again(shell: Shell) -> None:
    shell.resil("submit")
    shell.fake.calls.clear()
    for _ in range(10):
        shell.resil("status")
    assert shell.fake.calls == ["jobs"]
    shell.resil("status", "--fresh")
    assert shell.fake.calls == ["jobs", "jobs"]
