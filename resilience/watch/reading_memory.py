"""What watchdogs remember of earlier ticks: kept in the state directory, which may be the very disk that hangs.

So every look at it is a child with a deadline. Where the state directory does not answer or takes nothing, a folder of
this node does (system/spare_folder.py: spare_place); where nothing answers, the readings of this tick stand alone, and
`--explain` says so.
"""

from __future__ import annotations

import os
from binascii import crc32
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.errors import ResilError, StateDirectoryError
from resilience.system.files import own_folder
from resilience.system.stuck import Look, StuckMemory, look_apart
from resilience.watch.reading import Memory, Timed
from resilience.watch.readings import ReadingFile, Remembered, Series, merge

if TYPE_CHECKING:
    from resilience.runs.context import Context

FOLDER = ".watch"


class ReadingMemory(NamedTuple):
    """The memory of one project's watchdogs.

    Attributes:
        scene: whose.
        stuck: what is known to hang on this node.
        deadline_s: how long the state directory may take.
    """

    scene: Context
    stuck: StuckMemory
    deadline_s: float

    def load(self, wanted: Mapping[str, Memory]) -> dict[str, Remembered]:
        """What is remembered, by the name of the watchdog. What could not be looked at is empty and says why."""
        if not wanted:
            return {}

        def everywhere() -> dict[str, Any]:
            return self._load((self._home(), self._spare()) if self._may_be_spare() else (self._home(),), wanted)

        def here() -> dict[str, Any]:
            return self._load((self._spare(),), wanted)

        found, trouble = self._first_answer("remembered readings", everywhere, here)
        return {
            name: Remembered(_timed(found[name][0]), "; ".join(filter(None, (trouble, found[name][1]))))
            if found is not None
            else Remembered({}, trouble)
            for name in wanted
        }

    def save(self, new: Mapping[str, tuple[Series, Memory]]) -> str:
        """Remember the readings of this tick; return what was wrong with the state directory, or nothing."""
        new = {name: given for name, given in new.items() if given[0]}
        if not new:
            return ""

        def at_home() -> list[str]:
            return self._save(self._home(), new, and_else=True)

        def here() -> list[str]:
            return self._save(self._spare(), new)

        notes, trouble = self._first_answer("readings", at_home, here)
        return "; ".join(dict.fromkeys(filter(None, (trouble, *(notes or ())))))

    def _first_answer(self, what: str, *works: Callable[[], Any]) -> tuple[Any, str]:
        """What the first of these works returns that does not fail, and what was wrong with those before it."""
        troubles: list[str] = []
        for number, work in enumerate(works):
            place = f"{what} of {self.scene.state_dir}{' (spare)' if number else ''}"
            look = Look(place, work, self.deadline_s)
            for _, answer in look_apart({0: look}, self.stuck, self.scene.world.clock):
                if answer.error is None:
                    return answer.value, "; ".join(troubles)
                troubles.append(f"{place}: {answer.error.message}")
        return None, "; ".join(troubles)

    def _home(self) -> Path:
        """Where they belong; looks at the disk, so for a child only."""
        scene = self.scene
        if scene.has_settings or scene.state_dir.is_dir():
            return scene.state_dir / FOLDER
        # Nobody has decided to keep anything here; do not leave a folder in every place that somebody looks from.
        project = f"{scene.project.name or 'root'}-{crc32(os.fsencode(scene.project)):08x}"
        return scene.world.cache_home / "resil" / "watch" / project

    def _spare(self) -> Path:
        from resilience.system.spare_folder import spare_place

        return spare_place(self.scene.world, self.scene.state_dir / FOLDER)

    def _may_be_spare(self) -> bool:
        """Whether anything of ours was ever put aside on this node: mostly not, and then a name need not be hashed."""
        places = [f"/tmp/resil-{self.scene.world.host.uid}"]
        if base := self.scene.world.environ.get("XDG_STATE_HOME"):
            places.append(f"{base}/resil")
        return any(name.startswith(FOLDER.strip(".")) for place in places for name in _names(place))

    def _load(self, folders: Iterable[Path], wanted: Mapping[str, Memory]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        now = self.scene.world.clock.now()
        for name, memory in wanted.items():
            merged: Series = {}
            troubles = []
            for folder in folders:
                try:
                    remembered = self._file(folder, name).load(now)
                except StateDirectoryError as error:
                    remembered = Remembered({}, error.message)
                troubles.append(remembered.trouble)
                if remembered.series:
                    merged = merge(merged, remembered.series, memory, now) if merged else remembered.series
            found[name] = (_plain(merged), "; ".join(filter(None, troubles)))
        return found

    def _save(self, folder: Path, new: Mapping[str, tuple[Series, Memory]], *, and_else: bool = False) -> list[str]:
        """Write into a folder; where that takes nothing `and_else` the spare does."""
        now, notes = self.scene.world.clock.now(), []
        if not and_else and (own_folder(folder.parent) is None or own_folder(folder) is None):
            raise StateDirectoryError(f"cannot write {folder}: it cannot be made a folder of our own")
        moves = and_else and self._may_be_spare()
        for name, (series, memory) in new.items():
            beside = self._file(self._spare(), name) if moves else None
            try:
                if beside is not None:
                    with suppress(StateDirectoryError):  # what was kept there meanwhile moves home
                        series = merge(beside.load(now).series, series, memory, now)
                notes.append(self._file(folder, name).save(series, memory, now))
                if beside is not None:
                    with suppress(OSError):
                        beside.path.unlink(missing_ok=True)
            except ResilError as error:
                notes.append(error.message)
                if and_else:
                    notes += self._save(self._spare(), {name: (series, memory)})
        return notes

    def _file(self, folder: Path, name: str) -> ReadingFile:
        path = folder / f"{name}.json"
        group = self.scene.group
        if not group or folder.parent != self.scene.state_dir:
            return ReadingFile(path)
        import grp

        try:
            gid = grp.getgrnam(group).gr_gid
        except KeyError:
            return ReadingFile(path)  # submitting says that there is no such group
        return ReadingFile(path, 0o2770, 0o660, gid)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names only
    except OSError:
        return []


def _plain(series: Series) -> dict[str, Any]:
    return {subject: [(one.time, one.reading) for one in rows] for subject, rows in series.items()}


def _timed(found: Mapping[str, Any]) -> Series:
    return {subject: tuple(Timed(time, record) for time, record in rows) for subject, rows in found.items()}
