"""Evidence about nodes, and the folder that keeps it for all runs of a cluster, or of a group.

Each record is a file of its own that is written once and never changed, so that any number of jobs, watchdogs and users
may write at the same time over NFS without a lock. Its name has the time and a digest of what it is about: whoever sees
the same failure writes the same file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resilience.errors import StateDirectoryError
from resilience.records import from_record, to_json, to_record
from resilience.runs.run_directory import make_shared_directory
from resilience.system.files import explain_os_error, read_regular, short_digest, write_atomic

if TYPE_CHECKING:
    from resilience.runs.project import Project

KEPT_S = 60 * 86400.0
"""Older records are removed: twice as long as the longest exclusion and its probation (standing.py)."""
MOST_READ = 5000
"""Facts; the decisions of people are read in any case."""
AHEAD_S = 300.0
"""Clocks of nodes may differ by this."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}")
_LAST = 1e11
"""No time is later; iso_time fails beyond the year 9999."""
_NAME = re.compile(r"(\d{10,12})\.([0-9a-f]{16})(\.person)?\.json")


def is_node_name(text: str) -> bool:
    """Return whether a node may have this name."""
    return _HOST.fullmatch(text) is not None


class Source(StrEnum):
    """Where evidence comes from, or which decision of a person it is."""

    NAMED = "named"
    """A failure names the node."""
    COMMON = "common"
    """Several failed attempts had the node, and none that made progress."""
    CHECK = "check"
    """It failed `resil nodes check`."""
    XID = "xid"
    """NVIDIA's driver says that the hardware failed."""
    SOFT_XID = "soft_xid"
    """A fault of the GPU for which a restart of the program suffices, says NVIDIA."""
    SDC = "sdc"
    """The guard of a training proved that it computed a wrong value: silent data corruption."""
    SLOW = "slow"
    """It delays the others."""
    EXCLUDED = "excluded"
    """A person excluded it, until `until`."""
    ALLOWED = "allowed"
    """A person allowed it: what was before counts no more."""
    AVOIDED = "avoided"
    """An attempt began on other nodes because of the exclusion."""
    USED = "used"
    """An attempt began there although it was excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One record.

    Attributes:
        node: its name in the scheduler.
        time: seconds since the epoch: of the failure, not of the record.
        why: the reason in words, for people.
        about: what it is about: a run directory and an attempt, a job. The same fact is recorded once.
        run, job: the run's name and the displayed id of the job; empty: none.
        by: login name of the writer.
        share: one divided by the number of nodes that may be the cause.
        until: of EXCLUDED: when it ends.
    """

    node: str
    time: float
    source: Source
    why: str
    about: str
    run: str = ""
    job: str = ""
    by: str = ""
    share: float = 1.0
    until: float = 0.0

    @property
    def key(self) -> str:
        """Return what is the same for the same fact."""
        return short_digest(f"{self.node}\n{self.source}\n{self.about}".encode())


DECISIONS = {Source.EXCLUDED, Source.ALLOWED}


class _Name(NamedTuple):
    name: str
    key: str
    is_by_person: bool


class Found(NamedTuple):
    """What is in the folder.

    Attributes:
        evidence: the records, oldest first.
        damaged: names of files that are none.
        ahead: those of a clock that is ahead, on a file server whose clock is ahead as well: they do not count yet.
        older: how many facts were not read because there are too many.
    """

    evidence: tuple[Evidence, ...] = ()
    damaged: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    older: int = 0


@dataclass(frozen=True, slots=True)
class EvidenceFolder:
    """The folder.

    Attributes:
        path: on a file system that login nodes and nodes share.
        group: Unix group whose members share it; empty: it is private.
    """

    path: Path
    group: str = ""

    def read(self, now: float) -> Found:
        """Return the records that are not too old; none without a folder. Raise StateDirectoryError if that fails."""
        found: dict[str, Evidence] = {}
        damaged, ahead = [], []
        names = sorted(self._names(now), key=lambda one: (one.is_by_person, one.name))
        older = max(0, sum(not one.is_by_person for one in names) - MOST_READ)
        for name, key, _ in names[older:]:
            if key in found:
                continue  # written twice, at different times: of an attempt whose end was not known at first
            try:
                raw = read_regular(self.path / name, limit_bytes=2**16)
                if raw is not None:  # removed meanwhile
                    one = from_record(Evidence, json.loads(raw[0]), strict=True)
                    if not is_node_name(one.node) or not all(0 <= at < _LAST for at in (one.time, one.until)):
                        raise ValueError("not the name of a node, or no time")
                    early_s = one.time - raw[1].st_mtime if one.time > now + AHEAD_S else 0.0
                    if one.time - early_s > now + AHEAD_S:
                        ahead.append(name)
                        continue
                    found[key] = replace(one, time=one.time - early_s, until=max(0.0, one.until - early_s))
            except (StateDirectoryError, ValueError, TypeError, OverflowError, RecursionError):
                damaged.append(name)
        evidence = tuple(sorted(found.values(), key=lambda one: one.time))
        return Found(evidence, tuple(damaged), tuple(ahead), older)

    def add(self, evidence: Iterable[Evidence], now: float) -> int:
        """Write the records that are not there yet, and return how many. Remove those that are too old.

        What happened by a clock that is ahead, of a node for instance, happened now: nobody could allow it otherwise.
        Raise StateDirectoryError if one cannot be written.
        """
        new = {one.key: one for one in evidence if now - one.time < KEPT_S}
        if not new:
            return 0
        known = {one.key for one in self._names(now, removes=True)}
        new = {key: one for key, one in new.items() if key not in known}
        if new:
            make_shared_directory(self.path, self.group)
        mode = 0o660 if new and self._is_shared() else 0o600
        for key, one in new.items():
            one = replace(one, time=min(one.time, now))
            person = ".person" if one.source in DECISIONS else ""
            path = self.path / f"{max(0, round(one.time)):010d}.{key}{person}.json"
            write_atomic(path, to_json(to_record(one)), mode=mode, sweep=False)
        return len(new)

    def _is_shared(self) -> bool:
        """Return whether the group may write here: also where somebody else made the directory."""
        try:
            return bool(self.path.stat().st_mode & 0o020)
        except OSError as error:
            raise explain_os_error(error, "access", self.path) from error

    def _names(self, now: float, *, removes: bool = False) -> list[_Name]:
        """Return the names of the records; `removes` those that are too old and ours."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - names
        except FileNotFoundError:
            return []
        except OSError as error:
            raise explain_os_error(error, "read", self.path) from error
        found = []
        for name in names:
            if (match := _NAME.fullmatch(name)) is None:
                continue
            if now - float(match[1]) < KEPT_S:
                found.append(_Name(name, match[2], match[3] is not None))
            elif removes:
                with suppress(OSError):
                    (self.path / name).unlink()
        return found


def evidence_folder(project: Project) -> EvidenceFolder:
    """Return the folder of a project."""
    loaded = project.loaded
    return EvidenceFolder(loaded.evidence_path(project.system.host.home), loaded.settings.run.group)
