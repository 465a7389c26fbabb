"""Turns a submission into the record of a job, refusing what sbatch refuses. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from resilience.errors import SchedulerError, UsageError
from resilience.schedulers._local import grammar
from resilience.schedulers._local.options import Options, check_script, collect
from resilience.schedulers._local.records import Entry
from resilience.submission import Submission

KILL_WAIT_VARIABLE = "RESIL_LOCAL_KILL_WAIT_S"
DEFAULT_KILL_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for, checked, before it has an id.

    Attributes:
        environment: what the job inherits.
        notes: what the person should know: options that mean nothing here.
    """

    entry: Entry
    script: bytes
    environment: Mapping[str, str]
    notes: tuple[str, ...]


def understand(
    submission: Submission, script: bytes, environ: Mapping[str, str], *, user: str, umask: int, now: float
) -> Wish:
    """Check a submission and say what it means.

    Raise UsageError for options that sbatch does not have or cannot read, SchedulerError for what a controller
    refuses. Job ids in the dependency are not looked up here.
    """
    environment = {**environ, **submission.environment}
    check_script(script, submission.script)
    options = collect(submission.options, submission.extra_args, environment, script.decode("utf-8", "surrogateescape"))
    _one_node(options)
    array_text = options.get("array")
    array = grammar.parse_array(array_text) if array_text is not None else None
    number, lead_s, to_batch = (
        grammar.parse_signal(options.get("signal") or "") if options.get("signal") else (0, 60, False)
    )
    ntasks_text = options.get("ntasks") or options.get("ntasks-per-node")
    cpus = options.get("cpus-per-task")
    time_text, begin, comment = options.get("time"), options.get("begin"), options.get("comment")
    directory = posixpath.join(submission.directory, options.get("chdir") or "")
    entry = Entry(
        id=0,
        name=options.get("job-name") or posixpath.basename(submission.script),
        user=user,
        token=submission.token,
        comment=f"{submission.comment} {comment}" if comment else submission.comment,
        submit_time=now,
        command=submission.script,
        script_args=submission.script_args,
        directory=directory.rstrip("/") or "/",
        submit_dir=submission.directory,
        indices=array.indices() if array is not None else None,
        step=array.ranges[0][2] if array is not None and len(array.ranges) == 1 else 1,
        throttle=array.throttle or 0 if array is not None else 0,
        ntasks=_count(ntasks_text, "ntasks") if ntasks_text else 1,
        cpus_per_task=_count(cpus, "cpus-per-task") if cpus else None,
        time_limit_s=grammar.parse_time_limit_s(time_text) if time_text is not None else None,
        signal=number,
        signal_lead_s=lead_s,
        signal_batch=to_batch,
        requeue=not options.has("no-requeue"),
        output=options.get("output") or "",
        error=options.get("error") or "",
        input=options.get("input") or "",
        append=_choice(options, "open-mode", {"append": True, "a": True, "truncate": False, "t": False}),
        begin=grammar.parse_begin(begin, now) if begin else None,
        held=options.has("hold"),
        dependency=grammar.parse_dependency(options.get("dependency") or "") if options.get("dependency") else "",
        kill_invalid=_choice(options, "kill-on-invalid-dep", {"yes": True, "no": False}),
        kill_wait_s=kill_wait_s(environment),
        umask=umask,
        oversubscribe=options.has("oversubscribe"),
    )
    exported = grammar.export_environment(options.get("export") or "", environment)
    notes = (f"ignored here: {', '.join(options.ignored)}",) if options.ignored else ()
    return Wish(entry, script, exported, notes)


def _one_node(options: Options) -> None:
    text = options.get("nodes")
    if text is None:
        return
    least = text.partition("-")[0]
    if not least.isdigit() or int(least) == 0:
        raise UsageError(f"Invalid --nodes specification: {text!r}", hint="write for instance --nodes=1")
    if int(least) > 1:
        raise SchedulerError(
            "Batch job submission failed: Requested node configuration is not available",
            hint=f"--nodes={text}, and the embedded scheduler has this one machine; a cluster needs SLURM",
        )


def _count(text: str, name: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise UsageError(f"Invalid numeric value {text!r} for --{name}.", hint="a whole number from 1")
    return int(text)


def _choice(options: Options, name: str, choices: Mapping[str, bool]) -> bool:
    text = options.get(name)
    if text is None:
        return False
    if text.lower() not in choices:
        import difflib

        near = difflib.get_close_matches(text.lower(), list(choices), n=1)
        raise UsageError(
            f"Invalid --{name} specification: {text!r}",
            hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(choices)}",
        )
    return choices[text.lower()]


def kill_wait_s(environ: Mapping[str, str]) -> float:
    """Seconds between SIGTERM and SIGKILL: $RESIL_LOCAL_KILL_WAIT_S, else SLURM's default."""
    text = environ.get(KILL_WAIT_VARIABLE, "")
    try:
        return max(0.0, float(text)) if text else DEFAULT_KILL_WAIT_S
    except ValueError:
        raise UsageError(f"${KILL_WAIT_VARIABLE} is {text!r}", hint="a number of seconds") from None
