"""Stops this attempt when a newer one of the run has started, without overwriting checkpoints that the newer reads."""

from __future__ import annotations

import os

from resilience import layout
from resilience.base.files import kind_of, open_directory, read_regular
from resilience.guard.decision import BuiltInTrigger, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder

LOST = "lost"
"""`end` of an attempt whose end a later one wrote: scheduler and heartbeat agreed that the attempt was gone."""


class Superseded(BuiltInTrigger):
    """Checks whether a newer attempt has replaced this one.

    The rule is the batch shell's (docs/decisions/0008), as far as it works without querying a scheduler. Two cases
    prove this attempt to be the stale copy: a newer, running attempt with the same job id, because SLURM starts a job
    again only after it has given up the earlier start; and an end that another attempt wrote for this one, because it
    does so only if scheduler and heartbeat agree that this one is gone. A newer attempt of another job alone proves
    nothing: the run was queued twice, and the second copy waits for this one. The batch shell handles cases that need
    the scheduler.

    A poll opens the directory and checks two names in it. Attempts with a final result are not read again.
    """

    name = "superseded"
    ranks = "first"
    shared = True

    def __init__(self, place: RankInfo, recorder: Recorder) -> None:
        self._place = place
        self._recorder = recorder
        self._directory = os.path.join(place.run_dir, layout.ATTEMPTS)
        self._next = place.attempt + 1
        self._request: Request | None = None

    def poll(self) -> Request | None:
        """Check for a newer attempt."""
        if self._request is not None:
            return None
        try:
            # Opening makes an NFS client revalidate with its server, see `open_directory`.
            directory = open_directory(self._directory)
            try:
                self._request = self._was_given_up(directory) or self._newer(directory)
            finally:
                os.close(directory)
        except (FileNotFoundError, NotADirectoryError):
            return None  # the run directory is gone; `SwitchDirectory` reports that
        except (OSError, ImportError) as error:  # ImportError: the Python installation is gone
            self._recorder.warn(
                f"cannot check for newer attempts in {self._directory}: {error}", key=f"attempts {error}"
            )
        return self._request

    def _newer(self, directory: int) -> Request | None:
        number = self._next
        while True:
            read = self._read(layout.attempt_file(number), directory)
            if read is None:
                return None
            if read.get("job_id") == self._place.job_id and not self._is_over(number, directory):
                label = read.get("label") or read["job_id"]
                host = f" on {read['host']}" if read.get("host") else ""
                return self._stop(f"attempt {number} of job {label} has started{host}")
            if number == self._next and read.get("job_id"):  # else it is being written: read it again next time
                self._next = number + 1
            number += 1

    def _was_given_up(self, directory: int) -> Request | None:
        read = self._read(layout.attempt_end_file(self._place.attempt), directory)
        if read is None or read.get("end") != LOST:
            return None
        if "seen_by" not in read:
            return self._stop("its batch shell found that SLURM has revoked the job")
        return self._stop(f"attempt {read['seen_by']} has started and declared this job lost")

    def _stop(self, why: str) -> Request:
        why = f"{why}: this attempt {self._place.attempt} stops without saving"
        return Request(self.name, why, save=False, discard=True)

    def _read(self, name: str, directory: int) -> dict[str, str] | None:
        """Return the fields of a file; None if there is no file. A file that is not regular has no fields."""
        try:
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            read = None if kind_of(info) else read_regular(name, directory=directory)
        except FileNotFoundError:
            return None
        if read is None:
            return {}
        from resilience.switch import parse_fields

        return parse_fields(read[0])

    def _is_over(self, number: int, directory: int) -> bool:
        try:
            os.stat(layout.attempt_end_file(number), dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True
