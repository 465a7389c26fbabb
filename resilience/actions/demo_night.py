"""Act two of `resil demo`: a night in which a disk fills, a training hangs and a queue runs dry, and who is told.

Every step is a command that a person could type, run as a program of its own. Mail and Slack are two small servers on
this machine (demo_receivers.py); what counts is what they were sent.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.actions.demo_night_set import RUN, Disk, own_world, small_disk, write_settings
from resilience.actions.demo_receivers import Inbox, receivers
from resilience.errors import ResilError
from resilience.model import layout
from resilience.model.verdict import Verdict
from resilience.system.files import make_folder
from resilience.system.ports import Runner
from resilience.system.process import Completed
from resilience.system.world import World

PATIENCE_S = 30.0
POLL_S = 0.3
COMMAND_S = 30.0
LINE = 110


def shorten(text: str) -> str:
    """What fits on a line, with the end of it, where the incident's id stands. Pure."""
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[: LINE - 15]} ... {line[-10:]}"


class NightFailed(ResilError):
    """The night did not go as it must."""


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
        """Whether there was one message when it came and one when it ended, on each channel."""
        return self.resolved and len(self.mails) == 2 and self.posts == 2


@dataclass(slots=True)
class _Night:
    """What act two works with."""

    world: World
    folder: Path
    inbox: Inbox
    say: Callable[[str], None]

    def resil(self, *words: str, quietly: bool = False) -> Completed:
        """Run a command line as a person would."""
        argv = [sys.executable, "-m", "resilience", *words]
        runner: Runner = self.world.runner
        done = runner.run(argv, timeout_s=COMMAND_S, env=self.world.environ, cwd=str(self.folder))
        if not quietly:
            self.show(words, done.stdout or done.stderr)
        return done

    def must(self, *words: str) -> None:
        """Run one that has to go well."""
        done = self.resil(*words)
        if done.returncode != 0:
            raise NightFailed(f"resil {shlex.join(words)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")

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
            raise NightFailed(f"resil alert list says: {done.stdout[:200]} {done.stderr.strip()[:200]}") from None


def play_night(world: World, folder: Path, *, say: Callable[[str], None]) -> tuple[ToldFault, ...]:
    """Play it in a new folder. `say(sentence)` is called for each event.

    Raise NightFailed if a fault is not noticed, or not told, in time.
    """
    make_folder(folder, mode=0o755)
    with receivers() as inbox, small_disk(world, folder) as disk:
        write_settings(folder, inbox, disk)
        night = _Night(own_world(world, folder), folder, inbox, say)
        say("the demo's own mail server and Slack listen on this machine; a night begins")
        try:
            full = _full_disk(night, disk)
            hung, dry = _hung_training_and_dry_queue(night)
        finally:
            night.resil("cancel", RUN, quietly=True)
        return tuple(
            _told(night, name, episode)
            for name, episode in (("full disk", full), ("hung training", hung), ("dead queue", dry))
        )


# ---- the three faults -----------------------------------------------------------------------------------------


def _full_disk(night: _Night, disk: Disk) -> str:
    night.resil("watch", "fs")
    disk.fill()
    night.say(f"the disk fills up ({disk.what})")
    episode = _until_told(night, "fs")
    night.resil("watch", "fs")
    night.say("  nobody is told again")
    night.must("alert", "ack", episode, "-m", "I delete old checkpoints")
    disk.free()
    _until_resolved(night, "fs", episode)
    return episode


def _hung_training_and_dry_queue(night: _Night) -> tuple[str, str]:
    night.must("submit", "--array", "1")
    hung = _until_told(night, "log")
    night.must("alert", "ack", hung, "-m", "I end it")
    _end_training(night)
    _until_gone(night)
    dry = _until_told(night, "job")
    night.must("alert", "ack", dry, "-m", "I submit it again")
    night.must("submit", "--array", "1")
    _until_resolved(night, "job", dry)
    _until_resolved(night, "log", hung)
    return hung, dry


def _end_training(night: _Night) -> None:
    """Kill the process that hangs, as its heartbeat names it."""
    for beats in (night.folder / ".resil" / RUN / layout.BEATS).iterdir():
        pid = tomllib.loads(beats.read_text(encoding="utf-8"))["rank"]["0"]["pid"]
        night.say(f"kill -9 {pid}  # the training that hangs; its job ends, and nothing is queued behind it")
        os.kill(pid, signal.SIGKILL)


def _until_gone(night: _Night) -> None:
    """Wait for the job to be over: while it ends, the queue is only about to be empty."""
    for _ in _ticks(night):
        if night.resil("watch", "job", "--no-alert", quietly=True).returncode == Verdict.CRITICAL.exit_code:
            return
    raise NightFailed("the job of the killed training does not end", hint=f"look in {night.folder}")


def _until_told(night: _Night, check: str) -> str:
    """Watch until people are told of a fault; return the episode of its incident."""
    before = len(night.inbox.subjects)
    for _ in _ticks(night):
        output = night.resil("watch", check, quietly=True).stdout
        if len(night.inbox.subjects) > before:
            night.show(("watch", check), output)
            _tell_news(night, before)
            found = [i["episode"] for i in night.incidents() if i["check"] == check and i["resolved"] is None]
            if found:
                return str(found[0])
    night.show(("watch", check), output)
    raise NightFailed(f"nobody was told of what `resil watch {check}` must have found", hint=f"look in {night.folder}")


def _until_resolved(night: _Night, check: str, episode: str) -> None:
    before = len(night.inbox.subjects)
    for _ in _ticks(night):
        output = night.resil("watch", check, quietly=True).stdout
        if len(night.inbox.subjects) == before:
            continue
        if any(i["episode"] == episode and i["resolved"] is not None for i in night.incidents()):
            night.show(("watch", check), output)
            _tell_news(night, before)
            return
    night.show(("watch", check), output)
    raise NightFailed(f"the end of incident {episode} was not noticed", hint=f"look in {night.folder}")


def _ticks(night: _Night) -> Iterator[None]:
    """As many ticks as patience allows."""
    clock = night.world.clock
    deadline = clock.monotonic() + PATIENCE_S
    while clock.monotonic() < deadline:
        yield
        clock.sleep(POLL_S)


def _tell_news(night: _Night, before: int) -> None:
    for subject in night.inbox.subjects[before:]:
        night.say(f"  mail: {shorten(subject)}")
    for text in night.inbox.texts[before : len(night.inbox.subjects)]:
        night.say(f"  Slack: {shorten(text)}")


def _told(night: _Night, name: str, episode: str) -> ToldFault:
    incident = next(i for i in night.incidents() if i["episode"] == episode)
    return ToldFault(
        fault=name,
        episode=episode,
        mails=tuple(subject for subject in night.inbox.subjects if episode[:6] in subject),
        posts=sum(episode[:6] in text for text in night.inbox.texts),
        acknowledged_by=str(incident["acknowledged_by"]),
        resolved=incident["resolved"] is not None,
    )
