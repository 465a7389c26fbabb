"""The plan of a submit: the request, the options for sbatch, the script, and the facts for the lint. Writes nothing."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

from resilience import layout
from resilience.base.mounts import current_mounts, mount_of
from resilience.errors import ResilError, StateDirectoryError, UsageError
from resilience.hostlist import expand, fold
from resilience.job import JobId
from resilience.quantities import parse_slurm_time_s
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import newest_intent, own_script_of, read_intents
from resilience.runs.templates.directives import option_of, parse_directives
from resilience.runs.templates.launches import parse_launch
from resilience.runs.templates.lint import SIGNAL_SLACK_S, LintFacts
from resilience.runs.templates.script import (
    SUFFIX,
    TEMPLATES,
    ScriptSpec,
    render,
    template_library,
    unknown_variables,
)
from resilience.settings.load import Loaded
from resilience.settings.sections import RunSettings, Settings
from resilience.submission import ArrayExpression, serial_array, split_signal, write_dependency
from resilience.system.files import read_lines, read_regular, shipped_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """The options of `resil submit`.

    Attributes:
        run: the run's name.
        script: the user's own script, or None to render the run's template.
        script_args: arguments of the own script.
        array: as `--array`; `10` means ten, one after another. Empty: as in the settings.
        chain: this many single jobs, each behind the previous one; 0 for none.
        after: the job to queue behind, already confirmed, or None.
        dependency: as `--dependency`.
        exclude: as `--exclude`.
        avoid: further nodes that resil excludes, a hostlist expression.
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
    avoid: str = ""
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
    """The input for the scheduler.

    Attributes:
        options: for the command line of every job, in order.
        directives: for a rendered script; empty for a user's own script.
        jobs: how many submissions: 1, or the length of the chain.
        signal: name of the signal for the batch shell.
        signal_lead_s: how long before the end it is sent.
        time_limit_s: the effective limit; None if unknown or unlimited.
    """

    options: Mapping[str, str | None]
    directives: tuple[tuple[str, str | None], ...]
    jobs: int
    signal: str
    signal_lead_s: int
    time_limit_s: int | None


def plan_submit(request: SubmitRequest, settings: Settings, logs: str) -> SubmitPlan:
    """Return the input for the scheduler, from a request and the settings.

    `logs` is the directory for the output of rendered scripts. Raise UsageError if the request contradicts itself.
    """
    _refuse_contradictions(request)
    array = "" if request.chain else request.array or settings.submit.array
    if request.script is not None and not request.array:
        array = ""  # a user's script has its own directives; only options of the command line are added
    if request.time:
        parse_slurm_time_s(request.time)
    options: dict[str, str | None] = {
        "array": str(serial_array(array)) if array else "",
        "dependency": _dependency(request),
        "exclude": fold({*expand(request.exclude), *expand(request.avoid)}) if request.avoid else request.exclude,
        "time": request.time,
        "begin": request.begin,
    }
    options = {name: value for name, value in options.items() if value}
    if request.hold:
        options["hold"] = None
    sbatch: dict[str, str | int | float | bool] = {
        str(key).replace("_", "-"): value for key, value in settings.sbatch.items()
    }
    if settings.act.requeue and (settings.submit.requeue is False or sbatch.get("no-requeue") is True):
        raise UsageError(
            "requeue = true in [act] needs jobs that may be requeued",
            hint="remove requeue = false under [submit], or no-requeue under [sbatch]",
        )
    for name, example in (("array", 'array = "10"'), ("signal", 'signal = "USR1"')):
        if isinstance(sbatch.get(name), str | int) and sbatch[name] is not False:
            raise UsageError(f"{name} cannot be set in [sbatch]: resil writes it", hint=f"set {example} under [submit]")
    if settings.nodes.spares and request.script is None:
        if array:
            raise UsageError(
                "an array cannot have spares: SLURM starts its next task when the running one loses a node",
                hint="queue single jobs: --chain 10; or keep_queued = 1 under [act]",
            )
        sbatch |= _with_spares(settings, sbatch, request.extra_args)
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


