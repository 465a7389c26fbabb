"""Act two of `resil demo`: in one night a disk fills, a training hangs and a queue runs dry; each fault is notified.

Every step is a command line, run as its own process. Mail and Slack are two small servers on this machine
(receivers.py); the messages that they receive decide.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from resilience import layout
from resilience.demo.receivers import Inbox, receivers
from resilience.errors import ResilError
from resilience.finding import Verdict
from resilience.quantities import quote_toml
from resilience.settings.load import FILE_NAME
from resilience.system.files import make_directory, write_atomic
from resilience.system.ports import Runner, System
from resilience.system.process import Completed

ValueT = TypeVar("ValueT")
COMMAND_S = 30.0
LINE = 110


class DemoFailed(ResilError):
    """The demo did not end as expected."""


def shorten(text: str) -> str:
    """Return a text as one short line of whole words; the last word, the incident's id, is kept. Pure."""
    line = " ".join(text.split())
    if len(line) <= LINE:
        return line
    start = line[: LINE - 15]
    return f"{start.rpartition(' ')[0] or start} ... {line.rpartition(' ')[2][-10:]}"


@dataclass(slots=True)
class Operator:
    """The operator, who runs commands and receives messages.

    Attributes:
        system: this machine, with the environment of the commands.
        directory: the project directory.
        inbox: where mail and Slack arrive.
        say: called with a sentence for each event.
    """

    system: System
    directory: Path
    inbox: Inbox
    say: Callable[[str], None]

    def resil(self, *words: str, quietly: bool = False) -> Completed:
        """Run a command line of resil."""
        argv = [sys.executable, "-m", "resilience", *words]
        runner: Runner = self.system.runner
        done = runner.run(argv, timeout_s=COMMAND_S, env=self.system.environ, cwd=str(self.directory))
        if not quietly:
            self.show(words, done.stdout or done.stderr)
        return done

    def must(self, *words: str, quietly: bool = False) -> Completed:
        """Run a command line that must succeed. Raise DemoFailed with its error output if it fails."""
        done = self.resil(*words, quietly=quietly)
        if done.returncode != 0:
            raise DemoFailed(f"resil {shlex.join(words)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return done

    def show(self, words: Sequence[str], output: str) -> None:
        """Report a command line and the first line of its output."""
        self.say(f"$ resil {shlex.join(words)}")
        if output:
            self.say(f"  {shorten(output.splitlines()[0].partition(' | ')[0])}")

    def incidents(self) -> list[dict[str, Any]]:
        """Return every incident of the night, as `resil alert list --json` prints them."""
        done = self.resil("alert", "list", "--all", "--json", quietly=True)
        try:
            return list(json.loads(done.stdout)["incidents"])
        except (ValueError, LookupError):
            raise DemoFailed(f"`resil alert list` says: {done.stdout[:200]} {done.stderr.strip()[:200]}") from None

    def until(self, found: Callable[[], ValueT], patience_s: float, pause_s: float) -> ValueT | None:
        """Call a function until its result is true, and return the result; None after `patience_s`."""
        clock = self.system.clock
        deadline = clock.monotonic() + patience_s
        while clock.monotonic() < deadline:
            if value := found():
                return value
            clock.sleep(pause_s)
        return None

    def report_messages(self, before: int) -> None:
        """Report the mails and Slack messages after the first `before`."""
        for subject in self.inbox.subjects[before:]:
            self.say(f"  mail: {shorten(subject)}")
        for text in self.inbox.texts[before : len(self.inbox.subjects)]:
            self.say(f"  Slack: {shorten(text)}")


RUN = "night"
DISK_BYTES = 4 * 2**20
TRAINING = Path(__file__).with_name("_training.py")


@dataclass(frozen=True, slots=True)
class Disk:
    """A small disk: a tmpfs if one can be mounted, else a quota that a site's command reports."""

    path: Path
    quota: Path | None

    @property
    def description(self) -> str:
        return "a tmpfs of 4 MiB" if self.quota is None else "as the quota command of this site says"

    def fill(self) -> None:
        """Use almost all space."""
        if self.quota is None:
            (self.path / "checkpoint.pt").write_bytes(bytes(DISK_BYTES - 2**16))
        else:
            self.quota.write_text(f"used {DISK_BYTES - 2**16} of {DISK_BYTES}\n", encoding="utf-8")

    def free(self) -> None:
        """Free all space."""
        if self.quota is None:
            (self.path / "checkpoint.pt").unlink()
        else:
            self.quota.write_text(f"used 0 of {DISK_BYTES}\n", encoding="utf-8")

    def settings(self) -> str:
        """Return the table [watch.fs] for the disk."""
        lines = ["[watch.fs]", f"paths = [{quote_toml(str(self.path))}]", "crit_runway_s = 0", "warn_runway_s = 0"]
        if self.quota is not None:
            lines += [f'command = ["cat", {quote_toml(str(self.quota))}]']
            lines += ['used_regex = "used (\\\\d+)"', 'limit_regex = "of (\\\\d+)"']
        return "\n".join(lines)


@contextmanager
def small_disk(system: System, directory: Path) -> Iterator[Disk]:
    path = directory / "disk"
    make_directory(path, mode=0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "resil-demo", str(path)]
    try:
        is_mounted = system.runner.run(mount, timeout_s=5).returncode == 0
    except ResilError:
        is_mounted = False
    disk = Disk(path, None if is_mounted else directory / "quota.txt")
    disk_is_ours = disk.quota is None
    try:
        if not disk_is_ours:
            disk.free()
        yield disk
    finally:
        if disk_is_ours:
            system.runner.run(["umount", "-l", str(path)], timeout_s=5)


def own_system(system: System, directory: Path) -> System:
    """Return this system without the user's own settings, and with a separate queue."""
    environ = {k: v for k, v in system.environ.items() if not k.startswith(("RESIL_", "SLURM_", "SBATCH_"))}
    environ["RESIL_LOCAL_SPOOL"] = str(directory / "spool")
    environ["RESIL_LOCAL_IDLE_S"] = "2"
    environ["RESIL_CONFIG"] = str(directory / FILE_NAME)
    return replace(system, cwd=directory, environ=environ)


def write_settings(directory: Path, inbox: Inbox, disk: Disk) -> None:
    training = [sys.executable, "-u", str(TRAINING), str(directory / "checkpoints"), "--steps", "150"]
    command = shlex.join(
        [*training, "--save-every", "40", "--pace", "0.03", "--faults", json.dumps({"1": ["hang", 30]})]
    )
    secret = directory / "slack-webhook"
    write_atomic(secret, inbox.slack_url + "\n", mode=0o600)
    write_atomic(
        directory / FILE_NAME,
        f"""\
[run]
name = "{RUN}"
command = {quote_toml(command)}
[submit]
signal_lead_s = 60
[scheduler]
name = "local"
[attempt]
beat_s = 1
[guard]
beat_s = 0.2
[sbatch]
time = "5"
{disk.settings()}
[watch.log]
timeout_s = 4
[watch.job]
min_queued = 0
[alert]
channels = ["email", "slack"]
group_s = 0
[channel.email]
to = ["you@example.org"]
host = "127.0.0.1"
port = {inbox.smtp_port}
[channel.slack]
webhook_file = {quote_toml(str(secret))}
""",
        mode=0o644,
    )


PATIENCE_S = 30.0
POLL_S = 0.3


@dataclass(frozen=True, slots=True)
class NotifiedFault:
    """One fault of the night and its notifications.

    Attributes:
        fault: the displayed name.
        episode: the incident's id.
        mails: subjects of the mails about it, in order.
        posts: how many Slack messages were about it.
        acknowledged_by: who acknowledged the incident.
        resolved: whether the incident was resolved.
    """

    fault: str
    episode: str
    mails: tuple[str, ...]
    posts: int
    acknowledged_by: str
    resolved: bool

    @property
    def was_notified_once(self) -> bool:
        """Return whether each channel received one message at the start of the fault and one at its resolution."""
        return self.resolved and len(self.mails) == 2 and self.posts == 2


class Row(NamedTuple):
    """One row of the night's script.

    Attributes:
        do: words of a command line, or a function.
        expect: the condition that the night waits for afterwards; None: the next row follows at once.
        say: a sentence about the row, or empty.
    """

    do: tuple[str, ...] | Callable[[], object]
    expect: Callable[[], None] | None = None
    say: str = ""


class Night:
    """A night with three faults, and the incident of each."""

    def __init__(self, operator: Operator, disk: Disk) -> None:
        self.operator, self.disk = operator, disk
        self.episodes: dict[str, str] = {}

    def script(self) -> Iterator[Row]:
        """Yield the rows in order, each made in its turn: its words name incidents of earlier rows."""
        yield Row(("watch", "fs"))
        yield Row(self.disk.fill, self.notified("fs", "full disk"), f"the disk fills up ({self.disk.description})")
        yield Row(("watch", "fs"))
        yield Row(self.acknowledge("full disk", "I delete old checkpoints"), say="  no second notification")
        yield Row(self.disk.free, self.resolved("fs", "full disk"))
        yield Row(("submit", "--array", "1"), self.notified("log", "hung training"))
        yield Row(self.acknowledge("hung training", "I end it"))
        yield Row(self.end_training, self.job_over)
        yield Row(lambda: None, self.notified("job", "dead queue"))
        yield Row(self.acknowledge("dead queue", "I submit it again"))
        yield Row(("submit", "--array", "1"), self.resolved("job", "dead queue"))
        yield Row(lambda: None, self.resolved("log", "hung training"))

    def play(self) -> None:
        """Run every row. Raise DemoFailed if a command fails, or an expected event does not come in time."""
        for row in self.script():
            if row.say:
                self.operator.say(row.say)
            if callable(row.do):
                row.do()
            else:
                run = self.operator.resil if row.do[0] == "watch" else self.operator.must  # a verdict is no failure
                run(*row.do)
            if row.expect is not None:
                row.expect()

    def acknowledge(self, fault: str, note: str) -> tuple[str, ...]:
        """Return the command line that acknowledges a fault."""
        return ("alert", "ack", self.episodes[fault], "-m", note)

    def notified(self, check: str, fault: str) -> Callable[[], None]:
        """Expect a notification of a new incident of a watchdog."""

        def is_open() -> bool:
            found = [i["episode"] for i in self.operator.incidents() if i["check"] == check and i["resolved"] is None]
            if found:
                self.episodes[fault] = str(found[0])
            return bool(found)

        failure = f"no notification of the fault that `resil watch {check}` must find"
        return lambda: self._until_mail(check, is_open, failure)

    def resolved(self, check: str, fault: str) -> Callable[[], None]:
        """Expect a notification of the end of an incident."""
        episode = self.episodes[fault]

        def is_resolved() -> bool:
            return any(i["episode"] == episode and i["resolved"] is not None for i in self.operator.incidents())

        return lambda: self._until_mail(check, is_resolved, f"incident {episode} was not resolved")

    def _until_mail(self, check: str, is_so: Callable[[], bool], failure: str) -> None:
        """Run a watchdog until a mail has come and a condition holds."""
        operator, output = self.operator, ""
        before = len(operator.inbox.subjects)

        def has_come() -> bool:
            nonlocal output
            output = operator.resil("watch", check, quietly=True).stdout
            return len(operator.inbox.subjects) > before and is_so()

        has = operator.until(has_come, PATIENCE_S, POLL_S)
        operator.show(("watch", check), output)
        if not has:
            raise DemoFailed(failure, hint=f"see {operator.directory}")
        operator.report_messages(before)

    def end_training(self) -> None:
        """Kill the hung process, whose pid is in its heartbeat."""
        for beats in (self.operator.directory / ".resil" / RUN / layout.BEATS).iterdir():
            pid = tomllib.loads(beats.read_text(encoding="utf-8"))["rank"]["0"]["pid"]
            self.operator.say(f"kill -9 {pid}  # the hung training; its job ends, and no other job is queued")
            os.kill(pid, signal.SIGKILL)

    def job_over(self) -> None:
        """Wait for the end of the job: the queue counts as empty only afterwards."""

        def is_over() -> bool:
            watched = self.operator.resil("watch", "job", "--no-alert", quietly=True)
            return watched.returncode == Verdict.CRITICAL.exit_code

        if not self.operator.until(is_over, PATIENCE_S, POLL_S):
            raise DemoFailed("the job of the killed training did not end", hint=f"see {self.operator.directory}")

    def notifications(self, fault: str) -> NotifiedFault:
        """Return the notifications of a fault, as the servers received them."""
        episode, inbox = self.episodes[fault], self.operator.inbox
        incident = next(i for i in self.operator.incidents() if i["episode"] == episode)
        return NotifiedFault(
            fault=fault,
            episode=episode,
            mails=tuple(subject for subject in inbox.subjects if episode[:6] in subject),
            posts=sum(episode[:6] in text for text in inbox.texts),
            acknowledged_by=str(incident["acknowledged_by"]),
            resolved=incident["resolved"] is not None,
        )


def play_night(system: System, directory: Path, *, say: Callable[[str], None]) -> tuple[NotifiedFault, ...]:
    """Run act two in a new directory. `say(sentence)` is called for each event.

    Raise DemoFailed if a fault is not detected or not notified in time.
    """
    make_directory(directory, mode=0o755)
    with receivers() as inbox, small_disk(system, directory) as disk:
        write_settings(directory, inbox, disk)
        night = Night(Operator(own_system(system, directory), directory, inbox, say), disk)
        say("the demo's mail server and Slack listen on this machine; a night with faults begins")
        try:
            night.play()
        finally:
            night.operator.resil("cancel", RUN, quietly=True)
        return tuple(night.notifications(fault) for fault in night.episodes)
