"""Errors with a message and a hint for the user. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

EX_TEMPFAIL = 75
"""Exit code "temporary failure, retry" (sysexits.h)."""


class ResilError(Exception):
    """A failure with a message for the user.

    Attributes:
        message: what happened, to what.
        hint: what to try, or an empty string.
        transient: whether the same call may succeed later without any change.
        exit_code: exit code of a command that ends with this error.
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
    """The request is invalid: a bad option, an impossible combination."""

    exit_code = 2


class SettingsError(UsageError):
    """A settings file or variable cannot be used: unknown key, wrong type, unreadable file."""


class TemplateError(UsageError):
    """A template cannot be found or rendered, or sbatch would misread the rendered script."""


class QuantityError(UsageError, ValueError):
    """A text is not a valid size, duration, percentage or SLURM time."""


class HostlistError(UsageError, ValueError):
    """A text is not a SLURM hostlist expression."""


class StateDirectoryError(ResilError):
    """The run directory cannot be used: missing, not writable, full, or of another run."""


class CheckpointError(ResilError):
    """A directory of checkpoints or a checkpoint cannot be used: damaged, of another run, of a newer version.

    Raised in trainings, whose tracebacks show only the text: therefore the text includes the hint.
    """

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ProbeError(ResilError):
    """A probe failed. The state of the target is UNKNOWN: neither OK nor dead."""


class DeliveryError(ResilError):
    """A channel did not accept a message. The outbox retries if `transient`, else adds the message to the dead letters.

    Attributes:
        retry_after_s: delay that the server requested, or None.
        memory: state for the channel's next try, such as the recipients that already received the message.
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
    """The scheduler rejected the request: bad partition, no permission, a limit."""


class SchedulerUnavailable(SchedulerError):
    """The scheduler gave no reliable answer. The state of its jobs is unknown; take no action."""

    def __init__(self, message: str, *, hint: str = "", transient: bool = True) -> None:
        super().__init__(message, hint=hint, transient=transient)


class SubmissionUncertain(SchedulerUnavailable):
    """The outcome of a submission is unknown. The job must be looked up by its token before any retry."""


class NotSupported(SchedulerError):
    """This scheduler or cluster does not support the operation: accounting is off, no such verb."""


class NoSuchJob(SchedulerError):
    """The scheduler answered that there is no such job."""


class RunAlive(SchedulerError):
    """The run already has live jobs, and the user did not allow more."""


class GuardError(ResilError):
    """The guard is misused: two guards in one process, a pickled guard, an invalid threshold.

    Raised in trainings, whose tracebacks show only the text: therefore the text includes the hint.
    """

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message


class AgreementLost(GuardError):
    """Rank 0 did not send the decision that this rank waits for; continuing alone would break the other ranks."""
