"""`--top --json`: who filled a folder, for programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from resilience.watch.scan.top import DAY_S, TopFolder, TopReport

if TYPE_CHECKING:
    from resilience.watch.scan.scan import Scan


def to_json(report: TopReport) -> dict[str, Any]:
    """The report for programs. Sizes in bytes, times in seconds (since the epoch)."""
    found = report.scan
    document: dict[str, Any] = {"path": str(found.root), "error": found.error, "time": found.time}
    if found.error:
        return document
    return document | {
        "took_s": round(found.took_s, 4),
        "complete": found.is_complete,
        "interrupted": found.interrupted,
        "out_of_time": found.out_of_time,
        "bytes": found.totals.blocks[0] * 512,
        "files": found.totals.files[0],
        "folders": found.totals.folders[0],
        "checkpoints": {"bytes": report.checkpoint_bytes, "folders": report.checkpoint_folders},
        "compared_with_s": report.since_s,
        "largest": [_row_json(report, row) for row in report.largest],
        "growing": [_row_json(report, row) for row in report.growing],
        "unfinished": [os.fsdecode(path) for path in report.unread],
        "stuck": [os.fsdecode(path) for path in report.stuck],
        "unreadable": [{"path": os.fsdecode(p), "reason": os.strerror(number)} for p, number in report.unreadable],
        "other_file_systems": [os.fsdecode(path) for path in report.elsewhere],
        "scan": _scan_json(found),
    }


def _scan_json(found: Scan) -> dict[str, Any]:
    return {
        "folders_read": found.read,
        "folders_unchanged": found.verified,
        "folders_not_verified": found.unverified,
        "looks": found.looks,
        "oldest_figure": found.oldest,
        "pace": found.pace,
        "notes": list(found.notes),
    }


def _row_json(report: TopReport, row: TopFolder) -> dict[str, Any]:
    def per_day(grew: int | None) -> float | None:
        return None if grew is None or not report.since_s else grew * DAY_S / report.since_s

    return {
        "path": str(report.scan.root / os.fsdecode(row.path)),
        "bytes": row.bytes,
        "files": row.files,
        "folders": row.folders,
        "share": row.share,
        "rest_share": row.rest,
        "newest": row.newest,
        "owners": dict(row.owners),
        "grew_bytes": row.grew_bytes,
        "grew_inodes": row.grew_inodes,
        "bytes_per_day": per_day(row.grew_bytes),
        "inodes_per_day": per_day(row.grew_inodes),
        "lower_bound": row.is_lower_bound,
    }
