"""What a submit would do, worked out before anything is done. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from resilience.errors import UsageError
from resilience.job import JobId
from resilience.quantities import parse_slurm_time_s
from resilience.runs.templates.directives import parse_directives
from resilience.settings.sections import Settings
from resilience.submission import MAX_LEAD_S, serial_array, write_dependency

_SIGNAL = re.compile(r"[A-Z][A-Z0-9+-]*|[0-9]{1,2}")
_LEAD = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """What the person asked for.

    Attributes:
        run: the run's name.
        script: the person's own script, or None to render the run's template.
        script_args: arguments of the own script.
        array: as `--array`; `10` means ten, one after another. Empty: what the settings say.
        chain: this many single jobs, each behind the one before; 0 for none.
        after: the job to queue behind, already made sure of, or None.
        dependency: as `--dependency`.
        variables: template variables from `--set`.
        extra_args: sbatch arguments passed through.
        force: queue although the run is alive, killed or finished.
    """

    run: str
    script: Path | None = None
    script_args: tuple[str, ...] = ()
    array: str = ""
    chain: int = 0
    after: JobId | None = None
    dependency: str = ""
    exclude: str = ""
    signal: str = ""
    time: str = ""
    begin: str = ""
    hold: bool = False
    template: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True, slots=True)
class SubmitPlan:
    """What would be handed to the scheduler.

    Attributes:
        options: what goes on the command line of every job, in order.
        directives: what goes into a rendered script, empty for a person's own script.
        jobs: how many submissions: 1, or the length of the chain.
        signal: name of the signal for the batch shell.
        signal_lead_s: how long before the end it is sent.
        time_limit_s: the limit that will count, None when not known or unlimited.
    """

    options: Mapping[str, str | None]
    directives: tuple[tuple[str, str | None], ...]
    jobs: int
    signal: str
    signal_lead_s: int
    time_limit_s: int | None


def plan_submit(request: SubmitRequest, settings: Settings, logs: str) -> SubmitPlan:
    """Given what was asked and what the settings say, return what to hand to the scheduler.

    `logs` is the folder for the output of rendered scripts. Raise UsageError if the request contradicts itself.
    """
    if request.chain < 0:
        raise UsageError(f"--chain {request.chain} would queue nothing", hint="--chain 5 queues five")
    if request.chain and request.array:
        raise UsageError("--array and --chain are two ways to the same end", hint="choose one of them")
    if request.script is None and request.script_args:
        raise UsageError("arguments are for a script of your own", hint="sbatch flags go after --")
    _refuse_line_ends(request)
    _refuse_own_options(request.extra_args)
    array = "" if request.chain else request.array or settings.submit.array
    if request.script is not None and not request.array:
        array = ""  # an own script brings its own directives; only what was asked for on the command line is added
    options: dict[str, str | None] = {}
    if array:
        options["array"] = str(serial_array(array))
    dependency = _dependency(request)
    if dependency:
        options["dependency"] = dependency
    for name in ("exclude", "time", "begin"):
        if getattr(request, name):
            options[name] = getattr(request, name)
    if request.time:
        parse_slurm_time_s(request.time)
    if request.hold:
        options["hold"] = None
    sbatch = {str(key).replace("_", "-"): value for key, value in settings.sbatch.items()}
    for name, table, example in (("array", "submit", 'array = "10"'), ("signal", "submit", 'signal = "USR1"')):
        if isinstance(sbatch.get(name), str | int) and sbatch[name] is not False:
            raise UsageError(f"{name} cannot stand in [sbatch]: resil writes it", hint=f"{example} below [{table}]")
    signal, lead_s = split_signal(f"B:{settings.submit.signal}@{int(settings.submit.signal_lead_s)}")
    if request.signal:
        options["signal"] = request.signal
        signal, lead_s = split_signal(request.signal)
    directives: tuple[tuple[str, str | None], ...] = ()
    if request.script is None:
        directives = _directives(request, settings, sbatch, bool(array), logs, f"B:{signal}@{lead_s}")
    limit = request.time or str(sbatch.get("time", ""))
    time_limit_s = parse_slurm_time_s(limit) if limit and (request.script is None or request.time) else None
    return SubmitPlan(options, directives, request.chain or 1, signal, lead_s, time_limit_s)


def split_signal(text: str) -> tuple[str, int]:
    """Given sbatch's `--signal` value, return the signal's name and its lead in seconds (60 without `@`).

    Raise UsageError if sbatch would refuse it: a lead above 65535, an unknown flag before the colon.
    """
    body = text.strip()
    if ":" in body:
        flags, _, body = body.partition(":")
        if set(flags.upper()) - {"B", "R"}:
            raise UsageError(f"{text!r} is not a signal: {flags!r} before the colon", hint="write B:USR1@300")
    name, at, lead = body.partition("@")
    name = name.upper().removeprefix("SIG")  # sbatch takes any case; the batch shell's trap is written in capitals
    if _SIGNAL.fullmatch(name) is None or (at and _LEAD.fullmatch(lead) is None):
        raise UsageError(f"{text!r} is not a signal with a lead in seconds", hint="write B:USR1@300")
    if at and int(lead) > MAX_LEAD_S:
        raise UsageError(
            f"--signal {text!r}: a lead of more than {MAX_LEAD_S} s is refused by sbatch", hint="write B:USR1@300"
        )
    return name, int(lead) if at else 60


def describe_command(words: tuple[str, ...]) -> str:
    """An argv as a person could paste it."""
    return shlex.join(words)


OWN_OPTIONS = {
    "array": "--array",
    "dependency": "--dependency or --after",
    "comment": "",
    "parsable": "--parsable",
    "test-only": "--test-only",
}
"""What resil says to sbatch itself, and the option of resil to say instead."""
_OWN_SHORT = {"-a": "array", "-d": "dependency"}


def _refuse_own_options(extra_args: tuple[str, ...]) -> None:
    """After `--` an option would win over resil's own without a word: `%1` lost, the job's token lost."""
    stray = ("--",) if "--" in extra_args else _stray_words(extra_args)
    if stray:
        raise UsageError(
            f"{stray[0]!r} after -- is no flag of sbatch: it would be taken for another script",
            hint="arguments of your own script go after a second --: resil submit my.sbatch -- -- --lr 0.1",
        )
    for word in extra_args:
        name = word.removeprefix("--").partition("=")[0] if word.startswith("--") else _OWN_SHORT.get(word[:2], "")
        # sbatch takes an option's beginning for the option: `--comm=x`.
        meant = next((known for known in OWN_OPTIONS if len(name) > 2 and known.startswith(name)), None)
        if meant is not None:
            own = OWN_OPTIONS[meant]
            hint = f"write {own} before the --" if own else "leave it out: resil finds the job again by its comment"
            raise UsageError(f"{word!r} after -- would undo what resil itself tells sbatch", hint=hint)


def _stray_words(extra_args: tuple[str, ...]) -> tuple[str, ...]:
    """The words that are neither flags nor values of flags."""
    problems = parse_directives(f"#!/bin/sh\n#SBATCH {shlex.join(extra_args)}\n").problems
    return tuple(word for word in extra_args if f"{word!r} is not an option" in problems)


def _refuse_line_ends(request: SubmitRequest) -> None:
    """A line end in an option is a slip or an attack: in a script it would begin another line."""
    asked = (request.array, request.dependency, request.exclude, request.signal, request.time, request.begin)
    for text in (*asked, *request.extra_args):
        if any(ord(character) < 32 or ord(character) == 127 for character in text):
            raise UsageError(f"the sbatch option {text!r} holds a line end or a control character", hint="take it out")


def _dependency(request: SubmitRequest) -> str:
    parts = []
    if request.after is not None:
        parts.append(f"afterany:{request.after.whole}")
    if request.dependency:
        written = write_dependency(request.dependency)
        if parts and "?" in written:
            raise UsageError("--after cannot be joined with an `any of` dependency", hint="leave one of them out")
        parts.append(written)
    return ",".join(parts)


def _directives(
    request: SubmitRequest,
    settings: Settings,
    sbatch: Mapping[str, str | int | float | bool],
    is_array: bool,
    logs: str,
    signal: str,
) -> tuple[tuple[str, str | None], ...]:
    """The #SBATCH lines of a rendered script, so that the kept script can be read, and queued again, by itself."""
    lines: dict[str, str | None] = {
        "job-name": request.run,
        # `%` begins a field of the pattern (sbatch(1), filename pattern). Not %x: a job name of one's own may be 400
        # bytes long, and SLURM fails a job whose output it cannot open.
        "output": f"{logs.replace('%', '%%')}/{request.run}-{'%A_%a' if is_array else '%j'}.out",
        "open-mode": "append",
        "signal": signal,
    }
    if settings.submit.requeue is not None:
        lines["requeue" if settings.submit.requeue else "no-requeue"] = None
    for name, value in sbatch.items():
        if value is True:
            lines[name] = None
        elif value is False:
            lines.pop(name, None)
        else:
            lines[name] = str(value)
    return tuple(lines.items())
