"""Dependencies between jobs, always written with their type. Pure. Grammar: sbatch(1), --dependency.

A bare `--dependency=123` is SLURM's old syntax for `afterany`, though many believe that it waits for success.
"""

from __future__ import annotations

import re

from resilience.errors import UsageError

TYPES = ("after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer")
_JOB = re.compile(r"[1-9][0-9]*(_[0-9]+|_\*)?(\+[0-9]+)?")


def write_dependency(text: str) -> str:
    """Given a dependency as people write it, return it with every type spelt out.

    For instance, `12` gives `afterany:12`, `12:13` gives `afterany:12:13` and `afterok:12:13,singleton` stays. Raise
    UsageError if SLURM would refuse it.
    """
    stripped = text.strip()
    separators = {c for c in stripped if c in ",?"}
    if len(separators) > 1:
        raise _bad(text, "`,` (all of them) and `?` (any of them) cannot be mixed")
    separator = separators.pop() if separators else ","
    return separator.join(_write_part(part.strip(), text) for part in stripped.split(separator))


def _write_part(part: str, whole: str) -> str:
    kind, colon, jobs = part.partition(":")
    kind = kind.lower()  # SLURM takes any case
    if part.lower() == "singleton":
        return kind
    if not colon or _JOB.fullmatch(kind):
        kind, jobs = "afterany", part
    if kind not in TYPES:
        raise _bad(whole, f"there is no type {kind!r}")
    for job in jobs.split(":"):
        if _JOB.fullmatch(job) is None:
            raise _bad(whole, f"{job!r} is not a job id")
        if "+" in job and kind != "after":
            raise _bad(whole, "only `after` takes a delay in minutes")
    return f"{kind}:{jobs}"


def _bad(text: str, why: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a dependency: {why}", hint=f"write for instance afterany:123; types: {', '.join(TYPES)}"
    )
