"""The faults of files as users type them: on the run's checkpoints, seen by the watchdog, undone whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from resilience.base.mounts import current_mounts
from resilience.checkpoints.directory import StoreDirectory
from resilience.errors import UsageError
from resilience.inject.files import holder, mounting
from resilience.inject.injecting import inject, prepare
from resilience.runs.injections import read_injections
from tests.inject.files.faulty import needs_mount
from tests.inject.files.saving import error_of, write
from tests.inject.marks import allow
from tests.lab.disks import small_disk
from tests.lab.shell import SETTINGS, Shell, make_shell
from tests.lab.waiting import until


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    made = make_shell(tmp_path, monkeypatch, capsys)
    allow(made)
    (made.directory / "checkpoints").mkdir()
    yield made
    if left := mounting.mounted_at(made.directory / "checkpoints", current_mounts()):  # of a test that failed
        mounting.unmount(made.directory / "checkpoints", left.source)


def checkpoints(shell: Shell) -> Path:
    return shell.directory / "checkpoints"


def is_mounted(directory: Path) -> bool:
    return mounting.mounted_at(directory, current_mounts()) is not None


def test_a_dry_run_says_what_would_happen_and_by_which_means(shell: Shell) -> None:
    said = shell.resil("inject", "disk-full", "--directory", "checkpoints", "--space", "1M", "--dry-run")
    assert said.code == (2 if mounting.why_not() else 0)
    if said.code == 0:
        assert "has 1.0 MiB left, then writes fail with ENOSPC; a file system is mounted over it" in said.out
        assert "Not by fill:" in said.out and not is_mounted(checkpoints(shell))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("disk-full",), "no directory of checkpoints is known"),
        (("disk-full", "--directory", "nowhere"), "No such file"),
        (("stale", "--directory", "."), "which resil needs to undo the fault"),
        (("stale", "--directory", "/tmp"), "not your own"),
        (("eio", "--on", "writes"), "read, write or all"),
        (("slow-disk", "--delay", "0"), "is not slow"),
        (("slow-disk", "--rate", "many"), "not a size"),
        (("read-only", "--by", "fill", "--directory", "checkpoints"), "it only makes a full disk"),
        (("read-only", "--by", "preload", "--directory", "checkpoints"), "resil inject preload"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(shell: Shell, words: tuple[str, ...], expected: str) -> None:
    said = shell.resil("inject", *words)
    assert said.code == 2 and expected in said.err, said
    assert read_injections(shell.project.directory("gpt")) == ()


rare = (pytest.mark.soak, pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="a campaign: RESIL_SOAK=1"))
TRAINING = """
import sys
from resilience.checkpoints import Store
from resilience.guard import TrainingGuard
store = Store(sys.argv[1])
with TrainingGuard.from_env(store=store) as guard:
    for line in sys.stdin:
        guard.step()
        try:
            with guard.saving() as part:
                (part.path / "model").write_bytes(bytes(1000))
            print("saved", flush=True)
        except Exception as error:
            print(repr(error), flush=True)
print(store.latest().step, flush=True)
"""


@needs_mount
@pytest.mark.parametrize(
    ("fault", "options", "error"),
    [
        ("disk-full", {}, "No space left on device"),
        pytest.param("disk-full", {"quota": True, "space_bytes": 500}, "quota", marks=rare),
        ("read-only", {}, "Read-only file system"),
        ("eio", {}, "Input/output error"),
        pytest.param("stale", {}, "Stale file handle", marks=rare),
        pytest.param("slow-disk", {"delay_s": 0.005}, "saved", marks=rare),
    ],
)
def test_a_training_is_told_of_its_failed_save_goes_on_and_saves_again_afterwards(
    shell: Shell, fault: str, options: dict[str, object], error: str
) -> None:
    shell.settings(f'{SETTINGS}\n[checkpoints]\npath = "checkpoints"\n')
    directory = shell.project.directory("gpt")
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(checkpoints(shell))], cwd=Path(__file__).parents[3], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as training:  # fmt: skip
        stdin, stdout = training.stdin, training.stdout
        assert stdin is not None and stdout is not None

        def save() -> str:
            print(file=stdin, flush=True)
            return stdout.readline().strip()

        assert save() == "saved"
        with inject(prepare(shell.project, directory, fault, options, 300.0)):
            assert error in save()
            if fault == "disk-full" and not options:
                said = shell.resil("watch", "fs", "checkpoints")
                assert said.code == 2 and "it is full" in said.out
            if fault == "read-only":
                assert "read-only" in shell.resil("watch", "fs", "checkpoints").out
            with pytest.raises(UsageError, match="has a fault already"):
                prepare(shell.project, directory, "eio")
        assert not is_mounted(checkpoints(shell))
        assert save() == "saved"
        stdin.close()
        assert stdout.readline().strip() == "3"


IN_FLIGHT = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from resilience.checkpoints import Store
from resilience.guard import TrainingGuard
store, more = Store(sys.argv[1]), threading.Semaphore(0)

def write(path):
    with open(path / "first", "wb", buffering=0) as first:
        first.write(bytes(10_000))
        print("in flight", flush=True)
        more.acquire()
        for name in ("second", "third"):
            (path / name).write_bytes(bytes(10_000))
        first.write(bytes(10_000))

with TrainingGuard.from_env(store=store) as guard, ThreadPoolExecutor() as pool:
    for line in sys.stdin:
        guard.step()
        if line.strip() == "save":
            with guard.saving() as part:
                part.until(pool.submit(write, part.path))
        elif line.strip() == "more":
            more.release()
        else:
            print(guard.count, store.latest().step, flush=True)
sys.exit(guard.exit_code)
"""


