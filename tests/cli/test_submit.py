"""`resil submit` and `resil adopt`: what they print, and what a pasted line of theirs does."""

from __future__ import annotations

import grp
import os
import shlex
from pathlib import Path

import pytest

from resilience.cli.submit import complete_own_jobs
from resilience.job import JobState
from resilience.submission import make_comment
from tests.lab.fakes import DOWN, a_job
from tests.lab.shell import SETTINGS, Shell


def own_script(shell: Shell, name: str = "mine.sh", body: str = "srun python train.py") -> Path:
    script = shell.directory / name
    script.write_text(f"#!/bin/bash\n#SBATCH --time=60\n#SBATCH -J mine\n{body}\n")
    return script


def line(out: str, label: str) -> str:
    """The line of a command's output with this label."""
    return next(text.split(maxsplit=1)[1] for text in out.splitlines() if text.startswith(f"  {label} "))


# ---- what resil can do for a submitted run ------------------------------------------------------------------------

GUARDED = "from resilience.guard import TrainingGuard\n"
OUTLOOKS = [
    (None, False, "none seen yet", "resil kill gpt (saves first if there is a guard); resil cancel gpt (at once)"),
    (GUARDED, False, "train.py imports it", "resil kill gpt (saves first); resil cancel gpt (at once)"),
    ("import torch\n", False, "train.py imports none: nothing is saved", "resil kill gpt (SIGTERM after some minutes"),
    (None, True, "none seen yet", "resil kill gpt (works with a guard only); resil cancel gpt (at once)"),
    (GUARDED, True, "train.py imports it", "resil kill gpt (saves first; a hang is not ended); resil cancel"),
    ("import torch\n", True, "train.py imports none: nothing is saved", "resil cancel gpt (at once)"),
]


@pytest.mark.parametrize(("training", "own", "guard", "stop"), OUTLOOKS)
def test_a_submit_ends_with_guard_log_and_stop(
    shell: Shell, training: str | None, own: bool, guard: str, stop: str
) -> None:
    if training is not None:
        (shell.directory / "train.py").write_text(training)
    words = [str(own_script(shell))] if own else []
    out = shell.resil("submit", "--run", "gpt", *words).out
    assert line(out, "guard").startswith(guard)
    assert line(out, "stop").startswith(stop)
    log = shell.directory / "slurm-101.out" if own else shell.run_dir / "logs" / "gpt-101.out"
    assert line(out, "log") == f"{log} (judged by resil watch log)"


def test_the_log_of_an_array_is_a_pattern_that_a_shell_expands(shell: Shell) -> None:
    log = shell.run_dir / "logs" / "gpt-101_*.out"
    assert line(shell.resil("submit", "--array", "3").out, "log") == f"{log} (judged by resil watch log)"


def test_each_task_of_an_array_has_a_log_of_its_own_id(shell: Shell) -> None:
    script = own_script(shell)
    script.write_text("#!/bin/bash\n#SBATCH -o mine-%j.log\nsrun python train.py\n")
    out = shell.resil("submit", str(script), "--array", "3").out
    assert line(out, "log") == f"{shell.directory / 'mine-*.log'} (judged by resil watch log)"


def test_a_guard_that_an_earlier_attempt_had_counts_more_than_the_text(shell: Shell) -> None:
    shell.resil("submit")
    (shell.run_dir / "journal" / "101.0.jsonl").write_text('{"event":"start","attempt":1}\n')
    shell.fake.records.clear()
    assert line(shell.resil("submit", "--force").out, "guard") == "seen in an earlier attempt"


@pytest.mark.parametrize("file", ["pkg/train.py", "pkg/train/__main__.py"])
def test_the_guard_of_a_module_is_found_in_its_file(shell: Shell, file: str) -> None:
    path = shell.directory / file
    path.parent.mkdir(parents=True)
    path.write_text(GUARDED)
    out = shell.resil("submit", "--run", "gpt", str(own_script(shell, body="srun python -m pkg.train --lr 1"))).out
    assert line(out, "guard").startswith(f"{path.name} imports it")


def test_the_outlook_is_in_the_json_too(shell: Shell) -> None:
    document = shell.resil("submit", "--json").json
    assert document["guard"] == "unknown" and document["log"].endswith("/logs/gpt-%j.out")


