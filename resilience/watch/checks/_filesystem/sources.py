"""Asks who knows: the site's command, the file system's own quota tool, statvfs, and du where it is wanted.

Each tool has its own part of the time; one that fails, hangs or writes nonsense gives way to the next, which is told.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from resilience.base.mounts import Mount
from resilience.errors import ProbeError
from resilience.quantities import format_duration
from resilience.system.world import World
from resilience.watch.checks._filesystem.amount import BYTES, FILE_SYSTEM, INODES, Amount
from resilience.watch.checks._filesystem.look import Look

TOOL_S = 3.0
"""No quota tool gets more; lfs, quota and mmlsquota answer in tens of milliseconds where they answer."""
REGEX_CPU_S = 1.0
NO_LIMIT = 2**62
"""No file system has so many inodes."""

_PLAIN = {"LC_ALL": "C", "LANG": "C"}
"""The parsers read English."""
_NO_QUOTA = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "overlay", "aufs", "squashfs", "fuse", "iso9660", "9p", "virtiofs"}
)


@dataclass(slots=True, eq=False, repr=False)
class Asked:
    """What came of asking.

    Attributes:
        amounts: what is known, each scope once.
        looked: what was asked, and what it said, for `--explain`.
        deadline: on the monotonic clock: nothing is asked beyond it.
        failed: who was asked and gave no answer, and why.
    """

    world: World
    deadline: float
    amounts: list[Amount] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def fail(self, name: str, why: str) -> None:
        """Note that somebody gave no answer."""
        self.looked.append(f"{name}: {why}")
        self.failed[name] = why

    def run(self, argv: Sequence[str], *, most_s: float = TOOL_S, codes: tuple[int, ...] = (0,)) -> tuple[str, str]:
        """What a tool wrote. Raise ProbeError if it is missing, failed, or did not end in its part of the time."""
        left_s = self.deadline - self.world.clock.monotonic()
        if left_s < 0.05:
            raise ProbeError("no time was left to ask it")
        env = {**self.world.environ, **_PLAIN}
        done = self.world.runner.run(argv, timeout_s=min(most_s, left_s), env=env)
        if done.returncode not in codes:
            said = (done.stderr.strip() or done.stdout.strip()).split("\n")[0][:200]
            raise ProbeError(f"it ended with {done.returncode}{': ' + said if said else ''}")
        return done.stdout, done.stderr

    def try_one(self, name: str, ask: Callable[[], Sequence[Amount]]) -> bool:
        """Ask one source; say what came of it. Whether it knew an amount with a limit, or one at all."""
        try:
            found = ask()
        except ProbeError as error:
            self.fail(name, error.message)
            return False
        known = {amount.key: amount for amount in (*reversed(found), *reversed(self.amounts))}  # the first one counts
        self.amounts = list(reversed(known.values()))
        limits = sum(1 for amount in found if amount.limit is not None or amount.soft is not None)
        self.looked.append(f"{name}: {limits} limit{'' if limits == 1 else 's'}" if found else f"{name}: no quota here")
        return bool(limits)


def of_statvfs(status: os.statvfs_result) -> tuple[Amount, ...]:
    """What a file system says of itself, as `df` counts: used is what is not free, and what root keeps is no room.

    A file system that reports no inodes has no limit of them (btrfs, many network file systems).
    """
    unit = status.f_frsize or status.f_bsize
    used = float(max(0, status.f_blocks - status.f_bfree) * unit)
    room = float(max(0, status.f_bavail) * unit)
    files = float(max(0, status.f_files - status.f_ffree))
    left = float(max(0, status.f_favail))
    # CephFS says -1 for "as many as you like", and the field has no sign.
    has_limit = status.f_files > 0 and status.f_favail < NO_LIMIT
    files = files if status.f_ffree < NO_LIMIT else float(status.f_files)
    return (
        Amount(kind=BYTES, source="statvfs", scope=FILE_SYSTEM, used=used,
               limit=used + room if status.f_blocks else None),
        Amount(kind=INODES, source="statvfs", scope=FILE_SYSTEM, used=files,
               limit=files + left if has_limit else None),
    )  # fmt: skip


def ask_quota(asked: Asked, look: Look, paths: Sequence[str], mount: Mount | None) -> None:
    """Ask for the limits of mine at a path: the best source that answers, the others after it."""
    if look.site.argv:
        from resilience.watch.checks._filesystem import site

        site_argv = site.site_command(look.site, paths[0], asked.world.host.user)

        def ask_site() -> Sequence[Amount]:
            text = asked.run(site_argv)[0]
            with _bounded():
                return [site.parse_site(text, look.site, look.kind)]

        if asked.try_one(f"`{' '.join(site_argv)}`", ask_site):
            return
    if not look.asks_quota or mount is None or mount.type in _NO_QUOTA:
        return
    from resilience.watch.checks._filesystem.tools import folders_apart, tools_for

    for program, name, ask in tools_for(mount):
        if not _is_on_path(program, asked.world.environ.get("PATH", os.defpath)):
            asked.fail(name, f"{program} is not on PATH")
        elif asked.try_one(name, partial(ask, asked, folders_apart(paths), mount)):
            return


def ask_du(asked: Asked, look: Look, path: str, before: Mapping[str, float] | None) -> tuple[float, float] | None:
    """Count with du, or take the total of before while it is young enough; return (when, total).

    `before` has `time` and `total`. A du that does not end in time leaves the old total, with its age.
    """
    if look.du_limit is None:
        return None
    from resilience.watch.checks._filesystem import du

    now = asked.world.clock.now()
    old = (before["time"], before["total"]) if before and now >= before["time"] else None
    if old is not None and now - old[0] < look.du_every_s:
        asked.looked.append(f"du: counted {format_duration(now - old[0])} ago")
    else:
        try:
            text, errors = asked.run(du.du_command(path, look.kind), most_s=look.du_deadline_s, codes=(0, 1))
            amount = du.parse_du(text, errors, look.kind, look.du_limit)
            asked.amounts.append(amount)
            asked.looked.append(f"du: counted just now{'; ' + amount.note if amount.note else ''}")
            return now, amount.used
        except ProbeError as error:
            asked.fail(du.SOURCE, error.message)
    if old is not None:
        asked.amounts.append(Amount(kind=look.kind, source=du.SOURCE, scope="folder", used=old[1],
                                    limit=look.du_limit, age_s=now - old[0]))  # fmt: skip
    return old


@contextmanager
def _bounded() -> Iterator[None]:
    """Bound the processor time of a site's regular expressions: `(a+)+$` would search for ages, and nobody know why."""

    def stop(*_: object) -> None:
        raise ProbeError(f"its regular expression was not through what it printed after {REGEX_CPU_S:g} s: it "
                         "backtracks; avoid a repetition within a repetition, such as (a+)+")  # fmt: skip

    former = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, REGEX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def _is_on_path(program: str, path: str) -> bool:
    """Whether a program can be found; as shutil.which, which takes 3 ms to import."""
    return any(os.access(os.path.join(folder or ".", program), os.X_OK) for folder in path.split(os.pathsep))  # noqa: PTH118
