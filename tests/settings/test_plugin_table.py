"""Tables that belong to plugins: [watch.NAME] and [channel.NAME]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from resilience.errors import SettingsError
from resilience.settings.load import Loaded, load
from resilience.settings.plugin_table import plugin_settings, read_table
from resilience.settings.sections import PluginTable
from resilience.settings.show import rows, to_toml
from resilience.system.world import Host, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What a plugin may have."""

    paths: tuple[str, ...] = ()
    warn_percent: float = 85.0
    after_s: float = 60.0
    factor: float = 3.0
    limit: int | None = None
    headers: Mapping[str, str] | None = None
    on: bool = True


def loaded(folder: Path, text: str, **environ: str) -> Loaded:
    (folder / "resil.toml").write_text(text)
    return load(World(environ=environ, host=Host(name="n", user="u", uid=0, home=folder), cwd=folder))


def test_a_plugin_reads_its_own_table(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[watch.fs]\npaths = ["/a"]\nwarn-percent = "90%"\nafter_s = "2m"\nfactor = 2\n')
    table = found.settings.watches["fs"]
    assert table.kind == "fs"
    assert plugin_settings(Owned, "watch", "fs", table) == Owned(
        paths=("/a",), warn_percent=90.0, after_s=120.0, factor=2.0
    )


def test_without_a_table_the_defaults_count() -> None:
    assert plugin_settings(Owned, "watch", "fs", None) == Owned()


def test_a_second_one_of_a_kind_has_a_name_of_its_own(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[watch.scratch]\nkind = "fs"\nlimit = 3\n')
    assert found.settings.watches == {"scratch": PluginTable("fs", {"limit": 3})}


def test_the_common_keys_stand_beside_the_tables(tmp_path: Path) -> None:
    found = loaded(tmp_path, "[watch]\ndeadline_s = 3\n[watch.fs]\nlimit = 3\n")
    assert found.settings.watch.deadline_s == 3.0 and set(found.settings.watches) == {"fs"}


def test_a_variable_reaches_into_the_table_and_wins(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        "[watch.fs]\nwarn_percent = 50\n",
        RESIL_WATCH__FS__WARN_PERCENT="70",
        RESIL_CHANNEL__EMAIL__PATHS="me",
    )
    table = found.settings.watches["fs"]
    assert plugin_settings(Owned, "watch", "fs", table, origins=found.origins).warn_percent == 70.0
    assert found.origins["watch.fs.warn_percent"] == "$RESIL_WATCH__FS__WARN_PERCENT"
    assert set(found.settings.channels) == {"email"}


def test_the_command_line_wins_over_all(tmp_path: Path) -> None:
    found = loaded(tmp_path, "[watch.fs]\nwarn_percent = 50\n")
    table = found.settings.watches["fs"]
    assert plugin_settings(Owned, "watch", "fs", table, overrides={"warn_percent": "60%"}).warn_percent == 60.0


def test_headers_are_a_table_of_texts() -> None:
    table = PluginTable("hook", {"headers": {"X-A": "b", "X-N": 1}})
    assert plugin_settings(Owned, "channel", "hook", table).headers == {"X-A": "b", "X-N": "1"}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("warn_percnt", 3, "unknown key 'warn_percnt'"),
        ("warn_percent", "200%", "warn_percent"),
        ("factor", "fast", "must be a number"),
        ("limit", "many", "must be a whole number"),
        ("headers", "X: y", "must be a table of texts"),
        ("on", "perhaps", "must be true or false"),
    ],
)
def test_a_value_that_cannot_be_meant_names_its_place(key: str, value: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        plugin_settings(Owned, "watch", "fs", PluginTable("fs", {key: value}), origins={f"watch.fs.{key}": "here.toml"})
    assert "[watch.fs] (here.toml)" in caught.value.message


@pytest.mark.parametrize("name", ["a b", "x.y", "", "ä"])
def test_a_name_can_be_typed(name: str) -> None:
    with pytest.raises(SettingsError, match="letters, digits"):
        read_table("watch", name, {}, "resil.toml")


@pytest.mark.parametrize("kind", [3, "", ["fs"]])
def test_a_kind_is_a_text(kind: object) -> None:
    with pytest.raises(SettingsError, match="must be a text"):
        read_table("watch", "x", {"kind": kind}, "resil.toml")


@pytest.mark.parametrize(
    "text",
    ['[channel]\nto = "me"\n', '[channel]\nemail = "me"\n'],
)
def test_a_key_outside_a_channels_own_table_says_where_it_belongs(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, text)
    assert "[channel.NAME]" in caught.value.hint


def test_a_variable_into_a_plain_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"\[watch.checks\]"):
        loaded(tmp_path, '[watch]\nchecks = ["fs"]\n', RESIL_WATCH__CHECKS__X="1")


def test_config_show_tells_plugins_tables_and_their_origin(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[watch.fs]\npaths = ["/a"]\n', RESIL_WATCH__FS__LIMIT="4")
    told = {row.key: (row.value, row.origin) for row in rows(found)}
    assert told["watch.fs.paths"] == (["/a"], str(tmp_path / "resil.toml"))
    assert told["watch.fs.limit"] == ("4", "$RESIL_WATCH__FS__LIMIT")


def test_the_run_keeps_no_watchdogs_and_no_channels(tmp_path: Path) -> None:
    text = to_toml(loaded(tmp_path, '[watch.fs]\nlimit = 1\n[channel.email]\nto = "me"\n[alert]\ngroup_s = 3\n'), "r")
    assert "watch" not in text and "channel" not in text and "alert" not in text


def test_a_key_that_is_written_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'warn_percent' in \[watch.fs\] .* is written twice"):
        loaded(tmp_path, "[watch.fs]\nwarn_percent = 80\nwarn-percent = 90\n")
