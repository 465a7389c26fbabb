"""Classifies a file in `cron.hourly` etc.: run, submitted, or ignored with a reason. Pure.

`*.slurm` and `*.sbatch` are submitted; executables run if their name consists of letters, digits, `-` and `_`, as for
run-parts(8): what Debian and RHEL skip is skipped here too, but reported.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import NamedTuple

from resilience.cron.records import Entry, EntryOptions, Ignored, Kind
from resilience.cron.table.options import MARK, parse_options
from resilience.cron.table.policy import Refusal
from resilience.errors import UsageError
from resilience.messages import quoted

SCHEDULES = {
    "cron.minutely": "* * * * *",
    "cron.quarter_hourly": "*/15 * * * *",
    "cron.hourly": "@hourly",
    "cron.daily": "@daily",
    "cron.weekly": "@weekly",
    "cron.monthly": "@monthly",
}
"""Schedule of each drop-in directory."""

HEAD_BYTES = 4096
"""Bytes read of a file: its first line, and options in its first lines."""

HEAD_LINES = 30

SUBMITTED = (".slurm", ".sbatch")

LONGEST_NAME = 200
"""Of directory and file together: file names in the state directory are derived from it."""

_RUN_PARTS = r"[A-Za-z0-9_-]+"  # run-parts(8): "the names must consist entirely of ..."
_JOB_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_DOCUMENTS = r"(?i)(readme|license|licence|copying|changelog|notes|todo|makefile)([._-].*)?|.*\.(md|txt|rst|html|pdf)"
_LEFTOVERS = r".*(~|,|\.(bak|orig|old|rej|save|sw[a-p]|tmp|dpkg-[a-z]+|ucf-[a-z]+|rpmsave|rpmorig|rpmnew|cfsaved))|#.*#"
_SWAP = r"\..*\.sw[a-p]"
_OFF = r".*\.(off|disabled)"
_TYPES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Found(NamedTuple):
    """A name in a drop-in directory, and what was read there.

    Attributes:
        name: file name.
        directory: name of the directory: `cron.hourly`.
        path: absolute path.
        place: for display: `cron/cron.hourly/backup`.
        mode: mode of the target, as in stat(2).
        problem: why it could not be read, one sentence, such as a broken link; empty if it could.
        is_executable: whether the kernel would let us execute it.
        size_bytes: size of the file.
        head: its first HEAD_BYTES.
        refusal: why the policy rejects it.
    """

    name: str
    directory: str
    path: str
    place: str
    mode: int = 0
    problem: str = ""
    hint: str = ""
    is_executable: bool = False
    size_bytes: int = 0
    head: bytes = b""
    refusal: Refusal | None = None


def judge(found: Found, default: EntryOptions) -> Entry | Ignored:
    """Return the entry that a name in a drop-in directory defines, or why it is ignored."""

    def ignore(reason: str, hint: str = "", *, is_fault: bool = False) -> Ignored:
        return Ignored(found.place, reason, hint, is_fault)

    by_name = _judge_name(found)
    if by_name is not None:
        return by_name
    if found.problem:
        return ignore(found.problem, found.hint, is_fault=True)
    if not stat.S_ISREG(found.mode):
        return ignore(f"it is {_TYPES.get(stat.S_IFMT(found.mode), 'not a file')}: only files run")
    kind = Kind.SUBMIT if found.name.endswith(SUBMITTED) else Kind.RUN
    if kind is Kind.RUN and not found.is_executable:
        return _not_executable(found)
    if kind is Kind.RUN and not re.fullmatch(_RUN_PARTS, found.name):
        clean = re.sub(r"[^A-Za-z0-9_-]+", "-", re.sub(r"\.[A-Za-z0-9]+$", "", found.name)).strip("-") or "drop-in"
        return ignore(
            "its name has characters other than letters, digits, `-` and `_`, which run-parts skips",
            f"rename it: {clean}",
            is_fault=True,
        )
    content = _judge_content(found, kind)
    if content is not None:
        return ignore(*content, is_fault=True)
    if found.refusal is not None:
        return ignore(found.refusal.reason, found.refusal.hint, is_fault=True)
    try:
        options = parse_options(" ".join(_option_lines(found.head)), default)
        if options.name:
            raise UsageError("the name of a drop-in is its file name: option `name` is invalid", hint="rename the file")
    except UsageError as error:
        return ignore(error.message, error.hint, is_fault=True)
    return Entry(
        name=f"{found.directory}/{found.name}",
        place=found.place,
        schedule=SCHEDULES[found.directory],
        kind=kind,
        argv=(found.path,),
        path=found.path,
        options=options.options,
    )


def without_duplicates(found: Iterable[Entry | Ignored]) -> Iterator[Entry | Ignored]:
    """Of `watch` and `watch.slurm` in one directory, keep only the job.

    Shipped drop-ins exist in both forms, and both together would do everything twice.
    """
    kept = tuple(found)
    jobs = {one.name.rpartition(".")[0]: one for one in kept if isinstance(one, Entry) and one.kind is Kind.SUBMIT}
    for one in kept:
        job = jobs.get(one.name) if isinstance(one, Entry) else None
        if isinstance(one, Entry) and job is not None:
            job_file = job.name.rpartition("/")[2]
            reason, hint = (
                f"{job_file} in the same directory is submitted instead",
                f"remove or rename one of them: rm {quoted(one.place)}",
            )
            yield Ignored(one.place, reason, hint, is_fault=True)
        else:
            yield one


def _judge_name(found: Found) -> Ignored | None:
    """Return files ignored because of their name alone."""
    name, place = found.name, found.place
    if re.fullmatch(_SWAP, name):
        return Ignored(place, "it is an editor's swap file: a file is being edited, or the editor crashed")
    if name.startswith("."):
        return Ignored(place, "it is hidden")
    if re.fullmatch(_OFF, name):
        return Ignored(place, "it is disabled by its name", f"rename it: {name.rpartition('.')[0]}")
    if re.fullmatch(_LEFTOVERS, name):
        return Ignored(place, "it was left behind by an editor or a package")
    if re.fullmatch(_DOCUMENTS, name):
        return Ignored(place, "it is documentation")
    if len(f"{found.directory}/{name}".encode("utf-8", "surrogateescape")) > LONGEST_NAME:
        return Ignored(place, f"its name is longer than {LONGEST_NAME} characters", "rename it", True)
    if name in {f"*{suffix}" for suffix in SUBMITTED}:
        return Ignored(place, "its name is an unexpanded shell pattern", f"rm {quoted(found.path)}")
    if name.lower().endswith(SUBMITTED) and not name.endswith(SUBMITTED):
        return Ignored(place, "only `.slurm` and `.sbatch` are submitted", f"rename it: {name.lower()}", True)
    if name.endswith(SUBMITTED) and not re.fullmatch(_JOB_NAME, name):
        return Ignored(place, "its name may only contain letters, digits, `-`, `_` and `.`", "rename it", True)
    return None


def _not_executable(found: Found) -> Ignored:
    """Return why a file without x permission is ignored: it may be disabled, or not yet complete."""
    if found.mode & 0o111:
        reason = "executing it is not permitted: its file system may be mounted noexec, or it belongs to another user"
        return Ignored(found.place, reason, "mount | grep noexec; or write `sh PATH` into the crontab", True)
    if found.head.startswith(b"#!") or re.fullmatch(_RUN_PARTS, found.name):
        return Ignored(found.place, "it is not executable", f"to run it: chmod +x {quoted(found.path)}")
    return Ignored(found.place, "it is not executable, and run-parts would skip its name")


def _judge_content(found: Found, kind: Kind) -> tuple[str, str] | None:
    """Return why a file cannot run, from its first bytes: reason and hint."""
    if not found.size_bytes:
        return "it is empty", "add content, or remove it"
    head = found.head
    if head.startswith(b"\xef\xbb\xbf#!"):
        return (
            "it begins with a byte order mark, which hides its `#!`",
            f"sed -i '1s/^\\xef\\xbb\\xbf//' {quoted(found.path)}",
        )
    first = head.partition(b"\n")[0]
    if first.startswith(b"#!") and first.endswith(b"\r"):
        return "it has Windows line endings, so its interpreter is not found", f"sed -i 's/\\r$//' {quoted(found.path)}"
    if kind is Kind.SUBMIT and not first.startswith(b"#!"):
        return "it does not begin with `#!`, so sbatch rejects it", "begin it with `#!/bin/bash`"
    if kind is Kind.SUBMIT and b"\r\n" in head:
        return "it has Windows line endings, so sbatch rejects it", f"sed -i 's/\\r$//' {quoted(found.path)}"
    if kind is Kind.RUN and not first.startswith(b"#!") and not head.startswith(b"\x7fELF"):
        # execve(2), ENOEXEC. A shell would run it as a shell script, but no shell is set.
        return "it does not begin with `#!`, so the kernel cannot execute it", "begin it with `#!/bin/sh`"
    if first.startswith(b"#!") and not first[2:].split():
        return "its `#!` names no interpreter", "begin it with `#!/bin/sh`"
    return None


def _option_lines(head: bytes) -> list[str]:
    """Return the text after `# resil:` in the first lines."""
    if head.startswith(b"\x7fELF"):
        return []
    lines = head.split(b"\n")[:HEAD_LINES]
    if len(head) >= HEAD_BYTES:
        lines = lines[:-1] or lines  # the last one may be cut in the middle
    comments = (re.fullmatch(rf"{MARK}(.*)", line.strip().decode("utf-8", "replace")) for line in lines)
    return [comment[1] for comment in comments if comment]


def shown(name: str) -> str:
    """Return a file name for display: control characters and bytes that are not UTF-8 are escaped."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_LINES = {"cron.d": "crontab", "crontabs": "crontab"}


