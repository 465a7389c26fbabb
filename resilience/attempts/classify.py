"""Why did an attempt end? Pure: the evidence was gathered by others.

The order of belief: what the batch shell and the guards recorded as deliberate; what the scheduler and the kernel say;
the earliest line that may be a cause and that the training did not survive; an exception of the user's code; echoes of
other ranks; the exit code. A line that was followed by further steps is not the cause.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from io import DEFAULT_BUFFER_SIZE
from itertools import accumulate
from signal import SIGKILL, SIGTERM, Signals

from resilience.attempts.failure import Confidence, Failure, FailureClass, Quote, RankError, Role
from resilience.attempts.rules import Rule, all_rules
from resilience.attempts.traceback_blocks import Traceback, split_rank, tracebacks
from resilience.job import JobState
from resilience.messages import cut
from resilience.runs.attempts import AttemptEnd

MOST_QUOTES = 6
LAST_LINES = 3
LAST_WORDS = 60
"""So many lines at the end of a failed log are searched for words of a class, whatever their level."""
SURVIVED_STEPS = 3
"""A line was survived if the log shows this many different steps after it."""
OOM_ADVICE = "request more memory (--mem), or fewer DataLoader workers"
_QUOTES = ("resil: the breaker ", "resil: an earlier attempt was stopped", "resil: nodes: ")
"""In lines of the batch shell and of the guard that quote the cause of an earlier attempt, or what is wrong with a
node: a disk that is full on one node is no reason to hold the jobs that run elsewhere."""
CHECK_FAILED = "the check before the start failed"
"""Begins the reason of an attempt that ended before its launch, because of a node (cli/preflight.py)."""
ASKED_FOR = "the watchdog asked because of "
"""Begins the reason of a stop that a watchdog requested for a class of failures (acting.py)."""
_ASKED_FOR = re.compile(rf"\b{ASKED_FOR}(\w+): ")
_MOST_IN_GROUP = 8
"""Of lines that differ only in numbers so many are matched: the first and the last ones."""
_MOST_LINE = 4000
"""Longer lines are cut: a progress bar may write one line of gigabytes."""
_MASK = bytes.maketrans(b"123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"000000000abcdefghijklmnopqrstuvwxyz")
"""Digits become 0 and letters small: lines that differ only in numbers are searched once."""
_LETTERS = bytes(byte if 97 <= byte <= 122 else 32 for byte in range(256))
"""All but small letters becomes a space."""
_WORD = re.compile(r"[a-z]+")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(
    r"\b(?:global_?step|step|iter|iteration|batch|epoch)\b\W{0,4}(\d+)|\b(\d+)(?:/\d+)? ?\[|\| *(\d+)/\d+"
)
_STEP_WORDS = ("step", "iter", "batch", "epoch", "it/s", "s/it")
_QUOTED_HEAD = "(most recent call last):\\n"
_QUOTED = re.compile(r'Traceback \(most recent call last\):\\n(?:[^"\\\n]|\\.)*')
_JSON_RANK = re.compile(r'"(?:global_)?rank": ?(\d{1,6})\b')
_ELASTIC = "Root Cause (first observed failure):"
_ELASTIC_FIELD = re.compile(r"^\s*(host|rank|exitcode)\s*:\s*(\S+)")
_MASKED = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?|'[^']{40,}'")
_MILD_WORDS = (
    r"retry(?:ing)?(?! (?:count )?(?:exceeded|failed))|retries|fall(?:ing|s)? back|from scratch|skip(?:ping|ped)?"
    r"|ignor(?:ed|ing)|trying (?:again|another|the next)|using \S+ instead|is set to|handled|resum(?:ing|ed) after"
    r"|(?:previous|last) attempt|restarting|optional|may happen|to avoid|potentially|will be (?:created|built)|building"
    r"|disabled(?! between)|continu(?:e|ing|es)|tolerated|healthy|never|is empty"
)
_MILD = re.compile(
    rf"(?i:\b(?:{_MILD_WORDS})\b|(?:^|[\]:|] ?)\W*if you )"
    r"|(?i:\b(?:no|0) (?:\w+ ){0,3}(?:errors?|failures?|problems?|events?|corruption)\b)"
    r"|(?i:\b(?:errors?|failures?|events?|count\w*)\b\W{0,3}0\b)"
    r"|\bINFO\b|(?i:\binfo[:\]])|\bDEBUG\b|\bdebug\]|(?i:(?:User|Future|Deprecation)Warning\b|^\W*WARN(?:ING)?\b)"
    r"|(?i:[\[|(:] ?WARN(?:ING)?\b ?[\]|):])|^\[?[IWiw]\d{4} \d"
)
"""Lines with a mild level, and those that say how the program went on; torch, glog and NCCL write levels so."""
_ERROR_LINE = re.compile(
    r"NCCL WARN|(?i:\b(?:exiting|aborting|terminating|giving up|stopping training))\b"
    r"|(?:^|[\s\[:|])(?:ERROR|CRITICAL|FATAL|Fatal|FatalError)\b|(?:^|[\s:\]])F\d{4} \d"
    r'|(?:^|[\s\]])(?:error|fatal|Error):|"level": ?"(?:fatal|error|critical)"|^\s*what\(\): '
    r"|^(?:\[rank\d+\]:? |\s*\d+: |\S+: )?(?:\w+\.)*\w*(?:Error|Exception|Failed|Exit|Runtime)\w*(?::|$)"
)
"""Lines of the level error, and those with which tracebacks end: only there broad rules count."""
_FAILS = re.compile(
    r"(?i:error|fail|fatal|abort|cannot|can't|could(?: not|n't)|unable|no such|not (?:found|enough|be |permitted)"
    r"|not a valid|denied|refused|exceed|timed?[ -]?out\b(?! ?[(:=])|times out|stall|stuck|hang\b|lost\b|killed"
    r"|terminated|invalid"
    r"|corrupt|unavailable|unreachable|inactive|stopping|exiting|null or not set|low memory|\bdown\b|dropped|missing"
    r"|does(?: not|n't) exist|\bfull\b)"
)
"""Words of a failure, in whatever line."""
_FATAL = re.compile(
    r"\b(?:FATAL|CRITICAL)\b|^resil: warning: (?:rank \d+ left at step \d|the run is not marked as finished)"
)
_ORDER = {Role.ROOT: 0, Role.CONFIRMATION: 1, Role.CASCADE: 2, Role.DIAGNOSTIC: 3}
_WENT_ON = 5
"""A line was probably survived if so many later lines repeat, up to numbers, lines from before it."""
_SIGNALLED = re.compile(
    r"(?:\(exitcode:|exit ?code:?) -(\d+)\b|return code = -(\d+)|died with <Signals\.\w+: (\d+)>|on signal (\d+) \("
    r"|got signal: (\d+)|EXIT STRING: .{1,40} \(signal (\d+)\)|Caught signal (\d+) \("
    r"|terminated with signal (SIG[A-Z]+)"
)
"""torchelastic, DeepSpeed, Python's subprocess, Open MPI, MPICH, UCX, torch.multiprocessing."""
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
_EXITED = re.compile(r"Exited with exit code (\d+)")
CORRUPTION_ADVICE = "resume from a checkpoint of before, on other nodes: see `resil nodes`"
_TASK_ENDS = {FailureClass.EXCEPTION, FailureClass.KILLED, FailureClass.SEGFAULT}
"""What srun says of a task that failed."""
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


