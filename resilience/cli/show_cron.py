"""Prints what `resil cron status` and `resil cron list` found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.cli.output import clean, paint, table
from resilience.cli.show_cron_driver import installation_to_json
from resilience.cron.entries import EntryRow, Listing
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.status import CronStatus, Health
from resilience.cron.words import slot_text
from resilience.job import Liveness
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.cron.records import Ignored

HEALTH_COLOURS = {
    Health.ALIVE: "green", Health.WAITING: "yellow", Health.LATE: "red", Health.DEAD: "red", Health.STOPPED: "yellow",
    Health.ABSENT: "yellow", Health.UNKNOWN: "yellow",
}  # fmt: skip
SIGNS = {
    Outcome.DONE: "ok", Outcome.SUBMITTED: "ok", Outcome.RUNNING: "..", Outcome.SKIPPED: "--", Outcome.MISSED: "--",
}  # fmt: skip
"""What stands before an outcome; before a failure, `!!`."""
_SUMMARY_CHARACTERS = 70


def show_status(found: CronStatus) -> None:
    """The state of the scheduler, then the entries."""
    judgement, now = found.judgement, found.now
    health = paint(judgement.health.value, HEALTH_COLOURS[judgement.health])
    print(f"{paint('cron', 'bold')}  {health}: {clean(judgement.reason)}")
    if judgement.advice:
        print(f"  try: {clean(judgement.advice)}")
    for line in _facts(found):
        print(f"  {clean(line)}")
    for text in found.trouble:
        if text != judgement.reason:
            print(paint(f"  {clean(text)}", "yellow"))
    if found.next:
        is_running = judgement.health in (Health.ALIVE, Health.WAITING, Health.LATE, Health.UNKNOWN)
        print("  next:" if is_running else "  would come next, if there were ticks:")
        print("\n".join(table(("", ""), [(when(slot, now), name) for slot, name in found.next], indent=4)))
    if found.rows:
        print("\n".join(table(("LAST", "ENTRY", "WHEN", "RESULT", "7 DAYS"), *_last(found.rows, now), indent=2)))
    elif judgement.health is not Health.UNKNOWN and not found.trouble:
        print(f"  nothing is scheduled: drop a file into {clean(found.folder)}/cron.hourly, or: resil cron add --help")
    print_ignored(found.faults, indent="  ")


def _facts(found: CronStatus) -> list[str]:
    installation, heartbeat, now, lines = found.installation, found.heartbeat, found.now, []
    if installation is not None:
        mode = f" ({installation.mode})" if installation.mode else ""
        lines.append(
            f"driver: {installation.driver}{mode}, installed by {installation.by} on {installation.host}, "
            f"{ago(installation.time, now)}"
        )
        if why := installation.facts.get("why"):
            lines.append(f"  {why}")
        if found.driver is not None:
            gone_as_meant = found.stopped is not None and found.driver.liveness is Liveness.GONE
            told = f"{found.driver.liveness.value}: {found.driver.summary}"
            lines.append("  nothing of it is left: that is as it should be" if gone_as_meant else f"  {told}")
            if found.driver.next_tick is not None:
                lines.append(f"  next tick: {when(found.driver.next_tick, now)}")
    if heartbeat is not None:
        place = heartbeat.host + (f", job {heartbeat.job_id}" if heartbeat.job_id else "")
        lines.append(f"last tick: {ago(heartbeat.time, now)}, by {heartbeat.driver or 'somebody'} on {place}")
        since = slot_text(heartbeat.alive_since, now)
        lines.append(f"alive since {since}: {heartbeat.ticks} {'tick' if heartbeat.ticks == 1 else 'ticks'}")
        if heartbeat.trouble:
            lines.append(f"trouble in that tick: {heartbeat.trouble}")
        late = f"late by {format_duration(round(heartbeat.late_s, 1))}" if heartbeat.late_s >= 0.05 else "in time"
        lines.append(f"lateness: the last tick was {late}{_lateness(found)}")
    return lines


def _lateness(found: CronStatus) -> str:
    if found.lateness is None:
        return ""
    median, p95, count = found.lateness.median_s, found.lateness.p95_s, found.lateness.count
    runs = "run" if count == 1 else f"{count} runs"
    return (
        f"; the last {runs} began {_seconds(median)} after the slot, jitter included (median; {_seconds(p95)} at p95)"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def _last(rows: Sequence[EntryRow], now: float) -> tuple[list[tuple[str, ...]], list[str]]:
    cells: list[tuple[str, ...]] = []
    colours: list[str] = []
    for row in rows:
        last = row.last
        counts = [f"{count} {what}" for count, what in
                  ((row.failed, "failed"), (row.missed, "missed"), (row.skipped, "skipped")) if count]  # fmt: skip
        if last is None:
            cells.append(("", row.name, "", "has not run yet", ", ".join(counts)))
        else:
            cells.append((sign(last.outcome), row.name, slot_text(last.slot, now), outcome_text(last, now),
                          ", ".join(counts)))  # fmt: skip
        colours.append("red" if last is not None and last.outcome.is_failure else "")
    return cells, colours


def sign(outcome: Outcome) -> str:
    """Two characters for an outcome: `ok`, `!!`, `..`, `--`."""
    return SIGNS.get(outcome, "!!")


def outcome_text(run: RunRecord, now: float | None = None) -> str:
    """What became of a slot, in one line."""
    text = run.outcome.value
    if run.outcome is Outcome.RUNNING and now is not None and run.started is not None:
        text += f" for {span(now - run.started)}"
    if run.outcome in (Outcome.MISSED, Outcome.SKIPPED) and run.count > 1:
        text += f" {run.count}"
    if run.job_id:
        text += f" as job {run.job_id}"
    elif run.exit_code is not None and run.outcome is Outcome.FAILED:
        text += f", exit code {run.exit_code}"
    if run.summary and run.outcome.is_failure and run.summary not in text:
        summary = clean(run.summary)
        text += f": {summary if len(summary) <= _SUMMARY_CHARACTERS else summary[: _SUMMARY_CHARACTERS - 3] + '...'}"
    return text


def when(moment: float, now: float) -> str:
    """`18:00, in 12 min`."""
    if moment <= now:
        return f"{slot_text(moment, now)}, now"
    return f"{slot_text(moment, now)}, in {span(moment - now)}"


def ago(moment: float, now: float) -> str:
    """`12 min ago`; a moment in the future is said to be one: some clock is wrong."""
    if moment > now + 1:
        return f"{span(moment - now)} in the future, by this machine's clock"
    return f"{span(now - moment)} ago"


def span(seconds: float) -> str:
    """A duration without more than it needs: whole seconds below a minute, whole minutes below a day."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds // 60:.0f} min"
    return format_duration(seconds)


