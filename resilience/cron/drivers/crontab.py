"""Makes the ticks with cron itself: one line in the user's crontab, every minute."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resilience.base.processes import is_there
from resilience.cron.drivers import Availability, DriverState, ProgramFailed, ProgramUnavailable, Step
from resilience.cron.drivers._ticks import programs
from resilience.cron.drivers._ticks.lines import (
    check_writable,
    headline,
    mark,
    shell_command,
    tick_words,
    tokens_of,
    with_ours,
    without_header,
    without_ours,
)
from resilience.cron.drivers._ticks.place import check_host, last_words, output_file, table_state
from resilience.cron.records import Installation
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import read_regular, write_atomic

DAEMONS = ("cron", "crond", "cronie", "fcron", "dcron", "bcron-sched")
"""Process names (proc_pid_comm(5)): Debian, Red Hat and busybox, Gentoo, Arch and Alpine."""

PID_FILES = ("/run/crond.pid", "/run/cron.pid", "/var/run/crond.pid", "/var/run/cron.pid", "/run/crond.reboot")
"""Pid files of daemons: readable even if /proc hides processes of other users (hidepid=2, proc(5))."""


def find_daemon(proc: Path = Path("/proc"), pid_files: Sequence[str] = PID_FILES) -> str:
    """Return a description of the daemon (`cron, process 312`); empty if none was found."""
    for path in pid_files:
        pid = _pid_in(path)
        if pid and is_there(pid) and _comm(proc, pid) in ("", *DAEMONS):
            return f"{_comm(proc, pid) or 'cron'}, process {pid}"
    with suppress(OSError):
        for name in os.listdir(proc):  # noqa: PTH208 - names only
            if name.isdigit() and (comm := _comm(proc, int(name))) in DAEMONS:
                return f"{comm}, process {name}"
    return ""


def hides_processes(proc: Path = Path("/proc")) -> bool:
    """Return whether /proc hides processes of other users, so that finding none proves nothing."""
    return not (proc / "1" / "comm").exists()


def _comm(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _pid_in(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read(32).strip() or 0)
    except (OSError, ValueError):
        return 0


LONGEST_COMMAND = 990
"""Bytes. Debian's and Vixie's cron read at most 999 (MAX_COMMAND in their cron.h), and reject the whole table."""

_BAD = {"\n": "a line break", "\r": "a carriage return", "\0": "a NUL", "\\": "a backslash (crons disagree on those)"}


_READS = 4
"""Maximum number of attempts to read a table that changes between two readings."""


class Crontab:
    """The program `crontab` (crontab(1))."""

    name = "crontab"

    def read(self, context: Context) -> str | None:
        """See programs.Program.read."""
        for _ in range(_READS):
            listed = self._list(context)
            if listed is None or r"\r" not in listed:
                return listed
            # Debian's `crontab -l` lists a carriage return as the two characters `\r`. Written back, that would be what
            # the line runs. `crontab -e` hands the file itself to an editor; ours writes it to standard output.
            done = programs.run_program(context, ["crontab", "-e"], env={"VISUAL": "cat", "EDITOR": "cat"})
            if done.returncode == 0 and listed in (done.stdout, done.stdout.replace("\r", r"\r")):
                return done.stdout
        raise ProgramFailed(
            "the crontab contains carriage returns, and cannot be read unchanged",
            hint=f"remove them: crontab -l | sed 's/[\\]r$//' | crontab -; crontab -e: {programs.error_of(done)}",
        )

    def _list(self, context: Context) -> str | None:
        done = programs.run_program(context, ["crontab", "-l"])
        if done.returncode == 0:
            return without_header(done.stdout)
        text = (done.stderr or done.stdout).lower()
        # Vixie, Debian, cronie: `no crontab for alice`; busybox and dcron: `can't open 'alice': No such file ...`.
        if "no crontab for" in text or ("can't open" in text and "no such file" in text):
            return None
        said = programs.error_of(done)
        # Debian: `You (alice) are not allowed to use this program (crontab)`; cronie with PAM: `... not allowed to
        # access to (crontab) because of pam configuration.`
        if "not allowed" in text or "permission denied" in text or "pam " in text:
            raise ProgramUnavailable(
                f"you are not allowed to use crontab here: {said}", hint="ask an administrator for /etc/cron.allow"
            )
        raise ProgramFailed(f"crontab -l failed: {said}", transient=True)

    def write(self, table: str, context: Context) -> None:
        """See programs.Program.write."""
        done = programs.run_program(context, ["crontab", "-"], stdin=table)
        if done.returncode != 0:
            raise ResilError(
                f"crontab rejected the table; the old one is unchanged: {programs.error_of(done)}",
                hint="check your lines with crontab -l, and the free space in /var/spool",
            )

    def remove(self, context: Context) -> None:
        """See programs.Program.remove."""
        done = programs.run_program(context, ["crontab", "-r"])
        if done.returncode != 0 and "no crontab for" not in done.stderr.lower():
            raise ResilError(f"crontab -r failed; the table is unchanged: {programs.error_of(done)}")


_CRONTAB = Crontab()


@dataclass(frozen=True, slots=True)
class CrontabDriver:
    """The cron of this machine.

    Attributes:
        proc: mount point of procfs.
        pid_files: pid files of cron daemons.
    """

    summary = "a line in your crontab on this machine"
    rank = 20

    program: Crontab = _CRONTAB
    proc: Path = Path("/proc")
    pid_files: tuple[str, ...] = PID_FILES

    def availability(self, context: Context) -> Availability:
        """Check that crontab works for this user, and that a daemon runs."""
        try:
            self.program.read(context)
        except ResilError as error:
            return Availability(False, error.message, error.hint)
        if str(context.project).startswith("/afs/"):
            return Availability(
                False, "the project is in AFS, where cron has no token", "move it, or use backend slurm"
            )
        host = context.system.host.name
        if daemon := find_daemon(self.proc, self.pid_files):
            return Availability(True, f"crontab works, and a cron daemon runs on {host} ({daemon})")
        if hides_processes(self.proc):
            reason = f"crontab works, but /proc on {host} hides whether a cron daemon runs"
            return Availability(
                False,
                reason,
                "check with `systemctl status cron` (or crond), or use: resil cron install --backend slurm",
            )
        reason = f"crontab works, but no cron daemon runs on {host}: the table would never be read"
        return Availability(False, reason, "ask an administrator: systemctl enable --now cron (or crond)")

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """Return the lines, unless they are already there."""
        check_host(installation, context, "crontab")
        lines = table_lines(installation, context)
        steps = []
        script = script_text(installation, context)
        if script and _content(script_file(context)) != script:
            steps.append(Step(f"write {script_file(context)}", script))
        table = self.program.read(context) or ""
        if with_ours(table, lines, {installation.token} | tokens_of(table, context.state_dir)) != table:
            what = f"write these lines to the crontab of {context.system.host.user} on {context.system.host.name}"
            steps.append(Step(f"{what}, before all others", "\n".join(lines)))
        return steps

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Write the lines."""
        check_host(installation, context, "crontab")
        lines = table_lines(installation, context)
        output_file(context, "crontab")
        mine = {installation.token}
        script = script_text(installation, context)
        try:
            if script and _content(script_file(context)) != script:
                write_atomic(Path(script_file(context)), script, mode=0o700)
            done = programs.change(
                self.program, lambda table: with_ours(table, lines, mine | tokens_of(table, context.state_dir)), context
            )
        except ResilError:
            programs.roll_back(self.program, lambda table: without_ours(table, mine), context)
            raise
        where = f"the crontab of {context.system.host.user} on {context.system.host.name}"
        return (f"wrote a line to {where}: it ticks every minute",) if done else ()

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Remove the lines."""
        check_host(installation, context, "crontab")
        done = programs.change(
            self.program,
            lambda table: without_ours(table, {installation.token} | tokens_of(table, context.state_dir)),
            context,
        )
        with suppress(OSError):
            Path(script_file(context)).unlink(missing_ok=True)
        where = f"the crontab of {context.system.host.user} on {context.system.host.name}"
        return (f"removed our lines from {where}",) if done else ()

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Check that the line is there, and that a daemon runs."""
        try:
            check_host(installation, context, "crontab")
            table = self.program.read(context) or ""
        except ResilError as error:
            return DriverState(Liveness.UNKNOWN, error.message, hint=error.hint)
        found = table_state(table, installation, f"the crontab of {installation.by} on {installation.host}")
        if found.liveness is not Liveness.ALIVE:
            return found
        daemon = find_daemon(self.proc, self.pid_files)
        if not daemon and not hides_processes(self.proc):
            return DriverState(
                Liveness.GONE,
                f"the line is in the crontab of {installation.by}, but no cron daemon runs on {installation.host}",
                hint="ask an administrator to start it; until then: resil cron install --backend slurm --replace",
            )
        now = context.system.clock.now()
        said = last_words(context, "crontab")
        return found._replace(next_tick=now - now % 60 + 60, hint=f"the last tick failed: {said}" if said else "")


