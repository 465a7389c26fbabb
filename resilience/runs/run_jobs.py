"""Which jobs of a queue belong to which run, who may have submitted them, and which scheduler has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from resilience.job import Job
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, submitted_ids
from resilience.submission import split_comment
from resilience.system.world import is_account


class Owners:
    """Whose a job is, for many runs at once: a queue of 100,000 rows is gone through one time, whatever the runs.

    The run's name in the comment is not enough: two projects, or two people, may call their runs alike, and nobody's
    `resil cancel` may end the other's. It counts only where the journal knows no intent at all. A job with another
    token is never ours, even under an id that we remember: after a controller's crash SLURM may give an id away twice.
    A site may overwrite comments; the id is for that case.
    """

    def __init__(self, journals: Mapping[str, Sequence[Intent]]) -> None:
        """Take the runs by name, each with its journal."""
        self._by_token = {intent.token: run for run, intents in journals.items() for intent in intents}
        self._by_name = {run for run, intents in journals.items() if not intents}
        self._by_id: dict[int, list[str]] = {}
        for run, intents in journals.items():
            for job_id in submitted_ids(intents):
                self._by_id.setdefault(job_id.array, []).append(run)

    def runs_of(self, array: int, comment: str) -> Sequence[str]:
        """The runs that a job with this id (its array's) and this comment is of: one or none, but for shared ids."""
        mark = split_comment(comment)
        if mark is None:
            return self._by_id.get(array, ())
        run = self._by_token.get(mark[1])
        if run is None and mark[0] in self._by_name:
            run = mark[0]
        return () if run is None else (run,)


def jobs_of_run(jobs: Iterable[Job], run: str, intents: Sequence[Intent]) -> tuple[Job, ...]:
    """Given a queue and a run's journal, return the jobs of the run: those that carry one of its tokens. See Owners."""
    owners = Owners({run: intents})
    return tuple(job for job in jobs if owners.runs_of(job.id.array, job.comment))


def submitters(
    directory: RunDirectory, intents: Sequence[Intent], me: str, is_known: Callable[[str], bool] = is_account
) -> tuple[str, ...]:
    """Who may have jobs of a run: its owner, and everyone who ever submitted it and still has an account. Sorted."""
    people = {directory.owner(), *(intent.by for intent in intents if intent.by)}
    return tuple(sorted(name for name in people if name == me or is_known(name))) or (me,)


def scheduler_of(intents: Sequence[Intent]) -> str:
    """The scheduler that has the run's jobs: of the newest intent that was not refused. Empty when there is none."""
    return next((i.scheduler for i in reversed(intents) if i.outcome is not Outcome.REFUSED), "")
