"""The syntax of sbatch: its variables, quoting for sbatch and bash, and parsing of `#SBATCH` lines. Pure.

Source: sbatch(1) and the behaviour of sbatch 22.05.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from resilience.errors import TemplateError
from resilience.submission import FLAG_OPTIONS, OPTIONAL_OPTIONS, SHORT_OPTIONS

# ---- `SBATCH_*` variables: they win over the directives of a script, and the command line wins over them -------------
# sbatch(1) of 22.05, INPUT ENVIRONMENT.

_OTHER_NAMES = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_DEBUG": "verbose",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_TIMELIMIT": "time",
}

# fmt: off
_SAME_NAMES = frozenset({
    "account", "acctg-freq", "batch", "clusters", "constraint", "container", "core-spec", "cpus-per-gpu",
    "delay-boot", "distribution", "error", "exclusive", "export", "get-user-env", "gpu-bind", "gpu-freq", "gpus",
    "gpus-per-node", "gpus-per-task", "gres", "gres-flags", "hint", "ignore-pbs", "input", "job-name", "mem-bind",
    "mem-per-cpu", "mem-per-gpu", "network", "no-kill", "no-requeue", "open-mode", "output", "overcommit",
    "partition", "power", "profile", "qos", "requeue", "reservation", "signal", "spread-job", "thread-spec",
    "threads-per-core", "use-min-nodes", "wait", "wait-all-nodes", "wckey",
})
# fmt: on


def option_of(variable: str) -> str | None:
    """Return the long option that a variable sets, or None: SBATCH_QOS sets qos."""
    name = variable.removeprefix("SBATCH_").lower().replace("_", "-")
    return _OTHER_NAMES.get(variable) or (name if variable.startswith("SBATCH_") and name in _SAME_NAMES else None)


# ---- quoting: values as bash and sbatch read them back, byte for byte -----------------------------------------------

DIRECTIVE_LIMIT = 1000
"""Longest value of a directive, in bytes. sbatch refuses longer comments ("... parameter too long")."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PLAIN_DIRECTIVE = re.compile(r"[\w@%+=:,./\[\]*-]+", re.ASCII)
_OPTION_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "'": "\\'", "\\": "\\\\"}


def quote_bash(text: str) -> str:
    """Return any text as one word of bash, on one line, with exactly its bytes.

    Control characters go into `$'...'`, so that no value can begin a new line of the script, not even in a comment.
    Raise TemplateError for NUL, which no argument or variable can hold.
    """
    if "\0" in text:
        raise TemplateError(f"a value cannot hold a NUL character: {text!r}")
    if _CONTROL.search(text) is None:
        return shlex.quote(text)
    return "$'" + "".join(map(_escape, text)) + "'"


