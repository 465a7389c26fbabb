"""Judges one file system: usage, growth, checkpoints, quota grace periods, purge policies. Pure.

A figure exactly at a threshold is OK, as in the ranges of the Nagios plugin API. Every limit of a subject is judged and
the worst one is reported; `--explain` lists all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor

from resilience.finding import Figure, Finding, Verdict
from resilience.messages import plural
from resilience.quantities import format_bytes, format_duration
from resilience.watch.checks._filesystem.reading import (
    BYTES,
    FILE_SYSTEM,
    INODES,
    LEAST_READINGS,
    PERCENT,
    Amount,
    FileSystemReading,
    Growth,
    amount_text,
    growth,
    points_of,
)
from resilience.watch.checks._filesystem.task import CRIT_PERCENT, WARN_PERCENT, Task, Thresholds
from resilience.watch.reading import Timed

DAY_S = 86400.0
STEADY = 4.0
"""After this many checkpoint intervals of history, measured growth replaces the forecast from checkpoint sizes."""


def judge_reading(
    subject: str, readings: Sequence[Timed[FileSystemReading]], task: Task, now: float
) -> tuple[Finding, ...]:
    """Return the findings about the newest reading of a subject; at least one, OK if there is no fault."""
    reading = readings[-1].reading
    asked_at = readings[-1].time
    if reading.trouble:
        return (_inaccessible(subject, reading),)
    amounts = reading.amounts
    findings: list[Finding] = []
    if task.kind == BYTES:
        findings += _read_only(subject, reading, task)
    limited = [item for item in amounts if item.limit is not None]
    judged = [(*_fullness(item, reading, task.thresholds), item) for item in limited]
    if not judged:
        findings += [found for item in amounts for found in _soft_limit(subject, item, task, now - asked_at)]
        findings += _unread_limits(subject, reading, "no size reported")
        findings += [] if findings else _no_limit(subject, reading, task)
        return tuple(_with_explanation(findings, reading, []))
    # A read-only file system cannot fill up, and on one that the training only reads, no write can fail.
    can_fill = not reading.read_only and not reading.is_read
    worst = max(judged, key=lambda entry: (entry[0], _share(entry[2], task.thresholds)))
    verdict, why, fullest = worst
    room = min((_free(item, task.thresholds) for _, _, item in judged if item.kind != PERCENT), default=None)
    state = _state(fullest, task.thresholds, now - asked_at)
    roles = f"; {', '.join(reading.roles)}" if reading.roles else ""
    fault = "space" if task.kind == BYTES else "inodes"
    if verdict is not Verdict.OK and can_fill:
        findings.append(
            Finding(
                subject=subject,
                verdict=verdict,
                fault=fault,
                summary=f"{state}{why}{roles}",
                advice=_advice(fullest, reading, task),
            )
        )
    notes: list[str] = []
    if can_fill:
        growing, notes = judge_growth(subject, reading, limited, task)
        findings += growing if room is None or room > 0 else []
        findings += judge_checkpoints(subject, reading, room, task) if room is not None else []
    for item in amounts:
        findings += _soft_limit(subject, item, task, now - asked_at)
    findings += _unread_limits(subject, reading, state)
    findings += _purge(subject, reading, task)
    if not findings:
        note = "read-only; " if reading.read_only else ""
        findings.append(Finding(subject=subject, verdict=Verdict.OK, summary=f"{note}{state}{roles}"))
    findings.sort(key=lambda finding: finding.verdict, reverse=True)
    figures = tuple(f for _, _, item in judged for f in _figures(item, reading, task.thresholds))
    findings[0] = replace(findings[0], figures=figures)
    states = [f"{_state(item, task.thresholds, now - asked_at)}{reason or ': ' + _rule(item, reading, task.thresholds)}"
              for _, reason, item in judged]  # fmt: skip
    return tuple(_with_explanation(findings, reading, [*states, *notes]))


_NEVER_WRITABLE = frozenset({"squashfs", "iso9660", "udf", "erofs", "cramfs", "romfs"})
"""Images: to be read-only is no fault of these."""


def _inaccessible(subject: str, reading: FileSystemReading) -> Finding:
    verdict = {"unreadable": Verdict.UNKNOWN}.get(reading.trouble, Verdict.CRITICAL)
    was_there = reading.path in reading.mounts
    is_requested = reading.is_needed or reading.is_named or was_there or reading.trouble == "stale"
    if verdict is Verdict.CRITICAL and not is_requested:
        verdict = Verdict.WARNING  # for instance a variable set to a directory that never existed on this node
    roles = f" ({', '.join(reading.roles)})" if reading.roles else ""
    return Finding(subject=subject, verdict=verdict, fault=reading.trouble, summary=f"{reading.detail}{roles}",
                   advice=reading.advice, looked=reading.looked)  # fmt: skip


def _read_only(subject: str, reading: FileSystemReading, task: Task) -> list[Finding]:
    """Report a read-only mount, usually a remount after an error, unless it was never writable and is not needed."""
    if not reading.read_only or task.accepts_read_only or reading.is_read or reading.type in _NEVER_WRITABLE:
        return []
    if not (reading.is_needed or reading.seen_writable or reading.is_named):
        return []
    was = "it was writable before" if reading.seen_writable else "writes fail"
    verdict = Verdict.CRITICAL if reading.is_needed or reading.seen_writable else Verdict.WARNING
    return [
        Finding(
            subject=subject, verdict=verdict, fault="read-only",
            summary=f"is mounted read-only: {was} ({reading.device} at {reading.mount}, {reading.type})",
            advice="the kernel remounts read-only after disk errors: see `dmesg`, contact the administrators; "
            "if it is intended, set read_only = true",
        )
    ]  # fmt: skip


def _unread_limits(subject: str, reading: FileSystemReading, state: str) -> list[Finding]:
    """Report limits that could not be read: the usage of the whole file system does not replace them."""
    if not reading.silent:
        return []
    return [
        Finding(
            subject=subject, verdict=Verdict.UNKNOWN, fault="silent",
            summary=f"could not read a limit: {'; '.join(reading.silent)}; the file system itself: {state}",
            advice="run the command by hand, as the watchdog's user and in the watchdog's environment",
        )
    ]  # fmt: skip


def _no_limit(subject: str, reading: FileSystemReading, task: Task) -> list[Finding]:
    if task.kind == INODES:
        return [Finding(subject=subject, verdict=Verdict.OK, summary="no inode limit reported")]
    return [
        Finding(
            subject=subject, verdict=Verdict.UNKNOWN, fault="no-size",
            summary=f"reports no size ({reading.type or 'unknown type'}): usage unknown",
            advice="if your site has a command that prints the usage, set command in its table",
        )
    ]  # fmt: skip


def _levels(
    item: Amount, reading: FileSystemReading, thresholds: Thresholds
) -> tuple[float | None, float | None, float | None, float | None]:
    """Return the thresholds for one limit: warn percent, crit percent, warn free, crit free."""
    if item.kind == PERCENT:  # free amounts do not apply
        warn = thresholds.warn_percent if thresholds.warn_percent is not None else WARN_PERCENT
        return warn, thresholds.crit_percent if thresholds.crit_percent is not None else CRIT_PERCENT, None, None
    if _is_large(item, reading, thresholds) and not thresholds.percent_was_set:
        if thresholds.warn_free is None and thresholds.crit_free is None:
            return None, None, thresholds.large_warn_free, thresholds.large_crit_free
        return None, None, thresholds.warn_free, thresholds.crit_free
    return thresholds.warn_percent, thresholds.crit_percent, thresholds.warn_free, thresholds.crit_free


def _is_large(item: Amount, reading: FileSystemReading, thresholds: Thresholds) -> bool:
    """Return whether a shared file system is so large that thresholds in percent make no sense."""
    return (
        thresholds.large is not None and item.scope == FILE_SYSTEM and not reading.is_local
        and item.limit is not None and item.limit > thresholds.large
    )  # fmt: skip


def _usable(item: Amount, thresholds: Thresholds) -> float:
    assert item.limit is not None
    return item.limit * thresholds.usable_percent / 100


def _free(item: Amount, thresholds: Thresholds) -> float:
    return max(0.0, _usable(item, thresholds) - item.used)


def _share(item: Amount, thresholds: Thresholds) -> float:
    """Return the used percentage of the usable part."""
    return 100 * item.used / _usable(item, thresholds) if _usable(item, thresholds) else 100.0


def _fullness(item: Amount, reading: FileSystemReading, thresholds: Thresholds) -> tuple[Verdict, str]:
    """Return the verdict on the usage, and the threshold that was crossed."""
    warn_percent, crit_percent, warn_free, crit_free = _levels(item, reading, thresholds)
    share, free = _share(item, thresholds), _free(item, thresholds)
    if item.limit is not None and item.used >= item.limit:
        return Verdict.CRITICAL, "; it is full"
    for verdict, percent, least in (
        (Verdict.CRITICAL, crit_percent, crit_free),
        (Verdict.WARNING, warn_percent, warn_free),
    ):
        if percent is not None and share > percent:
            return verdict, f"; more than {percent:g}%"
        if least is not None and free < least:
            return verdict, f"; less than {amount_text(least, item.kind)} free"
    return Verdict.OK, ""


def _rule(item: Amount, reading: FileSystemReading, thresholds: Thresholds) -> str:
    """Return the thresholds as text, for --explain."""
    warn_percent, crit_percent, warn_free, crit_free = _levels(item, reading, thresholds)
    rules = []
    for word, percent, free in (("warning", warn_percent, warn_free), ("critical", crit_percent, crit_free)):
        parts = [f"above {percent:g}%"] if percent is not None else []
        parts += [f"below {amount_text(free, item.kind)} free"] if free is not None else []
        rules += [f"{word} {' or '.join(parts)}"] if parts else []
    if _is_large(item, reading, thresholds) and not thresholds.percent_was_set and thresholds.large is not None:
        rules.append(f"shared and larger than {amount_text(thresholds.large, item.kind)}, so percentages do not apply")
    return "; ".join(rules)


def _state(item: Amount, thresholds: Thresholds, since_s: float) -> str:
    """`91.2% of 10.0 TiB used, 900 GiB free (lfs quota of group lab, just now)`."""
    share = floor(10 * _share(item, thresholds) + 1e-6) / 10  # 94.99 is not 95
    what = "" if item.kind == BYTES else " inodes" if item.kind == INODES else ""
    usable = f" usable ({thresholds.usable_percent:g}%)" if thresholds.usable_percent != 100 else ""
    if item.kind == PERCENT:
        text = f"{share:g}% used"
    else:
        assert item.limit is not None
        whole = amount_text(_usable(item, thresholds), item.kind)
        text = f"{share:g}% of {whole}{usable}{what} used, {amount_text(_free(item, thresholds), item.kind)} free"
    age_s = max(0.0, since_s) + (item.age_s or 0.0)
    age = f"{format_duration(age_s)} old" if age_s >= 60 else "just now" if item.age_s is not None else "read just now"
    scope = "" if item.scope in (FILE_SYSTEM, "quota", "directory") else f" of {item.scope}"
    note = f"; {item.note}" if item.note else ""
    return f"{text} ({item.source}{scope}, {age}{note})"


def _advice(item: Amount, reading: FileSystemReading, task: Task) -> str:
    quota = "" if item.scope in (FILE_SYSTEM, "directory") else ", or ask for a larger quota"
    return f"list the largest directories: `{top_command(reading, task)}`; remove or move what is not needed{quota}"


def _soft_limit(subject: str, item: Amount, task: Task, since_s: float) -> list[Finding]:
    """Report an exceeded soft limit: writes fail after the grace period, however much is free."""
    if item.soft is None or item.used <= item.soft:
        return []
    whose = "" if item.scope == "quota" else f" of {item.scope}"
    what = " inodes" if item.kind == INODES else ""
    over = f"{amount_text(item.used - item.soft, item.kind)}{what} over the soft limit{whose}"
    advice = f"remove {amount_text(item.used - item.soft, item.kind)} before that, or ask for a larger quota"
    if item.grace_s is None:
        verdict, rest = Verdict.WARNING, "time left of the grace period unknown"
    else:
        left_s = max(0.0, item.grace_s - max(0.0, since_s))
        if left_s > 0:
            verdict = Verdict.CRITICAL if left_s < task.thresholds.crit_runway_s else Verdict.WARNING
            rest = f"writes fail in {format_duration(left_s)}, when the grace period expires"
        else:
            verdict, rest = Verdict.CRITICAL, "the grace period has expired: writes fail"
            advice = advice.replace(" before that", "")
    return [Finding(subject=subject, verdict=verdict, fault="quota-grace", advice=advice,
                    summary=f"{over} ({amount_text(item.soft, item.kind)}, {item.source}); {rest}")]  # fmt: skip


def _purge(subject: str, reading: FileSystemReading, task: Task) -> list[Finding]:
    seen = reading.purge
    if not seen or not task.purge_s or not seen.get("files"):
        return []
    files, oldest_s = int(seen["files"]), float(seen["oldest_s"])
    least = "" if seen.get("is_whole", True) else "at least "
    overdue = " (some are due now)" if oldest_s >= task.purge_s else ""
    newest = "" if seen.get("spares_newest", True) else ", including the newest"
    return [
        Finding(
            subject=subject,
            verdict=Verdict.CRITICAL if newest else Verdict.WARNING,
            fault="purge",
            summary=f"{least}{plural(files, 'file')} in {seen['directory']} will be purged within "
            f"{format_duration(task.purge_warn_s)}{overdue}{newest}: {format_bytes(seen['size_bytes'])}, "
            f"the oldest unused for {format_duration(oldest_s)} of {format_duration(task.purge_s)}",
            advice="copy what you need to a file system without purging; at most sites, reading a file resets its age",
            evidence=(str(seen["example"]),) if seen.get("example") else (),
        )
    ]


def _figures(item: Amount, reading: FileSystemReading, thresholds: Thresholds) -> list[Figure]:
    """Return the performance data: the usage with its thresholds, 0 and the limit."""
    warn_percent, crit_percent, warn_free, crit_free = _levels(item, reading, thresholds)
    usable = _usable(item, thresholds)

    def level(percent: float | None, free: float | None) -> float | None:
        used = [usable * percent / 100] if percent is not None else []
        used += [max(0.0, usable - free)] if free is not None else []
        return floor(min(used)) if used else None

    whose = "" if item.scope in (FILE_SYSTEM, "quota", "directory") else f" {item.scope}"
    name = {BYTES: "used", INODES: "inodes", PERCENT: "used_percent"}[item.kind]
    label = f"{name}{whose}" if item.scope != "directory" else f"{name} du"
    label = f"{name} quota" if item.scope == "quota" and item.kind != PERCENT else label
    return [Figure(label=label, value=item.used, unit={BYTES: "B", PERCENT: "%"}.get(item.kind, ""),
                   warn=level(warn_percent, warn_free), crit=level(crit_percent, crit_free), minimum=0.0,
                   maximum=item.limit)]  # fmt: skip


def _with_explanation(findings: Sequence[Finding], reading: FileSystemReading, notes: Sequence[str]) -> list[Finding]:
    """Return the findings, each with the whole explanation."""
    where = f"{reading.path} is on {reading.device} ({reading.type}), mounted at {reading.mount}"
    roles = (f"contains: {', '.join(reading.roles)}",) if reading.roles else ()
    lag = (
        "quota tools do not report the age of their figures: sites refresh them from twice an hour to 3 times a day",
    )
    shared = (
        "statvfs of a shared file system does not include quotas, snapshots, compression or tape: if your site has a "
        "command of its own for these, set command",
    )
    has_tool = any(item.age_s is None for item in reading.amounts)
    looked = (where, *roles, *reading.looked, *notes, *(lag if has_tool else ()), *(() if reading.is_local else shared))
    return [replace(finding, looked=(*looked, *finding.looked)) for finding in findings]


def judge_growth(
    subject: str, reading: FileSystemReading, amounts: Sequence[Amount], task: Task
) -> tuple[list[Finding], list[str]]:
    """Return a finding for the limit that is reached first at the measured growth, if soon; and a note per limit."""
    thresholds = task.thresholds
    if not (thresholds.warn_runway_s or thresholds.crit_runway_s):
        return [], ["growth: disabled in the settings"]
    soonest: tuple[float, str] | None = None
    notes = []
    for item in amounts:
        if item.limit is None:
            continue
        usable = item.limit * thresholds.usable_percent / 100
        found, why = growth(points_of(reading.history, item.key), usable * _healthy(thresholds) / 100)
        if found is not None and _is_before_first_pruning(found, reading):
            found, why = None, "it grows at the rate of checkpoints, which are pruned"
        if found is None:
            notes.append(f"growth ({item.scope}): {why}")
            continue
        left_s = found.reaches_in_s(usable - item.used)
        seen = f"growth ({item.scope}): {rate(found.per_s, item.kind)}, measured over {span(found.span_s)}"
        if left_s is None:
            notes.append(f"{seen}: runway longer than that allows to forecast")
            continue
        notes.append(f"{seen}: {span(left_s)} left; warning below {span(thresholds.warn_runway_s)}, "
                     f"critical below {span(thresholds.crit_runway_s)}")  # fmt: skip
        if soonest is None or left_s < soonest[0]:
            whose = f" of {item.scope}" if item.scope not in (FILE_SYSTEM, "quota", "directory") else ""
            soonest = (left_s, f"{span(left_s)} left{whose} at {rate(found.per_s, item.kind)}: "
                               f"{amount_text(usable - item.used, item.kind)} free")  # fmt: skip
    verdict = _verdict(soonest[0], thresholds) if soonest is not None else Verdict.OK
    if soonest is None or verdict is Verdict.OK:
        return [], notes
    advice = f"list what grows: `{top_command(reading, task)}`; prune checkpoints, or stop the writer"
    return [Finding(subject=subject, verdict=verdict, fault="runway", summary=soonest[1], advice=advice)], notes


def judge_checkpoints(subject: str, reading: FileSystemReading, room: float, task: Task) -> list[Finding]:
    """Report that the next checkpoint does not fit, or that few more do; nothing if their size is not known.

    Later checkpoints count only without evidence that older ones are removed: neither pruning nor a long enough
    history without growth.
    """
    known, thresholds = reading.checkpoint, task.thresholds
    size, every_s = known.get("size"), known.get("every_s")
    if not size or task.kind not in (BYTES, INODES):
        return []
    one = f"{amount_text(size, task.kind)}{' inodes' if task.kind == INODES else ''}"
    how = "as set" if task.checkpoint is not None else f"as measured in {known.get('directory')}"
    looked = (f"checkpoints: {one} each, {how}" + (f"; one every {format_duration(every_s)}, from {known.get('source')}"
              if every_s else ""),)  # fmt: skip
    if room < size:
        return [
            Finding(
                subject=subject, verdict=Verdict.CRITICAL, fault="checkpoint", looked=looked,
                summary=f"the next checkpoint does not fit: it takes {one}, and {amount_text(room, task.kind)} "
                f"{'is' if task.kind == BYTES else 'are'} free",
                advice="free space before the next save, which would fail; `resil save` and `resil kill` "
                "need room for one checkpoint too",
            )
        ]  # fmt: skip
    if not every_s or known.get("is_pruned") or _has_long_history(reading, task, every_s):
        return []
    left_s = room / size * every_s
    verdict = _verdict(left_s, thresholds)
    if verdict is Verdict.OK:
        return []
    count = int(room // size)
    return [
        Finding(
            subject=subject, verdict=verdict, fault="checkpoint", looked=looked,
            summary=f"room for {plural(count, 'more checkpoint')} of {one}, one every "
            f"{format_duration(every_s)}: {span(left_s)} at {rate(size / every_s, task.kind)}",
            advice="prune older checkpoints, or free space",
        )
    ]  # fmt: skip


def top_command(reading: FileSystemReading, task: Task) -> str:
    """Return the command that lists the largest directories."""
    from shlex import quote

    return f"resil watch {'fs' if task.kind == BYTES else 'inodes'} --top {quote(reading.path)}"


def _is_before_first_pruning(found: Growth, reading: FileSystemReading) -> bool:
    """Return whether the growth is only that of checkpoints that are pruned, seen before their first pruning."""
    known = reading.checkpoint
    size, every_s = known.get("size"), known.get("every_s")
    if not size or not every_s or not known.get("is_pruned"):
        return False
    return bool(found.per_s < 1.5 * size / every_s and found.span_s < 2 * (known.get("count", 0) + 1) * every_s)


def _has_long_history(reading: FileSystemReading, task: Task, every_s: float) -> bool:
    """Return whether the history is long enough to rely on the measured growth instead."""
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
    """Return a forecast with few digits: `3.1 days`, `14 hours`, `40 min`."""
    if seconds >= 2 * DAY_S:
        return f"{seconds / DAY_S:.1f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.0f} hours"
    return format_duration(60 * round(seconds / 60))


def rate(per_s: float, kind: str) -> str:
    """Return a growth rate: `16.7 TiB a day`."""
    return f"{amount_text(per_s * DAY_S, kind)}{' inodes' if kind == INODES else ''} a day"
