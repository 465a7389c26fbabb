"""A newer attempt of the run has begun: this one stops without saving over what the other reads."""

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
"""`end` of an attempt whose end was written by a later one: scheduler and heartbeat agreed that it is no more."""


class Superseded(BuiltInTrigger):
    """Looks whether a newer attempt has taken this one's place.

    The rule is the batch shell's (docs/decisions/0008), as far as it goes without asking a scheduler. Two things mean
    that we are the lost copy: a newer attempt, not over, of our own job id, because SLURM starts a job again only when
    it has given its first start up; and an end that another one wrote for us, because it did so only when scheduler
    and heartbeat agreed that we are gone. A newer attempt of another job alone means nothing: somebody queued the run
    a second time, and that copy waits for us. Where only the scheduler could tell, our batch shell asks it.

    Costs a look at the directory and at two names in it. Numbers that are judged for good are not looked at again.
    """

    name = "superseded"
    ranks = "first"
    shared = True

    def __init__(self, place: RankInfo, recorder: Recorder) -> None:
        self._place = place
        self._recorder = recorder
        self._directory = os.path.join(place.run_dir, layout.ATTEMPTS)
        self._next = place.attempt + 1
        self._asked: Request | None = None

    def poll(self) -> Request | None:
        """Look for a newer attempt."""
        if self._asked is not None:
            return None
        try:
            # Opening it makes an NFS client ask its server, see `open_directory`.
            directory = open_directory(self._directory)
            try:
                self._asked = self._was_given_up(directory) or self._newer(directory)
            finally:
                os.close(directory)
        except (FileNotFoundError, NotADirectoryError):
            return None  # the run directory is gone; whoever looks for switches says so
        except (OSError, ImportError) as error:  # ImportError: the Python installation is gone
            self._recorder.warn(
                f"cannot look for newer attempts in {self._directory}: {error}", key=f"attempts {error}"
            )
        return self._asked

    def _newer(self, directory: int) -> Request | None:
        number = self._next
        while True:
            read = self._read(layout.attempt_file(number), directory)
            if read is None:
                return None
            if read.get("job_id") == self._place.job_id and not self._is_over(number, directory):
                label = read.get("label") or read["job_id"]
                host = f" on {read['host']}" if read.get("host") else ""
                return self._stop(f"attempt {number} of job {label} has begun{host}")
            if number == self._next and read.get("job_id"):  # else it is being written, and is looked at again
                self._next = number + 1
            number += 1

    def _was_given_up(self, directory: int) -> Request | None:
        read = self._read(layout.attempt_end_file(self._place.attempt), directory)
        if read is None or read.get("end") != LOST:
            return None
        return self._stop(f"attempt {read.get('seen_by', 'of another job')} has begun, taking this job for lost")

    def _stop(self, why: str) -> Request:
        why = f"{why}: this attempt {self._place.attempt} stops without saving"
        return Request(self.name, why, save=False, discard=True)

    def _read(self, name: str, directory: int) -> dict[str, str] | None:
        """The fields of a file; None when there is nothing. What is no regular file has no fields."""
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
