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

from resilience.cron.records import Entry, Ignored, Kind
from resilience.cron.table.expression import parse_schedule
from resilience.cron.table.options import MARK, entry_options
from resilience.cron.table.policy import Refusal
from resilience.errors import UsageError
from resilience.messages import nearest, quoted
from resilience.settings.cron_settings import CronSettings

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
_JOB_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*(\.slurm|\.sbatch)"
_HARMLESS = {
    r"\..*\.sw[a-p]": "it is an editor's swap file: a file is being edited, or the editor crashed",
    r"\..*": "it is hidden",
    r".*\.(off|disabled)": "it is disabled by its name",
    r".*(~|,|\.(bak|orig|old|rej|save|sw[a-p]|tmp|dpkg-[a-z]+|ucf-[a-z]+|rpmsave|rpmorig|rpmnew|cfsaved))|#.*#": (
        "it was left behind by an editor or a package"
    ),
    r"(?i)(readme|license|licence|copying|changelog|notes|todo|makefile)([._-].*)?|.*\.(md|txt|rst|html|pdf)": (
        "it is documentation"
    ),
}
"""Names that were never meant to run."""
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

    @property
    def kind(self) -> Kind:
        """How it would be started."""
        return Kind.SUBMIT if self.name.endswith(SUBMITTED) else Kind.RUN


def judge(found: Found, settings: CronSettings) -> Entry | Ignored:
    """Return the entry that a name in a drop-in directory defines, or why it is ignored."""
    for reason, hint, is_fault in _objections(found):
        return Ignored(found.place, reason, hint, is_fault)
    schedule = parse_schedule(SCHEDULES[found.directory])
    try:
        options = entry_options(" ".join(_option_lines(found.head)), settings, schedule, is_drop_in=True)
        if options.name:
            raise UsageError("the name of a drop-in is its file name: option `name` is invalid", hint="rename the file")
    except UsageError as error:
        return Ignored(found.place, error.message, error.hint, True)
    return Entry(
        name=f"{found.directory}/{found.name}",
        place=found.place,
        schedule=schedule.text,
        kind=found.kind,
        argv=(found.path,),
        path=found.path,
        options=options.options,
    )


def _objections(found: Found) -> Iterator[tuple[str, str, bool]]:
    """Yield why a file is ignored: reason, hint, and whether it was probably meant to run. The first counts."""
    name, is_job = found.name, found.kind is Kind.SUBMIT
    for pattern, reason in _HARMLESS.items():
        if re.fullmatch(pattern, name):
            yield reason, f"rename it: {name.rpartition('.')[0]}" if "disabled" in reason else "", False
    if len(f"{found.directory}/{name}".encode("utf-8", "surrogateescape")) > LONGEST_NAME:
        yield f"its name is longer than {LONGEST_NAME} characters", "rename it", True
    if name in ("*.slurm", "*.sbatch"):
        yield "its name is an unexpanded shell pattern", f"rm {quoted(found.path)}", False
    if name.lower().endswith(SUBMITTED) and not is_job:
        yield "only `.slurm` and `.sbatch` are submitted", f"rename it: {name.lower()}", True
    if is_job and not re.fullmatch(_JOB_NAME, name):
        yield "its name may only contain letters, digits, `-`, `_` and `.`", "rename it", True
    if found.problem:
        yield found.problem, found.hint, True
    if not stat.S_ISREG(found.mode):
        yield f"it is {_TYPES.get(stat.S_IFMT(found.mode), 'not a file')}: only files run", "", False
    if not is_job and not found.is_executable:
        if found.mode & 0o111:
            reason = (
                "executing it is not permitted: its file system may be mounted noexec, or it belongs to another user"
            )
            yield reason, "mount | grep noexec; or write `sh PATH` into the crontab", True
        if found.head.startswith(b"#!") or re.fullmatch(_RUN_PARTS, name):
            yield "it is not executable", f"to run it: chmod +x {quoted(found.path)}", False
        yield "it is not executable, and run-parts would skip its name", "", False
    if not is_job and not re.fullmatch(_RUN_PARTS, name):
        clean = re.sub(r"[^A-Za-z0-9_-]+", "-", re.sub(r"\.[A-Za-z0-9]+$", "", name)).strip("-") or "drop-in"
        reason = "its name has characters other than letters, digits, `-` and `_`, which run-parts skips"
        yield reason, f"rename it: {clean}", True
    yield from ((*objection, True) for objection in _objections_to_content(found, is_job=is_job))
    if found.refusal is not None:
        yield *found.refusal, True


