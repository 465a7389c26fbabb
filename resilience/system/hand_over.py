"""Hands a message to a program on its standard input, as sendmail and pagers' own tools take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.errors import EX_TEMPFAIL, DeliveryError, ProbeError
from resilience.system.process import Completed, DeadlineExceeded, ProgramMissing
from resilience.system.redaction import redact
from resilience.system.world import World

EX_PERMANENT = {
    64: "usage",
    65: "bad data",
    66: "no input",
    67: "no such user",
    68: "no such host",
    76: "protocol",
    77: "no permission",
    78: "configuration",
}
"""Exit codes by which a program says that trying again is of no use (sysexits.h). Any other may be a momentary failure:
a shell script ends with 1 whatever went wrong, and an alert must not be lost by that."""

_LOOK_AT = 100_000
"""Characters at the end of what a program wrote."""


def hand_over(
    argv: Sequence[str], text: str, world: World, *, timeout_s: float, environment: Mapping[str, str]
) -> Completed:
    """Run a program with a text on its standard input; return how it ended, which is well.

    Raise DeliveryError: transient unless it said by its exit code that trying again is of no use.
    """
    program = argv[0]
    try:
        done = world.runner.run(list(argv), timeout_s=timeout_s, env=environment, stdin=text)
    except ProgramMissing as error:  # another node may have it
        raise DeliveryError(error.message, hint=error.hint) from None
    except DeadlineExceeded as error:
        raise DeliveryError(error.message, hint="it was killed; it may have done its work before") from None
    except ProbeError as error:
        raise DeliveryError(error.message, hint=error.hint, transient=error.transient) from None
    if done.returncode == 0:
        return done
    said = said_by(done)
    how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"ended with {done.returncode}"
    meaning = EX_PERMANENT.get(done.returncode) or ("try again later" if done.returncode == EX_TEMPFAIL else "")
    message = f"{program} {how}{f' ({meaning})' if meaning else ''}{f': {said}' if said else ''}"
    raise DeliveryError(message, transient=done.returncode not in EX_PERMANENT)


def said_by(done: Completed) -> str:
    """The last line that a program wrote, its errors first, without secrets; at most 200 characters."""
    for text in (done.stderr, done.stdout):
        # Redacted before it is cut: half a secret is one too.
        lines = [line for line in redact(text[-_LOOK_AT:]).splitlines() if line.strip()]
        if lines:
            return "".join(c if c.isprintable() else "?" for c in lines[-1].strip())[:200]
    return ""
