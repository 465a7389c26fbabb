"""The spool directory of the embedded scheduler: its records, its lock, its commit.

    spool/                      0700, one per user
      lock                      flock: held by every process that changes a record
      serial                    touched at every lock; the daemon compares its time
      wake                      FIFO that wakes the daemon
      daemon.lock, daemon.log   flock and pid of the one daemon, and its log
      next-id                   the last id given
      active/<id>               one empty file per active submission
      tokens/<token>            the submission with the token
      incoming/<id>             an incomplete submission; after a crash, the directories to clean up
      jobs/<id>/                submission.json environment.json slurm_script     written before the commit
      jobs/<raw>/               task.json, and for bash: state, comment, cancel
      bin/                      srun, scontrol ... for the jobs

Every file is replaced atomically. A submission exists as soon as its `submission.json`, which is written last. A job
without task.json is in its initial state.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import resilience
from resilience.errors import SchedulerUnavailable, StateDirectoryError
from resilience.job import JobState
from resilience.messages import quoted
from resilience.schedulers._local.processes import machine_id, start_ticks
from resilience.schedulers._local.records import DamagedRecord, Entry, R, Task, from_json, to_json
from resilience.system.files import write_atomic

SPOOL_VARIABLE = "RESIL_LOCAL_SPOOL"
KEEP_ENDED_S = 7 * 86400.0
"""How long ended jobs are kept."""
_FEW = 16
"""Maximum number of records that are synced one by one. Larger changes (cancelling an array of a thousand) are not
synced: that would take seconds, and they are lost only in a power failure shortly after."""
_SETTLED_NS = 50_000_000
_LOCK_POLL_S = 0.005
COMMANDS = ("srun", "scontrol", "squeue", "scancel", "sbatch")
"""Replacements of SLURM's commands for jobs (shim.py)."""
_SAFE_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def shim_script(name: str, *, python: str, source: str) -> str:
    """Return a script that calls `_local/shim.py` without changes of the environment. Pure."""
    code = f"import sys; sys.path.insert(0, {source!r}); from resilience.schedulers._local.shim import main; main()"
    return f'#!/bin/sh\nexec {shlex.quote(python)} -IS -c {shlex.quote(code)} {name} "$@"\n'


def write_shims(directory: Path) -> None:
    """Write the replacement commands to `directory`, for this Python, from an installed package or a clone."""
    source = str(Path(resilience.__file__).parent.parent)
    for name in COMMANDS:
        script = shim_script(name, python=sys.executable, source=source)
        path = directory / name
        if not path.exists() or path.read_text() != script:
            write_atomic(path, script, mode=0o700)


def spool_path(environ: Mapping[str, str]) -> Path:
    """Return the spool's path: $RESIL_LOCAL_SPOOL, $XDG_STATE_HOME/resil/local, or ~/.local/state/resil/local."""
    if chosen := environ.get(SPOOL_VARIABLE):
        return Path(chosen).absolute()
    state = environ.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        state = f"{environ.get('HOME') or Path('~').expanduser()}/.local/state"
    return Path(state) / "resil" / "local"


@contextlib.contextmanager
def access(path: Path) -> Iterator[None]:
    """Raise SchedulerUnavailable for every error of the file system, because jobs may be alive."""
    try:
        yield
    except OSError as error:
        raise _unavailable(error, path) from error
    except StateDirectoryError as error:  # from write_atomic, with a hint about state_dir
        cause = error.__cause__
        raise _unavailable(cause if isinstance(cause, OSError) else OSError(error.message), path) from error


def _unavailable(error: OSError, path: Path) -> SchedulerUnavailable:
    return SchedulerUnavailable(
        f"the embedded scheduler's spool cannot be used: {error.filename or path}: {error.strerror or error}",
        hint=f"the spool is ${SPOOL_VARIABLE}, by default ~/.local/state/resil/local",
        transient=error.errno not in (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS),
    )


