"""`resil cron add` and `remove`: schedule a command as a drop-in or as a crontab line, and remove entries.

The scheduler's own parser reads the result before `add` succeeds: a command that the crontab would change, or a drop-in
that the policy rejects, is never left behind. The crontab is replaced atomically, because users edit it as well.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.entries import find_entry, next_runs
from resilience.cron.records import Entry, EntryOptions, Kind
from resilience.cron.table.crontab_file import CRONTAB, parse_crontab
from resilience.cron.table.drop_ins import SCHEDULES, SUBMITTED
from resilience.cron.table.expression import parse_schedule
from resilience.cron.table.options import OptionError, entry_options
from resilience.errors import ResilError, UsageError
from resilience.messages import quoted
from resilience.quantities import format_duration, parse_duration_s
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import explain_os_error, make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Table

LIMIT_BYTES = 2**20
"""Maximum size of a crontab (MAX_TAB_LINES of cron is 1000)."""

MARK = "by `resil cron add"
"""Part of the comment that `resil cron add` writes above a line; `remove` recognizes the comment by it."""

SHOWN = 3
"""Number of upcoming runs shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """The entry requested on the command line.

    Attributes:
        name: its name.
        command: as words; with `shell`, one line for a shell.
        directories: drop-in directories, such as `hourly`. Exactly one of these or `schedule` is required.
        schedule: five fields, or `@every 90s`: a crontab line.
        options: as typed: `timeout` to `10m`; `rerun` to the empty string.
        submit: whether to submit the entry as a job of its own.
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
    """The entry written, or with a dry run the entry to write.

    Attributes:
        name: name of the entry.
        path: the file.
        text: the whole drop-in, or the lines added to the crontab.
        next: upcoming runs, seconds since the epoch.
        notes: further information for the user.
    """

    name: str
    path: Path
    text: str
    next: tuple[float, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gone:
    """An entry removed, or with a dry run the entry to remove.

    Attributes:
        name: name of the entry.
        place: the file; for a line, with its number.
        text: the removed lines; for a link, its target.
    """

    name: str
    place: str
    text: str = ""
    is_link: bool = False


# ---- the crontab as a file -------------------------------------------------------------------------------------


def parse(cron: CronProject, text: bytes) -> Table:
    """Parse the text of a crontab."""
    return parse_crontab(text, f"{cron.directory.name}/{CRONTAB}", cron.settings)


def read_crontab(path: Path) -> bytes:
    """Return the crontab, empty if it does not exist. Raise ResilError if it cannot be read."""
    found = read_regular(path.resolve(), LIMIT_BYTES + 1)
    if found is None:
        return b""
    if len(found[0]) > LIMIT_BYTES:
        raise ResilError(f"{path} is too large for a crontab", hint="check the file")
    return found[0]


def replace_crontab(path: Path, before: bytes, after: bytes) -> None:
    """Replace the crontab atomically; of a symbolic link, replace the target.

    Raise ResilError if the file has changed since it was read, or cannot be written.
    """
    target = path.resolve()
    make_directory(target.parent, mode=0o755)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    if read_crontab(path) != before:
        raise ResilError(f"{path} changed in the meantime", hint="try again", transient=True)
    write_atomic(target, after, mode=mode)


# ---- add -------------------------------------------------------------------------------------------------------


def add(cron: CronProject, requested: NewEntry, *, dry_run: bool = False) -> Added:
    """Add an entry. Raise UsageError for an invalid request and ResilError if writing fails; nothing is left behind."""
    limit_s = _check_request(cron, requested).timeout_s
    command = _command(cron, requested)
    notes = []
    if "timeout" not in requested.options and not requested.submit and 0 < limit_s < CronSettings().timeout_s:
        notes.append(f"a run may take {format_duration(limit_s)}, until the next one is due; for longer: --timeout 1h")
    if cron.project.system.cwd != cron.project.loaded.project:
        notes.append(f"the command runs in {cron.project.loaded.project}, not in this directory: use absolute paths")
    with suppress(ResilError):
        if cron.state.stopped() is not None:
            notes.append("the scheduler is stopped; resume: resil cron install")
        elif cron.state.installation() is None and cron.state.heartbeat() is None:
            notes.append("no scheduler is installed yet; start one: resil cron install")
    write = _add_drop_in if requested.directories else _add_line
    added = write(cron, requested, command, dry_run=dry_run)
    return replace(added, notes=(*notes, *added.notes))


def _check_request(cron: CronProject, requested: NewEntry) -> EntryOptions:
    """Return the options of the new entry. Raise UsageError for an invalid request."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", requested.name):
        raise UsageError(
            f"{requested.name!r} is not a valid entry name", hint="letters, digits, - and _, at most 64; no dot"
        )
    times = len(requested.directories) + bool(requested.schedule)
    if times != 1:
        said = "no schedule given" if not times else "more than one schedule given"
        raise UsageError(said, hint='one of --minutely, --quarter-hourly, --hourly ..., or --cron "30 4 * * *"')
    if not requested.command or not any(requested.command):
        raise UsageError("no command given", hint=f"resil cron add {requested.name} --hourly -- COMMAND")
    if requested.submit and requested.schedule:
        hint = "--hourly, --daily ... --submit; or let the line submit a job: -- sbatch job.slurm"
        raise UsageError("crontab lines are run, not submitted", hint=hint)
    is_drop_in = bool(requested.directories)
    schedule = parse_schedule(SCHEDULES[f"cron.{requested.directories[0]}"] if is_drop_in else requested.schedule)
    for key, value in requested.options.items():
        if value.split() != ([value] if value else []):
            said = f"--{key.replace('_', '-')} {value!r} contains a blank"
            raise UsageError(said, hint="write the value without blanks")
    try:
        return entry_options(_written(requested.options), cron.settings, schedule, is_drop_in=is_drop_in).options
    except OptionError as error:
        raise UsageError(_as_typed(error.message), hint=_as_typed(error.hint)) from None


