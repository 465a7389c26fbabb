"""Bad input gets a clear error and the right exit code, and leaves no job and no file."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Shell

GOOD = """\
[run]
name = "gpt"
command = "sleep 60"
[attempt]
beat_s = 1
"""


def left_behind(shell: Shell) -> list[str]:
    """Jobs in the queue, and files of runs."""
    queue = [str(path) for path in Path(shell.environment["RESIL_LOCAL_SPOOL"]).glob("jobs/*")]
    files = [str(path) for path in shell.state_dir.rglob("*")] if shell.state_dir.exists() else []
    return queue + files


CASES = {
    "array of none": (["--array", "0"], 2, "an array of 0 jobs would queue nothing", "--array 10"),
    "array of words": (["--array", "ten"], 2, "'ten' is not an array", "--array 10"),
    "array backwards": (["--array", "5-1"], 2, "is descending", "--array 10"),
    "array beyond the limit": (["--array", "2000"], 2, "MaxArraySize", ""),
    "bad time": (["--time", "soon"], 2, "'soon' is not a SLURM time", "20:00:00"),
    "bad dependency type": (["--dependency", "whenever:12"], 2, "there is no type 'whenever'", "afterany"),
    "bad dependency job": (["--dependency", "afterok:last"], 2, "'last' is not a job id", "afterany:123"),
    "unknown dependency": (["--dependency", "afterok:999999"], 1, "dependency", ""),
    "bad after": (["--after", "yesterday"], 2, "'yesterday' is not a job id", "123"),
    "nothing to be after": (["--after", "auto"], 1, "no job in the queue to wait for", "without --after"),
    "lead beyond sbatch": (["--signal", "B:USR1@70000"], 2, "65535", "B:USR1@300"),
    "lead longer than the limit": (["--time", "5", "--signal", "B:USR1@600"], 2, "lead", ""),
    "array and chain": (["--array", "3", "--chain", "3"], 2, "cannot be given together", "use one"),
    "no chain": (["--chain", "-1"], 2, "would queue nothing", "--chain 5"),
    "unknown template": (["--template", "torchrnu"], 2, "torchrnu", "torchrun"),
    "variable that no template knows": (["--set", "gpus=8"], 2, "gpus", ""),
    "set without a value": (["--set", "lr"], 2, "'lr' is not KEY=VALUE", "--set lr=1e-4"),
    "missing script": (["nowhere.sbatch"], 2, "there is no script", "give the path"),
    "unknown sbatch flag": (["--", "--arary=3"], 2, "--arary", "--array"),
    "job name with a newline": (["--", "--job-name=a\nb"], 2, "contains a line break", ""),
    "another script after --": (["--", "/tmp/other.sh", "--lr", "0.1"], 2, "is not a flag of sbatch", "-- -- --lr"),
    "own option after --": (["--", "--array=5"], 2, "would override", "before the --"),
    "two forms of an answer": (["--parsable", "--json"], 2, "cannot be given together", "use one"),
    "empty after": (["--after", ""], 2, "--after has an empty value", "variable unset"),
    "empty array": (["--array="], 2, "--array has an empty value", "variable unset"),
    "bad run name": (["--run", "../elsewhere"], 2, "cannot be a run's name", "letters"),
    "sbatch arguments for no script": (["--unknown"], 2, "--unknown", ""),
}


@pytest.mark.parametrize("case", CASES, ids=list(CASES))
def test_bad_input_is_refused_in_words_and_leaves_nothing(shell: Shell, case: str) -> None:
    words, code, message, hint = CASES[case]
    shell.settings(GOOD)

    said = shell.resil("submit", *words)

    assert said.returncode == code, said.stderr
    assert message in said.stderr
    assert hint in said.stderr
    assert "Traceback" not in said.stderr
    assert said.stdout == ""
    assert left_behind(shell) == []


SCRIPTS = {
    "CRLF": (b"#!/bin/bash\r\necho hi\r\n", "CRLF", "sed -i"),
    "empty": (b"", "is empty", "#!/bin/bash"),
    "no interpreter": (b"echo hi\n", "does not start with #!", "#!/bin/bash"),
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_script_that_sbatch_would_refuse_is_refused_before(shell: Shell, case: str) -> None:
    content, message, hint = SCRIPTS[case]
    (shell.directory / "train.sbatch").write_bytes(content)

    said = shell.resil("submit", "train.sbatch", "--array", "3")

    assert said.returncode == 2
    assert message in said.stderr and hint in said.stderr
    assert left_behind(shell) == []


SETTINGS = {
    "unknown key": ('[run]\nnmae = "gpt"\n', "unknown key 'nmae'", "did you mean name?"),
    "unknown table": ('[runs]\nname = "gpt"\n', "unknown key 'runs'", "did you mean run?"),
    "key outside a table": ('name = "gpt"\n', "is outside any table", "[run]"),
    "not TOML": ("[run\n", "is not TOML", "toml.io"),
    "wrong type": ("[submit]\nrequeue = 3\n", "must be true or false", ""),
    "negative lead": ("[submit]\nsignal_lead_s = -5\n", "signal_lead_s", ""),
    "duration without a unit": ('[submit]\nsignal_lead_s = "soon"\n', "is not a duration", "10m"),
    "no command": ('[run]\nname = "gpt"\n', "there is no command to run", "resil init"),
    "output directory that is not there": (
        GOOD + '[sbatch]\noutput = "nowhere/%j.out"\n[scheduler]\nname = "local"\n',
        "nowhere",
        "mkdir",
    ),
    "unknown scheduler": (GOOD + '[scheduler]\nname = "slrum"\n', "slrum", "did you mean slurm?"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_nobody_understands_are_refused(shell: Shell, case: str) -> None:
    text, message, hint = SETTINGS[case]
    shell.settings(text)
    del shell.environment["RESIL_SCHEDULER__NAME"]

    said = shell.resil("submit", "--array", "3")

    assert said.returncode == 2, said.stderr
    assert message in said.stderr and hint in said.stderr
    assert left_behind(shell) == []


def test_a_template_with_an_undefined_variable_names_it_and_how_to_give_it(shell: Shell) -> None:
    shell.settings(GOOD)
    (shell.directory / "slurm_templates").mkdir()
    own = '{% extends "base.sbatch.j2" %}\n{% block launch %}\nresil_launch bash -c {{ lr }}\n{% endblock %}\n'
    (shell.directory / "slurm_templates" / "mine.sbatch.j2").write_text(own)

    said = shell.resil("submit", "--template", "mine")

    assert said.returncode == 2
    assert "lr" in said.stderr and "--set lr=" in said.stderr
    assert left_behind(shell) == []


def test_an_unwritable_state_directory_is_named_with_what_to_try(shell: Shell) -> None:
    shell.settings(GOOD.replace('command = "sleep 60"', 'command = "sleep 60"\nstate_dir = "/proc/resil"'))

    said = shell.resil("submit")

    assert said.returncode == 1
    assert "cannot create /proc/resil" in said.stderr
    assert left_behind(shell) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_full_state_directory_is_named_and_nothing_half_written_is_left(shell: Shell) -> None:
    disk = shell.directory / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    try:
        (disk / "ballast").write_bytes(b"x" * 57344)
        shell.settings(GOOD.replace('command = "sleep 60"', f'command = "sleep 60"\nstate_dir = "{disk}"'))

        said = shell.resil("submit")

        assert said.returncode == 75, said.stderr
        assert "No space left on device" in said.stderr
        assert "free some space" in said.stderr
        assert [path.name for path in disk.iterdir()] == ["ballast"]
        assert left_behind(shell) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_second_submit_of_a_living_run_asks_what_is_meant(shell: Shell) -> None:
    shell.settings(GOOD)
    assert shell.resil("submit", "--array", "2").returncode == 0

    again = shell.resil("submit", "--array", "2")

    assert again.returncode == 1
    assert "run gpt is already live" in again.stderr
    assert "--after auto" in again.stderr and "--force" in again.stderr
    assert len(list((shell.state_dir / "gpt" / "scripts").iterdir())) == 1
    assert shell.resil("submit", "--array", "2", "--after", "auto").returncode == 0


def test_queueing_behind_a_job_that_is_gone_is_refused(shell: Shell) -> None:
    shell.settings(GOOD)
    assert shell.resil("submit").returncode == 0

    said = shell.resil("submit", "--after", "999999")

    assert said.returncode == 1
    assert "job 999999 is not in the queue" in said.stderr and "resil status" in said.stderr
    assert len(list((shell.state_dir / "gpt" / "scripts").iterdir())) == 1


def test_sbatch_that_is_not_installed_is_said_with_the_way_out(shell: Shell) -> None:
    shell.settings(GOOD)

    said = shell.resil("submit", "--scheduler", "slurm", PATH="/nonexistent")

    assert said.returncode in (1, 75)
    assert "sbatch" in said.stderr and "--scheduler local" in said.stderr
    assert left_behind(shell) == []


def test_errors_go_to_standard_error_and_json_stays_clean(shell: Shell) -> None:
    shell.settings(GOOD)

    good = shell.resil("submit", "--array", "2", "--json")
    bad = shell.resil("submit", "--array", "2", "--json")

    assert json.loads(good.stdout)["run"] == "gpt"
    assert bad.stdout == "" and "already live" in bad.stderr


def test_an_unknown_command_is_answered_with_the_nearest(shell: Shell) -> None:
    said = shell.resil("sumbit")

    assert said.returncode == 2
    assert "Did you mean 'submit'?" in said.stderr