@dataclass(frozen=True, slots=True)
class _Match:
    rule: Rule
    index: int
    rank: int | None
    host: str


_Cause = tuple[int, int, _Match | Traceback]
"""Its first and its last line."""


@dataclass(slots=True)
class _Reading:
    """What the log shows.

    Attributes:
        lines: without colours.
        matches: of all rules, in the order of the lines.
        exceptions: tracebacks that no rule explains and that were not survived.
        steps: indexes of lines with a step, ascending.
        first_like: for each line the index of the first line that is equal up to numbers.
        culprit: rank and host of the first failure that torchelastic or srun observed, and its exit code.
    """

    lines: list[str]
    matches: list[_Match] = field(default_factory=list)
    blocks: list[Traceback] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    first_like: list[int] = field(default_factory=list)
    culprit: tuple[int | None, str, int | None] = (None, "", None)


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
    reading = _read(evidence.log)
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
    reading = _read(log)
    signs = [one for one in reading.matches if one.rule.role is Role.ROOT and "report the node" in one.rule.advice]
    return (signs[-1].rule.failure, split_rank(reading.lines[signs[-1].index])[1].strip()) if signs else None


def _of_oom_kills(evidence: Evidence, reading: _Reading) -> Failure | None:
    """Return the failure that the kernel's count shows: an exception may follow the death of a child. None if the log
    shows another cause, such as a full disk: a helper that was killed, and replaced, ends nothing."""
    cause = _of_log(reading)
    signals = (128 - (evidence.exit_code or 0), -_child_signal(reading), reading.culprit[2])
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