def _escape(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if _CONTROL.match(character) is None:
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def write_directive(name: str, value: str | None) -> str:
    """Return the `#SBATCH` line of a long option and its value (None: a flag).

    sbatch reads values much as a shell does: quotes and backslashes count, `#` begins a comment, nothing is expanded
    (sbatch's own parser, checked against 22.05). A line break would begin a new line of the script. Raise TemplateError
    for values that cannot be written.
    """
    if _OPTION_NAME.fullmatch(name) is None:
        raise TemplateError(
            f"{name!r} is not a long option of sbatch", hint="write it without dashes in front: job-name"
        )
    if value is None:
        return f"#SBATCH --{name}"
    if _CONTROL.search(value):
        raise TemplateError(
            f"--{name} cannot be {value!r}: it contains a line break or another control character",
            hint="use one line of text",
        )
    if len(value.encode()) > DIRECTIVE_LIMIT:
        raise TemplateError(f"--{name} is longer than {DIRECTIVE_LIMIT} bytes: {value[:60]!r}...")
    if value and _PLAIN_DIRECTIVE.fullmatch(value):
        return f"#SBATCH --{name}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{name}="{escaped}"'


def without_python(command: str, module: str = "-m") -> str:
    """Return a command line without the leading `python`, as launchers need it.

    For instance, `python -u train.py --lr 1` gives `train.py --lr 1`, and `python -m pkg.train` gives `-m pkg.train`,
    with `module` in the place of `-m`. Anything else is returned as it is.
    """
    match = re.match(r"\s*(?:\S*/)?python3?(?:\.\d+)?\s+(?:-u\s+)?(-m\s+)?(?=[^-\s])", command)
    if match is None:
        return command
    return (f"{module} " if match[1] else "") + command[match.end() :]


# ---- reading directives --------------------------------------------------------------------------------------------

MARK = "#SBATCH"

_FLAGS = FLAG_OPTIONS | OPTIONAL_OPTIONS
"""The next word is never their value."""


@dataclass(frozen=True, slots=True)
class Directives:
    """The directives of a script.

    Attributes:
        options: long names to values, in their order; None for a flag. A later one of the same name wins, as with
            sbatch.
        late: the directives after the first command, as written; sbatch silently ignores them.
        crlf: whether the script has DOS line ends, which sbatch refuses.
        problems: a message for each directive that cannot be parsed.
    """

    options: tuple[tuple[str, str | None], ...]
    late: tuple[str, ...] = ()
    crlf: bool = False
    problems: tuple[str, ...] = ()


def parse_directives(script: str) -> Directives:
    """Return the directives of a batch script, short options by their long names. Never raises."""
    options: dict[str, str | None] = {}
    problems: list[str] = []
    lines = script.splitlines()
    body = next((n for n, line in enumerate(lines) if (text := line.strip()) and not text.startswith("#")), len(lines))
    # The body of a rendered script is hundreds of lines without a directive; most scripts have none there.
    has_late = f"\n{MARK}" in "\n".join(lines[body:])
    late = [line.rstrip() for line in lines[body:] if _is_directive(line)] if has_late else []
    for line in lines[:body]:
        if not _is_directive(line):
            continue
        words, problem = split_words(line[len(MARK) :])
        if problem:
            problems.append(f"{line.rstrip()!r}: {problem}")
        for name, value in _options(words, problems):
            options.pop(name, None)  # keep the place of the last one
            options[name] = value
    return Directives(tuple(options.items()), tuple(late), "\r\n" in script, tuple(problems))


def _is_directive(line: str) -> bool:
    return line.startswith(MARK) and not line[len(MARK) : len(MARK) + 1].strip()


def split_words(text: str) -> tuple[list[str], str]:
    """Return the words after `#SBATCH`, and a syntax error or an empty text.

    Splits as sbatch 22.05 does, not as a shell: a backslash also escapes within single quotes, does not keep a
    blank outside of quotes, `#` begins a comment anywhere, and nothing is expanded.
    """
    words: list[str] = []
    word: str | None = None
    quote = ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            character = next(characters, "")
            if character.isspace() and not quote:
                words.append(word or "")
                word = None
            else:
                word = (word or "") + character
        elif quote:
            if character == quote:
                quote = ""
            else:
                word = (word or "") + character
        elif character in "'\"":
            quote, word = character, word or ""
        elif character.isspace():
            if word is not None:
                words.append(word)
            word = None
        elif character == "#":
            break
        else:
            word = (word or "") + character
    if word is not None:
        words.append(word)
    return words, f"unmatched {quote}" if quote else ""


def _options(words: list[str], problems: list[str]) -> Iterator[tuple[str, str | None]]:
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            if equals:
                yield name, value
            elif name in _FLAGS:
                yield name, None
            else:
                yield name, queue.pop(0) if queue and not queue[0].startswith("-") else None
        elif word.startswith("-") and len(word) > 1:
            yield from _short(word, queue, problems)
        else:
            problems.append(f"{word!r} is not an option")


def _short(word: str, queue: list[str], problems: list[str]) -> Iterator[tuple[str, str | None]]:
    """`-N2`, `-N 2`, and flags together: `-HQ`."""
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = SHORT_OPTIONS.get(letter)
        if name is None:
            problems.append(f"{word!r}: there is no option -{letter}")
            return
        if name in _FLAGS and letter not in "k":
            yield name, None
            continue
        value: str | None = letters
        if not letters:
            value = queue.pop(0) if queue and name not in _FLAGS else None
        yield name, value
        return
