"""The findings about one file system: how full it is, and how long the room lasts. Pure.

A figure exactly at a threshold is OK, as in the ranges of the Nagios plugin API. Every limit of a subject is judged,
and the worst one is reported; all of them stand in the explanation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor

from resilience.finding import Figure, Finding, Verdict
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
"""What was seen for so many checkpoints' time says more than their size and number."""


def judge_reading(
    subject: str, readings: Sequence[Timed[FileSystemReading]], task: Task, now: float
) -> tuple[Finding, ...]:
    """Say what the newest reading of a subject amounts to; an OK finding when nothing is wrong."""
    reading = readings[-1].reading
    asked_at = readings[-1].time
    if reading.trouble:
        return (_trouble(subject, reading),)
    amounts = reading.amounts
    findings: list[Finding] = []
    if task.kind == BYTES:
        findings += _read_only(subject, reading, task)
    limited = [item for item in amounts if item.limit is not None]
    judged = [(*_fullness(item, reading, task.thresholds), item) for item in limited]
    if not judged:
        findings += [found for item in amounts for found in _grace(subject, item, task, now - asked_at)]
        findings += _silent(subject, reading, "it tells nothing")
        findings += [] if findings else _no_limit(subject, reading, task)
        return tuple(_with_explanation(findings, reading, []))
    # A file system that nobody can write to fills no further.
    can_fill = not reading.read_only
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
        findings += _grace(subject, item, task, now - asked_at)
    findings += _silent(subject, reading, state)
    findings += _purge(subject, reading, task)
    if not findings:
        note = "read-only; " if reading.read_only else ""
        findings.append(Finding(subject=subject, verdict=Verdict.OK, summary=f"{note}{state}{roles}"))
    findings.sort(key=lambda finding: finding.verdict, reverse=True)
    figures = tuple(f for _, _, item in judged for f in _figures(item, reading, task.thresholds))
    findings[0] = replace(findings[0], figures=figures)
    told = [f"{_state(item, task.thresholds, now - asked_at)}{reason or ': ' + _rule(item, reading, task.thresholds)}"
            for _, reason, item in judged]  # fmt: skip
    return tuple(_with_explanation(findings, reading, [*told, *notes]))


def _trouble(subject: str, reading: FileSystemReading) -> Finding:
    verdict = {"unreadable": Verdict.UNKNOWN}.get(reading.trouble, Verdict.CRITICAL)
    was_there = reading.path in reading.mounts
    is_requested = reading.is_needed or reading.is_named or was_there or reading.trouble == "stale"
    if verdict is Verdict.CRITICAL and not is_requested:
        verdict = Verdict.WARNING  # a variable that names a directory which this node never had
    roles = f" ({', '.join(reading.roles)})" if reading.roles else ""
    return Finding(subject=subject, verdict=verdict, fault=reading.trouble, summary=f"{reading.detail}{roles}",
                   advice=reading.advice, looked=reading.looked)  # fmt: skip


def _read_only(subject: str, reading: FileSystemReading, task: Task) -> list[Finding]:
    """A remount after an error, mostly. What never was writable and is not needed is as it should be."""
    if not reading.read_only or task.read_only_is_meant:
        return []
    if not (reading.is_needed or reading.seen_writable or reading.is_named):
        return []
    was = "it could be written before" if reading.seen_writable else "nothing can be written there"
    verdict = Verdict.CRITICAL if reading.is_needed or reading.seen_writable else Verdict.WARNING
    return [
        Finding(
            subject=subject, verdict=verdict, fault="read-only",
            summary=f"is mounted read-only: {was} ({reading.device} at {reading.mount}, {reading.type})",
            advice="the kernel does this after errors of the disk: see `dmesg`, tell the administrators; "
            "if it is meant, set read_only = true",
        )
    ]  # fmt: skip


def _silent(subject: str, reading: FileSystemReading, state: str) -> list[Finding]:
    """A limit that was to be told and was not: what the file system says of itself is no answer to that."""
    if not reading.silent:
        return []
    return [
        Finding(
            subject=subject, verdict=Verdict.UNKNOWN, fault="silent",
            summary=f"not told how much is left of a limit: {'; '.join(reading.silent)}; of the file system: {state}",
            advice="run it by hand, as the user and in the environment that runs the watchdog",
        )
    ]  # fmt: skip


def _no_limit(subject: str, reading: FileSystemReading, task: Task) -> list[Finding]:
    if task.kind == INODES:
        return [Finding(subject=subject, verdict=Verdict.OK, summary="no inode limit: it reports none")]
    return [
        Finding(
            subject=subject, verdict=Verdict.UNKNOWN, fault="no-size",
            summary=f"reports no size ({reading.type or 'unknown type'}): how full it is cannot be told",
            advice="if a command of your site can tell, set command in its table",
        )
    ]  # fmt: skip


