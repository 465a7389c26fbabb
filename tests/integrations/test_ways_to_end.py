"""Every way in which a training may end, in every form that a loop may have: what the process exits with, what the
journal says, what the record of the attempt says, and where the next job goes on. They say the same, and it is true.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.launched import HERE, REPOSITORY, TORCHRUN, needs
from tests.lab.disks import small_disk
from tests.runs.templates.batch import Batch, Script

TRAINING, LAUNCHER, FRAMEWORK = HERE / "ending_training.py", HERE / "launcher.py", HERE / "framework_training.py"


@dataclass(frozen=True)
class End:
    """How a training ends.

    Attributes:
        code: of the process, and of the job.
        end: the record of the attempt.
        why: is in that record.
        saved: whether the last save is there, from which the next job goes on; else that of step 2 is.
        journalled: what the journal calls it: `end` of a guard that was closed, `exit` of one that was not.
    """

    code: int
    end: str
    why: str
    saved: bool = False
    journalled: str = "end"


ENDS = {
    "kill": End(75, "stopped", "the kill switch", saved=True),
    "SIGTERM in the save": End(75, "stopped", "the kill switch", saved=True),
    "save raises": End(1, "exited", "as asked"),
    "disk full": End(1, "exited", "No space left on device"),
    "save hangs": End(1, "exited", "the last save is not known to be durable", journalled="exit"),
    "step raises": End(1, "exited", "as asked"),
    "sys.exit(3)": End(3, "exited", "sys.exit(3)"),
    "SIGINT": End(130, "exited", "KeyboardInterrupt"),
}
FORMS = ("with", "without", "short")
# What ranks add is the same in each form, and a real SLURM is asked for it too.
OF_RANKS = ("with", *(pytest.param(form, marks=pytest.mark.soak) for form in FORMS[1:]))
FORCED = {"RESIL_GUARD__EXIT_TIMEOUT_S": "3", "RESIL_GUARD__FORCE_EXIT": "on"}  # off by default in tests


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    made = Batch.make(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "256k") as mounted:
        yield mounted


def journal(batch: Batch, rank: int = 0, job: int = 7) -> list[dict[str, Any]]:
    path = batch.run_dir / "journal" / f"{job}.{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def diary(disk: Path, rank: int = 0) -> list[str]:
    return [line.split(" ", 1)[1] for line in (disk / f"diary.{rank}").read_text().splitlines()]


def check_next(batch: Batch, disk: Path, command: str, expected: End, ranks: int) -> None:
    """The next job continues from the last complete save, and finishes the run."""
    batch.switch("kill").unlink(missing_ok=True)
    script = batch.run(command, job=8)
    assert script.process.returncode == 0, script.text
    assert batch.end(2)["end"] == "finished"
    for rank in range(ranks):
        told = diary(disk, rank)
        saved = [int(line.split()[1]) for line in told if line.startswith("saved")]
        begun = [int(line.split()[1]) for line in told if line.startswith("begins")]
        assert begun == [0, max(saved)]
        assert (max(saved) > 2) is expected.saved


@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("form", FORMS)
def test_one_process(batch: Batch, disk: Path, form: str, fault: str) -> None:
    expected = ENDS[fault]
    command = f"exec '{sys.executable}' {TRAINING} {disk} {form}"
    script = batch.run(f"{command} '{fault}'", guard=FORCED)
    assert f"fault {fault}" in diary(disk), script.text
    assert script.process.returncode == expected.code, script.text
    end = batch.end(1)
    assert (end["end"], end["exit_code"]) == (expected.end, expected.code), script.text
    assert expected.why in end["why"], end
    last = [event for event in journal(batch) if event["event"] in ("end", "exit")][-1]
    assert (last["event"], last["exit_code"]) == (expected.journalled, expected.code), last
    assert last.get("stopped", False) is (expected.end == "stopped")
    assert not batch.processes()
    check_next(batch, disk, command, expected, 1)


@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("form", OF_RANKS)
def test_one_of_two_ranks(batch: Batch, disk: Path, form: str, fault: str) -> None:
    """A fault on any rank makes the attempt a crash, even if the launcher's signal makes rank 0 stop cleanly."""
    expected = ENDS[fault]
    command = f"exec '{sys.executable}' {LAUNCHER} 2 {TRAINING} {disk} {form}"
    script = batch.run(f"{command} '{fault}'", guard=FORCED, environment={"FAULT_RANK": "1"})
    assert f"fault {fault}" in diary(disk, 1), script.text
    end = batch.end(1)
    code = 75 if expected.end == "stopped" else 1
    assert (end["end"], end["exit_code"], script.process.returncode) == (expected.end, code, code), script.text
    last = [event for event in journal(batch) if event["event"] in ("end", "exit")][-1]
    assert last.get("stopped", False) is (expected.end == "stopped"), script.text
    assert last["exit_code"] == code, "rank 0 speaks for all"
    assert not batch.processes()
    assert "is killed" not in script.text, "a rank was deaf to its launcher"


