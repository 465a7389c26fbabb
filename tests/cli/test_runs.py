"""The commands about runs: exit code, what they print, what they leave."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.errors import SchedulerError
from resilience.job import JobState
from resilience.runs import read_logs
from tests.lab.disks import fill, make_read_only
from tests.lab.fakes import DOWN
from tests.lab.shell import SETTINGS, Shell
from tests.system.people import needs_root
from tests.watch.checks.filesystem.watching import mounted


def test_people_are_told_what_was_queued_and_how_to_stop_it(shell: Shell) -> None:
    said = shell.resil("submit", "--array", "10")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "queued run gpt: array 101 of 10 jobs, one after another"
    assert lines[1] == f"  state   {shell.run_dir}"
    assert (
        "resil status gpt; resil logs gpt -f" in said.out
        and "resil kill gpt (saves first if there is a guard)" in said.out
    )


QUEUED = [
    ((), "queued run gpt: job 101"),
    (("--array", "1"), "queued run gpt: array 101 of 1 job"),
    (("--array", "1-10%2"), "queued run gpt: array 101 of 10 jobs"),
    (("--chain", "3"), "queued run gpt: 3 jobs, each behind the previous one: 101, 102, 103"),
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
    said = shell.resil("submit", "--array", "3", "-n", "--full")
    assert said.out.startswith("#!/bin/bash") and "python train.py" in said.out and "resil_begin()" in said.out
    assert "# would run: fake-sbatch --array=1-3%1 " in said.out
    document = shell.resil("submit", "-n", "--json").json
    assert (document["kind"], document["argv"][0][0]) == ("submit-plan", "fake-sbatch")
    assert shell.fake.submissions == [] and not shell.run_dir.exists()


def test_asking_when_it_would_start_queues_nothing(shell: Shell) -> None:
    assert shell.resil("submit", "--test-only").out == "it would start now\n"
    assert not shell.run_dir.exists()


def test_flags_behind_the_dashes_are_for_sbatch_and_words_before_for_the_script(shell: Shell) -> None:
    (shell.directory / "mine.sh").write_text("#!/bin/bash\ntrue\n")
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
    from tests.lab.fakes import a_job

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
    assert not (shell.directory / ".resil").exists()


def test_notes_of_the_site_are_passed_on_without_what_could_steer_a_terminal(shell: Shell) -> None:
    shell.fake.notes = ("you have \x1b[31m3 hours\x1b[0m left",)
    assert "  note: you have ?[31m3 hours?[0m left\n" in shell.resil("submit").out


def test_a_refusal_goes_to_standard_error_and_leaves_nothing(shell: Shell) -> None:
    shell.fake.refusals[1] = SchedulerError("Invalid partition name specified", hint="see: sinfo")
    said = shell.resil("submit", "--json")
    assert (said.code, said.out) == (1, "")
    assert said.err.endswith("resil: error: Invalid partition name specified\n  try: see: sinfo\n")
    assert not (shell.directory / ".resil").exists()


def test_after_a_submit_the_next_status_is_a_new_look(shell: Shell) -> None:
    shell.resil("submit")
    shell.resil("status")
    shell.resil("submit", "--after", "auto")
    assert "102" in shell.resil("status").out


@pytest.fixture
def log(shell: Shell) -> Path:
    shell.resil("submit")
    path = shell.run_dir / "logs" / "gpt-101.out"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100)))
    return path


def test_the_last_forty_lines_are_shown_and_the_path_aside(shell: Shell, log: Path) -> None:
    said = shell.resil("logs")
    assert said.out.splitlines() == [f"line {number}" for number in range(60, 100)]
    assert said.err == f"==> {log} <==\n"
    assert shell.resil("logs", "gpt", "--lines", "2").out == "line 98\nline 99\n"
    assert shell.resil("logs", "--lines", "0").out == ""


def test_the_path_alone_is_for_other_programs(shell: Shell, log: Path) -> None:
    said = shell.resil("logs", "--path")
    assert (said.out, said.err) == (f"{log}\n", "")


def test_following_goes_on_where_the_last_lines_ended_and_names_each_new_log(
    shell: Shell, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow(_: object, __: object, path: Path, position: int) -> Iterator[tuple[Path, bytes]]:
        assert (path, position) == (log, log.stat().st_size)
        yield path, b"more\n"
        yield Path("/next.out"), b"next\n"
        raise KeyboardInterrupt

    monkeypatch.setattr(read_logs, "follow", follow)
    said = shell.resil("logs", "-f", "--lines", "1")
    assert (said.code, said.out) == (130, "line 99\nmore\nnext\n")
    assert said.err.splitlines()[1:] == ["==> /next.out <=="]


def test_a_run_without_a_log_fails_and_says_where_to_look(shell: Shell) -> None:
    shell.resil("submit")
    said = shell.resil("logs")
    assert said.code == 1 and "has written no log yet" in said.err and "resil status gpt" in said.err


@pytest.mark.parametrize(("scope", "queued"), [("job", "end within seconds"), ("all", "are cancelled when the first")])
def test_the_switch_is_set_with_its_reason_and_reach(shell: Shell, scope: str, queued: str) -> None:
    shell.resil("submit")
    said = shell.resil("kill", "--why", "loss is NaN", "--scope", scope)
    switch = shell.run_dir / "switches" / "kill"
    assert said.code == 0 and f"kill switch set: {switch}" in said.out
    assert queued in said.out and "resil clear gpt" in said.out
    written = tomllib.loads(switch.read_text())
    assert (written["why"], written["scope"]) == ("loss is NaN", scope)


def test_a_run_of_an_own_script_is_told_apart(shell: Shell) -> None:
    (shell.directory / "mine.sh").write_text("#!/bin/bash\n")
    shell.resil("submit", "mine.sh")
    assert "queued with its own script" in shell.resil("kill").out


def test_a_moved_run_is_not_promised_that_its_training_stops(shell: Shell) -> None:
    shell.resil("submit")
    old = shell.directory / ".resil"
    (shell.directory / "resil.toml").write_text(SETTINGS.replace("[run]\n", '[run]\nstate_dir = "moved"\n'))
    old.rename(shell.directory / "moved")
    for command in ("kill", "save"):
        said = shell.resil(command).out
        assert f"queued from {old}/gpt, which is gone" in said and "resil clear gpt" in said
        assert "own script" not in said and "stops at" not in said and "saves, continues" not in said


def test_a_run_that_is_not_there_gets_no_switch(shell: Shell) -> None:
    said = shell.resil("kill", "llama")
    assert said.code == 2 and not (shell.directory / ".resil").exists()


def test_a_kill_asks_the_scheduler_once_and_throws_before(shell: Shell) -> None:
    shell.resil("submit")
    shell.fake.calls.clear()
    switch = shell.run_dir / "switches" / "kill"
    lay_there: list[bool] = []
    jobs = shell.fake.jobs
    shell.fake.jobs = lambda **wishes: (lay_there.append(switch.exists()), jobs(**wishes))[1]  # type: ignore[func-returns-value,method-assign]
    shell.resil("kill")
    assert (shell.fake.calls, lay_there) == (["jobs"], [True])


def test_a_scheduler_that_does_not_answer_keeps_nobody_from_throwing(shell: Shell) -> None:
    shell.resil("submit")
    shell.fake.trouble = DOWN
    said = shell.resil("kill")
    assert said.code == 0 and "the scheduler did not report which jobs run" in said.out
    assert (shell.run_dir / "switches" / "kill").exists()


def test_a_run_whose_files_cannot_be_read_is_killed_all_the_same(shell: Shell) -> None:
    shell.resil("submit")
    (shell.run_dir / "submissions.jsonl").unlink()
    (shell.run_dir / "submissions.jsonl").mkdir()
    said = shell.resil("kill")
    assert said.code == 0 and "its effect could not be determined: " in said.out and "resil cancel gpt" in said.out


@needs_root
def test_on_a_full_disk_it_works_and_says_what_is_missing(shell: Shell) -> None:
    with mounted(shell.directory.parent / "disk", "size=512k,mode=755") as disk:
        shell.settings(SETTINGS.replace("[run]\n", f'[run]\nstate_dir = "{disk}"\n'))
        assert shell.resil("submit").code == 0
        fill(disk)
        said = shell.resil("kill", "--why", "loss is NaN", "--scope", "all")
        assert said.code == 0 and (disk / "gpt" / "switches" / "kill").read_bytes() == b""
        assert "the disk is full, so the switch is an empty file" in said.out
        assert "end within seconds of their start" in said.out, "an empty one has no scope"


@needs_root
def test_on_a_read_only_disk_it_names_the_way_that_is_left(shell: Shell) -> None:
    with mounted(shell.directory.parent / "disk", "size=512k,mode=755") as disk:
        shell.settings(SETTINGS.replace("[run]\n", f'[run]\nstate_dir = "{disk}"\n'))
        shell.resil("submit")
        make_read_only(disk, True)
        said = shell.resil("kill")
        assert said.code == 1 and "Read-only file system" in said.err and "resil cancel" in said.err


def test_a_save_is_asked_for_with_its_label(shell: Shell) -> None:
    shell.resil("submit")
    said = shell.resil("save", "--label", "before-lr-drop", "-m", "new schedule")
    assert said.code == 0 and "save switch set" in said.out
    written = tomllib.loads((shell.run_dir / "switches" / "save").read_text())
    assert (written["label"], written["why"]) == ("before-lr-drop", "new schedule")


def test_switches_are_taken_back_and_named(shell: Shell) -> None:
    shell.resil("submit")
    shell.resil("kill")
    shell.resil("save")
    assert shell.resil("clear").out == "cleared: kill, save\n"
    assert shell.resil("clear").out == "run gpt has no switch set\n"


def test_a_finished_run_stays_finished_until_that_is_taken_back_too(shell: Shell) -> None:
    shell.resil("submit")
    (shell.run_dir / "finished").touch()
    assert "resil clear gpt --finished" in shell.resil("clear", "gpt").out
    assert shell.resil("clear", "--finished").out == "cleared: finished\n"
    assert not (shell.run_dir / "finished").exists()


def test_what_was_told_to_end_is_named(shell: Shell) -> None:
    shell.resil("submit", "--chain", "2")
    shell.fake.records[0] = replace(shell.fake.records[0], state=JobState.RUNNING)
    said = shell.resil("cancel")
    assert said.out.splitlines()[0] == "cancelled run gpt: 101, 102"
    assert "still ending: 101" in said.out


def test_only_what_waits_can_be_cancelled(shell: Shell) -> None:
    shell.resil("submit", "--chain", "2")
    shell.fake.records[0] = replace(shell.fake.records[0], state=JobState.RUNNING)
    said = shell.resil("cancel", "gpt", "--pending")
    assert said.out.startswith("cancelled the queued jobs of run gpt: 102")
    assert shell.fake.records[0].state is JobState.RUNNING


def test_what_was_written_is_named_and_passes_the_check(shell: Shell) -> None:
    said = shell.resil("init", "new")
    assert said.code == 0
    assert f"wrote {shell.directory / 'new' / 'resil.toml'}; wrote" in said.out
    assert f"next: cd {shell.directory / 'new'}; set `command` in resil.toml" in said.out
    assert len(said.out.splitlines()) == 3
    assert shell.resil("config", "check", "-c", "new/resil.toml").code == 0


@needs_root
def test_a_new_project_on_a_read_only_disk_is_sent_elsewhere(shell: Shell) -> None:
    with mounted(shell.directory.parent / "disk", "size=512k,mode=755") as disk:
        make_read_only(disk, True)
        said = shell.resil("init", str(disk))
    assert said.code == 1 and "Read-only file system" in said.err
    assert "resil init DIRECTORY" in said.err and "state_dir" not in said.err


def test_a_script_is_taken_over(shell: Shell) -> None:
    Path("old.sh").write_text("#!/bin/bash\n#SBATCH -p gpu -J llama -o x.out\n")
    said = shell.resil("init", "new", "--from", "old.sh")
    assert "note: left out, because resil or each submit sets them: --output\n" in said.out
    assert 'partition = "gpu"' in (shell.directory / "new" / "resil.toml").read_text()


def test_existing_settings_are_kept_and_get_their_cron_directory(shell: Shell) -> None:
    before = (shell.directory / "resil.toml").read_text()
    said = shell.resil("init")
    assert said.code == 0 and len(said.out.splitlines()) == 3
    assert said.out.startswith(f"kept {shell.directory / 'resil.toml'}; wrote")
    assert (shell.directory / "cron" / "crontab").is_file()
    assert (shell.directory / "resil.toml").read_text() == before
    again = shell.resil("init")
    assert again.code == 0 and f"; kept {shell.directory / 'cron'}\n" in again.out


def test_broken_settings_keep_nobody_from_writing_new_ones(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.settings("[torn")
    assert shell.resil("init", "--force").code == 0
    assert shell.resil("config", "check").code == 0
    monkeypatch.setenv("RESIL_CONFIG", "/proc/nonexistent")
    assert "make one: resil init" in shell.resil("status").err
    assert shell.resil("init", "another").code == 0


def test_every_template_is_listed_with_where_it_was_found(shell: Shell) -> None:
    said = shell.resil("templates")
    for name in ("python", "srun", "torchrun", "accelerate", "deepspeed", "container"):
        assert f"\n{name} " in said.out
    assert "shipped" in said.out and "base" not in [line.split()[0] for line in said.out.splitlines()]


def test_one_is_shown_with_what_it_says_of_itself_or_as_it_was_written(shell: Shell) -> None:
    said = shell.resil("templates", "python")
    assert said.out.startswith("python (shipped: ") and "One process" in said.out
    assert "{% extends" in shell.resil("templates", "python", "--source").out


def test_ones_own_wins_and_the_shadowed_one_is_marked(shell: Shell) -> None:
    (shell.directory / "slurm_templates").mkdir()
    (shell.directory / "slurm_templates" / "python.sbatch.j2").write_text("# resil: Mine.\n")
    assert "shipped (shadowed)" in shell.resil("templates").out
    assert "Mine." in shell.resil("templates", "python").out
    rows = shell.resil("templates", "python", "--json").json["templates"]
    assert [(row["origin"], row["shadowed"]) for row in rows] == [("project", False), ("shipped", True)]


def test_an_unknown_template_is_answered_with_the_nearest(shell: Shell) -> None:
    said = shell.resil("templates", "torchrnu")
    assert said.code == 2 and "did you mean torchrun?" in said.err


def test_commands_in_a_copied_project_leave_the_jobs_of_the_original_alone(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell.resil("submit").code == 0
    copy = shell.directory.parent / "copy"
    shutil.copytree(shell.directory, copy)
    monkeypatch.chdir(copy)
    said = shell.resil("status", "--fresh")
    assert "this run directory is a copy of" in said.out and "PENDING" not in said.out
    (run,) = shell.resil("status", "--json").json["runs"]
    assert run["relocation"].startswith("this run directory is a copy")
    assert "warning: this run directory is a copy" in shell.resil("kill").out
    shell.resil("cancel")
    assert "cancel" not in shell.fake.calls
    monkeypatch.chdir(shell.directory)
    assert "PENDING" in shell.resil("status", "--fresh").out
