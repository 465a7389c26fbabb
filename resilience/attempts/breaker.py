"""Is another attempt worth its allocation? The circuit breaker of a run. Pure.

A restart heals some failures and repeats others. The breaker is *closed* while attempts make progress, *open* when
further ones would burn the allocation (queued jobs are to be held, not cancelled), and *half open* when one more is
worth trying. Progress is a new durable step: a step that is only in memory is lost with the attempt.

The budget of attempts in a row without progress is that of NVRx's restart agent (3 for general failures, at once for
failures of the program that recur; docs of nvidia-resiliency-ext), the back-off that of Kubernetes' CrashLoopBackOff
(10 s, doubled each time, at most 5 min).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from resilience.attempts.failure import Confidence, Failure, FailureClass
from resilience.attempts.ledger import LedgerRow, causes_of
from resilience.errors import HostlistError, SettingsError
from resilience.hostlist import expand
from resilience.messages import cut, plural, suggest
from resilience.runs.attempts import AttemptEnd
from resilience.settings.sections import ActSettings


class Treatment(StrEnum):
    """What a restart does for a class of failures."""

    END = "end"
    """There is nothing to restart."""
    NEUTRAL = "neutral"
    """Not the training's fault: neither a failure nor progress. A budget of its own."""
    HEALS = "heals"
    """May heal by itself: after the budget back off, one more at a time, ever later."""
    ELSEWHERE = "elsewhere"
    """As `heals`; and a host that two attempts name is excluded from the queued jobs."""
    SAVE_AND_STOP = "save_and_stop"
    """As `elsewhere`; and an attempt that shows it and still trains is asked to save and stop."""
    RETRY = "retry"
    """Worth the budget, and then a person."""
    TWICE = "twice"
    """Heals unless the same cause recurs at the same step."""
    FALL_BACK = "fall_back"
    """As `twice`; and the next attempt is offered to fall back to an older checkpoint, or to skip steps."""
    NEVER = "never"
    """No restart heals it."""


TREATMENTS: Mapping[FailureClass, Treatment] = {
    FailureClass.FINISHED: Treatment.END,
    FailureClass.STOPPED: Treatment.NEUTRAL,
    FailureClass.WALLTIME: Treatment.NEUTRAL,
    FailureClass.PREEMPTED: Treatment.NEUTRAL,
    FailureClass.CANCELLED: Treatment.NEUTRAL,
    FailureClass.NODE_FAILURE: Treatment.NEUTRAL,
    FailureClass.GPU_FAULT: Treatment.SAVE_AND_STOP,
    FailureClass.GPU_LINK: Treatment.ELSEWHERE,
    FailureClass.NETWORK: Treatment.HEALS,
    FailureClass.COLLECTIVE_TIMEOUT: Treatment.HEALS,
    FailureClass.RENDEZVOUS: Treatment.HEALS,
    FailureClass.PORT_IN_USE: Treatment.HEALS,
    FailureClass.IO_ERROR: Treatment.ELSEWHERE,
    FailureClass.STALE_HANDLE: Treatment.ELSEWHERE,
    FailureClass.KILLED: Treatment.RETRY,
    FailureClass.SEGFAULT: Treatment.RETRY,
    FailureClass.UNKNOWN: Treatment.RETRY,
    FailureClass.HOST_OOM: Treatment.TWICE,
    FailureClass.GPU_OOM: Treatment.TWICE,
    FailureClass.GPU_PROGRAM: Treatment.TWICE,
    FailureClass.SHARED_MEMORY: Treatment.TWICE,
    FailureClass.NAN_LOSS: Treatment.FALL_BACK,
    FailureClass.CHECKPOINT: Treatment.FALL_BACK,
    FailureClass.EXCEPTION: Treatment.TWICE,
    FailureClass.DISK_FULL: Treatment.NEVER,
    FailureClass.QUOTA: Treatment.NEVER,
    FailureClass.READ_ONLY: Treatment.NEVER,
    FailureClass.MISSING_MODULE: Treatment.NEVER,
    FailureClass.MISSING_FILE: Treatment.NEVER,
    FailureClass.MISSING_LIBRARY: Treatment.NEVER,
    FailureClass.LAUNCHER: Treatment.NEVER,
}

_DELIBERATE = {FailureClass.STOPPED, FailureClass.CANCELLED}
OF_A_HOST = {Treatment.ELSEWHERE, Treatment.SAVE_AND_STOP}
MAY_HEAL = {Treatment.HEALS, *OF_A_HOST}
_RECURS = {Treatment.TWICE, Treatment.FALL_BACK}
WITNESSES = 2
"""So many attempts make a bad host: a single one proves nothing."""
MOST_EXCLUDED = 3
"""If more hosts seem to be bad, the cause is another one."""
EXCLUDED_S = 86400.0
"""Older failures do not count against a host: nodes are repaired."""
SHORT_S = 300.0
"""Without a guard no step is known: an attempt that ended sooner than this counts as one without progress."""
BACKOFF_S, LONGEST_BACKOFF_S = 10.0, 300.0
"""Kubernetes, pod lifecycle, CrashLoopBackOff."""


