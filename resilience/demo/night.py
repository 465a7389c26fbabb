"""Act two of `resil demo`: a night in which a disk fills, a training hangs and a queue runs dry, and who is notified.

Every step is a command that a person could type, run as a program of its own. Mail and Slack are two small servers on
this machine (receivers.py); the messages that they receive decide."""

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
    """The demo did not end as it must."""


def shorten(text: str) -> str:
    """Shorten a text to one line; the end, with the incident's id, stays. Pure."""
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[: LINE - 15]} ... {line[-10:]}"


@dataclass(slots=True)
class Person:
    """One who acts, and what they were sent.

    Attributes:
        system: this machine, with the environment of the commands.
        directory: the project directory.
        inbox: where mail and Slack arrive.
        say: told each event, as a sentence.
    """

    system: System
    directory: Path
    inbox: Inbox
    say: Callable[[str], None]

    def resil(self, *words: str, quietly: bool = False) -> Completed:
        """Run a command line as a person would."""
        argv = [sys.executable, "-m", "resilience", *words]
        runner: Runner = self.system.runner
        done = runner.run(argv, timeout_s=COMMAND_S, env=self.system.environ, cwd=str(self.directory))
        if not quietly:
            self.show(words, done.stdout or done.stderr)
        return done

    def must(self, *words: str, quietly: bool = False) -> Completed:
        """Run one that has to go well. Raise DemoFailed with what it said if it does not."""
        done = self.resil(*words, quietly=quietly)
        if done.returncode != 0:
            raise DemoFailed(f"resil {shlex.join(words)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return done

    def show(self, words: Sequence[str], output: str) -> None:
        """The command line and the first line that it printed."""
        self.say(f"$ resil {shlex.join(words)}")
        if output:
            self.say(f"  {shorten(output.splitlines()[0].partition(' | ')[0])}")

    def incidents(self) -> list[dict[str, Any]]:
        """Every incident of the night, as `resil alert list --json` has them."""
        done = self.resil("alert", "list", "--all", "--json", quietly=True)
        try:
            return list(json.loads(done.stdout)["incidents"])
        except (ValueError, LookupError):
            raise DemoFailed(f"resil alert list says: {done.stdout[:200]} {done.stderr.strip()[:200]}") from None

    def until(self, found: Callable[[], ValueT], patience_s: float, pause_s: float) -> ValueT | None:
        """Call a function until it returns something true, and return that; None when patience is over."""
        clock = self.system.clock
        deadline = clock.monotonic() + patience_s
        while clock.monotonic() < deadline:
            if value := found():
                return value
            clock.sleep(pause_s)
        return None

    def tell_news(self, before: int) -> None:
        """Say the mails and Slack messages that came after the first `before`."""
        for subject in self.inbox.subjects[before:]:
            self.say(f"  mail: {shorten(subject)}")
        for text in self.inbox.texts[before : len(self.inbox.subjects)]:
            self.say(f"  Slack: {shorten(text)}")


RUN = "night"
DISK_BYTES = 4 * 2**20
TRAINING = Path(__file__).with_name("_training.py")


@dataclass(frozen=True, slots=True)
class Disk:
    """A small disk: a tmpfs where one may be mounted, else a quota that a command of the site's reports."""

    path: Path
    quota: Path | None

    @property
    def what(self) -> str:
        return "a tmpfs of 4 MiB" if self.quota is None else "as the quota command of this site says"

    def fill(self) -> None:
        """All but a little."""
        if self.quota is None:
            (self.path / "checkpoint.pt").write_bytes(bytes(DISK_BYTES - 2**16))
        else:
            self.quota.write_text(f"used {DISK_BYTES - 2**16} of {DISK_BYTES}\n", encoding="utf-8")

    def free(self) -> None:
        """Everything."""
        if self.quota is None:
            (self.path / "checkpoint.pt").unlink()
        else:
            self.quota.write_text(f"used 0 of {DISK_BYTES}\n", encoding="utf-8")

    def settings(self) -> str:
        """[watch.fs] for it."""
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


def own_world(system: System, directory: Path) -> System:
    """This machine without the person's own settings, and with a queue of its own."""
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
class ToldFault:
    """One fault of the night, and what people heard of it.

    Attributes:
        fault: what was wrong, for people.
        episode: the incident's id.
        mails: subjects of the mails about it, in order.
        posts: how many Slack messages were about it.
        acknowledged_by: who took it on.
        resolved: whether its end was told.
    """

    fault: str
    episode: str
    mails: tuple[str, ...]
    posts: int
    acknowledged_by: str
    resolved: bool

    @property
    def was_told_once(self) -> bool:
        """Each channel got one message at the start of the fault and one at its end."""
        return self.resolved and len(self.mails) == 2 and self.posts == 2


class Row(NamedTuple):
    """One row of the night's script.

    Attributes:
        do: words of a command line, or a function.
        expect: the condition that the night waits for afterwards; None: the next row follows at once.
        say: a sentence about the row.
    """

    do: tuple[str, ...] | Callable[[], object]
    expect: Callable[[], None] | None = None
    say: str = ""


class Night:
    """A person in a night with three faults, and the incident of each."""

    def __init__(self, person: Person, disk: Disk) -> None:
        self.person, self.disk = person, disk
        self.episodes: dict[str, str] = {}

    def script(self) -> Iterator[Row]:
        """The rows, in order. A row is made when its turn comes: its words name incidents of earlier rows."""
        yield Row(("watch", "fs"))
        yield Row(self.disk.fill, self.notified("fs", "full disk"), f"the disk fills up ({self.disk.what})")
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
        """Play every row. Raise DemoFailed if a command fails, or an expected event does not come in time."""
        for row in self.script():
            if row.say:
                self.person.say(row.say)
            if callable(row.do):
                row.do()
            else:
                run = self.person.resil if row.do[0] == "watch" else self.person.must  # a verdict is no failure
                run(*row.do)
            if row.expect is not None:
                row.expect()

    def acknowledge(self, fault: str, note: str) -> tuple[str, ...]:
        """The command line that takes a fault on."""
        return ("alert", "ack", self.episodes[fault], "-m", note)

    def notified(self, check: str, fault: str) -> Callable[[], None]:
        """Expect a notification of a new incident of a watchdog."""

        def is_open() -> bool:
            found = [i["episode"] for i in self.person.incidents() if i["check"] == check and i["resolved"] is None]
            if found:
                self.episodes[fault] = str(found[0])
            return bool(found)

        failure = f"nobody was notified of the fault that `resil watch {check}` must have found"
        return lambda: self._until_mail(check, is_open, failure)

    def resolved(self, check: str, fault: str) -> Callable[[], None]:
        """Expect a notification of the end of an incident."""
        episode = self.episodes[fault]

        def is_resolved() -> bool:
            return any(i["episode"] == episode and i["resolved"] is not None for i in self.person.incidents())

        return lambda: self._until_mail(check, is_resolved, f"the end of incident {episode} was not noticed")

    def _until_mail(self, check: str, is_so: Callable[[], bool], failure: str) -> None:
        """Run a watchdog until a mail has come and a condition holds."""
        person, output = self.person, ""
        before = len(person.inbox.subjects)

        def has_come() -> bool:
            nonlocal output
            output = person.resil("watch", check, quietly=True).stdout
            return len(person.inbox.subjects) > before and is_so()

        has = person.until(has_come, PATIENCE_S, POLL_S)
        person.show(("watch", check), output)
        if not has:
            raise DemoFailed(failure, hint=f"look in {person.directory}")
        person.tell_news(before)

    def end_training(self) -> None:
        """Kill the process that hangs, as its heartbeat names it."""
        for beats in (self.person.directory / ".resil" / RUN / layout.BEATS).iterdir():
            pid = tomllib.loads(beats.read_text(encoding="utf-8"))["rank"]["0"]["pid"]
            self.person.say(f"kill -9 {pid}  # the training that hangs; its job ends, and no other is queued behind it")
            os.kill(pid, signal.SIGKILL)

    def job_over(self) -> None:
        """Wait for the end of the job: while it ends, the queue is only about to be empty."""

        def is_over() -> bool:
            watched = self.person.resil("watch", "job", "--no-alert", quietly=True)
            return watched.returncode == Verdict.CRITICAL.exit_code

        if not self.person.until(is_over, PATIENCE_S, POLL_S):
            raise DemoFailed("the job of the killed training does not end", hint=f"look in {self.person.directory}")

    def told(self, fault: str) -> ToldFault:
        """The notifications of a fault, as the servers received them."""
        episode, inbox = self.episodes[fault], self.person.inbox
        incident = next(i for i in self.person.incidents() if i["episode"] == episode)
        return ToldFault(
            fault=fault,
            episode=episode,
            mails=tuple(subject for subject in inbox.subjects if episode[:6] in subject),
            posts=sum(episode[:6] in text for text in inbox.texts),
            acknowledged_by=str(incident["acknowledged_by"]),
            resolved=incident["resolved"] is not None,
        )


def play_night(system: System, directory: Path, *, say: Callable[[str], None]) -> tuple[ToldFault, ...]:
    """Play it in a new directory. `say(sentence)` is called for each event.

    Raise DemoFailed if a fault is not noticed, or not notified, in time.
    """
    make_directory(directory, mode=0o755)
    with receivers() as inbox, small_disk(system, directory) as disk:
        write_settings(directory, inbox, disk)
        night = Night(Person(own_world(system, directory), directory, inbox, say), disk)
        say("the demo's own mail server and Slack listen on this machine; a night begins")
        try:
            night.play()
        finally:
            night.person.resil("cancel", RUN, quietly=True)
        return tuple(night.told(fault) for fault in night.episodes)
