"""Why did an attempt end? Pure: the evidence was gathered by others.

The order of belief: what the batch shell and the guards recorded as deliberate; what the scheduler and the kernel say;
the earliest line that may be a cause and that the training did not survive; an exception of the user's code; echoes of
other ranks; the exit code. A line that was followed by further steps is not the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from signal import SIGKILL, SIGTERM

from resilience.attempts.failure import Confidence, Failure, FailureClass, Quote, RankError, Role
from resilience.attempts.log_reading import SURVIVED_STEPS, LogReading, Match, is_error, read_log
from resilience.attempts.rules import all_rules
from resilience.attempts.traceback_blocks import Traceback, split_rank
from resilience.job import JobState
from resilience.messages import cut
from resilience.runs.attempts import AttemptEnd

MOST_QUOTES = 6
LAST_LINES = 3
LAST_WORDS = 60
"""So many lines at the end of a failed log are searched for words of a class, whatever their level."""
OOM_ADVICE = "request more memory (--mem), or fewer DataLoader workers"
CHECK_FAILED = "the check before the start failed"
"""Begins the reason of an attempt that ended before its launch, because of a node (cli/preflight.py)."""
ASKED_FOR = "the watchdog asked because of "
"""Begins the reason of a stop that a watchdog requested for a class of failures (acting.py)."""
_ASKED_FOR = re.compile(rf"\b{ASKED_FOR}(\w+): ")
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
    2: FailureClass.CANCELLED,
    4: FailureClass.SEGFAULT, 6: FailureClass.SEGFAULT, 7: FailureClass.SHARED_MEMORY, 8: FailureClass.SEGFAULT,
    11: FailureClass.SEGFAULT,
}  # fmt: skip
"""SIGINT, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV (signal(7))."""
_CRASHES = {4, 7, 8, 9, 11}
_LEFT = re.compile(
    r"resil: warning: rank (?P<rank>\d+) left at step \d+: (?P<type>[A-Za-z_][\w.]*)\((?P<message>.*)\)$"
)
_NO_CAUSES = {"SystemExit", "KeyboardInterrupt", "GeneratorExit", "AgreementLost"}
"""Exceptions with which a rank leaves that was told to, or whose peers are gone."""
_ECHOED = {FailureClass.NETWORK, FailureClass.COLLECTIVE_TIMEOUT}
_VAGUE = {FailureClass.EXCEPTION, FailureClass.UNKNOWN}
_LAUNCHER = re.compile(r"srun: (?:launch/slurm: |Force Terminated )")
CORRUPTION_ADVICE = "resume from a checkpoint of before, on other nodes: see `resil nodes`"
_FROM_OUTSIDE = {FailureClass.WALLTIME, FailureClass.PREEMPTED, FailureClass.NODE_FAILURE, FailureClass.CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of the end of an attempt; each part may be missing.

    Attributes:
        end: what the batch shell recorded.
        exit_code: of the launch: 128 + signal if a signal ended it.
        state: final state of the job, as the scheduler or its accounting has it.
        state_text: that state as printed: `CANCELLED by 1000`.
        oom_kills: how many processes of the job the kernel killed for memory, as counted by its cgroup.
        memory_why: reason of the guards for a request because host memory was nearly used up; empty: there was none.
        stopped_why: reason of a deliberate stop, by the guards.
        ruined_why, ruined_step: reason and step of a stop by the guards because the state of the training was ruined.
        is_corrupted: whether the hardware has ruined it: silent data corruption, which no batch causes.
        elastic: exception of the first failing rank, from torchelastic's error file.
        hang_why: why its ranks hung, if a watchdog ended it because of that; `hang_rank` and `hang_host` are the odd
            rank.
        checked_why: which nodes failed the check before the launch, if it ended because of that.
        is_restarted: whether SLURM has started the job again.
        log: end of the log.
    """

    end: AttemptEnd | None = None
    exit_code: int | None = None
    state: JobState | None = None
    state_text: str = ""
    oom_kills: int = 0
    memory_why: str = ""
    stopped_why: str = ""
    ruined_why: str = ""
    ruined_step: int | None = None
    is_corrupted: bool = False
    elastic: RankError | None = None
    hang_why: str = ""
    hang_rank: int | None = None
    hang_host: str = ""
    checked_why: str = ""
    is_restarted: bool = False
    log: str = ""


