"""Renders a batch script from a template and a spec. The script needs neither Python nor resil on the compute node."""

from __future__ import annotations

import math
import re
import stat
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.errors import TemplateError
from resilience.messages import nearest, quoted
from resilience.runs.templates.directives import parse_directives, quote_bash, without_python, write_directive
from resilience.runs.templates.launches import launches_of
from resilience.settings.sections import ActSettings
from resilience.submission import check_run_name
from resilience.switch import OwnerPolicy
from resilience.system.files import own_directory, shipped_directory

if TYPE_CHECKING:  # Jinja2 costs 40 ms at start; it is imported when something is rendered
    from jinja2 import Environment
    from jinja2.bccache import Bucket
    from jinja2.runtime import Context

    from resilience.runs.project import Project

TEMPLATES = "slurm_templates"
SUFFIX = ".sbatch.j2"
DOCUMENTATION = "# resil:"
"""Prefix of the lines of a template's documentation, which are shown to users and left out of the script."""
BASE = "base"
"""The base of the others; not offered as a template of its own."""


def _choices(word: str, names: Sequence[str]) -> str:
    """Return a hint with the nearest of the names, and all of them."""
    near = nearest(word, names, cutoff=0.6)
    return (f"did you mean {near}? " if near else "") + f"there are: {', '.join(names) or 'none'}"


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    """One template file.

    Attributes:
        name: the file's name without `.sbatch.j2`.
        path: of the file.
        origin: label of the directory that holds it: `project`, `user`, `shipped`.
        summary: first line of its documentation, or empty.
        documentation: all lines of it.
        shadowed: whether another of the same name wins.
    """

    name: str
    path: Path
    origin: str
    summary: str
    documentation: tuple[str, ...]
    shadowed: bool = False


@dataclass(frozen=True)
class TemplateLibrary:
    """Templates from several directories; those of an earlier one win.

    Attributes:
        directories: label and path of each, for instance `("project", Path("slurm_templates"))`. Missing ones are
            empty.
        cache: directory of compiled templates, which saves three quarters of the time; None for no cache. They are run
            as code: no other user may write there.
    """

    directories: Sequence[tuple[str, Path]]
    cache: Path | None = None

    def list(self) -> tuple[TemplateInfo, ...]:
        """Return every template that can be rendered, sorted by name; of equal names the winner comes first.

        Raise TemplateError if one cannot be read.
        """
        found: dict[str, list[TemplateInfo]] = {}
        for origin, directory in self.directories:
            for path in sorted(directory.glob(f"*{SUFFIX}")):
                name = path.name.removesuffix(SUFFIX)
                if not name.startswith("_") and name != BASE:
                    same = found.setdefault(name, [])
                    documentation = read_documentation(read_template(path))
                    summary = documentation[0] if documentation else ""
                    same.append(TemplateInfo(name, path, origin, summary, documentation, shadowed=bool(same)))
        return tuple(info for name in sorted(found) for info in found[name])

    def names(self) -> tuple[str, ...]:
        """Return the names of the templates, each once."""
        return tuple(dict.fromkeys(info.name for info in self.list()))

    def find(self, name: str) -> Path:
        """Return the file of a template, named with or without `.sbatch.j2`. Raise TemplateError for an unknown
        name."""
        bare = name.removesuffix(SUFFIX)
        path = self.locate(bare + SUFFIX)
        if path is not None and "/" not in bare:
            return path
        raise TemplateError(f"there is no template {bare!r}", hint=_choices(bare, self.names()))

    def source(self, name: str) -> str:
        """Return the source of a template. Raise TemplateError if the template is unknown or unreadable."""
        return read_template(self.find(name))

    def locate(self, file_name: str) -> Path | None:
        """Return the file that a template extends or includes; `shipped/python.sbatch.j2` names the directory as well.

        Return None if there is none. Only files directly in the directories are found.
        """
        requested, _, bare = file_name.rpartition("/")
        if not bare or bare in (".", ".."):
            return None
        for origin, directory in self.directories:
            with suppress(OSError):  # ENAMETOOLONG: no template either
                if requested in ("", origin) and (directory / bare).is_file():
                    return directory / bare
        return None


