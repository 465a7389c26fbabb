"""Why did an attempt end? Pure: the evidence was gathered by others.

The order of belief: what the batch shell and the guards recorded as deliberate; what the scheduler and the kernel say;
the earliest line that may be a cause and that the training did not survive; an exception of the user's code; echoes of
other ranks; the exit code. A line that was followed by further steps is not the cause.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from resilience.attempts.failure import Confidence, Failure, FailureClass, Quote, Role
from resilience.attempts.rules import Rule, all_rules
from resilience.attempts.traceback_blocks import Traceback, split_rank, tracebacks
from resilience.job import JobState
from resilience.messages import cut
from resilience.runs.attempts import AttemptEnd

MOST_QUOTES = 6
SURVIVED_STEPS = 3
"""A line was survived if the log shows this many different steps after it."""
_MOST_IN_GROUP = 500
_MOST_LINE = 4000
"""Longer lines are cut: a progress bar may write one line of gigabytes."""
_MASK = bytes.maketrans(b"123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"000000000abcdefghijklmnopqrstuvwxyz")
"""Digits become 0 and letters small: lines that differ only in numbers are searched once."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(
    r"\b(?:global_?step|step|iter|iteration|batch|epoch)\b\W{0,4}(\d+)|\b(\d+)(?:/\d+)? ?\[|\| *(\d+)/\d+"
)
_STEP_WORDS = ("step", "iter", "batch", "epoch", "it/s", "s/it")
_ELASTIC = "Root Cause (first observed failure):"
_ELASTIC_FIELD = re.compile(r"^\s*(host|rank|exitcode)\s*:\s*(\S+)")
_MASKED = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?|'[^']{40,}'")
_STAMP = re.compile(r"^[\[(]?\d{4}-\d\d-\d\d[T ][\d:.,+Z-]+[\])]?\s*")

_STATES = {
    JobState.TIMEOUT: FailureClass.WALLTIME,
    JobState.DEADLINE: FailureClass.WALLTIME,
    JobState.PREEMPTED: FailureClass.PREEMPTED,
    JobState.NODE_FAIL: FailureClass.NODE_FAILURE,
    JobState.BOOT_FAIL: FailureClass.NODE_FAILURE,
    JobState.OUT_OF_MEMORY: FailureClass.HOST_OOM,
    JobState.CANCELLED: FailureClass.CANCELLED,
}
"""States that tell why (squeue(1), JOB STATE CODES)."""
_SIGNALS = {
    4: FailureClass.SEGFAULT, 6: FailureClass.SEGFAULT, 7: FailureClass.SHARED_MEMORY, 8: FailureClass.SEGFAULT,
    11: FailureClass.SEGFAULT,
}  # fmt: skip
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV (signal(7))."""
_VAGUE = {FailureClass.EXCEPTION, FailureClass.UNKNOWN}
_FROM_OUTSIDE = {FailureClass.WALLTIME, FailureClass.PREEMPTED, FailureClass.NODE_FAILURE, FailureClass.CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of the end of an attempt; each part may be missing.

    Attributes:
        end: what the batch shell recorded.
        exit_code: of the launch: 128 + signal if a signal ended it.
        state: final state of the job, as the scheduler or its accounting has it.
        state_text: that state as printed: `CANCELLED by 1000`.
        has_oom_kill: whether the kernel counted an OOM kill in the job's cgroup (memory.events).
        stopped_why: reason of a deliberate stop, by the guards.
        ruined_why, ruined_step: reason and step of a stop by the guards because the state of the training was ruined.
        elastic: error of the first failing rank, from torchelastic's error file: message and call stack.
        elastic_rank, elastic_host: of that rank.
        log: end of the log.
    """

    end: AttemptEnd | None = None
    exit_code: int | None = None
    state: JobState | None = None
    state_text: str = ""
    has_oom_kill: bool = False
    stopped_why: str = ""
    ruined_why: str = ""
    ruined_step: int | None = None
    elastic: str = ""
    elastic_rank: int | None = None
    elastic_host: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True)
class _Match:
    rule: Rule
    index: int
    rank: int | None
    host: str


@dataclass(slots=True)
class _Reading:
    """What the log shows.

    Attributes:
        lines: without colours.
        matches: of all rules, in the order of the lines.
        exceptions: tracebacks that no rule explains and that were not survived.
        steps: indexes of lines with a step, ascending.
        culprit: rank and host of torchelastic's first observed failure, and its exit code.
    """

    lines: list[str]
    matches: list[_Match] = field(default_factory=list)
    blocks: list[Traceback] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    culprit: tuple[int | None, str, int | None] = (None, "", None)


