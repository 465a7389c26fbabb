r"""Finds the position that a line reports: a counter with a training word, `N/M`, or figures like the loss. Pure.

No trainer has a pattern of its own. A line's *template* is its text with the digits masked; digest.py learns which
template's number grows with the training and which ones only talk. Lines of each form (tests/recorded/logs has more):

- STEP: ` iteration    42780/ 115311 | ...`, `[Rank 0] step=10, skipped=0`, `{"loss": 2.1, "global_step": 17}`
- BAR: `Epoch 3:  45%|####5     | 12/100 [00:10<01:12`, `120/1875 [==>...] - ETA: 12s`, `Epoch(train)  [3][120/1251]`
- FIGURES: `{'loss': 2.1, 'learning_rate': 5e-05, 'epoch': 0.53}`: no counter, and the epoch stands still for hours
- NUMBERS: `processed 1200 documents, 40 documents/s`
"""

from __future__ import annotations

import re
from binascii import crc32
from typing import NamedTuple

from resilience.watch.checks._log.lines import CLOCKS

OWN, STEP, BAR, FIGURES, NUMBERS = "progress_regex", "step", "bar", "figures", "numbers"
RANKS = {OWN: 0, STEP: 3, BAR: 4, FIGURES: 5, NUMBERS: 6}
"""The precedence of the kinds: the best one that grows is the training's heartbeat."""
WITH_FIGURES = 2
"""A counter beside a loss is that of the training: its rank is this much better."""
TALK, EVALUATION, COMPLAINT = 10, 20, 30
"""Ranks from TALK on are never the heartbeat: monitors and data loaders; evaluations, which count as progress while the
training pauses; and complaints, which never do, although retries count up."""

