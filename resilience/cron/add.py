"""`resil cron add`: schedules a command, as a drop-in or as a line of the crontab, so that it means what was typed.

What was written is read again by the very reader of the scheduler before it counts: a command that the crontab would
take for another one, or a drop-in that the policy refuses, is never left behind.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.crontab_text import CRONTAB, MARK, parse, read_crontab, replace_crontab
from resilience.cron.entries import next_runs
from resilience.cron.records import Entry, Kind
from resilience.errors import ResilError, UsageError
from resilience.quantities import parse_duration_s
from resilience.system.files import explain_os_error, make_directory, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Table

FOLDER_SCHEDULES = {
    "minutely": "* * * * *", "quarter_hourly": "*/15 * * * *", "hourly": "@hourly", "daily": "@daily",
    "weekly": "@weekly", "monthly": "@monthly",
}  # fmt: skip
SHOWN = 3
"""So many next runs are shown."""
_NAME = r"[A-Za-z0-9_-]{1,64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """What somebody wants to have scheduled.

    Attributes:
        name: what it is to be called.
        command: as words; with `shell`, one line for /bin/sh.
        directories: of which directories it is to be a drop-in: `hourly`. Exactly one of these and `schedule` must be
            said.
        schedule: five fields, or `@every 90s`: a line of the crontab.
        options: as typed: `timeout` to `10m`; `rerun` to nothing.
        submit: whether it runs as a job of its own.
    """

    name: str
    command: tuple[str, ...]
    directories: tuple[str, ...] = ()
    schedule: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    shell: bool = False
    submit: bool = False


@dataclass(frozen=True, slots=True)
class Added:
    """What was, or would be, written.

    Attributes:
        name: the entry's.
        path: the file.
        text: of a drop-in: all of it; of the crontab: the lines that are added.
        next: the next runs, seconds since the epoch.
        notes: what the person should know besides.
    """

    name: str
    path: Path
    text: str
    next: tuple[float, ...]
    notes: tuple[str, ...] = ()


def add(cron: CronProject, wanted: NewEntry, *, dry_run: bool = False) -> Added:
    """Write it. Raise UsageError if it cannot be meant, ResilError if it cannot be written; then nothing is left."""
    check(wanted)
    options = _options_text(cron, wanted)
    words = _command_words(cron, wanted)
    notes = []
    system = cron.project.system
    if system.cwd != cron.project.loaded.project:
        notes.append(f"it runs in {cron.project.loaded.project}, not here: write paths in full")
    notes += _who_ticks(cron)
    if wanted.directories:
        return _add_drop_in(cron, wanted, words, options, tuple(notes), dry_run=dry_run)
    return _add_line(cron, wanted, words, options, tuple(notes), dry_run=dry_run)


def _who_ticks(cron: CronProject) -> list[str]:
    """What to say where nothing would run it yet."""
    with suppress(ResilError):
        if cron.state.stopped() is not None:
            return ["the scheduler is stopped; restart: resil cron install"]
        if cron.state.installation() is None and cron.state.heartbeat() is None:
            return ["no scheduler is installed yet; start it: resil cron install"]
    return []


def check(wanted: NewEntry) -> None:
    """Raise UsageError if that cannot be meant. Pure."""
    if not re.fullmatch(_NAME, wanted.name):
        raise UsageError(
            f"{wanted.name!r} cannot be an entry's name", hint="letters, digits, - and _, at most 64; no dot"
        )
    times = len(wanted.directories) + bool(wanted.schedule)
    if times != 1:
        said = "when?" if not times else "more than one time was given: which one is meant?"
        raise UsageError(said, hint='one of --minutely, --quarter-hourly, --hourly ..., or --cron "30 4 * * *"')
    if not wanted.command or not any(wanted.command):
        raise UsageError("which command?", hint=f"resil cron add {wanted.name} --hourly -- COMMAND")
    if any("\0" in word for word in wanted.command):
        raise UsageError("a command cannot have a NUL byte in it", hint="put it into a script")
    if wanted.submit and wanted.schedule:
        raise UsageError(
            "a line of the crontab is run, not submitted",
            hint="--hourly, --daily ... --submit; or let the line submit a job: -- sbatch job.slurm",
        )
    if wanted.schedule:
        from resilience.cron.table.expression import parse_schedule

        parse_schedule(wanted.schedule)


def _options_text(cron: CronProject, wanted: NewEntry) -> str:
    """`timeout=10m rerun`, understood by whoever reads it. Raise UsageError if it would not be."""
    from resilience.cron.table.options import default_options, parse_options

    # How long a job may take is its time limit.
    said = {key: value for key, value in wanted.options.items() if not (wanted.submit and key == "timeout")}
    text = " ".join(f"{key}={value}" if value else key for key, value in said.items())
    for key, value in wanted.options.items():
        if value.split() != ([value] if value else []):
            raise UsageError(f"--{key.replace('_', '-')} {value!r} has a blank in it", hint=f"{key}=10m, for instance")
    everything = " ".join(f"{key}={value}" if value else key for key, value in wanted.options.items())
    parse_options(everything, default_options(cron.settings, is_drop_in=bool(wanted.directories)))
    return text


def _command_words(cron: CronProject, wanted: NewEntry) -> tuple[str, ...]:
    """What is to be run: its program in full, because what runs has neither this directory nor this PATH.

    Raise UsageError if there is no such program.
    """
    if wanted.shell:
        return "/bin/sh", "-c", " ".join(wanted.command)
    program, *rest = wanted.command
    system = cron.project.system
    if "/" in program:
        path = system.cwd / Path(program).expanduser()
        if not path.is_file():
            raise UsageError(f"there is no program {path}", hint="write its path as from here, or in full")
        if not os.access(path, os.X_OK):
            raise UsageError(f"{path} is not executable", hint=f"chmod +x {shlex.quote(str(path))}")
        return os.path.normpath(path), *rest
    found = shutil.which(program, path=system.environ.get("PATH", os.defpath))
    if found is None:
        raise UsageError(
            f"there is no program {program!r} on your PATH",
            hint="write its whole path; for what only a shell does: --shell -- 'cd out && ls'",
        )
    return str(system.cwd / found), *rest


# ---- drop-ins -------------------------------------------------------------------------------------------------


def _add_drop_in(
    cron: CronProject, wanted: NewEntry, words: Sequence[str], options: str, notes: tuple[str, ...], *, dry_run: bool
) -> Added:
    (period,) = wanted.directories
    directory = cron.directory / f"cron.{period}"
    path = directory / (f"{wanted.name}.slurm" if wanted.submit else wanted.name)
    for other in (wanted.name, f"{wanted.name}.slurm", f"{wanted.name}.sbatch"):
        if os.path.lexists(directory / other):
            raise UsageError(
                f"{directory / other} is there already", hint=f"resil cron remove {directory.name}/{other}"
            )
    text = _script(cron, wanted, words, options)
    draft = Entry(name=f"{directory.name}/{path.name}", place="", schedule=FOLDER_SCHEDULES[period],
                  kind=Kind.SUBMIT if wanted.submit else Kind.RUN, argv=(str(path),), path=str(path))  # fmt: skip
    upcoming = next_runs(draft, cron.project.system.clock.now(), SHOWN)
    added = Added(draft.name, path, text, upcoming, notes)
    if dry_run:
        return added
    make_directory(directory, mode=0o755)
    _write_new(path, text)
    try:
        _must_run(cron.read_table(), path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return added


def _must_run(table: Table, path: Path) -> None:
    """Raise UsageError, with the reason, if the scheduler would not run a drop-in that was just written."""
    if any(Path(entry.path) == path for entry in table.entries):
        return
    for ignored in table.ignored:
        if ignored.place.endswith(f"{path.parent.name}/{path.name}") or ignored.place.endswith(path.parent.name):
            raise UsageError(f"a drop-in there does not run: {ignored.reason}", hint=ignored.hint)
    raise UsageError(f"a drop-in in {path.parent} does not run", hint="resil cron doctor")


def _write_new(path: Path, text: str) -> None:
    """Make a file whole and at once, and never in the place of another one."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    write_atomic(temporary, text, mode=0o755)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise UsageError(f"{path} is there already", hint=f"resil cron remove {path.parent.name}/{path.name}") from None
    except OSError as error:
        raise explain_os_error(error, "write", path) from error
    finally:
        temporary.unlink(missing_ok=True)


