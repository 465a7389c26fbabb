"""Signal handlers: those of Python, and those that NCCL, MPI and other libraries install with sigaction(2).

`signal.getsignal` returns only Python's own handler. A handler installed by a library is visible through the C library,
or, without ctypes, roughly in /proc/self/status (proc(5): SigCgt).
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
"""Larger than any struct sigaction; glibc's has 152 bytes."""

_libc: Any = None


def read_action(number: int) -> bytes | None:
    """Return the struct sigaction of a signal, as in memory; None if not available."""
    try:
        import ctypes

        buffer = ctypes.create_string_buffer(STRUCT_BYTES)
        return buffer.raw if _load(ctypes).sigaction(number, None, buffer) == 0 else None
    except (ImportError, OSError, AttributeError):
        return None


def write_action(number: int, action: bytes) -> bool:
    """Install the action that `read_action` returned; return whether that succeeded."""
    try:
        import ctypes

        buffer = ctypes.create_string_buffer(action, STRUCT_BYTES)
        return bool(_load(ctypes).sigaction(number, buffer, None) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def address_of(action: bytes) -> int:
    """Return the handler's address: the first field of the struct in glibc and musl, a union of both handler types."""
    import struct
    import sys

    return int.from_bytes(action[: struct.calcsize("P")], sys.byteorder)


class NativeHandlers:
    """Detects that a library has replaced the function that the kernel calls."""

    def __init__(self) -> None:
        self._addresses: dict[int, int] = {}

    def remember(self, *numbers: int) -> None:
        """Store the current handlers of these signals, except of those already stored."""
        for number in numbers:
            if number not in self._addresses:
                action = read_action(number)
                address = 0 if action is None else address_of(action)
                self._addresses[number] = address if address > IGNORED else 0

    def owner(self, number: int) -> str:
        """Return the owner of a handler installed below Python; empty if unchanged or unknown."""
        known = self._addresses.get(number)
        action = read_action(number) if known else None
        if action is None:
            return "nothing: no handler is set" if known == 0 and is_caught(number) is False else ""
        address = address_of(action)
        if address == known:
            return ""
        if address in (DEFAULT, IGNORED):
            return "the default action" if address == DEFAULT else "SIG_IGN: it is ignored"
        return library_of(address) or "a library"


class Replacements:
    """Detects replacements of the guard's handler, by Python code or by a library, and reports each once."""

    def __init__(self, ours: Any) -> None:
        self._ours = ours
        self._native = NativeHandlers()
        self._judged: dict[int, Any] = {}  # Python handlers already checked
        self._reported: set[tuple[int, str]] = set()

    def remember(self, *numbers: int) -> None:
        """Store the native handlers of signals for which the guard's handler was just installed."""
        self._native.remember(*numbers)

    def is_ours(self, number: int) -> bool:
        """Return whether the guard's handler is the active one."""
        return signal.getsignal(number) is self._ours and not self._native.owner(number)

    def reset(self, number: int) -> None:
        """Report replacements of this signal's handler again: the guard's handler was reinstalled."""
        self._reported = {entry for entry in self._reported if entry[0] != number}

    def check(self, numbers: Iterable[int]) -> list[tuple[int, str]]:
        """Return new replacements as (signal, owner). A handler that calls the guard's is not a replacement."""
        numbers = list(numbers)
        self._native.remember(*numbers)  # the first time, just after they were installed
        found = []
        for number in numbers:
            current = signal.getsignal(number)
            if current is self._ours:
                owner = self._native.owner(number)
            elif current is self._judged.get(number):
                continue
            else:
                self._judged[number] = current
                owner = "" if calls(current, self._ours) else describe_handler(current)
            if owner and (number, owner) not in self._reported:
                self._reported.add((number, owner))
                found.append((number, owner))
        return found


def is_caught(number: int) -> bool | None:
    """Return whether the process handles the signal, by /proc; None if unknown."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            mask = next(line for line in file if line.startswith("SigCgt:")).split()[1]
        return bool(int(mask, 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def library_of(address: int) -> str:
    """Return the name of the library that contains an address (proc(5): /proc/pid/maps); empty if unknown."""
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
    """Return a description of a result of `signal.getsignal`: `lightning.trainer.Handlers`, `the default action`."""
    if handler is None:
        return "a library"
    if not callable(handler):
        return "the default action" if handler is signal.SIG_DFL else "SIG_IGN: it is ignored"
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return f"{getattr(handler, '__module__', None) or type(handler).__module__}.{name}"


def calls(handler: Any, ours: Any) -> bool:
    """Return whether a Python handler holds a reference to `ours`, and so probably calls it.

    Searches its closure, defaults, globals and object attributes, and lists of these, as frameworks chain handlers.
    """
    if not callable(handler):
        return False
    held: list[Any] = []
    for function in (handler, getattr(handler, "__func__", None), getattr(handler, "__call__", None)):  # noqa: B004
        for cell in getattr(function, "__closure__", None) or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:  # an empty cell
                continue
        held += getattr(function, "__defaults__", None) or ()
        names = getattr(getattr(function, "__code__", None), "co_names", ())
        known = getattr(function, "__globals__", {})
        held += [known[name] for name in names if name in known]
    for owner in (handler, getattr(handler, "__self__", None), *held):
        attributes = getattr(owner, "__dict__", None)
        if isinstance(attributes, dict):  # excludes classes, whose attributes are not state of the handler
            held = [*held, *attributes.values()]
    for thing in held:
        inner = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
        if thing is ours or any(one is ours for one in inner):
            return True
    return False