_NUMBER = (
    rb"([0-9]{1,3}(?:,[0-9]{3}){1,4}(?![0-9,])|[0-9]{1,15})(?:\.0+)?"
    rb"(?![0-9]|\.[0-9]|e[+0-9]|\s?%|(?:[km]s?|s|it)\b)(?=[^0-9])"
)
_STEP = re.compile(
    rb"(?<![a-z_])(?:global[_ ]?|train(?:ing)?[_ ]?|current[_ ]?|total_(?=time))?"
    rb"(?:(?:time)?steps?|iterations?|iters?|num_updates|updates?|batch(?:es)?)(?![a-z_])"
    rb"(?:\((?:train|val|test)\))?['\"]?[ \t:=#\[(|]*['\"]?" + _NUMBER,
    re.IGNORECASE,
)
_OF = re.compile(
    rb"(?<![\w.:/-])([0-9]{1,15})(?:it)?[ ]{0,3}(?:/|of )[ ]{0,9}([0-9]{1,15}|\?)(?:it)?(?![\w/-]|[.:][0-9])(?=[^0-9])"
)
_OPEN_BAR = re.compile(rb"(?<![\w.])([0-9]{1,15})it \[\d[\d:.]*,")
_DATE = re.compile(rb"\W{0,3}\d\d/\d\d(?:/\d{2,4})?[ T]")
_EPOCH = re.compile(
    rb"epochs?(?:\((?:train|val|test)\))?['\"]?[ \t:=#\[(|]*['\"]?([0-9]{1,9}(?:\.[0-9]{1,12})?)(?=[^0-9.])",
    re.IGNORECASE,
)
_FIGURES = re.compile(
    rb"(?<![a-z])(?:loss|lr|learning.rate|acc(?:uracy)?|ppl|perplexity|grad.?norm|reward|bleu|wer|auc|map|score|mse|rmse"
    rb"|mae|entropy|kl|nll|elbo|fid|return|objective|error_rate|epoch)(?![a-z])[^0-9]{0,32}[0-9]",
    re.IGNORECASE,
)
_STEP_STEMS = (b"step", b"iter", b"update", b"batch")
_FIGURE_STEMS = (
    b"loss", b"lr", b"rate", b"acc", b"ppl", b"perpl", b"grad", b"reward", b"bleu", b"wer", b"auc", b"map", b"score",
    b"mse", b"mae", b"entropy", b"kl", b"nll", b"elbo", b"fid", b"return", b"object", b"epoch",
)  # fmt: skip
"""Every line that matches _STEP or _FIGURES contains one of these in lower case; searching for them is much faster."""
_NUMBER_IN = re.compile(rb"[0-9]")
_EVALUATES = re.compile(
    rb"(?<![a-z])(?:eval|valid|val(?![a-z])|dev(?![a-z])|sanity|test(?![a-z])|testing|predict|inference|generat|decod|sampling"
    rb"|scoring|saving)",
    re.IGNORECASE,
)
_SAVED = re.compile(rb"(?<![a-z])(?:sav(?:ed|es)|checkpoint(?:ed|ing|s)?|wrote|written)(?![a-z_])", re.IGNORECASE)
_TALKS = re.compile(
    rb"prefetch|loader|worker|queue|cache|monitor|(?<![a-z])(?:mem|gpu|cpu|ram|io|disk|net|temp)|util|alive|ping"
    rb"|[0-9] ?[KMGT]iB|[0-9]W(?![a-z])|up.?time|loaded|buffer|shuffl|telemetry|service|daemon"
    rb"|agent|scheduler|system|stat(?:s|us)|power|nccl|thread|fetch|upload|download|sync",
    re.IGNORECASE,
)
_LEFT = re.compile(rb"(?<![a-z])(?:remaining|left|to go)(?![a-z])", re.IGNORECASE)
_DECIMAL = re.compile(
    rb"(?<![\w.])(?:[0-9]+\.[0-9]{3,}|(?<!,)(?:[0-9]+,[0-9]{4,}|0,[0-9]{3,}(?!,)))"
    rb"(?![0-9]| ?(?:[mun]?s|%|[KMGT]i?B|[WC])(?![a-z]))"
)
_WARM_UP = re.compile(rb"warm.?up", re.IGNORECASE)
COMPLAINS = re.compile(
    rb"retry|retries|attempt|wait|time[- ]?out|timed out|fail|warn|keep-?alive|rendezvous|heartbeat|unreachable|refused"
    rb"|stuck|stall|hang|hung|no progress|pending|blocked",
    re.IGNORECASE,
)
_NOT_LETTERS = bytes(set(range(256)) - set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
_BLANKS = b" \t\r\n0123456789"
_FIGURE = re.compile(
    rb"[-+]?\d+(?:(?:[.,:'_]|\xc2\xa0|\xe2\x80[\x89\xaf])\d+)*(?:e[-+]?\d+)?|\b(?:nan|inf)\b", re.IGNORECASE
)
NEAR = 48
"""How far behind a counter words are about it."""
LETTERS = 32
"""The letters of a template that identify it: its beginning, as trainers append optional figures."""


class Position(NamedTuple):
    """The position that a line reports.

    Attributes:
        kind: OWN, STEP, BAR, FIGURES or NUMBERS.
        key: identifies the template: its letters before the number, and the total of a bar.
        value: the number; for FIGURES and NUMBERS, a hash of the line.
        total: of a bar, 0 without one.
        epoch: the epoch in the line, if any.
        text: the position for display.
        at: where in the line the number begins.
    """

    kind: str
    key: int
    value: float
    total: int = 0
    epoch: float | None = None
    text: str = ""
    at: int = 0


def find(line: bytes, own: re.Pattern[bytes] | None = None, *, any_number: bool = True) -> Position | None:
    """Return the position that a line reports, or None; NUMBERS only with `any_number`.

    Lines include their line end, except an unfinished last one: a number at its very end may not be complete.
    """
    if own is not None:
        return _find_own(line, own)
    small = line.lower()
    match = _STEP.search(line) if _has_any(small, _STEP_STEMS) else None
    if match is not None and not _LEFT.search(line, 0, match.start(1)):
        step = match[1].replace(b",", b"")
        text = step.lstrip(b"0").decode() or "0"
        return Position(STEP, _key(STEP, line[: match.start(1)]), int(step), 0, _epoch(line), text, match.start(1))
    if b"/" in line or b" of " in line or b"it [" in line:
        bar = _find_bar(line)
        if bar is not None:
            return bar
    match = _FIGURES.search(line) if _has_any(small, _FIGURE_STEMS) else None
    if match is not None:
        letters = _FIGURE.sub(b"", line[: match.end()])
        epoch = _epoch(line)
        text = "" if epoch is None else f"epoch {epoch:g}"
        return Position(FIGURES, _key(FIGURES, letters), 0.0, 0, epoch, text, match.start())
    return numbers(line) if any_number else None


def _has_any(line: bytes, stems: tuple[bytes, ...]) -> bool:
    for stem in stems:  # noqa: SIM110  faster than any()
        if stem in line:
            return True
    return False


def numbers(line: bytes) -> Position | None:
    """Return any numbers in a line as a position, or None."""
    if _NUMBER_IN.search(line) is None:
        return None
    shape = _FIGURE.sub(b"", line[:320]).translate(None, _BLANKS)
    return Position(NUMBERS, crc32(shape[:LETTERS], RANKS[NUMBERS]), 0.0)


def rank_of(found: Position, line: bytes) -> int:
    """Return the rank of a template from its first line."""
    rank = RANKS[found.kind]
    if rank == 0:
        return rank
    if _EVALUATES.search(line, 0, found.at):
        return EVALUATION
    if _WARM_UP.search(line, 0, found.at):
        return TALK + rank
    # The step in a line about a save is the heartbeat only of a log without figures: others come more often.
    is_save = found.kind in (STEP, BAR) and _SAVED.search(line, 0, found.at) is not None
    if found.kind in (STEP, BAR) and _FIGURES.search(line):
        return RANKS[FIGURES] if is_save else rank - WITH_FIGURES
    if found.kind == FIGURES:
        return rank
    # Behind a bar without a line end may be a line of something else.
    end = len(line)
    if found.kind != NUMBERS:
        end = min(line.find(b"]", found.at) + 1 or end, found.at + NEAR)
    if COMPLAINS.search(line, 0, end):
        return COMPLAINT
    talks = _TALKS.search(line, 0, end) is not None
    if found.kind != NUMBERS:
        return TALK + rank if talks else RANKS[FIGURES] if is_save else rank
    # Of lines without known words, those with decimals are more likely to be of the training.
    return rank + talks if _DECIMAL.search(CLOCKS.sub(b"", line)) else TALK + rank if talks else rank + 1


def _key(kind: str, text: bytes) -> int:
    return crc32(text.translate(None, _NOT_LETTERS)[:LETTERS], RANKS[kind])


def _epoch(line: bytes) -> float | None:
    match = _EPOCH.search(line) if b"poch" in line or b"POCH" in line else None
    return None if match is None else float(match[1])


def _find_own(line: bytes, own: re.Pattern[bytes]) -> Position | None:
    match = own.search(line)
    if match is None or match[1] is None:
        return None
    text = match[1].strip().replace(b",", b"")
    try:
        value = float(text)
    except ValueError:
        return None
    return Position(OWN, 0, value, text=text.decode("ascii", "replace")) if abs(value) < 1e15 else None


def _find_bar(line: bytes) -> Position | None:
    date = _DATE.match(line)
    pairs = list(_OF.finditer(line, date.end() if date is not None else 0))
    epoch, label = _EPOCH.search(line), ""
    of_epoch = None if epoch is None else float(epoch[1])
    if not pairs:
        match = _OPEN_BAR.search(line)
        if match is None:
            return None
        return Position(
            BAR, _key(BAR, line[: match.start()]), int(match[1]), 0, of_epoch, match[1].decode(), match.start()
        )
    match = pairs[0]
    if len(pairs) > 1 and (epoch is None or match.start(1) == epoch.start(1)):  # `3/100 ... 12/250`: the epoch first
        of_epoch, match = float(match[1]), pairs[1]
    position, total = int(match[1]), 0 if match[2] == b"?" else int(match[2])
    if of_epoch is not None and (epoch is None or epoch.start(1) != match.start(1)):
        label = f"epoch {of_epoch:g}, "
    text = f"{label}{position}/{total}" if total else f"{label}{position}"
    key = crc32(b"/%d" % total, _key(BAR, line[: match.start()]))
    return Position(BAR, key, position, total, of_epoch, text, match.start())
