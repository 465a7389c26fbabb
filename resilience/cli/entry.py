"""The command `resil`: runs the command line, and turns every error into a sentence and an exit code.

`resil status`, the call people make most, and `resil watch NAME`, `resil watch --all` and `resil cron tick`, which cron
makes every minute, do not load Typer: half the time they take would go there. The tests of this module and of the tick
hold that both ways print the same.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

from resilience.errors import ResilError, UsageError

EXIT_INTERRUPTED = 130
EXIT_UNKNOWN = 3
"""What `resil watch` exits with when it could not look, whatever the reason: 1 and 2 are verdicts of a plugin."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    arguments = sys.argv[1:]
    if not _is_plain_status(arguments) and not _is_plain_watch(arguments) and _plain_tick(arguments) is None:
        sys.exit(run(arguments))
    gc.disable()  # it is over before there is anything to collect
    _leave(run(arguments))


def _leave(code: int) -> NoReturn:
    """End at once, as mypy does: to take apart all that was loaded, object by object, is a tenth of the whole time."""
    atexit._run_exitfuncs()  # those of whoever measures us
    with suppress(OSError, ValueError):  # said already, or closed by our caller
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    _settle_streams()
    try:
        if _is_plain_status(arguments):
            code = _run_status(arguments)
        elif _is_plain_watch(arguments):
            code = _run_watch(arguments)
        elif (tick := _plain_tick(arguments)) is not None:
            code = _run_tick(tick)
        else:
            code = _run_typer(arguments)
        sys.stdout.flush()  # here a broken pipe can still be answered
        return code
    except ResilError as error:
        print_error(error)
        return _failed(arguments, error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away, as `resil status | head` does. Keep the interpreter from saying so again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            return _failed(arguments, _internal_error(error))
        # Everything of ours that meets a full disk says so itself; this is standard output, and what it told is lost.
        print(f"resil: error: cannot write to standard output: {error.strerror}", file=sys.stderr)
        print("  try: what was asked for may be done: resil status", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
    """Tell a person what happened and what to try. Some of the text is a scheduler's or a file's: it steers nothing."""
    from resilience.cli.output import clean

    with suppress(BrokenPipeError):
        print("\n".join(clean(line) for line in f"resil: error: {error.message}".split("\n")), file=sys.stderr)
        if error.hint:
            print(f"  try: {clean(error.hint)}", file=sys.stderr)


def _is_plain_status(arguments: Sequence[str]) -> bool:
    """Whether it is `status`, with at most a run's name: nothing that needs parsing."""
    return len(arguments) in (1, 2) and arguments[0] == "status" and not any(a.startswith("-") for a in arguments)


def _run_status(arguments: Sequence[str]) -> int:
    from resilience.cli.banner import warn_of_dead_letters
    from resilience.cli.show_status import show_status
    from resilience.runs.project import Project
    from resilience.settings.load import load
    from resilience.system.world import World

    world = World()
    project = Project(world, load(world))
    warn_of_dead_letters(project, apart=False)
    return show_status(project, arguments[1] if len(arguments) > 1 else "")


def _is_plain_watch(arguments: Sequence[str]) -> bool:
    """Whether it is `watch --all`, or `watch` with a watchdog's name alone."""
    return (
        len(arguments) == 2
        and arguments[0] == "watch"
        and (arguments[1] == "--all" or not arguments[1].startswith("-"))
    )


def _run_watch(arguments: Sequence[str]) -> int:
    from resilience.cli.run_watch import WatchRequest, run_watch

    return run_watch(WatchRequest(name=None if arguments[1] == "--all" else arguments[1]))


def _plain_tick(arguments: Sequence[str]) -> dict[str, str] | None:
    """The options of `cron tick`, as drivers and people's crontabs write them; None: it is another command."""
    if tuple(arguments[:2]) != ("cron", "tick"):
        return None
    found = {}
    words = iter(arguments[2:])
    for word in words:
        name, separator, value = word.partition("=")
        if name not in ("--driver", "--config"):
            return None
        value = value if separator else next(words, "")
        if not value or value.startswith("-"):
            return None
        found[name] = value
    return found


def _run_tick(options: dict[str, str]) -> int:
    from pathlib import Path

    from resilience.cli.run_cron import run_tick
    from resilience.cron.project import open_cron
    from resilience.runs.project import Project
    from resilience.settings.load import load
    from resilience.system.world import World

    world, config = World(), options.get("--config")
    cron = open_cron(Project(world, load(world, wanted=Path(config) if config else None)))
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
        # Not `app()`: it would answer a broken pipe with exit code 1, and tell usage errors in its own form.
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
