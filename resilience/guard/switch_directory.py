"""The directory of switch files, read by rank 0. Safe against unusual files, hung reads and a missing directory."""

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
"""The same error is reported again after this long without errors."""


class FoundSwitch:
    """An accepted switch.

    Attributes:
        switch: who, when, why, scope, label.
        identity: inode, mtime and ctime of the file; a file with other values is a new request.
        path: of the file.
    """

    __slots__ = ("identity", "path", "switch")

    def __init__(self, switch: Switch, identity: Identity, path: str) -> None:
        self.switch = switch
        self.identity = identity
        self.path = path


class SwitchDirectory:
    """Reads switches. Warns once of a rejected switch, and of a directory that cannot be read.

    Attributes:
        path: the directory.
        run: name of the run.
        place: of this process.
        recorder: for warnings.
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
        self._failing: set[str] = set()
        self._reported: set[str] = set()
        self._names: dict[tuple[Callable[[int], str], int], str] = {}
        self._last_failure = 0.0

    def read(self, kind: str, *, accept_own: bool = False) -> FoundSwitch | None:
        """Return the accepted switch of this kind, or None. Raises nothing for errors of the file system.

        With `accept_own`, a file of this process's user is accepted regardless of the policy.
        """
        try:
            directory = open_directory(self.path)
            try:
                found = self._find(kind, directory, accept_own)
            finally:
                os.close(directory)
        except OSError as error:
            self._on_error(kind, error)
            return None
        self._on_success(kind)
        return found

    def remove(self, found: FoundSwitch) -> bool:
        """Remove a switch after it was followed; return False if the file is gone or was replaced. Raise OSError."""
        inode, mtime_ns, _ = found.identity
        directory = open_directory(self.path)
        try:
            return remove_same(found.switch.kind, inode, mtime_ns, directory=directory)
        finally:
            os.close(directory)

    def _find(self, kind: str, directory: int, accept_own: bool) -> FoundSwitch | None:
        file = find_switch(kind, directory)
        if file is None:
            self._refused.pop(kind, None)
            return None
        content, info, odd = file
        if odd:
            self._refuse(kind, info, odd)
            return None
        who = self._name(name_of_user, info.st_uid)
        refusal = "" if accept_own and info.st_uid == os.geteuid() else self._refusal(info, who, directory)
        try:
            switch = parse_switch(kind, content, who=who, written=info.st_mtime, run=self.run, refusal=refusal)
        except Exception as error:  # imports fail if the Python installation is gone: accept the bare request
            self.recorder.warn(f"cannot read the content of the {kind} switch: {error!r}", key="switch content")
            switch = Switch(kind, who, info.st_mtime, honoured=not refusal, refusal=refusal)
        if not switch.honoured:
            self._refuse(kind, info, switch.refusal)
            return None
        self._refused.pop(kind, None)
        return FoundSwitch(switch, _identity(info), os.path.join(self.path, kind))

    def _refusal(self, info: os.stat_result, who: str, directory: int) -> str:
        """Return why the owner of this file may not control the run; empty if the policy allows it."""
        run = os.stat(self.place.run_dir)
        return refusal_of(info, self._policy(directory), run, who=who, group=lambda gid: self._name(name_of_group, gid))

    def _policy(self, directory: int) -> OwnerPolicy:
        """Return the owner policy: as set; else as submitted, which the batch shell of the run applies too; else from
        the permissions of the directory."""
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
        """Return a name, looked up once: a lookup that hangs leaves a thread behind."""
        if (ask, number) not in self._names:
            self._names[ask, number] = ask(number)
        return self._names[ask, number]

    # ---- reported once -----------------------------------------------------------------------------------------

    def _refuse(self, kind: str, info: os.stat_result, refusal: str) -> None:
        refused = (_identity(info), refusal)
        if self._refused.get(kind) != refused:
            self._refused[kind] = refused
            self.recorder.warn(f"the {called(kind)} {os.path.join(self.path, kind)} is rejected: {refusal}")

    def _on_error(self, kind: str, error: OSError) -> None:
        self._failing.add(kind)
        self._last_failure = self._monotonic()
        reason = os.strerror(error.errno) if error.errno else str(error)
        if reason in self._reported:
            return
        self._reported.add(reason)
        self.recorder.warn(
            f"cannot read the switches in {self.path}: {reason}. The training continues, but kill, save and stop "
            "files have no effect until the directory can be read again"
        )

    def _on_success(self, kind: str) -> None:
        if not self._reported:
            return
        if kind in self._failing:
            self._failing.discard(kind)
            if not self._failing:
                self.recorder.event("switches_back", path=self.path)
        elif not self._failing and self._monotonic() - self._last_failure > QUIET_S:
            self._reported.clear()


def _identity(info: os.stat_result) -> Identity:
    return info.st_ino, info.st_mtime_ns, info.st_ctime_ns


def called(kind: str) -> str:
    """Return the name of a kind of switch file for messages: `kill switch`, `stop file`."""
    return "stop file" if kind.startswith(layout.STOP_PREFIX) else f"{kind} switch"
