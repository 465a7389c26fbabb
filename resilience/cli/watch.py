"""`resil watch`: one command per watchdog, generated from its plugin. Its settings are the options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from resilience.cli.options import (
    ConfigOption,
    JsonOption,
    SchedulerOption,
    ascii_numbers,
    duration_s,
    scheduler_override,
)
from resilience.cli.output import chosen, print_json, print_table
from resilience.cli.plugin_options import overrides_of, parameter, parameter_of
from resilience.cli.run_watch import WatchRequest, run_watch
from resilience.errors import ResilError, SettingsError, UsageError
from resilience.runs.open_project import open_in_child
from resilience.system.ports import System
from resilience.watch.options import Option, absolute_paths, flag_of, options_of, without_unit
from resilience.watch.watchdogs import checks, every_name, kind_of, listed

EPILOG = "Examples: resil watch fs; resil watch --all; resil watch --all --every 1m; resil watch fs --help"
TOP_LIMIT = 20

_Explain = Annotated[bool, typer.Option("--explain", help="Explain each verdict: what was checked, and how.")]
_Alert = Annotated[
    bool | None,
    typer.Option(
        "--alert/--no-alert",
        help="Notify, or not. Default: unless targets or options are typed that change the check.",
        show_default=False,
    ),
]
_Every = Annotated[str, typer.Option("--every", metavar="DURATION", help="Repeat at this interval, until SIGTERM.")]
_Count = Annotated[
    int, typer.Option("--count", metavar="N", min=0, help="With --every: repeat this many times.", show_default=False)
]
_Deadline = Annotated[
    str, typer.Option("--deadline", metavar="DURATION", help="Time limit for the check of one target.")
]
_Retry = Annotated[bool, typer.Option("--retry", help="Probe again at once what is known to hang, after a repair.")]
_Nrpe = Annotated[bool, typer.Option("--nrpe", help="Print one line for Nagios: verdict, counts, performance data.")]
_SHARED: dict[str, tuple[Any, Any]] = {
    "explain": (_Explain, False),
    "as_json": (JsonOption, False),
    "alert": (_Alert, None),
    "every": (_Every, ""),
    "count": (_Count, 0),
    "deadline": (_Deadline, ""),
    "retry": (_Retry, False),
    "nrpe": (_Nrpe, False),
    "config": (ConfigOption, None),
    "scheduler": (SchedulerOption, ""),
}
RESERVED = frozenset({"--explain", "--json", "--no-alert", "--alert", "--every", "--count", "--retry",
                      "--nrpe", "--config", "--scheduler", "--help", "--top", "--limit", "--fresh", "--all", "--list",
                      "--new"})  # fmt: skip
"""Options of every watchdog: no settings field may have such a name. A field `deadline_s` replaces --deadline."""


class WatchGroup(TyperGroup):
    """Lists the watchdogs: plugins, and tables of resil.toml."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names; only those of plugins if the settings cannot be read."""
        try:
            return list(every_name(_project(ctx)))
        except ResilError:
            return list(checks().names())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a watchdog. Raise UsageError for an unknown name."""
        return _command_of(cmd_name, checks().load(kind_of(_project(ctx), cmd_name)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command; `--config` may follow its name, and may define the watchdog."""
        if ctx.params.get("config") is None:
            ctx.params["config"] = _named_config(args)
        name = args[0]
        return name, self.get_command(ctx, name), args[1:]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summaries of the watchdogs."""
        try:
            rows = [(row.name, row.summary) for row in listed(_project(ctx))]
        except ResilError:
            rows = [(name, "") for name in checks().names()]
        if rows:
            with formatter.section("Watchdogs"):
                formatter.write_dl(rows)


app = typer.Typer(cls=WatchGroup, add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True, epilog=EPILOG, subcommand_metavar="[NAME] [ARGS]...")
def watch_group(
    ctx: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Run every watchdog.")] = False,
    list_only: Annotated[bool, typer.Option("--list", "-l", help="List the watchdogs.")] = False,
    new: Annotated[
        str, typer.Option("--new", metavar="NAME", help="Write a watchdog of your own, and its test, to start from.")
    ] = "",
    explain: _Explain = False,
    as_json: JsonOption = False,
    alert: _Alert = None,
    every: _Every = "",
    count: _Count = 0,
    deadline: _Deadline = "",
    retry: _Retry = False,
    nrpe: _Nrpe = False,
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Check for problems, print the findings, and send alerts as configured in [alert].

    Exits as a Nagios plugin does: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
    """
    if ctx.invoked_subcommand is not None:
        if everything or list_only or new:
            option = "--all" if everything else "--list" if list_only else "--new"
            raise UsageError(f"{option} and {ctx.invoked_subcommand} cannot be given together", hint="omit one of them")
        return
    if list_only:
        _show_list(config, scheduler, as_json=as_json)
        return
    if new:
        _write_new(new, config)
        return
    if not everything:
        raise UsageError("no watchdog was named", hint="resil watch --all, or a name from: resil watch --list")
    raise typer.Exit(run_watch(_request(None, {}, ctx.params)))


