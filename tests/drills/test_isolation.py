"""A drill stays away from the real run: its settings, what it warns of, and what it looks at."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.base.processes import start_ticks
from resilience.drills import scratch as scratches
from resilience.drills.isolation import SLURM_TEMPO, changed, drill_run, fingerprint, hazards, isolated, preloaded
from resilience.drills.scratch import OWNER, scratch, scratch_of
from resilience.drills.stage import own_environ
from resilience.drills.words import Facts
from resilience.errors import UsageError
from tests.lab.fakes import make_project

# A process that could be another drill: this test's parent.
OTHER = os.getppid()
PROJECT = Path("/home/ada/gpt")
FACTS = Facts(run="gpt", command="python train.py", store="/home/ada/gpt/checkpoints/gpt")


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "python train.py --lr 0.1 --data /data/c4",
        "torchrun --nproc-per-node 8 train.py --log-level debug",
        "python train.py --log_every 10 --output-format json --logging",
        'python train.py --save "$RESIL_DRILL_DIR"',
        "python train.py --out ${RESIL_DRILL_DIR:-/scratch/gpt}",
        "if true; then python 'train.py",
    ],
)
def test_a_command_that_names_no_output_may_be_drilled(command: str) -> None:
    assert hazards(FACTS, PROJECT, command) == ()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python train.py /home/ada/gpt/checkpoints/gpt", "names the real run's directory of checkpoints"),
        ("python train.py --resume=/home/ada/gpt/checkpoints/gpt/step-00000010", "names the real run's directory"),
        ("python train.py ./checkpoints/gpt/", "names the real run's directory"),
        ("python train.py --output_dir /scratch/gpt", "--output_dir /scratch/gpt"),
        ("python train.py --output_dir=runs", "--output_dir=runs"),
        ("python train.py hydra.out_dir=runs", "out_dir=runs"),
        ("python pretrain.py --save /scratch/gpt --tensorboard-dir /scratch/tb", "--save /scratch/gpt"),
        ("python train.py --ckpt-path x.pt", "--ckpt-path x.pt"),
        ("python train.py --logdir logs", "--logdir logs"),
    ],
)
def test_a_command_that_writes_where_the_real_run_does_is_named(command: str, says: str) -> None:
    found = hazards(FACTS, PROJECT, command)
    assert found and says in found[0], found


def test_a_training_that_saves_where_resil_does_not_know_would_go_on_from_the_real_run() -> None:
    (found,) = hazards(Facts(run="gpt", command="python train.py"), PROJECT, "python train.py")
    assert "overwrite" in found


def test_a_framework_that_saves_by_its_own_configuration_is_named() -> None:
    (found,) = hazards(replace(FACTS, is_own_store=False), PROJECT, "python train.py --config gpt.yaml")
    assert "a framework saves there" in found


def test_a_tracker_that_goes_on_with_the_run_is_named() -> None:
    facts = replace(FACTS, environment=("WANDB_PROJECT", "WANDB_RUN_ID", "OMP_NUM_THREADS"))
    (found,) = hazards(facts, PROJECT, "python train.py")
    assert "WANDB_RUN_ID" in found


def test_state_checkpoints_and_evidence_are_those_of_the_drill(tmp_path: Path) -> None:
    own = isolated(FACTS, "walltime", tmp_path, SLURM_TEMPO)
    assert own["RESIL_RUN__NAME"] == "gpt-drill"
    places = ("RESIL_RUN__STATE_DIR", "RESIL_CHECKPOINTS__PATH", "RESIL_NODES__EVIDENCE")
    assert {os.path.commonpath([own[name], tmp_path]) for name in places} == {str(tmp_path)}
    assert own["RESIL_ALERT__CHANNELS"] == "console", "nobody is woken by a drill"
    assert "RESIL_CHECKPOINTS__PATH" not in isolated(Facts(run="gpt"), "walltime", tmp_path, SLURM_TEMPO)


def test_a_training_starts_with_the_library_only_where_its_command_is_a_whole_one() -> None:
    made = preloaded("cd x && python t.py", "srun", "/py")
    assert made == "/py -m resilience inject preload -- bash -c 'cd x && python t.py'"
    assert preloaded("train.py", "torchrun", "/py") == "train.py"


def test_the_name_of_a_long_run_still_fits() -> None:
    assert drill_run("x" * 100).endswith("-drill") and len(drill_run("x" * 100)) == 100


def test_the_environment_of_a_surrounding_job_is_left_out() -> None:
    environ = {
        "SLURM_JOB_ID": "7",
        "RESIL_RUN": "gpt",
        "RESIL_ATTEMPT": "3",
        "RESIL_SBATCH__PARTITION": "p",
        "HOME": "/",
    }
    own = own_environ(environ, {"RESIL_RUN__NAME": "x"}, Path("/spool"))
    assert own == {
        "RESIL_SBATCH__PARTITION": "p", "HOME": "/", "RESIL_RUN__NAME": "x", "RESIL_LOCAL_SPOOL": "/spool",
        "RESIL_LOCAL_IDLE_S": "1", "RESIL_RUN__ALLOW_INJECT": "true",
    }  # fmt: skip


def test_files_that_were_changed_added_and_removed_are_found(tmp_path: Path) -> None:
    for name in ("kept", "grown", "gone"):
        (tmp_path / name).write_text(name)
    before = fingerprint(tmp_path)
    (tmp_path / "grown").write_text("longer than before")
    (tmp_path / "gone").unlink()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    found = [Path(name).name for name in changed(before, fingerprint(tmp_path))]
    assert found == ["gone", "grown", "file"]
    assert fingerprint(tmp_path / "nowhere") == {} == fingerprint(None)


@pytest.mark.parametrize(("ticks", "refused"), [(start_ticks(OTHER), "another drill runs"), (1, "")])
def test_a_directory_of_drills_is_left_to_the_drill_that_runs_and_taken_from_one_that_is_gone(
    tmp_path: Path, ticks: int, refused: str
) -> None:
    """Its process id alone says nothing: another process may have it now."""
    project = make_project(tmp_path, settings='[run]\nname = "gpt"\ncommand = "true"\n')
    root = scratch_of(project)
    root.mkdir(parents=True)
    (root / OWNER).write_text(f"{socket.gethostname()} {OTHER} {ticks}\n")
    if refused:
        with pytest.raises(UsageError, match=refused), scratch(project, root, keep=False, say=print):
            pass
        assert root.exists()
    else:
        with scratch(project, root, keep=False, say=print):
            owner = f"{socket.gethostname()} {os.getpid()} {start_ticks(os.getpid())}"
            assert (root / OWNER).read_text().strip() == owner
        assert not root.exists()


def test_of_two_drills_that_begin_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path, settings='[run]\nname = "gpt"\ncommand = "true"\n')
    root = scratch_of(project)

    def other_begins(*_: object) -> None:
        root.mkdir(parents=True)
        (root / OWNER).write_text("node7 12 34\n")

    monkeypatch.setattr(scratches, "clean_up", other_begins)
    with pytest.raises(UsageError, match="another drill begins"), scratch(project, root, keep=False, say=print):
        pass
    assert [path.name for path in root.parent.iterdir() if root.name in path.name] == [root.name]


def test_a_directory_that_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path, settings='[run]\nname = "gpt"\ncommand = "true"\n')
    root, said = scratch_of(project), list[str]()
    monkeypatch.setattr(scratches, "REMOVAL_S", 0.0)

    def refused(*_: object, dir_fd: int | None = None) -> None:
        raise PermissionError(13, "Permission denied", "of-another-user")

    with scratch(project, root, keep=False, say=said.append):
        monkeypatch.setattr(os, "unlink", refused)
    monkeypatch.undo()
    assert said == [f"{root} could not be removed (of-another-user: Permission denied)"]


def test_a_drill_on_another_host_is_not_taken_away_and_how_to_find_out_is_said(tmp_path: Path) -> None:
    project = make_project(tmp_path, settings='[run]\nname = "gpt"\ncommand = "true"\n')
    root = scratch_of(project)
    root.mkdir(parents=True)
    (root / OWNER).write_text("login7 4711 99\n")
    with pytest.raises(UsageError, match="started on login7") as refused, scratch(project, root, keep=False, say=print):
        pass
    assert "ssh login7 ps -p 4711" in refused.value.hint and "--name gpt-drill" in refused.value.hint
    assert root.exists()
