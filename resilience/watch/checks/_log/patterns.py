r"""Patterns of progress in the logs of common trainers. Pure.

Recorded lines of each are in tests/recorded/logs. Sources:

- Megatron-LM, `training_log`: ` iteration    42780/ 115311 | ... | elapsed time per iteration (s): 105.16`
- DeepSpeed, `_report_progress`: `[Rank 0] step=10, skipped=0, lr=[...]`, and `steps: 10 loss: 8.1 iter time (s): 0.9`
- NeMo: Lightning's bar with `global_step=11.00`
- torchtitan, `MetricsProcessor.log`: `step: 10  loss:  8.1000  grad_norm: ...`, with colours in between
- nanoGPT: `iter 10: loss 3.1234, time 105.16ms, mfu 12.3%`
- Lightning, tqdm: `Epoch 3:  45%|####5     | 12/100 [00:10<01:12,  1.21it/s, v_num=0]`
- the ImageNet example of PyTorch, and those after it: `Epoch: [3][ 120/5005]  Time ...`, `Test: [ 10/196]`;
  DINO: `Epoch: [0/100]  [  10/1251]  eta: ...`; timm: `Train: 3 [ 120/1251 (10%)]`
- Hugging Face Trainer: a tqdm bar, and `{'loss': 2.1, 'learning_rate': 5e-05, 'epoch': 0.53}`, which has no step
"""

from __future__ import annotations

import re
from typing import NamedTuple

STEP, EPOCH_STEP, BAR, EPOCH, OWN = "step", "epoch and step", "bar", "epoch", "progress_regex"
RANKS = {OWN: 0, STEP: 1, EPOCH_STEP: 2, BAR: 3, EPOCH: 4, "": 5}
"""The precedence of the kinds: a log is judged by the most precise one."""

_STEP = re.compile(
    rb"(?:\b(?:global[_ ]?step|train(?:ing)?[_ ]?step|step|iteration|iters?|num_updates)\b['\"]?[ \t:=#\[(]*['\"]?"
    rb"|\bsteps: (?=\d+ loss))"
    rb"([0-9]{1,3}(?:,[0-9]{3}){1,4}(?![0-9,])|[0-9]{1,15})(?:\.0+)?(?![0-9]|\.[0-9]|e[+0-9]|(?:[km]s?|s)\b)(?=[^0-9])",
    re.IGNORECASE,
)
_NOT_TRAINING = re.compile(rb"\b(?:eval|evaluation|evaluating|valid|validation|validating|val|test|testing)[ _-]?"
                           rb"(?:step|iter)", re.IGNORECASE)  # fmt: skip
_BAR = re.compile(rb"([^|\r\n]{0,200}?)(?:\s*\d{1,3}%\s*\|[^|]{0,400}\||)\s*\b(\d{1,15})/(\d{1,15}|\?) \[\d[\d:.]*<")
_OPEN_BAR = re.compile(rb"([^|\r\n]{0,200}?)\b(\d{1,15})it \[\d[\d:.]*,")
_EPOCH_LABEL = re.compile(rb"\bepoch\s*\[?(\d{1,9})", re.IGNORECASE)
_EPOCH = re.compile(rb"\bepoch\b['\"]?[ \t:=#\[(]*['\"]?(\d{1,9}(?:\.\d{1,12})?)(?=[^0-9.])", re.IGNORECASE)
_COUNTED = re.compile(
    rb"\b(?:(test|val|valid|validation|eval)|(?:epoch|train):?[ ]{0,3}\[?(\d{1,9})(?:/\d{1,9})?\]?)"
    rb":?[ ]{0,3}\[[ ]{0,9}(\d{1,9})/[ ]{0,9}(\d{1,9})",
    re.IGNORECASE,
)
_EVALUATES = re.compile(rb"\b(?:eval|valid|sanity check|test|predict)", re.IGNORECASE)

_SECONDS = re.compile(
    rb"elapsed time per iteration \((s|ms)\): ([0-9.]{1,20})"  # Megatron-LM
    rb"|, time ([0-9.]{1,20})(ms)"  # nanoGPT
    rb"|iter time \((s)\): ([0-9.]{1,20})"  # DeepSpeed
    rb"|\b([0-9.]{1,20})(s/it|it/s)\b"  # tqdm
)


