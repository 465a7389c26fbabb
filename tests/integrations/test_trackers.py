"""W&B, MLflow and TensorBoard are told of restarts, saves and stops, and never hold up a training."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from resilience.guard import Request
from resilience.integrations import trackers
from resilience.integrations.trackers import Tell, Told, compose, to_mlflow, to_tensorboard
from tests.guard.guards import Requester, make_guard, make_run, train

WHY = "the loss is odd"


def a_training(run: Path, tell: Tell) -> int:
    """Resume at step 40, save, and stop. Return the step of the stop."""
    with make_guard(make_run(run), triggers=[Requester(Request("mine", WHY))], on_event=tell) as guard:
        guard.resumed(40)
        decision = train(guard, until=lambda decision: decision.stop)
        with guard.saving():
            pass
        return decision.step


def test_restart_stop_and_save_are_told_once_and_in_order(tmp_path: Path) -> None:
    told: list[Told] = []
    step = a_training(tmp_path, Tell(told.append))
    assert [(one.kind, one.step) for one in told] == [("restart", 40), ("stop", step), ("save", step)]
    assert told[0].why == "attempt 3 continues at step 40" and WHY in told[1].why


@pytest.mark.parametrize(
    "event",
    [{"event": "resume", "step": 0}, {"event": "decision", "stop": False, "save": True, "step": 7},
     {"event": "save_begin", "step": 7}, {"event": "phase", "step": None}, {}],
)  # fmt: skip
def test_other_events_are_not_told(event: dict[str, Any]) -> None:
    assert compose(event) is None


def test_other_ranks_tell_nothing() -> None:
    told: list[Told] = []
    tell = Tell(told.append)
    for name in ("start", "resume", "end"):
        tell({"event": name, "rank": 1, "step": 9})
    assert not told and threading.active_count() == len(threading.enumerate())
    assert not any(thread.name == "resil-tracker" for thread in threading.enumerate())


def test_a_tracker_that_hangs_holds_up_no_step_and_the_end_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "FLUSH_S", 0.2)
    released = threading.Event()

    def hang(told: Told) -> None:
        released.wait(300)

    assert a_training(tmp_path, Tell(hang)) > 40
    released.set()
    for thread in threading.enumerate():
        if thread.name == "resil-tracker":
            thread.join(20)


def test_a_tracker_that_fails_is_told_no_more_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(told: Told) -> None:
        raise ConnectionError("no server")

    with caplog.at_level(logging.WARNING):
        assert a_training(tmp_path, Tell(fail)) > 40
    assert len(caplog.records) == 1 and "no server" in caplog.text


def test_an_on_event_that_raises_is_a_warning_and_the_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(event: object) -> None:
        raise RuntimeError("mine")

    assert a_training(tmp_path, fail) > 40  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("on_event failed and is not called any more") == 1


# ---- the real ones, without a network


WANDB = """
import pathlib, sys, wandb
from resilience.integrations.trackers import to_wandb
from tests.integrations.test_trackers import a_training
with wandb.init(mode="offline", project="p", settings=wandb.Settings(silent=True)) as run:
    step = a_training(pathlib.Path("run"), to_wandb(run))
    run.log({"loss": 1.0})
    print(run.step, step, run.summary["resil/restart"], run.summary["resil/stop"], run.summary["resil/stop_why"])
"""


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", WANDB], cwd=tmp_path, env=env, capture_output=True, text=True,
                          timeout=200)  # fmt: skip
    assert done.returncode == 0, done.stderr
    history, step, restart, stop, why = done.stdout.split(maxsplit=4)
    assert history == "1", "the training's own steps are not moved"
    assert (restart, stop) == ("40", step) and WHY in why
    content = b"".join(path.read_bytes() for path in (tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert b"resil/save" in content and b"resil/restart" in content and WHY.encode() in content


@pytest.mark.filterwarnings("ignore")
def test_mlflow_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow or mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    id = client.create_run(client.create_experiment("e")).info.run_id
    step = a_training(tmp_path / "run", to_mlflow(client, id))
    data = client.get_run(id).data
    assert data.metrics == {"resil/restart": 40.0, "resil/stop": step, "resil/save": step}
    assert WHY in data.tags["resil/stop_why"]


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    writer_module = pytest.importorskip("torch.utils.tensorboard", reason="needs torch")
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-not-found,unused-ignore]
        EventAccumulator,
    )

    writer = writer_module.SummaryWriter(str(tmp_path / "tb"))
    step = a_training(tmp_path / "run", to_tensorboard(writer))
    writer.close()
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert {"resil/restart", "resil/save", "resil/stop"} <= set(events.Tags()["scalars"])
    assert [one.value for one in events.Scalars("resil/stop")] == [step]
    assert "resil/stop_why/text_summary" in events.Tags()["tensors"]
