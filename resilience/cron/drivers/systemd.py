"""Makes the ticks with systemd's user manager: a timer and a service of the user on this machine.

Syntax of units: systemd.syntax(7), systemd.service(5) "COMMAND LINES", systemd.timer(5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resilience.cron.drivers import Availability, DriverState, ProgramFailed, Step
from resilience.cron.drivers._ticks import programs
from resilience.cron.drivers._ticks.lines import (
    check_writable,
    headline,
    mark,
    tick_words,
    tokens_of,
    unit_name,
)
from resilience.cron.drivers._ticks.place import check_host
from resilience.cron.records import Installation
from resilience.errors import ResilError, StateDirectoryError
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import make_directory, read_regular, write_atomic
from resilience.system.process import Completed

TICK_LIMIT = "10min"
"""A tick only starts runs; after this time it is hung and killed, and the next one follows."""


def service_text(installation: Installation, words: Sequence[str], context: Context) -> str:
    """Return the service unit of one tick.

    The tick starts what is due and exits (`--no-wait`), because a timer starts nothing while the last tick is active.
    Its runs stay in the unit's control group: KillMode=process kills only the tick itself.
    """
    variables = installation.environment
    unset = [name for name in ("PYTHONHOME", "PYTHONPATH") if name not in variables]
    lines = [
        headline(installation, context.state_dir),
        "[Unit]",
        f"Description=resil cron: the ticks of {_percent(installation.project)}",
        "",
        "[Service]",
        "Type=oneshot",
        f"WorkingDirectory={_percent(installation.project)}",
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in variables.items()),
        f"UnsetEnvironment={' '.join(unset)}",
        # systemd takes no quote, backslash or doubled $ in the path of the program itself.
        f"ExecStart=/usr/bin/env {' '.join(quoted(word).replace('$', '$$') for word in words)}",
        "KillMode=process",
        f"TimeoutStartSec={TICK_LIMIT}",
    ]
    return "\n".join(lines) + "\n"


def timer_text(installation: Installation, service: str, context: Context) -> str:
    """Return the timer unit that starts the service at each full minute."""
    lines = [
        headline(installation, context.state_dir),
        "[Unit]",
        f"Description=resil cron: every minute, the ticks of {_percent(installation.project)}",
        "",
        "[Timer]",
        "OnCalendar=*-*-* *:*:00",
        "AccuracySec=1s",
        f"Unit={service}",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return "\n".join(lines) + "\n"


def quoted(word: str) -> str:
    """Return a word in double quotes, with C escapes, and with escaped specifiers (`%`)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{_percent(escaped)}"'


def _percent(text: str) -> str:
    return text.replace("%", "%%")


_BAD = {"\n": "a line break", "\r": "a carriage return", "\0": "a NUL"}
_NO_BUS = ("failed to connect to bus", "has not been booted with systemd", "no medium found")
_RUNNING = ("running", "degraded", "starting", "initializing", "maintenance")
"""Output of `systemctl is-system-running` for a manager that answers (systemctl(1))."""


