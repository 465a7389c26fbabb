"""Has cron itself make the ticks: one line in the person's crontab, every minute."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resilience.cron.drivers import Availability, DriverState, Step
from resilience.cron.drivers._ticks import programs
from resilience.cron.drivers._ticks.command import refuse_unwritable, shell_command, tick_words
from resilience.cron.drivers._ticks.daemon import PID_FILES, find_daemon, hides_processes
from resilience.cron.drivers._ticks.editing import with_ours, without_header, without_ours
from resilience.cron.drivers._ticks.marks import headline, mark, tokens_of
from resilience.cron.drivers._ticks.place import last_words, output_file, table_state, wrong_host
from resilience.cron.records import Installation
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import read_regular, write_atomic

LONGEST_COMMAND = 990
"""Bytes. Debian's and Vixie's cron read at most 999 (MAX_COMMAND in their cron.h), and refuse the whole table."""

_BAD = {"\n": "a line break", "\r": "a carriage return", "\0": "a NUL", "\\": "a backslash (crons disagree on those)"}


_READS = 4
"""So often a table is read that changes between listing and looking."""


class Crontab:
    """The program `crontab` (crontab(1))."""

    name = "crontab"

    def read(self, context: Context) -> str | None:
        """As programs.Program.read."""
        for _ in range(_READS):
            listed = self._list(context)
            if listed is None or r"\r" not in listed:
                return listed
            # Debian's `crontab -l` lists a carriage return as the two characters `\r`. Written back, that would be what
            # the line runs. `crontab -e` hands the file itself to an editor; ours writes it to standard output.
            done = programs.ask(context, ["crontab", "-e"], env={"VISUAL": "cat", "EDITOR": "cat"})
            if done.returncode == 0 and listed in (done.stdout, done.stdout.replace("\r", r"\r")):
                return done.stdout
        raise programs.NoAnswer(
            "the crontab has carriage returns in it, and cannot be read as it is",
            hint=f"take them out: crontab -l | sed 's/[\\]r$//' | crontab -; crontab -e said: {programs.said(done)}",
        )

    def _list(self, context: Context) -> str | None:
        done = programs.ask(context, ["crontab", "-l"])
        if done.returncode == 0:
            return without_header(done.stdout)
        text = (done.stderr or done.stdout).lower()
        # Vixie, Debian, cronie: `no crontab for alice`; busybox and dcron: `can't open 'alice': No such file ...`.
        if "no crontab for" in text or ("can't open" in text and "no such file" in text):
            return None
        said = programs.said(done)
        # Debian: `You (alice) are not allowed to use this program (crontab)`; cronie with PAM: `... not allowed to
        # access to (crontab) because of pam configuration.`
        if "not allowed" in text or "permission denied" in text or "pam " in text:
            raise programs.NotForUs(
                f"crontab is not for you here: {said}", hint="an administrator allows it in /etc/cron.allow"
            )
        raise programs.NoAnswer(f"crontab -l failed: {said}", transient=True)

    def write(self, table: str, context: Context) -> None:
        """As programs.Program.write."""
        done = programs.ask(context, ["crontab", "-"], stdin=table)
        if done.returncode != 0:
            raise ResilError(
                f"crontab refused the table, and the old one stays: {programs.said(done)}",
                hint="is a line of yours wrong, or the disk with /var/spool full? Look: crontab -l",
            )

    def remove(self, context: Context) -> None:
        """As programs.Program.remove."""
        done = programs.ask(context, ["crontab", "-r"])
        if done.returncode != 0 and "no crontab for" not in done.stderr.lower():
            raise ResilError(f"crontab -r failed, and the table stays: {programs.said(done)}")


_CRONTAB = Crontab()


@dataclass(frozen=True, slots=True)
class CrontabDriver:
    """The cron of this machine.

    Attributes:
        proc: where processes are seen.
        pid_files: where daemons say which process they are.
    """

    summary = "a line in your crontab on this machine"
    rank = 20

    program: Crontab = _CRONTAB
    proc: Path = Path("/proc")
    pid_files: tuple[str, ...] = PID_FILES

    def availability(self, context: Context) -> Availability:
        """Whether crontab serves this person, and a daemon reads what it writes."""
        try:
            self.program.read(context)
        except ResilError as error:
            return Availability(False, error.message, error.hint)
        if str(context.project).startswith("/afs/"):
            return Availability(False, "the project lies in AFS, where cron has no token", "move it, or use slurm")
        host = context.system.host.name
        if daemon := find_daemon(self.proc, self.pid_files):
            return Availability(True, f"crontab works, and a cron daemon runs on {host} ({daemon})")
        if hides_processes(self.proc):
            reason = f"crontab works, but whether a cron daemon runs on {host} cannot be seen"
            return Availability(
                False,
                reason,
                "`systemctl status cron` (or crond) tells; else take another: resil cron install --backend slurm",
            )
        reason = f"crontab works, but no cron daemon runs on {host}: the table would never be read"
        return Availability(False, reason, "an administrator starts it: systemctl enable --now cron (or crond)")

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """The lines, unless they stand there."""
        wrong_host(installation, context, "crontab")
        lines = table_lines(installation, context)
        steps = []
        script = script_text(installation, context)
        if script and _content(script_file(context)) != script:
            steps.append(Step(f"write {script_file(context)}", script))
        table = self.program.read(context) or ""
        if with_ours(table, lines, {installation.token} | tokens_of(table, context.state_dir)) != table:
            what = f"write these lines into the crontab of {context.system.host.user} on {context.system.host.name}"
            steps.append(Step(f"{what}, before all others", "\n".join(lines)))
        return steps

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Write the lines."""
        wrong_host(installation, context, "crontab")
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
            programs.give_up(self.program, lambda table: without_ours(table, mine), context)
            raise
        where = f"the crontab of {context.system.host.user} on {context.system.host.name}"
        return (f"wrote a line into {where}: it ticks every minute",) if done else ()

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Take the lines out."""
        wrong_host(installation, context, "crontab")
        done = programs.change(
            self.program,
            lambda table: without_ours(table, {installation.token} | tokens_of(table, context.state_dir)),
            context,
        )
        with suppress(OSError):
            Path(script_file(context)).unlink(missing_ok=True)
        where = f"the crontab of {context.system.host.user} on {context.system.host.name}"
        return (f"took our lines out of {where}",) if done else ()

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Whether the line is there, and a daemon to read it."""
        try:
            wrong_host(installation, context, "crontab")
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
                hint="an administrator starts it; until then: resil cron install --backend slurm --replace",
            )
        now = context.system.clock.now()
        said = last_words(context, "crontab")
        return found._replace(next_tick=now - now % 60 + 60, hint=f"the last tick failed: {said}" if said else "")


