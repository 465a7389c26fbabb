"""A small training for drills: it resumes, saves with a Store, and survives a failed save."""

TRAIN = """\
import json, os, sys, time
from resilience.checkpoints import Store
from resilience.guard import TrainingGuard

store = Store(sys.argv[1]) if len(sys.argv) > 1 else Store.from_env()
step = 0
with TrainingGuard.from_env(store=store) as guard:
    if guard.should_stop_early():
        sys.exit(guard.exit_code)
    if checkpoint := store.latest():
        step = json.loads((checkpoint.path / "model.json").read_text())["step"]
    guard.resumed(step)
    while step < 100_000:
        time.sleep(0.05)
        step += 1
        decision = guard.step()
        if decision.save:
            try:
                with guard.saving() as part:
                    if guard.place.rank == 0:
                        (part.path / "model.json").write_text(json.dumps({"step": step, "w": "0" * 200_000}))
            except OSError as error:
                print("the save failed:", error, flush=True)
        if decision.stop:
            sys.exit(guard.exit_code)
    guard.finished()
sys.exit(guard.exit_code)
"""
SETTINGS = """\
[run]
name = "tiny"
command = "{python} -u train.py{arguments}"
[submit]
array = "10"
[checkpoints]
path = "checkpoints/{{run}}"
[alert]
channels = ["console"]
"""


def settings(python: str, arguments: str = "") -> str:
    """Return the settings of a project with train.py."""
    return SETTINGS.format(python=python, arguments=f" {arguments}".rstrip())
