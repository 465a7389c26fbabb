"""Writes the parts of docs/ that are made from the code. Run by `make docs`.

    scripts/make_docs.py             write docs/reference/commands.md, settings.md, docs/demo.svg and docs/top.svg
    scripts/make_docs.py --check     write nothing; exit with 1 if a page differs from what the code says
    scripts/make_docs.py --pages     write the pages and leave the pictures as they are

The pictures show real runs, of `resil demo` and below `resil top`, so they differ each time and are not compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from inspect import cleandoc
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import typer

from resilience.checkpoints.settings import CheckpointSettings
from resilience.cli.main import COMMANDS, app
from resilience.guard.settings import GuardSettings
from resilience.plugins import Family
from resilience.settings.cron_settings import CronSettings
from resilience.settings.sections import Settings

ROOT = Path(__file__).resolve().parents[1]
PICTURE, SCREEN = "docs/demo.svg", "docs/top.svg"
DEMO_DEADLINE_S = 180
SCREEN_S = 90

_NOTE = "<!-- Written by scripts/make_docs.py (`make docs`) from the code. Do not edit it here. -->"
_COMMANDS_HEAD = f"""\
# Commands

{_NOTE}

What each means for your night: [first night](../tutorial/first-night.md). What a command exits with:
[exit codes](exit-codes.md). What `--json` writes: [JSON](json.md). Every command shows this text with `--help`.
"""
_SETTINGS_HEAD = f"""\
# Settings

{_NOTE}

Settings are looked for in this order, and the first file found counts: the one given with `--config`;
`$RESIL_CONFIG`; `resil.toml` in the current directory or in one above it, up to your home directory;
`$XDG_CONFIG_HOME/resil/config.toml`. Why in this order: [decision 3](../decisions/0003-settings-order.md).

A variable `RESIL_SECTION__KEY` (two underscores) wins over the file, and an option of the command line wins over both.
`resil config show --origin` says what counts and where it comes from. `resil config check` says whether it can be used.
A key that nobody knows is refused, with the nearest name.

The unit stands in the key's name: `_s` takes seconds, or a text such as `"10m"`, `_bytes` a number of bytes, or
`"512MiB"`, `_percent` a number from 0 to 100, or `"95%"`. Secrets do not belong in the file:
the settings are copied into the run directory and into every batch script.
"""


# ---- commands -------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """The reference of the command line, from the Typer app."""
    group = typer.main.get_command(app)
    context = group.context_class(group, info_name="resil", **group.context_settings)
    parts = [_COMMANDS_HEAD, _index()]
    parts += _command(group, context, heading="## resil")
    for name in COMMANDS:
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        parts += _with_children(command, context, name, "##")
    return _page(parts)


def _index() -> str:
    rows = [
        f"| {entry.section} | [`resil {name}`](#resil-{name}) | {_cell(entry.summary)} |"
        for name, entry in COMMANDS.items()
    ]
    return "\n".join(["| section | command | does |", "|---|---|---|", *rows])


def _with_children(command: Any, parent: Any, name: str, level: str) -> Iterator[str]:
    context = command.context_class(command, info_name=name, parent=parent, **command.context_settings)
    yield from _command(command, context, heading=f"{level} {context.command_path}")
    children = getattr(command, "commands", {}) or {
        child: command.get_command(context, child) for child in getattr(command, "fixed", ())
    }
    for child, below in children.items():
        yield from _with_children(below, context, child, level + "#")


def _command(command: Any, context: Any, heading: str) -> Iterator[str]:
    yield heading
    yield cleandoc(command.help or "")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```"
    records = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
    rows = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in records]
    yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])
    examples = list(_examples(command.epilog or ""))
    if examples:
        yield "\n".join(["```sh", *examples, "```"])


def _examples(epilog: str) -> Iterator[str]:
    """Given an epilog, yield its examples as lines of a shell: `a; b` in one line, or one per paragraph with a text."""
    text = cleandoc(epilog)
    if not text.startswith("Examples:"):
        return
    body = text.removeprefix("Examples:").strip()
    if "\n\n" not in body:
        yield from (example.strip() for example in body.split(";"))
        return
    for paragraph in body.split("\n\n"):
        example, _, meaning = " ".join(paragraph.split()).rstrip(".").partition(": ")
        yield f"{example}  # {meaning}"


# ---- settings -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of a table of resil.toml, for the page."""

    name: str
    kind: str
    default: str
    text: str


