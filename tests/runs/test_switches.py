"""A switch is obeyed only as a regular file of somebody who may; whatever lies there, nobody waits for it."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience import layout
from resilience.errors import StateDirectoryError, UsageError
from resilience.runs.run_directory import RunDirectory
from resilience.runs.switches import clear, policy_of, read_switch, write_switch
from resilience.switch import TEXT_LIMIT, OwnerPolicy, Scope, Switch
from tests.lab.fakes import make_project
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

KILL = layout.KILL_SWITCH
STRANGER_GID = 65533


def place(run: RunDirectory) -> Path:
    return run.path / layout.SWITCHES / KILL


def thrown(run: RunDirectory, policy: OwnerPolicy = OwnerPolicy.OWNER) -> Switch:
    switch = read_switch(run, KILL, policy)
    assert switch is not None
    return switch


# ---- throwing and clearing


@given(
    why=st.text(st.characters(categories=["L", "N", "P"]), max_size=50),
    scope=st.sampled_from(Scope),
    when=st.integers(0, 2**31),
)
def test_a_thrown_switch_reads_back(
    tmp_path_factory: pytest.TempPathFactory, why: str, scope: Scope, when: int
) -> None:
    run = RunDirectory(tmp_path_factory.mktemp("run") / "llama")
    run.create("")
    me = run.path.owner()
    write_switch(run, Switch(KILL, me, when, why, scope))
    assert read_switch(run, KILL, OwnerPolicy.OWNER) == Switch(KILL, me, when, why, scope)


def test_a_save_switch_carries_its_label(run: RunDirectory) -> None:
    write_switch(run, Switch(layout.SAVE_SWITCH, "anna", 1.0, label="before-lr-drop"))
    switch = read_switch(run, layout.SAVE_SWITCH, OwnerPolicy.OWNER)
    assert switch is not None and switch.label == "before-lr-drop"


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_runs_jobs_can_read_what_a_colleague_threw(run: RunDirectory, umask: int) -> None:
    before = os.umask(umask)
    try:
        path = write_switch(run, Switch(KILL, "anna", 1.0))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_no_switch_is_none(run: RunDirectory) -> None:
    assert read_switch(run, KILL, OwnerPolicy.OWNER) is None


def test_clearing_says_whether_there_was_one(run: RunDirectory) -> None:
    write_switch(run, Switch(KILL, "anna", 1.0))
    project = make_project(run.path.parent)
    assert clear(project, run) == (KILL,)
    assert clear(project, run) == ()
    assert read_switch(run, KILL, OwnerPolicy.OWNER) is None


def test_a_switch_that_cannot_be_cleared_is_an_error(run: RunDirectory) -> None:
    place(run).mkdir()
    with pytest.raises(StateDirectoryError, match="cannot remove"):
        clear(make_project(run.path.parent), run)


# ---- what people put there


def test_a_bare_touch_is_a_switch(run: RunDirectory) -> None:
    place(run).touch()
    os.utime(place(run), (1000, 1000))
    switch = thrown(run)
    assert (switch.honoured, switch.why, switch.when, switch.scope) == (True, "", 1000.0, Scope.JOB)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"loss is nan, stop please\n", "loss is nan, stop please"),
        (b"why = half a line", "why = half a line"),
        (b"a\x00b\x1b[2Jc\x07\rd", "a b [2Jc d"),
        (b'why = "red \\u001b[31m\\u202etxt"', "red [31m txt"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x = " + b"[" * 30_000, "x = " + "[" * (TEXT_LIMIT - 4)),
        (b"x = " + b"9" * 5000, "x = " + "9" * (TEXT_LIMIT - 4)),
        (b"x = 0x" + b"f" * 5000, "x = 0x" + "f" * (TEXT_LIMIT - 6)),
        (b"long " * 30_000, ("long " * 200)[:TEXT_LIMIT]),
    ],
    ids=["note", "torn", "control bytes", "escapes", "not utf-8", "nested", "huge", "huge hex", "long"],
)
def test_whatever_is_written_in_it_is_a_switch_with_a_short_printable_reason(
    run: RunDirectory, content: bytes, why: str
) -> None:
    place(run).write_bytes(content)
    switch = thrown(run)
    assert (switch.honoured, switch.why) == (True, why)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    run = RunDirectory(tmp_path_factory.mktemp("run") / "llama")
    run.create("")
    place(run).write_bytes(content)
    switch = thrown(run)
    assert switch.honoured
    assert switch.why.isprintable()


@pytest.mark.parametrize("when", ["yesterday", "2026-11-20", "2026-11-20T10:00:00", "0001-01-01T00:00:00", "9999", ""])
def test_a_time_without_meaning_gives_way_to_the_files_own(run: RunDirectory, when: str) -> None:
    place(run).write_text(f'when = "{when}"')
    os.utime(place(run), (1000, 1000))
    assert thrown(run).when == 1000.0


def test_an_unknown_scope_reaches_no_further_than_the_job(run: RunDirectory) -> None:
    place(run).write_text('scope = "everything"')
    assert thrown(run).scope is Scope.JOB


@pytest.mark.parametrize("label", ["../../etc", "a/b", ".hidden", "-rf", "a b", "x" * 101])
def test_a_label_that_is_no_plain_word_is_dropped(run: RunDirectory, label: str) -> None:
    place(run).write_text(f'label = "{label}"')
    assert thrown(run).label == ""


def test_the_name_inside_does_not_hide_who_wrote_it(run: RunDirectory) -> None:
    place(run).write_text('who = "somebody-else"')
    assert thrown(run).who == run.path.owner()


# ---- what may not be obeyed


def test_a_switch_copied_from_another_run_is_named_and_not_obeyed(run: RunDirectory) -> None:
    place(run).write_text('run = "gpt"')
    assert "it is for run gpt, not for llama" in thrown(run).refusal
    place(run).write_text('run = "llama"')
    assert thrown(run).honoured


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "directory", "socket"])
@pytest.mark.parametrize("policy", OwnerPolicy)
def test_anything_but_a_regular_file_is_named_and_not_obeyed(
    run: RunDirectory, kind: str, policy: OwnerPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place(run)
    if kind == "link":
        path.symlink_to(run.path / layout.RUN_FILE)
    elif kind == "dangling link":
        path.symlink_to("/nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        monkeypatch.chdir(path.parent)  # a socket's path may not be long
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    switch = thrown(run, policy)
    assert not switch.honoured
    assert re.search(r"symbolic link|not a regular file", switch.refusal)


@needs_root
@pytest.mark.parametrize(
    ("policy", "gid", "honoured"),
    [
        (OwnerPolicy.OWNER, 0, False),
        (OwnerPolicy.GROUP, 0, True),
        (OwnerPolicy.GROUP, STRANGER_GID, False),
        (OwnerPolicy.ANY, STRANGER_GID, True),
    ],
)
def test_a_strangers_switch_is_judged_by_the_policy(
    run: RunDirectory, policy: OwnerPolicy, gid: int, honoured: bool
) -> None:
    place(run).touch()
    os.chown(place(run), NOBODY, gid)
    switch = thrown(run, policy)
    assert switch.honoured is honoured
    assert honoured or re.search(rf"belongs to (nobody|{NOBODY}).*policy `{policy.value}`", switch.refusal)


@needs_root
def test_the_owner_and_root_are_always_obeyed(run: RunDirectory) -> None:
    os.chown(run.path, NOBODY, STRANGER_GID)
    for uid in (NOBODY, 0):
        place(run).touch()
        os.chown(place(run), uid, 0)
        assert thrown(run, OwnerPolicy.OWNER).honoured


@needs_root
def test_a_colleagues_switch_that_their_umask_closed_to_us_is_obeyed_nevertheless(run: RunDirectory) -> None:
    open_the_way(place(run))
    me = 65532
    for directory in (run.path, run.path / layout.SWITCHES):
        os.chown(directory, me, me)
        directory.chmod(0o2770)
    place(run).touch(mode=0o600)
    os.chown(place(run), NOBODY, me)
    with acting_as(me):
        assert thrown(run, OwnerPolicy.GROUP).honoured
        assert not thrown(run, OwnerPolicy.OWNER).honoured


# ---- the default policy


@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        (0o700, OwnerPolicy.OWNER),
        (0o755, OwnerPolicy.OWNER),
        (0o2750, OwnerPolicy.OWNER),
        (0o2770, OwnerPolicy.GROUP),
        (0o777, OwnerPolicy.ANY),
        (0o1777, OwnerPolicy.ANY),
    ],
)
def test_who_may_write_the_directory_may_throw_its_switches(run: RunDirectory, mode: int, policy: OwnerPolicy) -> None:
    (run.path / layout.SWITCHES).chmod(mode)
    assert policy_of(run) is policy


def test_the_settings_are_stronger_than_the_directories_permissions(run: RunDirectory) -> None:
    (run.path / layout.SWITCHES).chmod(0o777)
    assert policy_of(run, "owner") is OwnerPolicy.OWNER
    with pytest.raises(UsageError) as caught:
        policy_of(run, "everyone")
    assert "any" in caught.value.hint


def test_a_directory_that_is_not_there_gives_no_policy(tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError):
        policy_of(RunDirectory(tmp_path / "llama"))