def _levels(
    item: Amount, reading: FileSystemReading, thresholds: Thresholds
) -> tuple[float | None, float | None, float | None, float | None]:
    """Percent that warn and alarm, and free amounts that do, for one limit."""
    if item.kind == PERCENT:  # nothing else can be asked of it
        warn = thresholds.warn_percent if thresholds.warn_percent is not None else WARN_PERCENT
        return warn, thresholds.crit_percent if thresholds.crit_percent is not None else CRIT_PERCENT, None, None
    if _is_large(item, reading, thresholds) and not thresholds.percent_was_set:
        if thresholds.warn_free is None and thresholds.crit_free is None:
            return None, None, thresholds.large_warn_free, thresholds.large_crit_free
        return None, None, thresholds.warn_free, thresholds.crit_free
    return thresholds.warn_percent, thresholds.crit_percent, thresholds.warn_free, thresholds.crit_free


def _is_large(item: Amount, reading: FileSystemReading, thresholds: Thresholds) -> bool:
    """A file system that is shared by many and so large that a percent of it is many disks."""
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
    """Percent used of what is usable."""
    return 100 * item.used / _usable(item, thresholds) if _usable(item, thresholds) else 100.0


def _fullness(item: Amount, reading: FileSystemReading, thresholds: Thresholds) -> tuple[Verdict, str]:
    """How bad it is that so much is used, and which threshold says so."""
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
    """Why it is well, for --explain."""
    warn_percent, crit_percent, warn_free, crit_free = _levels(item, reading, thresholds)
    rules = []
    for word, percent, free in (("warns", warn_percent, warn_free), ("critical", crit_percent, crit_free)):
        parts = [f"beyond {percent:g}%"] if percent is not None else []
        parts += [f"below {amount_text(free, item.kind)} free"] if free is not None else []
        rules += [f"{word} {' or '.join(parts)}"] if parts else []
    if _is_large(item, reading, thresholds) and not thresholds.percent_was_set and thresholds.large is not None:
        rules.append(
            f"shared and larger than {amount_text(thresholds.large, item.kind)}, so percents are not looked at"
        )
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
    age = f"{format_duration(age_s)} old" if age_s >= 60 else "just now" if item.age_s is not None else "asked just now"
    scope = "" if item.scope in (FILE_SYSTEM, "quota", "directory") else f" of {item.scope}"
    note = f"; {item.note}" if item.note else ""
    return f"{text} ({item.source}{scope}, {age}{note})"


def _advice(item: Amount, reading: FileSystemReading, task: Task) -> str:
    quota = "" if item.scope in (FILE_SYSTEM, "directory") else ", or ask for a larger quota"
    return f"see what takes it: `{top_command(reading, task)}`; remove or move what is not needed{quota}"


def _grace(subject: str, item: Amount, task: Task, since_s: float) -> list[Finding]:
    """The soft limit is passed: writing ends when the grace period does, however much is free."""
    if item.soft is None or item.used <= item.soft:
        return []
    whose = "" if item.scope == "quota" else f" of {item.scope}"
    what = " inodes" if item.kind == INODES else ""
    over = f"{amount_text(item.used - item.soft, item.kind)}{what} over the soft limit{whose}"
    advice = f"remove {amount_text(item.used - item.soft, item.kind)} before that, or ask for a larger quota"
    if item.grace_s is None:
        verdict, rest = Verdict.WARNING, "how much of the grace period is left is not told"
    else:
        left_s = max(0.0, item.grace_s - max(0.0, since_s))
        if left_s > 0:
            verdict = Verdict.CRITICAL if left_s < task.thresholds.crit_runway_s else Verdict.WARNING
            rest = f"writing ends in {format_duration(left_s)}, with the grace period"
        else:
            verdict, rest = Verdict.CRITICAL, "the grace period is over: nothing more can be written"
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
    newest = "" if seen.get("spares_newest", True) else ", the newest among them"
    return [
        Finding(
            subject=subject,
            verdict=Verdict.CRITICAL if newest else Verdict.WARNING,
            fault="purge",
            summary=f"{least}{files:,} file{'s' if files != 1 else ''} in {seen['directory']} will be deleted for age "
            f"within {format_duration(task.purge_warn_s)}{overdue}{newest}: {format_bytes(seen['size_bytes'])}, "
            f"the oldest unused for {format_duration(oldest_s)} of {format_duration(task.purge_s)}",
            advice="copy what is worth keeping to where nothing is purged; at most sites reading a file renews it",
            evidence=(str(seen["example"]),) if seen.get("example") else (),
        )
    ]


