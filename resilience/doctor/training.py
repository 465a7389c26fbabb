"""Whether the Python of the training can import the guard: which program to ask, how to ask it, and the judgement.

The same shell function asks on the login node and, in `resil doctor --on-node`, inside a job.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.doctor.diagnosis import Diagnosis
from resilience.finding import Verdict
from resilience.runs.templates.directives import quote_bash

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.settings.sections import RunSettings

ASK_S = 30.0
"""Time limit for the training's Python; importing the guard takes milliseconds on a disk that responds."""

TOPIC = "training"
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
"""Templates whose launcher is a program of the same name, with its Python in its first line."""

_IMPORT = (
    "import sys\n"
    "if sys.version_info < (3, 11): sys.exit('Python %d.%d is too old: the guard needs 3.11' % sys.version_info[:2])\n"
    "import resilience.guard\n"
    "print(sys.executable)"
)

ASK = f"""\
ask_training() {{ # DIRECTORY PROGRAM: print `training`, an outcome, the interpreter and the last line of its answer
  local first interpreter answer
  if [ ! -d "$1" ]; then
    printf 'training\\tno-directory\\t%s\\t\\n' "$1"
    return
  fi
  cd -- "$1" || return
  if ! program=$(type -P -- "$2"); then
    printf 'training\\tmissing\\t%s\\t\\n' "$2"
    return
  fi
  interpreter=("$program")
  case ${{program##*/}} in
  python | python[0-9]*) ;;
  *) # torchrun, accelerate: programs in Python
    IFS= read -r first 2>/dev/null <"$program" || true
    if [[ $first != '#!'*python* ]]; then
      printf 'training\\tno-python\\t%s\\t\\n' "$program"
      return
    fi
    read -ra interpreter <<<"${{first#'#!'}}"
    ;;
  esac
  if answer=$("${{interpreter[@]}}" -c {shlex.quote(_IMPORT)} 2>&1 </dev/null); then
    printf 'training\\timported\\t%s\\t\\n' "${{answer##*$'\\n'}}"
  else
    answer=${{answer##*$'\\n'}}
    printf 'training\\tfailed\\t%s\\t%s\\n' "$program" "${{answer//$'\\t'/ }}"
  fi
}}
"""
"""A function of bash; `read` of a binary program finds no first line."""


@dataclass(frozen=True, slots=True)
class Question:
    """The program to ask.

    Attributes:
        directory: working directory in which Python finds the modules that the training finds.
        program: the first word of the command, or the launcher.
        variables: assignments in front of the command.
    """

    directory: str
    program: str
    variables: tuple[tuple[str, str], ...] = ()

    def call(self) -> str:
        """Return the line of bash that asks, after ASK."""
        exports = "".join(f"export {name}={quote_bash(value)}; " for name, value in self.variables)
        return f"( {exports}ask_training {quote_bash(self.directory)} {quote_bash(self.program)} )"


def question_of(run: RunSettings, project: Path) -> Question | str:
    """Return the program to ask for a run's settings, or why none can be named. Pure."""
    if not run.command.strip():
        return "there is no command under [run] in resil.toml"
    if run.template == "container":
        return "the training runs in an image"
    try:
        words = shlex.split(run.command)
    except ValueError:
        words = []
    variables = []
    while words and (found := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
        variables.append((found[1], found[2]))
        words.pop(0)
    if not words or re.search(r"[$;&|<>`(){}*?~\n]", run.command):
        return "the command is more than a program and its arguments"
    program = run.template if run.template in LAUNCHERS else words[0]
    script = next((word for word in words if word.endswith(".py")), "")
    return Question(str((project / script).parent if script else project), program, tuple(variables))


def judge_training(words: list[str], where: str) -> Diagnosis:
    """Return the diagnosis for the answer of `ask_training`: its outcome, the program, the last line. Pure."""
    outcome, program, said = (*words, "", "", "")[:3]
    asked = f"{program} -c 'import resilience.guard'"
    if outcome == "imported":
        return Diagnosis(TOPIC, Verdict.OK, f"{asked} succeeded {where}")
    if outcome == "failed":
        advice = "use a newer Python for the training" if "too old" in said else install_command(program)
        return Diagnosis(TOPIC, Verdict.WARNING, f"{asked} failed {where}: {said}; without the guard the training "
                         "cannot save in time", advice)  # fmt: skip
    if outcome == "missing":
        advice = "correct command under [run] in resil.toml, or load its environment in setup"
        return Diagnosis(TOPIC, Verdict.WARNING, f"there is no program {program} on PATH {where}", advice)
    if outcome == "no-directory":
        return Diagnosis(TOPIC, Verdict.WARNING, f"there is no directory {program} {where}", "correct command in [run]")
    why = f"{program} is not a program in Python: its Python is not known" if program else "its shell gave no answer"
    return Diagnosis(TOPIC, Verdict.UNKNOWN, f"{why} {where}".rstrip(), ASK_YOURSELF)


ASK_YOURSELF = "ask the Python of the training: python -c 'import resilience.guard'"


def install_command(python: str) -> str:
    """Return the command that installs the guard for a Python: from the clone that this resil came from, if any."""
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    source = "CLONE"
    try:  # PEP 610
        url = json.loads(distribution("resil").read_text("direct_url.json") or "{}").get("url", "")
        path = unquote(urlsplit(url).path)
        if url.startswith("file:") and Path(path).exists():
            source = path
    except (PackageNotFoundError, ValueError):
        pass
    return shlex.join([python, "-m", "pip", "install", "--no-deps", source])


def diagnose_training(project: Project) -> Iterator[Diagnosis]:
    """Ask the Python of the training on this machine. Its `setup` is not run here: it may load or start anything."""
    run = project.loaded.settings.run
    question = question_of(run, project.loaded.project)
    if isinstance(question, str):
        if run.command.strip():
            yield Diagnosis(TOPIC, Verdict.UNKNOWN, f"{question}: its Python was not asked", ASK_YOURSELF)
        return
    if run.setup:
        text = "its Python was not asked here, because setup under [run] may choose another one"
        yield Diagnosis(TOPIC, Verdict.UNKNOWN, text, "resil doctor --on-node")
        return
    environ = {
        **project.system.environ,
        **{key: str(value) for key, value in project.loaded.settings.environment.items()},
    }
    done = project.system.runner.run(["bash", "-c", f"{ASK}{question.call()}"], timeout_s=ASK_S, env=environ)
    answer = next((line for line in done.stdout.splitlines() if line.startswith("training\t")), "training")
    yield judge_training(answer.split("\t")[1:], "on this machine")
