"""Lines of healthy trainings, with those that look like failures. Deterministic.

The look-alikes are the templates in `look_alikes.lines`: `{n}` is a number, `{f}` a fraction, `{rank}` a rank, `{t}` a
time. A template belongs to the development or to the test half by the hash of its text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.attempts.corpus import is_test
from tests.attempts.corpus.surroundings import STEPS

LOOK_ALIKES = Path(__file__).with_name("look_alikes.lines").read_text(encoding="utf-8").splitlines()


def benign_lines(number: int = 20_000, *, half: bool | None = None) -> Iterator[str]:
    """Return lines of healthy trainings, one in two a look-alike, the same each time; `half`: only templates of the
    test (True) or the development half (False)."""
    chance = random.Random(7)
    templates = [one for one in LOOK_ALIKES if half is None or is_test(one) == half]
    steps = list(STEPS.values())
    for at in range(number):
        if at % 2:
            yield templates[at // 2 % len(templates)].format(
                n=chance.randrange(1, 10**6), f=f"{chance.random() * 9:.3f}", rank=chance.randrange(64),
                t=f"03:{chance.randrange(60):02}:15.926",
            )  # fmt: skip
        else:
            yield chance.choice(steps)(chance.randrange(1, 10**6), chance.random() * 9)
