"""`resil ckpt plan`: of a run, and as a calculator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.job import JobState
from tests.lab.shell import SETTINGS, Shell, make_shell

ALONE = ("--stall-s", "5", "--save-s", "90", "--step-s", "1.2", "--restart-s", "300", "--size", "1TiB")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return make_shell(tmp_path, monkeypatch, capsys)


def test_numbers_given_by_hand_need_no_project_and_give_the_whole_screen(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    said = shell.resil("ckpt", "plan", *ALONE, "--nodes", "64", "--failures-per-node-day", "0.0065")
    assert said.code == 0 and len(said.out.splitlines()) <= 24
    assert "save every 24 min 3 s (1,198 steps)" in said.out and "Daly's optimum" in said.out
    (chosen,) = [line for line in said.out.splitlines() if line.startswith(">")]
    assert chosen.split("  ")[1:] and "0.3 %" in chosen and "0.9 %" in chosen
    assert "in a day: 59 saves, nothing deletes them: 60.0 TiB more at most" in said.out


def test_without_a_failure_rate_there_is_a_bound_and_no_number(shell: Shell) -> None:
    said = shell.resil("ckpt", "plan", "--save-s", "35")
    assert said.code == 0 and "at most 3.5 % of the time; failures are unknown" in said.out
    assert "LOST" not in said.out and "the training waits for the whole save" in said.out
    chosen = next(
        one
        for one in shell.resil("ckpt", "plan", "--save-s", "35", "--json").json["plan"]["choices"]
        if one["is_chosen"]
    )
    assert chosen["interval_s"] == pytest.approx(1035.0) and chosen["loss"]["lost"] is None


def test_before_the_first_submission_it_is_a_calculator(shell: Shell) -> None:
    shell.settings(SETTINGS)
    said = shell.resil("ckpt", "plan")
    assert said.code == 2 and "resil submit" in said.err and "resil ckpt plan --save-s 60" in said.err
    assert shell.resil("ckpt", "plan", "--save-s", "60").code == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--mtbf-h", "5", "--nodes", "2", "--failures-per-node-day", "0.1"), "two ways to say the same"),
        (("--nodes", "2"), "belong together"),
        (("--redo-max", "soon"), "--redo-max soon"),
        (("--size", "big"), "'big' is not a size"),
        (("--save-s", "-3"), "--save-s"),
        (("--save-s", "nan"), "--save-s"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(shell: Shell, words: tuple[str, ...], error: str) -> None:
    said = shell.resil("ckpt", "plan", "--stall-s", "5", *words)
    assert said.code == 2 and error in said.err


@pytest.mark.parametrize("stall", ["0", "1e-300", "1e9"])
@pytest.mark.parametrize("more", [(), ("--step-s", "1e-6"), ("--step-s", "1e9"), ("--in-flight", "10000000")])
@pytest.mark.parametrize(
    "failures", [(), ("--mtbf-h", "0.001"), ("--mtbf-h", "1e9"), ("--nodes", "1", "--failures-per-node-day", "0")]
)
def test_extreme_numbers_give_a_plan(
    shell: Shell, stall: str, more: tuple[str, ...], failures: tuple[str, ...]
) -> None:
    said = shell.resil("ckpt", "plan", "--stall-s", stall, *more, *failures, "--size", "1GiB")
    assert said.code == 0 and "save every" in said.out, said.err


# ---- of a run -------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(shell: Shell) -> Shell:
    """A run on its third attempt; the first two failed after an hour each."""
    shell.settings(SETTINGS + '[guard]\nevery = "auto"\nredo_max = "2h"\n[checkpoints]\npath = "ckpts"\n')
    assert shell.resil("submit").code == 0
    now = shell.project.system.clock.now()
    shell.fake.records[0] = replace(
        shell.fake.records[0], state=JobState.RUNNING, start_time=now - 4000, end_time=now + 10 * 3600
    )
    for number in (1, 2, 3):
        start = int(now) - 4000 * (4 - number)
        text = f'number = {number}\njob_id = 101\nlabel = "101"\nrestart = 0\nhost = "n1"\npid = 1\nstart = {start}\n'
        (shell.run_dir / "attempts" / f"{number:04d}").write_text(text)
        if number < 3:
            end = f'end = "exited"\nexit_code = 1\ntime = {start + 3600}\nlaunched = true\n'
            (shell.run_dir / "attempts" / f"{number:04d}.end").write_text(end)
    pace = {"gaps": [], "saves": [30.0, 33.0], "stalls": [7.0, 7.0]}
    (shell.run_dir / "learned").mkdir(exist_ok=True)
    learned = {"version": 1, "pace": pace, "cadence": {"step_s": 1.0, "restart_s": 60.0}}
    (shell.run_dir / "learned" / "0.json").write_text(json.dumps(learned))
    return shell


def test_of_a_run_it_shows_what_was_measured_with_its_uncertainty_and_the_room(trained: Shell) -> None:
    said = trained.resil("ckpt", "plan", "--size", "1GiB")
    assert said.code == 0, said.err
    assert "7 s" in said.out and "median of 2 saves" in said.out and "slowest of 2 saves" in said.out
    assert "(2 in 3 h 6 min; 95 %: " in said.out
    assert "of them stay" in said.out and "file system" in said.out and "all fit" in said.out
    found = trained.resil("ckpt", "plan", "--json").json
    assert found["run"] == "gpt" and found["known"]["redo_max_s"] == 7200.0
    assert found["known"]["policy"]["latest"] == 2 and found["known"]["rooms"]
    assert found["known"]["mtbf"]["failures"] == 2


def test_options_replace_what_was_measured(trained: Shell) -> None:
    known = trained.resil("ckpt", "plan", "gpt", "--save-s", "99", "--mtbf-h", "5", "--json").json["known"]
    assert known["costs"]["durable_s"] == 99.0 and known["costs"]["stall_s"] == 7.0
    assert known["mtbf"]["estimate_s"] == 18_000.0


def test_a_setting_is_compared_with_auto(trained: Shell) -> None:
    trained.settings(SETTINGS + '[guard]\nevery = "30 min"\n')
    said = trained.resil("ckpt", "plan")
    assert said.code == 0 and said.out.startswith('every = "30 min": 30 min; auto would save every ')
    assert "set [checkpoints] path" in said.out


def test_a_checkpoint_that_does_not_fit_is_told(trained: Shell) -> None:
    said = trained.resil("ckpt", "plan", "--size", "900PiB")
    assert "the next checkpoint does not fit" in said.out


def test_a_run_that_has_measured_nothing_says_so(shell: Shell) -> None:
    assert shell.resil("submit").code == 0
    said = shell.resil("ckpt", "plan")
    assert said.code == 0 and "assumed: no save was measured yet (first_save_s)" in said.out
