"""The ledger of time of a run: one partition of its wall clock, and the figures that the field prints of it. Pure.

All times are whole milliseconds since the epoch, so the categories sum to the wall clock exactly. fold.py and
compose.py make the spans; `read_goodput` of reading.py collects what they are made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Category(StrEnum):
    """What a moment of a run was spent on. The order is that of tables and legends.

    After systems that publish such ledgers: ml-goodput (Google), ETTR (Meta, arXiv 2410.21680), MegaScale (arXiv
    2402.15627). They differ in what they leave out; here nothing is.
    """

    PRODUCTIVE = "productive"
    REDONE = "redone"
    SAVE_STALL = "save_stall"
    EVALUATION = "evaluation"
    DATA_WAIT = "data_wait"
    START_UP = "start_up"
    RESTORE = "restore"
    HANG = "hang"
    DRAIN = "drain"
    TAIL = "tail"
    QUEUE = "queue"
    HELD = "held"
    UNKNOWN = "unknown"

    @property
    def text(self) -> str:
        """Return the category in words: `save stall`."""
        return _TEXTS.get(self, self.value.replace("_", " "))

    @property
    def definition(self) -> str:
        """Return one line that defines it."""
        return _DEFINITIONS[self]


_TEXTS = {Category.START_UP: "start-up"}
_DEFINITIONS = {
    Category.PRODUCTIVE: "steps that were kept",
    Category.REDONE: "steps that were lost and had to be done again",
    Category.SAVE_STALL: "the training waited for a save",
    Category.EVALUATION: "in a phase named eval..., valid... or test...",
    Category.DATA_WAIT: "in a phase named data...",
    Category.START_UP: "from the start of the job to the first step",
    Category.RESTORE: "a checkpoint was loaded",
    Category.HANG: "no step was made, and a hang was found",
    Category.DRAIN: "from the decision to stop to the training's end",
    Category.TAIL: "from the last step or the end to the job's end",
    Category.QUEUE: "a job was submitted and had not started",
    Category.HELD: "no job was queued, or all of them were held",
    Category.UNKNOWN: "nothing tells; never counted as productive",
}
"""What is not part of another: a save during the drain is a save stall."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the wall clock, in one category.

    Attributes:
        attempt: the attempt that it belongs to; None between attempts.
        category: what it was spent on.
        start_ms, end_ms: milliseconds since the epoch; the end of one span is the start of the next.
        first_step, last_step: of productive and redone time: the steps done before it, and at its end. Between them the
            step is linear in time. None of other categories.
    """

    attempt: int | None
    category: Category
    start_ms: int
    end_ms: int
    first_step: int | None = None
    last_step: int | None = None

    @property
    def ms(self) -> int:
        """Return its length."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTime:
    """The time of one attempt.

    Attributes:
        attempt: its number.
        job: displayed id of the job: `12_3`.
        ended: the class of its end, such as `finished` or `gpu_fault` (attempts/failure.py); `running` while it runs,
            `lost` if it seems not to and no end is recorded.
        start_ms, end_ms: of the attempt. Where attempts overlap, each moment counts for one of them only, so `ms` may
            sum to less.
        gpus: of the job; None: unknown.
        steps: that were kept.
        redone_steps: that were lost.
        ms: milliseconds by category; categories without time are left out.
    """

    attempt: int
    job: str
    ended: str
    start_ms: int
    end_ms: int
    gpus: int | None = None
    steps: int = 0
    redone_steps: int = 0
    ms: Mapping[Category, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTime:
    """The time of all attempts that ended in one class.

    Attributes:
        ended: the class, as in AttemptTime.
        attempts: how many.
        lost_ms: their time that was redone, hung, or passed after the last step.
        ms: milliseconds by category; categories without time are left out.
    """

    ended: str
    attempts: int
    lost_ms: int
    ms: Mapping[Category, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHours:
    """GPU hours of the attempts whose number of GPUs is known: GPUs of the job times its wall clock.

    Attributes:
        allocated: from the start to the end of each attempt, overlapping ones included.
        productive: of these, in productive time.
        unknown_attempts: how many attempts are left out.
    """

    allocated: float
    productive: float
    unknown_attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Where the time of a run went.

    Attributes:
        run: its name.
        start_ms, end_ms: what the ledger covers: from the first submit (or start, if that is unknown) to the end of the
            run, or to now if it runs or is queued. With --since, the part of it since then.
        is_running: whether the newest attempt runs.
        spans: the partition of [start_ms, end_ms], in order, without gap and overlap; no span is empty.
        ms: milliseconds by category, all categories, in the order of Category. Their sum is end_ms - start_ms.
        by_attempt: oldest first.
        by_class: by class of the end, the one that lost most first.
        ettr: productive time, of the wall clock, queue included (Meta, arXiv 2410.21680); None without any time.
        ettr_without_queue: the same, of the time of attempts.
        effective_time: kept steps times the median duration of a step, of the time of attempts (MegaScale, arXiv
            2402.15627); None if no duration of a step is known.
        kept_steps: steps that were kept.
        step_s: the median duration of a step; None: unknown.
        gpu_hours: None if no number of GPUs is known.
        notes: what could not be read or is not known, in sentences.
        injected: the faults that people have injected on purpose, in sentences, oldest first.
    """

    run: str
    start_ms: int
    end_ms: int
    is_running: bool = False
    spans: tuple[Span, ...] = ()
    ms: Mapping[Category, int] = field(default_factory=dict)
    by_attempt: tuple[AttemptTime, ...] = ()
    by_class: tuple[ClassTime, ...] = ()
    ettr: float | None = None
    ettr_without_queue: float | None = None
    effective_time: float | None = None
    kept_steps: int = 0
    step_s: float | None = None
    gpu_hours: GpuHours | None = None
    notes: tuple[str, ...] = ()
    injected: tuple[str, ...] = ()

    @property
    def wall_ms(self) -> int:
        """Return the length of the ledger."""
        return self.end_ms - self.start_ms


FOOTNOTES = {
    "ettr": "productive / wall clock with queue (arXiv 2410.21680)",
    "ettr_without_queue": "productive / time of attempts",
    "effective_time": "steps x median step / attempts (arXiv 2402.15627)",
    "gpu_hours": "GPUs, by the options of sbatch, x time of attempts",
}
"""The definition of each figure, for tables and pages, and its source: ETTR is Meta's, effective time MegaScale's."""
