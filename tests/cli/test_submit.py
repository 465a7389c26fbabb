"""`resil submit` says what it queued, what happens next and how to stop it, to people and to programs."""

from __future__ import annotations

import pytest

from resilience.errors import SchedulerError
from tests.cli.shell import Shell


def test_people_are_told_what_was_queued_and_how_to_stop_it(shell: Shell) -> None:
    said = shell.resil("submit", "--array", "10")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "queued run gpt: array 101 of 10 jobs, one after another"
    assert lines[1] == f"  state   {shell.run_dir}"
    assert "resil status gpt; resil logs gpt -f" in said.out and "resil kill gpt (saves first)" in said.out


QUEUED = [
    ((), "queued run gpt: job 101"),
    (("--array", "1"), "queued run gpt: array 101 of 1 job"),
    (("--array", "1-10%2"), "queued run gpt: array 101 of 10 jobs"),
    (("--chain", "3"), "queued run gpt: 3 jobs, each behind the one before: 101, 102, 103"),
]


@pytest.mark.parametrize(("words", "first"), QUEUED)
def test_each_form_is_named_as_what_it_is(shell: Shell, words: tuple[str, ...], first: str) -> None:
    assert shell.resil("submit", *words).out.splitlines()[0] == first


def test_programs_get_ids_alone_or_json(shell: Shell) -> None:
    assert shell.resil("submit", "--chain", "2", "--parsable").out == "101\n102\n"
    document = shell.resil("submit", "--run", "llama", "--json").json
    assert {key: document[key] for key in ("schema", "kind", "run", "job_ids", "scheduler", "recovered")} == {
        "schema": "resil/1", "kind": "submit", "run": "llama", "job_ids": ["103"], "scheduler": "fake",
        "recovered": False,
    }  # fmt: skip


def test_a_dry_run_shows_the_script_and_the_command_and_does_nothing(shell: Shell) -> None:
    said = shell.resil("submit", "--array", "3", "-n")
    assert said.out.startswith("#!/bin/bash") and "python train.py" in said.out
    assert "# would run: fake-sbatch --array=1-3%1 " in said.out
    document = shell.resil("submit", "-n", "--json").json
    assert (document["kind"], document["argv"][0][0]) == ("submit-plan", "fake-sbatch")
    assert shell.fake.submissions == [] and not shell.run_dir.exists()


def test_asking_when_it_would_start_queues_nothing(shell: Shell) -> None:
    assert shell.resil("submit", "--test-only").out == "it would start now\n"
    assert not shell.run_dir.exists()


def test_flags_behind_the_dashes_are_for_sbatch_and_words_before_for_the_script(shell: Shell) -> None:
    (shell.folder / "mine.sh").write_text("#!/bin/bash\ntrue\n")
    shell.resil("submit", "mine.sh", "1e-3", "x y", "--array", "2", "--", "--qos=high", "--nice")
    (submission,) = shell.fake.submissions
    assert (submission.script_args, submission.extra_args) == (("1e-3", "x y"), ("--qos=high", "--nice"))
    assert submission.options == {"array": "1-2%1"}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("--after", "7"), {"dependency": "afterany:7"}),
        (("-d", "afterok:7"), {"dependency": "afterok:7"}),
        (("-x", "n1", "-t", "90", "-b", "now+1hour"), {"exclude": "n1", "time": "90", "begin": "now+1hour"}),
        (("-H",), {"hold": None}),
        (("--signal", "B:USR2@60"), {"signal": "B:USR2@60"}),
    ],
)
def test_each_option_reaches_the_scheduler(
    shell: Shell, words: tuple[str, ...], options: dict[str, str | None]
) -> None:
    from tests.fakes import a_job

    shell.fake.records.append(a_job(7))
    assert shell.resil("submit", *words).code == 0
    assert shell.fake.submissions[0].options == options


def test_a_second_submit_asks_what_is_meant_and_after_auto_says_it(shell: Shell) -> None:
    shell.resil("submit")
    again = shell.resil("submit")
    assert again.code == 1 and "--after auto" in again.err
    said = shell.resil("submit", "--after", "auto")
    assert said.code == 0 and "starts  afterany:101" in said.out


@pytest.mark.parametrize("pair", ["lr", "=1", "a-b=1", "1a=2", "a b=1"])
def test_a_variable_that_is_none_is_refused(shell: Shell, pair: str) -> None:
    said = shell.resil("submit", "--set", pair)
    assert said.code == 2 and "is not KEY=VALUE" in said.err


@pytest.mark.parametrize("chain", ["0", "-3"])
def test_a_chain_of_no_jobs_is_refused(shell: Shell, chain: str) -> None:
    said = shell.resil("submit", "--chain", chain)
    assert said.code == 2 and "would queue nothing" in said.err


def test_a_run_of_a_hostile_name_is_refused_in_one_safe_line(shell: Shell) -> None:
    for name in ("../x", "a\nb", "\x1b[2J", "x" * 101, " ", "-"):
        said = shell.resil("submit", "--run", name)
        assert said.code == 2 and "cannot be a run's name" in said.err
        assert all(character.isprintable() or character == "\n" for character in said.err)
    assert not (shell.folder / ".resil").exists()


def test_notes_of_the_site_are_passed_on_without_what_could_steer_a_terminal(shell: Shell) -> None:
    shell.fake.notes = ("you have \x1b[31m3 hours\x1b[0m left",)
    assert "  note: you have ?[31m3 hours?[0m left\n" in shell.resil("submit").out


def test_a_refusal_goes_to_standard_error_and_leaves_nothing(shell: Shell) -> None:
    shell.fake.refusals[1] = SchedulerError("Invalid partition name specified", hint="see: sinfo")
    said = shell.resil("submit", "--json")
    assert (said.code, said.out) == (1, "")
    assert said.err.endswith("resil: error: Invalid partition name specified\n  try: see: sinfo\n")
    assert not (shell.folder / ".resil").exists()


def test_after_a_submit_the_next_status_is_a_new_look(shell: Shell) -> None:
    shell.resil("submit")
    shell.resil("status")
    shell.resil("submit", "--after", "auto")
    assert "102" in shell.resil("status").out