def print_ignored(faults: int, indent: str = "") -> None:
    """How much does not run that somebody must have meant to; a README is nobody's news."""
    if faults:
        things = "1 thing in the cron folder does" if faults == 1 else f"{faults} things in the cron folder do"
        print(paint(f"{indent}{things} not run, most probably by mistake: resil cron doctor", "yellow"))


def status_to_json(found: CronStatus) -> dict[str, Any]:
    """The status as JSON's own types."""
    driver, lateness = found.driver, found.lateness
    return {
        "health": found.judgement.health.value,
        "reason": found.judgement.reason,
        "advice": found.judgement.advice,
        "time": found.now,
        "installation": installation_to_json(found.installation),
        "driver": None
        if driver is None
        else {
            "liveness": driver.liveness.value,
            "summary": driver.summary,
            "next_tick": driver.next_tick,
            "hint": driver.hint,
        },
        "heartbeat": found.heartbeat.to_json() if found.heartbeat is not None else None,
        "stopped": dict(found.stopped) if found.stopped is not None else None,
        "lateness": None
        if lateness is None
        else {"median_s": lateness.median_s, "p95_s": lateness.p95_s, "runs": lateness.count},
        "next": [{"slot": slot, "name": name} for slot, name in found.next],
        "entries": [row.to_json() for row in found.rows],
        "ignored": found.ignored,
        "faults": found.faults,
        "trouble": list(found.trouble),
    }


# ---- list -----------------------------------------------------------------------------------------------------


def show_listing(found: Listing, now: float, folder: Path) -> None:
    """The table of entries."""
    for text in found.trouble:
        print(paint(f"  {clean(text)}", "yellow"))
    if found.rows:
        headers = ("ENTRY", "RUNS", "NEXT", "KIND", "TIMEOUT", "OPTIONS", "PLACE", "COMMAND")
        print("\n".join(table(headers, [_cells(row, now) for row in found.rows])))
    else:
        print(f"nothing is scheduled in {clean(str(folder))}")
        print("  try: drop a file into its cron.hourly, or: resil cron add NAME --hourly -- COMMAND")
    print_ignored(sum(ignored.is_fault for ignored in found.ignored))


def _cells(row: EntryRow, now: float) -> tuple[str, ...]:
    timeout = "" if row.kind == "submit" else format_duration(row.timeout_s) if row.timeout_s else "none"
    options = " ".join(f"{key}={value}" if value else key for key, value in row.options.items() if key != "timeout")
    upcoming = "now" if row.is_due else when(row.next, now) if row.next is not None else "-"
    command = row.command if len(row.command) <= 60 else f"{row.command[:57]}..."
    return row.name, row.words, upcoming, row.kind, timeout, options, row.place, command


def listing_to_json(found: Listing) -> dict[str, Any]:
    """The listing as JSON's own types."""
    return {
        "entries": [row.to_json() for row in found.rows],
        "ignored": [ignored_to_json(ignored) for ignored in found.ignored],
        "trouble": list(found.trouble),
    }


def ignored_to_json(ignored: Ignored) -> dict[str, Any]:
    """Something that does not run, as JSON's own types."""
    return {
        "place": ignored.place,
        "reason": ignored.reason,
        "hint": ignored.hint,
        "is_fault": ignored.is_fault,
    }
