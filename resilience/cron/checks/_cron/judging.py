"""Findings about the scheduler, entries and ignored files. Pure."""

from __future__ import annotations

from resilience import cron_late
from resilience.cron.checks._cron.reading import SCHEDULER, CronCheckSettings, CronReading
from resilience.cron.records import Outcome
from resilience.finding import Figure, Finding, Verdict
from resilience.messages import plural, quoted
from resilience.quantities import format_duration

LATE = "late"
"""Fault of a late and of a dead scheduler, so that both are one incident."""

_WORDS = {
    Outcome.FAILED: "failed",
    Outcome.TIMEOUT: "timed out",
    Outcome.REFUSED: "could not be started",
    Outcome.CUT_SHORT: "was cut short: its supervisor died",
}


def judge(subject: str, reading: CronReading, settings: CronCheckSettings, now: float) -> tuple[Finding, ...]:
    """Return the findings of one reading."""
    if reading.nothing:
        return (Finding(subject=subject, verdict=Verdict.OK, summary=reading.nothing),)
    if reading.kind == SCHEDULER:
        return judge_scheduler(subject, reading, settings.late_s, now)
    if reading.kind == "ignored":
        return (_ignored(subject, reading),)
    return _entry(subject, reading, settings, now)


def judge_scheduler(subject: str, reading: CronReading, late_s: float, now: float) -> tuple[Finding, ...]:
    """Return findings about the scheduler. `late_s`: 0 takes the scheduler's own."""
    if reading.stopped:
        return (Finding(subject=subject, verdict=Verdict.OK, summary=reading.stopped, looked=_explanation(reading)),)
    if reading.damaged:
        return (
            Finding(
                subject=subject, verdict=Verdict.UNKNOWN, fault="damaged", summary=reading.damaged,
                advice="the next tick rewrites it; if none comes: resil cron status", looked=_explanation(reading),
            ),
        )  # fmt: skip
    if reading.time - now > cron_late.FUTURE_S:
        return (_clock_ahead(subject, reading, now),)
    late_s = late_s or reading.patience_s
    findings = []
    if cron_late.is_late(reading.time, reading.expected, now, late_s):
        findings.append(_late(subject, reading, late_s, now))
    if reading.trouble:
        findings.append(
            Finding(
                subject=subject, verdict=Verdict.WARNING, fault="trouble", summary=reading.trouble,
                advice="resil cron status", looked=_explanation(reading),
            )
        )  # fmt: skip
    return tuple(findings) or (_alive(subject, reading, now),)


def last_tick(reading: CronReading, now: float) -> str:
    """Return the last tick for display: `last tick 12 min ago (crontab on login1)`."""
    ago = format_duration(max(0.0, now - reading.time))
    if not reading.ticks:
        return f"installed {ago} ago, no tick yet"
    return f"last tick {ago} ago{_maker(reading)}"


def _late(subject: str, reading: CronReading, late_s: float, now: float) -> Finding:
    pause_s = cron_late.pause_s(reading.time, reading.expected)
    patience_s = cron_late.patience_s(pause_s, late_s)
    if now - reading.awake_since < patience_s and reading.awake_since <= now:
        awake = format_duration(now - reading.awake_since)
        return Finding(
            subject=subject, verdict=Verdict.OK, looked=_explanation(reading),
            summary=f"{last_tick(reading, now)}, but this node has been up for only {awake}: waiting for the next tick",
        )  # fmt: skip
    is_dead = cron_late.is_dead(reading.time, reading.expected, now, late_s)
    word = "dead, nothing runs" if is_dead else "late"
    overdue_s = cron_late.overdue_s(reading.time, reading.expected, now)
    return Finding(
        subject=subject,
        fault=LATE,
        verdict=Verdict.CRITICAL if is_dead else Verdict.WARNING,
        summary=f"{word}: {last_tick(reading, now)}, expected every {format_duration(pause_s)}",
        advice=f"resil cron status; then {cron_late.restart_command(reading.driver)}",
        figures=(Figure("overdue", max(0.0, overdue_s), "s", patience_s, cron_late.DEAD * patience_s, 0.0),),
        looked=(*_explanation(reading), f"late when more than {format_duration(patience_s)} overdue"),
    )