_Cause = tuple[int, int, Match | Traceback]
"""Its first and its last line."""


def classify(evidence: Evidence) -> Failure:
    """Return why an attempt ended. Never raises for any evidence.

    Raise SettingsError only if the rules of a plugin directory are invalid.
    """
    if evidence.end is AttemptEnd.FINISHED:
        return _plain(FailureClass.FINISHED, Confidence.CERTAIN, "the training wrote that it is complete")
    if evidence.ruined_why:
        return _of_ruin(evidence)
    if evidence.hang_why:
        why = f"a watchdog ended it because it hung: {evidence.hang_why}"
        hung = _plain(FailureClass.COLLECTIVE_TIMEOUT, Confidence.CERTAIN, why)
        return replace(hung, rank=evidence.hang_rank, host=evidence.hang_host)
    if evidence.checked_why:  # of no class: another node heals it, and it counts as any failure
        return _plain(FailureClass.UNKNOWN, Confidence.CERTAIN, evidence.checked_why)
    reading = read_log(evidence.log)
    decided = next((one for one in reading.matches if one.rule.decides), None)
    if evidence.end is AttemptEnd.STOPPED and (decided is None or decided.rule.failure in _FROM_OUTSIDE):
        why = evidence.stopped_why or "the guards stopped it"
        asked = _ASKED_FOR.search(why)
        failure = FailureClass(asked[1]) if asked and asked[1] in set(FailureClass) else FailureClass.STOPPED
        return _plain(failure, Confidence.CERTAIN, f"stopped on purpose: {why}")
    by_state = _STATES.get(evidence.state) if evidence.state is not None else None
    if by_state is not None:
        said = evidence.state_text or str(evidence.state)
        return _with_quotes(_plain(by_state, Confidence.CERTAIN, f"the scheduler ended it: {said}"), reading)
    if evidence.oom_kills and decided is None and (found := _of_oom_kills(evidence, reading)) is not None:
        return found
    if decided is not None:
        return _of_match(decided, reading, Confidence.CERTAIN)
    if evidence.elastic is not None:
        found = _of_elastic(evidence.elastic, reading)
        if found.confidence is not Confidence.GUESS:
            return found
        return _of_log(reading) or found  # that rank only reported another's failure
    found = _of_log(reading)
    if evidence.end is AttemptEnd.LOST and found is not None and _is_echo(found):
        found = None  # with the node went its ranks, which the others report
    return found or _of_exit_code(evidence, reading)


def _is_echo(found: Failure) -> bool:
    """Return whether only ranks that are left without a peer have said so."""
    return found.confidence is Confidence.GUESS and found.failure in _ECHOED


def sign_of_bad_node(log: str) -> tuple[FailureClass, str] | None:
    """Return the newest line of a log after which the node is to be reported, as its rule advises, with the class;
    whether or not the training has gone on since. None if there is none."""
    reading = read_log(log)
    signs = [one for one in reading.matches if one.rule.role is Role.ROOT and "report the node" in one.rule.advice]
    return (signs[-1].rule.failure, split_rank(reading.lines[signs[-1].index])[1].strip()) if signs else None


def _of_oom_kills(evidence: Evidence, reading: LogReading) -> Failure | None:
    """Return the failure that the kernel's count shows: an exception may follow the death of a child. None if the log
    shows another cause, such as a full disk: a helper that was killed, and replaced, ends nothing."""
    cause = _of_log(reading)
    signals = (128 - (evidence.exit_code or 0), -reading.child_signal(), reading.culprit[2])
    is_sure = cause is None or cause.confidence is Confidence.GUESS or -SIGKILL in signals
    if not is_sure and cause is not None and cause.failure not in _VAGUE:
        return None
    said = f"the kernel killed {evidence.oom_kills} of its processes for memory, says the job's cgroup"
    found = _plain(FailureClass.HOST_OOM, Confidence.CERTAIN if is_sure else Confidence.LIKELY, said)
    return _with_quotes(replace(found, advice=OOM_ADVICE), reading)


