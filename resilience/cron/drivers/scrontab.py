"""Makes the ticks with SLURM's own cron: an entry in the user's scrontab (scrontab(1), SLURM 20.11 and newer).

SLURM keeps one job per entry, and requeues it for the next time after its end, so runs of an entry never overlap, and a
run longer than the interval skips ticks. `scancel` disables the entry.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping

from resilience.cron.drivers import Availability, ProgramFailed, ProgramUnavailable, _tables
from resilience.cron.records import Installation
from resilience.errors import ResilError
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.process import Completed

_BAD = {"\n": "a line break", "\r": "a carriage return", "\0": "a NUL"}
_NO_OUTPUT = set(" \t\\")
"""Characters that --output cannot contain here: a backslash would disable the replacement of `%%` (sbatch(1))."""
_OWN_OPTIONS = ("job-name", "comment", "output", "error", "open-mode", "time", "signal", "array", "begin", "dependency")


class ScrontabDriver(_tables.TableDriver):
    """SLURM's cron, and its program scrontab(1)."""

    name = "scrontab"
    summary = "an entry in your scrontab: SLURM's own cron"
    rank = 10
    remark = " (SLURM gives the jobs of your other entries new ids at each change)"
    hint = "options of our entry: [cron] sbatch in resil.toml; without scrontab: resil cron install --backend slurm"

    def check(self, installation: Installation, context: Context) -> None:
        """See TableDriver: a user has one table on the cluster."""
        _tables.check_owner(installation, context, self.name)

    def where(self, context: Context) -> str:
        """See TableDriver."""
        return f"the scrontab of {context.system.host.user}"

    def run(
        self, context: Context, *words: str, stdin: str = "", env: Mapping[str, str] = _tables.NO_VARIABLES
    ) -> Completed:
        """See TableDriver."""
        return _tables.run_program(context, ["scrontab", *words], timeout_s=context.scheduler_deadline_s, env=env)

    def availability(self, context: Context) -> Availability:
        """Check that the cluster has it enabled."""
        try:
            self.read(context)
        except ProgramUnavailable as error:
            if _is_enabled(context):
                reason = f"the cluster has scrontab enabled, but: {error.message}"
                return Availability(False, reason, "the program may be on a login node only, or not on PATH")
            raise
        return Availability(True, "scrontab is enabled on this cluster")

    def read(self, context: Context) -> str | None:
        """See TableDriver."""
        done = self.run(context, "-l")
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

    def replace(self, table: str, context: Context) -> Completed:
        """See TableDriver."""
        with tempfile.NamedTemporaryFile(prefix="resil-scrontab-") as file:  # mode 0600
            file.write(table.encode("utf-8", "surrogateescape"))
            file.flush()
            # The first scrontab (20.11.0) ignores FILE and starts an editor: this one fails at once.
            return self.run(context, file.name, env={"VISUAL": "false", "EDITOR": "false"})

    def lines(self, installation: Installation, settings: CronSettings, context: Context) -> _tables.Lines:
        """See TableDriver.

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
            raise ResilError(
                f"{unquotable[0]!r} contains a blank, which scrontab cannot read", hint="see [cron] sbatch"
            )
        words = ("tick", "--driver", "scrontab") if is_pulse else ("run", "--driver", "scrontab")
        command = _tables.shell_command(installation, *words, is_clean=False)
        minutes = pause_minutes(settings.pulse_s)
        when = "* * * * *" if not is_pulse or minutes == 1 else "0 * * * *" if minutes == 60 else f"*/{minutes} * * * *"
        title = _tables.headline(installation, context.state_dir)
        return (title, f"#SCRON {' '.join(options)}", f"{when} {command}"), ""

    def pause_s(self, installation: Installation, settings: CronSettings) -> float:
        """See TableDriver."""
        return 60.0 * pause_minutes(settings.pulse_s) if installation.mode == "pulse" else 0.0


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


DRIVER = ScrontabDriver()
