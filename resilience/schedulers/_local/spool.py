"""The spool directory of the embedded scheduler: its records, its lock, its commit.

    spool/                      0700, one per person
      lock                      flock: whoever changes a record holds it
      serial                    changes whenever somebody took the lock; the daemon looks at it
      wake                      FIFO that wakes the daemon
      daemon.lock, daemon.log   flock of the one daemon, and what it says
      next-id                   the last id given
      active/<id>               one empty file per submission that is not over
      tokens/<token>            which submission carries the token
      incoming/<id>             a submission on its way; after a crash it says what to sweep
      jobs/<id>/                submission.json environment.json slurm_script     written before it counts
      jobs/<raw>/               task.json, and for bash: state, comment, cancel
      bin/                      srun, scontrol ... for the jobs

Nothing is ever half written: every file is replaced whole. A submission exists from the moment its
`submission.json` does, which is written last. A job whose task.json is missing is as it was submitted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from resilience.errors import SchedulerUnavailable
from resilience.job import JobState
from resilience.schedulers._local.files import SPOOL_VARIABLE, reading, unavailable
from resilience.schedulers._local.processes import machine_id
from resilience.schedulers._local.records import (
    DamagedRecord,
    Entry,
    Task,
    entry_from_json,
    task_from_json,
    to_json,
)
from resilience.system.files import write_atomic

_FEW = 16
"""So many records are forced to the disk one by one. A mass change (cancelling an array of a thousand) is not: it
would take seconds, and only a power cut in the next moments could undo it."""

_SETTLED_NS = 50_000_000
_LOCK_POLL_S = 0.005
_SAFE_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RecordSetAside(SchedulerUnavailable):
    """A submission's record was damaged. What became of its jobs is not known."""


R = TypeVar("R", Entry, Task)