def test_output_to_nowhere_is_named(shell: Shell) -> None:
    out = shell.resil("submit", str(own_script(shell)), "--", "--output=/dev/null").out
    assert line(out, "log").startswith("none:")


# ---- the plan on one screen ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["python", "srun", "torchrun", "accelerate", "deepspeed"])
def test_a_dry_run_shows_header_launch_and_command_on_one_screen(shell: Shell, template: str) -> None:
    out = shell.resil("submit", "--template", template, "--chain", "500", "-n").out
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=gpt\n") and "#SBATCH --time=60" in out
    assert "resil_launch" in out and "python train.py" in out
    assert "# would run: fake-sbatch" in out and "# and 498 jobs more" in out and "add --full" in out
    assert len(out.splitlines()) <= 35


def test_a_dry_run_of_an_own_script_shows_its_header_and_launch(shell: Shell) -> None:
    script = own_script(shell, body="module load x\n" * 100 + "srun \\\n  python train.py")
    out = shell.resil("submit", str(script), "-n").out
    assert "#SBATCH --time=60" in out and "\nsrun python train.py\n" in out and "module load" not in out
    assert len(out.splitlines()) < 15


def test_the_whole_script_is_shown_on_request(shell: Shell) -> None:
    whole = shell.resil("submit", "-n", "--full").out
    assert len(whole.splitlines()) > 500 and "--full" not in whole
    assert shell.resil("submit", "--full").code == 2


# ---- the same script again ----------------------------------------------------------------------------------------


def test_a_run_of_an_own_script_is_queued_with_it_again(shell: Shell) -> None:
    script = own_script(shell, "my train.sh")
    shell.resil("submit", "my train.sh", "--run", "my", "--", "--nice", "--", "--lr", "0.1 x")
    shell.fake.records.clear()
    shell.resil("clear", "my")
    said = shell.resil("submit", "--run", "my", "--force")
    assert said.code == 0, said.err
    _, second = shell.fake.submissions
    assert (second.script, second.script_args) == (str(script), ("--lr", "0.1 x"))
    assert f"queueing it again: {shlex.quote(str(script))} --lr '0.1 x'" in said.err


def test_the_template_is_used_again_only_if_asked_for(shell: Shell) -> None:
    own_script(shell)
    shell.resil("submit", "mine.sh", "--run", "my")
    shell.resil("submit", "--run", "my", "--force", "--template", "python")
    shell.resil("submit", "--run", "my", "--force")
    assert [Path(one.script).name == "mine.sh" for one in shell.fake.submissions] == [True, False, False]


def test_a_script_that_is_gone_is_named_with_what_to_type(shell: Shell) -> None:
    script = own_script(shell)
    shell.resil("submit", "mine.sh", "--run", "my")
    script.unlink()
    said = shell.resil("submit", "--run", "my", "--force")
    assert said.code == 2 and str(script) in said.err and "resil submit SCRIPT --run my" in said.err


# ---- adopt --------------------------------------------------------------------------------------------------------


def test_an_adopted_job_is_shown_with_what_works_for_it(shell: Shell) -> None:
    script = own_script(shell, "my train.sh")
    shell.fake.records = [a_job(12, name="tr 11", command=f"{script} -v", stdout="/s/slurm-12.out", nodes="n[1-2]")]
    said = shell.resil("adopt", "12")
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == "adopted job 12 (RUNNING on n[1-2]) as run tr-11"
    assert line(said.out, "log") == "/s/slurm-12.out"
    assert "resil cancel tr-11 (at once); no guard" in line(said.out, "stop")
    again = shell.resil("adopt", "12")
    assert again.code == 0 and "already belongs to run tr-11" in again.out
    assert shell.resil("status", "tr-11").out.startswith("tr-11  running")

    pasted = shlex.split(line(said.out, "next").partition(" (queues")[0])
    assert shell.resil(*pasted[1:]).code == 0
    (submission,) = shell.fake.submissions
    assert submission.options == {"dependency": "afterany:12"}
    assert (submission.script, submission.script_args) == (str(script), ("-v",))