def _written(options: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" if value else key for key, value in options.items())


def _as_typed(text: str) -> str:
    """Return a message about options of a comment in the words of the command line: `--timeout 5x` for `timeout=5x`."""

    def option(found: re.Match[str]) -> str:
        return f"--{found[1].replace('_', '-')} {shlex.quote(found[2])}"

    return re.sub(r"\b(timeout|catch_up|overlap|jitter|ok)=([^\s:]+?)(?=,? |:|,?$)", option, text)


def _command(cron: CronProject, requested: NewEntry) -> str:
    """Return the command for a shell, with an absolute program path: the run has neither this directory nor this PATH.

    Raise UsageError if the program does not exist.
    """
    if requested.shell:
        return " ".join(requested.command)
    program, *rest = requested.command
    system = cron.project.system
    found = shutil.which(program, path=system.environ.get("PATH", os.defpath)) if "/" not in program else program
    if found is None:
        hint = "give its absolute path; for shell syntax: --shell -- 'cd out && ls'"
        raise UsageError(f"program {program!r} is not on your PATH", hint=hint)
    path = system.cwd / Path(found).expanduser()
    if not path.is_file():
        hint = "give a path relative to this directory, or an absolute one"
        raise UsageError(f"program {path} does not exist", hint=hint)
    if not os.access(path, os.X_OK):
        raise UsageError(f"{path} is not executable", hint=f"chmod +x {quoted(path)}")
    return shlex.join([os.path.normpath(path), *rest])


def _add_drop_in(cron: CronProject, requested: NewEntry, command: str, *, dry_run: bool) -> Added:
    directory = cron.directory / f"cron.{requested.directories[0]}"
    path = directory / (f"{requested.name}.slurm" if requested.submit else requested.name)
    for suffix in ("", *SUBMITTED):
        other = directory / f"{requested.name}{suffix}"
        if os.path.lexists(other):
            raise _taken(other, f"{directory.name}/{other.name}")
    text = _script(cron, requested, command)
    schedule, kind = SCHEDULES[directory.name], Kind.SUBMIT if requested.submit else Kind.RUN
    draft = Entry(name=f"{directory.name}/{path.name}", place="", schedule=schedule, kind=kind, argv=(str(path),))
    added = Added(draft.name, path, text, next_runs(draft, cron.project.system.clock.now(), SHOWN))
    if not dry_run:
        make_directory(directory, mode=0o755)
        _write_new(path, text)
        _check_accepted(cron, added.name, [f"{directory.name}/{path.name}", directory.name], path.unlink)
    return added


def _check_accepted(cron: CronProject, name: str, places: Sequence[str], undo: Callable[[], None]) -> None:
    """Undo and raise UsageError, with the reason, if the scheduler ignores an entry just written to these places."""
    try:
        table = cron.read_table()
        if not any(entry.name == name for entry in table.entries):
            wanted = [*places, cron.directory.name]
            why = [(one.reason, one.hint) for end in wanted for one in table.ignored if one.place.endswith(end)]
            reason, hint = next(iter(why), (f"{name} is not in the table", "resil cron doctor"))
            raise UsageError(f"the scheduler ignores the new entry: {reason}", hint=hint)
    except BaseException:
        undo()
        raise


def _taken(place: Path | str, name: str) -> UsageError:
    return UsageError(f"{place} already exists", hint=f"resil cron remove {quoted(name)}")


def _write_new(path: Path, text: str) -> None:
    """Create a file atomically; never overwrite an existing one."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    write_atomic(temporary, text, mode=0o755)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _taken(path, f"{path.parent.name}/{path.name}") from None
    except OSError as error:
        raise explain_os_error(error, "write", path) from error
    finally:
        temporary.unlink(missing_ok=True)


def _script(cron: CronProject, requested: NewEntry, command: str) -> str:
    lines = ["#!/bin/bash" if requested.submit else "#!/bin/sh", _signature(cron, requested.name)]
    options = requested.options
    if requested.submit:
        # Account and partition come from [cron] sbatch, and the time limit from #SBATCH.
        options = {"sbatch": "cron", **{key: value for key, value in options.items() if key != "timeout"}}
    if options:
        lines.append(f"# resil: {_written(options)}")
    if requested.submit:
        # A requeued job would run its slot twice.
        lines += [f"#SBATCH --job-name={requested.name}", "#SBATCH --no-requeue"]
        if timeout := requested.options.get("timeout", ""):
            # 0 is UNLIMITED (sbatch(1), --time).
            is_endless = timeout in ("0", "none", "never")
            minutes = 0 if is_endless else max(1, math.ceil(parse_duration_s(timeout) / 60))
            lines.append(f"#SBATCH --time={minutes}")
    lines.append(command if requested.shell else f"exec {command}")
    return "\n".join(lines) + "\n"


def _signature(cron: CronProject, name: str) -> str:
    system = cron.project.system
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(system.clock.now()))
    return f"# Added {moment} {MARK} {name}`: {system.host.user} on {system.host.name}."


def _add_line(cron: CronProject, requested: NewEntry, command: str, *, dry_run: bool) -> Added:
    path, name = cron.directory / CRONTAB, f"{CRONTAB}/{requested.name}"
    before = read_crontab(path)
    others = {entry.name: entry for entry in parse(cron, before).entries}
    if name in others:
        raise _taken(others[name].place, name)
    if not requested.shell:
        command = command.replace("\\%", "\\''%")  # in cron, a backslash before `\%` ends the command there
    escaped = command.replace("%", "\\%")
    line = f"{' '.join(requested.schedule.split())}  {escaped}  # resil: name={requested.name}"
    line = f"{line} {_written(requested.options)}".rstrip()
    base = before if before.endswith(b"\n") or not before else before + b"\n"
    # Settings above the line are meant for other lines.
    for zone in ([], ["CRON_TZ="]):
        text = "\n".join([_signature(cron, requested.name), *zone, line]) + "\n"
        found = {entry.name: entry for entry in parse(cron, base + os.fsencode(text)).entries}
        entry = found.pop(name, None)
        if entry is not None and not entry.zone:
            break
    if entry is None or entry.argv[1:] != ("-c", command) or found != others:
        raise UsageError(
            "a crontab line cannot express this command",
            hint=f"use a drop-in: resil cron add {requested.name} --hourly -- COMMAND; or write a script",
        )
    inherited = ", ".join(sorted({*entry.environment, *(["MAILTO"] if entry.mail_to else [])}))
    notes = (f"the line inherits settings above it in the crontab: {inherited}",) if inherited else ()
    if not dry_run:
        after = base + os.fsencode(text)
        replace_crontab(path, before, after)
        _check_accepted(cron, name, [f"/{CRONTAB}"], partial(replace_crontab, path, after, before))
    return Added(name, path, text, next_runs(entry, cron.project.system.clock.now(), SHOWN), notes)


# ---- remove ----------------------------------------------------------------------------------------------------


def remove(cron: CronProject, names: Sequence[str], *, dry_run: bool = False) -> tuple[Gone, ...]:
    """Remove all named entries, or none. Raise UsageError, with the nearest name, for an unknown entry."""
    table = cron.read_table()
    found = {entry.name: entry for entry in (find_entry(table, name) for name in names)}
    return tuple(_remove(cron, entry, dry_run=dry_run) for entry in found.values())


def _remove(cron: CronProject, entry: Entry, *, dry_run: bool) -> Gone:
    if entry.name.startswith(f"{CRONTAB}/"):
        return _remove_line(cron, entry, dry_run=dry_run)
    if not entry.path:
        raise UsageError(f"{entry.name} is defined by {entry.place}", hint="change this setting in resil.toml")
    path = Path(entry.path)  # in the directory, not the target of a link
    try:
        target = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115 - as it was written
        if not dry_run:
            path.unlink()
    except OSError as error:
        raise explain_os_error(error, "remove", path) from error
    return Gone(entry.name, str(path), target, bool(target))


def _remove_line(cron: CronProject, entry: Entry, *, dry_run: bool) -> Gone:
    """Remove the line, wherever it is now, the options above it, and the comment that `resil cron add` wrote."""
    path = cron.directory / CRONTAB
    before = read_crontab(path)
    place = next((one.place for one in parse(cron, before).entries if one.name == entry.name), "")
    if not place:
        raise ResilError(f"{entry.name} no longer exists: another process removed it", hint="resil cron list")
    lines = re.split(rb"(?<=\n)", before)
    last = int(place.rpartition(":")[2])
    first = last - 1
    if first and re.match(rb"[ \t]*#+[ \t]*resil:", lines[first - 1]):
        first -= 1
    if first and re.match(rb"\s*#.*" + os.fsencode(MARK) + b" ", lines[first - 1]):
        first -= 1
    if not dry_run:
        replace_crontab(path, before, b"".join([*lines[:first], *lines[last:]]))
    text = os.fsdecode(b"".join(lines[first:last])).rstrip("\r\n")
    return Gone(entry.name, f"{entry.place.rpartition(':')[0]}:{last}", text)