MAX_CHAIN = 1000
"""Each link is one sbatch, and one job of the 10,000 that slurmctld holds (MaxJobCount, slurm.conf(5))."""
OWN_OPTIONS = {
    "array": "--array",
    "dependency": "--dependency or --after",
    "comment": "",
    "parsable": "--parsable",
    "test-only": "--test-only",
}
"""Options that resil passes to sbatch itself, and the option of resil to use instead."""
_OWN_SHORT = {"-a": "array", "-d": "dependency"}


def _refuse_contradictions(request: SubmitRequest) -> None:
    if request.chain < 0:
        raise UsageError(f"--chain {request.chain} would queue nothing", hint="--chain 5 queues five")
    if request.chain > MAX_CHAIN:
        raise UsageError(
            f"--chain {request.chain} would queue more than {MAX_CHAIN} jobs one by one",
            hint=f"an array is one submit: --array {MAX_CHAIN}; or queue more behind these later: --after auto",
        )
    if request.chain and request.array:
        raise UsageError("--array and --chain cannot be given together", hint="use one of them")
    if request.script is None and request.script_args:
        raise UsageError("arguments need a script of your own", hint="sbatch flags go after --")
    # A line break in an option is a mistake or an attack: it would begin another line of the script.
    options = (request.array, request.dependency, request.exclude, request.signal, request.time, request.begin)
    for text in (*options, *request.extra_args):
        if any(ord(character) < 32 or ord(character) == 127 for character in text):
            raise UsageError(
                f"the sbatch option {text!r} contains a line break or a control character", hint="remove it"
            )
    _refuse_own_options(request.extra_args)


def _refuse_own_options(extra_args: tuple[str, ...]) -> None:
    """Reject options after `--` that would silently override resil's own: the `%1` of an array, the job's token."""
    problems = parse_directives(f"#!/bin/sh\n#SBATCH {shlex.join(extra_args)}\n").problems
    stray = next((word for word in extra_args if word == "--" or f"{word!r} is not an option" in problems), None)
    if stray is not None:
        raise UsageError(
            f"{stray!r} after -- is not a flag of sbatch: sbatch would read it as another script",
            hint="arguments of your own script go after a second --: resil submit my.sbatch -- -- --lr 0.1",
        )
    for word in extra_args:
        name = word.removeprefix("--").partition("=")[0] if word.startswith("--") else _OWN_SHORT.get(word[:2], "")
        # sbatch accepts abbreviated options: `--comm=x`.
        meant = next((known for known in OWN_OPTIONS if len(name) > 2 and known.startswith(name)), None)
        if meant is not None:
            own = OWN_OPTIONS[meant]
            hint = f"write {own} before the --" if own else "omit it: resil finds the job by its comment"
            raise UsageError(f"{word!r} after -- would override an option that resil sets itself", hint=hint)


def _with_spares(
    settings: Settings, sbatch: Mapping[str, str | int | float | bool], extra_args: Sequence[str]
) -> dict[str, str | int | float | bool]:
    """Return the options of a job that has `spares` of [nodes] more nodes than its launch, and survives their loss."""
    nodes, spares = str(sbatch.get("nodes", "")), settings.nodes.spares
    if spares < 0 or not nodes.isdecimal():
        raise UsageError(
            f"spares = {spares} under [nodes] needs the number of nodes of the launch, not {nodes!r}",
            hint="set nodes = 4 under [sbatch]: the job then has 5 with spares = 1",
        )
    if whole := [name for name in ("ntasks", "gpus") if name in sbatch]:
        raise UsageError(
            f"{whole[0]} under [sbatch] counts over all nodes, and spares would share them",
            hint=f"count per node: {'ntasks-per-node' if whole[0] == 'ntasks' else 'gpus-per-node'}",
        )
    if any(word.startswith(("-N", "--nodes")) for word in extra_args):
        raise UsageError("--nodes after -- would change the number of spares", hint="set nodes under [sbatch]")
    return {"nodes": int(nodes) + spares, "no-kill": True}


