"""Makes the ticks with SLURM's own cron: an entry in the user's scrontab (scrontab(1), SLURM 20.11 and newer).

SLURM keeps one job per entry, and requeues it for the next time after its end, so runs of an entry never overlap, and a
run longer than the interval skips ticks. `scancel` disables the entry.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from resilience.cron.drivers import Availability, DriverState, ProgramFailed, ProgramUnavailable, Step, _tables
from resilience.cron.records import Installation
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings

_BAD = {"\n": "a line break", "\r": "a carriage return", "\0": "a NUL"}
_NO_OUTPUT = set(" \t\\")
"""Characters that --output cannot contain here: a backslash would disable the replacement of `%%` (sbatch(1))."""
_OWN_OPTIONS = ("job-name", "comment", "output", "error", "open-mode", "time", "signal", "array", "begin", "dependency")


class Scrontab:
    """The program `scrontab`."""

    name = "scrontab"

    def read(self, context: Context) -> str | None:
        """See _tables.Program.read."""
        done = _tables.run_program(context, ["scrontab", "-l"], timeout_s=context.scheduler_deadline_s)
        if done.returncode == 0:
            return done.stdout
        # Recorded from 24.11 and 26.05: `no crontab for alice` (standard output);
        # `scrontab: fatal: scrontab is disabled on this cluster`.
        if done.stdout.startswith("no crontab for ") or done.stderr.startswith("no crontab for "):
            return None
        if "is disabled on this cluster" in done.stderr + done.stdout:
            raise ProgramUnavailable(
                "scrontab is disabled on this cluster",
                hint="ask an administrator: ScronParameters=enable in slurm.conf",
            )
        raise ProgramFailed(
            f"scrontab -l failed: {_tables.error_of(done)}",
            hint="slurmctld may be down; jobs keep running",
            transient=True,
        )

    def write(self, table: str, context: Context) -> None:
        """See _tables.Program.write."""
        with tempfile.NamedTemporaryFile(prefix="resil-scrontab-") as file:  # mode 0600
            file.write(table.encode("utf-8", "surrogateescape"))
            file.flush()
            # The first scrontab (20.11.0) ignores FILE and starts an editor: this one fails at once.
            editor = {"VISUAL": "false", "EDITOR": "false"}
            done = _tables.run_program(
                context, ["scrontab", file.name], timeout_s=context.scheduler_deadline_s, env=editor
            )
        if done.returncode != 0:
            raise ResilError(
                f"scrontab rejected the table; the old one is unchanged: {_tables.error_of(done)}",
                hint="options of our entry: [cron] sbatch in resil.toml; without scrontab: "
                "resil cron install --backend slurm",
            )

    def remove(self, context: Context) -> None:
        """See _tables.Program.remove."""
        done = _tables.run_program(context, ["scrontab", "-r"], timeout_s=context.scheduler_deadline_s)
        if done.returncode != 0:
            raise ResilError(f"scrontab -r failed; the table is unchanged: {_tables.error_of(done)}")


_SCRONTAB = Scrontab()


@dataclass(frozen=True, slots=True)
class ScrontabDriver:
    """SLURM's cron."""

    summary = "an entry in your scrontab: SLURM's own cron"
    rank = 10

    program: Scrontab = _SCRONTAB

    def availability(self, context: Context) -> Availability:
        """Check that the cluster has it enabled."""
        try:
            self.program.read(context)
        except ProgramUnavailable as error:
            if _is_enabled(context):
                reason = f"the cluster has scrontab enabled, but: {error.message}"
                return Availability(False, reason, "the program may be on a login node only, or not on PATH")
            return Availability(False, error.message, error.hint)
        except ResilError as error:
            return Availability(False, error.message, error.hint)
        return Availability(True, "scrontab is enabled on this cluster")

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """Return the lines, unless they are already there."""
        _tables.check_owner(installation, context, "scrontab")
        lines = table_lines(installation, settings, context)
        if _tables.holds(self.program, lines, installation, context):
            return ()
        what = f"write these lines to the scrontab of {context.system.host.user}, before all others"
        more = " (SLURM gives the jobs of your other entries new ids at each change)"
        return (Step(what + more, "\n".join(lines)),)

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Write the lines."""
        _tables.check_owner(installation, context, "scrontab")
        lines = table_lines(installation, settings, context)
        _tables.output_file(context, "scrontab")
        done = _tables.put(self.program, lines, installation, context)
        how = (
            f"every {pause_minutes(settings.pulse_s)} min"
            if installation.mode == "pulse"
            else "a daemon, always running"
        )
        return (f"wrote an entry to the scrontab of {context.system.host.user}: {how}",) if done else ()

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Remove the lines; SLURM removes the pending job, and lets a running one end."""
        _tables.check_owner(installation, context, "scrontab")
        done = _tables.put(self.program, (), installation, context)
        return (f"removed our entry from the scrontab of {context.system.host.user}",) if done else ()

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Check that the entry is there and enabled."""
        try:
            _tables.check_owner(installation, context, "scrontab")
            table = self.program.read(context) or ""
        except ResilError as error:
            return DriverState(Liveness.UNKNOWN, error.message, hint=error.hint)
        found = _tables.table_state(table, installation, f"the scrontab of {installation.by}")
        if found.liveness is not Liveness.ALIVE:
            return found
        if said := _tables.last_words(context, "scrontab"):
            found = found._replace(hint=f"the last tick failed: {said}")
        if installation.mode != "pulse":
            return found
        now, pause_s = context.system.clock.now(), 60 * pause_minutes(settings.pulse_s)
        return found._replace(next_tick=now - now % pause_s + pause_s)


def _is_enabled(context: Context) -> bool:
    """Return whether slurm.conf enables it: `ScronParameters         = enable` (`(null)`: disabled)."""
    try:
        done = _tables.run_program(context, ["scontrol", "show", "config"])
    except ResilError:
        return False
    return re.search(r"^ScronParameters\s*=.*\benable\b", done.stdout, re.MULTILINE) is not None


def pause_minutes(pulse_s: float) -> int:
    """Return the interval between pulses: the largest divisor of an hour that is not longer than `pulse_s`. Pure.

    Other intervals would be uneven at each full hour.
    """
    minutes = max(1, int(pulse_s // 60))
    return max(divisor for divisor in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60) if divisor <= minutes)


def table_lines(installation: Installation, settings: CronSettings, context: Context) -> tuple[str, ...]:
    """Return our lines. Raise ResilError if scrontab could not read them. Pure.

    The `#SCRON` line applies to the entry that follows (scrontab(1)); its words are split at blanks, and cannot be
    quoted (`get_argument` in SLURM's src/scrontab/parse.c). `--signal` is refused by 24.11 there, and not needed: a
    daemon exits at the SIGTERM of its time limit, within KillWait, and the next minute starts it again. Unlike in
    cron, `%` in the command is not special.
    """
    _tables.check_writable(installation, where="a scrontab", bad=_BAD)
    is_pulse = installation.mode == "pulse"
    limit_s = settings.pulse_limit_s if is_pulse else settings.time_limit_s
    output = _tables.output_file(context, "scrontab", make=False).replace("%", "%%")
    options = [
        f"--job-name={_tables.unit_name(installation)}",
        f"--comment={_tables.mark(installation.token)}",
        f"--time={max(2, int(limit_s // 60))}",
        f"--output={'/dev/null' if set(output) & _NO_OUTPUT else output}",
        "--open-mode=truncate",
    ]
    for name, value in settings.sbatch.items():
        if name in _OWN_OPTIONS:
            raise ResilError(f"[cron] sbatch sets {name}, which the scrontab entry sets itself", hint="remove it")
        options.append(f"--{name}={value}" if value else f"--{name}")
    if unquotable := [option for option in options if set(option) & set(" \t\n\r\0")]:
        raise ResilError(f"{unquotable[0]!r} contains a blank, which scrontab cannot read", hint="see [cron] sbatch")
    words = ("tick", "--driver", "scrontab") if is_pulse else ("run", "--driver", "scrontab")
    command = _tables.shell_command(installation, *words, is_clean=False)
    minutes = pause_minutes(settings.pulse_s)
    when = "* * * * *" if not is_pulse or minutes == 1 else "0 * * * *" if minutes == 60 else f"*/{minutes} * * * *"
    return _tables.headline(installation, context.state_dir), f"#SCRON {' '.join(options)}", f"{when} {command}"


DRIVER = ScrontabDriver()
