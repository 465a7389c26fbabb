"""A watchdog of one's own, as the guide shows it, and an audit hook that lets nobody touch the system."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

REPOSITORY = Path(__file__).parents[2]
GUIDE = REPOSITORY / "docs" / "how-to" / "write-a-watchdog.md"

FORBIDDEN = re.compile(
    r"open|os\.(?!environ|urandom|fspath|putenv|unsetenv)\w+|socket\..*|subprocess\..*|shutil\..*|tempfile\..*|ftplib\..*|"
    r"urllib\..*|smtplib\..*|signal\..*|time\.sleep|pty\..*|sqlite3\..*|ctypes\.dlopen"
)
"""Audit events of I/O (https://docs.python.org/3/library/audit_events.html)."""

_guarded = False
_hooked = False


class TouchedTheWorld(AssertionError):
    """What must be pure was not."""


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _guarded and FORBIDDEN.fullmatch(event) and not _is_an_import(event, arguments):
        raise TouchedTheWorld(f"{event} {arguments!r:.200}")


def _is_an_import(event: str, arguments: tuple[object, ...]) -> bool:
    """The interpreter opens source and listing when something is imported late: that is nobody's I/O."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@contextmanager
def nobody_touches_the_world() -> Iterator[None]:
    """Raise TouchedTheWorld at any I/O inside."""
    global _guarded, _hooked
    if not _hooked:
        sys.addaudithook(_hook)  # cannot be taken away again
        _hooked = True
    _guarded = True
    try:
        yield
    finally:
        _guarded = False


def write_own_plugin(directory: Path, name: str = "licence") -> Path:
    """Drop the guide's example into a plugin directory, and return that directory."""
    (text,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (directory / "checks").mkdir(parents=True)
    (directory / "checks" / f"{name}.py").write_text(text)
    return directory
