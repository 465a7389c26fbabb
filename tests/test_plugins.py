"""Adding one thing is adding one file: its name is the plugin's name."""

from __future__ import annotations

import os
import posix
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.errors import UsageError
from resilience.plugins import PACKAGES, PLUGIN_PATH, Family

Drop = Callable[[str, str], Path]

SOUND = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Settings:
    url: str = ""

class Pigeon:
    summary = "a carrier pigeon"
    Settings = Settings
    def check(self, settings): ...
    def compose(self, alert, settings, thread): ...
    def send(self, message, settings, system): ...

CHANNEL = Pigeon()
"""


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    """Drop a file of this content into a plugin directory of one's own."""
    directory = tmp_path / "plugins" / "channels"
    directory.mkdir(parents=True)
    monkeypatch.setenv(PLUGIN_PATH, str(tmp_path / "plugins"))

    def write(name: str, content: str) -> Path:
        path = directory / name
        path.write_text(content)
        return path

    return write


def channels() -> Family:
    return Family("channels", "CHANNEL")


def test_a_dropped_file_is_a_plugin_of_its_name(drop: Drop) -> None:
    drop("carrier_pigeon.py", SOUND)
    family = channels()
    assert "carrier_pigeon" in family.names()
    assert family.load("carrier_pigeon").summary == "a carrier pigeon"


def test_listing_names_imports_nothing(drop: Drop) -> None:
    drop("loud.py", "raise SystemError('imported')")
    assert "loud" in channels().names()


def test_a_plugin_is_loaded_once(drop: Drop) -> None:
    drop("counted.py", SOUND)
    family = channels()
    assert family.load("counted") is family.load("counted")


def test_a_plugins_classes_know_their_module(drop: Drop) -> None:
    """Dataclasses with text annotations look their module up in sys.modules."""
    drop("typed.py", "from __future__ import annotations\n" + SOUND)
    loaded = channels().load("typed")
    assert loaded.Settings().url == ""
    assert sys.modules[type(loaded).__module__].CHANNEL is loaded


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("CHANNEL = (", "SyntaxError"),
        ("OTHER = 1", "CHANNEL"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", r"it called os\._exit\(0\)"),
        ("from os import _exit; _exit(0)", r"it called os\._exit\(0\)"),
        ("raise ValueError('bad day')", "bad day"),
    ],
)
def test_a_broken_plugin_hurts_only_who_asks_for_it(drop: Drop, content: str, why: str) -> None:
    drop("broken.py", content)
    drop("sound.py", SOUND)
    family = channels()
    assert family.load("sound").summary == "a carrier pigeon"
    with pytest.raises(UsageError, match=why) as caught:
        family.load("broken")
    line = ":1: " if why != "CHANNEL" else ": "
    assert f"broken.py{line}" in caught.value.message, "it says which file and line"
    assert caught.value.__cause__ is not None
    assert "resil_plugins.channels.broken" not in sys.modules or why == "CHANNEL"


def test_a_plugin_may_fork_a_process_that_exits(drop: Drop) -> None:
    fork = "import os\npid = os.fork() or os._exit(7)\nassert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
    drop("forking.py", fork + SOUND)
    assert channels().load("forking").summary == "a carrier pigeon"
    assert os._exit is posix._exit


def test_a_broken_plugin_is_remembered_and_not_run_again(drop: Drop, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    drop("broken.py", f"with open({str(ran)!r}, 'a') as file:\n    file.write('x')\nraise ValueError('bad day')")
    family = channels()
    for _ in range(2):
        with pytest.raises(UsageError, match="bad day"):
            family.load("broken")
    assert ran.read_text() == "x"


def test_a_misspelt_name_is_answered_with_the_nearest(drop: Drop) -> None:
    drop("carrier_pigeon.py", "CHANNEL = 1")
    with pytest.raises(UsageError, match="'carrier_pidgeon'") as caught:
        channels().load("carrier_pidgeon")
    assert caught.value.hint == "did you mean carrier_pigeon?"


def test_a_name_like_no_other_is_answered_with_all(drop: Drop) -> None:
    drop("carrier_pigeon.py", "CHANNEL = 1")
    with pytest.raises(UsageError) as caught:
        channels().load("zzz")
    assert "carrier_pigeon" in caught.value.hint


def test_helpers_and_other_files_are_no_plugins(drop: Drop) -> None:
    before = channels().names()
    for name in ("_helper.py", "__init__.py", "notes.txt", "old.py.bak"):
        drop(name, "CHANNEL = 1")
    assert channels().names() == before


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A built-in family of a test's own: `resilience.testfamily` with `taken` and `own`."""
    directory = tmp_path / "package"
    directory.mkdir()
    (directory / "__init__.py").touch()
    for name in ("taken", "shared", "own"):
        (directory / f"{name}.py").write_text("WORD = 'built in'")
    (directory / "subpackage").mkdir()
    (directory / "subpackage" / "__init__.py").touch()
    module = type(sys)("resilience.testfamily")
    module.__path__ = [str(directory)]
    monkeypatch.setitem(sys.modules, "resilience.testfamily", module)
    monkeypatch.setitem(PACKAGES, "testfamily", ("resilience.testfamily",))
    for name in ("taken", "shared", "own"):
        monkeypatch.delitem(sys.modules, f"resilience.testfamily.{name}", raising=False)
    return "testfamily"


def test_entry_points_shadow_what_is_built_in_and_files_shadow_both(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("WORD = 'entry point'")
    monkeypatch.syspath_prepend(tmp_path)
    package_files = tmp_path / "outsiders-1.0.dist-info"  # a package as pip installs one
    package_files.mkdir()
    (package_files / "METADATA").write_text("Metadata-Version: 2.1\nName: outsiders\nVersion: 1.0\n")
    (package_files / "entry_points.txt").write_text(
        f"[console_scripts]\nx = outside:x\n\n[resil.{package}]\ntaken = outside:WORD\nshared = outside:WORD\n"
    )
    directories = []
    for order, names in enumerate([("shared", "later"), ("later",)]):
        directory = tmp_path / str(order)
        (directory / package).mkdir(parents=True)
        for name in names:
            (directory / package / f"{name}.py").write_text(f"WORD = 'directory {order}'")
        directories.append(directory)

    family = Family(package, "WORD", directories=tuple(directories))
    assert family.names() == ("later", "own", "shared", "taken")
    assert {name: family.load(name) for name in family.names()} == {
        "own": "built in",
        "taken": "entry point",
        "shared": "directory 0",
        "later": "directory 1",
    }


def test_where_no_package_offers_any_plugin_the_costly_way_to_ask_is_not_taken(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "importlib.metadata", raising=False)
    assert "own" in Family(package, "WORD", directories=()).names()
    assert "importlib.metadata" not in sys.modules


def test_several_directories_are_separated_by_colons_and_missing_ones_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGIN_PATH, f":{tmp_path / 'missing'}:{tmp_path / 'plugins'}:")
    (tmp_path / "plugins" / "channels").mkdir(parents=True)
    (tmp_path / "plugins" / "channels" / "found.py").write_text(SOUND)
    family = channels()
    assert family.directories == (tmp_path / "missing", tmp_path / "plugins")
    assert family.load("found").summary == "a carrier pigeon"


@pytest.mark.parametrize(
    ("family", "constant"), [("schedulers", "SCHEDULER"), ("checks", "CHECK"), ("channels", "CHANNEL")]
)
def test_every_family_of_the_house_can_be_listed(family: str, constant: str) -> None:
    assert all(name.isidentifier() and not name.startswith("_") for name in Family(family, constant, ()).names())