def _objections_to_content(found: Found, *, is_job: bool) -> Iterator[tuple[str, str]]:
    """Yield why the kernel or sbatch would reject a file, from its first bytes: reason and hint."""
    head, first = found.head, found.head.partition(b"\n")[0]
    is_script = first.startswith(b"#!")
    if not found.size_bytes:
        yield "it is empty", "add content, or remove it"
    if head.startswith(b"\xef\xbb\xbf#!"):
        yield (
            "it begins with a byte order mark, which hides its `#!`",
            rf"sed -i '1s/^\xef\xbb\xbf//' {quoted(found.path)}",
        )
    if is_script and first.endswith(b"\r"):
        yield "it has Windows line endings, so its interpreter is not found", rf"sed -i 's/\r$//' {quoted(found.path)}"
    if is_job and not is_script:
        yield "it does not begin with `#!`, so sbatch rejects it", "begin it with `#!/bin/bash`"
    if is_job and b"\r\n" in head:
        yield "it has Windows line endings, so sbatch rejects it", rf"sed -i 's/\r$//' {quoted(found.path)}"
    if not is_script and not head.startswith(b"\x7fELF"):
        # execve(2), ENOEXEC. A shell would run it as a shell script, but a drop-in is started without one.
        yield "it does not begin with `#!`, so the kernel cannot execute it", "begin it with `#!/bin/sh`"
    if is_script and not first[2:].split():
        yield "its `#!` names no interpreter", "begin it with `#!/bin/sh`"


def _option_lines(head: bytes) -> list[str]:
    """Return the text after `# resil:` in the first lines."""
    if head.startswith(b"\x7fELF"):
        return []
    lines = head.split(b"\n")[:HEAD_LINES]
    if len(head) >= HEAD_BYTES:
        lines = lines[:-1] or lines  # the last one may be cut in the middle
    comments = (re.fullmatch(rf"{MARK}(.*)", line.strip().decode("utf-8", "replace")) for line in lines)
    return [comment[1] for comment in comments if comment]


def without_duplicates(found: Iterable[Entry | Ignored]) -> Iterator[Entry | Ignored]:
    """Of `watch` and `watch.slurm` in one directory, keep only the job.

    Shipped drop-ins exist in both forms, and both together would do everything twice.
    """
    kept = tuple(found)
    jobs = {one.name.rpartition(".")[0]: one for one in kept if isinstance(one, Entry) and one.kind is Kind.SUBMIT}
    for one in kept:
        job = jobs.get(one.name) if isinstance(one, Entry) else None
        if job is None:
            yield one
        else:
            reason = f"{PurePath(job.name).name} in the same directory is submitted instead"
            yield Ignored(one.place, reason, f"remove or rename one of them: rm {quoted(one.place)}", is_fault=True)


def shown(name: str) -> str:
    """Return a file name for display: control characters and bytes that are not UTF-8 are escaped."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def judge_unknown(name: str, place: str, mode: int | None) -> Ignored | None:
    """Return why something in the cron directory that is neither the crontab nor a drop-in directory is ignored; None:
    not reported.

    `mode` is the mode of the target, as in stat(2); None for a broken link.
    """
    if name.startswith("."):
        return None
    if mode is None:
        return Ignored(place, "it is a broken symbolic link")
    if re.fullmatch(r"(?i)crontabs?|crontab\.(txt|conf|cron)|cron[_-]?tab|cron\.(tab|d)", name):
        return Ignored(place, "only the file `crontab` is read", "did you mean crontab?", True)
    if stat.S_ISDIR(mode):
        # `cron.fortnightly` and `cron_houry` were probably meant to run; of others, only what is nearly a name.
        prefix, word = re.fullmatch(r"(cron[._-])?(.*)", name.lower()).groups()  # type: ignore[union-attr]
        meant = nearest(f"cron.{word.replace('-', '_')}", SCHEDULES, cutoff=0.0 if prefix else 0.9)
        if not meant:
            return Ignored(place, "it is not a drop-in directory")
        return Ignored(place, f"unknown directory; there are {', '.join(SCHEDULES)}", f"did you mean {meant}?", True)
    if stat.S_ISREG(mode) and (name.endswith(SUBMITTED) or mode & 0o100) and "*" not in name:
        hint = f"move it, for instance: mv {quoted(place)} {quoted(PurePath(place).parent)}/cron.hourly/"
        return Ignored(place, "it is not in a drop-in directory", hint, True)
    return Ignored(place, "it is neither a crontab nor a drop-in")
