"""Reports of simulated runs: attempts that fail and resume, with seeded chance and without a run directory."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from resilience.attempts.failure import Confidence, Failure, FailureClass, Quote
from resilience.attempts.ledger import LedgerRow
from resilience.report.advise import advise
from resilience.report.contents import (
    CheckpointLine,
    IncidentLine,
    NodeLine,
    Plan,
    Report,
    Saves,
    attempt_lines,
    step_lines,
)
from resilience.report.goodput import AttemptTime, Category, ClassTime, Goodput, Span
from resilience.runs.attempts import AttemptEnd

BEGIN = 1_795_000_000.0
CAUSES = {
    FailureClass.GPU_OOM: "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.10 GiB free",
    FailureClass.NETWORK: "NET/IB : Got completion from peer 10.1.2.3 with error 12, opcode 0, len 0",
    FailureClass.NODE_FAILURE: "slurmstepd: error: *** JOB 4242 ON n7 CANCELLED DUE TO NODE FAILURE",
    FailureClass.EXCEPTION: 'File "train.py", line 88, in <module>: KeyError: 0',
}


def simulated(attempts: int, *, hours: float = 1.2, seed: int = 1, is_finished: bool = True, nodes: int = 8) -> Report:
    """The report of a run of so many attempts of about `hours` each; a step takes 2 s, a save every 10 minutes."""
    chance, at, best = random.Random(seed), BEGIN, 0
    rows: list[LedgerRow] = []
    spans: list[Span] = []
    times, redone = list[AttemptTime](), dict[int, int]()

    def spend(attempt: int | None, category: Category, seconds: float, steps: tuple[int, int] | None = None) -> None:
        nonlocal at
        start, at = at, at + seconds
        if round(1000 * at) > round(1000 * start):
            span = Span(attempt, category, round(1000 * start), round(1000 * at), *(steps or (None, None)))
            spans.append(span)

    for number in range(1, attempts + 1):
        queue_s = chance.expovariate(1 / 300.0)
        spend(None, Category.QUEUE if chance.random() < 0.8 else Category.HELD, queue_s)
        start, is_last = at, number == attempts
        spend(number, Category.START_UP, 90.0)
        spend(number, Category.RESTORE, 20.0)
        first, length_s = best, chance.expovariate(1 / (hours * 3600)) + 60
        step, failed = first, chance.random() < 0.5 and not is_last
        while length_s > 0:
            made = min(length_s, 600.0)
            spend(number, Category.PRODUCTIVE, made, (step, step + int(made / 2)))
            step, length_s = step + int(made / 2), length_s - made
            if length_s > 0 or not failed:
                spend(number, Category.SAVE_STALL, 8.0)
                best = step
        redone[number] = step - best if failed else 0
        if redone[number]:
            spans[-1] = replace(spans[-1], category=Category.REDONE)
        spend(number, Category.TAIL, 5.0)
        host = f"n{chance.randrange(1, nodes + 1)}"
        cause = chance.choice(list(CAUSES)) if failed else FailureClass.FINISHED if is_last else FailureClass.WALLTIME
        quotes = (Quote(line=7, text=CAUSES[cause]),) if failed else ()
        failure = Failure(
            failure=cause,
            confidence=Confidence.LIKELY,
            reason=f"a line of the log: {CAUSES[cause][:40]}" if failed else "the training is complete",
            host=host if failed else "",
            quotes=quotes,
        )
        row = LedgerRow(
            attempt=number,
            job=f"{100 + number // 10}_{number % 10}",
            host=host,
            nodes=host,
            start_time=start,
            end_time=at,
            queue_s=queue_s,
            end=AttemptEnd.EXITED if failed else AttemptEnd.FINISHED if is_last else AttemptEnd.STOPPED,
            first_step=first,
            last_step=step,
            durable_step=best,
            failure=None if is_last and not is_finished else failure,
            decided="restart",
        )
        rows.append(row)
        ms = Counter[Category]()
        for span in spans:
            if span.attempt == number:
                ms[span.category] += span.ms
        times.append(
            AttemptTime(
                attempt=number,
                job=row.job,
                ended=str(cause),
                start_ms=round(1000 * start),
                end_ms=round(1000 * at),
                ms=ms,
            )
        )
    total = Counter[Category]()
    for span in spans:
        total[span.category] += span.ms
    begin_ms, end_ms = round(1000 * BEGIN), spans[-1].end_ms
    wall = end_ms - begin_ms
    ended = Counter(one.ended for one in times)
    goodput = Goodput(
        run="gpt",
        start_ms=begin_ms,
        end_ms=end_ms,
        ms={one: total[one] for one in Category},
        by_attempt=tuple(times),
        by_class=tuple(ClassTime(ended=name, attempts=count, lost_ms=1000 * count) for name, count in ended.items()),
        ettr=total[Category.PRODUCTIVE] / wall,
        ettr_without_queue=total[Category.PRODUCTIVE] / (wall - total[Category.QUEUE] - total[Category.HELD]),
    )
    lines = attempt_lines(rows, redone)
    blamed = Counter(one.blamed for one in lines if one.blamed)
    used = Counter(one.host for one in lines)
    report = Report(
        run="gpt",
        made_at=at + 60,
        state="finished" if is_finished else "running",
        time=goodput,
        plan=Plan(walltime_s=7200.0),
        saves=Saves(count=500, stall_s=8.0, durable_s=40.0, interval_s=608.0),
        attempts=lines,
        steps=step_lines(spans),
        incidents=tuple(
            IncidentLine(
                episode=f"{number:08x}",
                check="fs",
                subject=f"/scratch/gpt{number}",
                fault="full",
                verdict="CRITICAL",
                summary="98.4% of 40 TiB used",
                opened=BEGIN + 3600.0 * number * max(1, attempts // 12),
                resolved=BEGIN + 3600.0 * (number * max(1, attempts // 12) + 0.5),
                messages=1,
                evidence=("98.4% used", "statvfs"),
                advice="resil watch fs --top",
            )
            for number in range(1, 4)
        ),
        checkpoints=(
            CheckpointLine(name="step-00000100", step=100, state="verified", saved_at=BEGIN, size_bytes=3 * 2**30),
            CheckpointLine(name="step-00000200", step=200, state="damaged", why="model.pt: its digest differs"),
            CheckpointLine(name="step-00000150", step=None, state="set aside", why="a bit was flipped"),
        ),
        nodes=tuple(
            NodeLine(node=name, attempts=used[name], failures=blamed[name], seconds=3600.0 * used[name])
            for name in sorted(used, key=lambda name: -blamed[name])
        ),
        losses=tuple((step, 4.0 / (1 + step / 100) + 2.0) for step in range(1, 400, 5)),
        missing=("no record of the scheduler (sacct) of 3 of 12 ended attempts",),
    )
    return replace(report, advice=advise(report, spans))
