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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.entries import find_name, next_runs
from resilience.cron.records import Entry, Kind
from resilience.errors import ResilError, UsageError
from resilience.messages import quoted
from resilience.quantities import parse_duration_s
from resilience.system.files import explain_os_error, make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Entry, Ignored, Table

CRONTAB = "crontab"
"""Its file name in the cron directory, and the prefix of its entries' names."""

LIMIT_BYTES = 2**20
"""Maximum size of a crontab (MAX_TAB_LINES of cron is 1000)."""

MARK = "by `resil cron add"
"""Part of the comment that `resil cron add` writes above a line; `remove` recognizes the comment by it."""


def parse(cron: CronProject, text: bytes) -> Table:
    """Parse the text of a crontab."""
    from resilience.cron.table.crontab_file import parse_crontab

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


PERIOD_SCHEDULES = {
    "minutely": "* * * * *", "quarter_hourly": "*/15 * * * *", "hourly": "@hourly", "daily": "@daily",
    "weekly": "@weekly", "monthly": "@monthly",
}  # fmt: skip
SHOWN = 3
"""Number of upcoming runs shown."""
_NAME = r"[A-Za-z0-9_-]{1,64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """The entry requested on the command line.

    Attributes:
        name: its name.
        command: as words; with `shell`, one line for /bin/sh.
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


def add(cron: CronProject, requested: NewEntry, *, dry_run: bool = False) -> Added:
    """Add an entry. Raise UsageError for an invalid request and ResilError if writing fails; nothing is left behind."""
    check(requested)
    options = _options_text(cron, requested)
    words = _command_words(cron, requested)
    notes = []
    system = cron.project.system
    if system.cwd != cron.project.loaded.project:
        notes.append(f"the command runs in {cron.project.loaded.project}, not in this directory: use absolute paths")
    notes += _scheduler_notes(cron)
    if requested.directories:
        return _add_drop_in(cron, requested, words, options, tuple(notes), dry_run=dry_run)
    return _add_line(cron, requested, words, options, tuple(notes), dry_run=dry_run)


def _scheduler_notes(cron: CronProject) -> list[str]:
    """Return a note when no scheduler would run the entry yet."""
    with suppress(ResilError):
        if cron.state.stopped() is not None:
            return ["the scheduler is stopped; resume: resil cron install"]
        if cron.state.installation() is None and cron.state.heartbeat() is None:
            return ["no scheduler is installed yet; start one: resil cron install"]
    return []


def check(requested: NewEntry) -> None:
    """Raise UsageError for an invalid request. Pure."""
    if not re.fullmatch(_NAME, requested.name):
        raise UsageError(
            f"{requested.name!r} is not a valid entry name", hint="letters, digits, - and _, at most 64; no dot"
        )
    times = len(requested.directories) + bool(requested.schedule)
    if times != 1:
        said = "no schedule given" if not times else "more than one schedule given"
        raise UsageError(said, hint='one of --minutely, --quarter-hourly, --hourly ..., or --cron "30 4 * * *"')
    if not requested.command or not any(requested.command):
        raise UsageError("no command given", hint=f"resil cron add {requested.name} --hourly -- COMMAND")
    if any("\0" in word for word in requested.command):
        raise UsageError("a command must not contain a NUL byte", hint="put it into a script")
    if requested.submit and requested.schedule:
        raise UsageError(
            "crontab lines are run, not submitted",
            hint="--hourly, --daily ... --submit; or let the line submit a job: -- sbatch job.slurm",
        )
    if requested.schedule:
        from resilience.cron.table.expression import parse_schedule

        parse_schedule(requested.schedule)


def _as_typed(text: str) -> str:
    """Return a message about options of a comment in the words of the command line: `--timeout 5x` for `timeout=5x`."""

    def option(found: re.Match[str]) -> str:
        return f"--{found[1].replace('_', '-')} {shlex.quote(found[2])}"

    return re.sub(r"\b(timeout|catch_up|overlap|jitter|ok)=([^\s:]+?)(?=,? |:|,?$)", option, text)


