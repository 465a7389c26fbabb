"""A directory with a mounted fault for tests."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from resilience.base.mounts import current_mounts
from resilience.inject.files import holder, mounting
from resilience.inject.files.behaviour import Behaviour
from tests.lab.waiting import until

needs_mount = pytest.mark.skipif(bool(mounting.why_not()), reason=f"mounting is not permitted: {mounting.why_not()}")


@dataclass(frozen=True)
class Server:
    """The processes of a mounted fault."""

    directory: Path
    guardian: subprocess.Popen[bytes]
    name: str

    @property
    def pid(self) -> int:
        """The server itself."""
        return int(Path(f"/proc/{self.guardian.pid}/task/{self.guardian.pid}/children").read_text().split()[0])

    @property
    def mounted(self) -> bool:
        """Whether the fault hides the directory."""
        return mounting.mounted_at(self.directory, current_mounts()) is not None

    def undo(self) -> None:
        """End the fault, as the keeper does."""
        self.guardian.terminate()
        until(lambda: not self.mounted, "the fault to be undone")


@contextmanager
def faulty(
    directory: Path, behaviour: Behaviour, *, how: str = "mount", last_s: float = 300.0, control: Path | None = None
) -> Iterator[Server]:
    """Put a fault over an existing directory; it is taken away at the end."""
    name = f"test-{secrets.token_hex(4)}"
    argv = [sys.executable, "-m", holder.MODULE, name, how, str(directory), str(time.time() + last_s)]
    argv += [behaviour.to_json(), *([str(control)] if control else ())]
    guardian = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert guardian.stdout is not None
    try:
        assert guardian.stdout.readline() == b"ready\n"
        yield Server(directory, guardian, name)
    finally:
        guardian.terminate()
        with suppress(subprocess.TimeoutExpired):
            guardian.wait(20)
        if guardian.poll() is None:
            for pid in (*_children(guardian.pid), guardian.pid):
                os.kill(pid, signal.SIGKILL)
            guardian.wait()
        guardian.stdout.close()
        mounting.unmount(directory, name)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
