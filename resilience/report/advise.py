"""What to change about a run, from what its attempts, saves and nodes show, each with the figures behind it. Pure.

An advice is given only if it would have saved a noticeable part of this run's own time: WORTH of it, or it names a node
or a checkpoint that is bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from resilience.cadence import Costs, Past, decide, loss_of, mtbf_of_run
from resilience.messages import plural
from resilience.quantities import format_duration, format_slurm_time
from resilience.report.contents import Advice, AttemptLine, Outcome, Report
from resilience.report.goodput import Category, Span

WORTH = 0.01
"""A smaller share of the wall clock is not worth a change."""
ALIKE = 1.5
"""Intervals closer than this factor cost the same, within what is known of failures."""
FEW = 3
"""Fewer jobs that end at their limit, or start late, prove nothing."""
LONG = 0.5
"""A limit of which no job used more than this share is longer than needed."""
LARGE = 0.1
"""Time that is not training is worth a word from this share of the wall clock on."""
REMEDIES = {
    Category.START_UP: (
        "Make starts shorter, or rarer.",
        "cache what is compiled and read at the start; a longer time limit",
    ),
    Category.RESTORE: ("Make the restore shorter.", "a faster file system, or checkpoints in fewer files"),
    Category.SAVE_STALL: ("Save in the background, or less often.", "Store, or every in [guard]"),
    Category.HANG: ("End hangs sooner.", 'on_hang = "restart_step" in [watch.log], and its timeout_s'),
    Category.TAIL: ("End failed attempts sooner.", "shorter timeouts of collectives, on_hang in [watch.log]"),
    Category.EVALUATION: ("Evaluate less often, or elsewhere.", "a job of its own that reads the checkpoints"),
    Category.DATA_WAIT: ("Feed the training faster.", "more workers of the data loader, data on a local disk"),
    Category.UNKNOWN: ("Let the guard tell more.", "guard.step() in each step, guard.phase() around the rest"),
}
"""What helps against which kind of time; the other advice is about those that are missing here."""
LIMITS = {"walltime", "stopped"}
WORSE = 3.0
"""A node stands out if failures name it so many times as often, per attempt, as the other nodes."""


def advise(report: Report, spans: Sequence[Span] = ()) -> tuple[Advice, ...]:
    """Return what to change, what saves most first. `spans`: of the ledger of time."""
    makers = (_nodes, _interval, _walltime, _largest, _checkpoints)
    found = [*(one for maker in makers for one in maker(report)), *_keep_queued(report, spans)]
    return tuple(sorted(found, key=lambda one: -(one.saves_s or 0.0)))


def _words(seconds: float) -> str:
    return format_duration(round(seconds))


def _wall_s(report: Report) -> float:
    return report.end - report.begin


def _seconds(one: AttemptLine, report: Report) -> float:
    return max(0.0, (one.end_time if one.end_time is not None else report.made_at) - one.start_time)


def _interval(report: Report) -> Iterator[Advice]:
    """Compare the interval between saves with that of cadence.py, for what saves and failures cost in this run."""
    saves = report.saves
    if saves.stall_s is None or not saves.interval_s or report.plan.every == "auto":
        return
    restart_s = _per_attempt_s(report, Category.START_UP) + _per_attempt_s(report, Category.RESTORE)
    costs = Costs(
        stall_s=saves.stall_s, durable_s=max(saves.stall_s, saves.durable_s or 0.0), restart_s=max(0.0, restart_s)
    )
    mtbf = mtbf_of_run((Past(_seconds(one, report), one.redone_steps > 0) for one in report.attempts), restart_s)
    if not mtbf.failures:
        return
    better = decide(costs, mtbf)
    if max(better.interval_s, saves.interval_s) < ALIKE * min(better.interval_s, saves.interval_s):
        return
    now, then = (loss_of(one, costs, mtbf.likely_s).lost for one in (saves.interval_s, better.interval_s))
    gain_s = (now - then) * _wall_s(report)
    if not gain_s >= WORTH * _wall_s(report):
        return
    old, new = (_words(one) for one in (saves.interval_s, better.interval_s))
    redone_s = report.time.ms.get(Category.REDONE, 0) / 1000 if report.time is not None else 0.0
    yield Advice(
        subject="interval",
        say=f"Save every {new} instead of every {old}.",
        because=f"{better.reason}. With the present interval {100 * now:.1f} % of the time goes into saves, "
        f"restarts and redone steps, with the other {100 * then:.1f} %; redone so far: {_words(redone_s)}.",
        how='every = "auto" in [guard], or save at that interval',
        saves_s=gain_s,
    )


def _per_attempt_s(report: Report, category: Category) -> float:
    spent = [one.ms.get(category, 0) / 1000 for one in report.time.by_attempt] if report.time is not None else []
    return median(spent) if spent else 0.0


def _walltime(report: Report) -> Iterator[Advice]:
    """Ask for more time where restarts at the limit cost much, for less where no job needs it and the queue does."""
    limit_s = report.plan.walltime_s
    if not limit_s or not report.attempts or report.time is None:
        return
    used = [_seconds(one, report) for one in report.attempts]
    at_limit = [
        one for one in report.attempts if one.failure in LIMITS and _seconds(one, report) > 0.9 * limit_s
    ]  # fmt: skip
    queue_s = median(one.queue_s or 0.0 for one in report.attempts[1:]) if len(report.attempts) > 1 else 0.0
    start_s = sum(_per_attempt_s(report, one) for one in (Category.START_UP, Category.RESTORE))
    gain_s = len(at_limit) / 2 * (queue_s + start_s)
    if len(at_limit) >= FEW and gain_s >= WORTH * _wall_s(report):
        yield Advice(
            subject="walltime",
            say=f"Ask for {format_slurm_time(2 * limit_s)} instead of {format_slurm_time(limit_s)}, if the partition "
            "allows it.",
            because=f"{plural(len(at_limit), 'job')} ended at the time limit; the next one then waited "
            f"{_words(queue_s)} and took {_words(start_s)} to its first step.",
            how=f'time = "{format_slurm_time(2 * limit_s)}" in [sbatch]',
            saves_s=gain_s,
        )
    ended = [one for one in report.attempts if one.outcome is not Outcome.RUNNING]
    waited_s = report.time.ms.get(Category.QUEUE, 0) / 1000
    if len(ended) >= FEW and max(used) < LONG * limit_s and waited_s >= 0.1 * _wall_s(report):
        yield Advice(
            subject="walltime",
            say=f"Ask for less than {format_slurm_time(limit_s)}: short jobs fit into gaps and start earlier.",
            because=f"the longest of {plural(len(used), 'job')} took {_words(max(used))}; the run waited "
            f"{_words(waited_s)} in the queue, {100 * waited_s / _wall_s(report):.0f} % of its time.",
            how="time in [sbatch]",
        )


def _largest(report: Report) -> Iterator[Advice]:
    """Name the kind of time that took most of all that no other advice is about."""
    spent = {one: report.time.ms.get(one, 0) / 1000 for one in REMEDIES} if report.time is not None else {}
    for category in sorted(spent, key=lambda one: -spent[one])[:1]:
        if spent[category] >= LARGE * _wall_s(report):
            say, how = REMEDIES[category]
            yield Advice(
                subject=str(category),
                say=say,
                because=f"{category.text} took {_words(spent[category])} in {plural(len(report.attempts), 'attempt')}, "
                f"{100 * spent[category] / _wall_s(report):.0f} % of the time ({category.definition}).",
                how=how,
            )


def _keep_queued(report: Report, spans: Sequence[Span]) -> Iterator[Advice]:
    """Keep jobs queued where nothing was queued, or only held jobs, between the first attempt and the last."""
    if report.plan.keep_queued or report.time is None or len(report.attempts) < 2:
        return
    begin_ms, end_ms = (round(1000 * one.start_time) for one in (report.attempts[0], report.attempts[-1]))
    between = [one for one in spans if begin_ms <= one.start_ms and one.end_ms <= end_ms]
    held = [one.ms for one in between if one.category is Category.HELD]
    gain_s = sum(held) / 1000
    if gain_s >= WORTH * _wall_s(report):
        yield Advice(
            subject="keep_queued",
            say="Keep jobs queued behind the running one.",
            because=f"between its attempts nothing was queued, or only held jobs, {plural(len(held), 'time')}, for "
            f"{_words(gain_s)} in all, {100 * gain_s / _wall_s(report):.0f} % of its time.",
            how="keep_queued = 2 in [act]",
            saves_s=gain_s,
        )


def _nodes(report: Report) -> Iterator[Advice]:
    """Name the nodes that failures name far more often than the others: where all fail alike, it is not the nodes."""
    failures, attempts = (sum(getattr(one, name) for one in report.nodes) for name in ("failures", "attempts"))
    lost = {one.attempt: _redone_s(one, report) for one in report.attempts}
    for node in report.nodes:
        elsewhere = (failures - node.failures) / max(1, attempts - node.attempts)
        if node.failures < 2 or node.state == "excluded" or node.failures < WORSE * elsewhere * node.attempts:
            continue
        mine = [one for one in report.attempts if one.outcome is Outcome.FAILED and one.blamed == node.node]
        yield Advice(
            subject="node",
            say=f"Keep the jobs away from {node.node}.",
            because=f"{node.failures} of {plural(failures, 'failure')} that name a node name it, in "
            f"{plural(node.attempts, 'attempt')} there; the other nodes: {failures - node.failures} in "
            f"{attempts - node.attempts}{f'; {node.why}' if node.why else ''}.",
            how=f"resil nodes exclude {node.node} --for 3d",
            saves_s=sum(lost[one.attempt] for one in mine) or None,
        )


def _redone_s(one: AttemptLine, report: Report) -> float:
    times = {found.attempt: found for found in report.time.by_attempt} if report.time is not None else {}
    found = times.get(one.attempt)
    return 0.0 if found is None else found.ms.get(Category.REDONE, 0) / 1000


def _checkpoints(report: Report) -> Iterator[Advice]:
    there = [one for one in report.checkpoints if one.state != "set aside"]
    if there and not any(one.state == "verified" for one in there):
        yield Advice(
            subject="checkpoints",
            say="Have a checkpoint read again before you need it.",
            because=f"none of {plural(len(there), 'checkpoint')} was verified since it was committed.",
            how="resil ckpt verify --deep",
        )
