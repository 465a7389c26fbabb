"""One look of a watchdog at one target: probe, then judge, in a child process; its findings as plain data. Hardened.

Judging is pure, and still belongs in the child: a pattern that backtracks for ever, or a bug, must reach nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from resilience.errors import ResilError, UsageError
from resilience.finding import Figure, Finding, Verdict
from resilience.runs.context import Scene
from resilience.system.child import Answer
from resilience.watch.reading import Target, Timed, remember
from resilience.watch.readings import Series, from_record, to_record
from resilience.watch.watchdogs import Watchdog

STUCK = "stuck"
"""The fault of a look that got no answer in time, now and in every tick until one comes: that is one incident."""


def look_of(
    dog: Watchdog, target: Target, scene: Scene, before: Mapping[str, Timed[Any]], series: Series
) -> Callable[[], Any]:
    """The work of a child: it returns {subject: (time, record of the reading, findings)}, all plain."""

    def look() -> dict[str, Any]:
        answers = {}
        for subject, reading in dog.check.probe(target, dog.settings, scene, before).items():
            now = scene.world.clock.now()
            record = to_record(reading)
            findings = judged(dog, str(subject), Timed(now, reading), series.get(str(subject), ()), now)
            answers[str(subject)] = (now, record, [pack(finding) for finding in findings])
        return answers

    return look


def newest(dog: Watchdog, series: Series) -> dict[str, Timed[Any]]:
    """The last reading of each subject, for `probe`. One of another version is as if it were not there."""
    found: dict[str, Timed[Any]] = {}
    for subject, rows in series.items():
        try:
            found[subject] = Timed(rows[-1].time, from_record(dog.check.Reading, rows[-1].reading))
        except (TypeError, ValueError, IndexError):
            continue
    return found


def judged(dog: Watchdog, subject: str, taken: Timed[Any], rows: Sequence[Timed[Any]], now: float) -> list[Finding]:
    """What a watchdog says of a subject. A judge that fails says UNKNOWN; one that says nothing has found it well."""
    series: tuple[Timed[Any], ...] = (taken,)
    note = ""
    if rows and dog.check.memory.count > 1:  # else the newest is all that is wanted
        try:
            older: list[Timed[Any]] = [
                Timed(row.time, from_record(dog.check.Reading, row.reading)) for row in rows if row.time < now
            ]
            series = remember(older, series, dog.check.memory) or series
        except (TypeError, ValueError):
            note = "what was remembered is of another version, and was not used"
    try:
        try:
            findings = list(dog.check.judge(subject, series, dog.settings, now))
        except Exception:
            if len(series) == 1:
                raise
            # What is remembered may be damaged in a way that only shows here; then the judge must not fail for ever.
            findings = list(dog.check.judge(subject, (taken,), dog.settings, now))
            note = "what was remembered could not be judged, and was not used"
    except ResilError as error:
        return [unknown(subject, error, fault="judge")]
    except Exception as error:
        summary = f"the judgement failed: {type(error).__name__}: {error}"
        return [Finding(subject=subject, verdict=Verdict.UNKNOWN, fault="judge", summary=summary, advice=_bug(dog))]
    if note:
        findings = [replace(finding, looked=(*finding.looked, note)) for finding in findings]
    return findings or [Finding(subject=subject, verdict=Verdict.OK, summary="nothing is wrong")]


def findings_of(dog: Watchdog, target: Target, answer: Answer) -> list[Finding]:
    """Given what became of a look, return what it says of its target, of every subject that was to be looked at."""
    wanted = target.subjects or (target.name,)
    if answer.error is not None:
        error = answer.error
        if error.hint == "this is a bug of the probe":
            error = type(error)(error.message, hint=_bug(dog))
        return [unknown(subject, error, fault=STUCK if answer.is_overdue else "") for subject in wanted]
    findings = [unpack(packed) for _, _, packed_all in answer.value.values() for packed in packed_all]
    missing = [subject for subject in target.subjects if subject not in answer.value]
    return findings + [
        Finding(subject=subject, verdict=Verdict.UNKNOWN, fault="probe", summary="the look said nothing of it")
        for subject in missing
    ]


def unknown(subject: str, error: ResilError, fault: str = "") -> Finding:
    """What is said where there was no answer. `fault` is stable from tick to tick; figures stand in the summary."""
    fault = fault or ("settings" if isinstance(error, UsageError) else "probe")
    return Finding(
        subject=subject, verdict=Verdict.UNKNOWN, fault=fault, summary=error.message, advice=error.hint,
        looked=("could not look, which is UNKNOWN: neither well nor broken",),
    )  # fmt: skip


def bug(dog: Watchdog, error: Exception) -> Finding:
    """What is said of a watchdog that fails before it looks."""
    summary = f"it failed: {type(error).__name__}: {error}"
    return Finding(subject=dog.name, verdict=Verdict.UNKNOWN, fault="bug", summary=summary, advice=_bug(dog))


def _bug(dog: Watchdog) -> str:
    return f"this is a bug of the watchdog {dog.kind}; RESIL_TRACEBACK=1 shows where"


def pack(finding: Finding) -> tuple[Any, ...]:
    """A finding as plain data. Raise TypeError or ValueError if a part of it is not what it must be."""
    figures = [
        (str(f.label), float(f.value), str(f.unit), *(None if v is None else float(v) for v in (f.warn, f.crit,
         f.minimum, f.maximum))) for f in finding.figures
    ]  # fmt: skip
    texts = (finding.subject, finding.summary, finding.fault, finding.advice, finding.run)
    return (
        Verdict(finding.verdict).value, tuple(map(str, texts)), figures,
        tuple(map(str, finding.evidence)), tuple(map(str, finding.looked)),
    )  # fmt: skip


def unpack(packed: Sequence[Any]) -> Finding:
    """The finding that `pack` took apart."""
    verdict, (subject, summary, fault, advice, run), figures, evidence, looked = packed
    return Finding(
        subject=subject,
        verdict=Verdict(verdict),
        summary=summary,
        fault=fault,
        advice=advice,
        run=run,
        figures=tuple(
            Figure(label=label, value=value, unit=unit, warn=warn, crit=crit, minimum=least, maximum=most)
            for label, value, unit, warn, crit, least, most in figures
        ),
        evidence=tuple(evidence),
        looked=tuple(looked),
    )
