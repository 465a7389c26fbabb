"""The state directory `<state_dir>/.cron`: the book of runs, and the heartbeat of the scheduler.

Several schedulers on several hosts may use it over NFS without locks: the files of a run are taken by link(2) and
rename(2) (book.py); all other files are replaced atomically.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from resilience.cron.book import Book
from resilience.cron.records import Heartbeat, Installation, RunRecord
from resilience.cron.slots import AHEAD_S, link_once
from resilience.errors import ResilError, StateDirectoryError
from resilience.messages import quoted
from resilience.system.files import FULL, explain_os_error, make_directory, read_regular, write_atomic

FOLDER = ".cron"
"""In the state directory, beside the runs."""

TABLE = "table.json"
"""The table as the last tick read it, for the watchdog: `entries`, their names, and `ignored` files."""

RecordT = TypeVar("RecordT")


class CronDirectory:
    """State of one project's scheduler.

    Attributes:
        path: `<state_dir>/.cron`; may not exist.
        group: Unix group that may operate the project, or empty.
        book: taken slots, and the records of runs.
    """

    def __init__(self, state_dir: Path, group: str = "") -> None:
        self.path = state_dir / FOLDER
        self.group = group
        self.book = Book(self.path, directory_mode=self.directory_mode, file_mode=self.file_mode)

    @property
    def directory_mode(self) -> int:
        """Mode of new directories."""
        return 0o2770 if self.group else 0o700

    @property
    def file_mode(self) -> int:
        """Mode of new files."""
        return 0o660 if self.group else 0o600

    def check(self) -> None:
        """Raise StateDirectoryError if other users could have written here, as entries run with the owner's rights."""
        try:
            info = self.path.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise explain_os_error(error, "check", self.path) from error
        if not stat.S_ISDIR(info.st_mode):
            raise StateDirectoryError(
                f"{self.path} is not a directory", hint=f"move it away: mv {quoted(self.path)} /tmp"
            )
        if info.st_uid != os.geteuid() and not self.group:
            raise StateDirectoryError(
                f"{self.path} belongs to another user (uid {info.st_uid}): no entries run",
                hint="set state_dir in resil.toml to your own directory, or [run] group if a group operates it",
            )
        if info.st_mode & (0o002 if self.group else 0o022):
            fix = f"chmod {'o' if self.group else 'go'}-w {quoted(self.path)}"
            raise StateDirectoryError(f"other users can write to {self.path}: no entries run", hint=fix)

    # ---- entries ----------------------------------------------------------------------------------------------

    def last_slots(self, now: float | None = None) -> dict[str, int]:
        """Return the newest taken slot of every entry by its key, or since when the entry is known.

        With `now`, slots that only a wrong clock can have taken are ignored. Raise StateDirectoryError if it cannot be
        read.
        """
        found: dict[str, int] = {}
        with suppress(Damaged):
            found = {key: seen.since for key, seen in self.seen().items()}
        for key, taken in self.book.slots.taken().items():
            if counted := [slot for slot in taken if now is None or slot <= now + AHEAD_S]:
                found[key] = max(counted[-1], found.get(key, 0))
        return found

    def seen(self) -> dict[str, Seen]:
        """Return since when the entries of the table are known. Raise Damaged, or StateDirectoryError if unreadable."""
        found = {}
        for key, record in (self.read_record("seen") or {}).items():
            try:
                found[key] = Seen(int(record[0]), str(record[1]))
            except (TypeError, ValueError, LookupError) as error:
                raise Damaged(f"{self.path / 'seen'} is damaged: {key} is {record!r}") from error
        return found

    def write_seen(self, seen: Mapping[str, Seen]) -> None:
        """Write since when the entries of the table are known."""
        self.write_record("seen", {key: list(value) for key, value in seen.items()})

    def record(self, key: str, run: RunRecord) -> None:
        """Add a record to an entry's history. Raise StateDirectoryError if it cannot be written."""
        self.book.add(key, run)

    def history(self, key: str) -> tuple[RunRecord, ...]:
        """Return the slots of an entry that ended or were submitted, oldest first, each with its last record."""
        return self.book.history(key)

    def keys(self) -> tuple[str, ...]:
        """Return the keys of all entries with slots or a history."""
        return self.book.keys()

    # ---- the scheduler itself ---------------------------------------------------------------------------------

    def beat(self, heartbeat: Heartbeat) -> None:
        """Write the heartbeat of a tick. Raise StateDirectoryError if it cannot be written.

        On a full disk it replaces the last one in place, and the error is raised all the same.
        """
        self.write_record("heartbeat", heartbeat.to_json(), in_place=True)

    def mark_last(self, host: str = "", pid: int = 0) -> Heartbeat | None:
        """Mark the last heartbeat, of any process or only of this one, as the last expected one; return it.

        None: there is no such heartbeat. A live scheduler reverts the mark with its next tick. Raise
        StateDirectoryError if it cannot be written.
        """
        last = self.heartbeat()
        if last is None or last.is_last or (pid and (last.host, last.pid) != (host, pid)):
            return None
        self.beat(replace(last, is_last=True))
        return last

    def heartbeat(self) -> Heartbeat | None:
        """Return the last heartbeat; None: there is none. Raise StateDirectoryError if it cannot be read."""
        record = self.read_record("heartbeat")
        try:
            return Heartbeat.from_json(record) if record is not None else None
        except (TypeError, ValueError) as error:
            raise Damaged(f"{self.path / 'heartbeat'} is damaged: {error}") from error

    def install(self, installation: Installation) -> Installation:
        """Record what makes the ticks. The first caller wins: return the recorded installation."""
        make_directory(self.path, mode=self.directory_mode)
        temporary = self.path / f".driver.{os.urandom(6).hex()}.tmp"
        content = json.dumps(installation.to_json(), indent=1) + "\n"
        write_atomic(temporary, content, mode=self.file_mode)
        try:
            is_first = link_once(temporary, self.path / "driver.json", content.encode(), mode=self.file_mode)
        except OSError as error:
            raise explain_os_error(error, "write", self.path / "driver.json") from error
        finally:
            with suppress(OSError):
                temporary.unlink()
        return installation if is_first else self.installation() or installation

    def installation(self, *, or_copied: bool = False) -> Installation | None:
        """Return the recorded installation; None: there is none. Raise StateDirectoryError if it cannot be read.

        `or_copied`: also one that came along when the project was copied. It ticks only the project that still has it.
        """
        record = self.read_record("driver.json")
        try:
            found = Installation.from_json(record) if record is not None else None
        except TypeError as error:
            raise StateDirectoryError(f"{self.path / 'driver.json'} is damaged: {error}") from error
        return None if found is not None and not or_copied and self._is_copied(found) else found

    def _is_copied(self, installation: Installation) -> bool:
        parts, here = self.path.parts, self.path / "driver.json"
        if here.is_relative_to(installation.project):
            return False
        for count in range(1, len(parts)):
            theirs = Path(installation.project, *parts[-count:], "driver.json")
            with suppress(OSError):  # the project was moved
                if installation.token in theirs.read_text(errors="replace"):
                    return not theirs.samefile(here)
        return False

    def uninstall(self) -> None:
        """Delete the recorded installation."""
        with suppress(FileNotFoundError):
            (self.path / "driver.json").unlink()

    def stop(self, by: str, why: str, now: float) -> None:
        """Stop all ticks and successor jobs until `unstop`."""
        self.write_record("stop", {"by": by, "why": why, "time": now})

    def stopped(self) -> Mapping[str, Any] | None:
        """Return who stopped the scheduler, why and when; None: it is not stopped. A damaged file counts as stopped."""
        try:
            return self.read_record("stop")
        except Damaged as error:
            return {"by": "", "why": error.message, "time": 0.0}

    def unstop(self) -> None:
        """Revert `stop`."""
        with suppress(FileNotFoundError):
            (self.path / "stop").unlink()

    # ---- files ------------------------------------------------------------------------------------------------

    def write_record(self, name: str, record: Mapping[str, Any], *, in_place: bool = False) -> None:
        """Replace a file. Raise StateDirectoryError if that fails.

        `in_place`: on a full disk, replace it in the block of the last one, and raise the error all the same.
        """
        content, path = json.dumps(record).encode() + b"\n", self.path / name
        for directory in dict.fromkeys((self.path, path.parent)):
            make_directory(directory, mode=self.directory_mode)
        try:
            write_atomic(path, content, mode=self.file_mode, durable=False, sweep=not in_place)
        except StateDirectoryError as error:
            if in_place and isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL:
                with suppress(OSError):
                    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                    try:
                        os.pwrite(descriptor, content.ljust(os.fstat(descriptor).st_size), 0)
                    finally:
                        os.close(descriptor)
            raise

    def read_record(self, name: str) -> Mapping[str, Any] | None:
        """Return the record in a file; None: there is none. Raise Damaged, or StateDirectoryError if unreadable."""
        path = self.path / name
        try:
            found = read_regular(path, limit_bytes=2**22)
        except StateDirectoryError as error:
            if error.__cause__ is None or not path.is_file():  # a FIFO, a directory, a link
                raise Damaged(error.message, hint=f"remove it: rm -r {quoted(path)}") from error
            raise
        if found is None:
            return None
        try:
            record = json.loads(found[0])
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{path} is damaged: {error}", hint=f"remove it: rm {quoted(path)}") from error
        return record

    def recall(self, name: str, kind: type[RecordT]) -> RecordT:
        """Return a record as a dataclass or named tuple; its defaults if it cannot be read. Never raises."""
        from resilience.records import from_record

        with suppress(ResilError, ValueError, TypeError):
            return from_record(kind, self.read_record(name) or {}, lenient=True, strict=True)
        return kind()

    def quarantine(self, name: str) -> None:
        """Rename a damaged file to `NAME.damaged`. Raise StateDirectoryError if that fails."""
        path = self.path / name
        aside = path.with_name(f"{path.name}.damaged")
        try:
            if aside.is_dir() and not aside.is_symlink():
                aside = path.with_name(f"{path.name}.{os.urandom(3).hex()}.damaged")
            path.rename(aside)
        except OSError as error:
            raise explain_os_error(error, "rename", path) from error


class Seen(NamedTuple):
    """Since when an entry is known.

    Attributes:
        since: seconds since the epoch; slots up to then are ignored.
        schedule: its schedule with the zone; a new schedule starts anew.
    """

    since: int
    schedule: str = ""


class Damaged(StateDirectoryError):
    """The content of a state file is invalid."""
