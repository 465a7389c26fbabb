"""The commands that watchdogs' files make."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.watch import watchdogs
from tests.cli.shell import SETTINGS, Shell
from tests.contract.watchdogs import write_own_plugin


@pytest.fixture
def watching(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    watchdogs.checks.cache_clear()
    own = write_own_plugin(tmp_path / "own")
    monkeypatch.setenv("RESIL_PLUGINS", f"{tmp_path / 'plugins'}:{own}")
    for name, free in {"many": 9, "few": 3}.items():
        (shell.folder / name).write_text(str(free))
    yield shell
    watchdogs.checks.cache_clear()


def test_the_list_says_what_each_looks_at_and_where_its_settings_stand(watching: Shell) -> None:
    watching.settings(SETTINGS + '[watch.matlab]\nkind = "licence"\n[watch.odd]\nkind = "no-such"\n')
    rows = {line.split()[0]: line for line in watching.resil("watch", "--list").out.splitlines()[1:]}
    assert {"cron", "fs", "inodes", "job", "log", "licence", "matlab", "odd"} == set(rows)
    assert "licences that are left" in rows["matlab"] and "[watch.matlab]" in rows["matlab"]
    assert "resil.toml" in rows["matlab"] and "defaults" in rows["licence"]
    assert "no checks plugin is called 'no-such'" in rows["odd"]
    document = watching.resil("watch", "--list", "--json").json
    row = next(row for row in document["watchdogs"] if row["name"] == "matlab")
    assert (row["kind"], row["in_all"]) == ("licence", True) and "resil.toml" in row["place"]


def test_the_list_says_what_all_leaves_out(watching: Shell) -> None:
    watching.settings(SETTINGS + '[watch]\nchecks = ["licence"]\n')
    rows = {line.split()[0]: line for line in watching.resil("watch", "--list").out.splitlines()[1:]}
    assert "not in [watch] checks" in rows["fs"] and "not in" not in rows["licence"]


def test_a_path_that_is_typed_counts_from_the_current_folder(watching: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    watching.settings(SETTINGS)
    (watching.folder / "sub" / "deep").mkdir(parents=True)
    monkeypatch.chdir(watching.folder / "sub")
    assert f"{watching.folder}/sub/deep:" in watching.resil("watch", "fs", "deep", "--no-alert").out


@pytest.mark.parametrize("words", [("--json", "licence", "many"), ("licence", "many", "--json")])
def test_a_common_option_may_stand_before_the_name_and_behind_it(watching: Shell, words: tuple[str, ...]) -> None:
    said = watching.resil("watch", *words)
    assert said.code == 0 and said.json["reports"][0]["check"] == "licence"


def test_a_settings_file_that_is_named_behind_the_watchdog_may_be_what_makes_it(watching: Shell) -> None:
    (watching.folder / "other.toml").write_text('[watch.matlab]\nkind = "licence"\nservers = ["few"]\n')
    for words in (("matlab", "-c", "other.toml"), ("-c", "other.toml", "matlab"), ("matlab", "--config=other.toml")):
        said = watching.resil("watch", *words)
        assert (said.code, said.out.partition(" |")[0]) == (1, "MATLAB WARNING - few: 3 licences left")


def test_help_lists_the_watchdogs_even_where_the_settings_are_broken(watching: Shell) -> None:
    watching.settings("[watch\n")
    said = watching.resil("watch", "--help")
    assert said.code == 0 and all(name in said.out for name in ("fs", "inodes", "job", "log", "licence"))


def test_the_deadline_of_the_command_line_is_the_one_of_a_look(watching: Shell, tmp_path: Path) -> None:
    plugin = tmp_path / "own" / "checks" / "licence.py"
    plugin.write_text(
        plugin.read_text().replace("        try:\n", "        __import__('time').sleep(100)\n        try:\n")
    )
    said = watching.resil("watch", "licence", "many", "--deadline", "300 parsecs")
    assert (said.code, said.out) == (3, "") and "300 parsecs" in said.err
    said = watching.resil("watch", "licence", "many", "--deadline", "0.3")
    assert said.code == 3 and "no answer within 0.3 s" in said.out


@pytest.mark.parametrize(("name", "by"), [("fs", "bytes"), ("inodes", "inodes"), ("scratch", "bytes")])
def test_top_asks_for_the_largest_folders_of_the_paths(
    watching: Shell, monkeypatch: pytest.MonkeyPatch, name: str, by: str
) -> None:
    asked: list[Any] = []

    def show_top(project: Any, paths: Any, **options: Any) -> int:
        asked.append((paths, options))
        return 0

    stand_in = types.ModuleType("resilience.cli.show_top")
    stand_in.show_top = show_top  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "resilience.cli.show_top", stand_in)
    watching.settings(SETTINGS + '[watch.scratch]\nkind = "fs"\npaths = ["/dev/shm"]\n')
    words = () if name == "scratch" else ("/tmp", "/var")
    assert watching.resil("watch", name, *words, "--top", "--limit", "7", "--deadline", "2m", "--json").code == 0
    paths = ("/dev/shm",) if name == "scratch" else ("/tmp", "/var")
    assert asked == [(paths, {"limit": 7, "deadline_s": 120.0, "as_json": True, "by": by})]


def test_only_what_has_folders_offers_their_list(watching: Shell) -> None:
    assert "--top" in watching.resil("watch", "fs", "--help").out
    assert "--top" not in watching.resil("watch", "licence", "--help").out


def test_alerting_happens_whenever_a_channel_is_set_unless_it_is_not_wanted(
    watching: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resilience.alerts import notify as module

    marker = watching.folder / "told"

    def notify(project: Any, reports: Any, notes: Any) -> tuple[str, ...]:
        marker.write_text(" ".join(f"{report.check}:{report.verdict.value}" for report in reports))
        return ("told somebody",)

    monkeypatch.setattr(module, "notify", notify)
    watching.settings(SETTINGS + '[alert]\nchannels = ["console"]\n')
    assert watching.resil("watch", "licence", "few", "--no-alert").code == 1 and not marker.exists()
    said = watching.resil("watch", "licence", "few")
    assert (said.code, said.err, marker.read_text()) == (1, "resil: told somebody\n", "licence:WARNING")
    monkeypatch.setattr(module, "notify", lambda *_, **__: 1 / 0)
    said = watching.resil("watch", "licence", "many")
    assert said.code == 0 and "alerts may not have been sent" in said.err


def test_a_bug_in_one_tick_does_not_end_a_repeated_look(watching: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from resilience.cli import run_watch

    once, calls = run_watch._once, []

    def fails_first(*given: Any) -> int:
        calls.append(1)
        return once(*given) if len(calls) > 1 else 1 // 0

    monkeypatch.setattr(run_watch, "_once", fails_first)
    said = watching.resil("watch", "licence", "few", "--every", "0.05s", "--count", "2")
    assert said.code == 1 and "LICENCE WARNING" in said.out and "internal error: ZeroDivisionError" in said.err


@pytest.mark.parametrize("words", [("--top", "--every", "1m"), ("--limit", "3")])
def test_options_of_top_that_cannot_be_meant_are_refused(watching: Shell, words: tuple[str, ...]) -> None:
    said = watching.resil("watch", "fs", *words)
    assert said.code == 3 and "--top" in said.err
