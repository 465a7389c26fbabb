"""A template and a spec make a batch script that stands on its own: no Python, no resil, on the compute node."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.errors import TemplateError
from resilience.model.submission import check_run_name
from resilience.rendering.directives import parse_directives
from resilience.rendering.library import DOCUMENTATION, SUFFIX, TemplateLibrary
from resilience.rendering.quoting import quote_bash, without_python, write_directive

if TYPE_CHECKING:  # Jinja2 costs 40 ms at start; it is imported when something is rendered
    from jinja2 import Environment
    from jinja2.runtime import Context

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIGNAL = re.compile(r"[A-Z][A-Z0-9+-]*|[1-9]\d?")
_POLICIES = ("owner", "group", "any")
_UNDEFINED_HINT = "give it with --set {name}=VALUE, or under [template] in resil.toml"


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
        group: Unix group that may steer the run; empty keeps the files private.
        user: who renders it; for templates that want to say so.
        finish_on_success: whether exit code 0 of the training finishes the run.
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
    group: str = ""
    user: str = ""
    finish_on_success: bool = True
    array: bool = False
    launcher: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def render(library: TemplateLibrary, template_name: str, spec: ScriptSpec) -> str:
    """Return the batch script for a spec.

    Every value is quoted on its way into the text. Raise TemplateError, naming file, line and variable where there is
    one, if there is no such template, if it asks for what is not given, or if sbatch would misread the result.
    """
    import jinja2

    path = library.find(template_name)
    name = path.name.removesuffix(SUFFIX)
    environment = _environment(library)
    context = _context(spec, name)
    try:
        template = environment.get_template(path.name)
        _refuse_unknown(environment, library, path, spec, context)
        script = template.render(context)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"{_where(error.filename or error.name, error.lineno)}: {error.message}") from error
    except jinja2.UndefinedError as error:
        raise _undefined(error, library) from error
    except jinja2.TemplateNotFound as error:
        raise TemplateError(f"template {name}: there is no {error.message!r} to extend or include") from error
    except TemplateError as error:
        raise TemplateError(f"template {name}: {error.message}", hint=error.hint) from error
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
        where = _where(*_place(error, library))
        raise TemplateError(f"{where}: {type(error).__name__}: {error}") from error
    script = script.rstrip("\n") + "\n"
    _check(script, name)
    return script


# ---- what a template sees -----------------------------------------------------------------------------------------


def _context(spec: ScriptSpec, template: str) -> dict[str, Any]:
    """The variables of a template. What comes with `spec` itself cannot be set from outside."""
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
        "group": spec.group,
        "user": spec.user,
        "umask": "007" if spec.group else "077",
        "finish_on_success": spec.finish_on_success,
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
    return text


def _check_variable(name: str) -> str:
    if _VARIABLE_NAME.fullmatch(name) is None:
        raise TemplateError(f"{name!r} cannot be the name of an environment variable")
    if name.startswith(("RESIL_", "resil_")):
        raise TemplateError(f"{name} is resil's own and cannot be set in [environment]")
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


# ---- Jinja --------------------------------------------------------------------------------------------------------


def _environment(library: TemplateLibrary) -> Environment:
    """A sandbox that knows the library's files. It is no boundary: its product is a shell script anyway."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from markupsafe import Markup

    @jinja2.pass_context  # so that constants go the same way as variables
    def finalize(_: Context, value: object) -> object:
        return value if isinstance(value, jinja2.Undefined) else Markup(_to_bash(value))

    def load(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        path = library.locate(name)
        return None if path is None else (_prepare(library.read(path)), str(path), lambda: True)

    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        # Markup marks what is already bash: blocks, macros, `| raw`. Nothing is ever escaped as HTML.
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["raw"] = Markup
    environment.filters["quote"] = lambda value: Markup(_to_bash(value))
    return environment


def _to_bash(value: object) -> str:
    from markupsafe import Markup

    if isinstance(value, Markup):
        return str(value)
    if value is None or isinstance(value, Mapping):
        raise TemplateError(f"{value!r} cannot be written into a script")
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, list | tuple):
        return " ".join(map(_to_bash, value))
    return quote_bash(str(value))


