"""Act three of `resil demo`: the scheduler's node dies, and its watchdog tells of a full disk all the same.

The scheduler is the chain of jobs of the backend `slurm`, here in the embedded scheduler. The node's death is that of
every process of its job, by SIGKILL, the one that watches the job included: nobody is left who could say goodbye. What
counts is the mail that the demo's mail server gets, and that every slot ran once.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.demo.night import DemoFailed, Disk, Person, own_world, small_disk
from resilience.demo.receivers import Inbox, receivers
from resilience.schedulers import Scheduler
from resilience.schedulers.local import LocalScheduler
from resilience.settings.load import FILE_NAME
from resilience.system.files import make_directory, write_atomic
from resilience.system.ports import System

PATIENCE_S = 120.0
POLL_S = 0.2
EVERY_S = 2
SCRIPT = "count-slots"


@dataclass(frozen=True, slots=True)
class CronNight:
    """The result of act three.

    Attributes:
        killed: the job of the scheduler whose node died.
        successor: the job that took over.
        mail: subject of the mail about the full disk.
        told_s: how long after the disk was full it came.
        slots: how many slots of the script have run.
        twice: how many of them more than once.
        left: how many jobs were queued or ran after `resil cron stop`.
    """

    killed: str
    successor: str
    mail: str
    told_s: float
    slots: int
    twice: int
    left: int

    @property
    def is_well(self) -> bool:
        """Another job took over, every slot ran once, the mail came, and no job is left."""
        took_over = bool(self.successor) and self.successor != self.killed
        return took_over and bool(self.mail) and self.slots > 0 and self.twice == self.left == 0


def play_cron(system: System, directory: Path, *, say: Callable[[str], None]) -> CronNight:
    """Play it in a new directory. `say(sentence)` is called for each event.

    Raise DemoFailed if nobody takes over, or nobody is told, in time.
    """
    make_directory(directory, mode=0o755)
    with receivers() as inbox, small_disk(system, directory) as disk:
        person = Person(own_world(system, directory), directory, inbox, say)
        say("no cron here: the scheduler is a small job that has its successors queued")
        _set_up(person, inbox, disk)
        try:
            person.must("cron", "install", "--backend", "slurm")
            killed = _until_it_runs(person)
            _kill_node(person, killed)
            before = len(_ran(person))
            disk.fill()
            say(f"the disk fills up ({disk.what})")
            began = system.clock.monotonic()
            mail = _until_told(person)
            told_s = system.clock.monotonic() - began
            successor = _until_it_runs(person, but=killed, more_than=before)
            person.must("cron", "status")
            person.must("cron", "stop")
        finally:
            person.resil("cron", "stop", quietly=True)
        ran = _ran(person)
        night = CronNight(
            killed=killed,
            successor=successor,
            mail=mail,
            told_s=told_s,
            slots=len(ran),
            twice=sum(count > 1 for count in ran.values()),
            left=_left(person),
        )
        say(
            f"job {successor} took over from job {killed}; {night.slots} slots of {SCRIPT} ran,"
            f" {night.twice} of them twice"
        )
        return night


# ---- the set ------------------------------------------------------------------------------------------------------


def _set_up(person: Person, inbox: Inbox, disk: Disk) -> None:
    """A project as `resil init` writes it, a drop-in of its own, and a table that does not wait for the hour."""
    person.must("init")
    write_atomic(
        person.directory / FILE_NAME,
        f"""\
[run]
name = "cron"
command = "true"
[scheduler]
name = "local"
[cron]
tick_s = 1
{disk.settings()}
[alert]
channels = ["email"]
group_s = 0
[channel.email]
to = ["you@example.org"]
host = "127.0.0.1"
port = {inbox.smtp_port}
""",
        mode=0o644,
    )
    cron = person.directory / "cron"
    counted = shlex.quote(str(person.directory / SCRIPT))
    write_atomic(cron / "cron.hourly" / SCRIPT, f'#!/bin/sh\necho "$RESIL_CRON_SLOT" >>{counted}\n', mode=0o755)
    person.say(f"$ cp {SCRIPT} cron/cron.hourly/")
    lines = [
        "# So that nobody has to wait for the hour, here the same run every few seconds:",
        f"@every {EVERY_S}s cron/cron.hourly/{SCRIPT}  # resil: name=count",
        f"@every {EVERY_S}s cron/cron.quarter_hourly/watch-fs  # resil: name=watch ok=0-3",
    ]
    write_atomic(cron / "crontab", "\n".join(lines) + "\n", mode=0o644)
    person.say(f"  and cron/crontab runs it, and the watchdog that lies there already, every {EVERY_S} s")


# ---- what happens -------------------------------------------------------------------------------------------------


def _until_it_runs(person: Person, *, but: str = "", more_than: int = 0) -> str:
    """Wait for a tick of a job other than `but`, and for more than so many slots of the script; return the job's id."""

    def job() -> str:
        with suppress(OSError, ValueError, KeyError):
            beat = _heartbeat(person)
            if beat["job_id"] != but and len(_ran(person)) > more_than:
                return str(beat["job_id"])
        return ""

    failure = "no job took over as the scheduler" if but else "the scheduler runs nothing"
    return _found(person, job, failure)


def _found(person: Person, found: Callable[[], str], failure: str) -> str:
    """Wait for a text that is not empty. Raise DemoFailed, with the scheduler's status, if there is none in time."""
    value = person.until(found, PATIENCE_S, POLL_S)
    if not value:
        status = person.resil("cron", "status", quietly=True)
        raise DemoFailed(failure, hint=(status.stdout or status.stderr).strip()[-300:])
    return value


def _ran(person: Person) -> Counter[str]:
    """The slots of the script that have run, and how often each."""
    path = person.directory / SCRIPT
    return Counter(path.read_text(encoding="utf-8").split() if path.exists() else ())


def _heartbeat(person: Person) -> Mapping[str, Any]:
    text = (person.directory / ".resil" / ".cron" / "heartbeat").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


def _kill_node(person: Person, job_id: str) -> None:
    """Every process of the job, and the one that watches it, end as they do when their node has no power."""
    spool = Path(person.system.environ["RESIL_LOCAL_SPOOL"])
    task = json.loads((spool / "jobs" / job_id / "task.json").read_text(encoding="utf-8"))
    watcher = int(task["supervisor"])
    pids = [watcher, *_carrying(f"SLURM_JOB_ID={job_id}", f"RESIL_LOCAL_SPOOL={spool}")]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    person.say(f"kill -9 {shlex.join(map(str, pids))}  # the node of the scheduler's job {job_id} has died")


def _carrying(*variables: str) -> list[int]:
    """The processes whose environment holds all of these, as proc(5) shows it."""
    wanted = {os.fsencode(variable) for variable in variables}
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if wanted <= set((path / "environ").read_bytes().split(b"\0")):
                found.append(int(path.name))
    return found


def _until_told(person: Person) -> str:
    def mail() -> str:  # the path may be too long for a subject; a mail about what the killed job cost is a WARNING
        return next((subject for subject in person.inbox.subjects if "CRITICAL" in subject), "")

    subject = _found(person, mail, "nobody was told of the full disk after the scheduler's node had died")
    person.tell_news(0)
    return subject


def _left(person: Person) -> int:
    """How many jobs still live: one that `resil cron stop` cancelled may take a moment to end."""
    system = person.system
    scheduler: Scheduler = LocalScheduler(clock=system.clock, runner=system.runner, environ=system.environ)

    def live() -> int:
        return sum(job.state.is_alive for job in scheduler.jobs())

    person.until(lambda: not live(), PATIENCE_S, POLL_S)
    return live()
