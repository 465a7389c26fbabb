"""Output of all commands: tables, colours on terminals, JSON with a schema, warnings on standard error; and the signals
that end a command. Does not import Typer: frequent commands run without it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO

from resilience.messages import plural

if TYPE_CHECKING:
    import signal
    from types import FrameType

    from resilience.errors import ResilError
    from resilience.finding import Verdict
    from resilience.runs.project import Project
    from resilience.runs.templates.lint import LintFinding

SCHEMA = "resil/1"
"""Version of every JSON document. Keys are added without a new version; none is removed or changes its meaning."""

MESSAGE_LIMIT = 2000
"""The most characters of an error that are printed."""

NARROW, LEAST = 12, 4
"""Columns are not clipped below the first width, unless all of them are as narrow; the last one keeps the second."""

DEADLINE_S = 0.5
"""Time limit for counting dead letters, for commands that do not read the state directory otherwise."""

_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}
_VERDICTS = {"OK": "", "WARNING": "yellow", "UNKNOWN": "yellow", "CRITICAL": "red"}


# ---- text -----------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Return external text without control characters: a job's name must not control the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text.encode("utf-8", "replace").decode())


def paint(text: str, colour: str) -> str:
    """Return text in a colour, if standard output is a terminal (https://no-color.org)."""
    if not colour or not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def verdict_colour(verdict: Verdict) -> str:
    """Return the colour of a verdict."""
    return _VERDICTS[verdict.value]


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], colours: Sequence[str] = (), indent: int = 0
) -> list[str]:
    """Return the lines of a table. Empty columns are left out; `colours` paint whole rows.

    On a terminal, cells are clipped until the lines fit: those of the widest column first, and of the last column if
    all are narrow.
    """
    cells = [[clean(cell) for cell in row] for row in rows]
    shown = [i for i, header in enumerate(headers) if not header or any(row[i] for row in cells)]
    widths = {i: max([len(headers[i]), *(width_of(row[i]) for row in cells)]) for i in shown}
    excess = indent + sum(widths.values()) + 2 * (len(shown) - 1) - columns() if columns() else 0
    while excess > 0:
        widest = max(shown, key=lambda i: (widths[i] > max(NARROW, len(headers[i])), widths[i], i))
        if widths[widest] <= max(NARROW, len(headers[widest])):
            widest = next((i for i in reversed(shown) if widths[i] > 1), shown[0])
            if widths[widest] <= 1:
                break
        widths[widest] -= 1
        excess -= 1

    def line(values: Sequence[str]) -> str:
        parts = [clipped(values[i], widths[i]) for i in shown]
        padded = [part + " " * (widths[i] - width_of(part)) for i, part in zip(shown, parts, strict=True)]
        return " " * indent + "  ".join(padded).rstrip()

    lines = [paint(line(headers), "bold")] if any(headers) else []
    return lines + [
        paint(line(row), colours[number] if number < len(colours) else "") for number, row in enumerate(cells)
    ]


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: East Asian characters take two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def clipped(text: str, width: int) -> str:
    """Return a text that fits into so many columns, with an ellipsis where something is left out.

    Of a path the middle is left out, of other texts the end. Pure.
    """
    if width_of(text) <= width:
        return text
    is_path = "/" in text and " " not in text and width > 8
    tail = text[-(width // 2) :] if is_path else ""
    while tail and width_of(tail) > width // 2:
        tail = tail[1:]
    head = text[: max(0, width - 1)]
    while head and width_of(head) + 1 + width_of(tail) > width:
        head = head[:-1]
    return f"{head.rstrip()}…{tail}"


def columns() -> int:
    """Return the width of the terminal; 0 if standard output is none, or its width is unknown."""
    return _size()[0]


def _size() -> tuple[int, int]:
    try:
        return tuple(os.get_terminal_size(sys.stdout.fileno())) if sys.stdout.isatty() else (0, 0)  # type: ignore[return-value]
    except (OSError, ValueError):
        return 0, 0


def folded(text: str, indent: int = 0) -> list[str]:
    """Return a sentence as lines that fit the terminal, broken between words; one line if there is no terminal."""
    if not columns() or indent + width_of(text) <= columns():
        return [" " * indent + text]
    from textwrap import wrap

    room = max(20, columns())
    margin = " " * indent
    return wrap(text, room, initial_indent=margin, subsequent_indent=margin + "  ", break_long_words=False,
                break_on_hyphens=False)  # fmt: skip


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], colours: Sequence[str] = (), indent: int = 0
) -> None:
    """Print a table; on a terminal that is too narrow for all its columns, each row as a paragraph."""
    print("\n".join(_paragraphs(headers, rows, colours) or table(headers, rows, colours, indent)))


