"""Submits exactly one job per submission, whatever the failure of sbatch.

A hung controller accepts the request, sbatch times out with exit code 1, and the job is created when the controller
continues (observed in 20.11 to 26.05). So unless sbatch was clearly rejected, the job is searched by its token, and
sbatch is repeated only after two successful searches, some seconds apart, without a job.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from resilience.errors import SchedulerError, SchedulerUnavailable, SubmissionUncertain
from resilience.job import Job, JobId
from resilience.schedulers._slurm.errors import Diagnosis, Meaning, diagnose, quote
from resilience.submission import Submission, Submitted, split_comment
from resilience.system.ports import Clock
from resilience.system.process import Completed

CONFIRM_AFTER_S = 2.5
"""Time between two searches that confirm each other, in which a recovering controller processes its backlog."""
SEARCH_EVERY_S = 1.0
RETRIES = 2
_ANSWER = re.compile(r"([1-9]\d*)(?:;[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one sbatch: the job's number, or a diagnosis."""

    number: int | None
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None


def parse_submitted(completed: Completed) -> Attempt:
    """Parse the result of `sbatch --parsable`: `88`, or `88;cluster` with -M.

    An id with a non-zero exit code, or among other lines, does not count: the job is searched by its token.
    """
    notes = tuple(line.strip() for line in completed.stderr.splitlines() if line.strip())
    match = _ANSWER.fullmatch(completed.stdout.strip())
    if completed.returncode == 0 and match is not None:
        return Attempt(int(match[1]), notes)
    if completed.returncode == 0:
        said = quote(completed.stdout)[:120]
        return Attempt(None, notes, Diagnosis(Meaning.UNCLEAR, f"sbatch answered {said!r} instead of a job id"))
    return Attempt(None, notes, diagnose(completed.stderr, completed.returncode))


def carries(job: Job, token: str) -> bool:
    """Return whether a job has this token: in its comment, or in its script's path if a site rewrites comments."""
    ours = split_comment(job.comment)
    if ours is not None:
        return ours[1] == token
    path = job.command.rpartition("/")[2].partition(" ")[0]
    return token in re.split(r"[^A-Za-z0-9_-]+", job.comment) or token in {path, path.rpartition(".")[0]}


