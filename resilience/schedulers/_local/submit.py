"""Converts a submission to a record, and rejects what sbatch rejects. Pure."""

from __future__ import annotations

import contextlib
import posixpath
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from resilience.errors import QuantityError, SchedulerError, UsageError
from resilience.quantities import parse_number, parse_slurm_time_s
from resilience.schedulers._local.options import check_script, collect
from resilience.schedulers._local.records import Entry
from resilience.submission import MAX_LEAD_S, ArrayExpression, Submission, write_dependency

KILL_WAIT_VARIABLE = "RESIL_LOCAL_KILL_WAIT_S"
DEFAULT_KILL_WAIT_S = 30.0
MAX_ARRAY_SIZE = 1001
"""SLURM's default MaxArraySize: the largest index is one less."""

_SIGNAL = re.compile(r"(?:(?P<where>[BR]{1,2}):)?(?P<name>[A-Za-z0-9]+)(?:@(?P<lead>\d+))?")
_NOW = re.compile(r"now(?:\+(?P<count>\d+)\s*(?P<unit>[a-z]*))?")
_UNITS_S = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_DAYS = ("%Y-%m-%d", "%m/%d/%Y", "%m/%d/%y", "%m%d%y")
_CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
_WORDS = {"midnight": "00:00", "noon": "12:00"}
_PATTERN = re.compile(r"%(?P<width>\d*)(?P<letter>[%AabJjNnstux])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LOGIN_NAMES = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG")


def parse_array(text: str) -> ArrayExpression:
    """Parse the value of --array. Raise SchedulerError, as sbatch, if invalid or too large."""
    try:
        array = ArrayExpression.parse(text)
    except UsageError as error:
        raise SchedulerError(
            f"Batch job submission failed: Invalid job array specification ({error.message})", hint=error.hint
        ) from error
    if array.largest >= MAX_ARRAY_SIZE:
        raise SchedulerError(
            f"Batch job submission failed: Invalid job array specification ({text!r} goes beyond index "
            f"{MAX_ARRAY_SIZE - 1})",
            hint=f"MaxArraySize is {MAX_ARRAY_SIZE} here, as in SLURM unless a site changed it",
        )
    return array


def parse_dependency(text: str) -> str:
    """Return the value of --dependency with explicit types. Raise SchedulerError if invalid."""
    try:
        written = write_dependency(text)
    except UsageError as error:
        raise _dependency_problem(error.message, error.hint) from error
    if "afterburstbuffer" in written:
        raise _dependency_problem("there are no burst buffers here", "use afterany:ID")
    return written


def _dependency_problem(why: str, hint: str) -> SchedulerError:
    return SchedulerError(f"Batch job submission failed: Job dependency problem ({why})", hint=hint)


def parse_time_limit_s(text: str) -> int | None:
    """Parse the value of --time to seconds; None is no limit, and 0 as well (sbatch(1))."""
    try:
        return parse_slurm_time_s(text) or None
    except QuantityError as error:
        raise UsageError(f"Invalid --time specification: {error.message}", hint=error.hint) from error


def parse_signal(text: str) -> tuple[int, int, bool]:
    """Parse `[B:]SIG[@seconds]` to the signal's number, the lead in seconds, and whether `B:` is given.

    The default lead is 60 seconds. Raise UsageError if sbatch would reject the value.
    """
    match = _SIGNAL.fullmatch(text.strip())
    number = signal_number(match["name"]) if match else 0
    if match is None or not number or int(match["lead"] or 0) > MAX_LEAD_S:
        raise UsageError(
            f"Invalid --signal specification: {text!r}",
            hint="write for instance USR1@120 (to the srun steps) or B:USR1@120 (to the batch shell)",
        )
    return number, int(match["lead"] or 60), "B" in (match["where"] or "")


def signal_number(name: str) -> int:
    """Return the number of `USR1`, `SIGUSR1` or `10`; 0 if there is no such signal."""
    if name.isdigit():
        return int(name) if 0 < int(name) < signal.NSIG else 0
    word = name.upper()
    found = signal.Signals.__members__.get(word if word.startswith("SIG") else f"SIG{word}")
    return int(found) if found is not None else 0