def settings_page() -> str:
    """The reference of resil.toml, from the settings' dataclasses."""
    parts = [_SETTINGS_HEAD]
    free, hints = attributes(Settings), get_type_hints(Settings, localns=_LATE)
    for section in fields(Settings):
        owner = _LATE_OWNERS.get(section.name) or hints[section.name]
        if is_dataclass(owner) and isinstance(owner, type):
            table, summary = _split(cleandoc(owner.__doc__ or "").split("\n")[0])
            parts += [f"## [{table}]", _sentence(summary), _keys_table(table, list(_keys(owner)))]
        elif section.name in _PLUGINS:
            parts += _plugin_tables(*_PLUGINS[section.name], summary=free[section.name])
        else:
            table, summary = _split(free[section.name])
            values = "Every value is a text, a number, true or false."
            key = "NAME" if table == "environment" else "name"  # a training's variables have capitals
            variable = f"A variable such as `RESIL_{table.upper()}__NAME` sets the key `{key}`."
            parts += [f"## [{table}]", f"{_sentence(summary)} {values}", variable]
    return _page(parts)


_LATE_OWNERS: dict[str, type] = {"guard": GuardSettings, "checkpoints": CheckpointSettings, "cron": CronSettings}
"""Tables that are loaded only where there is one: the hint of their field is `... | None`."""

_LATE = {owner.__name__: owner for owner in _LATE_OWNERS.values()}

_PLUGINS = {
    "watches": ("watch", Family("checks", "CHECK", ())),
    "channels": ("channel", Family("channels", "CHANNEL", ())),
}
"""Tables that belong to plugins: the built-in ones are told."""


def _plugin_tables(table: str, family: Family, *, summary: str) -> Iterator[str]:
    yield f"## [{table}.NAME]"
    yield _sentence(summary.partition(": ")[2])
    for name in family.names():
        plugin = family.load(name)
        yield f"### [{table}.{name}]"
        yield _sentence(plugin.summary)
        yield _keys_table(f"{table}__{name}", list(_keys(plugin.Settings)))


def attributes(owner: type) -> Mapping[str, str]:
    """Given a class, return its attributes' descriptions from the sections `Attributes:` of its bases and its own."""
    found: dict[str, str] = {}
    for one in reversed(owner.__mro__):
        name = ""
        for line in cleandoc(one.__doc__ or "").partition("Attributes:\n")[2].splitlines():
            match = re.match(r" {4}(\w+): (.*)", line)
            if match:
                name = match[1]
                found[name] = match[2]
            elif name and line.strip():
                found[name] += " " + line.strip()
    return found


def _keys(owner: type) -> Iterator[_Key]:
    texts, hints = attributes(owner), get_type_hints(owner)
    for field in fields(owner):
        yield _Key(field.name, _kind(field.name, hints[field.name]), _default(field), texts[field.name])


def _keys_table(table: str, keys: list[_Key]) -> str:
    rows = [f"| `{key.name}` | {key.kind} | {key.default} | {_cell(key.text.rstrip('.'))} |" for key in keys]
    variables = f"Variables: `RESIL_{table.upper()}__{keys[0].name.upper()}`, and so on."
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows, "", variables])


def _kind(name: str, hint: Any) -> str:
    for suffix, words in (
        ("_s", "duration"),
        ("stop_after", "duration"),
        ("within", "duration"),
        ("redo_max", "duration"),
        ("_bytes", "size"),
        ("_percent", "percentage"),
    ):
        if name.endswith(suffix):
            return words
    if get_origin(hint) is tuple:
        return "list of texts"
    if get_origin(hint) is Mapping:
        return "table of texts"
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return kinds[next(o for o in options if o is not type(None))]