def _options_text(cron: CronProject, requested: NewEntry) -> str:
    """Return the options as text (`timeout=10m rerun`). Raise UsageError if the option parser rejects them."""
    from resilience.cron.table.options import OptionError, default_options, parse_options

    # The timeout of a job is its time limit.
    said = {key: value for key, value in requested.options.items() if not (requested.submit and key == "timeout")}
    text = " ".join(f"{key}={value}" if value else key for key, value in said.items())
    for key, value in requested.options.items():
        if value.split() != ([value] if value else []):
            raise UsageError(
                f"--{key.replace('_', '-')} {value!r} contains a blank", hint="write the value without blanks"
            )
    everything = " ".join(f"{key}={value}" if value else key for key, value in requested.options.items())
    default = default_options(cron.settings, is_drop_in=bool(requested.directories))
    try:
        parse_options(everything, default)
    except OptionError as error:
        raise UsageError(_as_typed(error.message), hint=_as_typed(error.hint)) from None
    return text


def _command_words(cron: CronProject, requested: NewEntry) -> tuple[str, ...]:
    """Return the command with an absolute program path: the run has neither this directory nor this PATH.

    Raise UsageError if the program does not exist.
    """
    if requested.shell:
        return "/bin/sh", "-c", " ".join(requested.command)
    program, *rest = requested.command
    system = cron.project.system
    if "/" in program:
        path = system.cwd / Path(program).expanduser()
        if not path.is_file():
            raise UsageError(
                f"program {path} does not exist", hint="give a path relative to this directory, or an absolute one"
            )
        if not os.access(path, os.X_OK):
            raise UsageError(f"{path} is not executable", hint=f"chmod +x {shlex.quote(str(path))}")
        return os.path.normpath(path), *rest
    found = shutil.which(program, path=system.environ.get("PATH", os.defpath))
    if found is None:
        raise UsageError(
            f"program {program!r} is not on your PATH",
            hint="give its absolute path; for shell syntax: --shell -- 'cd out && ls'",
        )
    return str(system.cwd / found), *rest


# ---- drop-ins -------------------------------------------------------------------------------------------------


def _add_drop_in(
    cron: CronProject, requested: NewEntry, words: Sequence[str], options: str, notes: tuple[str, ...], *, dry_run: bool
) -> Added:
    (period,) = requested.directories
    directory = cron.directory / f"cron.{period}"
    path = directory / (f"{requested.name}.slurm" if requested.submit else requested.name)
    for other in (requested.name, f"{requested.name}.slurm", f"{requested.name}.sbatch"):
        if os.path.lexists(directory / other):
            raise UsageError(
                f"{directory / other} already exists", hint=f"resil cron remove {quoted(f'{directory.name}/{other}')}"
            )
    text = _script(cron, requested, words, options)
    draft = Entry(name=f"{directory.name}/{path.name}", place="", schedule=PERIOD_SCHEDULES[period],
                  kind=Kind.SUBMIT if requested.submit else Kind.RUN, argv=(str(path),), path=str(path))  # fmt: skip
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
    """Raise UsageError, with the reason, if the scheduler ignores a drop-in that was just written."""
    if any(Path(entry.path) == path for entry in table.entries):
        return
    for ignored in table.ignored:
        if ignored.place.endswith(f"{path.parent.name}/{path.name}") or ignored.place.endswith(path.parent.name):
            raise UsageError(f"the scheduler ignores the drop-in: {ignored.reason}", hint=ignored.hint)
    raise UsageError(f"the scheduler ignores drop-ins in {path.parent}", hint="resil cron doctor")