def distinct(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return one record for each job or array, oldest first; live records of an array take precedence."""
    first: dict[JobId, Job] = {}
    for job in sorted(jobs, key=lambda job: (job.submit_time or 0.0, job.raw_id)):
        known = first.get(job.id.whole)
        if known is None or (not known.state.is_alive and job.state.is_alive):
            first[job.id.whole] = job
    return tuple(sorted(first.values(), key=lambda job: job.id.array))


@dataclass(frozen=True, slots=True)
class Submitter:
    """Performs one submission exactly once.

    Attributes:
        send: runs sbatch; raises SchedulerUnavailable if sbatch times out, SchedulerError if sbatch cannot start.
        find: returns the jobs with the token; raises SchedulerUnavailable without a reliable answer.
        cancel: cancels a job.
        until: deadline of the submission on the monotonic clock.
        lookup_s: how long to search after an ambiguous failure of sbatch.
    """

    submission: Submission
    clock: Clock
    send: Callable[[], Completed]
    find: Callable[[], tuple[Job, ...]]
    cancel: Callable[[JobId], None]
    until: float
    lookup_s: float

    def submit(self) -> Submitted:
        """Search, send, search again after an ambiguous failure, and send again if no job was created."""
        # The submission may have been sent before, by a process that was killed before it got the answer.
        if not self.submission.fresh and (found := self._search(self.lookup_s, confirm=False, sent=False)):
            return self._only(found, (), recovered=True)
        last: Diagnosis | None = None
        notes: tuple[str, ...] = ()
        for attempt in range(1 + RETRIES):
            if attempt and self.clock.monotonic() >= self.until:
                break
            result = self._send()
            notes = result.notes
            if result.number is not None:
                sent = Submitted(JobId(result.number), notes)
                return sent if attempt == 0 else self._without_duplicates(sent)
            last = result.diagnosis
            assert last is not None
            if last.meaning in {Meaning.REFUSED, Meaning.NO_SUCH_JOB, Meaning.NO_ACCOUNTING, Meaning.NOT_SENT}:
                if attempt == 0:
                    raise last.error("sbatch")
                break
            if found := self._search(self.lookup_s, confirm=True, sent=True, why=last.words):
                return self._only(found, notes, recovered=True)
        assert last is not None
        raise self._given_up(last)

    def _send(self) -> Attempt:
        try:
            return parse_submitted(self.send())
        except SchedulerUnavailable as error:
            if not error.transient:  # not installed: nothing was sent
                raise
            return Attempt(None, (), Diagnosis(Meaning.UNAVAILABLE, error.message, error.hint))

    def _search(self, lookup_s: float, *, confirm: bool, sent: bool, why: str = "") -> tuple[Job, ...]:
        """Return the jobs with the token; none only after a successful search, with `confirm` after two.

        Raise SubmissionUncertain without a successful search in time (SchedulerUnavailable if nothing was sent).
        """
        until = min(self.until, self.clock.monotonic() + lookup_s)
        answered_at: float | None = None
        problem: SchedulerUnavailable | None = None
        while True:
            try:
                found = self.find()
            except SchedulerUnavailable as error:
                answered_at, problem = None, error
                if not error.transient:
                    if sent:
                        break
                    raise
            else:
                if found or not confirm:
                    return found
                if answered_at is not None and self.clock.monotonic() - answered_at >= CONFIRM_AFTER_S:
                    return ()
                answered_at = self.clock.monotonic() if answered_at is None else answered_at
            pause = CONFIRM_AFTER_S if answered_at is not None else SEARCH_EVERY_S
            if self.clock.monotonic() + pause > until:
                break
            self.clock.sleep(pause)
        raise self._uncertain(sent, why, problem)

    def _uncertain(self, sent: bool, why: str, problem: SchedulerUnavailable | None) -> SchedulerUnavailable:
        token = self.submission.token
        failure = problem.message if problem is not None else "there was no time for a second search"
        hint = f"run `resil submit` again, which first searches for token {token}"
        if not sent:
            # An earlier process may have sent the submission, so "nothing was submitted" would be wrong.
            return SubmissionUncertain(
                f"nothing was sent, because the search for an earlier job with token {token} failed: {failure}",
                hint=hint,
            )
        return SubmissionUncertain(
            f"sbatch was run for {self.submission.run} with an unknown outcome: {why}; the search for token {token} "
            f"failed: {failure}",
            hint=hint,
        )

    def _only(
        self, found: tuple[Job, ...], notes: tuple[str, ...], *, recovered: bool, just_sent: bool = False
    ) -> Submitted:
        """Return the oldest job with the token, and cancel its pending duplicates.

        A running duplicate is cancelled only if this call has just sent it.
        """
        oldest, *younger = distinct(found)
        for duplicate in younger:
            if not duplicate.state.is_alive:
                continue
            if just_sent or duplicate.state.is_waiting:
                self.cancel(duplicate.id.whole)
                notes = (*notes, f"job {duplicate.id.whole} had the same token {self.submission.token}: cancelled")
            else:
                notes = (
                    *notes,
                    f"job {duplicate.id.whole} has the same token and is running: `scancel {duplicate.id.whole}`",
                )
        return Submitted(oldest.id.whole, notes, recovered)

    def _without_duplicates(self, sent: Submitted) -> Submitted:
        """After a repeated sbatch, search again, because the earlier sbatch may have created a job as well."""
        self.clock.sleep(CONFIRM_AFTER_S)
        try:
            found = self.find()
            if not found:
                return sent
            return self._only(found, sent.notes, recovered=len(distinct(found)) > 1, just_sent=True)
        except SchedulerError:
            note = f"could not check for a duplicate job of an earlier try (token {self.submission.token})"
            return Submitted(sent.id, (*sent.notes, note))

    def _given_up(self, last: Diagnosis) -> SchedulerError:
        if last.meaning in {Meaning.UNAVAILABLE, Meaning.NOT_SENT}:
            return SchedulerUnavailable(
                f"sbatch failed and no job was created: {last.words}", hint="submit again later: nothing was queued"
            )
        return SchedulerError(f"sbatch failed and no job was created: {last.words}", hint=last.hint or "`resil doctor`")