class State(StrEnum):
    """State of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The breaker of a run, as its attempts say.

    Attributes:
        state: see State.
        reason: one sentence.
        burnt: attempts in a row that failed without progress.
        outside: attempts that were ended from outside since the last progress.
        culprit: the host that causes these failures, as far as the ledger tells; empty: none. See _culprit.
        elsewhere: hosts that queued jobs are to avoid, each with the reason. See _bad_hosts.
        retry_at: when an open breaker lets one attempt through; None: a person must close it.
    """

    state: State
    reason: str
    burnt: int = 0
    outside: int = 0
    culprit: str = ""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    retry_at: float | None = None


def looked_at(policy: ActSettings) -> int:
    """Return how many of the newest attempts are read: more than all budgets together."""
    return 40 + policy.failures + policy.half_open + policy.neutral


def decide(attempts: Sequence[LedgerRow], policy: ActSettings, now: float, *, closed_after: int = 0) -> Breaker:
    """Return whether a further attempt may train.

    An attempt whose end is unknown never opens the breaker. Raise SettingsError for treatments that do not exist.

    Args:
        attempts: of the run, oldest first.
        closed_after: a person closed the breaker after this attempt, which counts no more, nor do earlier ones.
    """
    check_treatments(policy.treatments)
    ended = [one for one in attempts if one.failure is not None and one.attempt > closed_after]
    if not ended:
        text = " since the breaker was closed" if closed_after else " yet, as far as resil has records of them"
        return Breaker(state=State.CLOSED, reason=f"no attempt has ended{text}")
    last = ended[-1]
    if treatment_of(last, policy) is Treatment.END:
        return Breaker(state=State.CLOSED, reason="the last attempt finished")
    progressed = with_progress(attempts)
    since = [one for one in ended if one.attempt > max(progressed, default=0)]
    failures = [one for one in since if treatment_of(one, policy) is not Treatment.NEUTRAL]
    recent = [one for one in ended if now - (one.end_time or 0) < EXCLUDED_S and not one.injected]
    elsewhere = _bad_hosts(recent, [one for one in attempts if one.attempt in progressed], policy)
    outside = [
        one for one in since if treatment_of(one, policy) is Treatment.NEUTRAL and _class(one) not in _DELIBERATE
    ]
    found = Breaker(
        state=State.CLOSED,
        reason="the last attempts made progress, or were ended from outside",
        burnt=len(failures),
        outside=len(outside),
        culprit=_culprit(
            [one for one in failures if not one.injected], [one for one in ended if not one.injected], policy
        ),
        elsewhere=elsewhere,
    )
    if policy.neutral and len(outside) >= policy.neutral:
        is_short = {_class(one) for one in outside} == {FailureClass.WALLTIME}
        how = "reached their time limit" if is_short else "ended from outside"
        advice = ": save more often, or ask for more time" if is_short else ""
        text = f"{plural(len(outside), 'attempt')} in a row {how} before a new checkpoint{advice}"
        return replace(found, state=State.OPEN, reason=text)
    why, may_heal = _why_open(failures, ended[-len(since) - 1 :], elsewhere, policy) if failures else ("", False)
    if why:
        return _open(replace(found, reason=why), failures[-1].end_time if may_heal else None, policy, now)
    if failures:
        text = f"{plural(len(failures), 'attempt')} of {policy.failures} without progress: {_named(failures[-1])}"
        return replace(found, reason=text)
    return found


def with_decisions(
    attempts: Sequence[LedgerRow], policy: ActSettings, now: float, *, closings: Sequence[int] = ()
) -> tuple[LedgerRow, ...]:
    """Return attempts with what was decided after each, as far as its own ledger told when the next one began.

    `closings`: the attempts after which a person closed the breaker.
    """
    found = []
    for index, one in enumerate(attempts):
        if one.failure is not None and treatment_of(one, policy) is not Treatment.END:
            known = attempts[max(0, index + 1 - looked_at(policy)) : index + 1]
            at = attempts[index + 1].start_time if index + 1 < len(attempts) else now
            closed = max((number for number in closings if number < one.attempt), default=0)
            one = replace(one, decided=_decided(one, decide(known, policy, at, closed_after=closed), policy))
        found.append(one)
    return tuple(found)


