"""The directory of the switch files, read by rank 0: nothing in it fools or blocks the guard, and it may vanish."""

from __future__ import annotations

import os
import time

from resilience import layout
from resilience.base.files import open_directory, read_regular, remove_same
from resilience.base.switches import find_switch, name_of_group, name_of_user, recorded_policy, refusal_of
from resilience.switch import OwnerPolicy, Switch, parse_switch, policy_of_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

    Identity = tuple[int, int, int]

QUIET_S = 600.0
"""The same trouble is told again when there was none for so long."""


class FoundSwitch:
    """A switch that is to be obeyed.

    Attributes:
        switch: who, when, why, scope, label.
        identity: inode, mtime and ctime of the file: another one there is another wish.
        path: where it lies.
    """

    __slots__ = ("identity", "path", "switch")

    def __init__(self, switch: Switch, identity: Identity, path: str) -> None:
        self.switch = switch
        self.identity = identity
        self.path = path


class SwitchDirectory:
    """Looks for switches. What may not be obeyed, and a directory that cannot be looked at, is named once.

    Attributes:
        path: the directory.
        run: name of the run.
        place: of this process.
        recorder: hears what is odd.
    """

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = os.path.join(place.run_dir, layout.SWITCHES)
        self.run = place.run or os.path.basename(place.run_dir.rstrip("/"))
        self.place = place
        self.recorder = recorder
        self._owners = settings.switch_owners
        self._monotonic = monotonic
        self._refused: dict[str, tuple[Identity, str]] = {}
        self._troubled: set[str] = set()
        self._told: set[str] = set()
        self._names: dict[tuple[Callable[[int], str], int], str] = {}
        self._last_trouble = 0.0

    def look(self, kind: str, *, ours_too: bool = False) -> FoundSwitch | None:
        """The switch of this kind, if one lies there and is to be obeyed. Never raises for what a file system does.

        With `ours_too`, a file of this process's own user is obeyed whatever the policy.
        """
        try:
            directory = open_directory(self.path)
            try:
                found = self._find(kind, directory, ours_too)
            finally:
                os.close(directory)
        except OSError as error:
            self._cannot_look(kind, error)
            return None
        self._can_look(kind)
        return found

    def remove(self, found: FoundSwitch) -> bool:
        """Remove a switch that was obeyed; False if it is gone, or another lies there now. Raise OSError."""
        inode, mtime_ns, _ = found.identity
        directory = open_directory(self.path)
        try:
            return remove_same(found.switch.kind, inode, mtime_ns, directory=directory)
        finally:
            os.close(directory)

    def _find(self, kind: str, directory: int, ours_too: bool) -> FoundSwitch | None:
        file = find_switch(kind, directory)
        if file is None:
            self._refused.pop(kind, None)
            return None
        content, info, odd = file
        if odd:
            self._refuse(kind, info, odd)
            return None
        who = self._name(name_of_user, info.st_uid)
        refusal = "" if ours_too and info.st_uid == os.geteuid() else self._refusal(info, who, directory)
        try:
            switch = parse_switch(kind, content, who=who, written=info.st_mtime, run=self.run, refusal=refusal)
        except Exception as error:  # the Python installation is gone: a wish is a wish without its reason, too
            self.recorder.warn(f"cannot read what stands in the {kind} switch: {error!r}", key="switch content")
            switch = Switch(kind, who, info.st_mtime, honoured=not refusal, refusal=refusal)
        if not switch.honoured:
            self._refuse(kind, info, switch.refusal)
            return None
        self._refused.pop(kind, None)
        return FoundSwitch(switch, _identity(info), os.path.join(self.path, kind))

    def _refusal(self, info: os.stat_result, who: str, directory: int) -> str:
        """Why the owner of this file may not steer the run; empty when he may."""
        run = os.stat(self.place.run_dir)
        return refusal_of(info, self._policy(directory), run, who=who, group=lambda gid: self._name(name_of_group, gid))

    def _policy(self, directory: int) -> OwnerPolicy:
        """Whose switches are obeyed: as set, else as the run was submitted, so that its batch shell and its training
        obey the same people; else what the directory's own permissions allow."""
        if self._owners:
            return OwnerPolicy(self._owners)
        try:
            read = read_regular(os.path.join(self.place.run_dir, layout.RUN_FILE))
            if read is not None:
                import tomllib

                recorded = recorded_policy(tomllib.loads(read[0].decode()))
                if recorded is not None:
                    return recorded
        except (OSError, ValueError, RecursionError, ImportError):
            pass
        return policy_of_mode(os.fstat(directory).st_mode)

    def _name(self, ask: Callable[[int], str], number: int) -> str:
        """Asked once: a thread stays behind where there is no answer."""
        if (ask, number) not in self._names:
            self._names[ask, number] = ask(number)
        return self._names[ask, number]

    # ---- what is told, once ------------------------------------------------------------------------------------

    def _refuse(self, kind: str, info: os.stat_result, refusal: str) -> None:
        told = (_identity(info), refusal)
        if self._refused.get(kind) != told:
            self._refused[kind] = told
            self.recorder.warn(f"the {called(kind)} {os.path.join(self.path, kind)} is not obeyed: {refusal}")

    def _cannot_look(self, kind: str, error: OSError) -> None:
        self._troubled.add(kind)
        self._last_trouble = self._monotonic()
        reason = os.strerror(error.errno) if error.errno else str(error)
        if reason in self._told:
            return
        self._told.add(reason)
        self.recorder.warn(
            f"cannot look for switches in {self.path}: {reason}. The training goes on; kill, save and stop files do "
            "not reach it until that is mended"
        )

    def _can_look(self, kind: str) -> None:
        if not self._told:
            return
        if kind in self._troubled:
            self._troubled.discard(kind)
            if not self._troubled:
                self.recorder.event("switches_back", path=self.path)
        elif not self._troubled and self._monotonic() - self._last_trouble > QUIET_S:
            self._told.clear()


def _identity(info: os.stat_result) -> Identity:
    return info.st_ino, info.st_mtime_ns, info.st_ctime_ns


def called(kind: str) -> str:
    """What a switch file is called: `kill switch`, `stop file`."""
    return "stop file" if kind.startswith(layout.STOP_PREFIX) else f"{kind} switch"