def _show_list(config: Path | None, scheduler: str, *, as_json: bool) -> None:
    rows = listed(open_in_child(System(), path=config, overrides=scheduler_override(scheduler)))
    if as_json:
        print_json(
            "watchdogs", {"watchdogs": [chosen(row, "name", "kind", "summary", "place", "in_all") for row in rows]}
        )
        return
    cells = [
        (row.name, row.kind if row.kind != row.name else "", row.summary, row.place or "defaults",
         "" if row.in_all else "not in [watch] checks")
        for row in rows
    ]  # fmt: skip
    print_table(("NAME", "KIND", "CHECKS", "SETTINGS", "--ALL"), cells)


def _write_new(name: str, config: Path | None) -> None:
    import sys

    from resilience.plugins import PLUGIN_PATH
    from resilience.watch.new_watchdog import DIRECTORY, write_watchdog

    system = System()
    project = open_in_child(system, path=config)
    listed_directories = checks().directories
    directory = listed_directories[0] if listed_directories else project.loaded.project / DIRECTORY
    made = write_watchdog(name, system.cwd / directory, every_name(project))
    print(f"wrote {made.watchdog}\n      {made.test}\n\nnext:")
    if not listed_directories:
        print(f"  export {PLUGIN_PATH}={quote(str(made.directory))}")
    print(f"  {quote(sys.executable)} {quote(str(made.test))}\n  resil watch {name}")


def _project(ctx: Any) -> Any:
    """Return the project of the command line, opened once."""
    if "project" not in ctx.meta:
        ctx.meta["project"] = open_in_child(System(), path=ctx.params.get("config"))
    return ctx.meta["project"]


def _named_config(args: Sequence[str]) -> Path | None:
    for number, word in enumerate(args):
        if word in ("-c", "--config") and number + 1 < len(args):
            return Path(args[number + 1])
        if word.startswith("--config="):
            return Path(word.partition("=")[2])
    return None


