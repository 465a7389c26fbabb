"""What happens when a signal comes: by Python's table, and below it, where NCCL, MPI and others set their handlers.

`signal.getsignal` tells what Python was told. A library that calls sigaction(2) itself is seen only by asking the C
library, or, without ctypes, roughly in /proc/self/status (proc(5): SigCgt).
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

DEFAULT, IGNORED = 0, 1
"""SIG_DFL and SIG_IGN as addresses (bits/signum-generic.h)."""

STRUCT_BYTES = 512
"""More than struct sigaction has anywhere; glibc's has 152."""

_libc: Any = None


def read_action(number: int) -> bytes | None:
    """The struct sigaction of a signal, as it is in memory; None when it cannot be had."""
    try:
        import ctypes

        buffer = ctypes.create_string_buffer(STRUCT_BYTES)
        return buffer.raw if _load(ctypes).sigaction(number, None, buffer) == 0 else None
    except (ImportError, OSError, AttributeError):
        return None


def write_action(number: int, action: bytes) -> bool:
    """Give back what `read_action` returned."""
    try:
        import ctypes

        buffer = ctypes.create_string_buffer(action, STRUCT_BYTES)
        return bool(_load(ctypes).sigaction(number, buffer, None) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def address_of(action: bytes) -> int:
    """Address of the handler: the first field of the struct in glibc and musl, a union of both kinds of handlers."""
    import struct
    import sys

    return int.from_bytes(action[: struct.calcsize("P")], sys.byteorder)


class Below:
    """Remembers which function the kernel calls, and says who has put another there since."""

    def __init__(self) -> None:
        self._addresses: dict[int, int] = {}

    def remember(self, *numbers: int) -> None:
        """Take what is set now for right; numbers that are known already stay as they are."""
        for number in numbers:
            if number not in self._addresses:
                action = read_action(number)
                address = 0 if action is None else address_of(action)
                self._addresses[number] = address if address > IGNORED else 0

    def owner(self, number: int) -> str:
        """Who has replaced the handler below Python; empty when nobody has, or nobody can tell."""
        known = self._addresses.get(number)
        action = read_action(number) if known else None
        if action is None:
            return "nobody: no handler is set" if known == 0 and is_caught(number) is False else ""
        address = address_of(action)
        if address == known:
            return ""
        if address in (DEFAULT, IGNORED):
            return "the default action" if address == DEFAULT else "SIG_IGN: it is ignored"
        return library_of(address) or "a library"


class Replacements:
    """Notices who takes the place of our handler, in Python's table or below it, and tells of each once."""

    def __init__(self, ours: Any) -> None:
        self._ours = ours
        self._below = Below()
        self._judged: dict[int, Any] = {}  # who stands in our place, looked at already
        self._told: set[tuple[int, str]] = set()

    def remember(self, *numbers: int) -> None:
        """Ours was just set for these."""
        self._below.remember(*numbers)

    def is_ours(self, number: int) -> bool:
        """Whether our handler is the one that is called."""
        return signal.getsignal(number) is self._ours and not self._below.owner(number)

    def forget(self, number: int) -> None:
        """Ours was set again: whoever takes its place from now on is told of."""
        self._told = {told for told in self._told if told[0] != number}

    def look(self, numbers: Iterable[int]) -> list[tuple[int, str]]:
        """Return which of these somebody has newly taken, and who. Whoever calls ours in turn has taken nothing."""
        numbers = list(numbers)
        self._below.remember(*numbers)  # the first time, a moment after they were set
        found = []
        for number in numbers:
            current = signal.getsignal(number)
            if current is self._ours:
                owner = self._below.owner(number)
            elif current is self._judged.get(number):
                continue
            else:
                self._judged[number] = current
                owner = "" if calls(current, self._ours) else describe_handler(current)
            if owner and (number, owner) not in self._told:
                self._told.add((number, owner))
                found.append((number, owner))
        return found


def is_caught(number: int) -> bool | None:
    """Whether anybody handles the signal, by /proc; None when that does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            mask = next(line for line in file if line.startswith("SigCgt:")).split()[1]
        return bool(int(mask, 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def library_of(address: int) -> str:
    """Name of the library that an address lies in (proc(5): /proc/pid/maps); empty when that cannot be told."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                span, *rest = line.split(maxsplit=5)
                low, high = (int(bound, 16) for bound in span.split("-"))
                if low <= address < high:
                    return os.path.basename(rest[4].strip()) if len(rest) == 5 else ""
    except (OSError, ValueError):
        pass
    return ""


def _load(ctypes: Any) -> Any:
    global _libc
    if _libc is None:
        _libc = ctypes.CDLL(None)
        _libc.sigaction.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p]
    return _libc


def describe_handler(handler: Any) -> str:
    """What `signal.getsignal` returned, for people: `lightning.trainer.Handlers`, `the default action`."""
    if handler is None:
        return "a library"
    if not callable(handler):
        return "the default action" if handler is signal.SIG_DFL else "SIG_IGN: it is ignored"
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return f"{getattr(handler, '__module__', None) or type(handler).__module__}.{name}"


def calls(handler: Any, ours: Any) -> bool:
    """Whether a Python handler has kept ours, and so probably calls it.

    Looked for in its closure, its defaults, the globals that it names, its object's attributes, and lists of these:
    that is how frameworks chain handlers.
    """
    if not callable(handler):
        return False
    held: list[Any] = []
    for function in (handler, getattr(handler, "__func__", None), getattr(handler, "__call__", None)):  # noqa: B004
        for cell in getattr(function, "__closure__", None) or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        held += getattr(function, "__defaults__", None) or ()
        names = getattr(getattr(function, "__code__", None), "co_names", ())
        known = getattr(function, "__globals__", {})
        held += [known[name] for name in names if name in known]
    for owner in (handler, getattr(handler, "__self__", None), *held):
        attributes = getattr(owner, "__dict__", None)
        if isinstance(attributes, dict):  # not a class or a module, whose attributes are no state of the handler
            held = [*held, *attributes.values()]
    for thing in held:
        inner = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
        if thing is ours or any(one is ours for one in inner):
            return True
    return False
