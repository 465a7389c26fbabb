"""Which options sbatch has, and what a call means: from the command line, SBATCH_* and #SBATCH lines. Pure.

Source: sbatch(1) of 22.05 to 26.05. The command line wins over the environment, the environment over the script.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resilience.errors import SchedulerError, UsageError

Given = tuple[str, str | None]
"""A long option's name and its value; None for a flag."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FLAGS_MEANT = frozenset({"requeue", "no-requeue", "hold", "oversubscribe"})
VALUES_MEANT = _words(
    "job-name array dependency time signal output error input open-mode export chdir begin comment cpus-per-task "
    "ntasks nodes ntasks-per-node kill-on-invalid-dep"
)
_FLAGS_SILENT = frozenset({"parsable", "quiet", "verbose", "test-only", "ignore-pbs"})
_FLAGS_IGNORED = _words("contiguous exclusive-user no-kill overcommit reboot spread-job use-min-nodes wait")
_OPTIONAL_IGNORED = frozenset({"exclusive", "nice", "get-user-env", "propagate"})
_VALUES_IGNORED = _words(
    "account acctg-freq batch bb bbf cluster-constraint clusters constraint container container-id core-spec "
    "cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot distribution exclude export-file extra "
    "extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint "
    "licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist "
    "ntasks-per-core ntasks-per-gpu ntasks-per-socket partition power prefer priority profile qos reservation segment "
    "sockets-per-node switches thread-spec threads-per-core time-min tmp tres-bind tres-per-task uid wait-all-nodes "
    "wckey"
)
_SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input",
    "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes",
    "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "S": "core-spec",
    "s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_FLAGS = FLAGS_MEANT | _FLAGS_SILENT | _FLAGS_IGNORED
_OPTIONAL = _OPTIONAL_IGNORED
_VALUES = VALUES_MEANT | _VALUES_IGNORED
_EVERY = _FLAGS | _OPTIONAL | _VALUES
_RENAMED = {"workdir": "chdir", "share": "oversubscribe"}
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


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for.

    Attributes:
        values: the options with a meaning here.
        ignored: the other options that were given, as written (`--partition`).
    """

    values: Mapping[str, str | None]
    ignored: tuple[str, ...]

    def get(self, name: str) -> str | None:
        """The value of an option, None when it was not given."""
        return self.values.get(name)

    def has(self, name: str) -> bool:
        """Whether it was given."""
        return name in self.values


def collect(
    options: Mapping[str, str | None], extra_args: Sequence[str], environ: Mapping[str, str], script: str
) -> Options:
    """Merge what all four places say. Raise UsageError for an option that sbatch does not have."""
    layers = [
        parse_arguments(script_arguments(script)),
        [
            (name, None if name in _FLAGS else value)
            for key, name in _ENVIRONMENT.items()
            if (value := environ.get(key))
        ],
        [_checked(name, value) for name, value in options.items()],
        parse_arguments(extra_args),
    ]
    values: dict[str, str | None] = {}
    ignored: dict[str, None] = {}
    for layer in layers:
        for name, value in layer:
            if name in FLAGS_MEANT or name in VALUES_MEANT:
                if name in ("requeue", "no-requeue"):
                    values.pop("requeue", None)
                    values.pop("no-requeue", None)
                values[name] = value
            elif name not in _FLAGS_SILENT:
                ignored[f"--{name}"] = None
    return Options(values, tuple(ignored))


def parse_arguments(arguments: Sequence[str]) -> list[Given]:
    """Given sbatch's arguments before the script, return them by their long names.

    Understood: `--opt value`, `--opt=value`, unique beginnings of long names, `-t 10`, `-t10`, `-Ht10`.
    Raise UsageError for what is no option of sbatch or lacks its value.
    """
    found: list[Given] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = _long_name(name)
            if name in _FLAGS and equals:
                raise UsageError(f"sbatch: option '--{name}' doesn't allow an argument")
            if name in _VALUES and not equals:
                value = _following(rest, f"option '--{name}' requires an argument")
            found.append((name, value if equals or name in _VALUES else None))
        elif word.startswith("-") and len(word) > 1 and word != "--":
            found.extend(_short_options(word[1:], rest))
        else:
            raise UsageError(
                f"sbatch: {word!r} is not an option", hint="the script is given apart; its arguments too, after it"
            )
    return found


def takes_value(word: str) -> bool:
    """Whether the value of this option is the next argument. For instance, `-t` yes, `-t10` and `--time=10` no."""
    if word.startswith("--"):
        name, equals, _ = word[2:].partition("=")
        return not equals and _long_name(name) in _VALUES
    for place, letter in enumerate(word[1:], start=1):
        if _SHORT.get(letter) in _VALUES:
            return place == len(word) - 1
    return False


def _short_options(letters: str, rest: list[str]) -> list[Given]:
    found: list[Given] = []
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _SHORT.get(letter)
        if name is None:
            raise UsageError(f"sbatch: invalid option -- '{letter}'", hint='try "sbatch --help"')
        if name in _FLAGS:
            found.append((name, None))
            continue
        value = letters or _following(rest, f"option requires an argument -- '{letter}'")
        found.append((name, value.removeprefix("=") if letters else value))
        letters = ""
    return found


def _following(rest: list[str], complaint: str) -> str:
    if not rest:
        raise UsageError(f"sbatch: {complaint}")
    return rest.pop(0)


def _long_name(name: str) -> str:
    if name in _EVERY:
        return name
    if name in _RENAMED:
        return _RENAMED[name]
    beginnings = [known for known in sorted(_EVERY) if known.startswith(name)] if name else []
    if len(beginnings) == 1:
        return beginnings[0]
    if name == "wrap":
        raise UsageError("sbatch: --wrap is not known here", hint="write the command into a script")
    import difflib

    near = difflib.get_close_matches(name, sorted(_EVERY), n=1, cutoff=0.5)
    if beginnings:
        raise UsageError(f"sbatch: option '--{name}' is ambiguous", hint=f"one of {', '.join(beginnings[:5])}?")
    raise UsageError(
        f"sbatch: unrecognized option '--{name}'",
        hint=f"did you mean --{near[0]}?" if near else "see sbatch(1) for its options",
    )


def _checked(name: str, value: str | None) -> Given:
    """One pair of Submission.options."""
    long = _long_name(name.removeprefix("--"))
    if long in _FLAGS:
        return long, None
    if long in _VALUES and value is None:
        raise UsageError(f"sbatch: option '--{long}' requires an argument")
    return long, value


def script_arguments(script: str) -> list[str]:
    """The arguments on the `#SBATCH` lines of a script, up to its first command."""
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
    """Refuse what sbatch refuses (sbatch.c): an empty file, no `#!`, DOS line breaks. Raise SchedulerError."""
    if not content:
        raise SchedulerError("Batch script is empty!", hint=f"{path} has no content")
    if not content.strip():
        raise SchedulerError("Batch script contains only whitespace!", hint=f"{path} has no command")
    if not content.startswith(b"#!"):
        raise SchedulerError(
            "This does not look like a batch script.  The first line must start with #! followed by the path to an "
            "interpreter.",
            hint=f"begin {path} with #!/bin/bash",
        )
    if b"\r\n" in content:
        raise SchedulerError(
            r"Batch script contains DOS line breaks (\r\n) instead of expected UNIX line breaks (\n).",
            hint=f"sed -i 's/\\r$//' {path}",
        )
    if b"\0" in content:
        raise SchedulerError("The SLURM controller does not allow scripts that contain a NULL character '\\0'.")