def _script(cron: CronProject, wanted: NewEntry, words: Sequence[str], options: str) -> str:
    lines = ["#!/bin/bash" if wanted.submit else "#!/bin/sh", _signature(cron, wanted.name)]
    if wanted.submit:
        options = f"sbatch=cron {options}".rstrip()  # account and partition come from [cron] sbatch
    if options:
        lines.append(f"# resil: {options}")
    if wanted.submit:
        # A job that is run again by itself would run a slot twice.
        lines += [f"#SBATCH --job-name={wanted.name}", "#SBATCH --no-requeue"]
        if timeout := wanted.options.get("timeout", ""):
            lines.append(f"#SBATCH --time={_minutes(timeout)}")
    # The line as it was typed: `sh -c` would only be a second shell.
    lines.append(words[2] if wanted.shell else f"exec {shlex.join(words)}")
    return "\n".join(lines) + "\n"


def _minutes(timeout: str) -> str:
    """A time limit as sbatch has it; 0 is UNLIMITED (sbatch(1), --time)."""
    return "0" if timeout in ("0", "none", "never") else str(max(1, math.ceil(parse_duration_s(timeout) / 60)))


def _signature(cron: CronProject, name: str) -> str:
    system = cron.project.system
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(system.clock.now()))
    return f"# Added {moment} {MARK} {name}`: {system.host.user} on {system.host.name}."