def _write_new(path: Path, text: str) -> None:
    """Create a file atomically; never overwrite an existing one."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    write_atomic(temporary, text, mode=0o755)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise UsageError(
            f"{path} already exists", hint=f"resil cron remove {quoted(f'{path.parent.name}/{path.name}')}"
        ) from None
    except OSError as error:
        raise explain_os_error(error, "write", path) from error
    finally:
        temporary.unlink(missing_ok=True)


def _script(cron: CronProject, requested: NewEntry, words: Sequence[str], options: str) -> str:
    lines = ["#!/bin/bash" if requested.submit else "#!/bin/sh", _signature(cron, requested.name)]
    if requested.submit:
        options = f"sbatch=cron {options}".rstrip()  # account and partition come from [cron] sbatch
    if options:
        lines.append(f"# resil: {options}")
    if requested.submit:
        # A requeued job would run its slot twice.
        lines += [f"#SBATCH --job-name={requested.name}", "#SBATCH --no-requeue"]
        if timeout := requested.options.get("timeout", ""):
            lines.append(f"#SBATCH --time={_minutes(timeout)}")
    # The line as typed: `sh -c` would only add a second shell.
    lines.append(words[2] if requested.shell else f"exec {shlex.join(words)}")
    return "\n".join(lines) + "\n"


def _minutes(timeout: str) -> str:
    """Return a time limit for sbatch; 0 is UNLIMITED (sbatch(1), --time)."""
    return "0" if timeout in ("0", "none", "never") else str(max(1, math.ceil(parse_duration_s(timeout) / 60)))


def _signature(cron: CronProject, name: str) -> str:
    system = cron.project.system
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(system.clock.now()))
    return f"# Added {moment} {MARK} {name}`: {system.host.user} on {system.host.name}."


# ---- lines of the crontab -------------------------------------------------------------------------------------


def _add_line(
    cron: CronProject, requested: NewEntry, words: Sequence[str], options: str, notes: tuple[str, ...], *, dry_run: bool
) -> Added:
    path = cron.directory / CRONTAB
    before = read_crontab(path)
    name = f"{CRONTAB}/{requested.name}"
    table = parse(cron, before)
    if taken := next((entry for entry in table.entries if entry.name == name), None):
        raise UsageError(f"{name} already exists: {taken.place}", hint=f"resil cron remove {quoted(name)}")
    # `%` ends a command in crontab(5).
    command = shlex.join(words).replace("%", "\\%")
    line = f"{' '.join(requested.schedule.split())}  {command}  # resil: name={requested.name}"
    lines = [_signature(cron, requested.name), f"{line} {options}".rstrip()]
    base = before if before.endswith(b"\n") or not before else before + b"\n"
    entry = _parsed_entry(cron, base, lines, name, words)
    if entry is None or entry.zone:
        # Settings above the line are meant for other lines.
        lines.insert(1, "CRON_TZ=")
        entry = _parsed_entry(cron, base, lines, name, words)
    if entry is None:
        raise UsageError(
            "a crontab line cannot express this command",
            hint=f"use a drop-in: resil cron add {requested.name} --hourly -- COMMAND; or write a script",
        )
    text = "\n".join(lines) + "\n"
    inherited = sorted({*entry.environment, *(["MAILTO"] if entry.mail_to else [])})
    if inherited:
        notes = (*notes, f"the line inherits settings above it in the crontab: {', '.join(inherited)}")
    added = Added(name, path, text, next_runs(entry, cron.project.system.clock.now(), SHOWN), notes)
    if not dry_run:
        replace_crontab(path, before, base + os.fsencode(text))
        _must_be_listed(cron, name)
    return added


def _parsed_entry(
    cron: CronProject, base: bytes, lines: Sequence[str], name: str, words: Sequence[str]
) -> Entry | None:
    """Return the entry that the new lines define, if it is the requested one and all other entries stay the same."""
    after = parse(cron, base + os.fsencode("\n".join(lines) + "\n"))
    others = {entry.name: entry for entry in parse(cron, base).entries}
    found = {entry.name: entry for entry in after.entries}
    entry = found.pop(name, None)
    if entry is None or found != others:
        return None
    # With SHELL= set above, the words are quoted for that shell.
    shell_line = (entry.environment.get("SHELL", ""), "-c", shlex.join(words))
    return entry if entry.argv in (tuple(words), shell_line) else None


def _must_be_listed(cron: CronProject, name: str) -> None:
    """Raise UsageError if the scheduler rejects the crontab as a whole, because of its owner or mode."""
    table = cron.read_table()
    if any(entry.name == name for entry in table.entries):
        return
    reason = next((i for i in table.ignored if i.place.rpartition("/")[2] == CRONTAB), None)
    if reason is not None:
        raise UsageError(
            f"the line was written, but the scheduler ignores the crontab: {reason.reason}", hint=reason.hint
        )


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


def remove(cron: CronProject, names: Sequence[str], *, dry_run: bool = False) -> tuple[Gone, ...]:
    """Remove all named entries, or none. Raise UsageError, with the nearest name, for an unknown entry."""
    table = cron.read_table()
    entries = [_find(table, name) for name in dict.fromkeys(names)]
    return tuple(_remove(cron, entry, dry_run=dry_run) for entry in dict.fromkeys(entry.name for entry in entries))


def _find(table: Table, wanted: str) -> Entry:
    by_name = {entry.name: entry for entry in table.entries}
    try:
        return by_name[find_name(by_name, wanted)]
    except UsageError:
        if (ignored := _ignored(table, wanted)) is not None:
            raise UsageError(
                f"{ignored.place} is not an entry: {ignored.reason}",
                hint=f"remove the file: rm {quoted(ignored.place)}",
            ) from None
        raise


def _ignored(table: Table, wanted: str) -> Ignored | None:
    ends = [i for i in table.ignored if i.place.endswith(f"/{wanted}")]
    return ends[0] if len(ends) == 1 and ":" not in ends[0].place.rpartition("/")[2] else None


def _remove(cron: CronProject, name: str, *, dry_run: bool) -> Gone:
    entry = next((entry for entry in cron.read_table().entries if entry.name == name), None)
    if entry is None:
        raise ResilError(f"{name} no longer exists: another process removed it", hint="resil cron list")
    if name.startswith("resil/"):
        raise UsageError(f"{name} is defined by {entry.place}", hint="remove the key there")
    return _remove_file(cron, entry, dry_run=dry_run) if entry.path else _remove_line(cron, entry, dry_run=dry_run)


def _remove_file(cron: CronProject, entry: Entry, *, dry_run: bool) -> Gone:
    # The path in the directory, not the target of a link.
    path = cron.directory / entry.name
    if not os.path.lexists(path):
        path = Path(entry.path)
    try:
        target = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115 - as it was written
        if not dry_run:
            path.unlink()
    except OSError as error:
        raise explain_os_error(error, "remove", path) from error
    return Gone(entry.name, str(path), target, bool(target))


def _remove_line(cron: CronProject, entry: Entry, *, dry_run: bool) -> Gone:
    """Remove the line, the options above it, and the comment that `resil cron add` wrote."""
    path = cron.directory / CRONTAB
    before = read_crontab(path)
    number = entry.place.rpartition(":")[2]
    lines = [line + b"\n" for line in before.split(b"\n")]
    last = int(number) - 1 if number.isdigit() else -1
    if not 0 <= last < len(lines):
        raise ResilError(f"{entry.place} no longer exists", hint="try again", transient=True)
    first = last
    options, mark = re.compile(rb"[ \t]*#+[ \t]*resil:"), os.fsencode(f"{MARK} ")
    if first and options.match(lines[first - 1]):
        first -= 1
    if first and lines[first - 1].lstrip().startswith(b"#") and mark in lines[first - 1]:
        first -= 1
    removed, left = lines[first : last + 1], [*lines[:first], *lines[last + 1 :]]
    after = b"".join(left).removesuffix(b"\n")
    _check_others_unchanged(cron, before, after, entry)
    if not dry_run:
        replace_crontab(path, before, after)
    return Gone(entry.name, entry.place, os.fsdecode(b"".join(removed)).rstrip("\n"))


def _check_others_unchanged(cron: CronProject, before: bytes, after: bytes, entry: Entry) -> None:
    """Raise ResilError if more than this entry would change, because the file changed since it was read."""
    there = [_meaning(other) for other in parse(cron, before).entries]
    left = [_meaning(other) for other in parse(cron, after).entries]
    if _meaning(entry) in there:
        there.remove(_meaning(entry))
    # Compared without names: of two equal lines, the second takes over the name of the first.
    if there != left:
        raise ResilError(f"{entry.place} changed in the meantime", hint="try again", transient=True)


def _meaning(entry: Entry) -> tuple[object, ...]:
    return entry.schedule, entry.zone, entry.argv, entry.options