@pytest.mark.parametrize("how", [pytest.param("mount", marks=needs_mount), "fill"])
def test_a_save_in_flight_when_the_disk_becomes_full_is_told_and_never_offered(
    shell: Shell, tmp_path: Path, how: str
) -> None:
    shell.settings(f'{SETTINGS}\n[checkpoints]\npath = "checkpoints"\n')
    said = tmp_path / "said"
    with ExitStack() as stack:
        if how == "fill":
            checkpoints(shell).rmdir()
            stack.enter_context(small_disk(checkpoints(shell), "1m"))
        training = stack.enter_context(subprocess.Popen(
            [sys.executable, "-c", IN_FLIGHT, str(checkpoints(shell))], cwd=Path(__file__).parents[3], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stack.enter_context(said.open("w")),
        ))  # fmt: skip

        def tell(*lines: str, answers: bool = True) -> str:
            assert training.stdin is not None and training.stdout is not None
            print(*lines, sep="\n", file=training.stdin, flush=True)
            return training.stdout.readline().strip() if answers else ""

        assert tell("save") == "in flight"
        tell("more", answers=False)
        until(lambda: [one.step for one in StoreDirectory(checkpoints(shell)).checkpoints()] == [1], "the first save")
        assert tell("save") == "in flight"
        with inject(prepare(shell.project, shell.project.directory("gpt"), "disk-full", {"by": how}, 300.0)):
            tell("more", answers=False)
            until(lambda: "the save of step 3 is not durable: " in said.read_text(), "the failure")
            assert "No space left on device" in said.read_text()
            assert tell("step") == "5 1", "it goes on, and the last good checkpoint is offered"
            if how == "mount":
                training.communicate()
                assert training.returncode == 1, "the last save is not durable"
        assert [one.step for one in StoreDirectory(checkpoints(shell)).checkpoints()] == [1]
        if how == "fill":
            assert tell("save") == "in flight"
            tell("more", answers=False)
            training.communicate()
            assert training.returncode == 0 and "the save of step 6" not in said.read_text()
            assert [one.step for one in StoreDirectory(checkpoints(shell)).checkpoints()] == [1, 6]


@needs_mount
@pytest.mark.parametrize("killed", ["injector", "everybody"])
def test_the_fault_is_undone_when_the_injector_is_killed_and_by_hand_when_nobody_is_left(
    shell: Shell, killed: str
) -> None:
    injector = subprocess.Popen(
        [sys.executable, "-m", "resilience", "inject", "stale", "--directory", "checkpoints", "--for", "1h"],
        cwd=shell.directory, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert injector.stdout is not None
    until(lambda: is_mounted(checkpoints(shell)), "the fault", timeout_s=60)
    (record,) = read_injections(shell.project.directory("gpt"))
    assert error_of(lambda: os.listdir(checkpoints(shell))) == "ESTALE"
    helpers = [*holder.holders(record.id), *keepers(record.id)] if killed == "everybody" else []
    assert len(helpers) in (0, 3)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: whoever lives undoes it for the others
        for pid in (injector.pid, *helpers):
            os.kill(pid, number)
    injector.communicate()
    if killed == "everybody":
        error = error_of(lambda: os.listdir(checkpoints(shell)))
        assert error in ("ENOTCONN", "ECONNABORTED"), "it fails at once, and hangs nobody"
        assert shell.resil("inject", "undo", "--all").code == 0
    until(lambda: not is_mounted(checkpoints(shell)), "the fault to be undone", timeout_s=60)
    assert os.listdir(checkpoints(shell)) == []
    until(lambda: not read_injections(shell.project.directory("gpt"))[0].is_on, "the record of it", timeout_s=60)


def keepers(name: str) -> list[int]:
    """The process that undoes an injection at its end."""
    lines = {path: path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()}
    return [
        int(path.parent.name) for path, line in lines.items() if {b"resilience.inject.keeper", name.encode()} <= {*line}
    ]


def test_a_small_file_system_of_ones_own_is_filled_for_real(shell: Shell, tmp_path: Path) -> None:
    with small_disk(tmp_path / "scratch", "4m") as disk:
        said = shell.resil("inject", "disk-full", "--directory", str(disk), "--dry-run")
        assert "a file without a name takes the space" in said.out
        with inject(
            prepare(shell.project, shell.project.directory("gpt"), "disk-full", {"directory": str(disk)}, 300.0)
        ):
            assert error_of(lambda: write(disk / "new", 10_000)) == "ENOSPC"
        (disk / "new").unlink()
        write(disk / "new", 3_000_000)
