"""Errors with a message and a hint for the person who reads them at 3 a.m. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

EX_TEMPFAIL = 75
"""Exit code "temporary failure, try again" (sysexits.h)."""


class ResilError(Exception):
    """A failure with a message for a person.

    Attributes:
        message: what happened, to what.
        hint: what to try, or an empty string.
        transient: whether the same call may succeed later without anybody changing anything.
        exit_code: what the command line exits with when this error ends a command (DESIGN: exit codes).
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", transient: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.transient = transient
        if transient:
            self.exit_code = EX_TEMPFAIL

    def __str__(self) -> str:
        return self.message


class UsageError(ResilError):
    """The person asked for something that cannot be meant: a bad option, an impossible combination."""

    exit_code = 2


class SettingsError(UsageError):
    """A settings file or variable cannot be used: unknown key, wrong type, unreadable file."""


class TemplateError(UsageError):
    """A template cannot be found or rendered, or rendered to something sbatch would misread."""


class QuantityError(UsageError, ValueError):
    """A text is not the quantity it should be: a size, a duration, a percentage, a SLURM time."""


class HostlistError(UsageError, ValueError):
    """A text is not a SLURM hostlist expression."""


class StateDirectoryError(ResilError):
    """The run directory cannot be used: missing, unwritable, full, or another run's."""


class ProbeError(ResilError):
    """Could not look. Never means OK and never means dead: a check that raises this is UNKNOWN."""


class DeliveryError(ResilError):
    """A channel did not take a message. Transient: the outbox tries again; else it goes to the dead letters.

    Attributes:
        retry_after_s: how long the other side asked us to wait, or None.
        memory: what the channel wants to know when it is tried again: who has got it already.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        transient: bool = True,
        retry_after_s: float | None = None,
        memory: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.retry_after_s = retry_after_s
        self.memory = dict(memory or {})


class SchedulerError(ResilError):
    """The scheduler understood the request and refused it: bad partition, no permission, a limit."""


class SchedulerUnavailable(SchedulerError):
    """The scheduler gave no answer that can be trusted. Unknown is not dead: nothing follows from this."""

    def __init__(self, message: str, *, hint: str = "", transient: bool = True) -> None:
        super().__init__(message, hint=hint, transient=transient)


class SubmissionUncertain(SchedulerUnavailable):
    """A submission was sent and its fate is not known. It must be looked up by its token before any retry."""


class NotSupported(SchedulerError):
    """This scheduler or this cluster cannot do that at all: accounting off, no such verb."""


class NoSuchJob(SchedulerError):
    """A successful answer said that there is no such job."""


class RunAlive(SchedulerError):
    """The run already has live jobs and the person did not say that this is wanted."""


class GuardError(ResilError):
    """The guard is used in a way that cannot work: two in one process, pickled, a threshold that means nothing.

    Raised into trainings, whose tracebacks show nothing but its text: so that has the hint as well.
    """

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message


class AgreementLost(GuardError):
    """A rank has promised where to wait, and the word from rank 0 never came: going on alone would break the others."""
