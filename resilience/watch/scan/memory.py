"""Where a scan is remembered: in the first folder that answers and takes it, so that the next one goes on from there.

Who looks for what fills a home folder keeps the memory of it right there: it may be full, read-only, or hang. So each
look at it is a child with a deadline, and a folder of this node takes what the first one does not.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from resilience.errors import StateDirectoryError
from resilience.system.child import run_apart
from resilience.system.files import own_folder
from resilience.watch.scan.cache import Remembered, cache_file, recall, remember, tidy
from resilience.watch.scan.tree import Tree

LOOK_S = 5.0
KEEP_S = 120.0
"""A million folders are 100 MB, and the home folder may be a slow one."""


class ScanMemory:
    """The memory of one root.

    Attributes:
        notes: what people should know of it.
    """

    def __init__(self, folder: Path | None, spare: Path | None, root: bytes) -> None:
        """`folder` is where it belongs; `spare` is this node's, and must be nobody else's."""
        self.notes: list[str] = []
        self._root = root
        self._spare = cache_file(spare, root) if spare is not None else None
        home = [cache_file(folder, root)] if folder is not None else []
        self._files = home + ([self._spare] if self._spare is not None else [])

    def recall(self, look_s: float = LOOK_S) -> Remembered:
        """What was written last, wherever that is."""
        written: dict[Path, float] = {}
        for file, answer in run_apart({file: (partial(self._written, file), look_s) for file in self._files}):
            if answer.error is None:
                written[file] = answer.value
            else:
                self.notes.append(f"the memory of earlier scans in {file.parent}: {answer.error.message}")
        self._files = [file for file in self._files if file in written]
        if not self._files:
            return Remembered()
        known = recall(max(self._files, key=written.__getitem__), self._root)
        if known.note:
            self.notes.append(known.note)
        return known

    def keep(self, tree: Tree, known: Remembered) -> None:
        """Write it to the first folder that takes it."""
        said: list[str] = []
        for file in self._files:
            ((_, answer),) = run_apart({0: (partial(self._write, file, tree, known), KEEP_S)})
            if answer.error is None:
                self.notes += [f"remembered on this node, in {file.parent}: {text}" for text in said]
                return
            said.append(answer.error.message)
        self.notes += [f"the next scan will start afresh: {text}" for text in said]

    def _written(self, file: Path) -> float:
        """When a file was written; 0 where there is none that can be trusted."""
        try:
            if file == self._spare and file.parent.parent.lstat().st_uid != os.getuid():
                return 0.0
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
                opened.read(1)
                return os.fstat(opened.fileno()).st_mtime
        except OSError:
            return 0.0

    def _write(self, file: Path, tree: Tree, known: Remembered) -> None:
        if file == self._spare and (own_folder(file.parent.parent) is None or own_folder(file.parent) is None):
            raise StateDirectoryError(f"{file.parent} cannot be made a folder of our own")
        remember(file, self._root, tree, known)
        tidy(file.parent)
