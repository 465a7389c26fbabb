"""Whether a night went as promised. Pure: from the facts that a night left to the list of what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.lab.chaos.plan import Fault, Night

BROKEN = ("Traceback", "internal error", "command not found", "unbound variable", "syntax error")
"""What no watchdog and no batch shell says."""


@dataclass(frozen=True)
class Attempt:
    """An attempt that launched, as `resil attempts` tells it; `failure` is its class, empty while it has not ended."""

    number: int
    failure: str
    launched: bool = True


@dataclass(frozen=True)
class Facts:
    """What a night left.

    Attributes:
        alone: loss and weights of a training that nothing happens to; `final`: those of this one, empty before its end.
        reason: why the breaker holds the run; empty: it does not.
        met: for each fault, by its number, the step and the attempt at each time it came.
        resumed: for each attempt, the step at which each of its ranks began.
        stepped: attempt, step, time and loss of each step of rank 0, in the order of the file.
        saved: attempt and step of each committed checkpoint.
        corrupted: the steps at which the guard found silent corruption, and its verdicts.
        damaged: the steps whose checkpoint the night has damaged, with the attempt before.
        messages: what the channel has sent, in order.
        incidents: as the ledger has them.
        undelivered: messages in the outbox.
        said: what watchdogs and batch shells wrote.
        left: processes, mounts and files that should be gone.
        waited: what was waited for in vain.
    """

    night: Night
    alone: str
    final: str
    reason: str
    attempts: tuple[Attempt, ...]
    met: Mapping[int, tuple[tuple[int, int], ...]]
    resumed: Mapping[int, tuple[int, ...]]
    stepped: tuple[tuple[int, int, float, str], ...]
    saved: tuple[tuple[int, int], ...]
    corrupted: tuple[tuple[int, str], ...] = ()
    damaged: tuple[tuple[int, int], ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    incidents: tuple[Mapping[str, Any], ...] = ()
    undelivered: tuple[str, ...] = ()
    said: str = ""
    left: tuple[str, ...] = ()
    waited: str = ""


def judge(facts: Facts) -> list[str]:
    """Return what is wrong, as sentences; nothing if all is well."""
    found = [f"waited in vain for {facts.waited}"] if facts.waited else []
    parts = (_end, _faults, _reasons, _steps, _resumes, _told, _broken)
    return (
        found + [sentence for part in parts for sentence in part(facts)] + [f"left behind: {one}" for one in facts.left]
    )


def _holder(facts: Facts) -> Fault | None:
    """The fault that must hold the run, or that may, and does."""
    reason = facts.reason.replace("_", " ")
    for fault in facts.night.faults:
        named = fault.of.may_hold.replace("_", " ")
        if named and not facts.final and named in reason and facts.met.get(fault.number):
            return fault
    return facts.night.lasting


def _end(facts: Facts) -> Iterator[str]:
    lasting = _holder(facts)
    if lasting is None and not facts.final:
        yield f"the run did not finish; the breaker says {facts.reason or 'nothing'}"
    elif lasting is None and facts.reason:
        yield f"the run has finished, and is held: {facts.reason}"
    elif lasting is not None and facts.final:
        yield f"the run finished in spite of {lasting}"
    elif lasting is not None and (lasting.of.holds or lasting.of.may_hold).replace(
        "_", " "
    ) not in facts.reason.replace("_", " "):
        yield f"the run is held for another reason than {lasting}: {facts.reason or 'it is not held'}"
    if facts.final and facts.final != facts.alone:
        yield f"the end is not that of a training left alone: {facts.final} instead of {facts.alone}"


def _faults(facts: Facts) -> Iterator[str]:
    for fault in facts.night.faults:
        times = facts.met.get(fault.number, ())
        if not times and ((holder := _holder(facts)) is None or fault.number <= holder.number):
            yield f"{fault} never came"
        if any(step != fault.step for step, _ in times):
            yield f"{fault} came at another step: {times}"
        verdicts = {verdict for step, verdict in facts.corrupted if fault.step <= step <= fault.step + 10}
        if times and fault.of.corrupts and verdicts != {fault.of.corrupts}:
            yield f"{', '.join(verdicts) or 'nothing'} was found at {fault}"
    bad = [fault for fault in facts.night.faults if fault.of.corrupts]
    if len(found := {step for step, _ in facts.corrupted}) > len(bad):
        yield f"silent corruption was found at the steps {sorted(found)}"


def _faults_of(facts: Facts) -> dict[int, list[Fault]]:
    """For each attempt the faults that came in it, or lasted in it."""
    found: dict[int, list[Fault]] = {one.number: [] for one in facts.attempts}
    for fault in facts.night.faults:
        came = {attempt for _, attempt in facts.met.get(fault.number, ())}
        for one in facts.attempts:
            may_last = fault.of.holds or fault.of.lingers
            lasts = may_last and one.number - 1 in came and one.failure in fault.of.classes
            if one.number in came or lasts:
                came.add(one.number)
                found[one.number].append(fault)
    return found


def _reasons(facts: Facts) -> Iterator[str]:
    numbers = [one.number for one in facts.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the ledger has the attempts {numbers}"
    faults = _faults_of(facts)
    for one in facts.attempts:
        if not one.launched or one.failure == "finished":
            continue
        expected = frozenset().union(*(fault.of.classes for fault in faults[one.number]))
        if not one.failure:
            yield f"attempt {one.number} has no end"
        elif not expected:
            yield f"attempt {one.number} ended as {one.failure}, and nothing had happened to it"
        elif one.failure not in expected:
            yield f"attempt {one.number} ended as {one.failure}: {', '.join(map(str, faults[one.number]))}"


def _steps(facts: Facts) -> Iterator[str]:
    """No step is left out, none is made by two attempts at a time, and each has the loss that it had before."""
    losses: dict[int, str] = {}
    wrong = _diverged(facts)
    last: dict[int, int] = {}
    newest = 0
    for attempt, step, _, loss in facts.stepped:
        begins = facts.resumed.get(attempt, (0,))[0]
        if step != last.get(attempt, begins) + 1:
            yield f"attempt {attempt} made step {step} after {last.get(attempt, begins)}"
        if attempt < newest:
            yield f"attempt {attempt} made step {step} while attempt {newest} trained"
        if step < wrong.get(attempt, step + 1) and losses.setdefault(step, loss) != loss:
            yield f"step {step} had another loss in attempt {attempt}"
        last[attempt], newest = step, max(newest, attempt)


def _diverged(facts: Facts) -> dict[int, int]:
    """The attempts whose state was ruined, by other weights on one rank or by NaN, and from which step on: the step
    before, if a replay was wrong as well."""
    ruins = {"replica": 0, "nan": 0, "unstable": 1, "repeated": 1}
    came = [(fault, facts.met.get(fault.number, ())) for fault in facts.night.faults if fault.kind in ruins]
    return {attempt: fault.step - ruins[fault.kind] for fault, times in came for _, attempt in times}


def _resumes(facts: Facts) -> Iterator[str]:
    """Each attempt begins, on all ranks, with the newest checkpoint that was committed and that nothing has damaged.
    (The journal may lack the last one of an attempt that was killed just then.)"""
    for attempt, ranks in sorted(facts.resumed.items()):
        if len(set(ranks)) > 1:
            yield f"the ranks of attempt {attempt} began at different steps: {ranks}"
        good = {0: 0} | {step: number for number, step in sorted(facts.saved) if number < attempt}
        bad = [step for number, step in facts.damaged if good.get(step, attempt) <= number < attempt]
        bad += [step for step, number in good.items() if step >= _diverged(facts).get(number, step + 1)]
        newest = max(step for step in good if step not in bad)
        made = max((step for number, step, _, _ in facts.stepped if number < attempt), default=0)
        if not newest <= ranks[0] <= made or ranks[0] in bad:
            yield f"attempt {attempt} began at step {ranks[0]}, and the newest good checkpoint was that of {newest}"


LAUNCHER = "srun: error: "
"""The last words about an attempt may be those of its launcher, and then they are the same for different faults."""


def _told(facts: Facts) -> Iterator[str]:
    """Each verdict of each incident is told once, and so is its end."""
    notices = [notice for message in facts.messages for notice in message["notices"]]
    words = Counter((notice["episode"], notice["fault"], _word(notice)) for notice in notices)
    for (episode, fault, word), times in words.items():
        if times > 1:
            yield f"{word} of incident {episode} ({fault}) was told {times} times"
    begins = Counter((one["fingerprint"], one["summary"]) for one in notices if one["reason"] == "FIRST")
    lasted = [fault for faults in _faults_of(facts).values() for fault in faults if fault.of.holds or fault.of.lingers]
    most = max(Counter(lasted).values(), default=1)  # the same end of so many attempts
    failed = sum(one.failure not in ("", "finished") for one in facts.attempts)
    for (_, summary), times in begins.items():
        if times > (max(most, failed) if LAUNCHER in summary else most):
            yield f"{times} incidents were told of one thing: {summary}"
    for message in facts.messages:
        if not message["notices"]:
            yield f"a message about nothing of this night: {message['headline']}"
    for one in facts.incidents:
        told = {_word(notice) for notice in notices if notice["episode"] == one["episode"]}
        if one["count"] and not told:
            yield f"incident {one['episode']} ({one['fault']}) counts as told, and no message came"
        if one["resolved"] and told and "RESOLVED" not in told:
            yield f"the end of incident {one['episode']} ({one['fault']}) was not told"
        if facts.final and not one["resolved"]:
            yield f"incident {one['episode']} ({one['fault']}) is open after the end: {one['summary']}"
    if facts.reason and not any(one["fault"] == "breaker-open" and one["count"] for one in facts.incidents):
        yield "the run is held, and nobody was told"
    for fault in facts.night.faults:
        if fault.of.holds and fault.number in facts.met and not any(one["fault"] == "breaker-open" for one in notices):
            yield f"nobody was told of {fault}"
    yield from (f"not delivered: {name}" for name in facts.undelivered)


def _word(notice: Mapping[str, Any]) -> str:
    return "RESOLVED" if notice["reason"] == "RESOLVED" else str(notice["verdict"])


def _broken(facts: Facts) -> Iterator[str]:
    for line in facts.said.splitlines():
        if any(word in line for word in BROKEN) and not line.startswith(" "):  # what they quote from a log is indented
            yield f"a watchdog or a batch shell broke: {line.strip()}"
