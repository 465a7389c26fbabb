"""A switch reaches no further than its thrower said, and whatever stands in its file, it is one."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.switch import (
    LABEL,
    TEXT_LIMIT,
    OwnerPolicy,
    Scope,
    Switch,
    describe_age,
    explain_refusal,
    is_accepted,
    parse_fields,
    parse_switch,
    policy_of_mode,
    printable,
)


def test_a_bare_kill_switch_leaves_the_queued_siblings_alone() -> None:
    assert Switch("kill", "anna", 0.0).scope is Scope.JOB
    assert parse_switch("kill", b"", who="anna", written=7.0) == Switch("kill", "anna", 7.0)


def test_the_words_in_files_and_settings_stay_as_they_are() -> None:
    assert [scope.value for scope in Scope] == ["job", "all"]
    assert [policy.value for policy in OwnerPolicy] == ["owner", "group", "any"]


def test_what_a_person_says_is_read() -> None:
    content = b"""who = "someone-else"
when = "2026-11-20T10:57:30+00:00"
why = "loss is NaN since step 41200"
scope = "all"
label = "golden"
"""
    switch = parse_switch("kill", content, who="bob", written=0.0)
    assert switch == Switch("kill", "bob", 1795172250.0, "loss is NaN since step 41200", Scope.ALL, "golden")


@pytest.mark.parametrize("when", ["2026-11-20T10:15:00+01:00", "2026-11-20T09:15:00Z", "2026-11-20T09:15:00+0000"])
def test_another_machines_offset_is_the_same_moment(when: str) -> None:
    """The last is how bash's printf writes it."""
    assert parse_switch("kill", f'when = "{when}"'.encode(), who="bob", written=1.0).when == 1795166100.0


@pytest.mark.parametrize("when", ["", "soon", "2026-11-20", "2026-11-20T10:15:00", "10:15+01:00"])
def test_a_time_without_an_offset_gives_way_to_the_files_own(when: str) -> None:
    assert parse_switch("kill", f'when = "{when}"'.encode(), who="bob", written=1.0).when == 1.0


@given(st.binary(max_size=200))
def test_no_bytes_break_it(content: bytes) -> None:
    switch = parse_switch("save", content, who="bob", written=1.0)
    assert switch.honoured
    assert switch.why.isprintable() and len(switch.why) <= TEXT_LIMIT
    assert switch.label == "" or LABEL.fullmatch(switch.label)


def test_a_bare_touch_needs_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomllib", None)  # an import fails
    assert parse_fields(b" \n") == {}
    with pytest.raises(ImportError):
        parse_fields(b"x = 1")


@pytest.mark.parametrize(
    ("run", "inside", "is_honoured"),
    [("demo", 'run = "demo"', True), ("demo", 'run = "llama"', False), ("", 'run = "llama"', True), ("demo", "", True)],
)
def test_a_switch_that_names_another_run_is_not_honoured(run: str, inside: str, is_honoured: bool) -> None:
    switch = parse_switch("kill", inside.encode(), who="bob", written=1.0, run=run)
    assert switch.honoured is is_honoured
    assert is_honoured or switch.refusal == "it is for run llama, not for demo"


def test_what_the_owner_may_not_do_is_said_first() -> None:
    switch = parse_switch("kill", b'run = "llama"', who="bob", written=1.0, run="demo", refusal="it belongs to bob")
    assert (switch.honoured, switch.refusal) == (False, "it belongs to bob")


@pytest.mark.parametrize(
    ("policy", "uid", "gid", "is_allowed"),
    [
        (OwnerPolicy.OWNER, 1, 9, True),
        (OwnerPolicy.OWNER, 0, 9, True),
        (OwnerPolicy.OWNER, 2, 5, False),
        (OwnerPolicy.GROUP, 2, 5, True),
        (OwnerPolicy.GROUP, 2, 9, False),
        (OwnerPolicy.ANY, 2, 9, True),
    ],
)
def test_whose_switches_steer_the_run_of_user_1_and_group_5(
    policy: OwnerPolicy, uid: int, gid: int, is_allowed: bool
) -> None:
    assert is_accepted(policy, uid=uid, gid=gid, run_uid=1, run_gid=5) is is_allowed


@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        (0o40700, OwnerPolicy.OWNER),
        (0o42750, OwnerPolicy.OWNER),
        (0o42770, OwnerPolicy.GROUP),
        (0o41777, OwnerPolicy.ANY),
    ],
)
def test_who_may_write_the_directory_may_throw(mode: int, policy: OwnerPolicy) -> None:
    assert policy_of_mode(mode) is policy


def test_a_refusal_names_the_owner_and_where_it_matters_the_group() -> None:
    assert explain_refusal(OwnerPolicy.OWNER, "bob", "lab") == "it belongs to bob; this run has policy `owner`"
    assert "and its group lab is not the run's" in explain_refusal(OwnerPolicy.GROUP, "bob", "lab")


@given(st.text())
def test_what_is_shown_is_one_short_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and len(shown) <= TEXT_LIMIT and shown == shown.strip()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-100, ""), (0.5, ""), (59, " 59 s ago"), (61, " 1 min ago"), (7200, " 2 h ago"), (86400, " 1 day ago"),
        (30 * 86400, " 30 days ago"),
    ],
)  # fmt: skip
def test_ages_are_told_roughly(seconds: float, text: str) -> None:
    assert describe_age(seconds) == text
