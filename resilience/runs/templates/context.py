"""What a template sees: the spec's values, checked, and a few functions. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from resilience.errors import TemplateError
from resilience.runs.templates.quoting import without_python, write_directive
from resilience.submission import check_run_name

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIGNAL = re.compile(r"[A-Z][A-Z0-9+-]*|[1-9]\d?")
_GUARD_NAME = re.compile(r"RESIL_GUARD__[A-Z][A-Z0-9_]*")
_POLICIES = ("owner", "group", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSpec:
    """Everything a batch script is made of.

    Attributes:
        run: the run's name.
        run_dir: absolute path of the run directory, on a file system that all nodes share.
        command: the training, a bash command line as the person wrote it; each launcher runs it by `bash -c`.
        directives: sbatch's long options without dashes to their values, None for a flag. job-name, output,
            open-mode and signal are added where they are missing.
        setup: bash lines before the launch: modules, virtual environment. They run as they are written.
        environment: variables exported before the setup.
        signal: name of the signal for the batch shell, without SIG.
        signal_lead_s: how long before the time limit SLURM sends it.
        beat_s: how often the batch shell shows that it lives.
        previous_wait_s: how long a job waits for the attempt before it to be truly gone.
        owner_policy: whose switches are obeyed: owner, group or any.
        guard: variables that tell the guard its settings: `RESIL_GUARD__KEY`.
        group: Unix group that may steer the run; empty keeps the files private.
        user: who renders it; for templates that want to say so.
        finish_on_success: whether exit code 0 of the training finishes the run.
        cron: folder of the scheduler of cron that the batch shell starts again when it is dead; empty: none.
        cron_look_s: how often it looks whether it is.
        array: whether the script is queued as an array; decides the default name of the output file.
        launcher: variables of the template: `gpus_per_node`, `image`. The template may ignore them.
        variables: the same from `--set`; they win, and one that the template does not know is refused.
    """

    run: str
    run_dir: str
    command: str
    directives: tuple[tuple[str, str | None], ...] = ()
    setup: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    signal: str = "USR1"
    signal_lead_s: int = 300
    beat_s: float = 10
    previous_wait_s: float = 600
    owner_policy: str = "owner"
    guard: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    user: str = ""
    finish_on_success: bool = True
    cron: str = ""
    cron_look_s: float = 180
    array: bool = False
    launcher: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def template_context(spec: ScriptSpec, template: str) -> dict[str, Any]:
    """Given a spec and the template's name, return the template's variables.

    Raise TemplateError for a value that cannot be written, and for a name that would hide one of resil's own.
    """
    own: dict[str, Any] = {
        "run": check_run_name(spec.run),
        "run_dir": _check_path(spec.run_dir),
        "template": template,
        "command": _check_bash(spec.command, "the command"),
        "setup": tuple(_check_bash(line, "the setup") for line in spec.setup),
        "environment": tuple((_check_variable(name), value) for name, value in sorted(spec.environment.items())),
        "signal": _check_signal(spec.signal),
        "signal_lead_s": spec.signal_lead_s,
        "beat_s": _number(spec.beat_s),
        "still_s": math.ceil(spec.beat_s),
        "poll_s": _number(min(1, spec.beat_s)),
        "previous_wait_s": math.ceil(spec.previous_wait_s),
        "owner_policy": _check_policy(spec.owner_policy),
        "guard": tuple((_check_guard(name), value) for name, value in sorted(spec.guard.items())),
        "group": spec.group,
        "user": spec.user,
        "umask": "007" if spec.group else "077",
        "finish_on_success": spec.finish_on_success,
        "cron": _check_path(spec.cron) if spec.cron else "",
        "cron_look_s": math.ceil(spec.cron_look_s),
        "directives": _directives_function(spec),
        "without_python": without_python,
        "refuse": _refuse,
    }
    for source in (spec.launcher, spec.variables):
        for name in source:
            if name in own:
                raise TemplateError(f"{name!r} is resil's own and cannot be set for a template")
            if _VARIABLE_NAME.fullmatch(name) is None:
                raise TemplateError(f"{name!r} cannot be the name of a template variable")
    return own | dict(spec.launcher) | dict(spec.variables)


def _directives_function(spec: ScriptSpec) -> Callable[..., str]:
    def directives(**defaults: object) -> str:
        """The `#SBATCH` lines: the spec's, and where those are silent the template's defaults and resil's own."""
        from markupsafe import Markup

        lines: dict[str, str | None] = {
            "job-name": spec.run,
            "output": f"{_pattern(spec.run_dir)}/logs/%x-{'%A_%a' if spec.array else '%j'}.out",
            "open-mode": "append",
            "signal": f"B:{spec.signal}@{spec.signal_lead_s}",
        }
        given = dict(spec.directives)
        for name, value in defaults.items():
            option = name.replace("_", "-")
            if value != "" and not (option == "ntasks-per-node" and "ntasks" in given):
                lines[option] = None if value is None else str(value)
        lines.update(given)
        return Markup("\n".join(write_directive(name, value) for name, value in lines.items()))

    return directives


def _pattern(path: str) -> str:
    """A path as part of sbatch's file name pattern, in which `%` begins a field (sbatch(1), filename pattern)."""
    return path.replace("%", "%%")


def _refuse(message: str) -> str:
    raise TemplateError(str(message))


def _check_path(path: str) -> str:
    if not path.startswith("/"):
        raise TemplateError(f"the run directory must be an absolute path, not {path!r}")
    if any(ord(character) < 32 for character in path):
        raise TemplateError(f"the run directory's path holds a control character: {path!r}")
    return path


def _check_bash(text: str, what: str) -> str:
    if "\0" in text or "\r" in text:
        raise TemplateError(f"{what} holds a NUL or carriage return: {text!r}", hint="use Unix line ends")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise TemplateError(f"{what} holds bytes that are not UTF-8: {text!r}")
    return text


def _check_variable(name: str) -> str:
    if _VARIABLE_NAME.fullmatch(name) is None:
        raise TemplateError(f"{name!r} cannot be the name of an environment variable")
    if name.startswith(("RESIL_", "resil_")) and name != "RESIL_GUARD":
        raise TemplateError(f"{name} is resil's own and cannot be set in [environment]")
    return name


def _check_guard(name: str) -> str:
    if _GUARD_NAME.fullmatch(name) is None:
        raise TemplateError(f"{name!r} cannot be a setting of the guard", hint="write for instance RESIL_GUARD__POLL_S")
    return name


def _check_signal(name: str) -> str:
    if _SIGNAL.fullmatch(name) is None or name.startswith("SIG") or name in ("KILL", "STOP"):
        raise TemplateError(f"{name!r} cannot be the signal for the batch shell", hint="write for instance USR1")
    return name


def _check_policy(policy: str) -> str:
    if policy not in _POLICIES:
        raise TemplateError(f"{policy!r} is no owner policy", hint=f"there are: {', '.join(_POLICIES)}")
    return str(policy)


def _number(value: float) -> str:
    return f"{value:g}"
