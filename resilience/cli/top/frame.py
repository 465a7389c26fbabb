"""Composes the live screen of `resil top` from what is known of the runs. Pure: no terminal, no clock.

A line is a sequence of spans, each a text and a colour of cli/output.py. Nothing is said by a colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilience.cli.output import clean, clipped, width_of
from resilience.messages import plural
from resilience.quantities import format_bytes, format_duration, format_slurm_time
from resilience.switch import describe_age

Line = tuple[tuple[str, str], ...]
"""Spans of text, each with a colour or an empty text."""

LEAST_WIDTH, LEAST_HEIGHT = 40, 8
SPARK, LEAST_SPARK = 24, 6
_SPARK = 5
"""The column of rates."""
STALE_S = 15.0
"""A frame older than this is said to be old, if no later one was due."""
PATHS = "▁▂▃▄▅▆▇█", ".:-=+*%#"
SHADES = "·░▒▓", ".:*#"
"""Of ranks, by their level; the second for terminals without UTF-8, as above."""
STANDS, SILENT, GONE = "=", "?", "X"
FACTORS = 1.05, 1.1, 3.0
"""A rank that takes so many times as long as the median rank is a shade darker. The last two: ranks/stragglers.py."""
KEYS = (
    ("s", "save now and continue"),
    ("k", "stop after a save, by the kill switch (asks first)"),
    ("a", "acknowledge the incident that > marks"),
    ("l", "more of the log, or less"),
    ("up, down", "another run"),
    ("?", "this help"),
    ("q", "quit"),
)
_COLOURS = {"running": "green", "queued": "yellow", "finished": "blue"}
_VERDICTS = {"CRITICAL": "red", "WARNING": "yellow", "UNKNOWN": "yellow"}
_SHADE_COLOURS = ("green", "", "yellow", "red")


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank.

    Attributes:
        factor: how much longer than the median rank it computes; None: unknown.
        stands_s: for how long it has done no step, while it trains; 0 if it does steps.
        is_silent: whether its node has sent no heartbeat for a while.
        is_gone: whether its process has ended unexpectedly.
    """

    rank: int
    host: str
    factor: float | None = None
    stands_s: float = 0.0
    is_silent: bool = False
    is_gone: bool = False

    @property
    def level(self) -> int:
        """Return how bad it is: 0 to 3 by its factor, 4 if it stands still, 5 if it is silent, 6 if it is gone."""
        if self.is_gone or self.is_silent or self.stands_s:
            return 6 if self.is_gone else 5 if self.is_silent else 4
        return sum((self.factor or 1.0) >= limit for limit in FACTORS)


@dataclass(frozen=True, slots=True)
class RunView:
    """One run.

    Attributes:
        state: as `resil status` shows it.
        step_s: seconds per step; None: unknown.
        rates: steps per second in the last minutes, oldest first.
        ends: when its job reaches its time limit, in seconds since the epoch; None: unknown, or no limit.
        next_save: when the guard saves next, in seconds since the epoch; None: unknown, or it does not decide that.
        memory_per_s: rise of the memory nearest to its limit, in bytes per second; 0: no trend; None: unknown.
        facts: sentences.
        ranks_at: when the ranks were looked at, in seconds since the epoch.
        slow: who makes the others wait, as a sentence; empty: nobody, or unknown.
        log: its path, and its last lines; only of the selected run.
    """

    run: str
    state: str
    step: int | None = None
    step_s: float | None = None
    rates: tuple[float, ...] = ()
    ends: float | None = None
    next_save: float | None = None
    memory_per_s: float | None = None
    facts: tuple[str, ...] = ()
    slow: str = ""
    ranks: tuple[Rank, ...] = ()
    ranks_at: float = 0.0
    log_path: str = ""
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IncidentView:
    """One open incident; `since` is in seconds since the epoch, `by` the user who acknowledged it, or empty."""

    id: str
    verdict: str
    check: str
    subject: str
    summary: str
    since: float
    by: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known at `time`, in seconds since the epoch.

    Attributes:
        queue_age_s: how old the scheduler's answer is.
        every_s: how long the next look takes to come.
        trouble: what could not be looked at, as sentences.
        empty: why there is no run.
    """

    time: float
    runs: tuple[RunView, ...] = ()
    incidents: tuple[IncidentView, ...] = ()
    queue_age_s: float = 0.0
    every_s: float = 2.0
    trouble: tuple[str, ...] = ()
    empty: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What the person looks at.

    Attributes:
        selected: name of a run; empty: the first.
        panel: `log`, `help`, or empty.
        message: an answer or a question, in the last line instead of the keys.
    """

    selected: str = ""
    panel: str = ""
    message: str = ""