def _paragraphs(headers: Sequence[str], rows: Sequence[Sequence[str]], colours: Sequence[str]) -> list[str]:
    """Return the lines of a table as paragraphs; none if its last column keeps LEAST characters in a table."""
    cells = [[clean(cell) for cell in row] for row in rows]
    shown = [i for i, header in enumerate(headers) if header and any(row[i] for row in cells)]
    widths = [max(len(headers[i]), min(NARROW, max(width_of(row[i]) for row in cells))) for i in shown]
    if not columns() or not all(headers) or len(shown) < 3 or sum(widths[:-1]) + 2 * len(shown) + LEAST <= columns():
        return []
    lines = []
    for number, row in enumerate(cells):
        first, second, *rest = (i for i in shown if row[i])
        title = folded(f"{row[first]}  {row[second]}")
        lines += [paint(line, colours[number] if number < len(colours) else "") for line in title]
        lines += [line for i in rest for line in folded(f"{headers[i].lower()}: {row[i]}", 2)]
    return lines


def print_indented(lines: Iterable[str], indent: int = 2) -> None:
    """Print external lines, indented."""
    for line in lines:
        print(f"{' ' * indent}{clean(line)}".rstrip())


# ---- standard error -------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print a message on standard error; a closed standard error is ignored."""
    with suppress(OSError):
        print("\n".join(clean(line) for line in f"resil: {text}".split("\n")), file=sys.stderr, flush=True)


def print_error(error: ResilError) -> None:
    """Print an error and its hint on standard error."""
    from resilience.messages import cut

    # A value may be a hundred thousand characters long, and every message quotes it.
    say(f"error: {cut(error.message, MESSAGE_LIMIT)}" + (f"\n  try: {error.hint}" if error.hint else ""))


def print_warnings(findings: Iterable[LintFinding]) -> None:
    """Print findings about a batch script on standard error."""
    for finding in findings:
        say(f"warning: {finding.message}" + (f"\n  try: {finding.hint}" if finding.hint else ""))