def classify(evidence: Evidence, rules: Sequence[Rule] | None = None) -> Failure:
    """Return why an attempt ended. Never raises for any evidence.

    Raise SettingsError only if the rules of a plugin directory are invalid.
    """
    known = all_rules() if rules is None else rules
    if evidence.end is AttemptEnd.FINISHED:
        return _plain(FailureClass.FINISHED, Confidence.CERTAIN, "the training wrote that it is complete")
    if evidence.ruined_why:
        return _of_ruin(evidence, known)
    reading = _read(evidence.log, known)
    decided = next((one for one in reading.matches if one.rule.decides), None)
    if evidence.end is AttemptEnd.STOPPED and (decided is None or decided.rule.failure in _FROM_OUTSIDE):
        why = evidence.stopped_why or "the guards stopped it"
        return _plain(FailureClass.STOPPED, Confidence.CERTAIN, f"stopped on purpose: {why}")
    by_state = _STATES.get(evidence.state) if evidence.state is not None else None
    if by_state is not None:
        said = evidence.state_text or str(evidence.state)
        return _with_quotes(_plain(by_state, Confidence.CERTAIN, f"the scheduler ended it: {said}"), reading, by_state)
    if evidence.has_oom_kill:
        found = _plain(FailureClass.HOST_OOM, Confidence.CERTAIN, "the kernel killed a process of it for memory")
        return _with_quotes(found, reading, FailureClass.HOST_OOM)
    if decided is not None:
        return _of_match(decided, reading, Confidence.CERTAIN)
    if evidence.elastic:
        return _of_elastic(evidence, known)
    return _of_log(reading) or _of_exit_code(evidence, reading)


def _of_ruin(evidence: Evidence, rules: Sequence[Rule]) -> Failure:
    """Return the failure that the guards have recorded, with the advice of the rules for its class."""
    found = _plain(FailureClass.NAN_LOSS, Confidence.CERTAIN, f"the guards stopped it: {evidence.ruined_why}")
    advice = next((rule.advice for rule in rules if rule.failure is FailureClass.NAN_LOSS and rule.advice), "")
    return replace(found, step=evidence.ruined_step, advice=advice)


# ---- the log ---------------------------------------------------------------------------------------------------


def _read(log: str, rules: Sequence[Rule]) -> _Reading:
    if "\x1b" in log:
        log = _ESCAPES.sub("", log)
    lines = [line[:_MOST_LINE] for line in log.replace("\r", "\n").split("\n")]
    groups: dict[str, list[int]] = {}
    for index, line in enumerate(_masked("\n".join(lines)).split("\n")):
        groups.setdefault(line, []).append(index)
    whole = "\n".join(groups)
    active = [
        (rule, wanted)
        for rule in rules
        if (wanted := tuple(one for word in rule.contains if (one := _masked(word)) in whole))
    ]
    reading = _Reading(lines, steps=_steps(groups))
    for masked, indexes in groups.items():
        near = [rule for rule, wanted in active if any(word in masked for word in wanted)]
        if near:
            reading.matches += _matches(near, lines, indexes[:_MOST_IN_GROUP])
    reading.matches.sort(key=lambda one: one.index)
    reading.blocks = tracebacks(lines)
    reading.culprit = _elastic_culprit(lines)
    return reading


def _masked(text: str) -> str:
    return text.encode("utf-8", "replace").translate(_MASK).decode("utf-8")


def _matches(rules: Sequence[Rule], lines: Sequence[str], indexes: Sequence[int]) -> Iterator[_Match]:
    for index in indexes:
        for rule in rules:
            found = rule.match(lines[index])
            if found is not None:
                parts = found.groupdict()
                rank = parts.get("rank")
                yield _Match(
                    rule, index, int(rank) if rank and rank.isdigit() else split_rank(lines[index])[0],
                    parts.get("host") or "",
                )  # fmt: skip
                break


def _steps(groups: dict[str, list[int]]) -> list[int]:
    found: list[int] = []
    for masked, indexes in groups.items():
        if any(word in masked for word in _STEP_WORDS) and _STEP.search(masked) and "rror" not in masked:
            found += indexes
    return sorted(found)


