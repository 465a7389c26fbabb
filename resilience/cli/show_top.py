"""`resil watch fs --top`: the largest and the fastest-growing directories, and the accuracy of the figures."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.cli.output import chosen, clean, folded, paint, print_json, table
from resilience.messages import plural
from resilience.quantities import format_bytes, format_duration
from resilience.watch.scan.top import (
    DAY_S,
    TopDirectory,
    TopReport,
    compose,
    login_name,
    scan_directory,
    scanned_directories,
)
from resilience.watch.scan.tree import ELSEWHERE, PARTIAL, STUCK, UNREAD, UNREADABLE, Record

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.watch.scan.scan import Progress, Scan

NAMED = 5
SURE_AFTER_S = 3600.0
BAR = 24
LONGEST = 160
SIGNALLED = 128
"""The exit code of a program that a signal ended is this and the signal's number: 130 after Ctrl-C."""


def show_top(
    project: Project,
    paths: tuple[str, ...],
    *,
    limit: int,
    deadline_s: float | None,
    as_json: bool,
    by: str,
    fresh: bool = False,
) -> int:
    """Scan the directories (default: the project's) and print the largest and the fastest-growing. `fresh` reads all.

    Return 0, 3 if a directory could not be scanned, or 128 and the number of the signal that ended the scan.
    """
    system = project.system
    roots = scanned_directories(project, paths)
    until = None if deadline_s is None else system.clock.monotonic() + deadline_s
    reports: list[TopReport] = []
    for number, root in enumerate(roots):
        left_s = None if until is None else max(0.5, (until - system.clock.monotonic()) / (len(roots) - number))
        progress = _Bar(root) if sys.stderr.isatty() else None
        found = scan_directory(project, root, left_s, progress.update if progress else lambda _: None, fresh=fresh)
        if progress:
            progress.clear()
        reports.append(compose(found, limit=limit, by=by, login_name=cache(login_name)))
        if found.interrupted:
            break
    if as_json:
        print_json("top", {"by": by, "folders": [to_json(report) for report in reports]})
    else:
        for number, report in enumerate(reports):
            if number:
                print()
            for text in lines(report, by=by, now=system.clock.now()):
                print(text)
    sys.stdout.flush()
    if ended := max(report.scan.signal for report in reports):
        return SIGNALLED + ended
    return 3 if any(report.scan.error for report in reports) else 0


class _Bar:
    """A progress line on the terminal."""

    def __init__(self, root: Path) -> None:
        self.root, self.began, self.shown = clean(str(root)), time.monotonic(), False

    def update(self, progress: Progress) -> None:
        """Redraw the line, from 0.3 s on: a quick scan needs none."""
        took_s = time.monotonic() - self.began
        if took_s < 0.3:
            return
        columns = _columns()
        self._write(f"\r\x1b[K{bar(progress, took_s, self.root)[: columns - 1]}")
        self.shown = True

    def clear(self) -> None:
        """Erase the line."""
        if self.shown:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        with suppress(OSError):  # the terminal is gone, but the scan must still be recorded
            sys.stderr.write(text)
            sys.stderr.flush()


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80


def bar(progress: Progress, took_s: float, root: str) -> str:
    """Return `[######......] 2,500 of about 5,051 directories, 510,000 stat calls, 3 s: /scratch`. Pure."""
    counted = f"{progress.directories:,} directories"
    drawn = ""
    if progress.expected:
        part = min(1.0, progress.directories / progress.expected)
        drawn = f"[{'#' * int(part * BAR):.<{BAR}}] "
        counted = f"{progress.directories:,} of about {progress.expected:,} directories"
    return f"{drawn}{counted}, {progress.stat_calls:,} stat calls, {took_s:.0f} s: {root}"


