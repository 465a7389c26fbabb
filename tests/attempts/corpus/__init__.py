"""A labelled corpus of the ends of training logs, and its two halves.

Entries are in the `*.txt` files beside this one, one per family of failures:

    %%%% CLASS NAME in=FRAMEWORK/LAUNCHER exit=1 | source of the wording
    text of the failure
    » the line that decides

`produced.txt` was made by scripts/produce_failures.py from programs that really failed; the others were written after
the texts of the programs that their headers name. Around a written text come steps of the named framework before it
and the echo of the named launcher after it (surroundings.py). Macros: `@tb` a traceback of own code, `@worker` of a
DataLoader worker, `@during` a chained exception, `@nccl` and `@watchdog` innocent echoes of other ranks, `@sigterm`
what SIGTERM makes torchrun print, `@steps` further steps.

An entry belongs to the development or to the test half by the hash of its fingerprint: its class and the words of its
deciding line. So the same wording never is in both halves. `second.txt` and `third.txt`, written after the first and
the second score, are development only. Rules are mended with the development half only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from resilience.attempts.classify import Evidence
from resilience.attempts.failure import FailureClass
from resilience.job import JobState
from resilience.runs.attempts import AttemptEnd
from tests.attempts.corpus.surroundings import surround

HERE = Path(__file__).parent
MARK = "» "
LATER = ("second/", "third/", "fourth/")
"""Written after a score of the test half: development only."""
_PREFIX = re.compile(r"^(?:\[rank\d+\]:? ?|\s*\d+: |[\w.-]+: (?=error:)|\[[^]]*\] ?|\S*(?:Error|Exception|Exit): )+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One end of a log.

    Attributes:
        name: unique.
        label: what it is, by the person who wrote or produced it.
        source: of the wording.
        evidence: the log, and what is known besides it.
        line: the deciding line; empty: no line decides.
        fingerprint: equal for the same wording.
    """

    name: str
    label: FailureClass
    source: str
    evidence: Evidence
    line: str
    fingerprint: str

    @property
    def is_test(self) -> bool:
        """Return whether it belongs to the test half."""
        return not self.name.startswith(LATER) and is_test(self.fingerprint)


def is_test(fingerprint: str) -> bool:
    """Return whether a fingerprint belongs to the test half; the salt was chosen, before any score was known, so that
    each class has a quarter of its entries in either half."""
    return hashlib.sha256(f"1:{fingerprint}".encode()).digest()[0] % 2 == 1


@cache
def all_entries() -> tuple[Entry, ...]:
    """Return the corpus in the order of its files."""
    return tuple(one for path in sorted(HERE.glob("*.txt")) for one in _read(path))


def _read(path: Path) -> Iterator[Entry]:
    for part in path.read_text(encoding="utf-8").split("\n%%%% ")[1:]:
        header, _, body = part.partition("\n")
        head, _, source = header.partition(" | ")
        label, name, *rest = head.split()
        options = dict(one.split("=", 1) for one in rest)
        name = f"{path.stem}/{label}/{name}"
        body = body.rstrip("\n")
        marked = next((line for line in body.split("\n") if line.startswith(MARK)), "").removeprefix(MARK)
        body = "\n".join(line.removeprefix(MARK) for line in body.split("\n"))
        failure = FailureClass(label)
        framework, _, launcher = options.get("in", "/").partition("/")
        if framework:
            body = surround(body, framework, launcher, name)
        state = options.get("state")
        code = options.get("exit") or ("1" if not state else "")
        evidence = Evidence(
            log=body,
            end=AttemptEnd(options["end"]) if "end" in options else None,
            state=JobState(state) if state else None,
            exit_code=int(code) if code.isdecimal() else None,
            oom_kills=int("oom_kill" in options),
        )
        yield Entry(name, failure, source, evidence, marked, _fingerprint(failure, marked, name))


def _fingerprint(label: FailureClass, line: str, name: str) -> str:
    words = re.sub(r"[^A-Za-z ]+", " ", _PREFIX.sub("", line)).lower().split()[:5]
    return f"{label}: {' '.join(words) or name}"
