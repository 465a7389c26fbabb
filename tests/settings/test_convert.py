"""Tables of resil.toml become the settings of their owners, plugins and guard included; errors name the place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.errors import SettingsError
from resilience.guard.settings import GuardSettings
from resilience.settings.convert import (
    convert_guard_table,
    convert_table,
    convert_value,
    plugin_settings,
    read_table,
    unknown_key,
)
from resilience.settings.load import FILE_NAME, Loaded, load
from resilience.settings.sections import PluginTable
from resilience.settings.show import rows, to_toml
from resilience.system.ports import Host, System
from tests.lab.fakes import make_system


@dataclass(frozen=True, kw_only=True)
class Owner:
    wait_s: float = 1.0
    quota_bytes: int = 0
    used_percent: float = 90.0
    count: int = 1
    factor: float = 1.0
    celsius: float = -10.0
    purge_days: float = 0.0
    table: Mapping[str, str] | None = None
    name: str = ""
    lines: tuple[str, ...] = ()
    is_on: bool = True
    maybe: bool | None = None
    word: str | None = None


def convert(**table: Any) -> dict[str, Any]:
    return convert_table(Owner, table, lambda key: f"[owner] (here.toml: {key})")


GOOD: list[tuple[str, object, object]] = [
    ("wait_s", "10m", 600.0),
    ("wait_s", 600, 600.0),
    ("wait_s", 0.5, 0.5),
    ("wait_s", "600", 600.0),
    ("quota_bytes", "40TiB", 40 * 2**40),
    ("quota_bytes", 4096, 4096),
    ("quota_bytes", "4096", 4096),
    ("used_percent", "85%", 85.0),
    ("used_percent", 85, 85.0),
    ("used_percent", 0, 0.0),
    ("used_percent", "100%", 100.0),
    ("used_percent", "0.5%", 0.5),
    ("count", 3, 3),
    ("count", " 3 ", 3),
    ("celsius", -40, -40.0),
    ("factor", "1e-3", 0.001),
    ("name", "a\tb\nc", "a\tb\nc"),
    ("name", "gpt", "gpt"),
    ("name", 10, "10"),
    ("lines", ["a", "b"], ("a", "b")),
    ("lines", "a", ("a",)),
    ("is_on", False, False),
    ("is_on", "Yes", True),
    ("is_on", "off", False),
    ("maybe", None, None),
    ("maybe", "1", True),
    ("word", None, None),
    ("word", "x", "x"),
]


@pytest.mark.parametrize(("name", "written", "meant"), GOOD)
def test_a_value_is_converted_to_the_type_of_its_field(name: str, written: object, meant: object) -> None:
    value = convert(**{name: written})[name]
    assert (value, type(value)) == (meant, type(meant))


BAD: list[tuple[str, object, str]] = [
    ("wait_s", "soon", "not a duration"),
    ("wait_s", -1, "a duration such as"),
    ("wait_s", float("nan"), "is not a duration"),
    ("wait_s", float("inf"), "is not a duration"),
    ("wait_s", True, "a duration such as"),
    ("wait_s", [1], "a duration such as"),
    ("wait_s", "\u0661m", "not a duration"),
    ("quota_bytes", "many", "not a size"),
    ("quota_bytes", -1, "not a size"),
    ("used_percent", 0.85, "a fraction"),
    ("used_percent", 1, "a fraction"),
    ("used_percent", "0.85", "a fraction"),
    ("used_percent", 101, "between 0% and 100%"),
    ("count", 1.5, "a whole number"),
    ("count", True, "a whole number"),
    ("count", "--3", "a whole number"),
    ("count", -1, "must not be negative"),
    ("count", 10**12, "at most 1e+09"),
    ("count", "1_0", "a whole number"),
    ("count", "\u0663", "a whole number"),
    ("factor", -0.5, "must not be negative"),
    ("factor", float("nan"), "must be a number"),
    ("factor", float("-inf"), "must be a number"),
    ("factor", 1e300, "at most 1e+09"),
    ("factor", "1_0", "must be a number"),
    ("factor", "\u0663", "must be a number"),
    ("wait_s", "1_0", "not a duration"),
    ("wait_s", "\u0663", "not a duration"),
    ("purge_days", 1e6, "at most 36600"),
    ("name", "a\0b", "control character"),
    ("name", "a\x1b[31m", "control character"),
    ("lines", ["a", "b\0"], "control character"),
    ("table", {"a": "b\0"}, "control character"),
    ("count", "\u00b2", "a whole number"),
    ("count", "9" * 5000, "a whole number"),
    ("name", 1.5, "must be a string"),
    ("name", True, "must be a string"),
    ("name", ["a"], "must be a string"),
    ("lines", [1], "a list of strings"),
    ("lines", 1, "a list of strings"),
    ("is_on", 1, "true or false"),
    ("is_on", "maybe", "true or false"),
    ("maybe", "", "true or false"),
]


@pytest.mark.parametrize(("name", "written", "why"), BAD)
def test_a_value_of_the_wrong_type_is_rejected_with_its_location(name: str, written: object, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        convert(**{name: written})
    assert why in caught.value.message + caught.value.hint
    assert name in caught.value.message and "here.toml" in caught.value.message


def test_a_fraction_is_rejected_with_the_equivalent_percentage() -> None:
    with pytest.raises(SettingsError) as caught:
        convert(used_percent=0.85)
    assert caught.value.hint == "write 85%"


def test_an_unknown_key_is_rejected_with_the_nearest_or_all_known_keys() -> None:
    with pytest.raises(SettingsError) as near:
        convert(used_precent=5)
    assert near.value.hint == "did you mean used_percent?"
    with pytest.raises(SettingsError) as far:
        convert(zzzz=5)
    assert "known keys: celsius, count" in far.value.hint


def test_a_key_of_another_table_is_not_advised_for_a_plugins_table() -> None:
    assert "[run]" in unknown_key("command", ["argv"], "[alert] of resil.toml").hint
    assert unknown_key("command", ["argv"], "[channel.pager] of resil.toml").hint == "known keys: argv"


def test_a_single_value_can_be_converted() -> None:
    assert convert_value("wait_s", "2m", float, "--wait") == 120.0


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


def loaded(directory: Path, text: str, **environ: str) -> Loaded:
    (directory / "resil.toml").write_text(text)
    return load(System(environ=environ, host=Host(name="n", user="u", uid=0, home=directory), cwd=directory))


def test_a_plugin_reads_its_own_table(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[watch.fs]\npaths = ["/a"]\nwarn-percent = "90%"\nafter_s = "2m"\nfactor = 2\n')
    table = found.settings.watches["fs"]
    assert table.kind == "fs"
    assert plugin_settings(Owned, "watch", "fs", table) == Owned(
        paths=("/a",), warn_percent=90.0, after_s=120.0, factor=2.0
    )


def test_without_a_table_the_defaults_apply() -> None:
    assert plugin_settings(Owned, "watch", "fs", None) == Owned()


def test_a_kind_can_be_used_twice_under_different_names(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[watch.scratch]\nkind = "fs"\nlimit = 3\n')
    assert found.settings.watches == {"scratch": PluginTable("fs", {"limit": 3})}


def test_common_keys_and_plugin_tables_share_a_section(tmp_path: Path) -> None:
    found = loaded(tmp_path, "[watch]\ndeadline_s = 3\n[watch.fs]\nlimit = 3\n")
    assert found.settings.watch.deadline_s == 3.0 and set(found.settings.watches) == {"fs"}


def test_a_variable_overrides_a_key_of_a_plugin_table(tmp_path: Path) -> None:
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


def test_the_command_line_overrides_everything(tmp_path: Path) -> None:
    found = loaded(tmp_path, "[watch.fs]\nwarn_percent = 50\n")
    table = found.settings.watches["fs"]
    assert plugin_settings(Owned, "watch", "fs", table, overrides={"warn_percent": "60%"}).warn_percent == 60.0


def test_headers_are_a_table_of_strings() -> None:
    table = PluginTable("hook", {"headers": {"X-A": "b", "X-N": 1}})
    assert plugin_settings(Owned, "channel", "hook", table).headers == {"X-A": "b", "X-N": "1"}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("warn_percnt", 3, "unknown key 'warn_percnt'"),
        ("warn_percent", "200%", "warn_percent"),
        ("factor", "fast", "must be a number"),
        ("limit", "many", "must be a whole number"),
        ("headers", "X: y", "must be a table of strings"),
        ("on", "perhaps", "must be true or false"),
    ],
)
def test_an_invalid_value_is_rejected_with_its_location(key: str, value: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        plugin_settings(Owned, "watch", "fs", PluginTable("fs", {key: value}), origins={f"watch.fs.{key}": "here.toml"})
    assert "[watch.fs] (here.toml)" in caught.value.message


@pytest.mark.parametrize("name", ["a b", "x.y", "", "ä"])
def test_a_table_name_is_usable_on_a_command_line(name: str) -> None:
    with pytest.raises(SettingsError, match="letters, digits"):
        read_table("watch", name, {}, "resil.toml")


@pytest.mark.parametrize("kind", [3, "", ["fs"]])
def test_a_kind_is_a_string(kind: object) -> None:
    with pytest.raises(SettingsError, match="must be a string"):
        read_table("watch", "x", {"kind": kind}, "resil.toml")


@pytest.mark.parametrize(
    "text",
    ['[channel]\nto = "me"\n', '[channel]\nemail = "me"\n'],
)
def test_a_key_outside_a_channel_table_is_rejected_with_a_hint(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, text)
    assert "[channel.NAME]" in caught.value.hint


def test_a_variable_for_a_key_of_a_plain_value_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"\[watch.checks\]"):
        loaded(tmp_path, '[watch]\nchecks = ["fs"]\n', RESIL_WATCH__CHECKS__X="1")


def test_config_show_lists_plugin_tables_with_their_origin(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[watch.fs]\npaths = ["/a"]\n', RESIL_WATCH__FS__LIMIT="4")
    told = {row.key: (row.value, row.origin) for row in rows(found)}
    assert told["watch.fs.paths"] == (["/a"], str(tmp_path / "resil.toml"))
    assert told["watch.fs.limit"] == ("4", "$RESIL_WATCH__FS__LIMIT")


def test_run_toml_contains_no_watchdogs_and_no_channels(tmp_path: Path) -> None:
    text = to_toml(loaded(tmp_path, '[watch.fs]\nlimit = 1\n[channel.email]\nto = "me"\n[alert]\ngroup_s = 3\n'), "r")
    assert "watch" not in text and "channel" not in text and "alert" not in text


def test_a_key_given_twice_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'warn_percent' in \[watch.fs\] .* is given twice"):
        loaded(tmp_path, "[watch.fs]\nwarn_percent = 80\nwarn-percent = 90\n")


def where(key: str) -> str:
    return f"[guard] (place of {key})"


def test_units_are_parsed_as_in_all_other_settings() -> None:
    table = {"poll_s": "2m", "host_memory_free_bytes": "4GiB", "shm_percent": "80%", "walltime_safety": 2}
    settings = convert_guard_table(table, where)
    assert (settings.poll_s, settings.host_memory_free_bytes) == (120.0, 4 * 2**30)
    assert (settings.shm_percent, settings.walltime_safety) == (80.0, 2.0)


def test_environment_strings_and_toml_values_give_the_same_settings() -> None:
    typed = {"kill_switch": False, "signals": ["USR2", "SIGTERM"], "gpu_memory": True, "loss_window": 50}
    texts = {"kill_switch": "off", "signals": "usr2, term", "gpu_memory": "on", "loss_window": "50"}
    assert convert_guard_table(typed, where) == convert_guard_table(texts, where)


REFUSED = [
    ({"host_memory_percent": 0.95}, "which every machine exceeds", "host_memory_percent = 95 is probably meant"),
    ({"host_memory_percent": "0.95"}, "is a fraction, not a percentage", "write 95%"),
    ({"host_memory_percent": 101}, "is out of range", "from 1 to 100"),
    ({"poll_s": -1}, "is out of range", "from 0.01"),
    ({"poll_s": float("nan")}, "is out of range", "from 0.01"),
    ({"poll_s": "soon"}, "is not a duration", "10m"),
    ({"poll_s": True}, "is invalid", ""),
    ({"kill_switch": "perhaps"}, "is invalid", ""),
    ({"signals": ["KILL"]}, "signals = 'KILL' is invalid", "USR1"),
    ({"signals": 5}, "is invalid", ""),
    ({"loss_nonfinite": "ignore"}, "is invalid", "there are: stop"),
    ({"loss_nonfinite": {"a": 1}}, "is invalid", ""),
    ({"walltime_saftey": 2}, "unknown key 'walltime_saftey'", "did you mean walltime_safety?"),
    ({"zzz": 2}, "unknown key 'zzz'", "known keys: "),
]


@pytest.mark.parametrize(("table", "message", "hint"), REFUSED, ids=[str(case[0]) for case in REFUSED])
def test_a_value_that_the_guard_rejects_is_rejected_with_its_location(
    table: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        convert_guard_table({"beat_s": 1, **table}, where)
    assert message in caught.value.message and f"place of {next(iter(table))}" in caught.value.message
    assert hint in caught.value.hint


plain = st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.datetimes() | st.times()
toml: st.SearchStrategy[object] = st.one_of(
    plain, st.lists(plain, max_size=3), st.dictionaries(st.text(max_size=5), plain, max_size=2)
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(list(GuardSettings.__dataclass_fields__)), toml, max_size=3))
def test_any_value_gives_settings_or_a_settings_error(table: dict[str, object]) -> None:
    try:
        assert isinstance(convert_guard_table(table, where), GuardSettings)
    except SettingsError as error:
        assert "[guard] (place of" in error.message


def test_variables_override_the_file_unless_set_for_the_surrounding_job(tmp_path: Path) -> None:
    directory = tmp_path
    (directory / FILE_NAME).write_text("[guard]\npoll_s = 3\n")
    variables = {"RESIL_GUARD__POLL_S": "7"}
    loaded = load(make_system(directory, variables))
    assert loaded.settings.guard == GuardSettings(poll_s=7.0)
    assert loaded.origins["guard.poll_s"] == "$RESIL_GUARD__POLL_S"
    in_a_job = load(make_system(directory, {**variables, "RESIL_GUARD__NO_SUCH": "1", "RESIL_ATTEMPT": "2"}))
    assert in_a_job.settings.guard == GuardSettings(poll_s=3.0)


def test_conflicting_owner_policies_are_rejected(tmp_path: Path) -> None:
    directory = tmp_path
    (directory / FILE_NAME).write_text('[run]\nswitch_owners = "any"\n[guard]\nswitch_owners = "owner"\n')
    with pytest.raises(SettingsError, match=r"'any' in \[run\] and 'owner' in \[guard\]") as caught:
        load(make_system(directory))
    assert "in [run] only" in caught.value.hint