# ---- the same with frameworks ---------------------------------------------------------------------------------------

LIBRARIES = {"lightning": ["lightning"], "transformers": ["transformers", "accelerate"], "accelerate": ["accelerate"]}


FRAMEWORK_CASES = [
    pytest.param(form, fault, marks=needs("torch", *libraries))
    for form, libraries in LIBRARIES.items()
    for fault in ENDS
]


def newest_step(disk: Path) -> int:
    """Return the steps of the newest complete checkpoint; each framework names them by the step."""
    steps = [
        int("".join(filter(str.isdigit, path.stem))) for path in (disk / "checkpoints").iterdir() if is_whole(path)
    ]
    return max(steps, default=0)


def is_whole(path: Path) -> bool:
    state = path / "trainer_state.json"  # transformers writes it last
    return path.suffix == ".ckpt" or (
        path.name.startswith("checkpoint-") and state.exists() and state.stat().st_size > 0
    )


def run(batch: Batch, command: str, job: int = 7, **environment: str) -> Script:
    """Run the batch script of a job, with a timeout for a busy machine."""
    script = batch.start(command, job, guard=FORCED, environment={"PYTHONPATH": str(REPOSITORY), **environment})
    script.wait(240)
    return script


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half an hour of processor time: set RESIL_SOAK=1")
@pytest.mark.parametrize(("form", "fault"), FRAMEWORK_CASES)
def test_one_process_of_a_framework(batch: Batch, tmp_path: Path, form: str, fault: str) -> None:
    expected = ENDS[fault]
    with small_disk(tmp_path / "disk", "4m") as disk:
        command = f"cd {disk}; exec '{sys.executable}' {FRAMEWORK} {disk} {form}"
        script = run(batch, f"{command} '{fault}'", FAULT_RANK="0")
        assert f"fault {fault}" in diary(disk), script.text
        code = 1 if (form, fault) == ("lightning", "SIGINT") else expected.code  # Lightning exits so by itself
        assert script.process.returncode == code, script.text
        end = batch.end(1)
        assert (end["end"], end["exit_code"]) == (expected.end, code), script.text
        assert expected.why in end["why"] or code != expected.code, end
        last = [event for event in journal(batch) if event["event"] in ("end", "exit")][-1]
        assert (last["exit_code"], last.get("stopped", False)) == (code, expected.end == "stopped"), last
        assert not batch.processes()
        stopped = [event["step"] for event in journal(batch) if event["event"] == "save"][-1]
        assert newest_step(disk) == stopped, "what is journalled is there, and nothing else"

        batch.switch("kill").unlink(missing_ok=True)
        (disk / "ballast").unlink(missing_ok=True)
        following = run(batch, command, job=8)
        assert following.process.returncode == 0, following.text
        begun = [int(line.split()[1]) for line in diary(disk) if line.startswith("begins")]
        assert begun == [0, stopped]


@pytest.mark.soak
@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="half an hour of processor time: set RESIL_SOAK=1")
@pytest.mark.parametrize(("form", "fault"), FRAMEWORK_CASES)
def test_one_of_two_ranks_of_a_framework_under_torchrun(batch: Batch, tmp_path: Path, form: str, fault: str) -> None:
    """In these frameworks rank 0 saves, while rank 1 waits for it in a barrier; a step may fail on either."""
    expected = ENDS[fault]
    rank = 1 if fault in ("step raises", "sys.exit(3)", "SIGINT") else 0
    with small_disk(tmp_path / "disk", "4m") as disk:
        launch = f"{shlex.join(TORCHRUN)} --nproc-per-node=2 {FRAMEWORK} {disk} {form} '{fault}'"
        script = run(batch, f"cd {disk}; exec {launch}", FAULT_RANK=str(rank))
        assert f"fault {fault}" in diary(disk, rank), script.text
        end = batch.end(1)
        code = 75 if expected.end == "stopped" else 1
        assert (end["end"], end["exit_code"], script.process.returncode) == (expected.end, code, code), script.text
        last = [event for event in journal(batch) if event["event"] in ("end", "exit")][-1]
        assert last.get("stopped", False) is (expected.end == "stopped"), script.text
        assert not batch.processes()
