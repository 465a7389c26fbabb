"""Three read the switch files: the commands, the guard, and the batch shell. Whatever lies there, they agree about it.

Commands and guard share base/switches.py and differ in who asks; the batch shell needs no Python.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from resilience import layout
from resilience.base import files as base_files
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.switch_directory import SwitchDirectory
from resilience.runs.run_directory import RunDirectory
from resilience.runs.switches import policy_of, read_switch
from resilience.switch import OwnerPolicy, Switch
from resilience.system.files import shipped_directory
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

ME, FRIEND, STRANGER_GID = 65532, 65531, 65533
BATCH_SHELL = shipped_directory("slurm_templates") / "_attempt.bash"
TOML = 'who = "bob"\nwhen = "2026-11-20T10:57:30+00:00"\nwhy = "loss is NaN"\nscope = "all"\nlabel = "before-lunch"\n'

Put = Callable[[Path], object]


def by_mknod(path: Path, kind: int) -> None:
    try:
        os.mknod(path, kind | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making a device needs root (sudo make test)")


def bind(path: Path) -> None:
    """A socket's name may be 107 bytes long, so it gets its name from within the directory."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def link(path: Path) -> None:
    target = path.parent.parent / "elsewhere"
    target.write_text(TOML)
    path.symlink_to(target)


def hard_link(path: Path) -> None:
    target = path.with_name("other")
    target.write_text(TOML)
    path.hardlink_to(target)


def close(path: Path) -> None:
    path.write_text(TOML)
    path.chmod(0)


def write(content: bytes) -> Put:
    return lambda path: path.write_bytes(content)


