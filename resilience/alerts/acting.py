"""Does what [alert] act says about the run of an incident that nobody has acknowledged: holds or cancels its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilience.errors import NoSuchJob
from resilience.messages import cut
from resilience.quantities import format_duration
from resilience.settings.alert_policy import HOLD

if TYPE_CHECKING:
    from resilience.alerts.incident import Incident
    from resilience.runs.project import Project


def act_upon(project: Project, incident: Incident, act: str) -> str:
    """Hold or cancel the jobs of the run of an incident, or name it unless [act] is enabled. Return what was done.

    Raise UsageError if the run is gone, SchedulerError if the scheduler does not answer or refuses.
    """
    from resilience.attempts.acting import open_by_hand
    from resilience.runs.breaker_file import BY_ALERT, read_breaker
    from resilience.runs.run_jobs import cancel

    what = "its queued jobs would be held" if act == HOLD else "its jobs would be cancelled"
    if not project.loaded.settings.act.enabled:
        return f"{what} now if [act] were enabled"
    directory = project.existing(incident.run)
    if act == HOLD:
        state, by = read_breaker(directory), f"{BY_ALERT}{incident.episode}"
        if state is not None and state.is_by_hand and state.by != by:  # own: the scheduler did not answer
            return "its queued jobs are held already"
        lasted = format_duration(project.system.clock.now() - (incident.first_told or incident.opened))
        why = f"nobody acknowledged for {lasted}: {incident.check} {cut(incident.summary, 200)}"
        done = open_by_hand(project, directory, why, by=by)
        held = f"its queued jobs were held ({', '.join(map(str, done.jobs)) or 'none is queued'})"
        failed = f"; not held: {done.error}" if done.error else ""
        return f"{held}; to go on: resil breaker close {incident.run}{failed}"
    try:
        done_ids = cancel(project, directory).ids
    except NoSuchJob:
        return "it had no job to cancel"
    return f"its jobs were cancelled ({', '.join(map(str, done_ids))}), because nobody acknowledged"