def take_lock(descriptor: int, timeout_s: float, poll_s: float = _LOCK_POLL_S) -> bool:
    """Lock a file exclusively; return False after `timeout_s`. Raise OSError if locks are not supported."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)


def read_pid(path: Path) -> int:
    """Return the pid in a file of `PID START_TICKS`; 0 if the process has ended or there is no such file."""
    try:
        pid, ticks = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return 0
    return pid if ticks and start_ticks(pid) == ticks else 0


class RecordQuarantined(SchedulerUnavailable):
    """The record of a submission was damaged. The state of its jobs is unknown."""


class Spool:
    """A spool directory. Changes require `locked()`; reading needs no lock.

    Every method raises SchedulerUnavailable on errors of the file system: the state of jobs is then unknown.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._jobs = root / "jobs"
        self._written = 0
        # By path: (mtime_ns, inode) and the record. Files are replaced atomically, so these identify the content.
        self._cache: dict[Path, tuple[tuple[int, int], Entry | Task]] = {}

    def exists(self) -> bool:
        """Return whether anything was ever submitted."""
        with access(self.root):
            try:
                os.stat(self._jobs)  # noqa: PTH116 - exists() would take a file in the way for nothing there
            except FileNotFoundError:
                return False
        return True

    def create(self) -> None:
        """Create the directories, private regardless of the umask. Existing directories are kept."""
        with access(self.root):
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for name in ("", "active", "tokens", "incoming", "bin", "jobs"):
                directory = self.root / name
                if not directory.is_dir():
                    directory.mkdir(mode=0o700, exist_ok=True)
                    directory.chmod(0o700)
            if not (self.root / "wake").exists():
                with contextlib.suppress(FileExistsError):
                    os.mkfifo(self.root / "wake", 0o600)
            for name in ("lock", "serial", "daemon.lock"):
                (self.root / name).touch(mode=0o600)
            if self.root.stat().st_uid != os.getuid():
                raise SchedulerUnavailable(f"the spool {self.root} belongs to another user", transient=False)

    def refuse_other_machine(self) -> None:
        """Raise SchedulerUnavailable if the spool has jobs of another host, whose pids have no meaning on this host.

        Hosts with a shared home directory share one spool; the first host to submit owns the spool.
        """
        if self._is_of_other_machine() and self.active():
            raise SchedulerUnavailable(
                f"the spool {self.root} has live jobs of another host",
                hint=f"set ${SPOOL_VARIABLE} to a directory of this host; or, if that host no longer exists, remove "
                f"{self.root / 'machine'}",
                transient=False,
            )

    def claim(self) -> None:
        """Claim the spool for this host, unless it has live jobs of another host. Under the lock."""
        self.refuse_other_machine()
        if self._is_of_other_machine() is not False:
            write_atomic(self.root / "machine", machine_id() + "\n", durable=True)

    def _is_of_other_machine(self) -> bool | None:
        with access(self.root):
            try:
                return (self.root / "machine").read_text().strip() != machine_id()
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def locked(self, timeout_s: float, *, announce: bool = True) -> Iterator[None]:
        """Hold the queue's lock. Raise SchedulerUnavailable if another process holds the lock longer than `timeout_s`.

        `announce` makes the daemon read all records again.
        """
        lock = self.root / "lock"
        with access(lock):
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with access(lock):
                if not take_lock(descriptor, timeout_s):
                    raise SchedulerUnavailable(
                        f"the queue in {self.root} is locked by another process for more than {timeout_s:g} s",
                        hint=f"find the process that holds the lock: fuser {quoted(lock)}",
                    )
            # Before any change: the daemon then waits for the lock, and so for the change.
            if announce:
                with access(self.root / "serial"):
                    os.utime(self.root / "serial")
            self._written = 0
            with access(self.root):
                yield
        finally:
            os.close(descriptor)

    def serial(self) -> int:
        """Return a number that changes with every announced lock."""
        with access(self.root / "serial"):
            return (self.root / "serial").stat().st_mtime_ns

    # The daemon

    def wake(self) -> bool:
        """Wake the daemon. Return False if no daemon listens."""
        try:
            descriptor = os.open(self.root / "wake", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return error.errno != errno.ENXIO
        with contextlib.suppress(OSError):
            os.write(descriptor, b"x")
        os.close(descriptor)
        return True

    def daemon_command(self) -> list[str]:
        """Return the argv that starts the daemon."""
        return [sys.executable, "-P", "-m", "resilience.schedulers._local.daemon", str(self.root)]

    def daemon_pid(self) -> int:
        """Return the daemon's pid, or 0. A daemon that was started by a job's script is a descendant of that job."""
        return read_pid(self.root / "daemon.lock")

    def has_daemon(self) -> bool:
        """Return whether a process holds the daemon's lock."""
        try:
            descriptor = os.open(self.root / "daemon.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    # Reading

    def active(self) -> list[int]:
        """Return the ids of the active submissions."""
        return self.ids("active")

    def everything(self) -> list[int]:
        """Return the ids of all submissions."""
        return [key for key in self.ids("jobs") if (self._jobs / str(key) / "submission.json").exists()]

    def ids(self, name: str) -> list[int]:
        """Return the numeric names of the entries of `active`, `jobs` or `incoming`."""
        directory = self.root / name
        with access(directory):
            try:
                return sorted(int(name) for name in os.listdir(directory) if name.isdigit())  # noqa: PTH208
            except FileNotFoundError:
                if not self.exists():
                    return []
                raise

    def entry(self, key: int) -> Entry | None:
        """Return a submission, or None if there is none. Raise SchedulerUnavailable if its record is damaged."""
        path = self._jobs / str(key) / "submission.json"
        found = self._read(path, Entry)
        if found is None and path.with_name("submission.json.bad").exists():
            raise RecordQuarantined(
                f"the record of job {key} was damaged and has been renamed",
                hint=f"see {path}.bad; if you can repair it, rename it back",
                transient=False,
            )
        return found

    def task(self, entry: Entry, raw: int) -> Task:
        """Return a job of a submission. A job whose record was damaged is NODE_FAIL: its progress is unknown."""
        path = self._jobs / str(raw) / "task.json"
        found = self._read(path, Task)
        if found is not None:
            return found
        if path.with_name("task.json.bad").exists():
            return replace(entry.fresh(raw), state=JobState.NODE_FAIL, reason="RecordDamaged", end=entry.submit_time)
        return entry.fresh(raw)

    def tasks(self, entry: Entry) -> list[Task]:
        """Return all jobs of a submission."""
        return [self.task(entry, raw) for raw in entry.raw_ids]

    def owner_of(self, raw: int) -> Entry | None:
        """Return the submission of the job or array `raw`."""
        with access(self._jobs):
            try:
                return self.entry(int((self._jobs / str(raw) / "array").read_text()))
            except (FileNotFoundError, ValueError):
                return self.entry(raw)

    def find(self, token: str) -> Entry | None:
        """Return the submission with the token."""
        path = self.root / "tokens" / _token_file(token)
        with access(path):
            try:
                found = self.entry(int(path.read_text()))
            except (FileNotFoundError, ValueError):
                return None
        return found if found is not None and found.token == token else None

    def environment(self, key: int) -> dict[str, str]:
        """Return the saved environment of a submission."""
        path = self._jobs / str(key) / "environment.json"
        with access(path):
            return {str(name): str(value) for name, value in json.loads(path.read_text()).items()}

    def directory(self, raw: int) -> Path:
        """Return the directory of a job."""
        return self._jobs / str(raw)

    def _read(self, path: Path, kind: type[R]) -> R | None:
        """Return a record, or None if there is none. A damaged record is quarantined."""
        with access(path):
            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    status = os.fstat(file.fileno())
                    version = (status.st_mtime_ns, status.st_ino)
                    known = self._cache.get(path)
                    if known is not None and known[0] == version:
                        return cast(R, known[1])
                    record = from_json(kind, file.read())
            except FileNotFoundError:
                self._cache.pop(path, None)
                return None
            except DamagedRecord:
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_ino == version[1]:
                        path.replace(path.with_name(f"{path.name}.bad"))
                return None
        # Only old files are cached: two versions within one tick of the file system's clock have the same time.
        if time.time_ns() - version[0] > _SETTLED_NS:
            self._cache[path] = (version, record)
        return record

    # Writing, under the lock

    def add(self, entry: Entry, script: bytes, environment: Mapping[str, str]) -> Entry:
        """Assign an id to a submission and commit it. Return the submission with its id. Under the lock."""
        entry = replace(entry, id=self._allocate(1 + len(entry.indices or ())))
        marker = self.root / "incoming" / str(entry.id)
        write_atomic(marker, f"{entry.id} {entry.raw_ids[-1]}\n", durable=False)
        own = self._jobs / str(entry.id)
        for raw in {entry.id, *entry.raw_ids}:
            directory = self._jobs / str(raw)
            directory.mkdir(mode=0o700)
            if raw != entry.id:
                write_atomic(directory / "array", str(entry.id), durable=False)
        for raw in entry.raw_ids:
            self.publish(entry, entry.fresh(raw))
        write_atomic(own / "slurm_script", script, durable=True, mode=0o700)
        write_atomic(own / "environment.json", json.dumps(dict(environment)), durable=True)
        write_atomic(self.root / "tokens" / _token_file(entry.token), str(entry.id), durable=True)
        (self.root / "active" / str(entry.id)).touch(mode=0o600)
        write_atomic(own / "submission.json", to_json(entry), durable=True)
        marker.unlink()
        return entry

    def save(self, entry: Entry, task: Task) -> None:
        """Save a job's new record, also for bash. Under the lock."""
        if task.state.is_alive:
            (self.root / "active" / str(entry.id)).touch(mode=0o600)
        self._written += 1
        write_atomic(self._jobs / str(task.raw) / "task.json", to_json(task), durable=self._written <= _FEW)
        self.publish(entry, task)

    def save_entry(self, entry: Entry) -> None:
        """Save a submission's new record. Under the lock."""
        write_atomic(self._jobs / str(entry.id) / "submission.json", to_json(entry), durable=True)

    def close(self, key: int) -> None:
        """Mark a submission as ended. Under the lock."""
        (self.root / "active" / str(key)).unlink(missing_ok=True)

    def publish(self, entry: Entry, task: Task) -> None:
        """Write the files for bash. Under the lock."""
        directory = self._jobs / str(task.raw)
        if not (directory / "comment").exists():
            write_atomic(directory / "comment", f"{entry.comment}\n", durable=False)
        write_atomic(directory / "state", f"{task.state}\n", durable=False)

    def _allocate(self, count: int) -> int:
        path = self.root / "next-id"
        try:
            last = int(path.read_text())
        except (FileNotFoundError, ValueError):
            last = max(self.ids("jobs"), default=0)
        write_atomic(path, f"{last + count}\n", durable=True)
        return last + 1

    def cleanup(self) -> None:
        """Remove incomplete submissions. Under the lock."""
        for key in self.ids("incoming"):
            marker = self.root / "incoming" / str(key)
            with access(marker):
                if not (self.directory(key) / "submission.json").exists():
                    words = marker.read_text().split()
                    self._remove(range(key, (int(words[-1]) if words else key) + 1))
                    self.close(key)
                marker.unlink(missing_ok=True)
        # All writes are under the lock, and ids are not reused: no later write would remove these files.
        for half in (self.root / "incoming").glob(".*.tmp"):
            half.unlink(missing_ok=True)

    def prune(self, now: float, keep: Collection[int]) -> None:
        """Remove submissions whose last job ended KEEP_ENDED_S ago, except `keep`. Under the lock."""
        spared = {*self.active(), *keep}
        for key in self.everything():
            with contextlib.suppress(SchedulerUnavailable):
                entry = self.entry(key)
                if entry is None or key in spared:
                    continue
                if all((task.end or now) < now - KEEP_ENDED_S for task in self.tasks(entry)):
                    (self.root / "tokens" / _token_file(entry.token)).unlink(missing_ok=True)
                    (self.directory(key) / "submission.json").unlink()
                    self._remove({key, *entry.raw_ids})

    def _remove(self, raws: Iterable[int]) -> None:
        import shutil

        for raw in raws:
            shutil.rmtree(self.directory(raw), ignore_errors=True)


def _token_file(token: str) -> str:
    """Return the name of a token's file in tokens/."""
    if _SAFE_TOKEN.fullmatch(token):
        return token
    import hashlib

    return "=" + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