def _is_survived(index: int, reading: _Reading) -> bool:
    """Return whether the log shows further steps after a line."""
    after: set[str] = set()
    for step in reading.steps[bisect_right(reading.steps, index) :]:
        found = _STEP.search(reading.lines[step].lower())
        if found is not None:
            after.add(next(number for number in found.groups() if number))
        if len(after) >= SURVIVED_STEPS:
            return True
    return False


def _of_log(reading: _Reading) -> Failure | None:
    """Return the failure that the log shows, or None."""
    explained = {one.index: one for one in reading.matches if one.rule.role is not Role.DIAGNOSTIC}
    roots = [one for one in reading.matches if one.rule.role is Role.ROOT and _counts(one, reading)]
    inside = {index: block for block in reading.blocks for index in range(block.begin, block.end + 1)}
    candidates: list[tuple[int, _Match | Traceback]] = [
        (inside[one.index].begin if one.index in inside else one.index, one) for one in roots
    ]
    candidates += [
        (block.begin, block)
        for block in reading.blocks
        if not any(index in explained for index in range(block.begin, block.end + 1))
        and not _is_survived(block.end, reading)
    ]
    if candidates:
        _, first = min(candidates, key=lambda one: (one[0], isinstance(one[1], Traceback)))
        if isinstance(first, Traceback):
            return _of_traceback(first, reading)
        return _of_match(first, reading, Confidence.LIKELY)
    echoes = [one for one in reading.matches if one.rule.role is Role.CASCADE and not _is_survived(one.index, reading)]
    if echoes:
        return _of_match(echoes[0], reading, Confidence.GUESS)
    return None


def _counts(one: _Match, reading: _Reading) -> bool:
    if one.rule.failure is FailureClass.NAN_LOSS:  # a training goes on with NaN: the last steps show it, or do not
        last = reading.steps[-SURVIVED_STEPS:]
        if one.index in set(reading.steps):
            return one.index >= last[0] or sum(one.rule.match(reading.lines[step]) is not None for step in last) > 1
    return not _is_survived(one.index, reading)


def _elastic_culprit(lines: Sequence[str]) -> tuple[int | None, str, int | None]:
    """Return rank, host and exit code of torchelastic's `Root Cause` (torch/distributed/elastic/multiprocessing/errors,
    ChildFailedError.format_msg)."""
    for index, line in enumerate(lines):
        if _ELASTIC in line:
            fields: dict[str, str] = {}
            for after in lines[index + 1 : index + 9]:
                found = _ELASTIC_FIELD.match(split_rank(after)[1])
                if found is not None:
                    fields.setdefault(found[1], found[2])
            rank, code = fields.get("rank", ""), fields.get("exitcode", "")
            return (
                int(rank) if rank.isdigit() else None,
                fields.get("host", ""),
                int(code) if code.removeprefix("-").isdigit() else None,
            )
    return None, "", None


# ---- results -----------------------------------------------------------------------------------------------------


def _plain(failure: FailureClass, confidence: Confidence, reason: str) -> Failure:
    return Failure(failure=failure, confidence=confidence, reason=reason, fingerprint=str(failure))


def _of_match(one: _Match, reading: _Reading, confidence: Confidence) -> Failure:
    line = split_rank(reading.lines[one.index])[1].strip()
    block = next((block for block in reading.blocks if block.begin <= one.index <= block.end), None)
    where = f"{block.frame}: " if block is not None and block.is_own else ""
    rank, host = _culprit(one.rank, one.host, reading)
    return Failure(
        failure=one.rule.failure,
        confidence=confidence,
        reason=f"the log says: {cut(line, 200)}",
        advice=one.rule.advice,
        fingerprint=f"{one.rule.failure}: {where}{_mask(line)}",
        rank=rank,
        host=host,
        quotes=_quotes(one.index, reading, one.rule.failure),
    )


def _culprit(rank: int | None, host: str, reading: _Reading) -> tuple[int | None, str]:
    """Return the first failing rank and its host: of the line itself, else as torchelastic or srun names them."""
    elastic_rank, elastic_host, _ = reading.culprit
    rank = elastic_rank if rank is None else rank
    if not host and rank == elastic_rank:
        host = elastic_host
    named = [one for one in reading.matches if one.host]
    same = next((one for one in named if one.rank == rank), None)
    return rank, host or (same.host if same is not None else "")