def _of_ruin(evidence: Evidence) -> Failure:
    """Return the failure that the guards have recorded, with the advice of the rules for its class. Silent corruption
    is of no class: another node heals it, and the evidence against nodes is kept apart."""
    if evidence.is_corrupted:
        said = f"the guards stopped it for silent data corruption: {evidence.ruined_why}"
        found = _plain(FailureClass.UNKNOWN, Confidence.CERTAIN, said)
        return replace(found, step=evidence.ruined_step, advice=CORRUPTION_ADVICE)
    found = _plain(FailureClass.NAN_LOSS, Confidence.CERTAIN, f"the guards stopped it: {evidence.ruined_why}")
    advice = next((rule.advice for rule in all_rules() if rule.failure is FailureClass.NAN_LOSS and rule.advice), "")
    return replace(found, step=evidence.ruined_step, advice=advice)


# ---- the log ---------------------------------------------------------------------------------------------------


def _of_log(reading: LogReading) -> Failure | None:
    """Return the failure that the log shows, or None: the first cause after which the program did not go on, else the
    last one."""
    causes, flushed = _causes(reading)
    for _, end, cause in causes:
        if not reading.went_on(end, cause.rank):
            return _of_cause(cause, reading, Confidence.LIKELY)
    for _, _, cause in (causes or flushed)[-1:]:
        return _of_cause(cause, reading, Confidence.GUESS)
    for block in _told_by_guards(reading):
        return replace(_of_traceback(block, reading), confidence=Confidence.LIKELY)
    if (reading.culprit[2] or 0) < 0 or reading.child_signal() in _CRASHES:
        return None  # the others report that this one was killed
    echoes = [
        one for one in reading.matches
        if one.rule.role is Role.CASCADE and not reading.is_survived(one.index, one.rank)
    ]  # fmt: skip
    exited = any(one.rule.role is Role.CONFIRMATION and one.rule.failure in _VAGUE for one in reading.matches)
    named = [
        one for one in echoes
        if one.rule.failure not in _VAGUE and not (exited and one.rule.failure is FailureClass.CANCELLED)
    ]  # fmt: skip
    if named:
        return _of_match(named[0], reading, Confidence.GUESS)
    return None


def _of_last_words(reading: LogReading) -> Failure | None:
    """Return the failure that the first of the last lines may name, of whatever level: those that no step follows, and
    after which the program did not go on. If no word of a class is in them, an error line counts as an exception."""
    step = next((one for one in reversed(reading.steps) if reading.first_like[one] < one), -1)  # one that came before
    begin = max(step + 1, len(reading.lines) - LAST_WORDS)
    known = {one.index for one in reading.matches}
    errors = []
    for index in range(begin, len(reading.lines)):
        line = reading.lines[index]
        if (
            index in known
            or _LAUNCHER.match(line)
            or reading.first_like[index] < begin
            or reading.went_on(index, split_rank(line)[0])
        ):
            continue
        for one in reading.named(index):
            return _of_match(one, reading, Confidence.GUESS)
        if is_error(line):
            errors.append(index)
    if not errors:
        return None
    rank, said = split_rank(reading.lines[errors[0]])
    said = cut(said.strip(), 200)
    found = _plain(FailureClass.EXCEPTION, Confidence.GUESS, f"its last words are: {said}")
    quotes = _quotes(errors[0], reading, FailureClass.EXCEPTION)
    return replace(found, fingerprint=f"exception: {_mask(said)}", rank=rank, quotes=quotes)


