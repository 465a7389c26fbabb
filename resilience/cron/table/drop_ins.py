"""What a file in `cron.hourly` and its sisters means: it runs, it is submitted, or it is ignored and why. Pure.

`*.slurm` and `*.sbatch` are submitted; executables run whose name run-parts(8) takes, letters, digits, `-` and `_`:
so what Debian and RHEL would pass over is passed over here too, but not in silence.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from resilience.cron.records import Entry, EntryOptions, Ignored, Kind
from resilience.cron.table.options import MARK, parse_options
from resilience.cron.table.policy import Refusal
from resilience.errors import UsageError

SCHEDULES = {
    "cron.minutely": "* * * * *",
    "cron.quarter_hourly": "*/15 * * * *",
    "cron.hourly": "@hourly",
    "cron.daily": "@daily",
    "cron.weekly": "@weekly",
    "cron.monthly": "@monthly",
}
"""When what lies in a directory runs."""

HEAD_BYTES = 4096
"""So much of a file is looked at: its first line, and options among its first lines."""

HEAD_LINES = 30

SUBMITTED = (".slurm", ".sbatch")

LONGEST_NAME = 200
"""Of directory and file together: what is remembered of an entry lies in files called so, with some letters more."""

_RUN_PARTS = r"[A-Za-z0-9_-]+"  # run-parts(8): "the names must consist entirely of ..."
_JOB_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_PAPERS = r"(?i)(readme|license|licence|copying|changelog|notes|todo|makefile)([._-].*)?|.*\.(md|txt|rst|html|pdf)"
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
    """One name in a directory of drop-ins, and what was seen there.

    Attributes:
        name: the file's name.
        directory: the directory's name: `cron.hourly`.
        path: absolute.
        place: for people: `cron/cron.hourly/backup`.
        mode: of what the name leads to, as in stat(2).
        trouble: why it could not be looked at, one sentence: a link to nothing, for instance. Empty: it could.
        is_executable: whether the kernel would let us execute it.
        size_bytes: of the file.
        head: its first HEAD_BYTES.
        refusal: what the policy has against it.
    """

    name: str
    directory: str
    path: str
    place: str
    mode: int = 0
    trouble: str = ""
    hint: str = ""
    is_executable: bool = False
    size_bytes: int = 0
    head: bytes = b""
    refusal: Refusal | None = None


def judge(found: Found, default: EntryOptions) -> Entry | Ignored:
    """Say what a name in a directory of drop-ins means."""

    def ignore(reason: str, hint: str = "", *, is_fault: bool = False) -> Ignored:
        return Ignored(found.place, reason, hint, is_fault)

    by_name = _judge_name(found)
    if by_name is not None:
        return by_name
    if found.trouble:
        return ignore(found.trouble, found.hint, is_fault=True)
    if not stat.S_ISREG(found.mode):
        return ignore(f"it is {_TYPES.get(stat.S_IFMT(found.mode), 'no file')}: only files run")
    kind = Kind.SUBMIT if found.name.endswith(SUBMITTED) else Kind.RUN
    if kind is Kind.RUN and not found.is_executable:
        return _not_executable(found)
    if kind is Kind.RUN and not re.fullmatch(_RUN_PARTS, found.name):
        clean = re.sub(r"[^A-Za-z0-9_-]+", "-", re.sub(r"\.[A-Za-z0-9]+$", "", found.name)).strip("-") or "drop-in"
        return ignore(
            "a name with other than letters, digits, `-` and `_` is passed over, as run-parts does",
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
            raise UsageError("a drop-in is called by its file's name, and has no option name", hint="rename the file")
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


def leave_out_twins(found: Iterable[Entry | Ignored]) -> Iterator[Entry | Ignored]:
    """Of `watch` and `watch.slurm` in one directory, which are the same thing, only the job is kept.

    A drop-in ships as both, and both together would do everything twice.
    """
    kept = tuple(found)
    jobs = {one.name.rpartition(".")[0]: one for one in kept if isinstance(one, Entry) and one.kind is Kind.SUBMIT}
    for one in kept:
        twin = jobs.get(one.name) if isinstance(one, Entry) else None
        if isinstance(one, Entry) and twin is not None:
            beside = twin.name.rpartition("/")[2]
            reason, hint = f"{beside} beside it is submitted instead", f"remove or rename one of them: rm {one.place}"
            yield Ignored(one.place, reason, hint, is_fault=True)
        else:
            yield one


def _judge_name(found: Found) -> Ignored | None:
    """What is passed over for its name alone, whatever lies there."""
    name, place = found.name, found.place
    if re.fullmatch(_SWAP, name):
        return Ignored(place, "it is the swap file of an editor: somebody edits here, or it crashed")
    if name.startswith("."):
        return Ignored(place, "it is hidden")
    if re.fullmatch(_OFF, name):
        return Ignored(place, "it is switched off by its name", f"rename it: {name.rpartition('.')[0]}")
    if re.fullmatch(_LEFTOVERS, name):
        return Ignored(place, "it is what an editor or a package left behind")
    if re.fullmatch(_PAPERS, name):
        return Ignored(place, "it is for people to read")
    if len(f"{found.directory}/{name}".encode("utf-8", "surrogateescape")) > LONGEST_NAME:
        return Ignored(place, f"its name is longer than {LONGEST_NAME} characters", "rename it", True)
    if name in {f"*{suffix}" for suffix in SUBMITTED}:
        return Ignored(place, "its name is a pattern that a shell found nothing for", f"rm {_quoted(found.path)}")
    if name.lower().endswith(SUBMITTED) and not name.endswith(SUBMITTED):
        return Ignored(place, "only `.slurm` and `.sbatch` are submitted", f"rename it: {name.lower()}", True)
    if name.endswith(SUBMITTED) and not re.fullmatch(_JOB_NAME, name):
        return Ignored(place, "only letters, digits, `-`, `_` and `.` can be in its name", "rename it", True)
    return None


def _not_executable(found: Found) -> Ignored:
    """A file without its x bit: that is how one is switched off, and how one not yet complete waits."""
    if found.mode & 0o111:
        reason = "this machine lets nobody execute it: it may lie on a file system mounted noexec, or be another's"
        return Ignored(found.place, reason, "mount | grep noexec; or write `sh PATH` into the crontab", True)
    if found.head.startswith(b"#!") or re.fullmatch(_RUN_PARTS, found.name):
        return Ignored(found.place, "it is not executable", f"to have it run: chmod +x {_quoted(found.path)}")
    return Ignored(found.place, "it is not executable, and has no name that run-parts takes")


def _judge_content(found: Found, kind: Kind) -> tuple[str, str] | None:
    """What would keep a file from running, seen in its first bytes: reason and hint."""
    path = _quoted(found.path)
    if not found.size_bytes:
        return "it is empty", "write something into it, or remove it"
    head = found.head
    if head.startswith(b"\xef\xbb\xbf#!"):
        return "it begins with a byte order mark, so nobody sees its `#!`", f"sed -i '1s/^\\xef\\xbb\\xbf//' {path}"
    first = head.partition(b"\n")[0]
    if first.startswith(b"#!") and first.endswith(b"\r"):
        return "its lines end as on Windows, so its interpreter is not found", f"sed -i 's/\\r$//' {path}"
    if kind is Kind.SUBMIT and not first.startswith(b"#!"):
        return "it does not begin with `#!`, so sbatch refuses it", "begin it with `#!/bin/bash`"
    if kind is Kind.SUBMIT and b"\r\n" in head:
        return "its lines end as on Windows, so sbatch refuses it", f"sed -i 's/\\r$//' {path}"
    if kind is Kind.RUN and not first.startswith(b"#!") and not head.startswith(b"\x7fELF"):
        # execve(2), ENOEXEC. A shell would try it as a script of its own, and no shell was asked for.
        return "it begins with no `#!`, so nothing knows how to execute it", "begin it with `#!/bin/sh`"
    if first.startswith(b"#!") and not first[2:].split():
        return "its `#!` names no interpreter", "begin it with `#!/bin/sh`"
    return None


def _option_lines(head: bytes) -> list[str]:
    """What stands behind `# resil:` among the first lines of a text."""
    if head.startswith(b"\x7fELF"):
        return []
    lines = head.split(b"\n")[:HEAD_LINES]
    if len(head) >= HEAD_BYTES:
        lines = lines[:-1] or lines  # the last one may be cut in the middle
    comments = (re.fullmatch(rf"{MARK}(.*)", line.strip().decode("utf-8", "replace")) for line in lines)
    return [comment[1] for comment in comments if comment]


def shown(name: str) -> str:
    """A file's name, for people: what could move their cursor or is no UTF-8 is written out."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(shown(path))
