"""Jinja2 as resil uses it: every value becomes bash on its way out, and every error one sentence."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.errors import TemplateError
from resilience.runs.templates.library import DOCUMENTATION, TemplateLibrary
from resilience.runs.templates.quoting import quote_bash

if TYPE_CHECKING:  # Jinja2 costs 40 ms at start; it is imported when something is rendered
    from jinja2 import Environment
    from jinja2.bccache import Bucket
    from jinja2.runtime import Context

_UNDEFINED_HINT = "give it with --set {name}=VALUE, or under [template] in resil.toml"


def render_template(library: TemplateLibrary, file_name: str, context: Mapping[str, object]) -> str:
    """Return a template's text for a context.

    Raise TemplateError, naming file, line and variable, for whatever is wrong in it.
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
    """The variables that a template, and what it extends or includes, asks for.

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
            tree = environment.parse(_prepare(library.read(path)))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"{_where(str(path), error.lineno)}: {error.message}") from error
        names |= meta.find_undeclared_variables(tree)
        pending.extend(other for other in meta.find_referenced_templates(tree) if other is not None)
    return frozenset(names)


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

    class Cache(jinja2.FileSystemBytecodeCache):
        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):  # a full home costs the time of compiling again, and no submit
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
    """Leave the documentation out, and let bash's `${#array[@]}` not begin a comment of Jinja's. Lines stay lines."""
    lines = ("{# #}" if line.startswith(DOCUMENTATION) else line for line in source.split("\n"))
    return "\n".join(lines).replace("${#", "{{ '${#' | raw }}")


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