def _causes(reading: LogReading) -> tuple[list[_Cause], list[_Cause]]:
    """Return what may be the cause, first lines first, and the tracebacks that steps follow but may not have survived:
    their process may have written them late."""
    explained = {
        one.index for one in reading.matches
        if one.rule.role is not Role.DIAGNOSTIC and not reading.lines[one.index].startswith("resil: ")
    }  # fmt: skip
    inside = {index: block for block in reading.blocks for index in range(block.begin, block.chain_end + 1)}
    found: list[_Cause] = []
    flushed: list[_Cause] = []
    for one in reading.matches:
        around = inside.get(one.index)
        if one.rule.role is Role.ROOT:
            begin = around.begin if around is not None else one.index
            if _counts(one, reading):
                found.append((begin, one.index, one))
            elif around is not None and reading.may_be_flushed(one.index):
                flushed.append((begin, one.index, one))
    for block in reading.blocks:
        if explained.isdisjoint(range(block.begin, block.chain_end + 1)):
            if not reading.is_survived(block.chain_end, block.rank):
                found.append((block.begin, block.chain_end, block))
            elif reading.may_be_flushed(block.chain_end):
                flushed.append((block.begin, block.chain_end, block))
    return sorted(found, key=_by_first_line), sorted(flushed, key=_by_first_line)


def _told_by_guards(reading: LogReading) -> Iterator[Traceback]:
    """Yield the exceptions with which ranks left, as their guards said, where no rule explains them: the tracebacks of
    ranks that end at once may be written into each other."""
    known = {one.index for one in reading.matches}
    for index, line in enumerate(reading.lines):
        left = _LEFT.match(line) if line.startswith("resil: ") else None
        if left is not None and index not in known and left["type"] not in _NO_CAUSES:
            kind, message = left["type"], left["message"].strip("'\"")
            if kind == "sys.exit":
                kind, message = f"{kind}({message})", ""
            yield Traceback(index, index, kind, message, "", False, int(left["rank"]), index)


def _by_first_line(cause: _Cause) -> tuple[int, bool]:
    return cause[0], isinstance(cause[2], Traceback)


def _of_cause(cause: Match | Traceback, reading: LogReading, confidence: Confidence) -> Failure:
    if isinstance(cause, Traceback):
        return replace(_of_traceback(cause, reading), confidence=confidence)
    if cause.rule.broad:
        confidence = Confidence.GUESS
    return _of_match(cause, reading, confidence)


def _counts(one: Match, reading: LogReading) -> bool:
    if one.rule.failure is FailureClass.NAN_LOSS:  # a training goes on with NaN: the last steps show it, or do not
        last = reading.steps[-SURVIVED_STEPS:]
        if one.index in set(reading.steps):
            return one.index >= last[0] or sum(one.rule.match(reading.lines[step]) is not None for step in last) > 1
    return not reading.is_survived(one.index, one.rank)


# ---- results -----------------------------------------------------------------------------------------------------


def _plain(failure: FailureClass, confidence: Confidence, reason: str) -> Failure:
    return Failure(failure=failure, confidence=confidence, reason=reason, fingerprint=str(failure))


def _of_match(one: Match, reading: LogReading, confidence: Confidence) -> Failure:
    line = split_rank(reading.lines[one.index])[1].strip()
    block = next((block for block in reading.blocks if block.begin <= one.index <= block.end), None)
    where = f"{block.frame}: " if block is not None and block.is_own else ""
    is_echo = one.rule.role is Role.CASCADE and "rank" not in one.rule.pattern.groupindex
    rank, host = _culprit(None, "", reading) if is_echo else _culprit(one.rank, one.host, reading)
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


def _culprit(rank: int | None, host: str, reading: LogReading) -> tuple[int | None, str]:
    """Return the first failing rank and its host: of the line itself, else as torchelastic or srun names them."""
    elastic_rank, elastic_host, _ = reading.culprit
    rank = elastic_rank if rank is None else rank
    if not host and rank == elastic_rank:
        host = elastic_host
    named = [one for one in reading.matches if one.host]
    same = next((one for one in named if one.rank == rank), None)
    return rank, host or (same.host if same is not None else "")


def _of_traceback(block: Traceback, reading: LogReading) -> Failure:
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


def _of_elastic(error: RankError, log: LogReading) -> Failure:
    own = read_log(error.text)
    found = _of_log(own)
    if found is None:
        last = next((line for line in reversed(own.lines) if line.strip()), "")
        found = Failure(
            failure=FailureClass.EXCEPTION, confidence=Confidence.LIKELY,
            reason=f"the first failing rank says: {cut(last.strip(), 200)}", fingerprint=f"exception: {_mask(last)}",
        )  # fmt: skip
    rank, host, _ = log.culprit
    return replace(
        found,
        rank=error.rank if error.rank is not None else rank,
        host=error.host or found.host or host,
    )