def _command_of(name: str, check: Any) -> Any:
    """Make the command of one watchdog."""
    options = [option for option in options_of(check.Settings) if option.flag not in RESERVED]
    offers_top = bool(getattr(check, "offers_top", False))
    parameters = [parameter("ctx", typer.Context)]
    if check.argument:
        argument = typer.Argument(metavar=f"[{check.argument.upper()}]...", show_default=False, help=_argument_help(
            options, check.argument))  # fmt: skip
        parameters.append(parameter("words", Annotated[list[str] | None, argument], None))
    parameters += [parameter_of(option) for option in options]
    if offers_top:
        top = typer.Option("--top", help="List the largest and the fastest-growing directories instead.")
        limit = typer.Option("--limit", metavar="N", min=1, help="With --top: number of directories.")
        parameters.append(parameter("top", Annotated[bool, top], False))
        parameters.append(parameter("limit", Annotated[int, limit], TOP_LIMIT))
        fresh = typer.Option("--fresh", help="With --top: read all directories again, also unchanged ones.")
        parameters.append(parameter("fresh", Annotated[bool, fresh], False))
    shares = {key: given for key, given in _SHARED.items() if flag_of(key) not in {option.flag for option in options}}
    parameters += [parameter(key, annotation, default) for key, (annotation, default) in shares.items()]

    def command(**given: Any) -> None:
        context = given.pop("ctx")
        shared = {}
        for key, (_, default) in _SHARED.items():
            typed = (words.get(key) for words in (given, context.parent.params))
            shared[key] = next((value for value in typed if value not in (None, default)), default)
        with suppress(UsageError):  # reported for the field of the settings
            own = given.get("field_deadline_s") or ""
            shared["deadline"] = shared["deadline"] or (own and f"{_duration('--deadline', own):g}s")
        overrides = absolute_paths(
            overrides_of(options, check.argument, given), getattr(check, "path_fields", ()), System().cwd
        )
        if given.get("top"):
            if shared["every"]:
                raise UsageError("--top and --every cannot be given together", hint="omit one of them")
            raise typer.Exit(_show_top(name, overrides, given["limit"], shared, fresh=given["fresh"]))
        if given.get("fresh"):
            raise UsageError("--fresh needs --top", hint=f"resil watch {name} --top --fresh")
        if given.get("limit", TOP_LIMIT) != TOP_LIMIT:
            raise UsageError("--limit needs --top", hint=f"resil watch {name} --top --limit 10")
        raise typer.Exit(run_watch(_request(name, overrides, shared)))

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = f"Watch {check.summary}. Settings: the table [watch.{name}] in resil.toml."
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    # The unit is optional: --grace 10m, --grace-s 10m.
    decorate: Callable[[Any], Any] = made.command(
        name, epilog=f"Example: {check.example}", context_settings={"token_normalize_func": without_unit}
    )
    decorate(command)
    return ascii_numbers(typer.main.get_command(made))


def _argument_help(options: Sequence[Option], argument: str) -> str:
    return next((option.help for option in options if option.field == argument), "")


def _request(name: str | None, overrides: dict[str, object], shared: dict[str, Any]) -> WatchRequest:
    settings = dict(scheduler_override(shared["scheduler"]))
    if shared["deadline"]:
        _duration("--deadline", shared["deadline"])
        settings["watch.deadline_s"] = shared["deadline"]
    every_s = _duration("--every", shared["every"]) if shared["every"] else None
    if shared["count"] and every_s is None:
        raise UsageError("--count needs --every", hint="--every 1m --count 10")
    if shared["nrpe"] and (every_s is not None or shared["as_json"] or shared["explain"]):
        raise UsageError("--nrpe cannot be given together with --every, --json or --explain", hint="omit one of them")
    return WatchRequest(
        name=name,
        overrides=overrides,
        settings=settings,
        config=shared["config"],
        explain=shared["explain"],
        as_json=shared["as_json"],
        alerts=shared["alert"],
        every_s=every_s,
        times=shared["count"],
        retry=shared["retry"],
        nrpe=shared["nrpe"],
    )


def _duration(option: str, text: str) -> float:
    """Return the value of an option in seconds; a bare number is seconds. Raise UsageError if it is not a duration."""
    return duration_s(option, text, least_s=0.01, most_s=366 * 86400, is_plain=True)


def _show_top(name: str, overrides: dict[str, object], limit: int, shared: dict[str, Any], *, fresh: bool) -> int:
    from resilience.cli.show_top import show_top
    from resilience.watch.watchdogs import load_watchdog

    request = _request(name, overrides, shared)
    project = open_in_child(System(), path=request.config, overrides=request.settings)
    watchdog = load_watchdog(project, name, overrides)
    paths = getattr(watchdog.settings, watchdog.check.argument or "paths", ())
    if not isinstance(paths, tuple):
        raise SettingsError(f"the watchdog {name} has no paths")
    deadline_s = _duration("--deadline", shared["deadline"]) if shared["deadline"] else None
    by = "inodes" if watchdog.kind == "inodes" else "bytes"
    return int(
        show_top(project, paths, limit=limit, deadline_s=deadline_s, as_json=request.as_json, by=by, fresh=fresh)
    )
