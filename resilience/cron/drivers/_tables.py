"""Our lines in tables shared with others (crontab, scrontab, systemd's units): text, editing, state, and who may.

The environment of a crontab is nearly empty, that of a user manager is unpredictable, and that of a job is a login
shell's. So the command itself sets the environment that was recorded at installation.

Each of our lines carries `resil:.cron:<token>` with the installation's token; a comment line also names the project, so
that reinstalling finds lines of an installation that is no longer recorded.

A table is text whose undecodable bytes are surrogates (surrogateescape), and whose lines end with a newline only:
carriage returns, form feeds and a missing newline at the end are preserved. Our lines come first. So settings of the
table (MAILTO, SHELL, PATH in a crontab; a last `#SCRON` line in a scrontab) do not affect them, and a last line without
a newline stays one.

The programs of tables have no lock: another process may write between our read and write, and its change would be lost.
A lock excludes other resil commands of the same user on this machine; the table is read as late as possible, and again
afterwards: if our change is missing, another process was faster, and we start over.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from resilience.cron.drivers import DriverState, ProgramFailed, ProgramUnavailable, Step
from resilience.cron.records import RUN_NAME, Installation
from resilience.cron.state_directory import FOLDER
from resilience.errors import ProbeError, ResilError
from resilience.job import Liveness
from resilience.quantities import format_duration
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import make_directory, own_directory, read_regular, short_digest, write_atomic
from resilience.system.process import Completed

READ_S = 15.0
"""Time limit for reading the state directory, and for listing or writing a table. (crontab asks PAM, which may ask a
directory server.)"""

ATTEMPTS = 8
LOCK_S = 20.0
"""Time limit for the lock; afterwards we continue without it."""

SAME_TICK_S = 300.0
"""Output newer than the heartbeat by at most this may belong to a tick that succeeded."""

Lines = tuple[tuple[str, ...], str]
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

# ---- lines, all pure ----------------------------------------------------------------------------------------------

_DISABLED = r"(?:#DISABLED: )*"
"""SLURM 24.11 prefixes the lines of an entry whose job was cancelled."""


def mark(token: str) -> str:
    """Return the mark in each line of an installation, and in the comment of its jobs."""
    return f"resil:{RUN_NAME}:{token}"


def unit_name(installation: Installation) -> str:
    """Return the name of an installation's job or unit: `resil-cron-0c4ee3bf`.

    The same however paths are spelled.
    """
    return f"resil-cron-{installation.token[:8]}"


def project_name(state_dir: Path) -> str:
    """Return the name of a project in the first comment line: `resil-cron-0c4ee3bf`."""
    return f"resil-cron-{short_digest(os.fsencode(state_dir))[:8]}"


def headline(installation: Installation, state_dir: Path) -> str:
    """Return the first comment line."""
    return (
        f"# {mark(installation.token)} {project_name(state_dir)}: the ticks of {installation.project}; "
        "`resil cron install` wrote these lines, `resil cron uninstall` removes them"
    )


def tokens_of(table: str, state_dir: Path) -> frozenset[str]:
    """Return the tokens of all installations of a project in a table."""
    pattern = rf"^{_DISABLED}# resil:{re.escape(RUN_NAME)}:([0-9a-f]+) {project_name(state_dir)}: "
    return frozenset(re.findall(pattern, table, re.MULTILINE))


def ours(table: str, tokens: Collection[str]) -> tuple[str, ...]:
    """Return the lines of these installations, without newlines, even if they were commented out since.

    A line that only mentions the mark, or has other text before it, is not ours.
    """
    return tuple(line.removesuffix("\n") for line in _pattern(tokens).findall(table))


def without_ours(table: str, tokens: Collection[str]) -> str:
    """Return the table without the lines of these installations."""
    return _pattern(tokens).sub("", table)


def with_ours(table: str, lines: Sequence[str], tokens: Collection[str]) -> str:
    """Return the table with these lines instead of all lines of `tokens`; unchanged if they are already there."""
    if tuple(lines) == ours(table, tokens):
        return table
    return "".join(f"{line}\n" for line in lines) + without_ours(table, tokens)


def disabled(table: str, tokens: Collection[str]) -> tuple[str, ...]:
    """Return our lines that SLURM or a user disabled."""
    kept = ("#SCRON ", "# resil:")
    return tuple(line for line in ours(table, tokens) if line.startswith("#") and not line.startswith(kept))


def _pattern(tokens: Collection[str]) -> re.Pattern[str]:
    word = rf"resil:{re.escape(RUN_NAME)}:(?:{'|'.join(tokens)})"
    return re.compile(
        rf"^{_DISABLED}(?:# ?)*(?:"
        rf"{word} resil-cron-[0-9a-f]{{8}}: "
        rf"|SCRON --job-name=resil-cron-[0-9a-f]{{8}} --comment={word}(?=\s|$)"
        rf"|[-*/,0-9]+(?: [-*/,0-9]+){{4}} (?:/bin/sh -c ')?: {word}; "
        r").*\n?",
        re.MULTILINE,
    )


def tick_words(installation: Installation, *words: str) -> tuple[str, ...]:
    """Return the command as words: `/opt/venv/bin/python -P -m resilience cron tick ...`.

    `-P` keeps project files such as random.py from shadowing Python's modules.
    """
    return (installation.python, "-P", "-m", "resilience", "cron", *words)


def shell_command(installation: Installation, *words: str, output: str = "", is_clean: bool = True) -> str:
    """Return one line of sh that changes to the project, sets the environment and executes `resil cron` with words.

    `output`: file that all output goes to, truncated each time; if its directory is missing, nothing runs or is printed
    (cron would mail it every minute; the missing heartbeat shows the problem). `is_clean`: pass no variables besides
    those recorded.
    """
    variables = [f"{name}={value}" for name, value in installation.environment.items()]
    clean = ["-i"] if is_clean else ["-u", "PYTHONHOME", "-u", "PYTHONPATH"]
    command = shlex.join(["/usr/bin/env", *clean, *variables, *tick_words(installation, *words)])
    quiet = f"exec 2>/dev/null; exec >{shlex.quote(output)} 2>&1; " if output else ""
    return f": {mark(installation.token)}; {quiet}cd {shlex.quote(installation.project)} && exec {command}"


LINE_ENDS = {"\n": "a line break", "\r": "a carriage return"}


def check_writable(installation: Installation, *, where: str, bad: Mapping[str, str] = LINE_ENDS) -> None:
    """Raise ResilError if a part of the command cannot be written to a table. `bad`: characters to their names."""
    named = {"the project directory": installation.project, "the interpreter": installation.python}
    named |= {f"${name}": value for name, value in installation.environment.items()}
    for what, value in named.items():
        for character, name in bad.items():
            if character in value:
                raise ResilError(
                    f"{what} contains {name}, which {where} cannot express: {value!r}",
                    hint="rename it, or use another backend: resil cron install --backend foreground",
                )


# ---- programs -----------------------------------------------------------------------------------------------------


def run_program(
    context: Context,
    argv: Sequence[str],
    *,
    timeout_s: float = 0.0,
    stdin: str = "",
    env: Mapping[str, str] = NO_VARIABLES,
) -> Completed:
    """Run the program of a table, in the C locale, by default within READ_S.

    Raise ProgramFailed if it did not run or did not end in time.
    """
    whole = {**context.system.environ, "LC_ALL": "C", **env}
    try:
        return context.system.runner.run(argv, timeout_s=timeout_s or READ_S, env=whole, stdin=stdin)
    except ProbeError as error:
        kind = ProgramFailed if error.transient else ProgramUnavailable
        raise kind(error.message, hint=error.hint, transient=error.transient) from error


def error_of(done: Completed) -> str:
    """Return the error output of a program in one line."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "; ".join(lines)[:300] or f"exit code {done.returncode}, no output"


