"""Simulated trainers: what common training frameworks write in a day, and how they hang.

`day.py` simulates a day of one trainer; `language_models.py`, `vision.py` and `others.py` hold the trainers, one class
each; `background.py` the lines that other threads and programs write into the same log; `watching.py` runs the log
watchdog over a day by a fake clock, and counts false alarms and the delay of each hang. Nothing here is a recorded log.
"""

from __future__ import annotations

from tests.watch.trainers import held_out as held_out_one
from tests.watch.trainers import held_out_two, language_models, others, vision
from tests.watch.trainers.day import Trainer


def all_trainers(held_out: int = 0) -> dict[str, Trainer]:
    """Return each trainer by its name: of a held-out set, 1 or 2, or those that the watchdog is tuned with."""
    modules = ((language_models, vision, others), (held_out_one,), (held_out_two,))[held_out]
    return {one.__name__: one() for module in modules for one in module.TRAINERS}