def lines(report: TopReport, *, by: str, now: float) -> list[str]:
    """Return the lines about one directory. Pure, except for colours."""
    found = report.scan
    root = clean(str(found.root))
    if found.error:
        return [f"{root}: could not be scanned: {found.error}"]
    tree = found.tree
    at_least = "at least " if not found.is_complete else ""
    headline = (
        f"{root}: {at_least}{format_bytes(tree.blocks[0] * 512)} in {plural(tree.files[0], 'file')} "
        f"and {plural(tree.directories[0], 'directory')}, scanned in {_seconds(found.took_s)}"
    )
    shown = folded(headline)
    shown[0] = shown[0].replace(root, paint(root, "bold"))
    shown += [line for sentence in warnings(report) for line in folded(f"! {sentence}", 2)]
    if report.largest:
        shown += ["", f"LARGEST by {by}", *_table(report, report.largest, by, now)]
    if report.growing:
        shown += ["", f"FASTEST GROWING by {by}", *_table(report, report.growing, by, now, growing=True)]
    return [*shown, "", *(line for sentence in remarks(report) for line in folded(sentence, 2))]


def _seconds(took_s: float) -> str:
    return f"{took_s:.2f} s" if took_s < 10 else format_duration(took_s)


def warnings(report: TopReport) -> list[str]:
    """Return the limits of the figures: unfinished, unreadable and unverified directories. Pure."""
    found = report.scan
    shown = []
    why = "interrupted" if found.interrupted else "the deadline" if found.out_of_time else "no response"
    if unread := found.tree.in_state(UNREAD, PARTIAL):
        shown.append(
            f"{len(unread):,} of {plural(len(found.tree), 'directory')} unfinished ({why}): the figures are "
            f"lower bounds; run the command again to continue: {_names(unread)}"
        )
    if stuck := found.tree.in_state(STUCK):
        shown.append(f"{plural(len(stuck), 'directory')} did not respond: {_names(stuck)}")
    if found.unverified:
        known = f"{found.unverified:,} of {plural(len(found.tree), 'known directory')}"
        shown.append(f"{known} could not be checked again ({why}): the figures there are from earlier scans")
    if unreadable := found.tree.in_state(UNREADABLE):
        reasons = ", ".join(sorted({os.strerror(record.trouble) for record in unreadable}))
        count = plural(len(unreadable), "directory")
        shown.append(f"{count} could not be read ({reasons}), their contents are not counted: {_names(unreadable)}")
    return shown + [clean(note) for note in found.notes]


def remarks(report: TopReport) -> list[str]:
    """Return remarks: checkpoints, growth, other file systems. Pure."""
    found = report.scan
    shown = []
    if report.checkpoint_directories:
        directories = plural(report.checkpoint_directories, "directory")
        shown.append(f"checkpoints: {format_bytes(report.checkpoint_bytes)} in {directories}")
    if report.since_s is None:
        shown.append("growth: unknown until the next scan, for lack of an earlier one")
    else:
        guess = "; the interval is too short for a reliable rate per day" if report.since_s < SURE_AFTER_S else ""
        grows = "" if report.growing else "nothing grew " if not found.unseen else "none found "
        shown.append(f"growth: {grows}since the scan of {format_duration(round(report.since_s))} ago{guess}")
    if elsewhere := found.tree.in_state(ELSEWHERE):
        shown.append(f"not entered: {plural(len(elsewhere), 'mount point')} of other file systems: {_names(elsewhere)}")
    if found.unseen:
        oldest = format_duration(round(max(0.0, found.time - found.oldest)))
        shown.append(
            f"not looked at: {found.unseen:,} of {plural(found.tree.files[0], 'file')}, in directories where no file "
            f"was added or removed: their growth is not in the figures, which are up to {oldest} old. New files and "
            "the largest and newest ones were looked at. Every directory is read once a day; --fresh reads all now"
        )
    elif found.verified:
        shown.append(f"all files were looked at, but {plural(found.verified, 'unchanged directory')} not listed again")
    return shown


def _table(report: TopReport, rows: Sequence[TopDirectory], by: str, now: float, *, growing: bool = False) -> list[str]:
    since_s = report.since_s
    headers = ("SIZE", "SHARE", "FILES", "GREW", "PER DAY", "NEWEST", "OWNER", "DIRECTORY")
    cells = []
    for row in rows:
        grew = row.grew_bytes if by == "bytes" else row.grew_inodes
        shown: Callable[[float], str] = _signed_bytes if by == "bytes" else _signed_count
        per_day = None if grew is None or not since_s else grew * DAY_S / since_s
        name = "." if not row.path else shortened(os.fsdecode(row.path))
        if not growing and row.rest < row.share * 0.999:
            name += f"  ({row.rest:.0%} without the subdirectories listed)"
        cells.append(
            (
                ("> " if row.is_lower_bound else "") + format_bytes(row.bytes),
                _percent(row.share),
                f"{row.files:,}",
                "" if grew is None else shown(grew),
                "" if per_day is None else shown(per_day),
                age(row.newest, now),
                _owner(row) if report.owners else "",
                name,
            )
        )
    widths = [max(len(cell[column]) for cell in [headers, *cells]) for column in range(5)]
    aligned = [[*(cell[i].rjust(widths[i]) if cell[i] else "" for i in range(5)), *cell[5:]] for cell in cells]
    titles = [*(headers[i].rjust(widths[i]) for i in range(5)), *headers[5:]]
    return table(titles, aligned, indent=2)


