"""Whether a launch failed because of a node, as the batch shell of a job with spares asks: what is said, exit codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.cli import spares
from resilience.cluster import Node
from resilience.errors import ProbeError
from tests.lab.fakes import DOWN
from tests.lab.shell import SETTINGS, Shell

GPU = """\
[n2:0]:RuntimeError: CUDA error: uncorrectable ECC error encountered
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_10:00:00
  host      : n2
  rank      : 1 (local_rank: 0)
  exitcode  : 1 (pid: 77)
  error_file: <N/A>
"""
Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Submit, let an attempt of job 101 on n[1-3] fail, and ask: the exit code and the last line."""
    shell.settings(SETTINGS)
    assert shell.resil("submit").code == 0
    shell.fake.cluster = tuple(Node(f"n{number}", "MIXED") for number in range(1, 5))

    def call(
        left: str = "2 n1 n2 n3", silent: dict[str, str] | None = None, excluded: str = "", log: str = ""
    ) -> tuple[int, str]:
        def reach(system: object, hosts: list[str]) -> dict[str, str]:
            if silent is None:
                raise ProbeError("srun did not answer in 40 s")
            return {host: why for host, why in silent.items() if host in hosts}

        monkeypatch.setattr(spares, "silent_nodes", reach)
        monkeypatch.setenv("RESIL_LEFT", left)
        monkeypatch.setenv("RESIL_ATTEMPT", "1")
        attempts = shell.run_dir / "attempts"
        (attempts / "0001").write_text('job_id = 101\nlabel = "101"\nrestart = 0\nhost = "n1"\npid = 7\nstart = 1000\n')
        if excluded:
            record = (
                f'{{"hosts": [{{"host": "{excluded}", "why": "2 attempts failed there", "jobs": [], "left": []}}]}}'
            )
            (attempts / "excluded.json").write_text(record)
        (shell.run_dir / "logs" / "gpt-101.out").write_text(f"resil: START attempt 1 of gpt\n{log}")
        capsys.readouterr()
        code = spares.main(str(shell.run_dir))
        return code, capsys.readouterr().out.splitlines()[-1]

    return call


def test_a_node_that_does_not_answer_is_lost_although_slurm_does_not_know(ask: Ask) -> None:
    assert ask(silent={"n2": "srun cannot reach n2"}) == (10, "n1,n3 srun cannot reach n2")


def test_a_node_that_slurm_has_lost_is_not_asked(ask: Ask, shell: Shell) -> None:
    shell.fake.cluster = (Node("n1", "DOWN", ("NOT_RESPONDING",)),)
    said = "n2,n3 SLURM says that n1 is DOWN, NOT_RESPONDING"
    assert ask(silent={"n1": "never asked"}) == (10, said)


def test_with_too_few_left_there_is_no_other_launch(ask: Ask) -> None:
    assert ask(left="2 n1 n2", silent={"n2": "srun cannot reach n2"}) == (10, "- srun cannot reach n2")


def test_a_lost_spare_is_no_reason_for_a_failure(ask: Ask) -> None:
    assert ask(silent={"n3": "srun cannot reach n3"}) == (0, "nothing is known against n1, n2")


def test_a_node_that_earlier_failures_name_is_bad_and_not_lost(ask: Ask) -> None:
    assert ask(silent={}, excluded="n1") == (11, "n2,n3 n1: 2 attempts failed there")


def test_a_node_that_this_failure_names_is_bad(ask: Ask) -> None:
    code, said = ask(silent={}, log=GPU)
    assert code == 11 and said.startswith("n1,n3 n2: the log says: ")


def test_without_evidence_nothing_is_said(ask: Ask) -> None:
    assert ask(silent={}) == (0, "nothing is known against n1, n2, n3")


def test_who_cannot_look_names_no_node(ask: Ask, shell: Shell) -> None:
    shell.fake.troubles["nodes"] = DOWN
    assert ask(silent={}) == (0, "nothing is known against n1, n2, n3")
    assert ask() == (0, "the nodes were not looked at: srun did not answer in 40 s")