def selected_run(frame: Frame, view: View) -> RunView | None:
    """Return the run that is looked at; None if there is none."""
    return next((run for run in frame.runs if run.run == view.selected), frame.runs[0] if frame.runs else None)


def next_incident(frame: Frame) -> IncidentView | None:
    """Return the incident that the key for acknowledging means: the newest that nobody has acknowledged."""
    return next((incident for incident in frame.incidents if not incident.by), None)


# ---- the screen -----------------------------------------------------------------------------------------------------


def compose(
    frame: Frame, width: int, height: int, view: View = View(), *, now: float = 0.0, is_utf8: bool = True
) -> list[Line]:
    """Return the lines of a screen: `height` at most, none wider than `width`. `now`: if it is later than the frame."""
    now = max(now, frame.time)
    run = selected_run(frame, view)
    head, foot = _head(frame, now), _foot(view)
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        small = [_plain(f"{one.run} {one.state}") for one in frame.runs] or [_plain(frame.empty)]
        too_small = _plain(f"enlarge the terminal to {LEAST_WIDTH} x {LEAST_HEIGHT}")
        return [_fitted(line, width, is_utf8=is_utf8) for line in [*small, too_small][:height]]
    room = height - 2
    if view.panel == "help":
        body = _help(is_utf8=is_utf8)
    elif run is None:
        body = [_plain(f"  {frame.empty}")]
    elif view.panel == "log":
        body = _log(run, room)
    else:
        body = _runs(frame, run, width, max(2, room // 4), now, is_utf8=is_utf8)
        body += [_plain(f"  {fact}") for fact in run.facts[: max(1, room // 5)]]
        body += _heat(run, width, max(2, room // 4), now, is_utf8=is_utf8)
        body += _incidents(frame, max(2, room // 4), now)
        body += _log(run, max(0, room - len(body)))
    body = [*body[:room], *[()] * (room - len(body))]
    return [_fitted(line, width, is_utf8=is_utf8) for line in [head, *body, foot]]


def _head(frame: Frame, now: float) -> Line:
    spans = [("resil top", "bold"), (f"  {plural(len(frame.runs), 'run')}", "")]
    if open_ones := len(frame.incidents):
        spans.append((f", {plural(open_ones, 'open incident')}", "red"))
    if now - frame.time >= STALE_S + frame.every_s:
        spans.append((f"  NO NEW DATA FOR {format_duration(round(now - frame.time))}", "red"))
    elif frame.queue_age_s >= 1:
        spans.append((f"  queue seen{describe_age(frame.queue_age_s)}", "dim"))
    if frame.every_s > STALE_S:
        spans.append((f"  every {format_duration(round(frame.every_s))}", "dim"))
    if frame.trouble:
        spans.append((f"  {'; '.join(frame.trouble)}", "red"))
    return tuple(spans)


def _foot(view: View) -> Line:
    if view.message:
        return ((view.message, "yellow"),)
    keys = (("s", "save"), ("k", "kill"), ("a", "ack"), ("l", "logs"), ("?", "help"), ("q", "quit"))
    return tuple(span for key, word in keys for span in ((f" {key}", "bold"), (f" {word} ", "")))


def _help(*, is_utf8: bool) -> list[Line]:
    signs = SHADES[0] if is_utf8 else SHADES[1]
    widest = max(len(key) for key, _ in KEYS)
    keys: list[Line] = [((f"  {key:>{widest}}", "bold"), (f"  {text}", "")) for key, text in KEYS]
    ranks = (
        (f"{signs[0]} {signs[1]}", "a rank as fast as the median; one that is slower: 1.05 times"),
        (f"{signs[2]} {signs[3]}", "1.1 times, 3 times"),
        (f"{STANDS} {SILENT} {GONE}", "does no step; sends no heartbeat; has ended"),
    )
    return [*keys, (), *(_plain(f"  {signs:>{widest}}  {text}") for signs, text in ranks)]


# ---- runs -----------------------------------------------------------------------------------------------------------


def _runs(frame: Frame, selected: RunView, width: int, most: int, now: float, *, is_utf8: bool) -> list[Line]:
    """Return the table of runs, of which `most` lines at most are shown; columns that do not fit are left out."""
    headers = ("", "RUN", "STATE", "STEP", "RATE", "SPEED", "LEFT", "NEXT SAVE", "MEMORY")
    rows = [_cells(run, now, run is selected, is_utf8=is_utf8) for run in frame.runs]
    widths = [max(map(width_of, column)) for column in zip(headers, *rows, strict=True)]
    widths[1] = min(widths[1], 20)
    shown = [i for i in range(len(headers)) if i == 0 or any(row[i] for row in rows)]
    if _SPARK in shown:  # it gets what the others leave
        room = width - sum(widths[i] + 2 for i in shown if i != _SPARK)
        widths[_SPARK] = min(widths[_SPARK], room)
        if room < LEAST_SPARK:
            shown.remove(_SPARK)
    for least in (8, 7, 6, 4, 3):  # the least important first
        if sum(widths[i] + 2 for i in shown) - 2 > width and least in shown:
            shown.remove(least)
    first = max(0, min(frame.runs.index(selected) - most // 2, len(rows) - (most - 1)))
    picked = list(zip(frame.runs, rows, strict=True))[first : first + most - 1]

    def line(cells: Sequence[str], colours: dict[int, str]) -> Line:
        fitting = [cells[i][-widths[i] :] if i == _SPARK else cells[i] for i in range(len(cells))]
        gaps = ["  "] * (len(shown) - 1) + [""]
        return tuple(
            (_padded(fitting[i], widths[i]) + gap, colours.get(i, "")) for i, gap in zip(shown, gaps, strict=True)
        )

    head = line(headers, dict.fromkeys(shown, "bold"))
    body = [line(cells, {1: "bold", 2: _COLOURS.get(run.state, "red"), _SPARK: "blue"}) for run, cells in picked]
    if len(picked) < len(rows) and body:
        body[-1] = (*body[-1], (f"and {len(rows) - len(picked)} more", "dim"))
    return [head, *body]


def _cells(run: RunView, now: float, is_selected: bool, *, is_utf8: bool) -> tuple[str, ...]:
    memory = run.memory_per_s
    return (
        ">" if is_selected else " ",
        clipped(clean(run.run), 20),
        run.state,
        "" if run.step is None else f"{run.step:,}",
        rate(run.step_s),
        spark(run.rates, SPARK, PATHS[0] if is_utf8 else PATHS[1]),
        "" if run.ends is None else format_slurm_time(max(0.0, run.ends - now)),
        "" if run.next_save is None else _due(run.next_save - now),
        "" if memory is None else f"+{format_bytes(memory * 3600)}/h" if memory else "level",
    )


def rate(step_s: float | None) -> str:
    """Return how fast a run is: `12.5 steps/s`, or `4.2 s/step` for a slow one. Pure."""
    if not step_s:
        return ""
    return f"{1 / step_s:.3g} steps/s" if step_s < 1 else f"{step_s:.3g} s/step"


def spark(rates: Sequence[float], width: int, signs: str) -> str:
    """Return the last rates as a line of bars, the highest for the fastest. Pure."""
    shown = rates[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return signs[0] * len(shown)
    return "".join(signs[min(len(signs) - 1, int(one / top * (len(signs) - 0.5)))] for one in shown)


def _due(seconds: float) -> str:
    return f"in {format_duration(round(seconds))}" if seconds > 0 else "due"


# ---- below the runs -------------------------------------------------------------------------------------------------


def _heat(run: RunView, width: int, most: int, now: float, *, is_utf8: bool) -> list[Line]:
    """Return the ranks as a map of `most` lines at most, the first of them words: a cell is the worst of its ranks."""
    if not run.ranks:
        return []
    label = len(str(run.ranks[-1].rank)) + 3
    rows, columns = most - 1, max(1, width - label)
    each = -(-len(run.ranks) // (rows * columns))
    cells = [max(run.ranks[i : i + each], key=lambda one: one.level) for i in range(0, len(run.ranks), each)]
    columns = min(columns, -(-len(cells) // rows)) if len(cells) > columns else columns
    hosts = len({one.host for one in run.ranks})
    said = f"{plural(len(run.ranks), 'rank')} on {plural(hosts, 'host')}" + (f", {each} per sign" if each > 1 else "")
    said += f", seen{describe_age(now - run.ranks_at)}" if run.ranks_at and now - run.ranks_at > STALE_S else ""
    worst = max(run.ranks, key=lambda one: (one.level, one.stands_s, one.factor or 0.0))
    remark = run.slow or _remark(worst)
    lines: list[Line] = [(("RANKS", "bold"), (f"  {remark}" if remark else "", "red"), (f"  {said}", ""))]
    signs = [*(SHADES[0] if is_utf8 else SHADES[1]), STANDS, SILENT, GONE]
    colours = [*_SHADE_COLOURS, "red", "red", "red"]
    for start in range(0, len(cells), columns):
        row = cells[start : start + columns]
        spans = [(signs[one.level], colours[one.level]) for one in row]
        lines.append(((f"{row[0].rank:>{label - 1}} ", "dim"), *_joined(spans)))
    return lines


def _remark(worst: Rank) -> str:
    name = f"rank {worst.rank} on {worst.host}"
    if worst.is_gone:
        return f"{name} has ended"
    if worst.is_silent:
        return f"{name}: its node sends no heartbeat"
    if worst.stands_s:
        return f"{name} has done no step for {format_duration(round(worst.stands_s))}"
    return ""


def _incidents(frame: Frame, most: int, now: float) -> list[Line]:
    if not frame.incidents:
        return []
    marked, lines = next_incident(frame), list[Line]()
    for one in frame.incidents[: most - 1]:
        by = f", acknowledged by {one.by}" if one.by else ""
        lines.append((
            (f"{'>' if one is marked else ' '} {one.id} ", ""),
            (one.verdict, _VERDICTS.get(one.verdict, "")),
            (f" {one.check} {one.subject}: {one.summary},{describe_age(now - one.since) or ' just now'}{by}", ""),
        ))  # fmt: skip
    more = len(frame.incidents) - len(lines)
    return [((f"INCIDENTS{f'  and {more} more' if more else ''}", "bold"),), *lines]


def _log(run: RunView, room: int) -> list[Line]:
    if room < 2:
        return []
    if not run.log_path:
        return [(("LOG", "bold"), ("  none yet", "dim"))]
    return [(("LOG  ", "bold"), (run.log_path, "dim")), *(_plain(text) for text in run.log[-(room - 1) :])]


# ---- lines ----------------------------------------------------------------------------------------------------------


def _plain(text: str) -> Line:
    return ((text, ""),)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def _joined(spans: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the same text with neighbours of one colour in one span."""
    found: list[tuple[str, str]] = []
    for text, colour in spans:
        if found and found[-1][1] == colour:
            found[-1] = (found[-1][0] + text, colour)
        else:
            found.append((text, colour))
    return found


def _fitted(line: Line, width: int, *, is_utf8: bool) -> Line:
    """Return a line without control characters that fits; what does not is clipped at its end."""
    found, left = [], width
    for text, colour in line:
        whole = clean(text)
        shown = whole if width_of(whole) <= left else clipped(whole, left) if left else ""
        left -= width_of(shown)
        if shown:
            ascii_only = shown.replace("…", "~").encode("ascii", "replace").decode()
            found.append((shown if is_utf8 else ascii_only, colour))
        if shown != whole:
            break
    return tuple(found)
