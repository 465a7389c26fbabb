"""The command `resil`: runs the command line, and turns every error into a sentence and an exit code.

`resil status`, the call people make most, and `resil watch NAME`, `resil watch --all` and `resil cron tick`, which cron
makes every minute, do not load Typer (`quick_path`): Typer would take half of their time. Tests hold that both ways
print the same.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

from resilience.errors import ResilError, UsageError

if TYPE_CHECKING:
    from resilience.runs.project import Project

EXIT_INTERRUPTED = 130
EXIT_UNKNOWN = 3
"""The exit code of a `resil watch` that could not check, whatever the reason: 1 and 2 are verdicts of a plugin."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    arguments = sys.argv[1:]
    if quick_path(arguments) is None:
        sys.exit(run(arguments))
    gc.disable()  # the command ends before there is anything to collect
    _leave(run(arguments))


def _leave(code: int) -> NoReturn:
    """End at once, as mypy does: to take apart all that was loaded, object by object, is a tenth of the whole time."""
    atexit._run_exitfuncs()  # a coverage measurement has one
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # reported already, or closed by our caller
            stream.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    _settle_streams()
    try:
        quick = quick_path(arguments)
        code = quick() if quick is not None else _run_typer(arguments)
        sys.stdout.flush()  # here a broken pipe can still be answered
        return code
    except ResilError as error:
        print_error(error)
        return _failed(arguments, error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        from resilience.cli.output import close_stdout

        close_stdout()  # the reader of a pipe went away, as `resil status | head` does
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            return _failed(arguments, _internal_error(error))
        # Everything of ours that meets a full disk reports it itself; this is standard output.
        from resilience.cli.output import close_stdout

        print_error(ResilError(f"cannot write to standard output: {error.strerror}",
                               hint="the command may have done its work: resil status"))  # fmt: skip
        close_stdout()
        return _failed(arguments, 1)
    except Exception as error:
        return _failed(arguments, _internal_error(error))


def _failed(arguments: Sequence[str], code: int) -> int:
    """The exit code of a command that could not do its work; of `resil watch`, 1 and 2 are verdicts."""
    return EXIT_UNKNOWN if next((word for word in arguments if not word.startswith("-")), "") == "watch" else code


def _internal_error(error: Exception) -> int:
    if os.environ.get("RESIL_TRACEBACK"):
        raise error
    print(f"resil: internal error: {type(error).__name__}: {error}", file=sys.stderr)
    print("  this is a bug of resil; RESIL_TRACEBACK=1 shows where", file=sys.stderr)
    return 1


def _settle_streams() -> None:
    """Have something to write to, whatever the caller closed and whatever it can encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # `resil status >&-`
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_error(error: ResilError) -> None:
    """Tell a person what happened and what to try."""
    from resilience.cli.output import say

    say(f"error: {error.message}" + (f"\n  try: {error.hint}" if error.hint else ""))


def quick_path(arguments: Sequence[str]) -> Callable[[], int] | None:
    """Given a command line, return the function that runs it without Typer; None where Typer must parse it."""
    match list(arguments):
        case ["status"]:
            return _run_status
        case ["status", run] if not run.startswith("-"):
            return partial(_run_status, run)
        case ["watch", "--all"]:
            return _run_watch
        case ["watch", name] if not name.startswith("-"):
            return partial(_run_watch, name)
        case ["cron", "tick", *words] if (options := _tick_options(words)) is not None:
            return partial(_run_tick, options)
    return None


def _tick_options(words: Sequence[str]) -> dict[str, str] | None:
    """The options of `cron tick`, as drivers and people's crontabs write them; None where there are others."""
    found = {}
    rest = iter(words)
    for word in rest:
        name, separator, value = word.partition("=")
        value = value if separator else next(rest, "")
        if name not in ("--driver", "--config") or not value or value.startswith("-"):
            return None
        found[name] = value
    return found


def _open_project(config: str = "") -> Project:
    from pathlib import Path

    from resilience.runs.project import Project
    from resilience.settings.load import load
    from resilience.system.ports import System

    system = System()
    return Project(system, load(system, named=Path(config) if config else None))


def _run_status(run: str = "") -> int:
    from resilience.cli.output import warn_of_dead_letters
    from resilience.cli.show_status import show_status

    project = _open_project()
    warn_of_dead_letters(project, apart=False)
    return show_status(project, run)


def _run_watch(name: str | None = None) -> int:
    from resilience.cli.run_watch import WatchRequest, run_watch

    return run_watch(WatchRequest(name=name))


def _run_tick(options: Mapping[str, str]) -> int:
    from resilience.cli.run_cron import run_tick
    from resilience.cron.project import open_cron

    cron = open_cron(_open_project(options.get("--config", "")))
    return run_tick(cron, driver=options.get("--driver", ""), wait=True, dry_run=False, as_json=False)


def _run_typer(arguments: Sequence[str]) -> int:
    import typer

    from resilience.cli.main import app

    # UsageError's base. Typer brings its own copy of click under a private name; this is the way to it by public ones.
    click_exception = cast("type[Exception]", typer.BadParameter.__mro__[2])
    if "_RESIL_COMPLETE" in os.environ:  # a shell asks what to complete, and Typer knows how to answer
        app(args=list(arguments), prog_name="resil")
    command = typer.main.get_command(app)
    try:
        # Not `app()`: Typer would answer a broken pipe with exit code 1, and print usage errors in its own form.
        with command.make_context("resil", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    except click_exception as error:
        return _failed(arguments, _print_usage(error))
    return 0


def _print_usage(error: Any) -> int:
    """Tell what the command line's parser refused, in the form of every other error."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
    else:
        path = context.command_path if context is not None else "resil"
        print_error(UsageError(error.format_message().rstrip(), hint=f"{path} --help"))
    return int(error.exit_code)
