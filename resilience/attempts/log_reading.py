"""What the log of an attempt shows: lines of known failures, tracebacks, steps, and who failed first. Pure.

Of lines that differ only in numbers a few are looked at, for the words of the rules first: a log has megabytes.
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

from resilience.attempts.failure import FailureClass, Role
from resilience.attempts.rules import Rule, all_rules
from resilience.attempts.traceback_blocks import Traceback, split_rank, tracebacks

SURVIVED_STEPS = 3
"""A line was survived if the log shows this many different steps after it."""
_QUOTES = ("resil: the breaker ", "resil: an earlier attempt was stopped", "resil: nodes: ")
"""In lines of the batch shell and of the guard that quote the cause of an earlier attempt, or what is wrong with a
node: a disk that is full on one node is no reason to hold the jobs that run elsewhere."""
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
_EXITED = re.compile(r"Exited with exit code (\d+)")
_TASK_ENDS = {FailureClass.EXCEPTION, FailureClass.KILLED, FailureClass.SEGFAULT}
"""What srun says of a task that failed."""


@dataclass(frozen=True, slots=True)
class Match:
    rule: Rule
    index: int
    rank: int | None
    host: str


@dataclass(slots=True)
class LogReading:
    """What the log shows.

    Attributes:
        lines: without colours.
        matches: of all rules, in the order of the lines.
        blocks: all tracebacks, in the order of the lines.
        steps: indexes of lines with a step, ascending.
        first_like: for each line the index of the first line that is equal up to numbers.
        culprit: rank and host of the first failure that torchelastic or srun observed, and its exit code.
    """

    lines: list[str]
    matches: list[Match] = field(default_factory=list)
    blocks: list[Traceback] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    first_like: list[int] = field(default_factory=list)
    culprit: tuple[int | None, str, int | None] = (None, "", None)

    def is_survived(self, index: int, rank: int | None) -> bool:
        """Return whether the log shows further steps after a line; of the first failing rank nothing was survived."""
        if rank is not None and rank == self.culprit[0]:
            return False
        after: set[str] = set()
        for step in self.steps[bisect_right(self.steps, index) :]:
            found = _STEP.search(self.lines[step].lower())
            if found is not None:
                after.add(next(number for number in found.groups() if number))
            if len(after) >= SURVIVED_STEPS:
                return True
        return False

    def may_be_flushed(self, index: int) -> bool:
        """Return whether the steps after a line may be what the process had buffered when the line was written: Python
        writes its standard output in blocks when that is a file, and tracebacks at once."""
        steps = self.steps[bisect_right(self.steps, index) :]
        return sum(len(self.lines[step]) + 1 for step in steps) <= DEFAULT_BUFFER_SIZE

    def went_on(self, index: int, rank: int | None) -> bool:
        """Return whether the program, or that rank of it, printed its ordinary lines again after a line."""
        count = 0
        for later in range(index + 1, len(self.lines)):
            if self.first_like[later] < index:
                line = self.lines[later]
                if len(line) > 8 and rank in (None, split_rank(line)[0]) and ":" in line and "rror" not in line:
                    count += 1
                    if count >= _WENT_ON:
                        return True
        return False

    def child_signal(self) -> int:
        """Return the signal that ended a process, as its launcher says, or 0. SIGTERM came from the launcher."""
        lines = [line for line in self.lines[-500:] if "ignal" in line or "code" in line]
        for found in _SIGNALLED.finditer("\n".join(lines)):
            said = next(one for one in found.groups() if one)
            number = int(said) if said.isdigit() else int(Signals.__members__.get(said, 0))
            if number not in (0, SIGTERM):
                return number
        return 0

    def named(self, index: int) -> Iterator[Match]:
        """Yield what a line may name, of whatever level it is."""
        line = self.lines[index]
        if _FAILS.search(line):
            near = [rule for rule, _ in _active(_masked(line))]
            yield from _matches(near, self.lines, [index], frozenset(), is_last=True)


def is_error(line: str) -> bool:
    """Return whether a line is of the level error, or ends a traceback, and does not say that the program went on."""
    return _ERROR_LINE.search(line) is not None and not _MILD.search(line)


def read_log(log: str) -> LogReading:
    """Read a log, or the end of one, with the rules of resil and of the plugin directories.

    Raise SettingsError if the rules of a plugin directory are invalid.
    """
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
    reading = LogReading(lines, blocks=blocks, steps=_steps(groups, text), first_like=first_like)
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
) -> Iterator[Match]:
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
            yield Match(
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


def _srun_culprit(reading: LogReading) -> tuple[int | None, str, int | None]:
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
