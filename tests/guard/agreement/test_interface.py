from __future__ import annotations

import socket

import pytest

from resilience.guard.agreement import interface
from resilience.guard.agreement.interface import is_ours, listening_host


def test_ranks_of_one_node_listen_on_loopback_whatever_the_environment_says() -> None:
    assert listening_host("", local=True, names=("192.0.2.77", socket.gethostname())) == "127.0.0.1"


def test_the_setting_wins_as_an_address_a_name_or_an_interface() -> None:
    for local in (True, False):
        assert listening_host("192.0.2.77", local=local, names=()) == "192.0.2.77"
        assert listening_host("localhost", local=local, names=()) == "127.0.0.1"
        assert listening_host("lo", local=local, names=()) == "127.0.0.1"
    assert listening_host("no-such-interface-at-all", local=False, names=()) == "no-such-interface-at-all"


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def test_the_first_name_that_is_an_address_of_this_machine_is_taken() -> None:
    own = own_address()
    names = ("", "no-such-host.invalid", "203.0.113.5", "localhost", own)
    assert listening_host("", local=False, names=names) == own


def test_without_any_name_the_address_towards_others_is_taken_and_never_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert listening_host("", local=False, names=()) == own_address()
    monkeypatch.setattr(interface, "_address_towards_others", lambda: "")
    assert listening_host("", local=False, names=()) == "127.0.0.1"


def test_what_is_ours() -> None:
    assert is_ours("127.0.0.1")
    assert is_ours("localhost")
    assert is_ours("::1")
    assert not is_ours("203.0.113.5")
    assert not is_ours("no-such-host.invalid")
    assert not is_ours("")
    assert not is_ours("x" * 300)