def _read(log: str) -> _Reading:
    if "\x1b" in log:
        log = _ESCAPES.sub("", log)
    log = log.replace("\r", "\n")
    lines = ["" if any(one in line for one in _QUOTES) else line[:_MOST_LINE] for line in log.split("\n")]
    quoted = _quoted_tracebacks(log, lines)
    groups: dict[str, list[int]] = {}
    first_like = []
    for index, line in enumerate(_masked("\n".join(lines)).split("\n")):
        same = groups.setdefault(line, [])
        same.append(index)
        first_like.append(same[0])
    text = "\n".join(groups)
    active = _active(text)
    blocks = sorted([*tracebacks(lines), *quoted], key=lambda block: block.begin)
    finals = {index for block in blocks for index in (block.end, block.chain_end)}
    reading = _Reading(lines, blocks=blocks, steps=_steps(groups, text), first_like=first_like)
    members = list(groups.values())
    for group, rules in _near(active, text).items():
        reading.matches += _matches(rules, lines, _ends(members[group]), finals)
    reading.matches.sort(key=lambda one: one.index)
    reading.culprit = _elastic_culprit(lines)
    if reading.culprit == (None, "", None):
        reading.culprit = _srun_culprit(reading)
    return reading


def _quoted_tracebacks(log: str, lines: list[str]) -> list[Traceback]:
    """Return the tracebacks in JSON records; the lines of these records become their exceptions."""
    found = []
    for one in _QUOTED.finditer(log) if _QUOTED_HEAD in log else ():
        index = log.count("\n", 0, one.start())
        rank = _JSON_RANK.search(lines[index])
        text = one[0].replace("\\n", "\n").replace('\\"', '"')
        for block in tracebacks(text.split("\n"))[:1]:
            lines[index] = f"{block.exception}: {block.message}"[:_MOST_LINE]
            number = int(rank[1]) if rank is not None else None
            found.append(replace(block, begin=index, end=index, chain_end=index, rank=number))
    return found


def _masked(text: str) -> str:
    return text.encode("ascii", "replace").translate(_MASK).decode("ascii")


def _active(text: str) -> list[tuple[Rule, tuple[str, ...]]]:
    """Return the rules of which a text contains words, and these words, masked.

    The longest run of letters of each is searched in the vocabulary of the text first, which is a hundredth of it. One
    of three letters must begin a word there: in binary junk each sequence of three letters occurs.
    """
    vocabulary = set(text.encode("ascii", "replace").translate(_LETTERS).decode("ascii").split())
    long, starts = " ".join(word for word in vocabulary if len(word) > 3), {word[:3] for word in vocabulary}
    terms, runs = _terms(all_rules())
    known = {run for run in runs if (run in long if len(run) > 3 else len(run) < 3 or run in starts)}
    near = {word for word in {word for _, words in terms for run, word in words if run in known} if word in text}
    found = ((rule, tuple(word for _, word in words if word in near)) for rule, words in terms)
    return [(rule, words) for rule, words in found if words]


def _near(active: Sequence[tuple[Rule, tuple[str, ...]]], text: str) -> dict[int, list[Rule]]:
    """Return for the numbers of lines of a text the rules of which they contain words."""
    offsets = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    found: dict[int, list[Rule]] = {}
    for rule, words in active:
        lines = set()
        for word in words:
            at = text.find(word)
            while at >= 0:
                line = bisect_right(offsets, at) - 1
                lines.add(line)
                at = text.find(word, offsets[line + 1])
        for line in lines:
            found.setdefault(line, []).append(rule)
    return found


@cache
def _terms(rules: Sequence[Rule]) -> tuple[list[tuple[Rule, list[tuple[str, str]]]], set[str]]:
    """Return for each rule its words, masked, each with its longest run of letters; and all these runs."""
    found = [
        (rule, [(max(_WORD.findall(word), key=len, default=""), _masked(word)) for word in rule.contains])
        for rule in rules
    ]
    return found, {run for _, words in found for run, _ in words}


def _ends(indexes: Sequence[int]) -> Sequence[int]:
    half = _MOST_IN_GROUP // 2
    return indexes if len(indexes) <= _MOST_IN_GROUP else [*indexes[:half], *indexes[-half:]]