class TableDriver(ABC):
    """A driver whose lines stand in a table of the user, which a program lists and replaces.

    Attributes:
        name: name of the program, and of its table.
        remark: what else a change of the table does; may be empty.
        hint: what to try if the program rejects the table.
    """

    name = remark = hint = ""
    rank = 0

    @abstractmethod
    def read(self, context: Context) -> str | None:
        """Return the user's table; None if there is none. Raise ProgramFailed if it cannot be read."""

    @abstractmethod
    def replace(self, table: str, context: Context) -> Completed:
        """Replace the table."""

    @abstractmethod
    def lines(self, installation: Installation, settings: CronSettings, context: Context) -> Lines:
        """Return our lines, and the script that they call, if any. Raise ResilError if the program could not read
        them. Pure."""

    @abstractmethod
    def pause_s(self, installation: Installation, settings: CronSettings) -> float:
        """Return the interval between ticks; 0: a process that ticks always runs."""

    def check(self, installation: Installation, context: Context) -> None:
        """Raise ResilError if the table of an installation is not the one that is seen here."""
        check_host(installation, context, self.name)

    def where(self, context: Context) -> str:
        """Return the table for display."""
        return f"the {self.name} of {context.system.host.user} on {context.system.host.name}"

    def run(self, context: Context, *words: str, stdin: str = "", env: Mapping[str, str] = NO_VARIABLES) -> Completed:
        """Run the program. Raise ProgramFailed."""
        return run_program(context, [self.name, *words], stdin=stdin, env=env)

    def write(self, table: str, context: Context) -> None:
        """Replace the table, or remove it if nothing is left. Raise ResilError if that fails."""
        if table:
            done, said = self.replace(table, context), "rejected the table; the old one"
        else:
            done, said = self.run(context, "-r"), "-r failed; the table"
        if done.returncode != 0 and (table or "no crontab for" not in done.stderr.lower()):
            raise ResilError(f"{self.name} {said} is unchanged: {error_of(done)}", hint=self.hint)

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """Return the lines, unless they are already there."""
        self.check(installation, context)
        (lines, script), path = self.lines(installation, settings, context), script_file(context, self.name)
        steps = [Step(f"write {path}", script)] if script and content_of(path) != script else []
        table = self.read(context) or ""
        if _with(lines, installation, context)(table) != table:
            what = f"write these lines to {self.where(context)}, before all others{self.remark}"
            steps.append(Step(what, "\n".join(lines)))
        return steps

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Write the lines. If that fails, they are removed again, if possible."""
        self.check(installation, context)
        lines, script = self.lines(installation, settings, context)
        output_file(context, self.name)
        if script:
            write_atomic(script_file(context, self.name), script, mode=0o700)
        try:
            done = change(self, _with(lines, installation, context), context)
        except ResilError:
            with suppress(ResilError):
                change(self, lambda table: without_ours(table, {installation.token}), context)
            raise
        pause_s = self.pause_s(installation, settings)
        every = "minute" if pause_s == 60 else format_duration(pause_s)
        rhythm = f"it ticks every {every}" if pause_s else "a daemon, always running"
        return (f"wrote an entry to {self.where(context)}: {rhythm}",) if done else ()

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Remove the lines. An active tick ends by itself."""
        self.check(installation, context)
        done = change(self, _with((), installation, context), context)
        with suppress(OSError):
            script_file(context, self.name).unlink(missing_ok=True)
        return (f"removed our lines from {self.where(context)}",) if done else ()

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Check that the lines are there and enabled."""
        self.check(installation, context)
        found = table_state(self.read(context) or "", installation, self.where(context))
        if found.liveness is not Liveness.ALIVE:
            return found
        now, pause_s = context.system.clock.now(), self.pause_s(installation, settings)
        said = _last_words(context, self.name)
        hint = f"the last tick failed: {said}" if said else ""
        return found._replace(next_tick=now - now % pause_s + pause_s if pause_s else None, hint=hint)


def _with(lines: Sequence[str], installation: Installation, context: Context) -> Callable[[str], str]:
    """Return the change that replaces our lines, those of an installation of this project that is no longer recorded
    too."""
    return lambda table: with_ours(table, lines, {installation.token} | tokens_of(table, context.state_dir))


def change(program: TableDriver, edit: Callable[[str], str], context: Context) -> bool:
    """Replace a user's table by the result of `edit`; return whether anything had to be written.

    `edit` must be idempotent. Raise ResilError if writing fails.
    """
    with _locked(program.name, context):
        for attempt in range(ATTEMPTS):
            old = program.read(context) or ""
            new = edit(old)
            if new == old:
                return attempt > 0
            program.write(new, context)
            found = program.read(context) or ""
            if found == new or edit(found) == found:
                return True
            # A random pause: two that retry in step would go on for ever.
            context.system.clock.sleep(0.05 + 0.2 * os.urandom(1)[0] / 256)
    raise ResilError(
        f"the {program.name} of {context.system.host.user} keeps changing while it is being written",
        hint="check for an editor or a configuration tool, then try again",
        transient=True,
    )


@contextmanager
def _locked(name: str, context: Context) -> Iterator[None]:
    """Lock a table against other resil commands, for at most LOCK_S. Without a lock file, continue without a lock."""
    clock = context.system.clock
    roots = (own_directory(Path(root, f"resil-{context.system.host.uid}")) for root in ("/tmp", "/dev/shm"))
    directory = next((root for root in roots if root is not None), Path(os.devnull))
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(directory / f"{name}.lock", flags, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = clock.monotonic() + LOCK_S
        while clock.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                clock.sleep(0.05)
            except OSError:
                break  # no locks on this file system
            else:
                break
        yield
    finally:
        os.close(descriptor)  # which also releases the lock


# ---- installations ------------------------------------------------------------------------------------------------


def check_host(installation: Installation, context: Context, name: str) -> None:
    """Raise ResilError if an installation bound to one machine is on another one, or belongs to another user."""
    host = context.system.host.name
    if installation.host != host:
        text = f"it is installed in the {name} of {installation.host}, and this is {host}"
        raise ResilError(text, hint=f"log in there: ssh {installation.host}")
    check_owner(installation, context, name)


def check_owner(installation: Installation, context: Context, name: str) -> None:
    """Raise ResilError if an installation belongs to another user."""
    user = context.system.host.user
    if installation.by != user:
        text = f"it is installed in the {name} of {installation.by}, and you are {user}"
        hint = f"ask {installation.by}; every member of the project can stop it: resil cron stop"
        raise ResilError(text, hint=hint)


def content_of(path: Path) -> str | None:
    """Return the text of a file; None: there is none. Raise ResilError if it cannot be read."""
    found = read_regular(path)
    return None if found is None else found[0].decode("utf-8", "surrogateescape")


def output_file(context: Context, name: str, *, make: bool = True) -> str:
    """Return the output file of the last tick; creates its directory if `make`."""
    directory = context.state_dir / FOLDER / "driver"
    if make:
        make_directory(directory, mode=0o2770 if context.group else 0o700)
    return str(directory / f"{name}.out")


def script_file(context: Context, name: str) -> Path:
    """Return the path of the script that a table's lines may call."""
    return Path(output_file(context, name, make=False)).with_suffix(".sh")