def _of_exit_code(evidence: Evidence, reading: LogReading) -> Failure:
    """Return the failure that only the exit code shows; 137 alone is no proof of a lack of memory."""
    rank, host, child = reading.culprit
    code = evidence.exit_code
    signal = reading.child_signal() if child is None or child >= 0 else -child
    if signal and (code is None or not 128 < code <= 192):
        code = 128 + signal
    exited = child is not None and child > 0 and not signal
    if exited and code in (None, 128 + SIGKILL, 128 + SIGTERM):
        code = child  # the others were ended by the launcher
    killed = FailureClass.KILLED
    if code == 0:
        found = _plain(FailureClass.FINISHED, Confidence.GUESS, "the program ended with exit code 0")
    elif code is not None and 128 < code <= 192:
        number = code - 128
        found = _plain(_SIGNALS.get(number, killed), Confidence.GUESS, f"a process was ended by signal {number}")
    elif evidence.end is AttemptEnd.LOST and evidence.is_restarted:
        reason = "SLURM started the job again although this start recorded no end, as after a lost node"
        found = _plain(FailureClass.NODE_FAILURE, Confidence.LIKELY, reason)
    elif evidence.end is AttemptEnd.LOST:
        found = _plain(FailureClass.UNKNOWN, Confidence.GUESS, "no end was recorded, and the log shows no cause")
    elif code is not None:
        found = _plain(FailureClass.UNKNOWN, Confidence.GUESS, f"it ended with exit code {code}, without a known cause")
    else:
        steps = "ends with steps, and " if reading.steps and reading.steps[-1] >= len(reading.lines) - 3 else ""
        found = _plain(FailureClass.UNKNOWN, Confidence.GUESS, f"the log {steps}shows no cause that is known")
    if code == 128 + SIGKILL and evidence.memory_why:
        said = f"a process was ended by signal 9: {evidence.memory_why}"
        return replace(_plain(FailureClass.HOST_OOM, Confidence.LIKELY, said), advice=OOM_ADVICE)
    hints = [
        one
        for one in reading.matches
        if one.rule.role is Role.CONFIRMATION and not reading.is_survived(one.index, one.rank)
    ]
    hint = min(hints, key=lambda one: one.rule.failure is not FailureClass.HOST_OOM, default=None)
    if (
        hint is not None
        and not exited
        and found.failure in (killed, FailureClass.UNKNOWN)
        and hint.rule.failure not in _VAGUE
    ):
        found = replace(found, failure=hint.rule.failure, fingerprint=str(hint.rule.failure))
    has_failed = code is not None or any(one.rule.failure in _VAGUE for one in reading.matches)
    if found.failure is FailureClass.UNKNOWN and has_failed and (named := _of_last_words(reading)) is not None:
        return named
    found = _with_quotes(found, reading)
    if not found.quotes and found.failure is not FailureClass.FINISHED:
        found = replace(found, quotes=_last_lines(reading))
    return found if rank is None and not host else replace(found, rank=rank, host=host)


def _with_quotes(found: Failure, reading: LogReading) -> Failure:
    same = next((one for one in reading.matches if one.rule.failure is found.failure), None)
    if same is None:
        return found
    quotes = _quotes(same.index, reading, found.failure)
    return replace(found, rank=same.rank, host=same.host, advice=same.rule.advice, quotes=quotes)


def _last_lines(reading: LogReading) -> tuple[Quote, ...]:
    """Return where the log ends, for a person who looks for a cause that no rule knows."""
    lines = reading.lines
    last = [
        at
        for at in range(max(0, len(lines) - 100), len(lines))
        if lines[at].strip() and not lines[at].startswith("resil:")
    ]
    return tuple(Quote(line=at + 1, text=_clean(reading.lines[at])) for at in last[-LAST_LINES:])


def _quotes(index: int, reading: LogReading, failure: FailureClass) -> tuple[Quote, ...]:
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