def _figures(item: Amount, reading: FileSystemReading, thresholds: Thresholds) -> list[Figure]:
    """Performance data: what is used, with the amounts at which it warns and alarms, 0 and the limit."""
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
    """The findings, each with the whole explanation: a reader of one finding has it all."""
    where = f"{reading.path} lies on {reading.device} ({reading.type}), mounted at {reading.mount}"
    roles = (f"it holds: {', '.join(reading.roles)}",) if reading.roles else ()
    lag = ("quota tools do not say how old their figures are: some sites renew them twice an hour, some thrice a day",)
    shared = (
        "what a shared file system says of itself knows no quota, snapshot, compression or tape behind it: where your "
        "site's own command says otherwise, set command",
    )
    has_tool = any(item.age_s is None for item in reading.amounts)
    looked = (where, *roles, *reading.looked, *notes, *(lag if has_tool else ()), *(() if reading.is_local else shared))
    return [replace(finding, looked=(*looked, *finding.looked)) for finding in findings]


def judge_growth(
    subject: str, reading: FileSystemReading, amounts: Sequence[Amount], task: Task
) -> tuple[list[Finding], list[str]]:
    """The limit that is reached first at the growth that was seen, if that is soon; what is known of each growth."""
    thresholds = task.thresholds
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
            whose = f" of {item.scope}" if item.scope not in (FILE_SYSTEM, "quota", "directory") else ""
            soonest = (left_s, f"{span(left_s)} left{whose} at {rate(found.per_s, item.kind)}: "
                               f"{amount_text(usable - item.used, item.kind)} free")  # fmt: skip
    verdict = _verdict(soonest[0], thresholds) if soonest is not None else Verdict.OK
    if soonest is None or verdict is Verdict.OK:
        return [], notes
    advice = f"see what grows: `{top_command(reading, task)}`; prune checkpoints, or stop what fills it"
    return [Finding(subject=subject, verdict=verdict, fault="runway", summary=soonest[1], advice=advice)], notes


def judge_checkpoints(subject: str, reading: FileSystemReading, room: float, task: Task) -> list[Finding]:
    """Whether the next checkpoint fits, and how many more; nothing where no size is known.

    That they follow one another is held against the file system only where nothing shows that room is made: they were
    pruned, or what was seen for a while did not grow.
    """
    known, thresholds = reading.checkpoint, task.thresholds
    size, every_s = known.get("size"), known.get("every_s")
    if not size or task.kind not in (BYTES, INODES):
        return []
    one = f"{amount_text(size, task.kind)}{' inodes' if task.kind == INODES else ''}"
    how = "as the settings say" if task.checkpoint is not None else f"as measured in {known.get('directory')}"
    looked = (f"checkpoints: {one} each, {how}" + (f"; one every {format_duration(every_s)}, from {known.get('source')}"
              if every_s else ""),)  # fmt: skip
    if room < size:
        return [
            Finding(
                subject=subject, verdict=Verdict.CRITICAL, fault="checkpoint", looked=looked,
                summary=f"the next checkpoint does not fit: it takes {one}, and {amount_text(room, task.kind)} "
                f"{'is' if task.kind == BYTES else 'are'} free",
                advice="make room before the next save: the training would fail there; `resil save` and `resil kill` "
                "work while one still fits",
            )
        ]  # fmt: skip
    if not every_s or known.get("is_pruned") or _is_steady(reading, task, every_s):
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
            f"{format_duration(every_s)}: {span(left_s)} at {rate(size / every_s, task.kind)}",
            advice="prune older checkpoints, or make room",
        )
    ]  # fmt: skip


def top_command(reading: FileSystemReading, task: Task) -> str:
    """The command that shows what takes the room."""
    from shlex import quote

    return f"resil watch {'fs' if task.kind == BYTES else 'inodes'} --top {quote(reading.path)}"


def _is_first_tooth(found: Growth, reading: FileSystemReading) -> bool:
    """Whether it grows as checkpoints do that are known to be pruned, and was seen no longer than those are kept."""
    known = reading.checkpoint
    size, every_s = known.get("size"), known.get("every_s")
    if not size or not every_s or not known.get("is_pruned"):
        return False
    return bool(found.per_s < 1.5 * size / every_s and found.span_s < 2 * (known.get("count", 0) + 1) * every_s)


def _is_steady(reading: FileSystemReading, task: Task, every_s: float) -> bool:
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
