"""The pytest plugin, as a user's own tests use it: each test here is a test file that another pytest runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.schedulers._local.spool import Spool
from tests.docs.markdown import ROOT

pytest_plugins = ["pytester"]
PLUGIN = ("-p", "no:resil", "-p", "resilience.integrations.pytest_plugin")  # once, where resil is installed as well

LOOP = """\
import sys
from resilience.guard import TrainingGuard

def train(steps=20, fail=False):
    with TrainingGuard.from_env() as guard:
        if guard.should_stop_early():
            return guard.exit_code, None
        for _ in range(steps):
            decision = guard.step()
            if decision.save:
                with guard.saving():
                    if fail:
                        raise OSError("no space")
            if decision.stop:
                return guard.exit_code, decision
        return guard.exit_code, None
"""


@pytest.fixture
def outcome(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(loop=LOOP)
    return pytester


def passes(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    """Run a test file of a user in a process of its own."""
    pytester.makepyfile(test_own=text)
    result = pytester.runpytest_subprocess(*PLUGIN, "-q", "-p", "no:cacheprovider", *options, timeout=120)
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    return result


def test_a_scripted_guard_saves_stops_and_says_why(outcome: pytest.Pytester) -> None:
    passes(
        outcome,
        """
        import os, pytest, subprocess, sys
        from loop import train
        from resilience.errors import AgreementLost

        def test_saves_and_stop(resil_guard):
            resil_guard.save_at(3, 4, label="nightly")
            resil_guard.stop_at(6)
            code, decision = train()
            assert (code, resil_guard.saves, resil_guard.stopped_at) == (75, [3, 4, 6], 6)
            assert resil_guard.steps == 6

        def test_nothing_is_asked_for(resil_guard):
            assert train() == (0, None)
            assert (resil_guard.saves, resil_guard.stopped_at, resil_guard.steps) == ([], None, 20)

        @pytest.mark.parametrize("call, trigger", [("kill_at", "kill"), ("time_limit_at", "walltime")])
        def test_a_kill_switch_and_a_time_limit(resil_guard, call, trigger):
            getattr(resil_guard, call)(5)
            code, decision = train()
            assert (code, decision.triggers, resil_guard.saves) == (75, (trigger,), [5])

        def test_a_stop_before_the_first_step(resil_guard):
            resil_guard.stop_at(0, exit_code=1)
            assert train() == (1, None)

        def test_a_failed_save(resil_guard):
            resil_guard.save_at(2)
            with pytest.raises(OSError):
                train(fail=True)
            assert (resil_guard.saves, resil_guard.failed_saves) == ([], [2])

        def test_a_lost_rank_and_an_error_of_my_own(resil_guard):
            resil_guard.raise_at(4)
            with pytest.raises(AgreementLost):
                train()
            resil_guard.raise_at(7, RuntimeError("CUDA error"))
            with pytest.raises(RuntimeError, match="CUDA error"):
                train()
            assert resil_guard.steps == 7

        def test_a_script_that_is_changed_while_the_loop_runs(resil_guard):
            from resilience.guard import TrainingGuard
            with TrainingGuard.from_env() as guard:
                assert not guard.step()
                resil_guard.stop_at(2)
                assert guard.step().stop

        def test_another_process(resil_guard):
            resil_guard.kill_at(2)
            code = "import sys; from loop import train; sys.exit(train()[0])"
            assert subprocess.run([sys.executable, "-c", code]).returncode == 75

        def test_it_is_over_afterwards():
            assert "RESIL_GUARD" not in os.environ
        """,
    )


TRAIN = """\
import sys, time
from pathlib import Path
from resilience.guard import TrainingGuard

with TrainingGuard.from_env() as guard:
    if Path("step").exists():
        guard.resumed(int(Path("step").read_text()))
        print("resuming from step", guard.count, flush=True)
    while guard.count < 60 and not guard.step().stop:
        if guard.count % 10 == 0 and guard.count <= 10:
            Path("step").write_text(str(guard.count))
        time.sleep(0.04)
    guard.finished()
