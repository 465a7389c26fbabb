"""What the crafts may ask of the world: Protocols of a few methods, so that tests can answer instead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # words that only annotate; whoever asks imports them
    from resilience.model.alert import Alert
    from resilience.model.cluster_config import ClusterConfig
    from resilience.model.cron import Installation
    from resilience.model.cron_settings import CronSettings
    from resilience.model.driver import Availability, DriverState, Step
    from resilience.model.finding import Finding
    from resilience.model.job import Job, JobId, JobUpdate
    from resilience.model.node import Node
    from resilience.model.presence import Presence
    from resilience.model.reading import Memory, Target, Timed
    from resilience.model.submission import Submission, Submitted
    from resilience.system.process import Completed
    from resilience.system.scene import Scene
    from resilience.system.world import World


Keep = Callable[[int, str, str], bool]
"""Whether a job of the queue is wanted, by its (or its array's) id, its name and its comment."""


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Runner(Protocol):
    """Runs programs with a deadline."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        """Run to the end. Raise a ProbeError if the program could not be run or did not end in time."""
        ...

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        """Yield the lines of its standard output. Raise CommandFailed at the end if it failed."""
        ...


class Scheduler(Protocol):
    """What resil asks of a scheduler. One contract suite (tests/contract) runs against every implementation.

    Every method answers within its deadline. A method raises SchedulerUnavailable when there was no answer that
    can be trusted, SchedulerError when the scheduler refused, NotSupported when it cannot do that at all.
    """

    @property
    def name(self) -> str:
        """The plugin's name: `slurm`, `local`."""
        ...

    def submit(self, submission: Submission) -> Submitted:
        """Queue exactly one job. Look it up by its token before any retry.

        Raise SubmissionUncertain when it was sent and could not be looked up.
        """
        ...

    def test(self, submission: Submission) -> str:
        """Ask whether and when it would start, without queueing it (`sbatch --test-only`)."""
        ...

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        """The exact argv that `submit` would run, for people to read."""
        ...

    def find(self, token: str, *, user: str = "") -> tuple[Job, ...]:
        """The jobs of a user (empty: mine), ended ones included while remembered, that carry this token."""
        ...

    def jobs(
        self,
        *,
        users: Collection[str] | None = None,
        names: Collection[str] = (),
        finished: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Job, ...]:
        """The queue, by one query: my own jobs, or those of `users` (an empty collection: everybody's).

        `names` keeps only jobs with exactly these names; `keep`, asked with the job's (or its array's) id, its name
        and its comment, only those that it says True to: a few of 100,000 cost little. `finished` adds the ended
        jobs still remembered.
        """
        ...

    def job(self, job_id: JobId) -> Job:
        """One job in detail. Raise NoSuchJob when a successful answer lacks it."""
        ...

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        """Whether it exists: ALIVE, GONE or UNKNOWN. Never raises. `mine`: it was my own, which is never hidden."""
        ...

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        """What accounting remembers. Raise NotSupported, plainly, where there is none."""
        ...

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        """End them. Already ended ones are no error."""
        ...

    def hold(self, job_id: JobId) -> None:
        """Keep it from starting."""
        ...

    def release(self, job_id: JobId) -> None:
        """Undo `hold`."""
        ...

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        """Put a running or ended job back into the queue. Refuse an array as a whole: it would start every task."""
        ...

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        """Change a queued or running job."""
        ...

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        """Send a signal (`USR1`) to its steps, to the batch shell (`batch`), or to both and all below (`full`)."""
        ...

    def nodes(self) -> tuple[Node, ...]:
        """The nodes."""
        ...

    def config(self) -> ClusterConfig:
        """What the cluster supports."""
        ...


class Check(Protocol):
    """One watchdog: a file in checks/ (or in a plugin folder) that exports it as CHECK.

    `Settings` and `Reading` are frozen dataclasses. The fields of `Settings` are the keys of its table in resil.toml
    ([watch.NAME]) and the options of `resil watch NAME`; its docstring's Attributes are their help. The fields of
    `Reading` are plain values (texts, numbers, booleans, None, tuples and dicts of them), because readings are
    remembered as JSON. Any: each check knows its own.

    Attributes:
        summary: one line for `resil watch --list` and `--help`.
        Settings: dataclass whose every field has a default: a watchdog works without configuration.
        Reading: dataclass of what was seen of one subject.
        memory: how many readings of each subject `judge` wants.
        argument: the field of Settings (a tuple of texts) that takes what stands after the name:
            `resil watch fs /scratch`. Empty: none does.
        example: a command line for `--help`.

    It may have a text `on_nothing` besides: what to try where it was asked for and has nothing to look at.
    """

    summary: str
    Settings: type
    Reading: type
    memory: Memory
    argument: str
    example: str

    def targets(self, settings: Any, scene: Scene) -> Sequence[Target]:
        """What to look at. Must not touch what may hang: that is for `probe`.

        Raise UsageError or SettingsError for settings that cannot be meant. Nothing to look at is an empty sequence.
        """
        ...

    def probe(self, target: Target, settings: Any, scene: Scene, before: Mapping[str, Timed[Any]]) -> Mapping[str, Any]:
        """Look, and return a Reading for each subject. The only I/O; runs in a child process with a deadline.

        `before` holds what was last remembered of each subject of this check. Raise ProbeError (or any ResilError) if
        there was no answer: that is UNKNOWN, never OK and never dead.
        """
        ...

    def judge(self, subject: str, readings: Sequence[Timed[Any]], settings: Any, now: float) -> Sequence[Finding]:
        """Say what the readings of one subject amount to. Pure. The last one was just taken; older ones come before."""
        ...


class Channel(Protocol):
    """One way to tell people: a file in channels/ (or in a plugin folder) that exports it as CHANNEL.

    `Settings` is a frozen dataclass: the keys of [channel.NAME] in resil.toml. Secrets are never among them, only where
    they lie: a field `x_file` (a file of mode 0600) or `x_variable` (the name of an environment variable).

    Attributes:
        summary: one line for people.
        Settings: dataclass whose every field has a default.
    """

    summary: str
    Settings: type

    def check(self, settings: Any) -> None:
        """Raise SettingsError for settings that cannot be meant: no recipient, no address. Looks at nothing."""
        ...

    def compose(self, alert: Alert, settings: Any, thread: Mapping[str, str]) -> Any:
        """The message, in the channel's own type. Pure.

        `thread` is what `send` returned for earlier alerts of the same thread (the ts of a Slack message, for
        instance); empty for the first.
        """
        ...

    def send(self, message: Any, settings: Any, world: World) -> Mapping[str, str]:
        """Deliver the message and return what to remember of this thread; "answer" is what came back, for people.

        Raise DeliveryError if it was not accepted. No secret may stand in any exception's text.
        """
        ...


class Driver(Protocol):
    """What makes the ticks of cron: a file in drivers/ (or in a plugin folder) that exports it as DRIVER.

    A driver writes where its host keeps such things (a crontab, a unit, the queue), and only what carries the token of
    the installation; what others wrote there stays as it is, byte for byte.

    Attributes:
        summary: one line for people.
        rank: where several are available, `auto` takes the lowest.
    """

    summary: str
    rank: int

    def availability(self, scene: Scene) -> Availability:
        """Whether it can be used here, and why. Looks, with deadlines; changes nothing and never raises."""
        ...

    def plan(self, installation: Installation, settings: CronSettings, scene: Scene) -> Sequence[Step]:
        """What `install` would do, for `--dry-run`. Changes nothing. Nothing to do is an empty sequence."""
        ...

    def install(self, installation: Installation, settings: CronSettings, scene: Scene) -> Sequence[str]:
        """Do it, and return a line each for what was done. Doing it again does nothing.

        Raise ResilError if it could not be done; then nothing is left half done.
        """
        ...

    def uninstall(self, installation: Installation, settings: CronSettings, scene: Scene) -> Sequence[str]:
        """Undo it, and return a line each for what was done. Nothing there to undo is no error."""
        ...

    def state(self, installation: Installation, settings: CronSettings, scene: Scene) -> DriverState:
        """Whether what `install` made is still there and will tick again. Looks, with deadlines; never raises."""
        ...