def _last_words(context: Context, name: str) -> str:
    """Return the last line of a tick that failed; empty if it wrote its heartbeat, or no output.

    A tick that cannot start (a missing interpreter) writes output but no heartbeat.
    """
    path = Path(output_file(context, name, make=False))
    with suppress(OSError):
        written = path.stat().st_mtime
        lines = path.read_bytes()[-4096:].decode("utf-8", "replace").replace("\0", "").split("\n")
        with suppress(FileNotFoundError):
            if (path.parent.parent / "heartbeat").stat().st_mtime >= written - SAME_TICK_S:
                return ""
        return ([line.strip()[:200] for line in lines if line.strip()] or [""])[-1]
    return ""


def table_state(table: str, installation: Installation, where: str) -> DriverState:
    """Return the state of an installation in a table. Pure."""
    tokens, again = {installation.token}, "restore it: resil cron install"
    if all(line.startswith("# resil:") for line in ours(table, tokens)):
        return DriverState(Liveness.GONE, f"our line is missing from {where}", hint=again)
    if off := disabled(table, tokens):
        reason = "its job was cancelled" if off[0].startswith("#DISABLED") else "it was commented out"
        return DriverState(Liveness.GONE, f"our line in {where} is disabled: {reason}", hint=again)
    return DriverState(Liveness.ALIVE, f"our line is in {where}")