class Found(NamedTuple):
    """The position in the training that a line reports.

    Attributes:
        kind: STEP, EPOCH_STEP, BAR, EPOCH or OWN.
        value: the step or its substitute; it increases with progress.
        text: the position for display.
        key: identifies the progress bar.
        is_complete: whether the progress bar is complete.
        evaluates: whether the progress bar is of an evaluation instead of the training.
        epoch: the epoch in the same line, if any.
    """

    kind: str
    value: float
    text: str
    key: int = 0
    is_complete: bool = False
    evaluates: bool = False
    epoch: float | None = None


def find(line: bytes, own: re.Pattern[bytes] | None = None) -> Found | None:
    """Return the position that a line reports, or None. Lines include their line end, except an unfinished last one.

    A number at the very end is ignored: its last digits may still be missing.
    """
    if own is not None:
        return _find_own(line, own)
    match = _STEP.search(line)
    if match is not None and not _NOT_TRAINING.search(line):
        step = match[1].replace(b",", b"")
        epoch = _EPOCH.search(line) if b"poch" in line else None
        of_epoch = None if epoch is None else float(epoch[1])
        return Found(STEP, int(step), step.lstrip(b"0").decode() or "0", epoch=of_epoch)
    if b" [" in line or b"it [" in line:
        bar = _find_bar(line)
        if bar is not None:
            return bar
    if b"[" in line:
        counted = _COUNTED.search(line)
        if counted is not None:
            return _of_counted(counted)
    match = _EPOCH.search(line)
    if match is not None:
        return Found(EPOCH, float(match[1]), f"epoch {match[1].decode()}", epoch=float(match[1]))
    return None


def _of_counted(match: re.Match[bytes]) -> Found:
    position, total = int(match[3]), int(match[4])
    if match[2] is not None:
        epoch = int(match[2])
        return Found(EPOCH_STEP, epoch * (total or 10**9) + position, f"epoch {epoch}, {position}/{total}")
    from binascii import crc32

    return Found(BAR, position, f"{position}/{total}", crc32(match[1] + b"%d" % total), position >= total - 1, True)


def _find_own(line: bytes, own: re.Pattern[bytes]) -> Found | None:
    match = own.search(line)
    if match is None or match[1] is None:
        return None
    text = match[1].strip().replace(b",", b"")
    try:
        value = float(text)
    except ValueError:
        return None
    return Found(OWN, value, text.decode("ascii", "replace")) if abs(value) < 1e15 else None


def _find_bar(line: bytes) -> Found | None:
    match = _BAR.search(line)
    if match is None:
        match = _OPEN_BAR.search(line)
        if match is None:
            return None
        position, total = int(match[2]), 0
    else:
        position, total = int(match[2]), 0 if match[3] == b"?" else int(match[3])
    label = match[1].strip(b" \t:")
    evaluates = _EVALUATES.search(label) is not None
    of_total = f"{position}/{total}" if total else str(position)
    epoch = _EPOCH_LABEL.search(label)
    if epoch is not None and not evaluates:
        return Found(EPOCH_STEP, int(epoch[1]) * (total or 10**9) + position, f"epoch {int(epoch[1])}, {of_total}")
    from binascii import crc32

    key = crc32(re.sub(rb"\d+", b"#", label) + b"/%d" % total)
    return Found(BAR, position, of_total, key, total > 0 and position >= total, evaluates)


def seconds_per_step(line: bytes) -> float | None:
    """Return the seconds per step that the line itself reports, or None."""
    match = _SECONDS.search(line)
    if match is None:
        return None
    parts = [part for part in match.groups() if part is not None]
    unit = next(part for part in parts if not part[:1].isdigit() and part[:1] != b".")
    try:
        value = float(next(part for part in parts if part is not unit))
    except (ValueError, StopIteration):
        return None
    if unit == b"it/s":
        return 1 / value if value > 0 else None
    return value / 1000 if unit == b"ms" else value
