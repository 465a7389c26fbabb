"""Makes the ticks with systemd's user manager: a timer and a service of the user on this machine.

Syntax of units: systemd.syntax(7), systemd.service(5) "COMMAND LINES", systemd.timer(5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resilience.cron.drivers import Availability, DriverState, ProgramFailed, Step, _tables
from resilience.cron.records import Installation
from resilience.errors import ResilError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import explain_os_error, make_directory, write_atomic
from resilience.system.process import Completed

UNITS = {
    "service": """\
{headline}
[Unit]
Description=resil cron: the ticks of {project}

[Service]
Type=oneshot
ExecStart=/bin/sh -c {command}
KillMode=process
TimeoutStartSec=10min
""",
    "timer": """\
{headline}
[Unit]
Description=resil cron: every minute, the ticks of {project}

[Timer]
OnCalendar=*-*-* *:*:00
AccuracySec=1s
Unit={name}.service

[Install]
WantedBy=timers.target
""",
}
"""The units of an installation.

A tick starts what is due and exits (`--no-wait`), because a timer starts nothing while the last tick is active. Its
runs stay in the unit's control group: KillMode=process kills only the tick itself, and only one that hangs lasts ten
minutes.
"""

_NO_BUS = ("failed to connect to bus", "has not been booted with systemd", "no medium found")
_RUNNING = ("running", "degraded", "starting", "initializing", "maintenance")
"""Output of `systemctl is-system-running` for a manager that answers (systemctl(1))."""


@dataclass(frozen=True, slots=True)
class SystemdDriver:
    """A user timer.

    Attributes:
        linger: systemd-logind has a file here for each user whose manager survives a logout (loginctl(1)).
        runtime: parent of the users' runtime directories (pam_systemd(8)).
    """

    summary = "a timer of your systemd manager on this machine"
    rank = 30

    linger: Path = Path("/var/lib/systemd/linger")
    runtime: Path = Path("/run/user")

    def availability(self, context: Context) -> Availability:
        """Check that this user's manager answers, and survives a logout."""
        user, name = context.system.host.user, context.system.host.name
        done = self._systemctl(context, "is-system-running")
        if done.stdout.strip() not in _RUNNING:
            return Availability(False, f"no systemd manager of {user} answers on {name}: {_tables.error_of(done)}")
        lingers = self._lingers(context)
        if lingers is None:
            return Availability(False, f"cannot determine whether the systemd manager of {user} survives a logout")
        if not lingers:
            reason = f"the systemd manager of {user} ends when you log out: linger is off"
            return Availability(False, reason, f"loginctl enable-linger {user} (an administrator may have to do this)")
        return Availability(True, f"the systemd manager of {user} runs on {name}, and linger is on")

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """Return the missing or outdated units, and the command that starts the timer."""
        _tables.check_host(installation, context, "systemd manager")
        steps = [Step(f"write {path}", text) for path, text in _missing(installation, context).items()]
        if steps or self._inactive(installation, context):
            line = f"systemctl --user daemon-reload && systemctl --user enable --now {_timer(installation)}"
            steps.append(Step("start the timer now and after each boot", line))
        if orphaned := _ours(installation, context, except_for=installation.token):
            steps.append(Step("remove an older timer of this project", "\n".join(map(str, orphaned))))
        return steps

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Write the units, and start the timer."""
        _tables.check_host(installation, context, "systemd manager")
        missing, lines = _missing(installation, context), []
        if missing or self._inactive(installation, context):
            before, timer = {path: _tables.content_of(path) for path in missing}, _timer(installation)
            try:
                self._apply(missing, context)
                self._run(context, "enable", "--now", timer)
            except ResilError:
                with suppress(ResilError):
                    self._run(context, "disable", "--now", timer)
                with suppress(ResilError):
                    self._apply(before, context)
                raise
            where = f"{context.system.host.user}'s systemd manager on {context.system.host.name}"
            lines = [f"wrote {path}" for path in missing]
            lines.append(f"started {timer} in {where}: it ticks every minute")
        return (*lines, *self._remove(_ours(installation, context, except_for=installation.token), context))

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Stop the timer, and remove the units. Active runs continue."""
        _tables.check_host(installation, context, "systemd manager")
        return self._remove(_ours(installation, context), context)

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Return the timer's state from the manager."""
        _tables.check_host(installation, context, "systemd manager")
        if inactive := self._inactive(installation, context):
            return DriverState(Liveness.GONE, inactive, hint="restore it: resil cron install")
        now = context.system.clock.now()
        hint = "" if self._lingers(context) is not False else f"linger is off: loginctl enable-linger {installation.by}"
        summary = f"{_timer(installation)} is active on {installation.host}"
        return DriverState(Liveness.ALIVE, summary, now - now % 60 + 60, hint)

    # ---- the manager ----------------------------------------------------------------------------------------------

    def _apply(self, contents: Mapping[Path, str | None], context: Context) -> None:
        """Write these units, or remove those without content."""
        for path, content in contents.items():
            try:
                if content is None:
                    path.unlink(missing_ok=True)
                else:
                    make_directory(path.parent, mode=0o755)
                    write_atomic(path, content, mode=0o600)
            except OSError as error:
                raise explain_os_error(error, "remove", path) from error
        self._run(context, "daemon-reload")

    def _remove(self, paths: Sequence[Path], context: Context) -> tuple[str, ...]:
        timers = [f"{stem}.timer" for stem in dict.fromkeys(path.stem for path in paths)]
        if not timers:
            return ()
        self._run(context, "disable", "--now", *timers)
        self._apply(dict.fromkeys(paths), context)
        return (f"stopped {', '.join(timers)}", *(f"removed {path}" for path in paths))

    def _systemctl(self, context: Context, *words: str) -> Completed:
        """Run systemctl. A login without PAM (ssh to some nodes) lacks the variable that locates the manager."""
        own = self.runtime / str(context.system.host.uid)
        known = "XDG_RUNTIME_DIR" in context.system.environ or not own.is_dir()
        env = {} if known else {"XDG_RUNTIME_DIR": str(own)}
        return _tables.run_program(context, ["systemctl", "--user", "--no-pager", *words], env=env)

    def _run(self, context: Context, *words: str) -> None:
        done = self._systemctl(context, *words)
        if done.returncode != 0:
            raise ResilError(
                f"systemctl --user {' '.join(words)} failed: {_tables.error_of(done)}",
                hint="check your systemd manager: systemctl --user status",
            )

    def _inactive(self, installation: Installation, context: Context) -> str:
        """Return why the timer makes no ticks; empty if it does. Raise ProgramFailed if the manager does not answer."""
        name = _timer(installation)
        done = self._systemctl(context, "show", name, "--property=LoadState,ActiveState")
        if done.returncode != 0 or any(word in done.stderr.lower() for word in _NO_BUS):
            raise ProgramFailed(f"your systemd manager does not answer: {_tables.error_of(done)}", transient=True)
        found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        if found.get("LoadState") != "loaded":
            return f"{name} is missing ({found.get('LoadState') or 'no answer'})"
        return "" if found.get("ActiveState") == "active" else f"{name} is {found.get('ActiveState')}"

    def _lingers(self, context: Context) -> bool | None:
        """Return whether the manager survives a logout; None: unknown."""
        user = context.system.host.user
        with suppress(OSError):
            if user in os.listdir(self.linger):  # noqa: PTH208 - names only
                return True
        with suppress(ResilError):
            done = _tables.run_program(context, ["loginctl", "show-user", user, "--property=Linger"])
            if done.returncode == 0 and done.stdout.startswith("Linger="):
                return done.stdout.strip() == "Linger=yes"
        return False if self.linger.is_dir() else None