sys.exit(guard.exit_code)
"""


def page_of(heading: str) -> str:
    """Return the first example below a heading of the how-to."""
    page = (ROOT / "docs" / "how-to" / "test-my-training-loop.md").read_text()
    found = re.search(rf"## {heading}.*?```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_examples_of_the_page_pass(outcome: pytest.Pytester) -> None:
    outcome.makepyfile(train=TRAIN, my_project="from loop import train as both\ndef train(): return both()[0]\n")
    passes(outcome, "import my_project\n" + page_of("In milliseconds"))
    passes(outcome, page_of("In seconds"))


def test_a_cluster_runs_jobs_and_leaves_nothing(outcome: pytest.Pytester) -> None:
    passes(
        outcome,
        """
        import sys, time
        from pathlib import Path

        def test_a_script_of_ones_own(resil_cluster, tmp_path):
            script = tmp_path / "own.sbatch"
            script.write_text("#!/bin/bash\\n#SBATCH --time=5\\necho it ran\\n")
            (ended,) = resil_cluster.wait(resil_cluster.submit(script))
            assert ended.state.value == "COMPLETED"
            assert "it ran" in resil_cluster.log()
            assert resil_cluster.kind == "local"
            Path("spool").write_text(str(resil_cluster.directory / "spool"))

        def test_a_wait_in_vain_says_what_there_is(resil_cluster):
            import pytest
            resil_cluster.submit("echo started; sleep 600")
            resil_cluster.wait(until=lambda: "started" in resil_cluster.log())
            with pytest.raises(TimeoutError, match="RUNNING") as late:
                resil_cluster.wait(timeout_s=0.2)
            assert "started" in str(late.value)

        def test_a_rank_of_a_job_that_has_ended_is_not_waited_for(resil_cluster):
            import pytest
            resil_cluster.wait(resil_cluster.submit("true"))
            with pytest.raises(Exception, match="no attempt of run test is running"):
                resil_cluster.kill(rank=0)
            with pytest.raises(TimeoutError, match="all jobs ended before the condition.*COMPLETED"):
                resil_cluster.wait(until=lambda: resil_cluster.step() > 5, timeout_s=3600)
        """,
        "--resil-cluster",
        "embedded",
    )
    spool = Path((outcome.path / "spool").read_text())
    assert spool.is_dir()
    assert Spool(spool).daemon_pid() == 0


def test_slurm_is_used_where_it_answers_and_never_if_the_embedded_one_is_asked_for(
    outcome: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin = outcome.mkdir("bin")
    for name, text in (("sbatch", "touch called"), ("scontrol", "touch called; echo Slurmctld is DOWN")):
        (bin / name).write_text(f"#!/bin/sh\ncd {outcome.path}; {text}\n")
        (bin / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    test = "def test_kind(resil_cluster): assert resil_cluster.kind == 'local'"
    passes(outcome, test, "--resil-cluster", "embedded")
    assert not (outcome.path / "called").exists()
    passes(outcome, test)
    assert (outcome.path / "called").exists()
    skipped = passes(outcome, test, "-o", "resil_cluster=slurm", "-rs")
    skipped.stdout.fnmatch_lines(["*resil_cluster = slurm: scontrol ping says: Slurmctld is DOWN*"])


def test_a_cluster_that_there_is_not_is_told_once_and_no_test_runs(outcome: pytest.Pytester) -> None:
    outcome.makepyfile(test_own="def test_one(resil_cluster): pass\ndef test_two(resil_cluster): pass\n")
    refused = outcome.runpytest_subprocess(*PLUGIN, "-o", "resil_cluster=slrm", timeout=120)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert (refused.stdout.str() + refused.stderr.str()).count("resil_cluster = slrm: write one of") == 1


def test_a_plugin_that_no_test_uses_imports_nothing_of_resil() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import resilience.integrations.pytest_plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(
        ["resilience", "resilience.integrations", "resilience.integrations.pytest_plugin"]
    )
