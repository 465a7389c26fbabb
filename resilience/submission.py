"""A submission: array expression, dependency, sbatch's options, run name and token. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from resilience.errors import UsageError
from resilience.job import JobId
from resilience.messages import cut

# ASCII: SLURM accepts only the digits 0 to 9. At most 18: int() raises another error for very long texts.
_PART = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")
_NUMBER = re.compile(r"[0-9]{1,18}")
MAX_TASKS = 4_000_001
"""SLURM's upper bound of MaxArraySize (slurm.conf(5)): a larger expression is a mistake."""


@dataclass(frozen=True, slots=True)
class ArrayExpression:
    """The tasks of an array, and the maximum number of tasks that run at the same time.

    Attributes:
        ranges: tuples of (first, last, step).
        throttle: the number after `%`, or None. None and 0: no limit (observed with sbatch 22.05).
    """

    ranges: tuple[tuple[int, int, int], ...]
    throttle: int | None = None

    @classmethod
    def parse(cls, text: str) -> ArrayExpression:
        """Parse an array expression. Raise UsageError if sbatch would reject it on every cluster."""
        body, percent, limit = text.strip().partition("%")
        if percent and _NUMBER.fullmatch(limit) is None:
            raise _bad(text, "the value after % must be a number")
        ranges = []
        for part in body.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise _bad(text, f"{part!r} is not an index or a range")
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            if last < first:
                raise _bad(text, f"the range {part!r} is descending")
            if step == 0:
                raise _bad(text, f"the step in {part!r} is zero")
            ranges.append((first, last, step))
        expression = cls(tuple(ranges), int(limit) if percent else None)
        if expression.largest >= MAX_TASKS:
            raise _bad(text, f"SLURM's indices end at {MAX_TASKS - 1}")
        if expression.throttle is not None and expression.throttle > MAX_TASKS:
            raise _bad(text, f"the value after % is more than the {MAX_TASKS} tasks that SLURM allows")
        return expression

    @property
    def count(self) -> int:
        """Return the number of tasks. A duplicate index counts once, as in SLURM."""
        written = sum((last - first) // step + 1 for first, last, step in self.ranges)
        ends = sorted((first, last) for first, last, _ in self.ranges)
        if all(before[1] < after[0] for before, after in pairwise(ends)):
            return written
        is_used = bytearray(self.largest + 1)  # a set of four million indices takes 400 MB
        for first, last, step in self.ranges:
            is_used[first : last + 1 : step] = b"\1" * ((last - first) // step + 1)
        return is_used.count(1)

    @property
    def largest(self) -> int:
        """Return the largest index, which must be below the cluster's MaxArraySize."""
        return max(last - (last - first) % step for first, last, step in self.ranges)

    def indices(self) -> tuple[int, ...]:
        """Return the indices, sorted and without duplicates."""
        return tuple(sorted({i for first, last, step in self.ranges for i in range(first, last + 1, step)}))

    def __str__(self) -> str:
        parts = []
        for first, last, step in self.ranges:
            parts.append(str(first) if first == last else f"{first}-{last}" + (f":{step}" if step > 1 else ""))
        return ",".join(parts) + ("" if self.throttle is None else f"%{self.throttle}")


def serial_array(text: str) -> ArrayExpression:
    """Parse the value of resil's `--array`.

    A plain number is the number of jobs: `10` gives `1-10%1`. Without `%` the jobs run one after another. Raise
    UsageError for an invalid or empty array.
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        if int(stripped) == 0:
            raise UsageError("an array of 0 jobs would queue nothing", hint="--array 10 queues ten, one after another")
        stripped = f"1-{stripped}"
    expression = ArrayExpression.parse(stripped)
    return expression if expression.throttle is not None else ArrayExpression(expression.ranges, 1)


def _bad(text: str, why: str) -> UsageError:
    return UsageError(
        f"{text!r} is not an array: {why}", hint="--array 10 (ten jobs, one after another), 1-10%2, 0-20:5 or 3,5,9"
    )


TYPES = ("after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer")
_JOB = re.compile(r"[1-9][0-9]*(_[0-9]+|_\*)?(\+[0-9]+)?")


def write_dependency(text: str) -> str:
    """Return a dependency with explicit types.

    For instance, `12` gives `afterany:12`, `12:13` gives `afterany:12:13`; `afterok:12:13,singleton` is unchanged.
    Raise UsageError if SLURM would reject the dependency.
    """
    stripped = text.strip()
    separators = {c for c in stripped if c in ",?"}
    if len(separators) > 1:
        raise _bad_dependency(text, "`,` (all) and `?` (any) cannot be mixed")
    separator = separators.pop() if separators else ","
    return separator.join(_write_part(part.strip(), text) for part in stripped.split(separator))


def _write_part(part: str, whole: str) -> str:
    kind, colon, jobs = part.partition(":")
    kind = kind.lower()  # SLURM ignores the case
    if part.lower() == "singleton":
        return kind
    if not colon or _JOB.fullmatch(kind):
        kind, jobs = "afterany", part
    if kind not in TYPES:
        raise _bad_dependency(whole, f"there is no type {kind!r}")
    for job in jobs.split(":"):
        if _JOB.fullmatch(job) is None:
            raise _bad_dependency(whole, f"{job!r} is not a job id")
        if "+" in job and kind != "after":
            raise _bad_dependency(whole, "only `after` takes a delay in minutes")
    return f"{kind}:{jobs}"


def _bad_dependency(text: str, why: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a dependency: {why}", hint=f"write for instance afterany:123; types: {', '.join(TYPES)}"
    )


# ---- sbatch's options -----------------------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# fmt: off
SHORT_OPTIONS = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input",
    "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes",
    "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "S": "core-spec",
    "s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude",
}
"""sbatch's short options to their long names (sbatch(1))."""
# fmt: on
FLAG_OPTIONS = _words(
    "contiguous disable-stdout-job-summary exclusive-user hold ignore-pbs no-kill no-requeue overcommit oversubscribe "
    "parsable quiet reboot requeue spread-job stepmgr test-only use-min-nodes verbose wait"
)
"""Long options without a value."""
OPTIONAL_OPTIONS = _words("exclusive get-user-env nice oom-kill-step propagate resv-ports")
"""Long options that take a value only when attached: `--exclusive=user`."""
VALUE_OPTIONS = _words(
    "account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container "
    "container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency "
    "distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node "
    "gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type "
    "mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks "
    "ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority "
    "profile qos reservation segment signal sockets-per-node switches thread-spec threads-per-core time time-min tmp "
    "tres-bind tres-per-task uid wait-all-nodes wckey"
)
"""Long options with a value."""
SBATCH_OPTIONS = FLAG_OPTIONS | OPTIONAL_OPTIONS | VALUE_OPTIONS
"""The long options of sbatch(1), 20.11 to 26.05. Plugins of a site (SPANK) add others, and newer releases."""

# Compiled at first use. sbatch 22.05 and 24.11 refuse all other values, except `--nodes=-3`, which means 0 to 3 nodes.
_COUNT = "(?a)[0-9]{1,18}", "a whole number"
_SIZE = "(?a)[0-9].*", "a size such as 64G"
_FORMS = {
    "nodes": ("(?ai)[0-9]{1,9}[km]?([-,:][0-9]{1,9}[km]?)*", "a number of nodes or a range: 2 or 2-4"),
    "begin": (
        r"(?ai)now( ?[+-] ?[0-9]{1,9} ?[a-z]*)?|uts[0-9]{1,18}"
        r"|((midnight|noon|fika|teatime|elevenses|today|tomorrow|[0-9][0-9:./T-]{2,}( ?[ap]m)?)( |$))+",
        "a time such as now+2hours, 16:00, 2027-01-31T08:00 or tomorrow",
    ),
    **dict.fromkeys(("ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket",
                     "cpus-per-gpu", "cpus-per-task", "core-spec", "thread-spec", "mincpus"), _COUNT),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu", "tmp"), _SIZE),
}  # fmt: skip


def expected_form(option: str, value: str) -> str:
    """Return what the value of an option of sbatch must be; empty if the value has this form, or none is known."""
    pattern, form = _FORMS.get(option, ("", ""))
    return form if pattern and re.fullmatch(pattern, value.strip()) is None else ""


MAX_LEAD_S = 65535
"""Maximum lead time that sbatch accepts in --signal (sbatch(1))."""
_SIGNALS = _words("HUP INT QUIT ABRT KILL ALRM TERM USR1 USR2 URG CONT STOP TSTP TTIN TTOU XCPU")
"""The names that sbatch accepts (sig_name2num in proc_args.c, 22.05 and 24.11)."""


def split_signal(text: str) -> tuple[str, int]:
    """Given sbatch's `--signal` value, return the signal's name and its lead in seconds (60 without `@`).

    Raise UsageError if sbatch would refuse it: no such signal, a lead above 65535, an unknown flag before the colon.
    """
    flags, _, body = text.strip().rpartition(":")
    if set(flags.upper()) - {"B", "R"}:
        raise UsageError(f"{text!r} is not a signal: {flags!r} before the colon", hint="write B:USR1@300")
    name, at, lead = body.partition("@")
    name = name.upper().removeprefix("SIG")  # sbatch takes any case; the batch shell's trap is written in capitals
    is_number = _NUMBER.fullmatch(name) is not None and 0 < int(name) <= 64
    if not (is_number or name in _SIGNALS) or (at and _NUMBER.fullmatch(lead) is None):
        raise UsageError(f"{text!r} is not a signal with a lead in seconds", hint="write B:USR1@300")
    if at and int(lead) > MAX_LEAD_S:
        raise UsageError(f"--signal {text!r}: sbatch refuses a lead above {MAX_LEAD_S} s", hint="write B:USR1@300")
    return name, int(lead) if at else 60


COMMENT_PREFIX = "resil"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run_name(name: str) -> str:
    """Return a valid run name. Raise UsageError if the name is not usable as directory, comment field and word."""
    if _RUN_NAME.fullmatch(name) is None:
        raise UsageError(
            f"{cut(name, 100)!r} cannot be a run's name",
            hint="use letters, digits, dot, dash and underscore, at most 100, starting with a letter or digit",
        )
    return name


def make_comment(run: str, token: str) -> str:
    """Return the --comment of a job: `resil:<run>:<token>`."""
    return f"{COMMENT_PREFIX}:{run}:{token}"


def split_comment(comment: str) -> tuple[str, str] | None:
    """Return (run, token) of a job's comment, or None if the comment is not resil's."""
    prefix, _, rest = comment.partition(":")
    run, _, token = rest.partition(":")
    return (run, token.split(" ")[0]) if prefix == COMMENT_PREFIX and run and token else None


@dataclass(frozen=True, slots=True)
class Submission:
    """A request to queue one job or one array, which must result in exactly one job.

    Attributes:
        token: random word that identifies the request; used to find the job before any retry.
        run: name of the run; empty for a job that is none of a run.
        script: absolute path of the batch script.
        script_args: arguments of the script.
        options: sbatch's long options without dashes, in order, with their values; None for a flag without value.
            For instance `{"array": "1-10%1", "requeue": None}`.
        extra_args: sbatch arguments passed through unchanged, before the script.
        directory: directory to submit from; the job's working directory unless `chdir` is given.
        environment: variables added to the environment of the submission.
        variables: the user's SBATCH_* variables that apply; None: all, as in sbatch.
        fresh: the token is new and was never sent: no lookup before the first try.
    """

    token: str
    run: str
    script: str
    script_args: tuple[str, ...] = ()
    options: Mapping[str, str | None] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    directory: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    variables: Collection[str] | None = None
    fresh: bool = False

    def filtered_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment without the SBATCH_* variables that do not apply."""
        return {
            name: value
            for name, value in environ.items()
            if self.variables is None or not name.startswith("SBATCH_") or name in self.variables
        }

    @property
    def comment(self) -> str:
        """Return the comment that identifies the job; empty for a job that is none of a run."""
        return make_comment(self.run, self.token) if self.run else ""


class Submitted(NamedTuple):
    """The job that a submission created.

    Attributes:
        id: id of the job or array.
        notes: further messages of the scheduler, a line each (for instance a site's job_submit message).
        recovered: True if the call failed or timed out and the job was found by its token.
    """

    id: JobId
    notes: tuple[str, ...] = ()
    recovered: bool = False