@dataclass(frozen=True, slots=True)
class SystemdDriver:
    """A user timer.

    Attributes:
        linger: directory with a file per user whose manager runs without a login (loginctl(1) enable-linger).
        runtime: parent of the runtime directories of running managers.
    """

    summary = "a systemd timer of your own on this machine"
    rank = 30

    linger: Path = Path("/var/lib/systemd/linger")
    runtime: Path = Path("/run/user")

    def availability(self, context: Context) -> Availability:
        """Check that this user's manager answers, and survives a logout."""
        host = context.system.host
        try:
            done = self._systemctl(context, "is-system-running")
        except ResilError as error:
            return Availability(False, error.message, error.hint)
        if done.stdout.strip() not in _RUNNING:
            said = programs.error_of(done)
            return Availability(False, f"no systemd manager of {host.user} answers on {host.name}: {said}")
        lingers = self._lingers(context)
        if lingers is None:
            return Availability(False, f"cannot determine whether the systemd manager of {host.user} survives a logout")
        if not lingers:
            return Availability(
                False,
                f"the systemd manager of {host.user} ends when you log out: linger is off",
                f"loginctl enable-linger {host.user} (an administrator may have to do this)",
            )
        return Availability(True, f"the systemd manager of {host.user} runs on {host.name}, and linger is on")

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """Return the missing or outdated units, and the command that starts the timer."""
        check_host(installation, context, "systemd manager")
        steps = [Step(f"write {path}", text) for path, text in self._missing(installation, context).items()]
        if steps or not self._is_active(installation, context):
            steps.append(Step("start the timer now and after each boot", self._enable_line(installation)))
        if orphaned := self._orphaned(installation, context):
            steps.append(Step("remove an older timer of this project", "\n".join(map(str, orphaned))))
        return steps

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Write the units, and start the timer."""
        check_host(installation, context, "systemd manager")
        missing = self._missing(installation, context)
        if not missing and self._is_active(installation, context):
            return self._remove(self._orphaned(installation, context), context)
        before = {path: _content(path) for path in missing}
        try:
            for path, text in missing.items():
                make_directory(path.parent, mode=0o755)
                write_atomic(path, text, mode=0o600)
            self._run(context, "daemon-reload")
            self._run(context, "enable", "--now", self._timer(installation))
        except ResilError:
            self._roll_back(before, installation, context)
            raise
        where = f"{context.system.host.user}'s systemd manager on {context.system.host.name}"
        return (
            *(f"wrote {path}" for path in missing),
            f"started {self._timer(installation)} in {where}: it ticks every minute",
            *self._remove(self._orphaned(installation, context), context),
        )

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Stop the timer, and remove the units. Active runs continue."""
        check_host(installation, context, "systemd manager")
        there = [path for path in self._paths(installation, context) if _content(path) is not None]
        for path in there:
            self._refuse_foreign(path, installation)
        return self._remove([*there, *self._orphaned(installation, context)], context)

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Return the timer's state from the manager."""
        name = self._timer(installation)
        try:
            check_host(installation, context, "systemd manager")
            found = self._show(installation, context)
        except ResilError as error:
            return DriverState(Liveness.UNKNOWN, error.message, hint=error.hint)
        again = "restore it: resil cron install"
        if found.get("LoadState") != "loaded":
            return DriverState(
                Liveness.GONE, f"{name} is missing ({found.get('LoadState') or 'no answer'})", hint=again
            )
        if found.get("ActiveState") != "active":
            return DriverState(Liveness.GONE, f"{name} is {found.get('ActiveState')}", hint=again)
        now = context.system.clock.now()
        hint = "" if self._lingers(context) is not False else f"linger is off: loginctl enable-linger {installation.by}"
        return DriverState(Liveness.ALIVE, f"{name} is active on {installation.host}", now - now % 60 + 60, hint)

    # ---- what is written ------------------------------------------------------------------------------------------

    def _timer(self, installation: Installation) -> str:
        return f"{unit_name(installation)}.timer"

    def _paths(self, installation: Installation, context: Context) -> tuple[Path, Path]:
        directory = context.system.config_home / "systemd" / "user"
        name = unit_name(installation)
        return directory / f"{name}.service", directory / f"{name}.timer"

    def _missing(self, installation: Installation, context: Context) -> dict[Path, str]:
        """Return the missing or outdated units. Raise ResilError if foreign files are in their place."""
        check_writable(installation, where="a unit of systemd", bad=_BAD)
        service, timer = self._paths(installation, context)
        words = tick_words(installation, "tick", "--no-wait", "--driver", "systemd")
        texts = {
            service: service_text(installation, words, context),
            timer: timer_text(installation, service.name, context),
        }
        for path in texts:
            self._refuse_foreign(path, installation)
        for path, text in texts.items():
            if not _is_text(text):
                raise ResilError(
                    f"{path.name} would not be valid UTF-8, which systemd requires",
                    hint="rename the directory, or use another backend",
                )
        return {path: text for path, text in texts.items() if _content(path) != text}

    def _orphaned(self, installation: Installation, context: Context) -> list[Path]:
        """Return the units of this project from an installation that is no longer recorded."""
        directory, found = self._paths(installation, context)[0].parent, []
        with suppress(OSError):
            for name in sorted(os.listdir(directory)):  # noqa: PTH208 - names only
                if name.startswith("resil-cron-") and name.endswith((".service", ".timer")):
                    with suppress(ResilError):
                        if tokens_of(_content(directory / name) or "", context.state_dir) - {installation.token}:
                            found.append(directory / name)
        return found

    def _remove(self, paths: Sequence[Path], context: Context) -> tuple[str, ...]:
        timers = [f"{stem}.timer" for stem in dict.fromkeys(path.stem for path in paths)]
        if not timers:
            return ()
        self._run(context, "disable", "--now", *timers)
        for path in paths:
            _unlink(path)
        self._run(context, "daemon-reload")
        return (f"stopped {', '.join(timers)}", *(f"removed {path}" for path in paths))

    def _refuse_foreign(self, path: Path, installation: Installation) -> None:
        content = _content(path)
        if content is None:
            return
        if not content.startswith(f"# {mark(installation.token)} "):
            raise ResilError(f"{path} exists, and resil did not write it", hint="move it away")

    def _roll_back(self, before: Mapping[Path, str | None], installation: Installation, context: Context) -> None:
        """Restore the previous files after a failure."""
        with suppress(ResilError):
            self._systemctl(context, "disable", "--now", self._timer(installation))
        for path, content in before.items():
            with suppress(ResilError):
                if content is None:
                    _unlink(path)
                else:
                    write_atomic(path, content)
        with suppress(ResilError):
            self._systemctl(context, "daemon-reload")

    # ---- the manager ----------------------------------------------------------------------------------------------

    def _enable_line(self, installation: Installation) -> str:
        return f"systemctl --user daemon-reload && systemctl --user enable --now {self._timer(installation)}"

    def _systemctl(self, context: Context, *words: str) -> Completed:
        """Run systemctl. A login without PAM (ssh to some nodes) lacks the variable that locates the manager."""
        environ = dict(context.system.environ)
        own = self.runtime / str(context.system.host.uid)
        if "XDG_RUNTIME_DIR" not in environ and own.is_dir():
            environ["XDG_RUNTIME_DIR"] = str(own)
        system = context.system
        try:
            return system.runner.run(
                ["systemctl", "--user", "--no-pager", *words],
                timeout_s=programs.READ_S,
                env={**environ, "LC_ALL": "C"},
            )
        except ResilError as error:
            raise ProgramFailed(error.message, hint=error.hint, transient=error.transient) from error

    def _run(self, context: Context, *words: str) -> None:
        done = self._systemctl(context, *words)
        if done.returncode != 0:
            raise ResilError(
                f"systemctl --user {' '.join(words)} failed: {programs.error_of(done)}",
                hint="check your systemd manager: systemctl --user status",
            )

    def _show(self, installation: Installation, context: Context) -> dict[str, str]:
        done = self._systemctl(context, "show", self._timer(installation), "--property=LoadState,ActiveState")
        if done.returncode != 0 or any(word in done.stderr.lower() for word in _NO_BUS):
            raise ProgramFailed(f"your systemd manager does not answer: {programs.error_of(done)}", transient=True)
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def _is_active(self, installation: Installation, context: Context) -> bool:
        found = self._show(installation, context)
        return found.get("LoadState") == "loaded" and found.get("ActiveState") == "active"

    def _lingers(self, context: Context) -> bool | None:
        """Return whether the manager survives a logout; None: unknown."""
        user = context.system.host.user
        with suppress(OSError):
            if user in os.listdir(self.linger):  # noqa: PTH208 - names only
                return True
        with suppress(ResilError):
            done = programs.run_program(context, ["loginctl", "show-user", user, "--property=Linger"])
            if done.returncode == 0 and done.stdout.startswith("Linger="):
                return done.stdout.strip() == "Linger=yes"
        return False if self.linger.is_dir() else None


def _content(path: Path) -> str | None:
    found = read_regular(path)
    return None if found is None else found[0].decode("utf-8", "surrogateescape")


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StateDirectoryError(f"cannot remove {path}: {error.strerror}") from error


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


DRIVER = SystemdDriver()
