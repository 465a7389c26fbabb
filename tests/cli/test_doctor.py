"""`resil doctor` and `resil config` print each finding with its advice, and fail only for what is critical."""

from __future__ import annotations

import pytest

from tests.lab.fakes import DOWN
from tests.lab.shell import SETTINGS, Shell


def test_each_finding_is_a_line_with_its_advice_below(shell: Shell) -> None:
    said = shell.resil("doctor")
    assert said.code == 0
    assert said.out.splitlines()[0].split() == ["VERDICT", "TOPIC", "FINDING"]
    assert "SLURM 24.11 answered" in said.out and "-> " in said.out


def test_not_knowing_is_no_failure_and_critical_is_one(shell: Shell) -> None:
    shell.fake.trouble = DOWN
    assert shell.resil("doctor").code == 0
    (shell.directory / ".resil").write_text("a file in the way")
    said = shell.resil("doctor", "--json")
    assert said.code == 1
    assert said.json["verdict"] == "CRITICAL"
    assert set(said.json["diagnoses"][0]) == {"topic", "verdict", "text", "advice"}


@pytest.mark.parametrize(
    "words",
    [
        ("doctor",), ("status",), ("submit",), ("logs",), ("cancel", "gpt"), ("demo",), ("watch", "job"),
        ("watch", "--all"), ("watch", "--list"),
    ],
)  # fmt: skip
def test_an_unknown_scheduler_is_refused_by_every_command(shell: Shell, words: tuple[str, ...]) -> None:
    said = shell.resil(*words, "--scheduler", "slrum")
    assert (said.code, said.out) == (3 if words[0] == "watch" else 2, "")
    assert "there is no scheduler 'slrum' (command line)" in said.err and "did you mean slurm?" in said.err


@pytest.mark.parametrize("words", [("status",), ("watch", "fs"), ("cron", "status"), ("alert",)])
def test_an_unknown_scheduler_in_the_environment_or_the_settings_is_refused(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.delenv("RESIL_SCHEDULER__NAME", raising=False)
    shell.settings(SETTINGS + '[scheduler]\nname = "lcoal"\n')
    said = shell.resil(*words)
    assert said.code in (2, 3) and "no scheduler 'lcoal'" in said.err and "did you mean local?" in said.err
    monkeypatch.setenv("RESIL_SCHEDULER__NAME", "slrm")
    assert "no scheduler 'slrm' ($RESIL_SCHEDULER__NAME)" in shell.resil(*words).err


def test_good_settings_are_called_good(shell: Shell) -> None:
    assert shell.resil("config", "check").out == f"{shell.directory / 'resil.toml'}: valid\n"
    (shell.directory / "resil.toml").unlink()
    assert "there is no resil.toml" in shell.resil("config", "check").out


def test_bad_settings_exit_with_2_and_the_reason(shell: Shell) -> None:
    shell.settings('[run]\nnmae = "x"\n')
    said = shell.resil("config", "check")
    assert said.code == 2 and "unknown key 'nmae'" in said.err and "did you mean name?" in said.err


def test_another_file_can_be_checked(shell: Shell) -> None:
    (shell.directory / "other.toml").write_text("[submit]\narray = 'ten'\n")
    assert shell.resil("config", "check", "-c", "other.toml").code == 2


def test_every_setting_is_shown_with_its_origin(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIL_RUN__GROUP", "lab")
    monkeypatch.setenv("RESIL_ENVIRONMENT__CLEAR", "\x1b[2J")
    plain = shell.resil("config", "show").out
    assert "run.name" in plain and "FROM" not in plain and "2J" in plain and "\x1b" not in plain
    shown = shell.resil("config", "show", "--origin").out
    assert f"'gpt'  {shell.directory / 'resil.toml'}".split() == shown.splitlines()[1].split()[1:]
    assert "$RESIL_RUN__GROUP" in shown and "default" in shown and "(unset)" in shown


def test_programs_get_json(shell: Shell) -> None:
    document = shell.resil("config", "show", "--json").json
    assert document["kind"] == "config"
    rows = {row["key"]: row for row in document["settings"]}
    assert rows["run.setup"]["value"] == [] and rows["submit.requeue"]["value"] is None
    assert rows["scheduler.name"]["origin"] == "$RESIL_SCHEDULER__NAME"


def test_without_a_word_the_help_is_shown(shell: Shell) -> None:
    said = shell.resil("config")
    assert said.code == 0 and "check" in said.out
