"""Act three of `resil demo`: the scheduler's node dies, and its watchdog still notifies of a full disk.

The scheduler is the chain of jobs of the backend `slurm`, here in the embedded scheduler. To simulate a dead node,
SIGKILL ends every process of the job, its supervisor included. The act succeeds if the demo's mail server receives the
mail and every slot runs once.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resilience.cron.state_directory import CronDirectory
from resilience.demo.night import DemoFailed, Disk, Operator, own_system, small_disk
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
        told_s: seconds from the full disk to the mail.
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
        """Return whether another job took over, every slot ran once, the mail came, and no job is left."""
        took_over = bool(self.successor) and self.successor != self.killed
        return took_over and bool(self.mail) and self.slots > 0 and self.twice == self.left == 0


def play_cron(system: System, directory: Path, *, say: Callable[[str], None]) -> CronNight:
    """Run act three in a new directory. `say(sentence)` is called for each event.

    Raise DemoFailed if no job takes over, or no mail comes, in time.
    """
    make_directory(directory, mode=0o755)
    with receivers() as inbox, small_disk(system, directory) as disk:
        operator = Operator(own_system(system, directory), directory, inbox, say)
        say("no cron here: the scheduler is a small job that queues its successors")
        _set_up(operator, inbox, disk)
        try:
            operator.must("cron", "install", "--backend", "slurm")
            killed = _until_it_runs(operator)
            _kill_node(operator, killed)
            before = len(_ran(operator))
            disk.fill()
            say(f"the disk fills up ({disk.description})")
            began = system.clock.monotonic()
            mail = _until_notified(operator)
            told_s = system.clock.monotonic() - began
            successor = _until_it_runs(operator, but=killed, more_than=before)
            operator.must("cron", "status")
            operator.must("cron", "stop")
        finally:
            operator.resil("cron", "stop", quietly=True)
        ran = _ran(operator)
        twice = sum(count > 1 for count in ran.values())
        say(f"job {successor} took over from job {killed}; {len(ran)} slots of {SCRIPT} ran, {twice} of them twice")
        return CronNight(killed, successor, mail, told_s, len(ran), twice, _left(operator))


# ---- setup ------------------------------------------------------------------------------------------------------


def _set_up(operator: Operator, inbox: Inbox, disk: Disk) -> None:
    """Create a project by `resil init`, a drop-in, and a crontab that runs every few seconds."""
    operator.must("init")
    write_atomic(
        operator.directory / FILE_NAME,
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
    cron = operator.directory / "cron"
    counted = shlex.quote(str(operator.directory / SCRIPT))
    write_atomic(cron / "cron.hourly" / SCRIPT, f'#!/bin/sh\necho "$RESIL_CRON_SLOT" >>{counted}\n', mode=0o755)
    operator.say(f"$ cp {SCRIPT} cron/cron.hourly/")
    lines = [
        "# To avoid waiting for the full hour, run the same entries every few seconds:",
        f"@every {EVERY_S}s cron/cron.hourly/{SCRIPT}  # resil: name=count",
        f"@every {EVERY_S}s cron/cron.quarter_hourly/watch-fs  # resil: name=watch ok=0-3",
    ]
    write_atomic(cron / "crontab", "\n".join(lines) + "\n", mode=0o644)
    operator.say(f"  and cron/crontab runs it, and the watchdog that is already there, every {EVERY_S} s")


# ---- events -------------------------------------------------------------------------------------------------


def _until_it_runs(operator: Operator, *, but: str = "", more_than: int = 0) -> str:
    """Wait for a tick of a job other than `but`, and for more than so many slots of the script; return the job's id."""

    def job() -> str:
        beat = CronDirectory(operator.directory / ".resil").heartbeat()
        is_other = beat is not None and beat.job_id != but and len(_ran(operator)) > more_than
        return beat.job_id if beat is not None and is_other else ""

    return _found(operator, job, "no job took over as the scheduler" if but else "the scheduler runs no entry")


def _found(operator: Operator, found: Callable[[], str], failure: str) -> str:
    """Wait for a text that is not empty. Raise DemoFailed, with the scheduler's status, if there is none in time."""
    value = operator.until(found, PATIENCE_S, POLL_S)
    if not value:
        status = operator.resil("cron", "status", quietly=True)
        raise DemoFailed(failure, hint=(status.stdout or status.stderr).strip()[-300:])
    return value


def _ran(operator: Operator) -> Counter[str]:
    """Return the slots of the script that have run, with their counts."""
    path = operator.directory / SCRIPT
    return Counter(path.read_text(encoding="utf-8").split() if path.exists() else ())


def _kill_node(operator: Operator, job_id: str) -> None:
    """Kill every process of the job and its supervisor, as a power failure of the node would."""
    import psutil

    spool = Path(operator.system.environ["RESIL_LOCAL_SPOOL"])
    task = json.loads((spool / "jobs" / job_id / "task.json").read_text(encoding="utf-8"))
    variables = {"SLURM_JOB_ID": job_id, "RESIL_LOCAL_SPOOL": str(spool)}.items()
    found = psutil.process_iter(["environ"])
    pids = [int(task["supervisor"]), *(one.pid for one in found if variables <= (one.info["environ"] or {}).items())]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    operator.say(f"kill -9 {shlex.join(map(str, pids))}  # the node of the scheduler's job {job_id} has died")


def _until_notified(operator: Operator) -> str:
    def mail() -> str:  # the path may be too long for a subject; a mail about what the killed job cost is a WARNING
        return next((subject for subject in operator.inbox.subjects if "CRITICAL" in subject), "")

    subject = _found(operator, mail, "no notification of the full disk after the scheduler's node died")
    operator.report_messages(0)
    return subject


def _left(operator: Operator) -> int:
    """Return how many jobs are live, after waiting for those that `resil cron stop` cancelled."""
    system = operator.system
    scheduler: Scheduler = LocalScheduler(clock=system.clock, runner=system.runner, environ=system.environ)

    def live() -> int:
        return sum(job.state.is_alive for job in scheduler.jobs())

    operator.until(lambda: not live(), PATIENCE_S, POLL_S)
    return live()