def test_the_run_of_an_adopted_job_continues_behind_it_with_its_script(shell: Shell) -> None:
    script = own_script(shell)
    shell.fake.records = [a_job(12, name="x", command=str(script))]
    shell.resil("adopt", "12")
    assert shell.resil("submit", "--run", "x").code == 0
    (submission,) = shell.fake.submissions
    assert (submission.script, submission.options) == (str(script), {"dependency": "afterany:12"})
    assert shell.resil("submit", "--run", "x").code == 1, "now a job of resil is live: the usual rule"


def test_a_job_that_resil_queued_is_shown_with_what_works_for_it(shell: Shell) -> None:
    script = own_script(shell)
    shell.fake.records = [a_job(12, name="x", command=str(script))]
    shell.resil("adopt", "12")
    assert shell.resil("submit", "--run", "x").code == 0
    said = shell.resil("adopt", "12")
    assert "do not reach this job" in line(said.out, "stop")
    pasted = shlex.split(line(said.out, "next").partition(" (queues")[0])
    assert shell.resil(*pasted[1:]).code == 0
    newest = max(job.id.array for job in shell.fake.records)
    assert line(shell.resil("adopt", str(newest)).out, "stop") == "resil cancel x (at once)"


def test_a_template_can_continue_an_adopted_job(shell: Shell) -> None:
    shell.fake.records = [a_job(12, name="gpt", command="")]  # sbatch --wrap
    shell.resil("adopt", "12")
    assert shell.resil("submit", "--array", "3").code == 0
    (submission,) = shell.fake.submissions
    assert submission.options == {"array": "1-3%1", "dependency": "afterany:12"}
    assert "python train.py" in shell.fake.scripts[0]


def test_adopting_is_planned_without_a_trace_and_told_to_programs(shell: Shell) -> None:
    shell.fake.records = [a_job(12, name="x", user="bob")]
    planned = shell.resil("adopt", "12", "-n", "--json").json
    assert (planned["dry_run"], planned["is_new"], planned["user"]) == (True, True, "bob")
    assert "would adopt job 12" in shell.resil("adopt", "12", "-n").out
    assert not (shell.directory / ".resil").exists()
    document = shell.resil("adopt", "12", "--json").json
    assert (document["kind"], document["run"], document["job_id"], document["state"]) == ("adopt", "x", "12", "RUNNING")


def test_the_switches_of_an_adopted_run_are_told_honestly(shell: Shell) -> None:
    shell.fake.records = [a_job(12, name="x")]
    shell.resil("adopt", "12")
    assert "adopted: queued without resil, it does not see the switch" in shell.resil("save", "x").out
    shell.resil("submit", "--run", "x", "--template", "python")
    killed = shell.resil("kill", "x").out
    assert "adopted job 12: queued without resil, does not see the switch, saves nothing and runs on" in killed
    assert "queued jobs (1) end within seconds of their start" in killed and "resil cancel x" in killed
    assert "has not launched" not in killed


def test_a_script_is_adopted_by_queueing_it_unchanged(shell: Shell) -> None:
    script = own_script(shell)
    said = shell.resil("adopt", "mine.sh")
    assert said.out.startswith("queued run mine: job 101")
    (submission,) = shell.fake.submissions
    assert (submission.script, submission.options) == (str(script), {})
    assert shell.resil("adopt", "mine.sh", "--run", "other", "-n").out.startswith("#!/bin/bash")
    assert len(shell.fake.submissions) == 1


@pytest.mark.parametrize("target", ["nosuch.sh", "12x", "0", "1_", "-5", "１２", "9" * 40, "12.0", "12+1", "12_[1-3]"])
def test_what_is_neither_a_job_nor_a_script_is_refused(shell: Shell, target: str) -> None:
    said = shell.resil("adopt", target)
    assert said.code in (1, 2) and "internal error" not in said.err
    assert not (shell.directory / ".resil").exists()


def test_own_jobs_are_completed_and_a_dead_scheduler_completes_nothing(shell: Shell) -> None:
    shell.fake.records = [
        a_job(12),
        a_job(130),
        a_job(140, comment=make_comment("gpt", "t")),
        a_job(15, JobState.FAILED),
    ]
    assert complete_own_jobs("1") == ["12", "130"]
    shell.fake.trouble = DOWN
    assert complete_own_jobs("") == []


