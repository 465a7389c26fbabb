"""Expands and folds SLURM's hostlist expressions such as `n[001-003,7],login1`. Pure.

The grammar is that of `scontrol show hostnames` (scontrol(1)). Existing libraries are under the GPL or the LGPL, which
a permissively licensed package cannot depend on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from resilience.errors import HostlistError

MAX_HOSTS = 65536
"""Maximum number of names: no cluster is larger, and `n[0-999999999]` would exhaust the memory."""

# ASCII: SLURM accepts only the digits 0 to 9. 18 digits fit 64 bits, and int() refuses very long texts.
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TRAILING_NUMBER = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)
_SEPARATOR = re.compile(r"\s*,\s*|\s+")
_SPECIAL = re.compile(r"[\[\],\s]|^$")


def expand(expression: str) -> list[str]:
    """Return the names of a hostlist in the given order, duplicates included.

    For instance, `n[1-2,05],login` gives `["n1", "n2", "n05", "login"]`. An empty text gives an empty list.
    Raise HostlistError if brackets do not match, a range is backwards or the list would exceed MAX_HOSTS names.
    """
    names: list[str] = []
    for part in _split(expression.strip()):
        names += islice(_expand_part(part), MAX_HOSTS + 1 - len(names))
        if len(names) > MAX_HOSTS:
            raise HostlistError(f"hostlist {_short(expression)} has more than {MAX_HOSTS} names")
    return names


def fold(names: Iterable[str]) -> str:
    """Return a short hostlist of the names, sorted and without duplicates. For instance, `["n2", "n1", "n3"]` gives
    `n[1-3]`.

    `n09` and `n10` are consecutive (`n[09-10]`), `n9` and `n09` are two hosts (`n[09,9]`), as in SLURM.
    Raise HostlistError for an empty name or a name with brackets, commas or blanks.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        if _SPECIAL.search(name):
            raise HostlistError(f"{name!r} cannot be a host's name")
        match = _TRAILING_NUMBER.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            groups.setdefault(match[1], []).append((int(match[2]), match[2]))
    for prefix, numbers in groups.items():
        ranges = list(_ranges(sorted(numbers)))
        single = len(ranges) == 1 and "-" not in ranges[0]
        plain.append(f"{prefix}{ranges[0]}" if single else f"{prefix}[{','.join(ranges)}]")
    return ",".join(sorted(plain))


def _split(expression: str) -> Iterator[str]:
    """Yield the parts between commas outside brackets; blanks also separate, as in scontrol."""
    expression = _SEPARATOR.sub(",", expression)
    depth, start = 0, 0
    for position, character in enumerate(expression):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            if position == start:
                raise HostlistError(f"hostlist {_short(expression)} has an empty name")
            yield expression[start:position]
            start = position + 1
        if depth not in (0, 1):
            break
    if depth:
        raise HostlistError(f"hostlist {_short(expression)} has brackets that do not match")
    if start < len(expression):
        yield expression[start:]


def _expand_part(part: str) -> Iterator[str]:
    opening = part.find("[")
    if opening < 0:
        yield part
        return
    closing = part.find("]", opening)
    prefix, body, suffix = part[:opening], part[opening + 1 : closing], part[closing + 1 :]
    # Limited before any name is built: `n[1-65536][1-65536]` would exhaust the memory.
    tails = list(islice(_expand_part(suffix), MAX_HOSTS + 1)) if suffix else [""]
    for piece in body.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise HostlistError(f"{_short(piece)} in hostlist {_short(part)} is not a number or a range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise HostlistError(f"range {piece!r} in hostlist {_short(part)} is descending")
        if int(high) - int(low) >= MAX_HOSTS:
            raise HostlistError(f"hostlist {_short(part)} has more than {MAX_HOSTS} names")
        for number in range(int(low), int(high) + 1):
            for tail in tails:
                yield f"{prefix}{number:0{len(low)}d}{tail}"


def _ranges(numbers: list[tuple[int, str]]) -> Iterator[str]:
    """Yield ranges such as `09-11` and `7` of sorted (number, text) pairs.

    A range pads its numbers to the width of the first, so only numbers of that form join the range.
    """
    last_of: dict[str, str] = {}
    expected: dict[str, str] = {}
    for number, text in numbers:
        first = expected.pop(text, text)
        last_of[first] = text
        expected[f"{number + 1:0{len(first)}d}"] = first
    for first, last in last_of.items():
        yield first if first == last else f"{first}-{last}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