def _prepare(source: str) -> str:
    """Leave the documentation out, and let bash's `${#array[@]}` not begin a comment of Jinja's. Lines stay lines."""
    lines = ("{# #}" if line.startswith(DOCUMENTATION) else line for line in source.split("\n"))
    return "\n".join(lines).replace("${#", "{{ '${#' | raw }}")


def _refuse_unknown(
    environment: Environment, library: TemplateLibrary, path: Path, spec: ScriptSpec, context: Mapping[str, object]
) -> None:
    """A misspelt `--set` would change nothing, silently: refuse it."""
    if not spec.variables:
        return
    settable = _variables_of(environment, library, path.name) - _own_names(context, spec)
    for name in spec.variables:
        if name not in settable:
            from difflib import get_close_matches

            choice = sorted(settable)
            near = get_close_matches(name, choice, n=1)
            mean = f"did you mean {near[0]}? " if near else ""
            raise TemplateError(
                f"it has no variable {name!r}", hint=f"{mean}it knows: {', '.join(choice) or 'none to be set'}"
            )


def _own_names(context: Mapping[str, object], spec: ScriptSpec) -> set[str]:
    return set(context) - set(spec.launcher) - set(spec.variables)


def _variables_of(environment: Environment, library: TemplateLibrary, name: str) -> set[str]:
    """The variables that a template, and what it extends or includes, asks for."""
    from jinja2 import meta

    names: set[str] = set()
    pending, seen = [name], set[str]()
    while pending:
        current = pending.pop()
        path = library.locate(current)
        if current in seen or path is None:
            continue
        seen.add(current)
        tree = environment.parse(_prepare(library.read(path)))
        names |= meta.find_undeclared_variables(tree)
        pending.extend(other for other in meta.find_referenced_templates(tree) if other is not None)
    return names


# ---- what went wrong ----------------------------------------------------------------------------------------------


def _undefined(error: Exception, library: TemplateLibrary) -> TemplateError:
    match = re.search(r"'(\w+)'(?: is undefined)?$", str(error)) or re.match(r"'(\w+)' is undefined", str(error))
    file, line = _place(error, library)
    if match is None:
        return TemplateError(f"{_where(file, line)}: {error}")
    if file is not None:  # Jinja knows where the text around the variable begins
        lines = library.read(Path(file)).split("\n")
        uses = (n for n, text in enumerate(lines, 1) if n >= line and re.search(rf"\b{match[1]}\b", text))
        line = next(uses, line)
    return TemplateError(
        f"{_where(file, line)}: the variable {match[1]!r} is not given", hint=_UNDEFINED_HINT.format(name=match[1])
    )


def _place(error: BaseException, library: TemplateLibrary) -> tuple[str | None, int]:
    """File and line of a template in which an exception arose: Jinja puts them into the traceback."""
    folders = {str(folder) for _, folder in library.folders}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if str(Path(frame.filename).parent) in folders:
            return frame.filename, frame.lineno or 0
    return None, 0


def _where(file: str | None, line: int) -> str:
    return f"{file or 'template'}, line {line}" if line else str(file or "template")


def _check(script: str, name: str) -> None:
    """Find what sbatch would misread without a word."""
    if not script.startswith("#!"):
        raise TemplateError(f"template {name} does not begin with #!", hint="make its first line #!/bin/bash")
    if "\r" in script or "\0" in script:
        raise TemplateError(f"template {name} makes a script with carriage returns", hint="use Unix line ends")
    glued = re.search(r"^(#SBATCH.*|.*[^\s].*)#SBATCH.*$", script.partition("\nset -u")[0], re.MULTILINE)
    if glued:
        raise TemplateError(
            f"template {name} writes a directive that does not begin its line: {glued[0][:80]!r}",
            hint="a Jinja tag at the end of a line takes the line end with it; put it on a line of its own",
        )
    if late := parse_directives(script).late:
        raise TemplateError(f"template {name} writes {late[0]!r} after the first command, where sbatch ignores it")
