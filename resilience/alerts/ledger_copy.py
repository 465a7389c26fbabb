"""A copy of the open incidents on this node, for the tick in which the disk of the ledger does not answer any more.

Without it, everything that was told would be news again, in the very moment when a file system is in trouble.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from resilience.alerts.incident import Incident, incident_from_json
from resilience.errors import StateDirectoryError
from resilience.system.files import own_folder, read_regular, write_atomic

FRESH_S = 3600.0
"""An older copy is not believed: other nodes have gone on since."""

LIMIT_BYTES = 64 * 2**20


class LedgerCopy:
    """One file, for this user alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, now: float) -> tuple[Incident, ...]:
        """The incidents that were open at this node's last tick; none where there is no copy that can be believed."""
        with suppress(
            StateDirectoryError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError
        ):
            found = read_regular(self._path, LIMIT_BYTES)
            if found is not None and found[1].st_uid == os.getuid():
                document = json.loads(found[0])
                if abs(now - float(document["time"])) < FRESH_S:
                    return tuple(incident_from_json(record) for record in document["incidents"])
        return ()

    def save(self, contents: Iterable[bytes], now: float) -> None:
        """Keep the files of the open incidents. Best effort: a node without a place for it does without."""
        if own_folder(self._path.parent) is None:
            return
        text = b'{"time": %s, "incidents": [%s]}\n' % (repr(now).encode(), b",".join(contents))
        with suppress(StateDirectoryError):
            write_atomic(self._path, text, durable=False)