SWITCHES: dict[str, Put] = {
    "empty": Path.touch,
    "TOML": write(TOML.encode()),
    "TOML without a line end": write(TOML.encode().rstrip()),
    "TOML of Windows": write(TOML.replace("\n", "\r\n").encode()),
    "half a line": write(TOML.encode()[:-7]),
    "free text": write(b"please stop,\n  the node is needed\n"),
    "spaces": write(b" \n\t\n"),
    "binary": write(bytes(range(256)) * 4),
    "huge": write(TOML.encode() + b"# and so on\n" * 200_000),
    "a huge line": write(b'why = "' + b"a" * 100_000 + b'"\n'),
    "deep": write(b"why = " + b"[" * 5000),
    "a number of many digits": write(b"why = " + b"9" * 6000),
    "fields of other kinds": write(b'why = 3\nwhen = 2026-11-20\nscope = "everything"\nlabel = "../../etc"\n'),
    "control characters": write(b'why = "a\\u001b[31mb"\nlabel = "\\u0007"\n'),
    "closed": close,
    "a hard link": hard_link,
}
NO_SWITCHES: dict[str, Put] = {
    "nothing": lambda path: None,
    "a link": link,
    "a dangling link": lambda path: path.symlink_to("/nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a socket": bind,
    "a character device": lambda path: by_mknod(path, 0o020000),
    "a block device": lambda path: by_mknod(path, 0o060000),
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "llama")
    directory.create("")
    return directory


class Readings:
    """What each reader makes of a switch."""

    def __init__(self, run: RunDirectory, kind: str, policy: OwnerPolicy, reader: int = 0) -> None:
        self.said: list[str] = []
        place = RankInfo(run=run.run, run_dir=str(run.path))
        directory = SwitchDirectory(place, GuardSettings(switch_owners=policy.value), Recorder(place, self.said.append))
        with acting_as(reader) if reader else nullcontext():
            self.command: Switch | None = read_switch(run, kind, policy)
            found = directory.read(kind)
        self.guard = found.switch if found else None
        script = (
            f'. "{BATCH_SHELL}"; resil_honoured "$RESIL_RUN_DIR/switches/{kind}"; code=$?; echo "$REPLY"; exit $code'
        )
        environ = {"PATH": os.environ["PATH"], "RESIL_RUN": run.run, "RESIL_RUN_DIR": str(run.path)}
        environ["resil_owner_policy"] = policy.value
        shell = ["bash", "-c", script]
        who = {"user": reader, "group": reader, "extra_groups": []} if reader else {}
        done = subprocess.run(shell, env=environ, capture_output=True, text=True, timeout=60, check=False, **who)  # type: ignore[call-overload]
        assert done.returncode in (0, 1) and not done.stderr, done.stderr
        self.shell, self.shell_said = done.returncode == 0, done.stdout.strip()

    @property
    def obeyed(self) -> bool:
        """Whether it is obeyed, once all agree."""
        verdicts: list[bool] = [self.command is not None and self.command.honoured, self.guard is not None, self.shell]
        assert len(set(verdicts)) == 1, f"(command, guard, shell) = {verdicts}"
        return verdicts[0]

    def agree_in_full(self) -> bool:
        """Whether it is obeyed, once the two in Python agree on all that stands there, and all on why not."""
        if self.obeyed:
            assert self.guard == self.command
            assert not self.said and not self.shell_said
            return True
        assert bool(self.said) is bool(self.shell_said) is (self.command is not None)
        return False


@pytest.mark.parametrize("kind", [layout.KILL_SWITCH, layout.SAVE_SWITCH])
@pytest.mark.parametrize("what", SWITCHES)
def test_whatever_stands_in_a_file_of_the_owner_all_obey_it_and_read_the_same(
    run: RunDirectory, what: str, kind: str
) -> None:
    SWITCHES[what](run.path / layout.SWITCHES / kind)
    readings = Readings(run, kind, OwnerPolicy.OWNER)
    assert readings.agree_in_full()
    if what in ("TOML", "huge"):
        switch = readings.guard
        assert switch is not None
        assert what == "huge" or (switch.why, switch.scope.value, switch.label) == (
            "loss is NaN",
            "all",
            "before-lunch",
        )


@pytest.mark.parametrize("what", NO_SWITCHES)
def test_what_is_no_regular_file_nobody_obeys_or_waits_for(run: RunDirectory, what: str) -> None:
    NO_SWITCHES[what](run.path / layout.SWITCHES / layout.KILL_SWITCH)
    readings = Readings(run, layout.KILL_SWITCH, OwnerPolicy.ANY)
    assert not readings.agree_in_full()
    assert (readings.command is None) is (what == "nothing")


@pytest.mark.parametrize(
    ("line", "is_ours"),
    [
        ('run = "llama"', True),
        ("run='llama'  # ours", True),
        ('run = "llama"\r', True),
        ('run = ""', True),
        ("run = alpaca, or whatever it is called", True),  # free text
        ("run = alpaca", True),
        ('the run = "alpaca"', True),
        ('run = "alpaca"', False),
        ("  run = 'alpaca' # copied", False),
        ('run = "llama2"', False),
    ],
)
def test_a_switch_that_names_a_run_is_for_that_run_alone(run: RunDirectory, line: str, is_ours: bool) -> None:
    (run.path / layout.SWITCHES / layout.KILL_SWITCH).write_bytes(f'why = "enough"\n{line}\n'.encode())
    readings = Readings(run, layout.KILL_SWITCH, OwnerPolicy.OWNER)
    assert readings.agree_in_full() is is_ours
    if not is_ours:
        assert readings.command is not None and readings.shell_said == readings.command.refusal


@needs_root
@pytest.mark.parametrize("mode", [0o644, 0o600, 0o000], ids=oct)
@pytest.mark.parametrize(
    ("policy", "uid", "gid", "is_obeyed"),
    [
        (OwnerPolicy.OWNER, ME, STRANGER_GID, True),
        (OwnerPolicy.OWNER, 0, 0, True),
        (OwnerPolicy.OWNER, FRIEND, ME, False),
        (OwnerPolicy.OWNER, NOBODY, STRANGER_GID, False),
        (OwnerPolicy.GROUP, FRIEND, ME, True),
        (OwnerPolicy.GROUP, NOBODY, STRANGER_GID, False),
        (OwnerPolicy.GROUP, 0, STRANGER_GID, True),
        (OwnerPolicy.ANY, NOBODY, STRANGER_GID, True),
    ],
)
def test_whose_switch_it_is_all_judge_alike_also_when_the_file_is_closed_to_the_runs_owner(
    run: RunDirectory, policy: OwnerPolicy, uid: int, gid: int, is_obeyed: bool, mode: int
) -> None:
    open_the_way(run.path / "x")
    switch = run.path / layout.SWITCHES / layout.KILL_SWITCH
    switch.write_text(TOML)
    switch.chmod(mode)
    os.chown(switch, uid, gid)
    for directory in (run.path, run.path / layout.SWITCHES):
        os.chown(directory, ME, ME)
        directory.chmod(0o755)
    readings = Readings(run, layout.KILL_SWITCH, policy, reader=ME)
    assert readings.agree_in_full() is is_obeyed
    if not is_obeyed:
        assert readings.command is not None
        assert readings.said[0].endswith(f"is rejected: {readings.command.refusal}")


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o770, 0o2770, 0o777], ids=oct)
def test_what_the_directories_mode_allows_command_and_guard_read_alike(run: RunDirectory, mode: int) -> None:
    (run.path / layout.SWITCHES).chmod(mode)
    place = RankInfo(run=run.run, run_dir=str(run.path))
    directory = SwitchDirectory(place, GuardSettings(), Recorder(place, lambda text: None))
    (run.path / layout.RUN_FILE).unlink()  # else the guard goes by what the run was submitted with
    descriptor = base_files.open_directory(directory.path)
    try:
        assert directory._policy(descriptor) is policy_of(run)
    finally:
        os.close(descriptor)