def table_lines(installation: Installation, context: Context) -> tuple[str, ...]:
    """Return our lines. Raise ResilError if cron could not read them. Pure.

    The whole command is one word for /bin/sh, so a `SHELL=/bin/csh` above it does no harm. cron turns each `%` without
    a backslash into a line break (crontab(5)). A command too long for cron (a module system's LD_LIBRARY_PATH) goes to
    a script beside the heartbeat, which the line calls.
    """
    inner = _command(installation, context)
    if not _fits(inner):
        script = script_file(context)
        inner = f": {mark(installation.token)}; exec /bin/sh {shlex.quote(script)}"
        if not _fits(inner):
            raise ResilError(f"the path {script} is too long for a crontab", hint="choose another state_dir")
    return headline(installation, context.state_dir), f"* * * * * {_as_cron_reads(inner)}"


def script_text(installation: Installation, context: Context) -> str:
    """Return the script that the line calls; empty if the line needs none. Pure."""
    inner = _command(installation, context)
    return "" if _fits(inner) else f"#!/bin/sh\n{headline(installation, context.state_dir)}\n{inner}\n"


def script_file(context: Context) -> str:
    """Return the path of that script."""
    return str(Path(output_file(context, "crontab", make=False)).with_suffix(".sh"))


def _command(installation: Installation, context: Context) -> str:
    check_writable(installation, where="a crontab", bad=_BAD)
    words = tick_words(installation, "tick", "--driver", "crontab")
    return shell_command(installation, words, output=output_file(context, "crontab", make=False))


def _as_cron_reads(inner: str) -> str:
    quoted = "'" + inner.replace("'", "'\"'\"'") + "'"
    return f"/bin/sh -c {quoted}".replace("%", r"\%")


def _fits(inner: str) -> bool:
    return len(_as_cron_reads(inner).encode("utf-8", "surrogateescape")) <= LONGEST_COMMAND


def _content(path: str) -> str:
    found = read_regular(Path(path))
    return "" if found is None else found[0].decode("utf-8", "surrogateescape")


DRIVER = CrontabDriver()
