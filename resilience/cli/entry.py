"""The command `resil`: runs the command line, and turns every error into a sentence and an exit code.

`resil status`, the call people make most, does not load Typer: half the time it takes would go there. The test of this
module holds that both ways print the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from resilience.errors import ResilError

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line of this process and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        return _run_status(arguments) if _is_plain_status(arguments) else _run_typer(arguments)
    except ResilError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away, as `resil status | head` does. Keep the interpreter from saying so again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("RESIL_TRACEBACK"):
            raise
        print(f"resil: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        print("  this is a bug of resil; RESIL_TRACEBACK=1 shows where", file=sys.stderr)
        return 1


def print_error(error: ResilError) -> None:
    """Tell a person what happened and what to try."""
    print(f"resil: error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  try: {error.hint}", file=sys.stderr)


def _is_plain_status(arguments: Sequence[str]) -> bool:
    """Whether it is `status`, with at most a run's name: nothing that needs parsing."""
    return len(arguments) in (1, 2) and arguments[0] == "status" and not any(a.startswith("-") for a in arguments)


def _run_status(arguments: Sequence[str]) -> int:
    from resilience.actions.project import Project
    from resilience.cli.show_status import show_status
    from resilience.settings.load import load
    from resilience.system.world import World

    world = World()
    return show_status(Project(world, load(world)), arguments[1] if len(arguments) > 1 else "")


def _run_typer(arguments: Sequence[str]) -> int:
    from resilience.cli.main import app

    try:
        app(args=list(arguments), prog_name="resil", standalone_mode=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
