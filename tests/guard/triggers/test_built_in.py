"""What the guard watches without being asked to, and how each is switched off: the code, and what is written of it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from resilience.guard.gate import Gate
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings, read_settings
from resilience.guard.step_timer import StepTimer
from resilience.guard.triggers import built_in_triggers
from resilience.guard.triggers.loss import GradNorm, Loss
from resilience.guard.triggers.signals import Signals
from resilience.guard.watch import is_polled_on, name_of
from tests.system.people import needs_root

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "guard.md"
OF_A_RUN = ["finished", "stop", "superseded", "kill", "save", "cron"]
OF_EVERY_JOB = ["walltime", "host_memory", "shared_memory", "gpu_memory", "cadence"]
EVERY: dict[str, Any] = {"every": "auto"}
"""Off by default: the training decides when to save."""
ASKED_BY_THE_STEP = {Signals.name, Loss.name, GradNorm.name}
"""The guard has them always; what switches them off makes them ask for nothing."""


def names(place: RankInfo, settings: GuardSettings | None = None, *, asked: bool = False) -> list[str]:
    recorder = Recorder(place, lambda text: None)
    triggers = built_in_triggers(place, settings or GuardSettings(**EVERY), recorder, StepTimer(), Gate())
    return [name_of(trigger) for trigger in triggers if not asked or is_polled_on(trigger, place)]


def in_a_run(directory: Path, **more: Any) -> RankInfo:
    return RankInfo(run="demo", run_dir=str(directory), job_id="12", attempt=3, **more)


def documented() -> dict[str, str]:
    """The table of the page: each trigger, and the setting that switches it off; empty where there is none."""
    table = PAGE.read_text(encoding="utf-8").split("| disable by |", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| *(?:`([^`]+)`)? *\|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n| `")
    return dict(rows)


SWITCHED_OFF = [(name, setting) for name, setting in documented().items() if setting]


# ---- without being asked to ---------------------------------------------------------------------------------------


def test_inside_a_run_everything_is_watched(tmp_path: Path) -> None:
    assert names(in_a_run(tmp_path)) == OF_A_RUN + OF_EVERY_JOB


def test_outside_a_run_there_are_no_files_to_look_at() -> None:
    assert names(RankInfo()) == OF_EVERY_JOB


def test_a_run_directory_without_an_attempt_cannot_be_superseded(tmp_path: Path) -> None:
    place = RankInfo(run="demo", run_dir=str(tmp_path))
    assert names(place) == [name for name in OF_A_RUN + OF_EVERY_JOB if name != "superseded"]


@pytest.mark.parametrize(
    ("rank", "local_rank", "asked"),
    [
        (0, 0, OF_A_RUN + OF_EVERY_JOB),
        (8, 0, ["host_memory", "shared_memory", "gpu_memory"]),
        (1, 1, ["gpu_memory"]),
    ],
)
def test_rank_0_looks_at_files_and_clock_one_rank_of_a_node_at_its_memory_each_at_its_gpu(
    tmp_path: Path, rank: int, local_rank: int, asked: list[str]
) -> None:
    assert names(in_a_run(tmp_path, rank=rank, world=16, local_rank=local_rank, nodes=2), asked=True) == asked


# ---- as it is written -----------------------------------------------------------------------------------------------


def test_the_page_names_every_trigger_and_no_other(tmp_path: Path) -> None:
    assert set(documented()) == {*names(in_a_run(tmp_path)), *ASKED_BY_THE_STEP}


@pytest.mark.parametrize(("name", "setting"), SWITCHED_OFF)
def test_what_the_page_says_switches_off_that_and_nothing_else(tmp_path: Path, name: str, setting: str) -> None:
    place = in_a_run(tmp_path)
    gone = {row for row, by in SWITCHED_OFF if by == setting} - ASKED_BY_THE_STEP
    left = names(place, read_settings({}, **EVERY | tomllib.loads(setting)))
    assert left == [kept for kept in names(place) if kept not in gone]
    assert name not in left


def test_the_switch_of_the_signals_leaves_them_as_they_were() -> None:
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)
    place, off = RankInfo(), tomllib.loads(documented()["signal"])
    for settings, is_ours in ((read_settings({}), True), (read_settings({}, **off), False)):
        signals = Signals(place, settings, Recorder(place, lambda text: None), Gate())
        signals.install()
        try:
            now = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)
            assert (now != before) is is_ours
        finally:
            signals.restore()


def test_the_switch_of_the_loss_makes_nan_no_reason() -> None:
    place, off = RankInfo(), tomllib.loads(documented()["loss"])
    for settings, asks in ((read_settings({}), True), (read_settings({}, **off), False)):
        loss = Loss(place, settings, Recorder(place, lambda text: None))
        assert (loss.check(float("nan"), 1) is not None) is asks


# ---- a whole guard --------------------------------------------------------------------------------------------------

TRAINING = """
import sys, time
from resilience.guard import TrainingGuard

open("/dev/shm/batches", "wb").write(bytes(int(float(sys.argv[1]) * 2**20)))
with TrainingGuard.from_env(poll_s=0.05) as guard:
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        decision = guard.step()
        if decision.stop:
            print(*decision.triggers, decision.save, flush=True)
            break
        time.sleep(0.01)
sys.exit(guard.exit_code)
"""


def train_on_a_small_dev_shm(mib: float, seconds: float) -> subprocess.CompletedProcess[str]:
    """A training of its own, whose /dev/shm is of 16 MiB and holds so many."""
    mount = 'mount -t tmpfs -o size=16m tmpfs /dev/shm || exit 99; exec "$@"'
    training = [sys.executable, "-c", TRAINING, str(mib), str(seconds)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", *training],
        capture_output=True, text=True, timeout=100, check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"cannot mount a tmpfs over /dev/shm here: {done.stderr.strip()}")
    return done


@needs_root
def test_a_training_whose_dev_shm_is_nearly_full_stops_by_default() -> None:
    done = train_on_a_small_dev_shm(15.5, 60)
    assert (done.stdout, done.returncode) == ("shared_memory True\n", 75), done.stderr
    assert "/dev/shm of" in done.stderr


@needs_root
def test_a_training_whose_dev_shm_has_room_goes_on() -> None:
    done = train_on_a_small_dev_shm(8, 3)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