def parse_begin(text: str, now: float) -> float:
    """Parse the value of --begin to seconds since the epoch. Raise UsageError if sbatch would reject the value.

    `now+10`, `now+2hours`, `16:00`, `2026-11-20T08:00`, `11/20`, `tomorrow`, `uts1800000000`; in this host's
    time zone. A time of day in the past means tomorrow.
    """
    word = text.strip().lower()
    if match := _NOW.fullmatch(word):
        unit = _UNITS_S.get((match["unit"] or "").removesuffix("s"))
        if unit is not None:
            return now + int(match["count"] or 0) * unit
    elif word.startswith("uts") and word[3:].isdigit():
        return float(word[3:])
    elif word == "today":
        return now
    today = datetime.fromtimestamp(now)  # noqa: DTZ006 - local time, as sbatch reads it
    if word == "tomorrow":
        return datetime.combine(today + timedelta(days=1), time()).timestamp()
    clock = re.sub(r"\s*([ap]m)$", r" \1", _WORDS.get(word, word))
    if when := _parse(f"{today:%Y-%m-%d} {clock}", [f"%Y-%m-%d {form}" for form in _CLOCKS]):
        return (when if when.timestamp() >= now else when + timedelta(days=1)).timestamp()
    # A day without a year is in this year.
    day = re.sub(r"^(\d+/\d+)(?=$|-)", rf"\g<1>/{today.year}", word)
    separated = [f"{form}{between}{of_day}" for form in _DAYS for between in "t -" for of_day in ("%H:%M", "%H:%M:%S")]
    if when := _parse(day, [*_DAYS, *separated]):
        return when.timestamp()
    raise UsageError(
        f"Invalid --begin specification: {text!r}",
        hint="write for instance now+2hours, 16:00, 2026-11-20T08:00 or tomorrow",
    )


def _parse(text: str, forms: Sequence[str]) -> datetime | None:
    for form in forms:
        with contextlib.suppress(ValueError):
            return datetime.strptime(text, form)  # noqa: DTZ007
    return None


def expand_pattern(pattern: str, *, raw: int, array: int, index: int | None, name: str, user: str, host: str) -> str:
    """Return the path for the value of --output. `%4a` pads to four digits (sbatch(1), "filename pattern")."""
    # SLURM's NO_VAL stands for "no task", as its own logs show.
    task = 4294967294 if index is None else index
    values: dict[str, int | str] = {
        "%": "%", "A": array, "a": task, "b": task % 10, "J": raw, "j": raw, "N": host, "n": 0, "s": "batch", "t": 0,
        "u": user, "x": name.replace("/", "_"),
    }  # fmt: skip

    def value(match: re.Match[str]) -> str:
        found = values[match["letter"]]
        return f"{found:0{min(int(match['width'] or 0), 10)}d}" if isinstance(found, int) else found

    return _PATTERN.sub(value, pattern)