def table_lines(installation: Installation, context: Context) -> tuple[str, ...]:
    """Our lines. Raise ResilError if cron could not read them. Pure.

    The whole command is one word for /bin/sh: a `SHELL=/bin/csh` that somebody writes above it later does no harm. cron
    makes a line break of each `%` that has no backslash before it (crontab(5)). Where the command is too long for cron
    (a module system's LD_LIBRARY_PATH), it stands in a script beside the heartbeat, and the line calls that.
    """
    inner = _command(installation, context)
    if not _fits(inner):
        script = script_file(context)
        inner = f": {mark(installation.token)}; exec /bin/sh {shlex.quote(script)}"
        if not _fits(inner):
            raise ResilError(f"the path {script} is too long for a crontab", hint="choose another state_dir")
    return headline(installation, context.state_dir), f"* * * * * {_as_cron_reads(inner)}"


def script_text(installation: Installation, context: Context) -> str:
    """The script that the line calls; empty: the line needs none. Pure."""
    inner = _command(installation, context)
    return "" if _fits(inner) else f"#!/bin/sh\n{headline(installation, context.state_dir)}\n{inner}\n"


def script_file(context: Context) -> str:
    """Where that script lies."""
    return str(Path(output_file(context, "crontab", make=False)).with_suffix(".sh"))


def _command(installation: Installation, context: Context) -> str:
    refuse_unwritable(installation, where="a crontab", bad=_BAD)
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
