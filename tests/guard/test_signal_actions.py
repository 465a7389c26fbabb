"""Signal handlers of Python and of libraries, and the detection of replacements."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from resilience.guard.signal_actions import (
    DEFAULT,
    IGNORED,
    Replacements,
    address_of,
    calls,
    describe_handler,
    is_caught,
    library_of,
    read_action,
    write_action,
)

libc = ctypes.CDLL(None)
libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p


def ours(number: int, frame: Any) -> None: ...


def another(number: int, frame: Any) -> None: ...


def calls_ours(number: int, frame: Any) -> None:
    ours(number, frame)


@pytest.fixture
def replacements() -> Iterator[Replacements]:
    before = signal.signal(signal.SIGUSR1, ours)
    yield Replacements(ours)
    signal.signal(signal.SIGUSR1, before)


def usr1_address() -> int:
    action = read_action(signal.SIGUSR1)
    assert action is not None
    return address_of(action)


def test_a_replacement_is_reported_once_and_again_after_a_reinstall(replacements: Replacements) -> None:
    assert replacements.check([signal.SIGUSR1]) == [] and replacements.is_ours(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, another)
    ((number, owner),) = replacements.check([signal.SIGUSR1])
    assert number == signal.SIGUSR1 and owner.endswith("test_signal_actions.another")
    assert replacements.check([signal.SIGUSR1]) == [] and not replacements.is_ours(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert replacements.check([signal.SIGUSR1]) == [(signal.SIGUSR1, "the default action")]
    signal.signal(signal.SIGUSR1, ours)
    replacements.reset(signal.SIGUSR1)
    assert replacements.check([signal.SIGUSR1]) == []


def test_a_handler_that_calls_ours_is_not_a_replacement(replacements: Replacements) -> None:
    signal.signal(signal.SIGUSR1, calls_ours)
    assert replacements.check([signal.SIGUSR1]) == []


@pytest.mark.parametrize(("address", "who"), [(DEFAULT, "the default action"), (IGNORED, "SIG_IGN: it is ignored")])
def test_a_native_handler_unknown_to_python_is_detected(replacements: Replacements, address: int, who: str) -> None:
    replacements.remember(signal.SIGUSR1)
    pythons = libc.signal(signal.SIGUSR1, address)
    try:
        assert signal.getsignal(signal.SIGUSR1) is ours
        assert not replacements.is_ours(signal.SIGUSR1)
        assert replacements.check([signal.SIGUSR1]) == [(signal.SIGUSR1, who)]
    finally:
        libc.signal(signal.SIGUSR1, pythons)
    assert replacements.is_ours(signal.SIGUSR1)


def test_an_action_that_was_read_can_be_given_back(replacements: Replacements) -> None:
    action, address = read_action(signal.SIGUSR1), usr1_address()
    assert action is not None and address > IGNORED and library_of(address)
    libc.signal(signal.SIGUSR1, DEFAULT)
    assert usr1_address() == DEFAULT and is_caught(signal.SIGUSR1) is False
    assert write_action(signal.SIGUSR1, action)
    assert usr1_address() == address and is_caught(signal.SIGUSR1) is True


def test_an_address_in_no_library_has_no_name() -> None:
    assert library_of(8) == ""


def test_a_library_is_named_by_its_file() -> None:
    address = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    assert address is not None and library_of(address).startswith(("libc", "ld-musl"))


def test_handlers_are_described() -> None:
    assert describe_handler(None) == "a library"
    assert describe_handler(signal.SIG_DFL) == "the default action"
    assert describe_handler(signal.SIG_IGN) == "SIG_IGN: it is ignored"
    assert describe_handler(another) == f"{__name__}.another"
    assert describe_handler(_Keeps(ours)) == f"{__name__}._Keeps"
    assert describe_handler(_Keeps(ours).handle) == f"{__name__}._Keeps.handle"


class _Keeps:
    def __init__(self, *kept: Any) -> None:
        self.kept = list(kept)

    def __call__(self, number: int, frame: Any) -> None: ...

    def handle(self, number: int, frame: Any) -> None: ...


def _closes_over(kept: Any) -> Any:
    return lambda number, frame: kept(number, frame)


def _unfilled() -> Any:
    """A handler whose closure has an empty cell: the name is bound only later."""

    def handler(number: int, frame: Any) -> None:
        later(number, frame)

    if os.getpid() < 0:
        later = ours
    return handler


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        (_closes_over(ours), True),
        (_closes_over(another), False),
        (_Keeps(ours), True),
        (_Keeps(another).handle, False),
        (_Keeps(another, ours).handle, True),
        (_closes_over({"usr1": ours}), True),
        (calls_ours, True),
        (another, False),
        (_unfilled(), False),
        (signal.SIG_DFL, False),
        (None, False),
    ],
)
def test_a_handler_that_has_kept_ours_is_recognised(handler: Any, found: bool) -> None:
    assert calls(handler, ours) is found
