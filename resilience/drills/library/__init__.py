"""Drills: each file exports one as DRILL. `outlook` and `judge` are pure; `play` breaks a training and waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from resilience.drills.training import Training
from resilience.drills.words import Facts, Judgement, Outlook, Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One drill: a file in library/, or in `drills/` of a plugin directory, that exports it as DRILL.

    Attributes:
        summary: what is broken, in a few words.
        expects: what should happen, said before.
        outlook: returns what would happen with some settings. Pure.
        play: breaks a running training, and waits for what follows. It raises CouldNotLook if the fault is not possible
            here.
        judge: returns the verdict. Pure.
        preloads: whether the training starts with the library of `resil inject preload` where nothing can be mounted.
    """

    summary: str
    expects: str
    outlook: Callable[[Facts], Outlook]
    play: Callable[[Training], None]
    judge: Callable[[Seen, Facts], Judgement]
    preloads: bool = False