def shortened(path: str) -> str:
    """Return a path, or both ends of a very long one; `--json` has all of it. Pure."""
    return path if len(path) <= LONGEST else f"{path[: LONGEST // 2]} ... {path[-LONGEST // 2 :]}"


def age(newest: int, now: float) -> str:
    """Return how long ago a directory changed. Pure."""
    if not newest:
        return ""
    if newest > now + 1:
        return "in the future"
    return f"{' '.join(format_duration(int(now - newest)).split(' ')[:2])} ago"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _signed_bytes(count: float) -> str:
    return f"{'+' if count > 0 else ''}{format_bytes(count)}"


def _signed_count(count: float) -> str:
    return f"{count:+,.0f}" if count else "0"


def _owner(row: TopDirectory) -> str:
    if len(row.owners) == 1:
        return row.owners[0][0]
    return ", ".join(f"{name} {part:.0%}" for name, part in row.owners if part >= 0.005) or "".join(
        name for name, _ in row.owners[:1]
    )


def _names(records: Sequence[Record]) -> str:
    shown = ", ".join(clean(shortened(os.fsdecode(record.path))) or "." for record in records[:NAMED])
    return shown + (f" and {len(records) - NAMED:,} more" if len(records) > NAMED else "")


def _paths(found: Scan, *states: int) -> list[str]:
    return [os.fsdecode(record.path) for record in found.tree.in_state(*states)]


def to_json(report: TopReport) -> dict[str, Any]:
    """Return the report for a JSON document. Sizes in bytes, times in seconds (since the epoch)."""
    found = report.scan
    document: dict[str, Any] = {"path": str(found.root), "error": found.error, "time": found.time}
    if found.error:
        return document
    return document | {
        "took_s": round(found.took_s, 4),
        "complete": found.is_complete,
        **chosen(found, "interrupted", "out_of_time"),
        "bytes": found.tree.blocks[0] * 512,
        "files": found.tree.files[0],
        "folders": found.tree.directories[0],
        "checkpoints": {"bytes": report.checkpoint_bytes, "folders": report.checkpoint_directories},
        "compared_with_s": report.since_s,
        "largest": [_row_json(report, row) for row in report.largest],
        "growing": [_row_json(report, row) for row in report.growing],
        "unfinished": _paths(found, UNREAD, PARTIAL),
        "stuck": _paths(found, STUCK),
        "unreadable": [
            {"path": os.fsdecode(record.path), "reason": os.strerror(record.trouble)}
            for record in found.tree.in_state(UNREADABLE)
        ],
        "other_file_systems": _paths(found, ELSEWHERE),
        "scan": {
            "folders_read": found.read,
            "folders_unchanged": found.verified,
            "folders_not_verified": found.unverified,
            "files_not_looked_at": found.unseen,
            "oldest_figure": found.oldest,
            **chosen(found, "looks", "pace", "notes"),
        },
    }


def _row_json(report: TopReport, row: TopDirectory) -> dict[str, Any]:
    def per_day(grew: int | None) -> float | None:
        return None if grew is None or not report.since_s else grew * DAY_S / report.since_s

    return chosen(row, "bytes", "files", "share", "newest", "grew_bytes", "grew_inodes") | {
        "folders": row.directories,
        "path": str(report.scan.root / os.fsdecode(row.path)),
        "rest_share": row.rest,
        "owners": dict(row.owners),
        "bytes_per_day": per_day(row.grew_bytes),
        "inodes_per_day": per_day(row.grew_inodes),
        "lower_bound": row.is_lower_bound,
    }