def _of_traceback(block: Traceback, reading: _Reading) -> Failure:
    said = f"{block.exception}: {block.message}" if block.message else block.exception
    rank, host = _culprit(block.rank, "", reading)
    return Failure(
        failure=FailureClass.EXCEPTION,
        confidence=Confidence.LIKELY,
        reason=f"an exception ended it{f' in {block.frame}' if block.frame else ''}: {cut(said, 200)}",
        fingerprint=f"exception: {block.frame}: {_mask(said)}",
        rank=rank,
        host=host,
        quotes=_quotes(block.end, reading, FailureClass.EXCEPTION),
    )


def _of_elastic(evidence: Evidence, rules: Sequence[Rule]) -> Failure:
    reading = _read(evidence.elastic, rules)
    found = _of_log(reading)
    if found is None:
        last = next((line for line in reversed(reading.lines) if line.strip()), "")
        found = Failure(
            failure=FailureClass.EXCEPTION, confidence=Confidence.LIKELY,
            reason=f"the first failing rank says: {cut(last.strip(), 200)}", fingerprint=f"exception: {_mask(last)}",
        )  # fmt: skip
    return replace(found, rank=evidence.elastic_rank, host=evidence.elastic_host or found.host)


def _of_exit_code(evidence: Evidence, reading: _Reading) -> Failure:
    """Return the failure that only the exit code shows; 137 alone is no proof of a lack of memory."""
    rank, host, child = reading.culprit
    code = evidence.exit_code if child is None or child >= 0 else 128 - child
    killed = FailureClass.KILLED
    if code is not None and code > 128:
        number = code - 128
        found = _plain(_SIGNALS.get(number, killed), Confidence.GUESS, f"a process was ended by signal {number}")
    elif evidence.end is AttemptEnd.LOST:
        found = _plain(FailureClass.UNKNOWN, Confidence.GUESS, "no end was recorded, and the log shows no cause")
    elif code is not None:
        found = _plain(FailureClass.UNKNOWN, Confidence.GUESS, f"it ended with exit code {code}, without a known cause")
    else:
        found = _plain(FailureClass.UNKNOWN, Confidence.GUESS, "the log shows no cause that is known")
    hints = [
        one for one in reading.matches if one.rule.role is Role.CONFIRMATION and not _is_survived(one.index, reading)
    ]
    hint = min(hints, key=lambda one: one.rule.failure is not FailureClass.HOST_OOM, default=None)
    if hint is not None and found.failure in (killed, FailureClass.UNKNOWN) and hint.rule.failure not in _VAGUE:
        found = replace(found, failure=hint.rule.failure, fingerprint=str(hint.rule.failure))
    found = _with_quotes(found, reading, found.failure)
    return found if rank is None and not host else replace(found, rank=rank, host=host)


def _with_quotes(found: Failure, reading: _Reading, failure: FailureClass) -> Failure:
    same = next((one for one in reading.matches if one.rule.failure is failure), None)
    if same is None:
        return found
    return replace(
        found, rank=same.rank, host=same.host, advice=same.rule.advice, quotes=_quotes(same.index, reading, failure)
    )


def _quotes(index: int, reading: _Reading, failure: FailureClass) -> tuple[Quote, ...]:
    """Return the deciding line, then further lines of the same class, then echoes."""
    by_index = {one.index: one for one in reading.matches}
    others = sorted(
        (one for one in reading.matches if one.index != index and one.rule.role is not Role.DIAGNOSTIC),
        key=lambda one: (one.rule.failure is not failure, one.rule.role is Role.CASCADE, one.index),
    )
    indexes = [index]
    texts = {_mask(reading.lines[index])}
    for one in others:
        masked = _mask(reading.lines[one.index])
        if masked not in texts and len(indexes) < MOST_QUOTES:
            texts.add(masked)
            indexes.append(one.index)
    return tuple(
        Quote(
            line=at + 1, text=_clean(reading.lines[at]), rank=split_rank(reading.lines[at])[0],
            rule=by_index[at].rule.name if at in by_index else "",
        )
        for at in indexes
    )  # fmt: skip


def _clean(line: str) -> str:
    from resilience.system.redaction import redact

    return cut(redact("".join(c if c.isprintable() else " " for c in line).strip()), 300)


def _mask(line: str) -> str:
    return cut(_MASKED.sub("N", _STAMP.sub("", split_rank(line)[1].strip())), 160)