def _default(field: Field[Any]) -> str:
    """The default as one would write it in TOML; empty when there is none."""
    value = field.default
    if value is MISSING or value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{json.dumps(value)}`"
    if field.name.endswith("_bytes") and value:
        return f"`{value // 2**20}MiB`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _split(text: str) -> tuple[str, str]:
    """Given `[run]: what is trained.`, return the table and what it is for."""
    match = re.fullmatch(r"\[(\w+)\]: (.*)", text)
    if match is None:
        raise SystemExit(f"make_docs: {text!r} does not begin with the name of its table, as `[run]: ...` does")
    return match[1], match[2]


# ---- both -----------------------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    start = text if text.startswith("sbatch") else text[:1].upper() + text[1:]
    return start.rstrip(".") + "."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _page(parts: list[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def pages() -> Mapping[str, str]:
    """Every generated page: its path in the repository, and its text."""
    return {"docs/reference/commands.md": commands_page(), "docs/reference/settings.md": settings_page()}


def stale(root: Path = ROOT) -> tuple[str, ...]:
    """The generated pages that differ from what the code says, or are missing."""
    return tuple(
        name
        for name, text in pages().items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != text
    )


def draw_picture(root: Path = ROOT) -> None:
    """Run the demo and keep what it showed. Raise CalledProcessError if it failed."""
    argv = [sys.executable, "-m", "resilience", "demo", "--svg", str(root / PICTURE)]
    subprocess.run(argv, check=True, timeout=DEMO_DEADLINE_S, stdout=subprocess.DEVNULL)


TRAINING = """\
import multiprocessing, os, sys, time
from resilience.guard import TrainingGuard

def train(rank):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    with TrainingGuard.from_env() as guard:
        for step in guard.steps(range(1, 1_000_000), save=lambda label: time.sleep(0.2)):
            if rank == 0 and step % 40 == 0:
                print(f"step {step}  loss {2.1 + 8 / step ** 0.5:.4f}", flush=True)
            time.sleep(1000 if rank == 5 and step > 600 else 0.05)

ranks = [multiprocessing.Process(target=train, args=(rank,)) for rank in range(8)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
"""
SETTINGS = """\
[run]
name = "gpt"
[scheduler]
name = "local"
[sbatch]
time = "600"
[guard]
beat_s = 1
every = "20s"
poll_s = 0.5
[watch.fs]
warn_percent = "1%"
[alert]
channels = ["console"]
"""


def draw_screen(root: Path = ROOT) -> None:
    """Look at a run of eight ranks, one of which stops, and keep what `resil top` shows after a minute and a half."""
    from resilience.cli.demo import draw_svg
    from resilience.cli.options import open_project
    from resilience.cli.top.frame import compose
    from resilience.cli.top.look import Looker

    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        os.environ |= {"HOME": directory, "RESIL_LOCAL_SPOOL": f"{directory}/spool", "PYTHONPATH": str(ROOT)}
        os.environ["RESIL_RUN__COMMAND"] = f"{sys.executable} train.py"
        Path("train.py").write_text(TRAINING)
        Path("resil.toml").write_text(SETTINGS)
        resil = [sys.executable, "-m", "resilience"]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*resil, "submit", "--array", "3"], check=True, **quiet)
        try:
            looker, until = Looker(open_project()), time.monotonic() + SCREEN_S
            subprocess.run([*resil, "watch", "fs"], check=False, **quiet)
            while time.monotonic() < until:
                frame = looker.look()
                time.sleep(1)
            runs = tuple(replace(run, log_path=run.log_path.replace(directory, "~")) for run in frame.runs)
            draw_svg(root / SCREEN, compose(replace(frame, runs=runs), 96, 26), title="resil top")
        finally:
            subprocess.run([*resil, "cancel", "gpt"], check=False, **quiet)


def main(arguments: list[str]) -> int:
    """Write, or compare. Return the exit code."""
    if arguments == ["--check"]:
        for name in (found := stale()):
            print(f"{name} is not what the code says\n  try: make docs")
        return 1 if found else 0
    if arguments not in ([], ["--pages"]):
        print(__doc__)
        return 2
    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    if not arguments:
        draw_picture()
        draw_screen()
        print(f"wrote {PICTURE} and {SCREEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