def _dependency(request: SubmitRequest) -> str:
    parts = []
    if request.after is not None:
        parts.append(f"afterany:{request.after}")
    if request.dependency:
        written = write_dependency(request.dependency)
        if parts and "?" in written:
            raise UsageError("--after cannot be joined with an `any of` dependency", hint="omit one of them")
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
    """Return the #SBATCH lines of a rendered script, so that the script can be read, and queued again, on its own."""
    lines: dict[str, str | None] = {
        "job-name": request.run,
        # `%` begins a field of the pattern (sbatch(1), filename pattern). Not %x: a job name of one's own may be 400
        # bytes long, and SLURM fails a job whose output it cannot open.
        "output": f"{logs.replace('%', '%%')}/{request.run}-{'%A_%a' if is_array else '%j'}.out",
        "open-mode": "append",
        "signal": signal,
    }
    requeue = settings.submit.requeue if settings.submit.requeue is not None else settings.act.requeue or None
    if requeue is not None:
        lines["requeue" if requeue else "no-requeue"] = None
    for name, value in sbatch.items():
        if value is True:
            lines[name] = None
        elif value is False:
            lines.pop(name, None)
        else:
            lines[name] = str(value)
    return tuple(lines.items())


SCRIPT_LIMIT_BYTES = 4 * 2**20
"""SLURM's default max_script_size (slurm.conf(5), SchedulerParameters)."""


def render_script(project: Project, request: SubmitRequest, plan: SubmitPlan, directory: RunDirectory) -> str:
    """Return the batch script of a run. Raise UsageError without a command, TemplateError if rendering fails."""
    settings = project.loaded.settings
    if not settings.run.command.strip():
        raise UsageError(
            "there is no command to run",
            hint='set command = "python train.py" under [run] in resil.toml (write one: resil init), or give a SCRIPT',
        )
    act, spares = settings.act, settings.nodes.spares
    if spares and project.scheduler_name() == "local":
        raise UsageError("spares under [nodes] need SLURM: the embedded scheduler has one node", hint="set spares = 0")
    spec = ScriptSpec(
        run=request.run,
        run_dir=str(directory.path),
        command=settings.run.command,
        directives=plan.directives,
        setup=settings.run.setup,
        environment={key: str(value) for key, value in settings.environment.items()},
        signal=plan.signal,
        signal_lead_s=plan.signal_lead_s,
        beat_s=settings.attempt.beat_s,
        previous_wait_s=settings.attempt.previous_wait_s,
        owner_policy=owner_policy(settings.run),
        guard=guard_variables(project.loaded),
        checkpoints=checkpoints_variables(project.loaded, request.run),
        group=settings.run.group,
        user=project.system.host.user,
        finish_on_success=settings.run.finish_on_success,
        act=act,
        keep_queued="" if act.requeue or not act.keep_queued else _own_command(project, directory, "keep_queued"),
        preflight=_own_command(project, directory, "preflight") if settings.nodes.preflight else "",
        launch_nodes=int(settings.sbatch["nodes"]) if spares else 0,
        spares=_own_command(project, directory, "spares") if spares else "",
        cron=str(project.loaded.state_dir / ".cron") if settings.cron is not None and settings.cron.revive else "",
        launcher=dict(settings.launcher),
        variables=dict(request.variables),
    )
    return render(template_library(project), request.template or settings.run.template, spec)


def _own_command(project: Project, directory: RunDirectory, module: str) -> str:
    """Return the command line by which a starting job calls a module of resilience/cli for its run."""
    words = [sys.executable, "-m", f"resilience.cli.{module}", str(directory.path)]
    if project.loaded.path is not None:
        words.append(str(project.loaded.path))
    return f"cd {shlex.quote(str(project.loaded.project))} && exec {shlex.join(words)}"


def guard_variables(loaded: Loaded) -> dict[str, str]:
    """Return the environment of the guard in a job: the settings of [guard], the owner policy of switches, and whether
    faults may be injected. Pure.

    Defaults are not exported: a newer guard may have other ones.
    """
    variables = {f"{layout.GUARD_PREFIX}SWITCH_OWNERS": owner_policy(loaded.settings.run)}
    if loaded.settings.run.allow_inject:
        variables[layout.ALLOW_INJECT] = "true"
    guard = loaded.settings.guard
    for setting in fields(guard) if guard is not None else ():
        if f"guard.{setting.name}" in loaded.origins:
            name = layout.GUARD_PREFIX + setting.name.upper()
            variables.setdefault(name, _as_variable(getattr(guard, setting.name)))
    return variables


