"""The weekly message about a run: its report in a few lines, with the picture and the page attached."""

from __future__ import annotations

from pathlib import Path

from resilience.alerts.alert import Alert
from resilience.alerts.commands import deliver
from resilience.alerts.state import open_alert_state
from resilience.quantities import format_duration
from resilience.report.contents import Report
from resilience.report.goodput import Category
from resilience.report.picture import render_png
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.system.files import write_atomic

PICTURE, PAGE = "report.png", "report.html"
"""In the run directory: channels read them when they send."""
DELIVERY_S = 60.0
MOST_CATEGORIES = 6


def lived(report: Report, since: float) -> bool:
    """Return whether anything of a run happened since then; of an attempt without an end that seems to be lost, whether
    it made steps. Pure."""
    moments = [one.start_time if one.end_time is None else one.end_time for one in report.attempts]
    moments += [one.end_time for one in report.steps]
    if report.time is not None and report.time.is_running:
        moments.append(report.made_at)
    return max(moments, default=0.0) >= since


def compose(report: Report) -> tuple[str, tuple[str, ...]]:
    """Return title and body. Pure."""
    body = []
    if report.last_step is not None:
        body.append(f"step {report.last_step:,}")
    if report.time is not None and report.time.wall_ms:
        spent = sorted(((ms, Category(one)) for one, ms in report.time.ms.items() if ms), reverse=True)
        body.append("where the time went, in the order of the picture's lower bar:")
        shown = {category for _, category in spent[:MOST_CATEGORIES]}
        for category in (one for one in Category if one in shown):
            ms = report.time.ms[category]
            body.append(
                f"  {100 * ms / report.time.wall_ms:5.1f} %  {category.text}, {format_duration(round(ms / 1000))}"
            )
    for advice in report.advice:
        body += [f"to change: {advice.say} {advice.how}", f"  {advice.because}"]
    open_now = [one for one in report.incidents if one.resolved is None]
    body += [f"open: {one.verdict} {one.check} {one.subject}: {one.summary} ({one.episode})" for one in open_now]
    return f"{report.run}: {report.headline}", tuple(body)


def send_report(project: Project, directory: RunDirectory, report: Report, page: str) -> Alert:
    """Queue the message for every channel in [alert], deliver what is queued, and return it.

    Raise StateDirectoryError if the files or the message cannot be written.
    """
    now, path = project.system.clock.now(), directory.path
    for name, content in ((PICTURE, render_png(report)), (PAGE, page)):
        write_atomic(path / name, content, mode=directory.file_mode, durable=False)
    title, body = compose(report)
    slot = project.system.environ.get("RESIL_CRON_SLOT", f"{now:.0f}")
    alert = Alert.of(
        id=f"report-{directory.run}-{slot}", thread=f"report-{directory.run}", time=now, host=project.system.host.name,
        project=str(project.loaded.project), title=title, body=body, files=_absolute(path, PICTURE, PAGE),
    )  # fmt: skip
    state = open_alert_state(project)
    for channel in project.loaded.settings.alert.channels:
        state.outbox.put(alert, channel, now)
    for _ in deliver(project, patient=True, deadline_s=DELIVERY_S):
        pass
    return alert


def _absolute(path: Path, *names: str) -> tuple[str, ...]:
    return tuple(str(path.absolute() / name) for name in names)