def template_library(project: Project) -> TemplateLibrary:
    """Return the templates of a project: its own override the user's, and those override the shipped ones."""
    shipped = shipped_directory(TEMPLATES)
    directories = [
        ("project", project.loaded.project / TEMPLATES),
        ("user", project.system.config_home / "resil" / TEMPLATES),
        ("shipped", shipped),
    ]
    # In a clone of resil itself the project's directory is the shipped one.
    return TemplateLibrary(
        [(name, path) for name, path in directories if name == "shipped" or path != shipped],
        own_directory(project.system.cache_home / "resil" / "templates"),
    )


def read_documentation(source: str) -> tuple[str, ...]:
    """Return the `# resil:` lines of a template without the mark, for instance `("One process.",)`."""
    lines = (line for line in source.splitlines() if line.startswith(DOCUMENTATION))
    return tuple(line.removeprefix(DOCUMENTATION).strip() for line in lines)


def read_template(path: Path) -> str:
    """Return the text of a template file. Raise TemplateError if the file cannot be read."""
    try:
        # The author of a template runs code as the user who submits it.
        if path.stat().st_mode & stat.S_IWOTH:
            raise TemplateError(f"{path} is world-writable", hint=f"chmod o-w {quoted(path)}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TemplateError(f"cannot read the template {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TemplateError(f"the template {path} is not UTF-8 text: {error.reason}") from error


_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIGNAL = re.compile(r"(?!SIG|KILL$|STOP$)[A-Z][A-Z0-9+-]*|[1-9]\d?")
_GUARD_NAME = re.compile(r"RESIL_GUARD__[A-Z][A-Z0-9_]*|RESIL_ALLOW_INJECT")
_CHECKPOINTS_NAME = re.compile(r"RESIL_CHECKPOINTS__[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSpec:
    """The input of a template.

    Attributes:
        run: the run's name.
        run_dir: absolute path of the run directory, on a file system that all nodes share.
        command: the training, a bash command line as the user wrote it; each launcher runs it by `bash -c`.
        directives: sbatch's long options without dashes to their values, None for a flag. job-name, output,
            open-mode and signal are added where they are missing.
        setup: bash lines before the launch: modules, virtual environment. They run as written.
        environment: variables exported before the setup.
        signal: name of the signal for the batch shell, without SIG.
        signal_lead_s: how long before the time limit SLURM sends it.
        beat_s: interval of the batch shell's heartbeat.
        previous_wait_s: how long a job waits for the end of the previous attempt.
        owner_policy: whose switches are accepted: owner, group or any.
        guard: variables with the guard's settings: `RESIL_GUARD__KEY`.
        checkpoints: variables with the store's settings: `RESIL_CHECKPOINTS__KEY`.
        group: Unix group that may control the run; empty keeps the files private.
        user: login name of the submitter, for templates that show it.
        finish_on_success: whether exit code 0 of the training finishes the run.
        act: when the batch shell opens the breaker, whether it may act then, and whether the job requeues itself.
        keep_queued: command line that queues what is missing behind the job, or empty.
        preflight: command line that checks the nodes of the job before the launch, or empty.
        launch_nodes: how many nodes the launch has, where the job has spares; 0: all of the job.
        spares: command line that tells which nodes are left after a failed launch, or empty.
        cron: directory of the cron scheduler that the batch shell restarts when dead; empty: none.
        cron_look_s: interval at which the batch shell checks that scheduler.
        array: whether the script is queued as an array; decides the default name of the output file.
        launcher: variables of the template: `gpus_per_node`, `image`. The template may ignore them.
        variables: the same from `--set`; they take precedence, and unknown ones are refused.
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
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    user: str = ""
    finish_on_success: bool = True
    act: ActSettings = field(default_factory=ActSettings)
    keep_queued: str = ""
    preflight: str = ""
    launch_nodes: int = 0
    spares: str = ""
    cron: str = ""
    cron_look_s: float = 180
    array: bool = False
    launcher: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def template_context(spec: ScriptSpec, template: str) -> dict[str, Any]:
    """Return the variables of a template for a spec.

    Raise TemplateError for a value that cannot be written, and for a name that is reserved by resil.
    """
    if spec.owner_policy not in set(OwnerPolicy):
        raise TemplateError(
            f"{spec.owner_policy!r} is not an owner policy", hint=f"there are: {', '.join(OwnerPolicy)}"
        )
    own: dict[str, Any] = {
        "run": check_run_name(spec.run),
        "run_dir": _check_path(spec.run_dir),
        "template": template,
        "command": _check_bash(spec.command, "the command"),
        "setup": tuple(_check_bash(line, "the setup") for line in spec.setup),
        "environment": tuple((check_variable(name), value) for name, value in sorted(spec.environment.items())),
        "signal": _check(spec.signal, _SIGNAL, "the signal for the batch shell", "USR1"),
        "signal_lead_s": spec.signal_lead_s,
        "beat_s": _number(spec.beat_s),
        "still_s": math.ceil(spec.beat_s),
        "poll_s": _number(min(1, spec.beat_s)),
        "previous_wait_s": math.ceil(spec.previous_wait_s),
        "owner_policy": spec.owner_policy,
        "guard": tuple((_check_guard(name), value) for name, value in sorted(spec.guard.items())),
        "checkpoints": tuple((_check_checkpoints(name), value) for name, value in sorted(spec.checkpoints.items())),
        "group": spec.group,
        "user": spec.user,
        "umask": "007" if spec.group else "077",
        "finish_on_success": spec.finish_on_success,
        "act": spec.act.enabled,
        "breaker_failures": spec.act.failures,
        "breaker_neutral": spec.act.neutral,
        "keep_queued": _check_bash(spec.keep_queued, "the command that keeps jobs queued"),
        "preflight": _check_bash(spec.preflight, "the command that checks nodes"),
        "launch_nodes": spec.launch_nodes,
        "spares": _check_bash(spec.spares, "the command that looks for spares"),
        "requeue": spec.act.requeue,
        "cron": _check_path(spec.cron) if spec.cron else "",
        "cron_look_s": math.ceil(spec.cron_look_s),
        "directives": _directives_function(spec),
        "without_python": without_python,
        "refuse": _refuse,
    }
    for source in (spec.launcher, spec.variables):
        for name in source:
            if name in own:
                raise TemplateError(f"{name!r} is reserved by resil and cannot be set for a template")
            _check(name, _VARIABLE_NAME, "the name of a template variable")
    return own | dict(spec.launcher) | dict(spec.variables)


def _directives_function(spec: ScriptSpec) -> Callable[..., str]:
    def directives(**defaults: object) -> str:
        """Return the `#SBATCH` lines: the spec's, else the template's defaults, else resil's."""
        from markupsafe import Markup

        lines: dict[str, str | None] = {
            "job-name": spec.run,
            # `%` begins a field of a file name pattern (sbatch(1), filename pattern).
            "output": f"{spec.run_dir.replace('%', '%%')}/logs/%x-{'%A_%a' if spec.array else '%j'}.out",
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
        raise TemplateError(f"{what} contains a NUL or carriage return: {text!r}", hint="use Unix line ends")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise TemplateError(f"{what} contains bytes that are not UTF-8: {text!r}")
    return text


_FOR_THE_TRAINING = ("RESIL_GUARD", "RESIL_DRILL", "RESIL_DRILL_DIR")
"""Variables of resil that only the training reads."""


def check_variable(name: str) -> str:
    """Return the name of a variable of [environment]. Raise TemplateError if no script can set it."""
    if name.startswith(("RESIL_", "resil_")) and name not in _FOR_THE_TRAINING:
        raise TemplateError(f"{name} is reserved by resil and cannot be set in [environment]")
    return _check(name, _VARIABLE_NAME, "the name of an environment variable")


def _check_guard(name: str) -> str:
    return _check(name, _GUARD_NAME, "a setting of the guard", "RESIL_GUARD__POLL_S")


def _check_checkpoints(name: str) -> str:
    return _check(name, _CHECKPOINTS_NAME, "a setting of the store", "RESIL_CHECKPOINTS__PATH")


def _check(name: str, pattern: re.Pattern[str], role: str, example: str = "") -> str:
    if pattern.fullmatch(name) is None:
        raise TemplateError(f"{name!r} cannot be {role}", hint=f"write for instance {example}" if example else "")
    return name


def _number(value: float) -> str:
    return f"{value:g}"


_LAUNCH_BEGINS, _LAUNCH_ENDS = "# ---- launch ---", "# ---- epilogue ---"
_LINES_SHOWN = 20


def outline(script: str) -> list[str]:
    """Return the header of a batch script and the lines that launch the training, for a screen.

    For a rendered script, that is its launch section; for a user's own, the lines that start Python or a launcher.
    """
    lines = script.splitlines()
    body = next(
        (number for number, line in enumerate(lines) if not line.startswith("#!") and not _is_option(line)), len(lines)
    )
    header = [*lines[:body], *(line for line in lines[body:] if _is_option(line))]
    begins = next((number for number, line in enumerate(lines) if line.startswith(_LAUNCH_BEGINS)), None)
    if begins is None:
        return [*header, "", *(launch.line for launch in launches_of(script)[-_LINES_SHOWN:])]
    ends = next((n for n, line in enumerate(lines) if line.startswith(_LAUNCH_ENDS)), len(lines))
    command = [line for line in lines[:begins] if line.startswith("resil_command=")]
    return [*header, "", *command, *(line for line in lines[begins + 1 : ends] if line.strip())]


def _is_option(line: str) -> bool:
    return line.startswith("#SBATCH")


_UNDEFINED_HINT = "give it with --set {name}=VALUE, or under [template] in resil.toml"


def render_template(library: TemplateLibrary, file_name: str, context: Mapping[str, object]) -> str:
    """Return a template's text for a context.

    Raise TemplateError, with file, line and variable, for every error in the template.
    """
    import jinja2

    try:
        return _environment(library).get_template(file_name).render(context)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"{_where(error.filename or error.name, error.lineno)}: {error.message}") from error
    except jinja2.UndefinedError as error:
        raise _undefined(error, library) from error
    except jinja2.TemplateNotFound as error:
        raise TemplateError(f"{file_name}: there is no {error.message!r} to extend or include") from error
    except TemplateError as error:
        raise TemplateError(f"{file_name}: {error.message}", hint=error.hint) from error
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
        where = _where(*_place(error, library))
        raise TemplateError(f"{where}: {type(error).__name__}: {error}") from error


def variables_of(library: TemplateLibrary, file_name: str) -> frozenset[str]:
    """Return the variables of a template and of the templates that it extends or includes.

    Raise TemplateError if one of them cannot be parsed.
    """
    import jinja2
    from jinja2 import meta

    environment = _environment(library)
    names: set[str] = set()
    pending, seen = [file_name], set[str]()
    while pending:
        current = pending.pop()
        path = library.locate(current)
        if current in seen or path is None:
            continue
        seen.add(current)
        try:
            tree = environment.parse(_prepare(read_template(path)))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"{_where(str(path), error.lineno)}: {error.message}") from error
        names |= meta.find_undeclared_variables(tree)
        pending.extend(other for other in meta.find_referenced_templates(tree) if other is not None)
    return frozenset(names)


def _environment(library: TemplateLibrary) -> Environment:
    """Return a Jinja sandbox for the library's files. No security boundary: the result is a shell script anyway."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from markupsafe import Markup

    @jinja2.pass_context  # so that constants are handled like variables
    def finalize(_: Context, value: object) -> object:
        return value if isinstance(value, jinja2.Undefined) else Markup(_to_bash(value))

    def load(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        path = library.locate(name)
        return None if path is None else (_prepare(read_template(path)), str(path), lambda: True)

    class Cache(jinja2.FileSystemBytecodeCache):
        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):  # a full home directory must not fail the submit
                super().dump_bytecode(bucket)

    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        # Markup marks what is already bash: blocks, macros, `| raw`. Nothing is ever escaped as HTML.
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=None if library.cache is None else Cache(str(library.cache)),
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
    """Remove the documentation, and escape bash's `${#array[@]}`, which begins a Jinja comment. Keeps line numbers."""
    lines = ("{# #}" if line.startswith(DOCUMENTATION) else line for line in source.split("\n"))
    return "\n".join(lines).replace("${#", "{{ '${#' | raw }}")


def _undefined(error: Exception, library: TemplateLibrary) -> TemplateError:
    match = re.search(r"'(\w+)'(?: is undefined)?$", str(error)) or re.match(r"'(\w+)' is undefined", str(error))
    file, line = _place(error, library)
    if match is None:
        return TemplateError(f"{_where(file, line)}: {error}")
    if file is not None:  # Jinja knows where the text around the variable begins
        lines = read_template(Path(file)).split("\n")
        uses = (n for n, text in enumerate(lines, 1) if n >= line and re.search(rf"\b{match[1]}\b", text))
        line = next(uses, line)
    return TemplateError(
        f"{_where(file, line)}: the variable {match[1]!r} is not set", hint=_UNDEFINED_HINT.format(name=match[1])
    )


def _place(error: BaseException, library: TemplateLibrary) -> tuple[str | None, int]:
    """Return file and line of the template that raised: Jinja puts them into the traceback."""
    directories = {str(directory) for _, directory in library.directories}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if str(Path(frame.filename).parent) in directories:
            return frame.filename, frame.lineno or 0
    return None, 0


def _where(file: str | None, line: int) -> str:
    return f"{file or 'template'}, line {line}" if line else str(file or "template")


_GLUED = re.compile(r'^#SBATCH[^"\n]*#SBATCH.*$', re.MULTILINE)


def render(library: TemplateLibrary, template_name: str, spec: ScriptSpec) -> str:
    """Return the batch script for a spec.

    Every value is quoted. Raise TemplateError, with file, line and variable if known, for an unknown template, for a
    variable that is not set, or if sbatch would misread the result.
    """
    path = library.find(template_name)
    name = path.name.removesuffix(SUFFIX)
    context = template_context(spec, name)
    if unknown := unknown_variables(library, name, spec.variables):  # a misspelt --set would have no effect
        raise unknown[0]
    script = render_template(library, path.name, context).rstrip("\n") + "\n"
    _refuse_misread(script, name)
    return script


def unknown_variables(library: TemplateLibrary, template: str, given: Collection[str]) -> tuple[TemplateError, ...]:
    """Return an error, with the nearest name as hint, for each name that is no variable of a template.

    Raise TemplateError if the template cannot be parsed.
    """
    if not given:
        return ()
    of_resil = template_context(ScriptSpec(run="run", run_dir="/", command=""), template)
    known = sorted(variables_of(library, library.find(template).name) - of_resil.keys())
    return tuple(
        TemplateError(f"template {template} has no variable {name!r}", hint=_choices(name, known))
        for name in sorted(set(given) - set(known))
    )


def _refuse_misread(script: str, name: str) -> None:
    """Raise TemplateError for text that sbatch would silently misread."""
    if not script.startswith("#!"):
        raise TemplateError(f"template {name} does not begin with #!", hint="make its first line #!/bin/bash")
    if "\r" in script or "\0" in script:
        raise TemplateError(f"template {name} makes a script with carriage returns", hint="use Unix line ends")
    if "#SBATCH" in script[1:].replace("\n#SBATCH", "") and (glued := _GLUED.search(script)):
        raise TemplateError(
            f"template {name} writes a directive that does not begin its line: {glued[0][:80]!r}",
            hint="a Jinja tag at the end of a line removes the line break; put the tag on its own line",
        )
    if late := parse_directives(script).late:
        raise TemplateError(f"template {name} writes {late[0]!r} after the first command, where sbatch ignores it")