def judge_unknown(name: str, place: str, mode: int | None) -> Ignored | None:
    """Return why something in the cron directory that is neither the crontab nor a drop-in directory is ignored; None:
    not reported.

    `mode` is the mode of the target, as in stat(2); None for a broken link.
    """
    if name.startswith("."):
        return None
    if mode is None:
        return Ignored(place, "it is a broken symbolic link")
    meant = _probable_name(name)
    if meant and (stat.S_ISDIR(mode) or meant == "crontab"):
        if meant == "crontab":
            return Ignored(place, "only the file `crontab` is read", "did you mean crontab?", True)
        directories = ", ".join(SCHEDULES)
        return Ignored(place, f"unknown directory; there are {directories}", f"did you mean {meant}?", True)
    if stat.S_ISDIR(mode):
        return Ignored(place, "it is not a drop-in directory")
    if stat.S_ISREG(mode) and (name.endswith(SUBMITTED) or mode & 0o100) and "*" not in name:
        hint = f"move it, for instance: mv {quoted(place)} {quoted(PurePath(place).parent)}/cron.hourly/"
        return Ignored(place, "it is not in a drop-in directory", hint, True)
    return Ignored(place, "it is neither a crontab nor a drop-in")


def _probable_name(name: str) -> str:
    """Return the name that was probably meant; empty: none."""
    from difflib import get_close_matches

    if name in _LINES:
        return _LINES[name]
    lower = name.lower().replace("-", "_")
    if lower == "crontab" or (re.fullmatch(r"crontab\.(txt|conf|cron)|cron_?tab|cron\.tab", lower)):
        return "crontab"
    candidates = dict.fromkeys([lower, f"cron.{lower}", lower.replace("_", ".", 1)])
    for candidate in candidates:
        if candidate in SCHEDULES:
            return candidate
    # `cron.fortnightly`, `cron.houry`: probably meant to run.
    if lower.startswith(("cron.", "cron_")):
        return next(iter(get_close_matches(lower, SCHEDULES, n=1, cutoff=0.0)))
    close = get_close_matches(f"cron.{lower}", SCHEDULES, n=1, cutoff=0.9)
    return close[0] if close else ""
