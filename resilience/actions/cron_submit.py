"""Queues a slot's job: exactly one for each slot, whoever asks, however often."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.actions.cron_project import CronProject
    from resilience.model.cron import Entry, RunRecord


def token_of(cron: CronProject, entry: Entry, slot: int) -> str:
    """The word by which a slot's job is found: the same from every host and every try."""
    raise NotImplementedError


def submit_slot(cron: CronProject, entry: Entry, slot: int) -> RunRecord:
    """Queue the job of a slot, or find the one that is queued: SUBMITTED or REFUSED.

    Raise SubmissionUncertain if nobody can say what came of it: the next tick asks again.
    """
    raise NotImplementedError
