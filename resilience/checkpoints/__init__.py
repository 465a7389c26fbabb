"""Checkpoints that can be trusted: committed, verified, kept. Imported by trainings: standard library, light words.

`names.py`, `manifest.py` and `directory.py` say what is on disk; `store.py` is what a training uses; `part.py` commits
one save, with the work of `worker.py` in a child process; `verify.py` and `formats/` (plugins) check what is there;
`retention.py` decides what may go, and `prune.py` deletes it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Store"]


def __getattr__(name: str) -> Any:
    if name == "Store":
        from resilience.checkpoints.store import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
