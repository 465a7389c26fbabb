"""A file system that never answers: a FUSE server of the standard library that takes every request and is silent."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_INIT = 26
_OUT_HEADER = struct.Struct("<IiQ")
_INIT_OUT = struct.Struct("<IIIIHHI")
_MNT_FORCE, _MNT_DETACH = 1, 2
_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when its parent dies."""

mounted: list[Path] = []
"""The directories of `hung_directory` that hang now."""


def mount_hung(directory: Path) -> int:
    """Mount it and return the connection. Raise OSError where that is not permitted."""
    connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={connection},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hung", bytes(directory), b"fuse", 0, options) != 0:
        os.close(connection)
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return connection


def serve(connection: int, parent: int) -> None:
    """Answer the first greeting, so that the kernel sends requests; answer nothing else until `parent` dies.

    A server that outlived its test would hang whoever clears temporary directories, beyond the reach of SIGKILL.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    while True:
        try:
            request = os.read(connection, 2**17)
        except OSError:
            return  # unmounted
        _, operation, unique = struct.unpack_from("<IIQ", request)
        if operation == _INIT:
            answer = _INIT_OUT.pack(7, 19, 0, 0, 0, 0, 65536)  # protocol 7.19: its answer is 24 bytes long
            os.write(connection, _OUT_HEADER.pack(_OUT_HEADER.size + len(answer), 0, unique) + answer)
            os.write(sys.stdout.fileno(), b"\n")  # ready


@contextmanager
def hung_directory(directory: Path, *, over: bool = False) -> Iterator[Path]:
    """A directory below which every look waits for ever, in a process of its own; released at the end.

    With `over`, it hides an existing one. Skip the test where such a file system cannot be mounted.
    """
    directory.mkdir(exist_ok=over)
    try:
        connection = mount_hung(directory)
    except OSError as error:
        import pytest  # the process of the server needs none

        pytest.skip(f"mounting is not permitted: /dev/fuse: {error}")
    server = subprocess.Popen(
        [sys.executable, "-c", f"from tests.lab.hung import serve; serve({connection}, {os.getpid()})"],
        pass_fds=[connection], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE,
    )  # fmt: skip
    os.close(connection)
    mounted.append(directory)
    assert server.stdout is not None
    try:
        server.stdout.read(1)  # until the greeting is answered: who looks earlier could still be killed
        yield directory
    finally:
        mounted.remove(directory)
        ctypes.CDLL(None).umount2(bytes(directory), _MNT_DETACH)
        # The connection's end wakes everybody who waits, with an error; they find then what the mount has hidden.
        server.kill()
        server.wait()
        server.stdout.close()


def release(directory: Path) -> None:
    """Wake everybody who waits there, with an error, as when a server comes back without them."""
    ctypes.CDLL(None).umount2(bytes(directory), _MNT_FORCE)
