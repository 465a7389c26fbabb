"""The command `resil`: runs the command line, and turns every error into a message and an exit code.

`resil status`, the most frequent command, `resil watch NAME`, `resil watch --all` and `resil cron tick`, which cron
runs every minute, and `resil run`, which stays in memory beside its command, do not load Typer (`quick_path`): Typer
would take half of their time. Tests check that both paths print the same.
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
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, NoReturn, cast

from resilience.errors import EX_TEMPFAIL, ResilError, UsageError

if TYPE_CHECKING:
    from resilience.runs.project import Project

EXIT_INTERRUPTED = 130
EXIT_UNKNOWN = 3
"""The exit code of a `resil watch` that could not check, for any reason: 1 and 2 are verdicts."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    arguments = sys.argv[1:]
    if quick_path(arguments) is None:
        sys.exit(run(arguments))
    gc.disable()  # the process ends before a collection is worthwhile
    _leave(run(arguments))


def _leave(code: int) -> NoReturn:
    """Exit without tearing down the interpreter, as mypy does: that takes a tenth of the whole time."""
    atexit._run_exitfuncs()  # coverage registers one
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # already reported, or closed by the caller
            stream.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    _make_streams_writable()
    try:
        if PathFinder.find_spec("cronsim") is None:  # a tenth of a millisecond
            _check_packages()
        if arguments[:1] != ["run"]:  # whose words may be those of another command
            _reject_empty(arguments)
        quick = quick_path(arguments)
        code = quick() if quick is not None else _run_typer(arguments)
        sys.stdout.flush()  # a broken pipe can still be handled here
        return code
    except ResilError as error:
        _print_error(error)
        return _failed(arguments, error.exit_code, error.message)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        from resilience.cli.output import close_stdout

        close_stdout()  # the reader of the pipe has exited, as in `resil status | head`
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            return _failed(arguments, _internal_error(error))
        # Every write of resil to a full disk is reported where it happens; this one is to standard output.
        from resilience.cli.output import close_stdout

        _print_error(ResilError(f"cannot write to standard output: {error.strerror}",
                               hint="the command may have succeeded: resil status"))  # fmt: skip
        close_stdout()
        return _failed(arguments, 1)
    except ModuleNotFoundError as error:
        return _failed(arguments, _missing_module(error))
    except Exception as error:
        return _failed(arguments, _internal_error(error))


_NEVER_EMPTY = frozenset({"--deadline", "--every", "--timeout", "--jitter", "--ok", "--catch-up", "--bit-mask"})


def _reject_empty(arguments: Sequence[str]) -> None:
    """Reject an empty value that would silently mean the default: `--deadline "$LIMIT"` with an unset variable."""
    before = ""
    for word in arguments:
        if word == "--":
            return
        option = before if not word else word[:-1] if word.endswith("=") else ""
        if option in _NEVER_EMPTY:
            raise UsageError(
                f"{option} has an empty value", hint="is a shell variable unset? To use the default, omit the option"
            )
        before = word


def _print_error(error: ResilError) -> None:
    from resilience.cli.output import print_error

    print_error(error)


def _failed(arguments: Sequence[str], code: int, why: str = "internal error") -> int:
    """Return the exit code of a failed command. For `resil watch`, 1 and 2 are verdicts, and Nagios reads no errors; of
    `resil ckpt latest`, 1 says that there is no checkpoint yet, upon which a script begins a training anew."""
    words = [word for word in arguments if not word.startswith("-")]
    if words[:1] != ["watch"]:
        return EX_TEMPFAIL if words[:2] == ["ckpt", "latest"] and code == 1 else code
    if "--nrpe" in arguments:
        from resilience.cli.run_watch import nrpe_unknown

        print(nrpe_unknown(why))
    return EXIT_UNKNOWN


def _check_packages() -> None:
    from resilience.cli.missing import check_packages

    check_packages()


def _missing_module(error: ModuleNotFoundError) -> int:
    from resilience.cli.missing import PACKAGES, missing_packages

    if (error.name or "").partition(".")[0] not in PACKAGES:
        return _internal_error(error)
    _print_error(missing_packages())
    return 1


def _internal_error(error: Exception) -> int:
    if os.environ.get("RESIL_TRACEBACK"):
        raise error
    print(f"resil: internal error: {type(error).__name__}: {error}", file=sys.stderr)
    print("  this is a bug of resil; RESIL_TRACEBACK=1 shows where", file=sys.stderr)
    return 1


def _make_streams_writable() -> None:
    """Make both streams writable, even if the caller closed them or they cannot encode a text."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # `resil status >&-`
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def quick_path(arguments: Sequence[str]) -> Callable[[], int] | None:
    """Return the function that runs a command line without Typer; None if Typer must parse it."""
    match list(arguments):
        case ["status"]:
            return _run_status
        case ["status", run] if not run.startswith("-"):
            return partial(_run_status, run)
        case ["watch", "--all"]:
            return _run_watch
        case ["watch", name] if not name.startswith("-"):
            return partial(_run_watch, name)
        case ["run", *words] if (found := _run_options(words)) is not None:
            return partial(_run_command, *found)
        case ["cron", "tick", *words] if (options := _tick_options(words)) is not None:
            return partial(_run_tick, options)
    return None


def _tick_options(words: Sequence[str]) -> dict[str, str] | None:
    """Return the options of `cron tick` as drivers and crontabs write them; None if there are others."""
    found = {}
    rest = iter(words)
    for word in rest:
        name, separator, value = word.partition("=")
        value = value if separator else next(rest, "")
        if name not in ("--driver", "--config") or not value or value.startswith("-"):
            return None
        found[name] = value
    return found


def _run_options(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]] | None:
    """Return options and command of `resil run`; None if Typer must explain them."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--" or not word.startswith("-"):
            command = tuple(rest) if word == "--" else (word, *rest)
            return (options, command) if command else None
        name, separator, value = word.partition("=")
        if name not in ("--run", "--stop", "--save", "--lead") or not (separator or rest):
            return None
        options[name.removeprefix("--")] = value if separator else rest.pop(0)
    return None


def _run_command(options: dict[str, str], command: tuple[str, ...]) -> int:
    from resilience.supervisor.supervisor import RunOptions, run_command

    return run_command(RunOptions(command, **options))


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
    from resilience.runs.open_project import check_responding, open_in_child
    from resilience.system.ports import System

    project = open_in_child(System())
    check_responding(project)
    warn_of_dead_letters(project, in_child=False)
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

    # UsageError's base. Typer has a private copy of click; this reaches it through public names.
    click_exception = cast("type[Exception]", typer.BadParameter.__mro__[2])
    if "_RESIL_COMPLETE" in os.environ:  # a shell asks for completions
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
        code = _print_usage(error, arguments)
        return _failed(arguments, code, str(getattr(error, "message", error)))
    return 0


def _print_usage(error: Any, arguments: Sequence[str]) -> int:
    """Print a usage error of the parser in the form of every other error."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        return 0
    import re
    import shlex
    from itertools import takewhile

    if context is not None:
        path = context.command_path
    else:  # a missing argument of an option: click does not say of which command
        path = shlex.join(["resil", *takewhile(lambda word: not word.startswith("-"), arguments)])
    message = re.sub(r"not a valid int(?: range)?\b", "not a whole number", error.format_message().rstrip())
    message = re.sub(r"not a valid float(?: range)?\b", "not a number", message)
    _print_error(UsageError(message, hint=f"{path} --help"))
    return int(error.exit_code)
