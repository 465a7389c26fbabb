"""How long the room lasts: by the growth that was seen, and by the checkpoints that are to come. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from resilience.finding import Finding, Verdict
from resilience.quantities import format_duration
from resilience.watch.checks._filesystem.amount import BYTES, FILE_SYSTEM, INODES, Amount, amount_text
from resilience.watch.checks._filesystem.growth import LEAST_READINGS, Growth, growth
from resilience.watch.checks._filesystem.look import WARN_PERCENT, Look, Thresholds
from resilience.watch.checks._filesystem.reading import FileSystemReading, points_of

DAY_S = 86400.0
STEADY = 4.0
"""What was seen for so many checkpoints' time says more than their size and number."""


def judge_growth(
    subject: str, reading: FileSystemReading, amounts: Sequence[Amount], look: Look
) -> tuple[list[Finding], list[str]]:
    """The limit that is reached first at the growth that was seen, if that is soon; what is known of each growth."""
    thresholds = look.thresholds
    if not (thresholds.warn_runway_s or thresholds.crit_runway_s):
        return [], ["growth: not looked at, as the settings say"]
    soonest: tuple[float, str] | None = None
    notes = []
    for item in amounts:
        if item.limit is None:
            continue
        usable = item.limit * thresholds.usable_percent / 100
        found, why = growth(points_of(reading.history, item.key), usable * _healthy(thresholds) / 100)
        if found is not None and _is_first_tooth(found, reading):
            found, why = None, "it grows as checkpoints do that are pruned in time"
        if found is None:
            notes.append(f"growth ({item.scope}): {why}")
            continue
        left_s = found.reaches_in_s(usable - item.used)
        seen = f"growth ({item.scope}): {rate(found.per_s, item.kind)}, seen for {span(found.span_s)}"
        if left_s is None:
            notes.append(f"{seen}: it lasts longer than can be told from that")
            continue
        notes.append(f"{seen}: {span(left_s)} left; warns below {span(thresholds.warn_runway_s)}, "
                     f"critical below {span(thresholds.crit_runway_s)}")  # fmt: skip
        if soonest is None or left_s < soonest[0]:
            whose = f" of {item.scope}" if item.scope not in (FILE_SYSTEM, "quota", "folder") else ""
            soonest = (left_s, f"{span(left_s)} left{whose} at {rate(found.per_s, item.kind)}: "
                               f"{amount_text(usable - item.used, item.kind)} free")  # fmt: skip
    verdict = _verdict(soonest[0], thresholds) if soonest is not None else Verdict.OK
    if soonest is None or verdict is Verdict.OK:
        return [], notes
    advice = f"see what grows: `{top_command(reading, look)}`; prune checkpoints, or stop what fills it"
    return [Finding(subject=subject, verdict=verdict, fault="runway", summary=soonest[1], advice=advice)], notes


def judge_checkpoints(subject: str, reading: FileSystemReading, room: float, look: Look) -> list[Finding]:
    """Whether the next checkpoint fits, and how many more; nothing where no size is known.

    That they follow one another is held against the file system only where nothing shows that room is made: they were
    pruned, or what was seen for a while did not grow.
    """
    known, thresholds = reading.checkpoint, look.thresholds
    size, every_s = known.get("size"), known.get("every_s")
    if not size or look.kind not in (BYTES, INODES):
        return []
    one = f"{amount_text(size, look.kind)}{' inodes' if look.kind == INODES else ''}"
    how = "as the settings say" if look.checkpoint is not None else f"as measured in {known.get('folder')}"
    looked = (f"checkpoints: {one} each, {how}" + (f"; one every {format_duration(every_s)}, from {known.get('source')}"
              if every_s else ""),)  # fmt: skip
    if room < size:
        return [
            Finding(
                subject=subject, verdict=Verdict.CRITICAL, fault="checkpoint", looked=looked,
                summary=f"the next checkpoint does not fit: it takes {one}, and {amount_text(room, look.kind)} "
                f"{'is' if look.kind == BYTES else 'are'} free",
                advice="make room before the next save: the training would fail there; `resil save` and `resil kill` "
                "work while one still fits",
            )
        ]  # fmt: skip
    if not every_s or known.get("is_pruned") or _is_steady(reading, look, every_s):
        return []
    left_s = room / size * every_s
    verdict = _verdict(left_s, thresholds)
    if verdict is Verdict.OK:
        return []
    count = int(room // size)
    return [
        Finding(
            subject=subject, verdict=verdict, fault="checkpoint", looked=looked,
            summary=f"room for {count} more checkpoint{'s' if count != 1 else ''} of {one}, one every "
            f"{format_duration(every_s)}: {span(left_s)} at {rate(size / every_s, look.kind)}",
            advice="prune older checkpoints, or make room",
        )
    ]  # fmt: skip


def top_command(reading: FileSystemReading, look: Look) -> str:
    """The command that shows what takes the room."""
    from shlex import quote

    return f"resil watch {'fs' if look.kind == BYTES else 'inodes'} --top {quote(reading.path)}"


def _is_first_tooth(found: Growth, reading: FileSystemReading) -> bool:
    """Whether it grows as checkpoints do that are known to be pruned, and was seen no longer than those are kept."""
    known = reading.checkpoint
    size, every_s = known.get("size"), known.get("every_s")
    if not size or not every_s or not known.get("is_pruned"):
        return False
    return bool(found.per_s < 1.5 * size / every_s and found.span_s < 2 * (known.get("count", 0) + 1) * every_s)


def _is_steady(reading: FileSystemReading, look: Look, every_s: float) -> bool:
    """Whether it was looked at long enough to know better: its growth, or that there is none, was measured."""
    longest_s = 0.0
    for key in reading.history:
        points = points_of(reading.history, key)
        if len(points) >= LEAST_READINGS:
            longest_s = max(longest_s, points[-1][0] - points[0][0])
    return longest_s >= STEADY * every_s


def _healthy(thresholds: Thresholds) -> float:
    return thresholds.warn_percent if thresholds.warn_percent is not None else WARN_PERCENT


def _verdict(left_s: float, thresholds: Thresholds) -> Verdict:
    if thresholds.crit_runway_s and left_s < thresholds.crit_runway_s:
        return Verdict.CRITICAL
    return Verdict.WARNING if thresholds.warn_runway_s and left_s < thresholds.warn_runway_s else Verdict.OK


def span(seconds: float) -> str:
    """`3.1 days`, `14 hours`, `40 min`: a forecast is no stopwatch."""
    if seconds >= 2 * DAY_S:
        return f"{seconds / DAY_S:.1f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.0f} hours"
    return format_duration(60 * round(seconds / 60))


def rate(per_s: float, kind: str) -> str:
    """`16.7 TiB a day`."""
    return f"{amount_text(per_s * DAY_S, kind)}{' inodes' if kind == INODES else ''} a day"