def _clock_ahead(subject: str, reading: CronReading, now: float) -> Finding:
    ahead = format_duration(reading.time - now)
    where = f" on {reading.host}" if reading.host else ""
    return Finding(
        subject=subject, verdict=Verdict.WARNING, fault="clock", looked=_explanation(reading),
        summary=f"its last tick{where} is {ahead} in the future: the clock there or here is wrong",
        advice=f"compare: date +%s here and{where or ' there'}; ask your administrators for time synchronisation",
    )  # fmt: skip


def _alive(subject: str, reading: CronReading, now: float) -> Finding:
    late_by = max(0.0, cron_late.overdue_s(reading.time, reading.expected, now))
    figures = (Figure("overdue", late_by, "s", minimum=0.0),)
    if not reading.ticks:
        summary = last_tick(reading, now)
    else:
        summary = f"alive: {last_tick(reading, now)}"
        if reading.alive_since and reading.alive_since < now:
            summary += f", without a gap for {format_duration(now - reading.alive_since)}"
    return Finding(subject=subject, verdict=Verdict.OK, summary=summary, figures=figures, looked=_explanation(reading))


def _entry(subject: str, reading: CronReading, settings: CronCheckSettings, now: float) -> tuple[Finding, ...]:
    findings = []
    outcome = Outcome(reading.outcome) if reading.outcome else None
    if outcome is not None and outcome.is_failure:
        findings.append(_failure(subject, reading, outcome, settings, now))
    if 0 < settings.skips <= reading.skips:
        running = f" for {format_duration(now - reading.running_since)}" if reading.running_since else ""
        findings.append(
            Finding(
                subject=subject, verdict=Verdict.WARNING, fault="skipped",
                summary=f"{reading.skips} slots in a row were skipped: an earlier run is still active{running}",
                advice=f"resil cron history {quoted(subject)}; a shorter timeout ends it: # resil: timeout=10m",
            )
        )  # fmt: skip
    return tuple(findings) or (_ok(subject, reading, outcome, now),)


def _failure(subject: str, reading: CronReading, outcome: Outcome, settings: CronCheckSettings, now: float) -> Finding:
    is_critical = 0 < settings.crit_failures <= reading.failures
    code = f" with exit code {reading.exit_code}" if outcome is Outcome.FAILED and reading.exit_code else ""
    ago = format_duration(max(0.0, now - reading.ended))
    times = f", {reading.failures} times in a row" if reading.failures > 1 else ""
    is_said = not reading.summary or reading.summary.startswith("exit code")
    more = "" if is_said else f": {reading.summary}"
    where = f" on {reading.ran_on}" if reading.ran_on else ""
    return Finding(
        subject=subject,
        fault="failed",
        verdict=Verdict.CRITICAL if is_critical else Verdict.WARNING,
        summary=f"{_WORDS.get(outcome, outcome.value)}{code} {ago} ago{where}{times}{more}",
        advice=reading.hint or f"resil cron logs {quoted(subject)}",
        evidence=reading.tail,
        figures=(Figure("failures", reading.failures, minimum=0.0),),
    )


def _ok(subject: str, reading: CronReading, outcome: Outcome | None, now: float) -> Finding:
    if reading.running_since:
        summary = f"running for {format_duration(max(0.0, now - reading.running_since))}"
    elif outcome is None:
        summary = "not run yet"
    else:
        job = f" as job {reading.job_id}" if reading.job_id else ""
        word = f"submitted{job}" if outcome is Outcome.SUBMITTED else "succeeded"
        summary = f"{word} {format_duration(max(0.0, now - reading.ended))} ago"
    if reading.missed:
        slots = f"{plural(reading.missed, 'slot')} missed"
        summary += f"; {slots} before that and not run"
    return Finding(subject=subject, verdict=Verdict.OK, summary=summary)


def _ignored(subject: str, reading: CronReading) -> Finding:
    return Finding(
        subject=subject, verdict=Verdict.WARNING, fault="ignored", summary=f"does not run: {reading.summary}",
        advice=reading.hint or "resil cron doctor",
    )  # fmt: skip


def _maker(reading: CronReading) -> str:
    words = [reading.driver, f"on {reading.host}" if reading.host else ""]
    said = " ".join(word for word in words if word)
    return f" ({said})" if said else ""


def _explanation(reading: CronReading) -> tuple[str, ...]:
    if not reading.time:
        return ()
    return (f"heartbeat of {int(reading.time)}, next expected {int(reading.expected)}, {reading.ticks} ticks",)
