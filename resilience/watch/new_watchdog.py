"""`resil watch --new NAME`: writes a watchdog and its test, which work as they stand and are to be changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from resilience.errors import UsageError
from resilience.system.files import make_directory, write_atomic

DIRECTORY = "resil_plugins"
"""The plugin directory of a project, if $RESIL_PLUGINS names none."""

WATCHDOG = '''\
"""Checks how busy a host is. An example: change what `probe` measures, and what `judge` says about it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resilience.plugin import Context, Figure, Finding, Memory, ProbeError, Target, Timed, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CLASSSettings:
    """Thresholds for the load of this host. Each field is an option, and a key of [watch.NAME] in resil.toml.

    Attributes:
        hosts: the names to report; each stands for this host.
        warn_load: a WARNING above this many runnable processes per core.
        crit_load: CRITICAL above this many.
    """

    hosts: tuple[str, ...] = ("this host",)
    warn_load: float = 50.0
    crit_load: float = 200.0


@dataclass(frozen=True, slots=True)
class CLASSReading:
    """The result of one probe: plain values only, because readings are stored as JSON."""

    load: float


class CLASSCheck:
    """The load, per host."""

    summary = "how busy this host is"
    Settings = CLASSSettings
    Reading = CLASSReading
    memory = Memory(count=1)
    argument = "hosts"
    example = "resil watch NAME --warn-load 20"

    def targets(self, settings: CLASSSettings, context: Context) -> Sequence[Target]:
        """Name the targets. Touch nothing that may hang here."""
        return [Target(host) for host in settings.hosts]

    def probe(
        self, target: Target, settings: CLASSSettings, context: Context, before: Mapping[str, Timed[CLASSReading]]
    ) -> Mapping[str, CLASSReading]:
        """Measure one target, in a child process with a deadline. Raise ProbeError if there is no answer."""
        try:
            return {target.name: CLASSReading(os.getloadavg()[0] / (os.cpu_count() or 1))}
        except OSError as error:
            raise ProbeError(f"the load cannot be read: {error}") from error

    def judge(
        self, subject: str, readings: Sequence[Timed[CLASSReading]], settings: CLASSSettings, now: float
    ) -> Sequence[Finding]:
        """Judge the newest reading, which is the last. Do no I/O here."""
        load = readings[-1].reading.load
        figure = Figure(label="load", value=load, warn=settings.warn_load, crit=settings.crit_load, minimum=0)
        verdict = (
            Verdict.CRITICAL if load > settings.crit_load
            else Verdict.WARNING if load > settings.warn_load
            else Verdict.OK
        )
        return [
            Finding(
                subject=subject,
                verdict=verdict,
                fault="" if verdict is Verdict.OK else "busy",
                summary=f"{load:.1f} runnable processes per core",
                figures=(figure,),
                looked=("the load average of the last minute, divided by the number of cores",),
            )
        ]


CHECK = CLASSCheck()
'''

TEST = '''\
"""Tests the watchdog NAME. Run it with pytest, or as a program."""

from pathlib import Path

from resilience.plugin import Family, Target, Timed, Verdict

CHECK = Family("checks", "CHECK", (Path(__file__).parent,)).load("NAME")  # also checks its attributes and methods


def verdict_of(load):
    (finding,) = CHECK.judge("this host", [Timed(0.0, CHECK.Reading(load))], CHECK.Settings(), now=0.0)
    return finding.verdict


def test_the_load_is_judged_by_the_thresholds():
    assert verdict_of(0.5) is Verdict.OK
    assert verdict_of(51.0) is Verdict.WARNING
    assert verdict_of(201.0) is Verdict.CRITICAL


def test_this_host_can_be_probed():
    (reading,) = CHECK.probe(Target("this host"), CHECK.Settings(), None, {}).values()
    assert reading.load >= 0


if __name__ == "__main__":
    for name, test in [*globals().items()]:
        if name.startswith("test_"):
            test()
            print(f"{name}: passed")
'''


class NewWatchdog(NamedTuple):
    """The files of a new watchdog.

    Attributes:
        directory: the plugin directory, to be named in $RESIL_PLUGINS.
        watchdog, test: the files that were written.
    """

    directory: Path
    watchdog: Path
    test: Path


def write_watchdog(name: str, directory: Path, taken: tuple[str, ...]) -> NewWatchdog:
    """Write a watchdog and its test into a plugin directory.

    Raise UsageError for a name that is not usable or is in `taken`, and if one of the files exists; StateDirectoryError
    if they cannot be written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        raise UsageError(
            f"{name!r} is no name for a watchdog: small letters, digits and _ only, a letter first",
            hint="resil watch --new licence",
        )
    new = NewWatchdog(directory, directory / "checks" / f"{name}.py", directory / f"test_{name}.py")
    if existing := [path for path in new[1:] if path.exists()]:
        raise UsageError(f"{existing[0]} exists", hint="choose another name, or remove the file")
    if name in taken:
        raise UsageError(
            f"there is a watchdog {name!r} already", hint="choose another name; list them: resil watch --list"
        )
    make_directory(new.watchdog.parent, mode=0o755)
    class_name = "".join(part.capitalize() for part in name.split("_"))
    for path, text in ((new.watchdog, WATCHDOG), (new.test, TEST)):
        write_atomic(path, text.replace("CLASS", class_name).replace("NAME", name), mode=0o644)
    return new