# ---- lines of the crontab -------------------------------------------------------------------------------------


def _add_line(
    cron: CronProject, wanted: NewEntry, words: Sequence[str], options: str, notes: tuple[str, ...], *, dry_run: bool
) -> Added:
    path = cron.directory / CRONTAB
    before = read_crontab(path)
    name = f"{CRONTAB}/{wanted.name}"
    table = parse(cron, before)
    if taken := next((entry for entry in table.entries if entry.name == name), None):
        raise UsageError(f"{name} is there already, {taken.place}", hint=f"resil cron remove {name}")
    # `%` ends a command in crontab(5).
    command = shlex.join(words).replace("%", "\\%")
    line = f"{' '.join(wanted.schedule.split())}  {command}  # resil: name={wanted.name}"
    lines = [_signature(cron, wanted.name), f"{line} {options}".rstrip()]
    base = before if before.endswith(b"\n") or not before else before + b"\n"
    entry = _meant(cron, base, lines, name, words)
    if entry is None or entry.zone:
        # What stands above it is meant for other lines.
        lines.insert(1, "CRON_TZ=")
        entry = _meant(cron, base, lines, name, words)
    if entry is None:
        raise UsageError(
            "this command cannot be written into a crontab's line so that it means the same",
            hint=f"as a drop-in it can: resil cron add {wanted.name} --hourly -- ...; or put it into a script",
        )
    text = "\n".join(lines) + "\n"
    inherited = sorted({*entry.environment, *(["MAILTO"] if entry.mail_to else [])})
    if inherited:
        notes = (*notes, f"it gets what stands above it in the crontab: {', '.join(inherited)}")
    added = Added(name, path, text, next_runs(entry, cron.project.system.clock.now(), SHOWN), notes)
    if not dry_run:
        replace_crontab(path, before, base + os.fsencode(text))
        _must_stand(cron, name)
    return added


def _meant(cron: CronProject, base: bytes, lines: Sequence[str], name: str, words: Sequence[str]) -> Entry | None:
    """The entry that these lines make of the crontab, if it is the one that is meant, and all others stay the same."""
    after = parse(cron, base + os.fsencode("\n".join(lines) + "\n"))
    others = {entry.name: entry for entry in parse(cron, base).entries}
    found = {entry.name: entry for entry in after.entries}
    entry = found.pop(name, None)
    if entry is None or found != others:
        return None
    # Under a SHELL= the words are that shell's, and quoted for it.
    shell_line = (entry.environment.get("SHELL", ""), "-c", shlex.join(words))
    return entry if entry.argv in (tuple(words), shell_line) else None


def _must_stand(cron: CronProject, name: str) -> None:
    """Raise UsageError if the crontab as a whole is refused: whose it is, and who may write there."""
    table = cron.read_table()
    if any(entry.name == name for entry in table.entries):
        return
    reason = next((i for i in table.ignored if i.place.rpartition("/")[2] == CRONTAB), None)
    if reason is not None:
        raise UsageError(f"it is written, and does not run: {reason.reason}", hint=reason.hint)
