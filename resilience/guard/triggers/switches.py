"""The switch files, as the training sees them: kill, save, and the batch shell's own stop."""

from __future__ import annotations

import os

from resilience.guard.decision import SAVED, Request
from resilience.model import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.place import Place
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings


class _SwitchFile:
    name = ""
    ranks = "first"
    shared = True

    def __init__(self, place: Place, settings: GuardSettings, recorder: Recorder) -> None:
        self._place = place
        self._settings = settings
        self._recorder = recorder
        self._path = os.path.join(place.run_dir, layout.SWITCHES, self._file())

    def _file(self) -> str:
        return self.name

    def done(self, outcome: str) -> None:
        """Nothing follows."""


class KillSwitch(_SwitchFile):
    """`switches/kill`: save and stop."""

    name = layout.KILL_SWITCH

    def poll(self) -> Request | None:
        """Look whether it is thrown."""
        return Request(self.name, "the kill switch is thrown") if os.path.isfile(self._path) else None


class SaveSwitch(_SwitchFile):
    """`switches/save`: save and go on."""

    name = layout.SAVE_SWITCH

    def poll(self) -> Request | None:
        """Look whether it is thrown."""
        return Request(self.name, "the save switch is thrown", stop=False) if os.path.isfile(self._path) else None

    def done(self, outcome: str) -> None:
        """Remove it once the save succeeded."""
        if outcome == SAVED:
            os.unlink(self._path)


class StopFile(_SwitchFile):
    """`switches/stop.<jobid>`: the batch shell says that the time is nearly over."""

    name = "stop"

    def _file(self) -> str:
        return layout.STOP_PREFIX + self._place.job_id

    def poll(self) -> Request | None:
        """Look whether it is there."""
        return Request(self.name, "the time is nearly over") if os.path.isfile(self._path) else None