def checkpoints_variables(loaded: Loaded, run: str) -> dict[str, str]:
    """Return the environment of the store in a job: the settings of [checkpoints], the path absolute. Pure."""
    if (settings := loaded.settings.checkpoints) is None:
        return {}
    from resilience.checkpoints.settings import as_variable  # only needed where there is such a table

    values = {one.name: as_variable(getattr(settings, one.name)) for one in fields(settings)}
    values["path"] = str(loaded.store_path(run) or "")
    return {
        layout.CHECKPOINTS_PREFIX + name.upper(): text
        for name, text in values.items()
        if f"checkpoints.{name}" in loaded.origins
    }


def _as_variable(value: object) -> str:
    """Return a setting as `read_settings` of the guard parses it, with all digits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def owner_policy(settings: RunSettings) -> str:
    """Return the owner policy of switches for the jobs of a submit, from the settings alone. Pure."""
    return settings.switch_owners or ("group" if settings.group else "owner")


def script_of_run(directory: RunDirectory) -> tuple[Path, tuple[str, ...]] | None:
    """Return the user's own script that the run was last queued with, and its arguments; None for a template.

    Raise UsageError if the script is unknown or gone.
    """
    last = newest_intent(read_intents(directory)) if directory.exists() else None
    if last is None or not own_script_of(directory, [last]):
        return None
    hint = f"name it: resil submit SCRIPT --run {directory.run}; or use the template: --template NAME"
    if not last.script:
        raise UsageError(f"the script of job {last.job_id} is not known to the scheduler", hint=hint)
    path = Path(last.script)
    if not os.path.lexists(path):
        raise UsageError(f"the own script of run {directory.run} is gone: {path}", hint=hint)
    return path, last.argv[last.argv.index(last.script) + 1 :] if last.script in last.argv else ()


def read_own_script(path: Path) -> str:
    """Return a user's own script. Raise UsageError, with a hint, if sbatch would refuse it."""
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a directory, not a script", hint="give the path of a batch script")
        found = read_regular(path.resolve(), limit_bytes=SCRIPT_LIMIT_BYTES + 1)
    except StateDirectoryError as error:
        raise UsageError(error.message, hint="give the path of a batch script that you may read") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if found is None:
        raise UsageError(f"there is no script {path}", hint="give the path of a batch script")
    raw = found[0]
    no_crlf = f"sed -i 's/\\r$//' {shlex.quote(str(path))}"
    a_script, first_line = "is it the batch script?", "make its first line #!/bin/bash"
    for is_wrong, problem, hint in (
        (len(raw) > SCRIPT_LIMIT_BYTES, "is larger than 4 MiB; sbatch refuses it", a_script),
        (b"\0" in raw, "holds NUL characters; sbatch refuses it", a_script),
        (not raw.strip(), "is empty", "a batch script starts with #!/bin/bash"),
        (not raw.startswith(b"#!"), "does not start with #!", first_line),
        (b"\r\n" in raw, "has DOS line ends (CRLF); sbatch refuses them", no_crlf),
    ):
        if is_wrong:
            raise UsageError(f"{path} {problem}", hint=hint)
    return raw.decode("utf-8", "replace")


SMALL_ARRAY = 1000
"""Every cluster accepts indices up to this (MaxArraySize is 1001 by default); larger ones need a query."""


def lint_facts(
    project: Project, request: SubmitRequest, plan: SubmitPlan, directory: RunDirectory, script: str
) -> LintFacts:
    """Return the facts for the lint. An unknown fact causes no finding."""
    is_local = project.scheduler_name() == "local"
    mount = mount_of(directory.path, current_mounts())
    recorded = directory.settings().get("run")
    owner = str(recorded.get("name", "")) if isinstance(recorded, dict) else ""
    return LintFacts(
        run=request.run,
        run_dir_owner=owner,
        state_dir=str(project.loaded.state_dir),
        # Reported once, at the first submit of a run.
        state_dir_is_node_local=not directory.exists() and mount is not None and mount.is_node_local and not is_local,
        shut_out=directory.group if directory.exists() and not directory.stat().st_mode & stat.S_IWGRP else "",
        max_array_size=_max_array_size(project, plan),
        measured_save_s=slowest_save_s(directory),
        stop_after_s=guard.stop_after if (guard := project.loaded.settings.guard) is not None else 0.0,
        signal_slack_s=0 if is_local else SIGNAL_SLACK_S,
        missing_directories=_missing_directories(project, request, plan, script),
        unknown_variables=_unknown_variables(project, request),
        has_one_process=request.script is None and _has_one_process(project, request),
        sbatch_environment=tuple(
            sorted(name for name in project.system.environ if name.startswith("SBATCH_") and not is_local)
        ),
    )