@contextmanager
def patience(sentence: str, after_s: float = 5.0) -> Iterator[None]:
    """Print a message on standard error if the work inside takes longer than `after_s`."""
    from threading import Timer

    timer = Timer(after_s, say, [sentence])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def reading(what: str, size_bytes: int, every_s: float = 1.0) -> Iterator[None]:
    """Show on a terminal (standard error) how much of `size_bytes` this process reads inside, and if nothing comes."""
    if not size_bytes or not sys.stderr.isatty():
        yield
        return
    from threading import Event, Thread

    from resilience.quantities import format_bytes

    is_over, begin = Event(), _read_bytes()

    def show() -> None:
        read, silent_s = 0, 0.0
        while not is_over.wait(every_s):
            before, read = read, _read_bytes() - begin
            silent_s = 0.0 if read > before else silent_s + every_s
            silence = f", nothing read for {silent_s:.0f} s" if silent_s >= 5 else ""
            part = min(99, read * 100 // size_bytes)
            sys.stderr.write(f"\r{clean(what)}: {part} % of {format_bytes(size_bytes)}{silence}\x1b[K")
            sys.stderr.flush()

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _read_bytes() -> int:
    """Return how many bytes this process has read, from page cache or disk (rchar, proc_pid_io(5))."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            return int(file.readline().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def warn_of_dead_letters(project: Project, *, in_child: bool = True) -> None:
    """Warn of dead letters, if there are any. Never fails.

    `in_child` counts them in a child with a deadline: for commands that do not read the state directory otherwise.
    """
    if "_RESIL_COMPLETE" in os.environ:  # a shell asks for completions
        return
    try:
        count = _in_time(lambda: _count_dead_letters(project)) if in_child else _count_dead_letters(project)
    except Exception:
        return
    if count:
        say(f"{plural(count, 'alert')} could not be delivered: see resil alert")


def _count_dead_letters(project: Project) -> int:
    path = project.loaded.state_dir / ".alerts"
    if not os.path.isdir(path):  # noqa: PTH112 - most projects have never sent an alert
        return 0
    from resilience.system.fallback_directory import fallback_path

    names: set[str] = set()
    for directory in (path / "dead", fallback_path(project.system, path) / "dead"):
        with suppress(OSError):
            names.update(name for name in os.listdir(directory) if not name.startswith("."))  # noqa: PTH208
    return len(names)


def _in_time(count: Callable[[], int]) -> int:
    from resilience.system.child import run_in_child

    ((_, answer),) = run_in_child({"dead letters": (count, DEADLINE_S)})
    return answer.value if isinstance(answer.value, int) else 0


# ---- JSON -----------------------------------------------------------------------------------------------------


def print_json(kind: str, content: Any) -> None:
    """Write one JSON document. Control characters are escaped, other characters are not."""
    import json

    text = json.dumps({"schema": SCHEMA, "kind": kind, **plain(content)}, indent=2, ensure_ascii=False)
    if not text.isascii() or "\x7f" in text:
        text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
        text = text.replace("\x7f", "\\u007f")
    print(text)


def plain(value: Any) -> Any:
    """Return a value as JSON types, with every key.

    A dataclass or a named tuple becomes an object of all its fields, an enumeration its value, infinity and NaN null,
    and every other object, such as a path or a job id, its text.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if value - value == 0 else None  # infinity and NaN
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    names = getattr(type(value), "__dataclass_fields__", None) or getattr(type(value), "_fields", None)
    if names is not None:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


def chosen(value: object, *names: str) -> dict[str, Any]:
    """Return some attributes of a value by name, for a JSON document."""
    return {name: getattr(value, name) for name in names}


def close_stdout() -> None:
    """Redirect standard output to /dev/null, so that the interpreter does not report its failure again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- signals --------------------------------------------------------------------------------------------------


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Install a handler for these signals, and restore the previous ones afterwards. nohup(1) keeps SIGHUP ignored."""
    import signal

    before = {number: signal.getsignal(number) for number in numbers}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:
        del before[signal.SIGHUP]
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier if earlier is not None else signal.SIG_DFL)


# ---- live views -----------------------------------------------------------------------------------------------


class _Screen(io.StringIO):
    """Collects a view; for colours and widths it is the terminal."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()


class LiveView:
    """A view that stays on the terminal: `show` replaces it, and it is drawn again when the terminal is resized.

    It fits the terminal: rows that are too many are counted, and lines that are too long are clipped. Without a
    terminal, each `show` prints.
    """

    def __init__(self) -> None:
        import signal

        self._print: Callable[[], object] | None = None
        self._is_drawing = self._is_stale = False
        self._handlers = ExitStack()
        if sys.stdout.isatty():
            self._handlers.enter_context(handled(self._resized, signal.SIGWINCH))

    def close(self) -> None:
        """End the redrawing. The last view stays."""
        self._handlers.close()

    def show(self, show: Callable[[], object]) -> None:
        """Replace the view by what `show` prints. `show` is called again after a resize."""
        self._print = show
        if not sys.stdout.isatty() or not columns():
            show()
            return
        self._is_drawing = True
        try:
            self._is_stale = True
            while self._is_stale:
                self._is_stale = False
                self._draw(show)
        finally:
            self._is_drawing = False

    def _draw(self, show: Callable[[], object]) -> None:
        screen = _Screen(sys.stdout)
        with redirect_stdout(screen):
            show()
        width, height = _size()
        lines = screen.getvalue().splitlines()
        if len(lines) > max(2, height - 1):
            left = len(lines) - max(1, height - 2)
            lines = [*lines[:-left], f"and {plural(left, 'line')} more: enlarge the terminal"]
        sys.stdout.write("\x1b[H" + "".join(f"{_clipped_line(line, width)}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def _resized(self, number: int, frame: FrameType | None) -> None:
        if self._is_drawing:
            self._is_stale = True
        elif self._print is not None:
            self.show(self._print)


def _clipped_line(line: str, width: int) -> str:
    """Return a line that fits; one that does not loses its colours."""
    import re

    bare = re.sub(r"\x1b\[[0-9;]*m", "", line)
    return line if width_of(bare) <= width else clipped(bare, width)
