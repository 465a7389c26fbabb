"""Submits exactly one job per intent, however sbatch fails.

A controller that hangs takes the request, lets sbatch time out with rc 1, and creates the job when it goes on (seen in
20.11 to 26.05). So after anything but a clear refusal the job is looked for by its token, and sbatch is repeated only
when two looks, some seconds apart, were answered and found none.
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

LOOK_APART_S = 2.5
"""Between two looks that shall confirm each other: a controller that goes on works through what it had taken in."""
LOOK_EVERY_S = 1.0
RETRIES = 2
_ANSWER = re.compile(r"([1-9]\d*)(?:;[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one sbatch: the job's number, or why there is no answer."""

    number: int | None
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None


def parse_submitted(completed: Completed) -> Attempt:
    """Given how `sbatch --parsable` ended, say what came of it.

    `88`, or `88;cluster` with -M. An id with an error code, or an id among other lines, is no answer: the job is
    looked up instead.
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
    """True if a job came of this token: by its comment, or by its script's path where a site rewrites comments."""
    ours = split_comment(job.comment)
    if ours is not None:
        return ours[1] == token
    path = job.command.rpartition("/")[2].partition(" ")[0]
    return token in re.split(r"[^A-Za-z0-9_-]+", job.comment) or token in {path, path.rpartition(".")[0]}


def distinct(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Given records, return one for each job or array, oldest first; a living record stands for its array."""
    first: dict[JobId, Job] = {}
    for job in sorted(jobs, key=lambda job: (job.submit_time or 0.0, job.raw_id)):
        known = first.get(job.id.whole)
        if known is None or (not known.state.is_alive and job.state.is_alive):
            first[job.id.whole] = job
    return tuple(sorted(first.values(), key=lambda job: job.id.array))


@dataclass(frozen=True, slots=True)
class Submitter:
    """One submission, done once.

    Attributes:
        send: runs sbatch; raises SchedulerUnavailable if it did not end in time, SchedulerError if it could not start.
        look: the jobs that carry the token; raises SchedulerUnavailable if nobody answered.
        cancel: ends a job.
        until: monotonic second at which everything ends.
        looking_s: how long to look after one ambiguous sbatch.
    """

    submission: Submission
    clock: Clock
    send: Callable[[], Completed]
    look: Callable[[], tuple[Job, ...]]
    cancel: Callable[[JobId], None]
    until: float
    looking_s: float

    def submit(self) -> Submitted:
        """Look, send, look again where it is not clear, and send again where it is clear that nothing came of it."""
        # The same intent may have been sent before, by a process that was killed before it heard the answer.
        if not self.submission.fresh and (found := self._look_for(self.looking_s, confirm=False, sent=False)):
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
                return sent if attempt == 0 else self._without_twins(sent)
            last = result.diagnosis
            assert last is not None
            if last.meaning in {Meaning.REFUSED, Meaning.NO_SUCH_JOB, Meaning.NO_ACCOUNTING, Meaning.NOT_SENT}:
                if attempt == 0:
                    raise last.error("sbatch")
                break
            if found := self._look_for(self.looking_s, confirm=True, sent=True, why=last.words):
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

    def _look_for(self, looking_s: float, *, confirm: bool, sent: bool, why: str = "") -> tuple[Job, ...]:
        """Return the jobs that carry the token; none only from an answered look, with `confirm` from two.

        Raise SubmissionUncertain if no look was answered in time (SchedulerUnavailable when nothing was sent by us).
        """
        until = min(self.until, self.clock.monotonic() + looking_s)
        answered_at: float | None = None
        problem: SchedulerUnavailable | None = None
        while True:
            try:
                found = self.look()
            except SchedulerUnavailable as error:
                answered_at, problem = None, error
                if not error.transient:
                    if sent:
                        break
                    raise
            else:
                if found or not confirm:
                    return found
                if answered_at is not None and self.clock.monotonic() - answered_at >= LOOK_APART_S:
                    return ()
                answered_at = self.clock.monotonic() if answered_at is None else answered_at
            pause = LOOK_APART_S if answered_at is not None else LOOK_EVERY_S
            if self.clock.monotonic() + pause > until:
                break
            self.clock.sleep(pause)
        raise self._uncertain(sent, why, problem)

    def _uncertain(self, sent: bool, why: str, problem: SchedulerUnavailable | None) -> SchedulerUnavailable:
        token = self.submission.token
        looked = problem.message if problem is not None else "there was no time for a second look"
        hint = f"run `resil submit` again: it looks for the token {token} first"
        if not sent:
            # An earlier process may have sent it, so even this is not "nothing was submitted".
            return SubmissionUncertain(
                f"nothing was sent now, because the queue could not be looked at for an earlier job of token {token}: "
                f"{looked}",
                hint=hint,
            )
        return SubmissionUncertain(
            f"sbatch was sent for run {self.submission.run} and its fate is not known: {why}; looking for token "
            f"{token} failed: {looked}",
            hint=hint,
        )

    def _only(
        self, found: tuple[Job, ...], notes: tuple[str, ...], *, recovered: bool, just_sent: bool = False
    ) -> Submitted:
        """The oldest of the jobs that carry the token; younger ones that wait are cancelled.

        A younger one that runs is cancelled only when it was sent moments ago, by us.
        """
        oldest, *younger = distinct(found)
        for twin in younger:
            if not twin.state.is_alive:
                continue
            if just_sent or twin.state.is_waiting:
                self.cancel(twin.id.whole)
                notes = (*notes, f"job {twin.id.whole} carried the same token {self.submission.token}: cancelled")
            else:
                notes = (*notes, f"job {twin.id.whole} carries the same token and runs: `scancel {twin.id.whole}`")
        return Submitted(oldest.id.whole, notes, recovered)

    def _without_twins(self, sent: Submitted) -> Submitted:
        """After a repeated sbatch, look once more: the earlier one may have come through after all."""
        self.clock.sleep(LOOK_APART_S)
        try:
            found = self.look()
            if not found:
                return sent
            return self._only(found, sent.notes, recovered=len(distinct(found)) > 1, just_sent=True)
        except SchedulerError:
            note = f"whether an earlier try came through as well could not be looked up (token {self.submission.token})"
            return Submitted(sent.id, (*sent.notes, note))

    def _given_up(self, last: Diagnosis) -> SchedulerError:
        if last.meaning in {Meaning.UNAVAILABLE, Meaning.NOT_SENT}:
            return SchedulerUnavailable(
                f"sbatch failed and no job came of it: {last.words}", hint="submit again later: nothing is queued"
            )
        return SchedulerError(f"sbatch failed and no job came of it: {last.words}", hint=last.hint or "`resil doctor`")