# ---- the units ----------------------------------------------------------------------------------------------------


def quoted(word: str) -> str:
    """Return a word of a command in double quotes, with C escapes, and with escaped specifiers and variables."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{escaped.replace("%", "%%").replace("$", "$$")}"'


def _timer(installation: Installation) -> str:
    return f"{_tables.unit_name(installation)}.timer"


def _paths(installation: Installation, context: Context) -> tuple[Path, ...]:
    directory = context.system.config_home / "systemd" / "user"
    return tuple(directory / f"{_tables.unit_name(installation)}.{kind}" for kind in UNITS)


def _missing(installation: Installation, context: Context) -> dict[Path, str]:
    """Return the missing or outdated units. Raise ResilError if foreign files are in their place."""
    _tables.check_writable(installation, where="a unit of systemd")
    values = {
        "headline": _tables.headline(installation, context.state_dir),
        "project": installation.project.replace("%", "%%"),
        "command": quoted(_tables.shell_command(installation, "tick", "--no-wait", "--driver", "systemd")),
        "name": _tables.unit_name(installation),
    }
    texts = dict(zip(_paths(installation, context), (unit.format(**values) for unit in UNITS.values()), strict=True))
    before = {path: _tables.content_of(path) for path in texts}
    for path, content in before.items():
        if content is not None and not content.startswith(f"# {_tables.mark(installation.token)} "):
            raise ResilError(f"{path} exists, and resil did not write it", hint="move it away")
    try:
        "".join(texts.values()).encode()
    except UnicodeEncodeError as error:
        raise ResilError(
            f"{_tables.unit_name(installation)} would not be valid UTF-8, which systemd requires",
            hint="rename the directory, or use another backend",
        ) from error
    return {path: text for path, text in texts.items() if before[path] != text}


def _ours(installation: Installation, context: Context, *, except_for: str = "") -> list[Path]:
    """Return the units of this project, also of installations that are no longer recorded."""
    found = []
    for path in sorted(_paths(installation, context)[0].parent.glob("resil-cron-*.*")):
        with suppress(ResilError):
            content = _tables.content_of(path) or ""
            tokens = {*_tables.tokens_of(content, context.state_dir)}
            if content.startswith(f"# {_tables.mark(installation.token)} "):  # however the project's path is spelled
                tokens.add(installation.token)
            if tokens - {except_for}:
                found.append(path)
    return found


DRIVER = SystemdDriver()