def _decided(row: LedgerRow, breaker: Breaker, policy: ActSettings) -> str:
    would = "" if policy.enabled else "would "
    if breaker.state is State.OPEN:
        return f"{would}hold" if breaker.retry_at is None else f"{would}back off"
    without = f" without {', '.join(sorted(breaker.elsewhere))}" if breaker.elsewhere else ""
    is_closed = breaker.state is State.CLOSED
    text = "go on" if is_closed and not without else f"{would}{'go on' if is_closed else 'let one try'}{without}"
    if treatment_of(row, policy) is Treatment.FALL_BACK:
        is_offered = policy.enabled or (row.failure is not None and row.failure.step is not None)
        text += f", {'' if is_offered else 'would '}offer to fall back"
    return text


def check_treatments(given: Mapping[str, str]) -> None:
    """Raise SettingsError for a class or a treatment that does not exist."""
    settable = sorted(set(Treatment) - {Treatment.END})
    for name, value in given.items():
        for word, known in ((name, sorted(set(FailureClass) - {FailureClass.FINISHED})), (value, settable)):
            if word not in known:
                text = f"{name} = {value!r} under treatments of [act]: there is no {word!r}"
                raise SettingsError(text, hint=suggest(word, known))


def treatment_of(row: LedgerRow, policy: ActSettings) -> Treatment:
    """Return what a restart does for this failure; a mere guess never counts as hopeless."""
    assert row.failure is not None
    if row.end in (AttemptEnd.TERMINATED, AttemptEnd.SUPERSEDED):
        return Treatment.NEUTRAL  # the batch shell knows that it was ended from outside; the log shows echoes
    if row.end is AttemptEnd.LOST and row.failure.failure in (FailureClass.UNKNOWN, FailureClass.KILLED):
        return Treatment.NEUTRAL
    found = treatment_of_class(row.failure.failure, policy)
    if found in {Treatment.NEVER, *_RECURS} and row.failure.confidence is Confidence.GUESS:
        return Treatment.RETRY
    return found


def treatment_of_class(name: FailureClass, policy: ActSettings) -> Treatment:
    """Return the treatment of a class: as set, else the default."""
    return Treatment(policy.treatments[name]) if name in policy.treatments else TREATMENTS[name]


def with_progress(attempts: Sequence[LedgerRow]) -> set[int]:
    """Return the numbers of the attempts that made progress."""
    best: int | None = None
    found = set()
    for one in attempts:
        if _makes_progress(one, best):
            found.add(one.attempt)
        if one.durable_step is not None:
            best = one.durable_step if best is None else max(best, one.durable_step)
    return found


def _makes_progress(one: LedgerRow, best: int | None) -> bool:
    is_finished = one.failure is not None and _class(one) is FailureClass.FINISHED
    if is_finished or (one.end is AttemptEnd.EXITED and one.exit_code == 0):
        return True
    if one.durable_step is not None:
        return best is None or one.durable_step > best
    if best is None and one.first_step is None and one.last_step is None:  # no guard: only the time tells
        launched, ended = one.launch_time, one.end_time
        return launched is not None and ended is not None and ended - launched >= SHORT_S
    return False


def _why_open(
    failures: Sequence[LedgerRow], recent: Sequence[LedgerRow], elsewhere: Collection[str], policy: ActSettings
) -> tuple[str, bool]:
    """Return why to open, empty for no reason, and whether a further attempt may heal it: if one of the causes may, or
    the next attempt avoids the host of the last.

    `recent`: the attempts since the last progress, and the one that made it, which may have failed at the same step.
    """
    last, how = failures[-1], [treatment_of(one, policy) for one in failures]
    if not policy.failures:
        return "", False
    if how[-1] is Treatment.NEVER:
        return f"no restart heals it: {_named(last)}", False
    is_again = any(_is_same(one, last) for one in recent if one is not last)
    if how[-1] in _RECURS and is_again:
        return f"the same cause twice at the same step: {_named(last)}", False
    if len(failures) >= policy.failures:
        text = f"{plural(len(failures), 'attempt')} in a row without a new checkpoint, the last: {_named(last)}"
        avoids = how[-1] is Treatment.RETRY and not nodes_of(last).isdisjoint(elsewhere)
        return text, avoids or not MAY_HEAL.isdisjoint(how)
    return "", False


def _is_same(one: LedgerRow, other: LedgerRow) -> bool:
    first, second = one.failure, other.failure
    assert first is not None and second is not None
    is_same_step = one.last_step is not None and one.last_step == other.last_step
    return is_same_step and first.fingerprint == second.fingerprint


