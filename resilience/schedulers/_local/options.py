"""Parses the command lines of SLURM's clients, and merges the sources of sbatch's options. Pure.

Source: getopt_long(3), and sbatch(1) of 22.05 to 26.05. For sbatch the command line overrides the environment, and the
environment overrides the script.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilience.errors import SchedulerError, UsageError
from resilience.messages import nearest, quoted
from resilience.submission import FLAG_OPTIONS, OPTIONAL_OPTIONS, SHORT_OPTIONS, VALUE_OPTIONS

Given = tuple[str, str | None]
"""A long option's name and its value; None for a flag."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text, for a table of options."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Syntax:
    """The options of one command.

    Attributes:
        flags: long names of the options without a value.
        values: long names of the options that need a value.
        optional: long names of the options that take a value only when attached (`--exclusive=user`).
        short: one-letter options to their long names.
        renamed: deprecated long names to the current ones.
        lenient: accept unknown options, each with a value.
    """

    program: str
    flags: frozenset[str]
    values: frozenset[str]
    optional: frozenset[str] = frozenset()
    short: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    lenient: bool = False

    def parse(self, arguments: Sequence[str]) -> tuple[list[Given], list[str]]:
        """Return the options by their long names, and the arguments from the first non-option on.

        Supported: `--opt value`, `--opt=value`, unique prefixes of long names, `-t 10`, `-t10`, `-t=10`, `-Ht10`,
        and `--` as the end of the options. Raise UsageError for an unknown option or a missing value.
        """
        found: list[Given] = []
        rest = list(arguments)
        while rest and rest[0].startswith("-") and rest[0] != "-":
            word = rest.pop(0)
            if word == "--":
                break
            if word.startswith("--"):
                found.append(self._long_option(word[2:], rest))
            else:
                found.extend(self._short_options(word[1:], rest))
        return found, rest

    def pair(self, name: str, value: str | None) -> Given:
        """Return an option given by name and value, as `parse` does."""
        long = self._long_name(name)
        if long in self.values and value is None:
            raise UsageError(f"{self.program}: option '--{long}' requires an argument")
        return long, None if long in self.flags else value

    def _long_option(self, word: str, rest: list[str]) -> Given:
        name, equals, value = word.partition("=")
        name = self._long_name(name)
        if equals and name in self.flags and not self.lenient:
            raise UsageError(f"{self.program}: option '--{name}' doesn't allow an argument")
        if not equals and self._needs_value(name):
            return name, self._next(rest, f"option '--{name}' requires an argument")
        return name, value if equals else None

    def _short_options(self, letters: str, rest: list[str]) -> list[Given]:
        found: list[Given] = []
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter not in self.short and not self.lenient:
                raise UsageError(f"{self.program}: invalid option -- '{letter}'", hint=self._manual)
            name = self.short.get(letter, letter)
            if name in self.flags:
                found.append((name, None))
            elif letters or not self._needs_value(name):
                found.append((name, letters.removeprefix("=") or None))
                break
            else:
                found.append((name, self._next(rest, f"option requires an argument -- '{letter}'")))
        return found

    @property
    def _manual(self) -> str:
        return f"see {self.program}(1); the embedded scheduler supports the common options"

    def _needs_value(self, name: str) -> bool:
        return name in self.values or (self.lenient and name not in self.flags | self.optional)

    def _next(self, rest: list[str], complaint: str) -> str:
        if not rest:
            raise UsageError(f"{self.program}: {complaint}")
        return rest.pop(0)

    def _long_name(self, name: str) -> str:
        name = self.renamed.get(name, name)
        known = sorted(self.flags | self.values | self.optional)
        if name in known or self.lenient:
            return name
        beginnings = [one for one in known if one.startswith(name)] if name else []
        if len(beginnings) == 1:
            return beginnings[0]
        if beginnings:
            raise UsageError(
                f"{self.program}: option '--{name}' is ambiguous", hint=f"one of {', '.join(beginnings[:5])}?"
            )
        if name == "wrap":
            raise UsageError(f"{self.program}: --wrap is not supported", hint="write the command into a script")
        near = nearest(name, known)
        raise UsageError(
            f"{self.program}: unrecognized option '--{name}'", hint=f"did you mean --{near}?" if near else self._manual
        )