def passed_options(extra_args: Sequence[str]) -> dict[str, str | None]:
    """Return sbatch arguments that are passed through, by their long names, parsed as directives."""
    return dict(parse_directives(f"#!/bin/bash\n#SBATCH {shlex.join(extra_args)}\n").options) if extra_args else {}


def output_pattern(
    script: str, options: Mapping[str, str | None], environ: Mapping[str, str], directory: str, file_name: str
) -> str:
    """Return where sbatch sends the output of a job: an absolute path with the fields of sbatch(1). Pure.

    `options` of the command line override `environ`, and that the directives of the script. `directory` is that of
    sbatch, `file_name` that of the script, which is the default job name.
    """
    of_environ = {name: value for key, value in environ.items() if (name := option_of(key)) is not None}
    known = {**dict(parse_directives(script).options), **of_environ, **options}
    base = os.path.join(directory, known.get("chdir") or "").replace("%", "%%")  # noqa: PTH118
    name = (known.get("job-name") or file_name).replace("%", "%%")
    pattern = known.get("output") or ("slurm-%A_%a.out" if known.get("array") else "slurm-%j.out")
    if "\\" not in pattern:
        pattern = re.sub(r"(%%)|%[0-9]*x", lambda match: match[1] or name, pattern)
    return os.path.normpath(os.path.join(base, pattern))  # noqa: PTH118


def slowest_save_s(directory: RunDirectory) -> float | None:
    """Return the duration of the slowest save in the run's journal (`{"event": "save", "seconds": 41.5}`), or None."""
    slowest: float | None = None
    for path in sorted((directory.path / layout.JOURNAL).glob("*.jsonl")):
        with suppress(ResilError):  # skip unreadable files
            for record in read_lines(path):
                seconds = record.get("seconds")
                if record.get("event") == "save" and isinstance(seconds, int | float):
                    slowest = max(slowest or 0.0, float(seconds))
    return slowest


def _unknown_variables(project: Project, request: SubmitRequest) -> tuple[tuple[str, str], ...]:
    settings = project.loaded.settings
    if request.script is not None or not settings.launcher:
        return ()
    library = template_library(project)
    name = library.find(request.template or settings.run.template).name.removesuffix(SUFFIX)
    return tuple((error.message, error.hint) for error in unknown_variables(library, name, settings.launcher))


def _has_one_process(project: Project, request: SubmitRequest) -> bool:
    """Return whether the shipped template `python` runs a command that is Python itself, and no launcher."""
    run = project.loaded.settings.run
    path = template_library(project).find(request.template or run.template)
    launch = parse_launch(run.command)
    is_python = launch is not None and launch.template == "python"
    return is_python and path.name == f"python{SUFFIX}" and path.parent == shipped_directory(TEMPLATES)


def _max_array_size(project: Project, plan: SubmitPlan) -> int | None:
    array = plan.options.get("array")
    if not array:
        return None
    try:
        if ArrayExpression.parse(array).largest <= SMALL_ARRAY:
            return None
        return project.scheduler().config().max_array_size
    except (UsageError, ResilError):
        return None


def _missing_directories(project: Project, request: SubmitRequest, plan: SubmitPlan, script: str) -> tuple[str, ...]:
    """Return missing directories of output files: SLURM fails such a job without a message."""
    base = project.system.cwd if request.script is not None else project.loaded.project
    options = {**dict(parse_directives(script).options), **plan.options, **passed_options(request.extra_args)}
    base = base / (options.get("chdir") or "")
    # The directory for logs of a rendered script is created with the run.
    own = str(project.directory(request.run).path).replace("%", "%%") if request.script is None else None
    missing = []
    for value in (options.get("output"), options.get("error")):
        if value and not (own is not None and value.startswith(own)):
            parent = (base / value).parent  # `~` stays: SLURM makes a directory of that name too
            if "%" not in str(parent) and not parent.is_dir():
                missing.append(str(parent))
    return tuple(dict.fromkeys(missing))