class Spool:
    """One spool directory. Whoever changes something holds `locked()`; reading needs no lock.

    Every method raises SchedulerUnavailable when the file system does not let it look: unknown is not dead.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._jobs = root / "jobs"
        self._written = 0
        # By path: (mtime_ns, inode) and what was read then. Files are replaced whole, so these name a content.
        self._cache: dict[Path, tuple[tuple[int, int], Entry | Task]] = {}

    def exists(self) -> bool:
        """Whether anything was ever submitted here."""
        with reading(self.root):
            try:
                os.stat(self._jobs)  # noqa: PTH116 - exists() would take a file in the way for nothing there
            except FileNotFoundError:
                return False
        return True

    def create(self) -> None:
        """Make the folders, private whatever the umask. Harmless when they are there."""
        with reading(self.root):
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.root, *(self.root / name for name in ("active", "tokens", "incoming", "bin", "jobs"))):
                if not folder.is_dir():
                    folder.mkdir(mode=0o700, exist_ok=True)
                    folder.chmod(0o700)
            if not (self.root / "wake").exists():
                with contextlib.suppress(FileExistsError):
                    os.mkfifo(self.root / "wake", 0o600)
            for name in ("lock", "serial", "daemon.lock"):
                (self.root / name).touch(mode=0o600)
            if self.root.stat().st_uid != os.getuid():
                raise SchedulerUnavailable(f"the spool {self.root} belongs to somebody else", transient=False)

    def refuse_other_machine(self) -> None:
        """Raise SchedulerUnavailable if jobs of another machine are in here: process ids mean nothing across machines.

        A home directory that several machines share has one spool in it; the first to submit has it.
        """
        with reading(self.root):
            owner = self.root / "machine"
            if owner.exists() and owner.read_text().strip() != machine_id() and self.active():
                raise SchedulerUnavailable(
                    f"the spool {self.root} holds live jobs of another machine",
                    hint=f"set ${SPOOL_VARIABLE} to a folder of this machine; or, if that machine is no more, remove "
                    f"{owner}",
                    transient=False,
                )

    def claim(self) -> None:
        """Make it this machine's, unless jobs of another live in it. Under the lock."""
        self.refuse_other_machine()
        if not (self.root / "machine").exists() or (self.root / "machine").read_text().strip() != machine_id():
            write_atomic(self.root / "machine", machine_id() + "\n", durable=True)

    @contextlib.contextmanager
    def locked(self, timeout_s: float, *, announce: bool = True) -> Iterator[None]:
        """Hold the queue's lock. Raise SchedulerUnavailable if somebody else does for longer than `timeout_s`.

        Unless told not to, it is announced to the daemon, which then looks at all records again.
        """
        with reading(self.root / "lock"):
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(descriptor, timeout_s)
            # Before anything is changed: the daemon that sees it waits for the lock, and so for the change.
            if announce:
                with reading(self.root / "serial"):
                    os.utime(self.root / "serial")
            self._written = 0
            with reading(self.root):
                yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise unavailable(error, self.root / "lock") from error
            if time.monotonic() >= deadline:
                raise SchedulerUnavailable(
                    f"the queue in {self.root} is locked by another process for more than {timeout_s:g} s",
                    hint=f"see who holds it: fuser {self.root}/lock",
                )
            time.sleep(_LOCK_POLL_S)

    def serial(self) -> int:
        """A number that changes whenever somebody took the lock."""
        with reading(self.root / "serial"):
            return (self.root / "serial").stat().st_mtime_ns

    def wake(self) -> None:
        """Tell the daemon to look now. Nobody there is no error."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.root / "wake", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(descriptor, b"x")
            finally:
                os.close(descriptor)

    # Reading

    def active(self) -> list[int]:
        """The ids of the submissions that are not over."""
        return self.ids("active")

    def everything(self) -> list[int]:
        """The ids of all submissions still remembered."""
        return [key for key in self.ids("jobs") if (self._jobs / str(key) / "submission.json").exists()]

    def ids(self, name: str) -> list[int]:
        """The numbers that files or folders in `active`, `jobs` or `incoming` are named by."""
        folder = self.root / name
        with reading(folder):
            try:
                return sorted(int(name) for name in os.listdir(folder) if name.isdigit())  # noqa: PTH208
            except FileNotFoundError:
                if not self.exists():
                    return []
                raise

    def entry(self, key: int) -> Entry | None:
        """One submission; None when there is none of that id. Raise SchedulerUnavailable if its record is damaged."""
        path = self._jobs / str(key) / "submission.json"
        found = self._read(path, entry_from_json)
        if found is None and path.with_name("submission.json.bad").exists():
            raise RecordSetAside(
                f"the record of job {key} was damaged and has been set aside",
                hint=f"look at {path}.bad; if you can mend it, rename it back",
                transient=False,
            )
        return found

    def task(self, entry: Entry, raw: int) -> Task:
        """One job of a submission. One whose record was damaged is NODE_FAIL: nobody knows how far it came."""
        path = self._jobs / str(raw) / "task.json"
        found = self._read(path, task_from_json)
        if found is not None:
            return found
        if path.with_name("task.json.bad").exists():
            return replace(entry.fresh(raw), state=JobState.NODE_FAIL, reason="RecordDamaged", end=entry.submit_time)
        return entry.fresh(raw)

    def tasks(self, entry: Entry) -> list[Task]:
        """All jobs of a submission."""
        return [self.task(entry, raw) for raw in entry.raw_ids]

    def owner_of(self, raw: int) -> Entry | None:
        """The submission that the job `raw` belongs to, or whose array's id it is."""
        with reading(self._jobs):
            try:
                return self.entry(int((self._jobs / str(raw) / "array").read_text()))
            except (FileNotFoundError, ValueError):
                return self.entry(raw)

    def find(self, token: str) -> Entry | None:
        """The submission that carries the token."""
        path = self.root / "tokens" / token_file(token)
        with reading(path):
            try:
                found = self.entry(int(path.read_text()))
            except (FileNotFoundError, ValueError):
                return None
        return found if found is not None and found.token == token else None

    def environment(self, key: int) -> dict[str, str]:
        """The environment kept for a submission's jobs."""
        path = self._jobs / str(key) / "environment.json"
        with reading(path):
            return {str(name): str(value) for name, value in json.loads(path.read_text()).items()}

    def folder(self, raw: int) -> Path:
        """The folder of a job."""
        return self._jobs / str(raw)

    def _read(self, path: Path, parse: Callable[[str], R]) -> R | None:
        """Read a record; set it aside when it is damaged. None when there is none (any more)."""
        with reading(path):
            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    status = os.fstat(file.fileno())
                    version = (status.st_mtime_ns, status.st_ino)
                    known = self._cache.get(path)
                    if known is not None and known[0] == version:
                        return cast(R, known[1])
                    record = parse(file.read())
            except FileNotFoundError:
                self._cache.pop(path, None)
                return None
            except DamagedRecord:
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_ino == version[1]:
                        path.replace(path.with_name(f"{path.name}.bad"))
                return None
        # Only what is old enough: two versions written within one tick of the file system's clock may look the same.
        if time.time_ns() - version[0] > _SETTLED_NS:
            self._cache[path] = (version, record)
        return record

    # Writing, under the lock

    def add(self, entry: Entry, script: bytes, environment: Mapping[str, str]) -> Entry:
        """Give a submission its id and commit it. Return it with the id. Under the lock."""
        entry = replace(entry, id=self._allocate(1 + len(entry.indices or ())))
        marker = self.root / "incoming" / str(entry.id)
        write_atomic(marker, f"{entry.id} {entry.raw_ids[-1]}\n", durable=False)
        own = self._jobs / str(entry.id)
        for raw in {entry.id, *entry.raw_ids}:
            folder = self._jobs / str(raw)
            folder.mkdir(mode=0o700)
            if raw != entry.id:
                write_atomic(folder / "array", str(entry.id), durable=False)
        for raw in entry.raw_ids:
            self.tell(entry, entry.fresh(raw))
        write_atomic(own / "slurm_script", script, durable=True, mode=0o700)
        write_atomic(own / "environment.json", json.dumps(dict(environment)), durable=True)
        write_atomic(self.root / "tokens" / token_file(entry.token), str(entry.id), durable=True)
        (self.root / "active" / str(entry.id)).touch(mode=0o600)
        write_atomic(own / "submission.json", to_json(entry), durable=True)
        marker.unlink()
        return entry

    def save(self, entry: Entry, task: Task) -> None:
        """Keep a job's new record, and tell it to bash. Under the lock."""
        if task.state.is_alive:
            (self.root / "active" / str(entry.id)).touch(mode=0o600)
        self._written += 1
        write_atomic(self._jobs / str(task.raw) / "task.json", to_json(task), durable=self._written <= _FEW)
        self.tell(entry, task)

    def save_entry(self, entry: Entry) -> None:
        """Keep a submission's new record. Under the lock."""
        write_atomic(self._jobs / str(entry.id) / "submission.json", to_json(entry), durable=True)

    def close(self, key: int) -> None:
        """Say that a submission is over. Under the lock."""
        (self.root / "active" / str(key)).unlink(missing_ok=True)

    def tell(self, entry: Entry, task: Task) -> None:
        """Write the files for bash. Under the lock."""
        folder = self._jobs / str(task.raw)
        if not (folder / "comment").exists():
            write_atomic(folder / "comment", f"{entry.comment}\n", durable=False)
        write_atomic(folder / "state", f"{task.state}\n", durable=False)

    def _allocate(self, count: int) -> int:
        path = self.root / "next-id"
        try:
            last = int(path.read_text())
        except (FileNotFoundError, ValueError):
            last = max(self.ids("jobs"), default=0)
        write_atomic(path, f"{last + count}\n", durable=True)
        return last + 1


def token_file(token: str) -> str:
    """The name of the file in tokens/ that stands for a token."""
    if _SAFE_TOKEN.fullmatch(token):
        return token
    import hashlib

    return "=" + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
