"""SLURM's hostlist expressions: `n[001-003,7],login1` to names and back. Pure.

The grammar is `scontrol show hostnames`'s (scontrol(1), "show hostnames"). The libraries that do this are under
the GPL or the LGPL, which a permissive package cannot depend on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from resilience.errors import HostlistError

MAX_HOSTS = 65536
"""Refuse to expand beyond this many names: no cluster is larger, and `n[0-999999999]` would fill the memory."""

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TRAILING_NUMBER = re.compile(r"^(.*?)(\d+)$")


def expand(expression: str) -> list[str]:
    """Given a hostlist, return the names in the order written, repeats kept.

    For instance, `n[1-2,05],login` gives `["n1", "n2", "n05", "login"]`. An empty text gives an empty list.
    Raise HostlistError if brackets do not match, a range is backwards or the list would exceed MAX_HOSTS names.
    """
    names: list[str] = []
    for part in _split(expression.strip()):
        for name in _expand_part(part):
            names.append(name)
            if len(names) > MAX_HOSTS:
                raise HostlistError(f"hostlist {expression[:60]!r} has more than {MAX_HOSTS} names")
    return names


def fold(names: Iterable[str]) -> str:
    """Given names, return the shortest hostlist, sorted. For instance, `["n2", "n1", "n3"]` gives `n[1-3]`."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = _TRAILING_NUMBER.match(name)
        if match is None or len(match[2]) > 18:
            plain.append(name)
        else:
            width = len(match[2]) if match[2].startswith("0") else 0
            groups.setdefault((match[1], width), []).append(int(match[2]))
    for (prefix, width), numbers in groups.items():
        ranges = list(_ranges(sorted(numbers), width))
        single = len(ranges) == 1 and "-" not in ranges[0]
        plain.append(f"{prefix}{ranges[0]}" if single else f"{prefix}[{','.join(ranges)}]")
    return ",".join(sorted(plain))


def _split(expression: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth, start = 0, 0
    for position, character in enumerate(expression):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            if position == start:
                raise HostlistError(f"hostlist {expression!r} has an empty name")
            yield expression[start:position]
            start = position + 1
        if depth not in (0, 1):
            raise HostlistError(f"hostlist {expression!r} has brackets that do not match")
    if depth:
        raise HostlistError(f"hostlist {expression!r} has brackets that do not match")
    if start < len(expression):
        yield expression[start:]


def _expand_part(part: str) -> Iterator[str]:
    opening = part.find("[")
    if opening < 0:
        yield part
        return
    closing = part.find("]", opening)
    prefix, body, suffix = part[:opening], part[opening + 1 : closing], part[closing + 1 :]
    tails = list(_expand_part(suffix)) if suffix else [""]
    for piece in body.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise HostlistError(f"{piece!r} in hostlist {part!r} is not a number or a range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise HostlistError(f"range {piece!r} in hostlist {part!r} runs backwards")
        if int(high) - int(low) > MAX_HOSTS:
            raise HostlistError(f"hostlist {part!r} has more than {MAX_HOSTS} names")
        for number in range(int(low), int(high) + 1):
            for tail in tails:
                yield f"{prefix}{number:0{len(low)}d}{tail}"


def _ranges(numbers: list[int], width: int) -> Iterator[str]:
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        first, last = f"{start:0{width}d}", f"{previous:0{width}d}"
        yield first if start == previous else f"{first}-{last}"
        if number is not None:
            start = previous = number
