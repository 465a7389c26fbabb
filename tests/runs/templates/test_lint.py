"""What is wrong with a script before it is queued."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.runs.templates.lint import LintFacts, LintFinding, Severity, lint

GOOD = """\
#!/bin/bash
#SBATCH --open-mode=append
#SBATCH --output=logs/%x-%A_%a.out
trap stop USR1
python train.py & wait
"""


def findings(script: str = GOOD, facts: LintFacts | None = None, **options: str | None) -> tuple[LintFinding, ...]:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return lint(script, named, facts or LintFacts())


def messages(severity: Severity, script: str = GOOD, **wishes: Any) -> str:
    return "\n".join(finding.message for finding in findings(script, **wishes) if finding.severity is severity)


def refused(script: str = GOOD, **wishes: Any) -> str:
    return messages(Severity.REFUSE, script, **wishes)


def warned(script: str = GOOD, **wishes: Any) -> str:
    return messages(Severity.WARN, script, **wishes)


def test_a_good_script_gets_no_finding() -> None:
    assert findings(array="1-10%1", time="20:00:00", signal="B:USR1@300", dependency="afterany:5", requeue=None) == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"time": "5", "signal": "B:USR1@250"}, "would be sent as soon as the job begins"),
        ({"time": "5", "signal": "B:USR1@300"}, "would be sent as soon as the job begins"),
        ({"time": "5", "signal": "B:USR1"}, ""),
        ({"time": "2", "signal": "B:USR1"}, "would be sent as soon"),
        ({"time": "5", "signal": "B:USR1@239"}, ""),
        ({"time": "UNLIMITED", "signal": "B:USR1@65535"}, ""),
        ({"signal": "B:USR1@65536"}, "refuses a lead above 65535"),
        ({"signal": "B:USR1@soon"}, "is not a signal"),
        ({"signal": "X:USR1@60"}, "is not a signal"),
        ({"signal": "@60"}, "is not a signal"),
        ({"time": "soon"}, "is not a SLURM time"),
        ({"array": ""}, "--array is empty"),
        ({"array": "1-"}, "--array"),
        ({"array": "10-1"}, "is descending"),
        ({"array": "1-10%x"}, "--array"),
        ({"job_name": "a\nb"}, "control character"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, str], words: str) -> None:
    assert words in refused(**options)
    assert bool(refused(**options)) == bool(words)


def test_an_array_beyond_the_cluster_is_refused_with_the_largest_index() -> None:
    facts = LintFacts(max_array_size=1001)
    assert "indices up to 1000" in refused(facts=facts, array="1-1001%1")
    assert not refused(facts=facts, array="0-1000%1")
    assert not refused(array="1-100000%1"), "not known: nothing is said"


def test_array_0_is_one_task_and_perhaps_not_what_was_meant() -> None:
    assert "is one task, with index 0" in warned(array="0")
    assert not warned(array="0-9%1")


def test_tasks_that_would_overwrite_each_other_are_noticed() -> None:
    script = GOOD.replace("%x-%A_%a", "%x")
    assert "all tasks of the array write to logs/%x.out" in warned(script, array="1-2%1")
    assert not warned(script, array="1")
    assert not warned(script, array="1-2", output="%j.out")


def test_a_lead_shorter_than_the_measured_save_is_noticed() -> None:
    facts = LintFacts(measured_save_s=400)
    assert "a save of this run took 400 s" in warned(facts=facts, time="600", signal="B:USR1@300")
    assert not warned(facts=facts, time="600", signal="B:USR1@800")


@pytest.mark.parametrize(("stop_after_s", "is_told"), [(0, False), (200, True), (300, True), (301, False)])
def test_stop_after_within_the_lead_is_noticed(stop_after_s: float, is_told: bool) -> None:
    said = warned(facts=LintFacts(stop_after_s=stop_after_s), signal="B:USR1@300")
    assert (f"stop_after of {stop_after_s} s is no longer than the lead of 300 s" in said) is is_told


def test_a_trap_that_no_signal_reaches_is_noticed() -> None:
    assert "the trap for USR1 in the script will never run" in warned(signal="USR1@300")


def test_a_batch_shell_that_would_die_of_its_signal_is_noticed() -> None:
    script = GOOD.replace("trap stop USR1\n", "")
    assert "has no trap for USR1 and would be killed by it" in warned(script, signal="B:USR1@300")
    assert not warned(script + "exec python train.py\n", signal="B:USR1@300")


def test_directives_after_the_first_command_and_dos_line_ends_are_noticed() -> None:
    assert "'#SBATCH -N 2' comes after the first command" in warned(GOOD + "#SBATCH -N 2\n")
    assert "DOS line ends" in refused(GOOD.replace("\n", "\r\n"))
    assert "does not begin with #!" in refused("echo\n")
    assert "unmatched" in warned(GOOD.replace("#SBATCH --open", "#SBATCH --comment='x\n#SBATCH --open"))


def test_a_requeue_that_empties_the_log_is_noticed() -> None:
    assert "truncates the output file" in warned(GOOD.replace("append", "truncate"), requeue=None)


@pytest.mark.parametrize("value", ["87", "87_4", "afterok:5,87"])
def test_a_dependency_without_type_is_noticed(value: str) -> None:
    assert "has no type" in warned(dependency=value)


@pytest.mark.parametrize("value", ["afterany:87", "afterok:87:88", "singleton", "afterok:1?afterany:2"])
def test_a_dependency_with_a_type_is_not(value: str) -> None:
    assert not warned(dependency=value)


def test_directories_are_judged_by_what_is_known_of_them() -> None:
    facts = LintFacts(
        run="mine",
        run_dir_owner="yours",
        state_dir="/tmp/resil",
        state_dir_is_node_local=True,
        missing_directories=("/logs",),
    )
    assert "already belongs to the run 'yours'" in refused(facts=facts)
    assert "the output directory /logs does not exist" in refused(facts=facts)
    assert "other nodes cannot see it" in warned(facts=facts)
    assert not findings(facts=LintFacts(run="mine", run_dir_owner="mine"))


def test_variables_that_override_silently_are_named() -> None:
    facts = LintFacts(sbatch_environment=("SBATCH_OPEN_MODE", "SBATCH_QOS", "SBATCH_TIMELIMIT", "SBATCH_NOT_ONE"))
    found = warned(facts=facts).splitlines()
    assert found == [
        "SBATCH_OPEN_MODE is set in your environment and wins over the script's own --open-mode",
        "SBATCH_QOS is set in your environment and adds --qos",
        "SBATCH_TIMELIMIT is set in your environment and adds --time",
    ]
    assert not warned(facts=LintFacts(sbatch_environment=("SBATCH_TIMELIMIT",)), time="5"), "the command line wins"


def test_the_command_line_wins_over_the_directives() -> None:
    script = GOOD.replace("#SBATCH --open", "#SBATCH --time=5 --signal=B:USR1@280\n#SBATCH --open")
    assert refused(script)
    assert not refused(script, time="60")


def test_the_worst_comes_first() -> None:
    severities = [finding.severity for finding in findings(array="0", time="soon", dependency="5")]
    assert severities == [Severity.REFUSE, Severity.WARN, Severity.WARN]


FORMS = [
    ("nodes", "2", ""), ("nodes", "2-4", ""), ("nodes", "1k", ""), ("nodes", "1,3,8-16:4", ""),
    ("nodes", "-3", "a number of nodes"), ("nodes", "nan", "a number of nodes"), ("nodes", "1.5", "a number of nodes"),
    ("nodes", "\u0663", "a number of nodes"), ("nodes", "", "a number of nodes"),
    ("ntasks", "8", ""), ("ntasks", "-3", "a whole number"), ("cpus-per-task", "nan", "a whole number"),
    ("mem", "64G", ""), ("mem", "0", ""), ("mem", "-1", "a size"), ("mem-per-cpu", "inf", "a size"),
    ("begin", "now", ""), ("begin", "now+1hour", ""), ("begin", "now + 3 days", ""), ("begin", "16:00 tomorrow", ""),
    ("begin", "tomorrow", ""), ("begin", "Teatime", ""), ("begin", "2027-06-01T10:00:00", ""), ("begin", "0601", ""),
    ("begin", "06/01/27-16:00", ""), ("begin", "4:00 PM", ""), ("begin", "uts1900000000", ""),
    ("begin", "nan", "a time"), ("begin", "inf", "a time"), ("begin", "4pm", "a time"), ("begin", "1_0", "a time"),
    ("begin", "\u0663\u0663:00", "a time"), ("begin", "1", "a time"), ("begin", "soon", "a time"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value", "form"), FORMS)
def test_a_value_that_sbatch_refuses_is_refused(option: str, value: str, form: str) -> None:
    said = refused(**{option: value})
    assert (f"--{option}={value} is not {form}" in said) if form else not said


def test_an_unknown_option_is_named_with_the_nearest_and_passed_on() -> None:
    assert "sbatch has no option --tiem, unless a plugin of this site adds it" in warned(tiem="5")
    (found,) = findings(tiem="5")
    assert found.hint == "did you mean --time?"
    assert "--frob" in warned(frob=None)
    assert not warned(container_image="x.sqsh", part="gpu", stepmgr=None)