def _matches(
    rules: Sequence[Rule], lines: Sequence[str], indexes: Sequence[int], finals: Set[int], *, is_last: bool = False
) -> Iterator[_Match]:
    """`indexes`: of lines that differ only in numbers; `finals`: of the last lines of tracebacks; `is_last`: broad
    rules count in lines of any level."""
    tried = [rule for rule in rules if not rule.broad]
    if is_last or (len(tried) < len(rules) and _ERROR_LINE.search(lines[indexes[0]])):
        tried = list(rules)
    for index in indexes:
        line = lines[index]
        is_final = index in finals
        found = [(rule, match) for rule in (rules if is_final else tried) if (match := rule.match(line)) is not None]
        if found and not is_final:
            is_known = any(not rule.broad for rule, _ in found)
            is_mild = _MILD.search(line) is not None and not _FATAL.search(line)
            found = [one for one in found if one[0].decides or not (is_mild or (one[0].broad and is_known))]
        if found:
            rule, match = min(found, key=lambda one: (_ORDER[one[0].role], one[0].broad, -one[1].start()))
            parts = match.groupdict()
            rank = parts.get("rank")
            yield _Match(
                rule, index, int(rank) if rank and rank.isdigit() else split_rank(line)[0], parts.get("host") or ""
            )


def _steps(groups: dict[str, list[int]], text: str) -> list[int]:
    """`text`: the lines of the groups."""
    found: list[int] = []
    words = [word for word in _STEP_WORDS if word in text]
    for masked, indexes in groups.items() if words else ():
        if any(word in masked for word in words) and _STEP.search(masked) and "rror" not in masked:
            found += indexes
    return sorted(found)


def _is_survived(index: int, rank: int | None, reading: _Reading) -> bool:
    """Return whether the log shows further steps after a line; of the first failing rank nothing was survived."""
    if rank is not None and rank == reading.culprit[0]:
        return False
    after: set[str] = set()
    for step in reading.steps[bisect_right(reading.steps, index) :]:
        found = _STEP.search(reading.lines[step].lower())
        if found is not None:
            after.add(next(number for number in found.groups() if number))
        if len(after) >= SURVIVED_STEPS:
            return True
    return False


def _may_be_flushed(index: int, reading: _Reading) -> bool:
    """Return whether the steps after a line may be what the process had buffered when the line was written: Python
    writes its standard output in blocks when that is a file, and tracebacks at once."""
    steps = reading.steps[bisect_right(reading.steps, index) :]
    return sum(len(reading.lines[step]) + 1 for step in steps) <= DEFAULT_BUFFER_SIZE


def _went_on(index: int, rank: int | None, reading: _Reading) -> bool:
    """Return whether the program, or that rank of it, printed its ordinary lines again after a line."""
    count = 0
    for later in range(index + 1, len(reading.lines)):
        if reading.first_like[later] < index:
            line = reading.lines[later]
            if len(line) > 8 and rank in (None, split_rank(line)[0]) and ":" in line and "rror" not in line:
                count += 1
                if count >= _WENT_ON:
                    return True
    return False


def _of_log(reading: _Reading) -> Failure | None:
    """Return the failure that the log shows, or None: the first cause after which the program did not go on, else the
    last one."""
    causes, flushed = _causes(reading)
    for _, end, cause in causes:
        if not _went_on(end, cause.rank, reading):
            return _of_cause(cause, reading, Confidence.LIKELY)
    for _, _, cause in (causes or flushed)[-1:]:
        return _of_cause(cause, reading, Confidence.GUESS)
    for block in _told_by_guards(reading):
        return replace(_of_traceback(block, reading), confidence=Confidence.LIKELY)
    if (reading.culprit[2] or 0) < 0 or _child_signal(reading) in _CRASHES:
        return None  # the others report that this one was killed
    echoes = [
        one for one in reading.matches
        if one.rule.role is Role.CASCADE and not _is_survived(one.index, one.rank, reading)
    ]  # fmt: skip
    exited = any(one.rule.role is Role.CONFIRMATION and one.rule.failure in _VAGUE for one in reading.matches)
    named = [
        one for one in echoes
        if one.rule.failure not in _VAGUE and not (exited and one.rule.failure is FailureClass.CANCELLED)
    ]  # fmt: skip
    if named:
        return _of_match(named[0], reading, Confidence.GUESS)
    return None


def _of_last_words(reading: _Reading) -> Failure | None:
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
            or _went_on(index, split_rank(line)[0], reading)
        ):
            continue
        if _FAILS.search(line):
            near = [rule for rule, _ in _active(_masked(line))]
            for one in _matches(near, reading.lines, [index], frozenset(), is_last=True):
                return _of_match(one, reading, Confidence.GUESS)
        if _ERROR_LINE.search(line) and not _MILD.search(line):
            errors.append(index)
    if not errors:
        return None
    rank, said = split_rank(reading.lines[errors[0]])
    said = cut(said.strip(), 200)
    found = _plain(FailureClass.EXCEPTION, Confidence.GUESS, f"its last words are: {said}")
    quotes = _quotes(errors[0], reading, FailureClass.EXCEPTION)
    return replace(found, fingerprint=f"exception: {_mask(said)}", rank=rank, quotes=quotes)


