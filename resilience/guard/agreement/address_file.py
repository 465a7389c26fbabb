"""The file through which ranks find rank 0: its address and a token, readable by the run's owner only.

Only rank 0 writes the file, from a thread of its own: if the file system hangs or fails, the training continues without
decisions. A clean end removes the file; after a kill the node's mirror process does (`remove_own`), or rank 0 of a
later launch (`AddressFile`). When in doubt the file stays: it has a few bytes, and late ranks need the file of a live
launch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import stat
import threading
import time

from resilience import layout
from resilience.base.files import open_directory, read_own, read_regular, remove_same, remove_stale, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder

RETRY_S = 5.0
"""Pause before a failed write is retried: the file system may recover."""
REMOVE_S = 2.0
CONNECT_S = 1.0
MOST_FILES = 1_000
OLD_S = 7 * 86_400.0
"""A file older than this that no process listens for may be removed."""


class Address:
    """The address on which rank 0 listens, and the token that proves membership in the run."""

    __slots__ = ("host", "port", "token")

    def __init__(self, host: str, port: int, token: str) -> None:
        self.host = host
        self.port = port
        self.token = token


def address_file(place: RankInfo) -> Path:
    """Return the path of rank 0's address: in the run directory, or for ranks of one node in a private directory."""
    from pathlib import Path

    if place.run_dir:
        return Path(place.run_dir) / layout.AGREEMENT / place.launch_id
    import tempfile

    root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(root) / f"resil-{os.getuid()}" / place.launch_id


def read_address(path: Path) -> Address | None:
    """Return the address that rank 0 wrote, or None without a trusted one.

    A file is trusted if it is regular, owned by this user and closed to others, in a directory that only this user may
    write.
    """
    try:
        directory = path.parent.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(directory.st_mode) or directory.st_uid != os.getuid() or directory.st_mode & 0o022:
        return None
    fields = _parse(read_own(path) or "")
    return Address(fields["host"], fields["port"], fields["token"]) if fields else None


def remove_own(path: str, node: str, pid: int) -> bool:
    """Remove an address file if this process, which has ended, was the last to write it. Raise OSError."""
    return _remove_if(path, lambda fields, written: (fields.get("node"), fields.get("pid")) == (node, pid))


class AddressFile:
    """The file of this launch, written and removed by a thread of rank 0."""

    def __init__(self, path: Path, place: RankInfo, recorder: Recorder) -> None:
        self._path = path
        self._place = place
        self._recorder = recorder
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def publish(self, address: Address) -> None:
        """Write the file as soon as possible, in the background; it stays until `withdraw`."""
        fields = {"host": address.host, "port": address.port, "token": address.token}
        owner = {"node": self._place.host, "pid": os.getpid(), "attempt": self._place.attempt}
        text = json.dumps({**fields, **owner}) + "\n"
        self._thread = threading.Thread(target=self._keep, args=(text,), name="resil-meeting", daemon=True)
        self._thread.start()

    def withdraw(self) -> None:
        """Remove the file after a clean end, unless another launch has written there since."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(REMOVE_S)

    def _keep(self, text: str) -> None:
        while True:
            try:
                make_private_directory(self._path.parent)
                replace_file(self._path, text, mode=0o600)
                break
            except OSError as error:
                self._recorder.warn(
                    f"no rank can request a save or a stop of the others: rank 0's address could not be written to "
                    f"{self._path}: {error}",
                    key="meeting",
                )
            if self._over.wait(RETRY_S):
                return
        self._remove_stale()
        self._over.wait()
        with contextlib.suppress(OSError):
            if read_own(self._path) == text:
                self._path.unlink()

    def _remove_stale(self) -> None:
        """Remove the files of launches that have ended without removing theirs."""
        directory = os.fspath(self._path.parent)
        remove_stale(directory, time.time())
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(directory))[:MOST_FILES]:
                if self._over.is_set():
                    return
                if name != self._path.name and not name.startswith("."):
                    with contextlib.suppress(OSError):
                        _remove_if(os.path.join(directory, name), functools.partial(self._is_stale, name))

    def _is_stale(self, name: str, fields: dict[str, Any], written: float) -> bool:
        """Return whether no process listens there, and the file is old, of an earlier start of our job, of an earlier
        attempt of our run, or of a dead process of this node."""
        place, attempt, pid = self._place, fields.get("attempt"), fields.get("pid")
        job_id, _, rest = name.partition("-")
        restart = rest.partition("-")[0]
        if place.job_id != "0" and job_id == place.job_id and restart.isdigit():
            is_over = int(restart) < place.restart
        else:
            is_over = bool(place.run_dir) and type(attempt) is int and 0 < attempt < place.attempt
        if not is_over and fields.get("node") == place.host:
            is_over = type(pid) is not int or not os.path.exists(f"/proc/{pid}")
        is_over = is_over or time.time() - written > OLD_S
        return is_over and not _is_listening(fields["host"], fields["port"])


def make_private_directory(path: Path) -> None:
    """Make the directory 0700. Raise OSError if it belongs to another user or is not a directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise OSError(f"{path} is not a directory")
    if info.st_uid != os.getuid():
        raise OSError(f"{path} belongs to another user (uid {info.st_uid})")
    if info.st_mode & 0o077:
        path.chmod(0o700)


def _parse(text: str) -> dict[str, Any]:
    """Return the fields of an address file; empty if malformed."""
    try:
        fields: dict[str, Any] = json.loads(text)
        host, port, token = fields["host"], fields["port"], fields["token"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    is_address = isinstance(host, str) and isinstance(token, str) and type(port) is int and 0 < port < 65536
    return fields if is_address else {}


def _is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _remove_if(path: str, is_unwanted: Callable[[dict[str, Any], float], bool]) -> bool:
    """Remove a private address file of our own, unless it has been replaced meanwhile. Raise OSError."""
    parent, name = os.path.split(path)
    directory = open_directory(parent)
    try:
        if os.fstat(directory).st_uid != os.geteuid():
            return False
        found = read_regular(name, directory=directory)
        if found is None or found[1].st_uid != os.geteuid() or found[1].st_mode & 0o077:
            return False
        fields, info = _parse(found[0].decode("utf-8", "replace")), found[1]
        if not fields or not is_unwanted(fields, info.st_mtime):
            return False
        return remove_same(name, info.st_ino, info.st_mtime_ns, directory=directory)
    finally:
        os.close(directory)