def _open(found: Breaker, failed_at: float | None, policy: ActSettings, now: float) -> Breaker:
    """Return an open breaker, or a half-open one once the back-off is over. `failed_at`: None for what cannot heal."""
    tried = found.burnt - policy.failures
    if failed_at is None or tried >= policy.half_open:
        return replace(found, state=State.OPEN)
    retry_at = failed_at + min(LONGEST_BACKOFF_S, BACKOFF_S * 2**tried)
    state = State.HALF_OPEN if now >= retry_at else State.OPEN
    hint = f"; it may heal on other nodes than {found.culprit}" if found.culprit else ""
    return replace(found, state=state, reason=found.reason + hint, retry_at=retry_at)


def _bad_hosts(ended: Sequence[LedgerRow], progressed: Sequence[LedgerRow], policy: ActSettings) -> Mapping[str, str]:
    """Return the hosts that queued jobs are to avoid, each with the reason: those that two attempts name for the same
    cause of a host, and those on which all attempts failed that ran there alone, while others made progress.

    None if there are many: then it is not the hosts. A program that fails at the same step is no fault of a host.

    Args:
        ended: those that count.
        progressed: those that made progress.
    """
    fine = {host for one in progressed for host in nodes_of(one)}
    named: Counter[tuple[str, str]] = Counter()
    failed: Counter[str] = Counter()
    for one in ended:
        treatment, nodes = treatment_of(one, policy), nodes_of(one)
        if treatment in OF_A_HOST and one.failure is not None and one.failure.confidence is not Confidence.GUESS:
            named.update((one.failure.failure.text, host) for host in hosts_of(one))
        if treatment in {Treatment.RETRY, *MAY_HEAL} and len(nodes) == 1:
            failed.update(nodes)
    found = {}
    for host, times in failed.items():
        if times >= WITNESSES and fine and host not in fine:
            found[host] = f"all {times} attempts there failed, while others made progress"
    for (cause, host), times in named.items():
        if times >= WITNESSES:
            found[host] = f"{times} attempts ended by {cause} there"
    return found if policy.failures and len(found) <= MOST_EXCLUDED else {}


def host_at_fault(failure: Failure, policy: ActSettings) -> str:
    """Return the host that a failure names as its cause; empty: none. Pure.

    A single failure proves nothing: enough to use another node where one is idle, not to exclude the host.
    """
    is_certain = failure.confidence is not Confidence.GUESS
    is_of_a_host = treatment_of_class(failure.failure, policy) in OF_A_HOST
    return failure.host if is_certain and is_of_a_host else ""


def node_of_host(host: str, nodes: Collection[str]) -> tuple[str, ...]:
    """Return the node that has this host name: one or none. Either may have a domain that the other has not."""
    if host in nodes:
        return (host,)
    short = [node for node in nodes if host and node.partition(".")[0] == host.partition(".")[0]]
    return (short[0],) if len(short) == 1 else ()


def nodes_of(row: LedgerRow) -> frozenset[str]:
    """Return the nodes of an attempt; none if they are unknown."""
    return _expanded(row.nodes)


def hosts_of(row: LedgerRow) -> frozenset[str]:
    """Return the node that its failure names, or the only one it had; none if that is unknown."""
    nodes, failure = nodes_of(row), row.failure
    named = frozenset(node_of_host(failure.host, nodes)) if failure is not None else frozenset()
    return named or (nodes if len(nodes) == 1 else frozenset())


@lru_cache(maxsize=256)
def _expanded(nodes: str) -> frozenset[str]:
    """Of thousands of nodes this takes a millisecond, and a decision needs it for each attempt several times."""
    with suppress(HostlistError):
        return frozenset(expand(nodes))
    return frozenset()


def _culprit(failures: Sequence[LedgerRow], ended: Sequence[LedgerRow], policy: ActSettings) -> str:
    """Return the host that all of several failures name, or on which each of them ran alone while others made progress;
    else the one that the same cause names as often as the budget of failures allows, whatever progress came between."""
    named = {one.failure.host for one in failures if one.failure is not None}
    if len(failures) > 1 and len(named) == 1 and "" not in named:
        return named.pop()
    alone = {one.host if one.nodes in ("", one.host) else "" for one in failures}
    others = any(one.durable_step is not None and one.host not in alone for one in ended)
    if len(failures) > 1 and len(alone) == 1 and "" not in alone and others:
        return alone.pop()
    counts = {(host, number) for one in causes_of(ended) for host, number in one.hosts.items()}
    host, number = max(counts, key=lambda one: one[1], default=("", 0))
    return host if number >= policy.failures > 0 else ""


def _class(row: LedgerRow) -> FailureClass:
    assert row.failure is not None
    return row.failure.failure


def _named(row: LedgerRow) -> str:
    assert row.failure is not None
    on_purpose = f" (injected on purpose: {cut('; '.join(row.injected), 120)})" if row.injected else ""
    return f"{row.failure.failure.text} (attempt {row.attempt}): {cut(row.failure.reason, 200)}{on_purpose}"
