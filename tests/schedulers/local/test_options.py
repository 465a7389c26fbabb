"""Command lines: sbatch's options over SBATCH_* over #SBATCH, short and long forms, and the stand-in for srun."""

from __future__ import annotations

import pytest

from resilience.errors import SchedulerError, UsageError
from resilience.schedulers._local import options
from resilience.schedulers._local.shim import Step, parse_srun, task_variables


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--time=10"], [("time", "10")]),
        (["--time", "10"], [("time", "10")]),
        (["-t", "10"], [("time", "10")]),
        (["-t10"], [("time", "10")]),
        (["-t=10"], [("time", "10")]),
        (["-Ht10"], [("hold", None), ("time", "10")]),
        (["--exclusive"], [("exclusive", None)]),
        (["--exclusive=user"], [("exclusive", "user")]),
        (["--arr=1-3"], [("array", "1-3")]),
        (["--job-name=a=b c"], [("job-name", "a=b c")]),
        (["-J", "-x"], [("job-name", "-x")]),
        ([], []),
    ],
)
def test_arguments(words: list[str], given: list[options.Given]) -> None:
    assert options.parse_options(words) == given


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--jobname=x"], "unrecognized option '--jobname'", "--job-name"),
        (["--tiem=1"], "unrecognized option '--tiem'", "--time"),
        (["--gpu"], "ambiguous", "gpus"),
        (["-9"], "invalid option -- '9'", ""),
        (["--time"], "requires an argument", ""),
        (["-t"], "requires an argument", ""),
        (["--hold=yes"], "doesn't allow an argument", ""),
        (["job.sh"], "not an option", ""),
        (["--wrap=ls"], "--wrap", "script"),
    ],
)
def test_refusals_name_what_was_meant(words: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        options.parse_options(words)
    assert hint in caught.value.hint


def test_the_command_line_wins_over_the_environment_and_that_over_the_script() -> None:
    script = "#!/bin/bash\n#SBATCH -t 1 -J script --mem=5G\n#SBATCH --open-mode=append\n"
    environ = {"SBATCH_TIMELIMIT": "2", "SBATCH_JOB_NAME": "environment", "SBATCH_PARTITION": "p"}
    values, ignored = options.collect({"time": "3", "requeue": None}, ["--no-requeue"], environ, script)
    assert values == {"time": "3", "job-name": "environment", "open-mode": "append", "no-requeue": ""}
    assert ignored == ("--mem", "--partition")


def test_directives_end_at_the_first_command() -> None:
    script = (
        '#!/bin/bash\n# words\n#SBATCH --job-name="two words" # why\n\n##SBATCH -n 9\n#SBATCH-n 9\n  # -n 9\n'
        "#SBATCH -t 5\necho\n#SBATCH -n 9\n"
    )
    assert options.script_arguments(script) == ["--job-name=two words", "-t", "5"]


def test_a_directive_with_an_open_quote_is_named_by_its_line() -> None:
    with pytest.raises(UsageError, match="line 2"):
        options.script_arguments('#!/bin/sh\n#SBATCH -J "x\n')


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b" \n", "whitespace"), (b"ls\n", "#!"), (b"#!/bin/sh\r\n", "DOS"), (b"#!/bin/sh\n\0", "NULL")],
)
def test_scripts_that_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(SchedulerError, match=message):
        options.check_script(content, "job.sh")


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (["-t", "5", "job.sh", "-x"], ["job.sh", "-x"]),
        (["-t5", "job.sh"], ["job.sh"]),
        (["--time", "5", "job.sh"], ["job.sh"]),
        (["--time=5", "job.sh"], ["job.sh"]),
        (["-H", "job.sh"], ["job.sh"]),
        (["-H", "--", "-job.sh", "-H"], ["-job.sh", "-H"]),
        (["-"], ["-"]),
    ],
)
def test_options_end_at_the_script(words: list[str], rest: list[str]) -> None:
    assert options.SBATCH.parse(words)[1] == rest


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["python", "-n", "3"], Step(("python", "-n", "3"), 2)),
        (["-n", "4", "cmd"], Step(("cmd",), 4)),
        (["-n4", "cmd"], Step(("cmd",), 4)),
        (["--ntasks=1", "--", "cmd", "--x"], Step(("cmd", "--x"), 1)),
        (["-ul", "-K1", "--cpu-bind=none", "--mpi", "pmix", "cmd"], Step(("cmd",), 2, True)),
        (["--kill-on-bad-exit=1", "cmd"], Step(("cmd",), 2, True)),
        (["-K", "cmd"], Step(("cmd",), 2, True)),
        (["--kill-on-bad-exit=0", "cmd"], Step(("cmd",), 2)),
        (["-c", "8", "--gres=gpu:1", "-N1", "--exact", "cmd"], Step(("cmd",), 2)),
    ],
)
def test_steps(words: list[str], step: Step) -> None:
    assert parse_srun(words, {"SLURM_NTASKS": "2"}) == step


@pytest.mark.parametrize("words", [[], ["-n", "2"], ["-N", "2", "cmd"], ["-n", "zero", "cmd"], ["-n"]])
def test_a_step_that_cannot_run_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_srun(words, {})


def test_each_task_knows_its_rank() -> None:
    seen = task_variables(1, 2, 5, {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0"})
    names = ("PROCID", "LOCALID", "NTASKS", "STEP_ID", "JOB_ID")
    assert [seen[f"SLURM_{name}"] for name in names] == ["1", "1", "2", "5", "9"]
