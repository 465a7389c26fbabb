"""[guard] is read as the guard reads it, and what the guard would refuse is refused before anything is queued."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.errors import SettingsError
from resilience.guard.settings import GuardSettings
from resilience.settings.guard_table import convert_guard_table
from resilience.settings.load import FILE_NAME, load
from tests.fakes import make_world


def where(key: str) -> str:
    return f"[guard] (place of {key})"


def test_units_are_understood_as_everywhere_else() -> None:
    table = {"poll_s": "2m", "host_memory_free_bytes": "4GiB", "shm_percent": "80%", "walltime_safety": 2}
    settings = convert_guard_table(table, where)
    assert (settings.poll_s, settings.host_memory_free_bytes) == (120.0, 4 * 2**30)
    assert (settings.shm_percent, settings.walltime_safety) == (80.0, 2.0)


def test_texts_of_the_environment_and_values_of_toml_are_one() -> None:
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
    ({"poll_s": True}, "is not possible", ""),
    ({"kill_switch": "perhaps"}, "is not possible", ""),
    ({"signals": ["KILL"]}, "signals = 'KILL' is not possible", "USR1"),
    ({"signals": 5}, "is not possible", ""),
    ({"loss_nonfinite": "ignore"}, "is not possible", "there are: stop"),
    ({"loss_nonfinite": {"a": 1}}, "is not possible", ""),
    ({"walltime_saftey": 2}, "unknown key 'walltime_saftey'", "did you mean walltime_safety?"),
    ({"zzz": 2}, "unknown key 'zzz'", "it may have: "),
]


@pytest.mark.parametrize(("table", "message", "hint"), REFUSED, ids=[str(case[0]) for case in REFUSED])
def test_what_the_guard_would_refuse_is_refused_with_its_place(
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
def test_no_value_whatever_ends_in_anything_but_settings_or_a_sentence(table: dict[str, object]) -> None:
    try:
        assert isinstance(convert_guard_table(table, where), GuardSettings)
    except SettingsError as error:
        assert "[guard] (place of" in error.message


def test_variables_win_over_the_file_unless_they_are_those_of_the_job_one_is_in(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / FILE_NAME).write_text("[guard]\npoll_s = 3\n")
    variables = {"RESIL_GUARD__POLL_S": "7"}
    loaded = load(make_world(folder, variables))
    assert loaded.settings.guard == GuardSettings(poll_s=7.0)
    assert loaded.origins["guard.poll_s"] == "$RESIL_GUARD__POLL_S"
    in_a_job = load(make_world(folder, {**variables, "RESIL_GUARD__NO_SUCH": "1", "RESIL_ATTEMPT": "2"}))
    assert in_a_job.settings.guard == GuardSettings(poll_s=3.0)


def test_two_owner_policies_are_refused(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / FILE_NAME).write_text('[run]\nswitch_owners = "any"\n[guard]\nswitch_owners = "owner"\n')
    with pytest.raises(SettingsError, match=r"'any' in \[run\] and 'owner' in \[guard\]") as caught:
        load(make_world(folder))
    assert "in [run] alone" in caught.value.hint