# ---- one process, many nodes --------------------------------------------------------------------------------------

NODES = [
    (("--", "--nodes=2"), True),
    (("--", "-N4"), True),
    (("--", "--nodes=2-4"), True),
    (("--", "--nodes=1-4"), False),
    (("--", "--nodes=1"), False),
    (("--template", "torchrun", "--", "--nodes=2"), False),
    (("--template", "srun", "--", "--nodes=2"), False),
]


@pytest.mark.parametrize(("words", "is_refused"), NODES)
def test_one_process_on_two_nodes_is_refused_with_the_reason(
    shell: Shell, words: tuple[str, ...], is_refused: bool
) -> None:
    said = shell.resil("submit", *words)
    assert said.code == (2 if is_refused else 0), said.err
    assert ("starts one process, on the first of" in said.err) is is_refused


@pytest.mark.parametrize("command", ["srun python train.py", "bash start.sh", "torchrun train.py"])
def test_a_command_that_may_start_the_other_nodes_is_not_refused(shell: Shell, command: str) -> None:
    shell.settings(f'[run]\nname = "gpt"\ncommand = "{command}"\n[sbatch]\nnodes = 2\n')
    assert shell.resil("submit").code == 0


def test_a_template_of_the_project_decides_by_itself(shell: Shell) -> None:
    (shell.directory / "slurm_templates").mkdir()
    (shell.directory / "slurm_templates" / "python.sbatch.j2").write_text('{% extends "shipped/python.sbatch.j2" %}\n')
    assert shell.resil("submit", "--", "--nodes=2").code == 0


# ---- what is printed can be pasted --------------------------------------------------------------------------------


def test_a_path_with_blanks_is_quoted_in_the_advice(shell: Shell) -> None:
    state = shell.directory / "my runs"
    shell.settings(f'[run]\nname = "gpt"\ncommand = "python train.py"\nstate_dir = "{state}"\n')
    shell.resil("submit")
    said = shell.resil("kill", str(state / "gpt"))
    advice = next(text for text in said.out.splitlines() if "to continue the run" in text)
    pasted = shlex.split(advice.split("to continue the run: ")[1].split(";")[0])
    assert pasted == ["resil", "clear", str(state / "gpt")]
    assert shell.resil(*pasted[1:]).out.startswith("cleared: kill")


def test_a_missing_output_directory_is_made_by_the_pasted_hint(shell: Shell) -> None:
    said = shell.resil("submit", str(own_script(shell)), "--", "--output=my logs/x.out")
    hint = shlex.split(said.err.split("try: ")[-1])
    assert hint == ["mkdir", "-p", str(shell.directory / "my logs")]


def test_an_adopted_array_is_shown_with_the_states_of_its_tasks(shell: Shell) -> None:
    shell.fake.records = [
        a_job(12, JobState.PENDING, name="x", tasks="3-9%1", task_count=7),
        a_job(12, name="x", task=2, raw_id=40),
    ]
    assert "would adopt job 12 (7 PENDING, 1 RUNNING) as run x" in shell.resil("adopt", "12", "-n").out


def test_a_treatment_that_does_not_exist_is_refused_before_anything_is_queued(shell: Shell) -> None:
    shell.settings(SETTINGS + '[act.treatments]\nnetwork = "retyr"\n')
    said = shell.resil("submit")
    assert said.code == 2 and "did you mean retry?" in said.err and not shell.fake.records


def test_a_group_that_comes_too_late_for_a_private_run_is_told_at_the_submit(shell: Shell) -> None:
    group = grp.getgrgid(os.getegid()).gr_name
    shell.settings(SETTINGS.replace("[run]\n", f'[run]\ngroup = "{group}"\n'))
    assert "stays private" not in shell.resil("submit", "--run", "ours").err
    assert "stays private" not in shell.resil("submit", "--run", "ours", "--force").err
    shell.settings(SETTINGS)
    shell.resil("submit", "--run", "mine")
    shell.settings(SETTINGS.replace("[run]\n", f'[run]\ngroup = "{group}"\n'))
    said = shell.resil("submit", "--run", "mine", "--force").err
    assert f"run mine was first submitted without a group and stays private: group {group} cannot stop it" in said
