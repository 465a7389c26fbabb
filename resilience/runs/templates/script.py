"""A template and a spec make a batch script that stands on its own: no Python, no resil, on the compute node."""

from __future__ import annotations

import re
from difflib import get_close_matches

from resilience.errors import TemplateError
from resilience.runs.templates.context import ScriptSpec, template_context
from resilience.runs.templates.directives import parse_directives
from resilience.runs.templates.engine import render_template, variables_of
from resilience.runs.templates.library import SUFFIX, TemplateLibrary

__all__ = ["ScriptSpec", "render"]

_GLUED = re.compile(r'^#SBATCH[^"\n]*#SBATCH.*$', re.MULTILINE)


def render(library: TemplateLibrary, template_name: str, spec: ScriptSpec) -> str:
    """Return the batch script for a spec.

    Every value is quoted on its way into the text. Raise TemplateError, naming file, line and variable where there is
    one, if there is no such template, if it asks for what is not given, or if sbatch would misread the result.
    """
    path = library.find(template_name)
    name = path.name.removesuffix(SUFFIX)
    context = template_context(spec, name)
    if spec.variables:
        own = set(context) - set(spec.launcher) - set(spec.variables)
        _refuse_unknown(name, set(spec.variables), variables_of(library, path.name) - own)
    script = render_template(library, path.name, context).rstrip("\n") + "\n"
    _check(script, name)
    return script


def _refuse_unknown(template: str, given: set[str], settable: frozenset[str]) -> None:
    """A misspelt `--set` would change nothing, silently: refuse it."""
    for name in sorted(given - settable):
        near = get_close_matches(name, settable, n=1)
        mean = f"did you mean {near[0]}? " if near else ""
        choice = ", ".join(sorted(settable)) or "none that can be set"
        raise TemplateError(f"template {template} has no variable {name!r}", hint=f"{mean}there are: {choice}")


def _check(script: str, name: str) -> None:
    """Find what sbatch would misread without a word."""
    if not script.startswith("#!"):
        raise TemplateError(f"template {name} does not begin with #!", hint="make its first line #!/bin/bash")
    if "\r" in script or "\0" in script:
        raise TemplateError(f"template {name} makes a script with carriage returns", hint="use Unix line ends")
    if "#SBATCH" in script[1:].replace("\n#SBATCH", "") and (glued := _GLUED.search(script)):
        raise TemplateError(
            f"template {name} writes a directive that does not begin its line: {glued[0][:80]!r}",
            hint="a Jinja tag at the end of a line takes the line end with it; put it on a line of its own",
        )
    if late := parse_directives(script).late:
        raise TemplateError(f"template {name} writes {late[0]!r} after the first command, where sbatch ignores it")
