"""By which means a fault of files is made: what a directory and its hosts permit. Pure."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from resilience.errors import UsageError
from resilience.inject.files import preload
from resilience.inject.files.ballast import SHARED
from resilience.inject.files.behaviour import CHANGE, LOOK, READ, SYNC, WRITE, Behaviour
from resilience.inject.files.place import Facts
from resilience.messages import suggest

MEANS = {
    "fill": "a file without a name takes the space",
    "mount": "a file system is mounted over it (FUSE)",
    "preload": "the library that the training was started with makes its calls fail",
}
"""In the order in which they are tried; the first needs the least, and has the most in common with the real fault."""


_WORDS = {LOOK: "names and attributes", READ: "reads", WRITE: "writes", SYNC: "fsync", CHANGE: "changes"}


_NOT_STARTED = "no training runs that was started by `resil inject preload -- COMMAND`"
_NOT_FULL = "it only makes a full disk"


def choose(
    behaviour: Behaviour, facts: Mapping[str, Facts], by: str, *, is_preloaded: bool, device: int
) -> tuple[str, tuple[str, ...]]:
    """Return the means, and why not by those before it, as sentences.

    Raise UsageError, with the reason of each that does not work, if there is none. `by`: the means that is wanted, or
    empty; `device`: that of the run directory.
    """
    if by and by not in MEANS:
        raise UsageError(f"--by {by}: there is no such means", hint=suggest(by, tuple(MEANS)))
    reasons = {
        "fill": _no_fill(behaviour, facts, device),
        "mount": _on_hosts(facts, "mountable"),
        "preload": preload.why_not(behaviour) if is_preloaded else _NOT_STARTED,
    }
    tried = [how for how in MEANS if how == by or (not by and reasons[how] != _NOT_FULL)]
    for place, how in enumerate(tried):
        if not reasons[how]:
            return how, tuple(f"not by {other}: {reasons[other]}" for other in tried[:place])
    raise UsageError(
        "this fault cannot be made: " + "; ".join(f"not by {how}: {reasons[how]}" for how in tried),
        hint="a mount needs /dev/fuse and fusermount3; else start the training with: resil inject preload -- COMMAND",
    )


def check_directory(facts: Mapping[str, Facts], keep: Sequence[str]) -> None:
    """Raise UsageError for a directory that no fault may be put on. `keep`: paths that must not be below it."""
    for host, one in facts.items():
        where = "" if len(facts) == 1 else f" on {host}"
        if one.is_faulty:
            raise UsageError(f"{one.directory}{where} has a fault already", hint="see: resil inject list")
        if one.error:
            raise UsageError(f"{one.error}{where}", hint="name the directory that the training writes to")
        if one.owner != one.uid or one.directory in SHARED:
            raise UsageError(
                f"{one.directory}{where} is not your own: others would be hit",
                hint="name a directory of your own: that of the checkpoints",
            )
        for path in keep:
            if f"{path}/".startswith(f"{one.directory}/"):
                raise UsageError(
                    f"{one.directory} holds {path}, which resil needs to undo the fault",
                    hint="name the directory of the checkpoints alone",
                )


def describe(behaviour: Behaviour) -> str:
    """Return what the file system does, as the end of a sentence: `fails with ENOSPC when more than 1 MiB ...`."""
    from resilience.quantities import format_bytes

    name = errno.errorcode.get(behaviour.error, "")
    if behaviour.space_bytes is not None:
        amount = f"{format_bytes(behaviour.space_bytes)} left, then" if behaviour.space_bytes else "no space:"
        return f"has {amount} writes fail with {name}"
    if behaviour.on:
        words = [_WORDS[one] for one in behaviour.on]
        return f"fails with {name} at {'everything' if len(words) == len(_WORDS) else ', '.join(words)}"
    late = [f"answers {behaviour.delay_s:g} s late"] if behaviour.delay_s else []
    rate = [f"moves {format_bytes(behaviour.bytes_per_s)} per second"] if behaviour.bytes_per_s else []
    return " and ".join(late + rate)


def _no_fill(behaviour: Behaviour, facts: Mapping[str, Facts], device: int) -> str:
    if behaviour.space_bytes is None or behaviour.error != errno.ENOSPC:
        return _NOT_FULL
    if any(one.device == device for one in facts.values()):
        return "the run directory is on the same file system, and would be full as well"
    return _on_hosts(facts, "fill")


def _on_hosts(facts: Mapping[str, Facts], name: str) -> str:
    for host, one in facts.items():
        if why := str(getattr(one, name)):
            return why if len(facts) == 1 else f"{why} (on {host})"
    return ""