def _causes(reading: _Reading) -> tuple[list[_Cause], list[_Cause]]:
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
            elif around is not None and _may_be_flushed(one.index, reading):
                flushed.append((begin, one.index, one))
    for block in reading.blocks:
        if explained.isdisjoint(range(block.begin, block.chain_end + 1)):
            if not _is_survived(block.chain_end, block.rank, reading):
                found.append((block.begin, block.chain_end, block))
            elif _may_be_flushed(block.chain_end, reading):
                flushed.append((block.begin, block.chain_end, block))
    return sorted(found, key=_by_first_line), sorted(flushed, key=_by_first_line)


def _told_by_guards(reading: _Reading) -> Iterator[Traceback]:
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


def _of_cause(cause: _Match | Traceback, reading: _Reading, confidence: Confidence) -> Failure:
    if isinstance(cause, Traceback):
        return replace(_of_traceback(cause, reading), confidence=confidence)
    if cause.rule.broad:
        confidence = Confidence.GUESS
    return _of_match(cause, reading, confidence)


def _counts(one: _Match, reading: _Reading) -> bool:
    if one.rule.failure is FailureClass.NAN_LOSS:  # a training goes on with NaN: the last steps show it, or do not
        last = reading.steps[-SURVIVED_STEPS:]
        if one.index in set(reading.steps):
            return one.index >= last[0] or sum(one.rule.match(reading.lines[step]) is not None for step in last) > 1
    return not _is_survived(one.index, one.rank, reading)


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


def _srun_culprit(reading: _Reading) -> tuple[int | None, str, int | None]:
    """Return rank, host and exit code of the first task whose end srun reported before it ended the step: the others
    then say that their peer is gone, or were killed by srun (--kill-on-bad-exit), which reports all ends alike."""
    told = [one for one in reading.matches if one.host and one.rank is not None and one.rule.failure in _TASK_ENDS]
    cancelled = (one.index for one in reading.matches if one.rule.failure is FailureClass.CANCELLED)
    ended = next(cancelled, len(reading.lines))
    for one in told[:1]:
        code = _EXITED.search(reading.lines[one.index])
        if one.index < ended and code is not None:
            return one.rank, one.host, int(code[1])
        if one.index < ended and one.rule.failure is FailureClass.KILLED:
            return one.rank, one.host, -SIGKILL
    return None, "", None


# ---- results -----------------------------------------------------------------------------------------------------


def _plain(failure: FailureClass, confidence: Confidence, reason: str) -> Failure:
    return Failure(failure=failure, confidence=confidence, reason=reason, fingerprint=str(failure))


def _of_match(one: _Match, reading: _Reading, confidence: Confidence) -> Failure:
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


def _of_elastic(error: RankError, log: _Reading) -> Failure:
    own = _read(error.text)
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


def _of_exit_code(evidence: Evidence, reading: _Reading) -> Failure:
    """Return the failure that only the exit code shows; 137 alone is no proof of a lack of memory."""
    rank, host, child = reading.culprit
    code = evidence.exit_code
    signal = _child_signal(reading) if child is None or child >= 0 else -child
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
        if one.rule.role is Role.CONFIRMATION and not _is_survived(one.index, one.rank, reading)
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


def _child_signal(reading: _Reading) -> int:
    """Return the signal that ended a process, as its launcher says; 0: none. SIGTERM came from the launcher itself."""
    lines = [line for line in reading.lines[-500:] if "ignal" in line or "code" in line]
    for found in _SIGNALLED.finditer("\n".join(lines)):
        said = next(one for one in found.groups() if one)
        number = int(said) if said.isdigit() else int(Signals.__members__.get(said, 0))
        if number not in (0, SIGTERM):
            return number
    return 0


def _with_quotes(found: Failure, reading: _Reading) -> Failure:
    same = next((one for one in reading.matches if one.rule.failure is found.failure), None)
    if same is None:
        return found
    quotes = _quotes(same.index, reading, found.failure)
    return replace(found, rank=same.rank, host=same.host, advice=same.rule.advice, quotes=quotes)


def _last_lines(reading: _Reading) -> tuple[Quote, ...]:
    """Return where the log ends, for a person who looks for a cause that no rule knows."""
    lines = reading.lines
    last = [
        at
        for at in range(max(0, len(lines) - 100), len(lines))
        if lines[at].strip() and not lines[at].startswith("resil:")
    ]
    return tuple(Quote(line=at + 1, text=_clean(reading.lines[at])) for at in last[-LAST_LINES:])


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
