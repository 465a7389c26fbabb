"""A plugin is checked when it is loaded: the error names the file, the line and the expectation, and hurts no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from resilience.errors import UsageError
from resilience.plugins import Family
from tests.contract.watchdogs import GUIDE, REPOSITORY
from tests.test_plugins import SOUND

(WATCHDOG,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
DRIVER = """
from resilience.plugin import Availability

class Nohup:
    summary = "a loop"
    rank = 90
    def availability(self, context): return Availability(True, "always")
    def plan(self, installation, settings, context): return []
    def install(self, installation, settings, context): return []
    def uninstall(self, installation, settings, context): return []
    def state(self, installation, settings, context): ...

DRIVER = Nohup()
"""
SCHEDULER = """
from resilience.plugin import LocalScheduler

class Other(LocalScheduler):
    name = "other"

SCHEDULER = Other
"""
KINDS = {
    "checks": ("CHECK", WATCHDOG),
    "channels": ("CHANNEL", SOUND),
    "drivers": ("DRIVER", DRIVER),
    "schedulers": ("SCHEDULER", SCHEDULER),
}


def load(directory: Path, kind: str, content: str) -> object:
    """Load a plugin `mine` of this kind and content."""
    path = directory / kind / "mine.py"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    return Family(kind, KINDS[kind][0], (directory,)).load("mine")


def refused(directory: Path, kind: str, content: str) -> tuple[str, str, str]:
    """Return the line that the error names, the line's text, the message and the hint."""
    with pytest.raises(UsageError) as caught:
        load(directory, kind, content)
    place = re.search(re.escape(f"{directory / kind / 'mine.py'}:") + r"(\d+): ", caught.value.message)
    assert place, caught.value.message
    return content.split("\n")[int(place[1]) - 1], caught.value.message, caught.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_plugin_is_loaded(tmp_path: Path, kind: str) -> None:
    assert load(tmp_path, kind, KINDS[kind][1])


@pytest.mark.parametrize(
    ("kind", "sound", "broken", "line", "said", "hint"),
    [
        (
            "checks",
            'summary = "lic',
            'sumary = "lic',
            "sumary",
            "LicenceCheck has no attribute summary",
            "rename sumary",
        ),
        (
            "checks",
            'summary = "licences that are left"',
            "",
            "class LicenceCheck",
            "no attribute summary",
            "add summary",
        ),
        ("checks", 'summary = "licences that are left"', "summary = 5", "summary = 5", "= 5 must be a text", ""),
        ("checks", "memory = Memory(count=2)", "memory = 2", "memory = 2", "must be a Memory", ""),
        ("checks", "Settings = Lic", "Setings = Lic", "Setings", "no attribute Settings", "rename Setings to Settings"),
        ("checks", "Settings = LicenceSettings", "Settings = {}", "Settings = {}", "must be a frozen dataclass", ""),
        ("checks", "Reading = LicenceReading", "Reading = int", "Reading = int", "must be a frozen dataclass", ""),
        (
            "checks",
            'argument = "servers"',
            'argument = "server"',
            "argument =",
            "no field of LicenceSettings",
            "servers",
        ),
        ("checks", 'argument = "servers"', "argument = None", "argument =", "None must be a text", ""),
        ("checks", "warn_free: int = 4", "warn_free: int", "warn_free: int", "needs a default", ""),
        (
            "checks",
            "servers: tuple[str, ...] = ()",
            "servers: list[str] | None = None; extra: list = None",
            "extra: list",
            "must be a tuple",
            "",
        ),
        ("checks", "def judge(", "def jugde(", "def jugde(", "no method judge(self, subject, readings", "rename jugde"),
        (
            "checks",
            "def targets(self, settings: LicenceSettings, context: Context)",
            "def targets(self, settings)",
            "def targets(self, settings)",
            "cannot be called with (settings, context)",
            "def targets(self, settings, con",
        ),
        (
            "checks",
            "CHECK = LicenceCheck()",
            "CHECK = LicenceCheck",
            "class LicenceCheck",
            "is the class",
            "CHECK = Lic",
        ),
        (
            "checks",
            "from resilience.plugin import Context",
            "import nowhere_at_all\nfrom resilience.plugin import Context",
            "import nowhere_at_all",
            "ModuleNotFoundError: No module named 'nowhere_at_all'",
            "all other plugins keep",
        ),
        ("checks", "class LicenceCheck:", "class LicenceCheck", "class LicenceCheck", "SyntaxError: expected ':'", ""),
        ("checks", "CHECK = LicenceCheck()", "CHECK = LicenceCheck(1 / 0)", "CHECK =", "ZeroDivisionError", ""),
        ("channels", "def send(self, message", "def sent(self, message", "def sent", "no method send(", "rename sent"),
        (
            "channels",
            "def send(self, message, settings, system)",
            "def send(self, message)",
            "def send(self, message)",
            "cannot be called with (message, settings, system)",
            "def send(self, message, settings, system)",
        ),
        (
            "channels",
            "def check(self, settings): ...",
            "check = None",
            "check = None",
            "= None must be a method",
            "def ch",
        ),
        ("channels", 'url: str = ""', "url: str", "url: str", "Settings.url needs a default", ""),
        ("drivers", "rank = 90", 'rank = "high"', "rank =", "= 'high' must be a whole number", ""),
        (
            "drivers",
            "def state(",
            "def status(",
            "def status(",
            "has no method state(self, installation",
            "rename status",
        ),
        (
            "schedulers",
            "class Other(LocalScheduler):",
            "class Other:",
            "class Other:",
            "has no method submit(",
            "add su",
        ),
        (
            "schedulers",
            'name = "other"',
            "def cancel(self): ...",
            "def cancel(self)",
            "cannot be called with (self, job",
            "def cancel(self, job_ids, pending_only)",
        ),
    ],
)
def test_an_unsound_plugin_is_refused_with_the_line_and_the_expectation(
    tmp_path: Path, kind: str, sound: str, broken: str, line: str, said: str, hint: str
) -> None:
    content = KINDS[kind][1]
    assert sound in content
    at, message, advice = refused(tmp_path, kind, content.replace(sound, broken))
    assert line in at
    assert said in message
    assert hint in advice


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_that_is_missing_or_mistyped_is_named(tmp_path: Path, kind: str) -> None:
    constant, content = KINDS[kind]
    with pytest.raises(UsageError, match=f"mine.py: there is no {constant}") as caught:
        load(tmp_path, kind, content.replace(f"\n{constant} =", f"\n{constant}S ="))
    assert caught.value.hint == f"did you mean {constant}S?"


def test_a_scheduler_that_hands_its_methods_on_is_loaded(tmp_path: Path) -> None:
    guide = (REPOSITORY / "docs" / "how-to" / "add-a-scheduler.md").read_text()
    assert load(tmp_path, "schedulers", re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0])
