"""Keeps a spool tidy: what crashed on its way in, and what ended long ago."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from resilience.errors import SchedulerUnavailable
from resilience.schedulers._local.files import reading
from resilience.schedulers._local.spool import Spool, token_file

KEEP_ENDED_S = 7 * 86400.0
"""How long ended jobs are remembered."""


def sweep(spool: Spool) -> None:
    """Remove what a submission left that crashed before it counted. Under the lock."""
    for key in spool.ids("incoming"):
        marker = spool.root / "incoming" / str(key)
        with reading(marker):
            if not (spool.folder(key) / "submission.json").exists():
                import shutil

                words = marker.read_text().split()
                for raw in range(key, (int(words[-1]) if words else key) + 1):
                    shutil.rmtree(spool.folder(raw), ignore_errors=True)
                spool.close(key)
            marker.unlink(missing_ok=True)
    # Nobody writes here but under the lock, and an id is given once: no later write would sweep these.
    for half in (spool.root / "incoming").glob(".*.tmp"):
        half.unlink(missing_ok=True)


def prune(spool: Spool, now: float, keep: Collection[int]) -> None:
    """Forget submissions whose last job ended KEEP_ENDED_S ago, except `keep`. Under the lock."""
    active = set(spool.active())
    for key in spool.everything():
        with contextlib.suppress(SchedulerUnavailable):
            entry = spool.entry(key)
            if entry is None or key in active or key in keep:
                continue
            if all((task.end or now) < now - KEEP_ENDED_S for task in spool.tasks(entry)):
                (spool.root / "tokens" / token_file(entry.token)).unlink(missing_ok=True)
                (spool.folder(key) / "submission.json").unlink()
                import shutil

                for raw in {key, *entry.raw_ids}:
                    shutil.rmtree(spool.folder(raw), ignore_errors=True)
