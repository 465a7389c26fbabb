"""A training's batch shell starts a dead scheduler of cron again: once, when it is wanted, and only what is ours."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from resilience import cron_late
from tests.lab.waiting import until
from tests.runs.templates.batch import Batch

WAITS = 'while [ ! -e "$RESIL_RUN_DIR/go" ]; do sleep 0.05; done; exit 75'


class Cron:
    """The cron directory beside a run, with a program that notes each time it is run."""

    def __init__(self, batch: Batch) -> None:
        self.path = batch.root / ".cron"
        self.path.mkdir()
        self.ran = batch.root / "ran"
        self.program(10, "the scheduler was dead: job 88 restarts it")

    def program(self, code: int, said: str) -> None:
        (self.path / "revive.bash").write_text(f'#!/bin/bash\necho x >>"{self.ran}"\necho "{said}"\nexit {code}\n')
        (self.path / "revive.bash").chmod(0o600)

    def beat(self, ago_s: float, **fields: Any) -> None:
        moment = time.time() - ago_s
        (self.path / "heartbeat").write_text(
            json.dumps({"time": moment, "expected": moment + 60, "patience_s": 0.0, **fields})
        )

    def runs(self) -> int:
        return self.ran.read_text().count("x") if self.ran.exists() else 0


@pytest.fixture
def cron(batch: Batch) -> Cron:
    return Cron(batch)


def train(batch: Batch, cron: Cron, jobs: int = 1, beats: int = 5, is_wanted: bool = True) -> None:
    """Let trainings run for a few beats of their batch shells."""
    wish: dict[str, Any] = {"cron": str(cron.path), "cron_look_s": 0} if is_wanted else {}
    scripts = [batch.start(WAITS, 7 + n, **wish) for n in range(jobs)]
    beat = batch.run_dir / "attempts" / "0001.beat"
    until(lambda: beat.exists() and int(beat.read_text().split()[1]) > beats, "a few beats", timeout_s=60)
    (batch.run_dir / "go").touch()
    for script in scripts:
        assert script.wait(60) == 75


def test_a_dead_scheduler_is_started_again_once_and_it_is_journalled(batch: Batch, cron: Cron) -> None:
    cron.beat(3600)
    train(batch, cron, beats=10)
    assert cron.runs() == 1
    (event,) = [record for record in batch.journal() if record["event"].startswith("cron")]
    assert event["event"] == "cron_revived" and "job 88" in event["said"]


def test_of_many_trainings_one_acts(batch: Batch, cron: Cron) -> None:
    cron.beat(3600)
    train(batch, cron, jobs=4, beats=10)
    assert cron.runs() == 1


def test_after_its_patience_it_is_tried_again(batch: Batch, cron: Cron) -> None:
    cron.beat(3600)
    cron.program(75, "squeue does not answer")
    mark = cron.path / "reviving"
    mark.mkdir()
    old = time.time() - 1000
    os.utime(mark, (old, old))
    train(batch, cron, beats=10)
    assert cron.runs() == 1
    (event,) = [record for record in batch.journal() if record["event"].startswith("cron")]
    assert (event["event"], event["code"]) == ("cron_not_revived", 75)
    assert not list(cron.path.glob(".reviving*"))


def test_nobody_looks_unless_it_is_wanted(batch: Batch, cron: Cron) -> None:
    cron.beat(3600)
    train(batch, cron, is_wanted=False)
    assert cron.runs() == 0 and "resil_cron=''" in (batch.root / "script.7.0").read_text()


def test_a_program_that_hangs_keeps_neither_heartbeat_nor_training_up(batch: Batch, cron: Cron) -> None:
    cron.beat(3600)
    (cron.path / "revive.bash").write_text("#!/bin/bash\nsleep 3600\n")
    train(batch, cron, beats=10)


def is_late(cron: Cron, tmp_path: Path) -> bool:
    """What the rule in bash says."""
    shipped = (Path(__file__).parents[3] / "slurm_templates" / "_attempt.bash").read_text()
    begin, end = shipped.index("resil_cron_is_late()"), shipped.index("resil_claim_cron()")
    reader = next(line for line in shipped.splitlines() if line.startswith("resil_read()"))
    script = f"set -u\nresil_cron={cron.path}\n{reader}\n{shipped[begin:end]}\nresil_cron_is_late"
    return subprocess.run(["bash", "-c", script], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("ago_s", "pause_s", "late_s"),
    [(100, 60, 0), (230, 60, 0), (250, 60, 0), (2690, 900, 0), (2710, 900, 0), (100, 60, 30), (85, 60, 30),
     (500, -5, 0), (170, -5, 0), (1e6, 1e9, 0)],
)  # fmt: skip
def test_its_rule_is_the_one_that_everybody_has(
    batch: Batch, cron: Cron, tmp_path: Path, ago_s: float, pause_s: float, late_s: float
) -> None:
    now = time.time()
    cron.beat(ago_s, expected=now - ago_s + pause_s, patience_s=late_s)
    assert is_late(cron, tmp_path) is cron_late.is_late(now - ago_s, now - ago_s + pause_s, now, late_s)


@pytest.mark.parametrize(
    "content", ["", "{", '{"time": "$(touch /tmp/x)"}', '{"time": 99999999999999999999, "expected": 1}']
)
def test_a_damaged_sign_of_life_starts_nothing(batch: Batch, cron: Cron, tmp_path: Path, content: str) -> None:
    (cron.path / "heartbeat").write_text(content)
    assert not is_late(cron, tmp_path)


def test_what_was_stopped_or_is_not_safe_to_run_is_left_alone(batch: Batch, cron: Cron, tmp_path: Path) -> None:
    cron.beat(3600)
    program = cron.path / "revive.bash"
    assert is_late(cron, tmp_path)
    (cron.path / "stop").touch()
    assert not is_late(cron, tmp_path)
    (cron.path / "stop").unlink()
    program.chmod(0o602)
    assert not is_late(cron, tmp_path), "anybody could have written it"
    program.chmod(0o600)
    program.rename(cron.path / "elsewhere")
    assert not is_late(cron, tmp_path), "nothing was installed"
    program.symlink_to(cron.path / "elsewhere")
    assert not is_late(cron, tmp_path), "a link may lead anywhere"


def test_what_lives_is_left_alone(batch: Batch, cron: Cron) -> None:
    cron.beat(60)
    train(batch, cron)
    assert cron.runs() == 0 and not (cron.path / "reviving").exists()