_FLAGS = words("requeue no-requeue hold oversubscribe")
_VALUES = words(
    "job-name array dependency time signal output error input open-mode export chdir begin comment cpus-per-task "
    "ntasks nodes ntasks-per-node kill-on-invalid-dep"
)
"""The options that the embedded scheduler supports."""
_SILENT = words("parsable quiet verbose test-only ignore-pbs")
"""Options of the client only. All others are ignored with a note."""
SBATCH = Syntax(
    "sbatch",
    flags=FLAG_OPTIONS,
    values=VALUE_OPTIONS,
    optional=OPTIONAL_OPTIONS,
    short=SHORT_OPTIONS,
    renamed={"workdir": "chdir", "share": "oversubscribe"},
)
_ENVIRONMENT = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_ERROR": "error",
    "SBATCH_EXPORT": "export",
    "SBATCH_INPUT": "input",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GRES": "gres",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
}


def collect(
    options: Mapping[str, str | None], extra_args: Sequence[str], environ: Mapping[str, str], script: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Merge the options of all four sources.

    Return the values of the supported options (empty for a flag), and the names of the others (`--partition`). Raise
    UsageError for an option that sbatch does not have.
    """
    layers = [
        parse_options(script_arguments(script)),
        [SBATCH.pair(name, value) for key, name in _ENVIRONMENT.items() if (value := environ.get(key))],
        [SBATCH.pair(name.removeprefix("--"), value) for name, value in options.items()],
        parse_options(extra_args),
    ]
    values: dict[str, str] = {}
    ignored: dict[str, None] = {}
    for name, value in (given for layer in layers for given in layer):
        if name in _FLAGS | _VALUES:
            if name in ("requeue", "no-requeue"):
                values.pop("requeue", None)
                values.pop("no-requeue", None)
            values[name] = value or ""
        elif name not in _SILENT:
            ignored[f"--{name}"] = None
    return values, tuple(ignored)


def parse_options(arguments: Sequence[str]) -> list[Given]:
    """Parse sbatch's arguments before the script. Raise UsageError for an argument that is not an option."""
    found, rest = SBATCH.parse(arguments)
    if rest:
        raise UsageError(
            f"sbatch: {rest[0]!r} is not an option", hint="the script and its arguments are given separately"
        )
    return found


def script_arguments(script: str) -> list[str]:
    """Return the arguments on the `#SBATCH` lines of a script, up to its first command."""
    arguments: list[str] = []
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith("#SBATCH"):
            rest = line.removeprefix("#SBATCH")
            if rest and not rest[0].isspace():
                continue
            try:
                arguments.extend(shlex.split(rest, comments=True))
            except ValueError as error:
                raise UsageError(f"line {number} of the script cannot be read: {line!r}", hint=str(error)) from error
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return arguments


def check_script(content: bytes, path: str) -> None:
    """Raise SchedulerError for scripts that sbatch rejects (sbatch.c): empty, without `#!`, with DOS line breaks."""
    refusals = (
        (not content, "Batch script is empty!", f"{path} has no content"),
        (not content.strip(), "Batch script contains only whitespace!", f"{path} has no command"),
        (
            not content.startswith(b"#!"),
            "This does not look like a batch script.  The first line must start with #! followed by the path to an "
            "interpreter.",
            f"begin {path} with #!/bin/bash",
        ),
        (
            b"\r\n" in content,
            r"Batch script contains DOS line breaks (\r\n) instead of expected UNIX line breaks (\n).",
            f"sed -i 's/\\r$//' {quoted(path)}",
        ),
        (b"\0" in content, r"The SLURM controller does not allow scripts that contain a NULL character '\0'.", ""),
    )
    for refused, message, hint in refusals:
        if refused:
            raise SchedulerError(message, hint=hint)
