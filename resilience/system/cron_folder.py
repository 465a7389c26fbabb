"""The folder `<state_dir>/.cron`: which slots are taken, what became of them, and that the scheduler lives.

Several schedulers may be at it, on several hosts, over NFS: no lock decides. A slot is taken by making a file of its
own name, which the file server does once (link(2), as in open(2) on O_EXCL and NFS); everything else is written whole,
or appended with a single write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from resilience.errors import StateDirectoryError
from resilience.model.cron import Heartbeat, Installation, Outcome, RunRecord
from resilience.system.files import append_line, explain_os_error, make_folder, read_lines, read_regular, write_atomic

FOLDER = ".cron"
"""In the state directory, beside the runs."""

KEPT_SLOTS = 32
"""So many taken slots of an entry stay as files: a scheduler that lags behind still finds that its slot was taken."""


class CronFolder:
    """What is remembered of the scheduler of one project.

    Attributes:
        path: `<state_dir>/.cron`; it need not exist.
        group: Unix group that may operate the project, or empty.
    """

    def __init__(self, state_dir: Path, group: str = "") -> None:
        self.path = state_dir / FOLDER
        self.group = group

    @property
    def folder_mode(self) -> int:
        """Mode of its folders."""
        return 0o2770 if self.group else 0o700

    @property
    def file_mode(self) -> int:
        """Mode of its files."""
        return 0o660 if self.group else 0o600

    # ---- slots ------------------------------------------------------------------------------------------------

    def last_slots(self) -> dict[str, int]:
        """The newest slot taken of every entry, by the entry's key. Raise StateDirectoryError if it cannot be read."""
        try:
            keys = os.listdir(self.path / "slots")  # noqa: PTH208
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise explain_os_error(error, "read", self.path / "slots") from error
        found = {}
        for key in keys:
            taken = self._taken(key)
            if taken:
                found[key] = taken[-1]
        return found

    def take(self, key: str, slot: int, by: Mapping[str, Any]) -> bool:
        """Take a slot for good: True for exactly one caller on earth. False too if a newer slot was taken already.

        `by` says who took it, for people. Raise StateDirectoryError if the folder cannot be written: then nobody has
        it.
        """
        folder = self.path / "slots" / key
        make_folder(folder, mode=self.folder_mode)
        name = str(slot)
        temporary = folder / f".{name}.{os.urandom(6).hex()}.tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self.file_mode)
            try:
                os.write(descriptor, json.dumps(dict(by)).encode() + b"\n")
                os.fchmod(descriptor, self.file_mode)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            try:
                os.link(temporary, folder / name)
            except FileExistsError:
                return False
            finally:
                with suppress(OSError):
                    temporary.unlink()
        except OSError as error:
            raise explain_os_error(error, "write", folder / name) from error
        taken = self._taken(key)
        for old in taken[:-KEPT_SLOTS]:
            with suppress(OSError):
                (folder / str(old)).unlink()
        return not taken or taken[-1] <= slot

    def _taken(self, key: str) -> list[int]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(int(name) for name in os.listdir(self.path / "slots" / key) if name.isdigit())  # noqa: PTH208
        return []

    # ---- history ----------------------------------------------------------------------------------------------

    def record(self, key: str, run: RunRecord) -> None:
        """Add a line to an entry's history. Raise StateDirectoryError if it cannot be written."""
        make_folder(self.path / "history", mode=self.folder_mode)
        append_line(self.path / "history" / f"{key}.jsonl", run.to_json(), mode=self.file_mode, sync=False)

    def history(self, key: str) -> tuple[RunRecord, ...]:
        """What became of an entry's slots, oldest first; of each slot the last that is known."""
        found: dict[int, RunRecord] = {}
        for record in read_lines(self.path / "history" / f"{key}.jsonl"):
            with suppress(KeyError, TypeError, ValueError):
                run = RunRecord.from_json(record)
                if not (run.outcome is Outcome.RUNNING and run.slot in found):
                    found[run.slot] = run
        return tuple(found[slot] for slot in sorted(found))

    def keys(self) -> tuple[str, ...]:
        """The keys of all entries that were ever heard of."""
        return tuple(sorted(dict.fromkeys(self._keys())))

    def _keys(self) -> Iterator[str]:
        for folder, suffix in (("slots", ""), ("history", ".jsonl")):
            with suppress(FileNotFoundError, NotADirectoryError):
                yield from (n.removesuffix(suffix) for n in os.listdir(self.path / folder) if not n.startswith("."))  # noqa: PTH208

    # ---- the scheduler itself ---------------------------------------------------------------------------------

    def beat(self, heartbeat: Heartbeat) -> None:
        """Leave the sign of life of a tick. Raise StateDirectoryError if it cannot be written."""
        self._write("heartbeat", heartbeat.to_json())

    def heartbeat(self) -> Heartbeat | None:
        """The last sign of life; None: there never was one. Raise StateDirectoryError if it cannot be read."""
        record = self._read("heartbeat")
        try:
            return Heartbeat.from_json(record) if record is not None else None
        except (TypeError, ValueError) as error:
            raise StateDirectoryError(f"{self.path / 'heartbeat'} is damaged: {error}") from error

    def install(self, installation: Installation) -> Installation:
        """Say what makes the ticks from now on. The first one wins: return the one that counts."""
        make_folder(self.path, mode=self.folder_mode)
        temporary = self.path / f".driver.{os.urandom(6).hex()}.tmp"
        write_atomic(temporary, json.dumps(installation.to_json(), indent=1) + "\n", mode=self.file_mode)
        try:
            os.link(temporary, self.path / "driver.json")
        except FileExistsError:
            return self.installation() or installation
        except OSError as error:
            raise explain_os_error(error, "write", self.path / "driver.json") from error
        finally:
            with suppress(OSError):
                temporary.unlink()
        return installation

    def installation(self) -> Installation | None:
        """What `install` said; None: nothing. Raise StateDirectoryError if it cannot be read."""
        record = self._read("driver.json")
        try:
            return Installation.from_json(record) if record is not None else None
        except TypeError as error:
            raise StateDirectoryError(f"{self.path / 'driver.json'} is damaged: {error}") from error

    def uninstall(self) -> None:
        """Forget what `install` said."""
        with suppress(FileNotFoundError):
            (self.path / "driver.json").unlink()

    def stop(self, by: str, why: str, now: float) -> None:
        """Have no tick run anything any more, and no job submit its successor, until `unstop`."""
        self._write("stop", {"by": by, "why": why, "time": now})

    def stopped(self) -> Mapping[str, Any] | None:
        """Who stopped the scheduler, why and when; None: nobody did."""
        return self._read("stop")

    def unstop(self) -> None:
        """Undo `stop`."""
        with suppress(FileNotFoundError):
            (self.path / "stop").unlink()

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        make_folder(self.path, mode=self.folder_mode)
        write_atomic(self.path / name, json.dumps(record) + "\n", mode=self.file_mode, durable=False)

    def _read(self, name: str) -> Mapping[str, Any] | None:
        found = read_regular(self.path / name)
        if found is None:
            return None
        try:
            record = json.loads(found[0])
        except ValueError as error:
            raise StateDirectoryError(f"{self.path / name} is damaged: {error}") from error
        if not isinstance(record, dict):
            raise StateDirectoryError(f"{self.path / name} is damaged: it is no table")
        return record
