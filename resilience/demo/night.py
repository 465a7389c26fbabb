"""Act two of `resil demo`: a night in which a disk fills, a training hangs and a queue runs dry, and who is told.

Every step is a command that a person could type, run as a program of its own. Mail and Slack are two small servers on
this machine (demo_receivers.py); what counts is what they were sent.
"""

from __future__ import annotations

import os
import signal
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from resilience import layout
from resilience.demo.night_set import RUN, Disk, own_world, small_disk, write_settings
from resilience.demo.person import DemoFailed, Person
from resilience.demo.receivers import receivers
from resilience.finding import Verdict
from resilience.system.files import make_folder
from resilience.system.world import World

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
        """Whether there was one message when it came and one when it ended, on each channel."""
        return self.resolved and len(self.mails) == 2 and self.posts == 2


def play_night(world: World, folder: Path, *, say: Callable[[str], None]) -> tuple[ToldFault, ...]:
    """Play it in a new folder. `say(sentence)` is called for each event.

    Raise DemoFailed if a fault is not noticed, or not told, in time.
    """
    make_folder(folder, mode=0o755)
    with receivers() as inbox, small_disk(world, folder) as disk:
        write_settings(folder, inbox, disk)
        night = Person(own_world(world, folder), folder, inbox, say)
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


def _full_disk(night: Person, disk: Disk) -> str:
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


def _hung_training_and_dry_queue(night: Person) -> tuple[str, str]:
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


def _end_training(night: Person) -> None:
    """Kill the process that hangs, as its heartbeat names it."""
    for beats in (night.folder / ".resil" / RUN / layout.BEATS).iterdir():
        pid = tomllib.loads(beats.read_text(encoding="utf-8"))["rank"]["0"]["pid"]
        night.say(f"kill -9 {pid}  # the training that hangs; its job ends, and nothing is queued behind it")
        os.kill(pid, signal.SIGKILL)


def _until_gone(night: Person) -> None:
    """Wait for the job to be over: while it ends, the queue is only about to be empty."""
    for _ in night.looks(PATIENCE_S, POLL_S):
        if night.resil("watch", "job", "--no-alert", quietly=True).returncode == Verdict.CRITICAL.exit_code:
            return
    raise DemoFailed("the job of the killed training does not end", hint=f"look in {night.folder}")


def _until_told(night: Person, check: str) -> str:
    """Watch until people are told of a fault; return the episode of its incident."""
    before = len(night.inbox.subjects)
    for _ in night.looks(PATIENCE_S, POLL_S):
        output = night.resil("watch", check, quietly=True).stdout
        if len(night.inbox.subjects) > before:
            night.show(("watch", check), output)
            night.tell_news(before)
            found = [i["episode"] for i in night.incidents() if i["check"] == check and i["resolved"] is None]
            if found:
                return str(found[0])
    night.show(("watch", check), output)
    raise DemoFailed(f"nobody was told of what `resil watch {check}` must have found", hint=f"look in {night.folder}")


def _until_resolved(night: Person, check: str, episode: str) -> None:
    before = len(night.inbox.subjects)
    for _ in night.looks(PATIENCE_S, POLL_S):
        output = night.resil("watch", check, quietly=True).stdout
        if len(night.inbox.subjects) == before:
            continue
        if any(i["episode"] == episode and i["resolved"] is not None for i in night.incidents()):
            night.show(("watch", check), output)
            night.tell_news(before)
            return
    night.show(("watch", check), output)
    raise DemoFailed(f"the end of incident {episode} was not noticed", hint=f"look in {night.folder}")


def _told(night: Person, name: str, episode: str) -> ToldFault:
    incident = next(i for i in night.incidents() if i["episode"] == episode)
    return ToldFault(
        fault=name,
        episode=episode,
        mails=tuple(subject for subject in night.inbox.subjects if episode[:6] in subject),
        posts=sum(episode[:6] in text for text in night.inbox.texts),
        acknowledged_by=str(incident["acknowledged_by"]),
        resolved=incident["resolved"] is not None,
    )