def export_environment(export: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment for the value of --export, before SLURM's own variables.

    ALL (the default) exports everything, NONE a minimal login environment, NIL nothing; `A,B=1` only these variables,
    and `ALL,B=1` everything with B changed. SLURM_* variables of an enclosing job are not exported.
    """
    own = {key: value for key, value in environ.items() if not _is_of_another_job(key)}
    words = _split_quoted(export) if export else ["ALL"]
    first = words[0].upper() if words else "ALL"
    if first == "NIL":
        return {}
    if first == "ALL" or any(word.upper() == "ALL" for word in words):
        result = dict(own)
    else:
        result = {name: own[name] for name in _LOGIN_NAMES if name in own} | {"PATH": _DEFAULT_PATH}
        result["ENVIRONMENT"] = "BATCH"
    for word in words:
        name, equals, value = word.partition("=")
        if name.upper() in ("ALL", "NONE", "NIL") and not equals:
            continue
        if _NAME.fullmatch(name) is None:
            raise UsageError(f"Invalid --export specification: {word!r}", hint="write for instance ALL,NAME=value")
        if equals:
            result[name] = value
        elif name in own:
            result[name] = own[name]
    return result


def _is_of_another_job(name: str) -> bool:
    return name.startswith(("SLURM_", "SLURMD_", "SBATCH_", "SRUN_"))


def _split_quoted(text: str) -> list[str]:
    """Split at commas outside quotes, and remove the quotes."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters, lexer.escape = ",", True, "", ""
    try:
        return list(lexer)
    except ValueError as error:
        raise UsageError(f"Invalid --export specification: {text!r}", hint=str(error)) from error


@dataclass(frozen=True, slots=True)
class Request:
    """A checked submission, before it has an id.

    Attributes:
        environment: environment of the job.
        notes: messages for the user: the ignored options.
    """

    entry: Entry
    script: bytes
    environment: Mapping[str, str]
    notes: tuple[str, ...]


def check(
    submission: Submission, script: bytes, environ: Mapping[str, str], *, user: str, umask: int, now: float
) -> Request:
    """Validate a submission by the rules of sbatch.

    Raise UsageError for unknown or invalid options, SchedulerError for requests that a controller rejects. Job ids in
    the dependency are not checked here.
    """
    environment = {**environ, **submission.environment}
    check_script(script, submission.script)
    options, ignored = collect(
        submission.options, submission.extra_args, environment, script.decode("utf-8", "surrogateescape")
    )
    _one_node(options.get("nodes"))
    array = parse_array(options["array"]) if "array" in options else None
    number, lead_s, to_batch = parse_signal(options["signal"]) if options.get("signal") else (0, 60, False)
    ntasks = "ntasks" if options.get("ntasks") else "ntasks-per-node"
    comment = options.get("comment")
    directory = posixpath.join(submission.directory, options.get("chdir", ""))
    entry = Entry(
        id=0,
        name=options.get("job-name") or posixpath.basename(submission.script),
        user=user,
        token=submission.token,
        comment=" ".join(filter(None, (submission.comment, comment))),
        submit_time=now,
        command=submission.script,
        script_args=submission.script_args,
        directory=directory.rstrip("/") or "/",
        submit_dir=submission.directory,
        indices=array.indices() if array is not None else None,
        step=array.ranges[0][2] if array is not None and len(array.ranges) == 1 else 1,
        throttle=array.throttle or 0 if array is not None else 0,
        ntasks=_count(options, ntasks) or 1,
        cpus_per_task=_count(options, "cpus-per-task"),
        time_limit_s=parse_time_limit_s(options["time"]) if "time" in options else None,
        signal=number,
        signal_lead_s=lead_s,
        signal_batch=to_batch,
        requeue="no-requeue" not in options,
        output=options.get("output", ""),
        error=options.get("error", ""),
        input=options.get("input", ""),
        append=_choice(options, "open-mode", {"append": True, "a": True, "truncate": False, "t": False}),
        begin=parse_begin(options["begin"], now) if options.get("begin") else None,
        held="hold" in options,
        dependency=parse_dependency(options["dependency"]) if options.get("dependency") else "",
        kill_invalid=_choice(options, "kill-on-invalid-dep", {"yes": True, "no": False}),
        kill_wait_s=kill_wait_s(environment),
        umask=umask,
        oversubscribe="oversubscribe" in options,
    )
    notes = (f"ignored here: {', '.join(ignored)}",) if ignored else ()
    return Request(entry, script, export_environment(options.get("export", ""), environment), notes)


def _one_node(text: str | None) -> None:
    if text is None:
        return
    least = text.partition("-")[0]
    if not least.isdigit() or int(least) == 0:
        raise UsageError(f"Invalid --nodes specification: {text!r}", hint="write for instance --nodes=1")
    if int(least) > 1:
        raise SchedulerError(
            "Batch job submission failed: Requested node configuration is not available",
            hint=f"--nodes={text}, but the embedded scheduler has only this host; a cluster needs SLURM",
        )


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if not text:
        return None
    if not text.isdigit() or int(text) == 0:
        raise UsageError(f"Invalid numeric value {text!r} for --{name}.", hint="a whole number from 1")
    return int(text)


def _choice(options: Mapping[str, str], name: str, choices: Mapping[str, bool]) -> bool:
    text = options.get(name)
    if text is None:
        return False
    if text.lower() not in choices:
        raise UsageError(f"Invalid --{name} specification: {text!r}", hint=f"one of {', '.join(choices)}")
    return choices[text.lower()]


def kill_wait_s(environ: Mapping[str, str]) -> float:
    """Return the seconds between SIGTERM and SIGKILL: $RESIL_LOCAL_KILL_WAIT_S, else SLURM's default."""
    text = environ.get(KILL_WAIT_VARIABLE, "")
    try:
        return max(0.0, parse_number(text)) if text else DEFAULT_KILL_WAIT_S
    except ValueError:
        raise UsageError(f"${KILL_WAIT_VARIABLE} is {text!r}", hint="a number of seconds") from None
