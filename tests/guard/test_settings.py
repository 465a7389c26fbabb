"""Valid and invalid values of the guard's settings; messages name the setting, the variable and the unit."""

from __future__ import annotations

import inspect
import math
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import GuardError
from resilience.guard.settings import GuardSettings, read_settings
from resilience.layout import GUARD_PREFIX

NAMES = [field.name for field in fields(GuardSettings)]
NUMBERS = [field.name for field in fields(GuardSettings) if type(field.default) in (int, float)]
_RANGES = {field.name: field.metadata["range"] for field in fields(GuardSettings) if "range" in field.metadata}
_CHOICES = {field.name: field.metadata["choices"] for field in fields(GuardSettings) if "choices" in field.metadata}
PERCENTS = [name for name in NAMES if name.endswith("_percent")]


def refusal(environ: dict[str, str] | None = None, **arguments: Any) -> GuardError:
    with pytest.raises(GuardError) as caught:
        read_settings(environ or {}, **arguments)
    return caught.value


def variable(name: str) -> str:
    return GUARD_PREFIX + name.upper()


def test_the_defaults_pass_their_own_checks_and_every_number_has_a_range() -> None:
    assert read_settings({}) == GuardSettings()
    assert set(_RANGES) == set(NUMBERS)
    for name in NUMBERS:
        assert _RANGES[name][0] <= getattr(GuardSettings(), name) <= _RANGES[name][1]


def test_every_setting_is_explained() -> None:
    explained = inspect.getdoc(GuardSettings) or ""  # dedented since Python 3.13
    for name in NAMES:
        assert f"    {name}: " in explained


def test_arguments_win_over_the_environment() -> None:
    environ = {variable("poll_s"): "7", variable("beat_s"): "8", "OTHER": "x"}
    settings = read_settings(environ, poll_s=9)
    assert (settings.poll_s, settings.beat_s) == (9.0, 8.0)


UNDERSTOOD: list[tuple[str, Any, Any]] = [
    ("host_memory_percent", "85%", 85.0),
    ("host_memory_percent", "85", 85.0),
    ("host_memory_percent", 85, 85.0),
    ("poll_s", "10m", 600.0),
    ("poll_s", "10", 10.0),
    ("poll_s", "500ms", 0.5),
    ("first_save_s", "1h30m", 5400.0),
    ("kill_timeout_s", "2m", 120.0),
    ("stop_after", "19h50m", 71400.0),
    ("stop_after", "71400", 71400.0),
    ("stop_after", 60, 60.0),
    ("redo_max", "30m", 1800.0),
    ("every", " 500 steps ", "500 steps"),
    ("every", "auto", "auto"),
    ("host_memory_free_bytes", "2GiB", 2 * 2**30),
    ("host_memory_free_bytes", "2GB", 2 * 10**9),
    ("host_memory_free_bytes", 1e9, 10**9),
    ("loss_window", "50", 50),
    ("loss_window", "50.0", 50),
    ("kill_switch", "off", False),
    ("kill_switch", " Yes ", True),
    ("kill_switch", 0, False),
    ("mirror", "THREAD", "thread"),
    ("gpu_memory", True, "on"),
    ("gpu_memory", False, "off"),
    ("interface", " IB0 ", "IB0"),
    ("signals", "USR1,TERM", ("USR1", "TERM")),
    ("signals", "sigusr1 Term, HUP", ("USR1", "TERM", "HUP")),
    ("signals", ["SIGUSR1", "usr1", "USR1"], ("USR1",)),
    ("signals", signal.SIGUSR2, ("USR2",)),
    ("signals", (signal.SIGUSR2, "INT"), ("USR2", "INT")),
    ("signals", "none", ()),
    ("signals", "", ()),
    ("signals", [], ()),
]


@pytest.mark.parametrize(("name", "given", "meant"), UNDERSTOOD, ids=[f"{case[0]}={case[1]}" for case in UNDERSTOOD])
def test_texts_have_units_and_signals_have_many_spellings(name: str, given: Any, meant: Any) -> None:
    settings = read_settings({}, **{name: given})
    assert getattr(settings, name) == meant and type(getattr(settings, name)) is type(meant)
    if isinstance(given, str):
        assert read_settings({variable(name): given}) == settings


@pytest.mark.parametrize("name", PERCENTS)
@pytest.mark.parametrize("value", [0.95, 1, 1.0, 0.01, "0.5%", "1%"])
def test_a_percentage_of_one_or_less_is_refused_and_the_unit_is_explained(name: str, value: float | str) -> None:
    error = refusal(None, **{name: cast(Any, value)})
    assert error.message.startswith(f"{name} = ") and "%, which every machine exceeds" in error.message
    assert error.hint.startswith(f"percentages go to 100: {name} = ") and error.hint.endswith("is probably meant")


@pytest.mark.parametrize("name", PERCENTS)
def test_a_fraction_in_the_environment_is_refused_with_the_percentage_probably_meant(name: str) -> None:
    error = refusal({variable(name): "0.85"})
    assert error.message == f"{variable(name)} = '0.85': '0.85' is a fraction, not a percentage"
    assert error.hint == "write 85%"


@pytest.mark.parametrize("name", PERCENTS)
@pytest.mark.parametrize("value", [0, -5, 100.5, math.nan, math.inf])
def test_a_percentage_out_of_range_is_refused_with_the_range_and_the_unit(name: str, value: float) -> None:
    error = refusal(None, **{name: cast(Any, value)})
    assert f"{name} = {value!r} is out of range" in error.message.replace(".0", "") + error.message
    assert error.hint == "set a value from 1 to 100 %"


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_none_and_numbers_beyond_the_range_are_refused(name: str) -> None:
    low, high = _RANGES[name]
    for value in (math.nan, math.inf, -math.inf, low - 1, high * 2 + 1, 10**400):
        error = refusal(None, **{name: cast(Any, value)})
        assert error.message.startswith(f"{name} = ")
        assert "out of range" in error.message or "is invalid" in error.message
        assert error.hint.startswith("set ")
    for text in ("nan", "inf", "-1"):
        assert refusal({variable(name): text}).message.startswith(f"{variable(name)} = ")  # named as in the environment


@pytest.mark.parametrize(
    ("name", "hint"),
    [("poll_s", "set a number, in s"), ("stop_after", "set a number, in s"),
     ("loss_window", "set a whole number"),
     ("host_memory_percent", "set a number, in %"),
     ("host_memory_free_bytes", "set a whole number, in bytes"),
     ("kill_switch", "set true or false"), ("interface", "set a word"),
     ("signals", "set names of signals")],
)  # fmt: skip
@pytest.mark.parametrize("value", [None, {"a": 1}, object(), 1j, b"x"])
def test_values_of_a_wrong_type_are_refused_with_the_type_and_the_unit(name: str, hint: str, value: Any) -> None:
    error = refusal(None, **{name: cast(Any, value)})
    assert error.message.startswith(f"{name} = ") and error.message.endswith(" is invalid")
    assert error.hint == hint


def test_half_a_step_is_refused_and_not_rounded() -> None:
    assert refusal(loss_window=50.5).hint == "set a whole number"
    assert refusal({variable("skew_steps"): "2.5"}).hint == "set a whole number, in steps"


def test_a_truth_value_is_no_number() -> None:
    assert refusal(poll_s=True).message == "poll_s = True is invalid"


@pytest.mark.parametrize("word", ["KILL", "SIGKILL", "stop", signal.SIGSTOP])
def test_a_signal_that_cannot_be_caught_is_refused_with_the_reason(word: Any) -> None:
    error = refusal(signals=["USR1", word])
    assert "signals = " in error.message and error.hint.startswith("no process can catch SIG")


def test_an_unknown_signal_is_refused_with_the_nearest() -> None:
    error = refusal({variable("signals"): "USR1,TREM"})
    assert error.message == f"{variable('signals')} = 'TREM' is invalid"
    assert error.hint == "did you mean TERM? there are: USR1, USR2, TERM, HUP, INT"
    assert refusal(signals=["SEGV"]).message == "signals = 'SEGV' is invalid"
    assert "is invalid" in refusal(signals=5).message


def test_an_unknown_setting_is_refused_with_the_nearest_and_by_the_name_that_was_written() -> None:
    error = refusal({"RESIL_GUARD__HOST_MEMORY_PRECENT": "85"})
    assert error.message == "unknown guard setting 'RESIL_GUARD__HOST_MEMORY_PRECENT'"
    assert error.hint == "did you mean host_memory_percent?"
    assert refusal(kil_switch=True).hint == "did you mean kill_switch?"
    assert refusal({"RESIL_GUARD__": "1"}).hint.startswith("there are: poll_s, ")
    assert refusal(zzzz=1).hint.startswith("there are: poll_s, ")


@pytest.mark.parametrize("name", sorted(_CHOICES))
def test_an_invalid_choice_is_refused_with_the_choices(name: str) -> None:
    error = refusal({variable(name): "perhaps-not"})
    assert error.message == f"{variable(name)} = 'perhaps-not' is invalid"
    assert any(choice and choice in error.hint for choice in _CHOICES[name])


def test_a_misspelled_choice_is_refused_with_the_nearest() -> None:
    assert refusal(loss_nonfinite="save_and_stopp").hint == "did you mean save_and_stop?"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "signals"])
def test_an_empty_variable_sets_nothing(name: str) -> None:
    assert read_settings({variable(name): " "}) == GuardSettings()


@pytest.mark.parametrize("name", NAMES)
def test_settings_created_directly_are_checked_as_well(name: str) -> None:
    with pytest.raises(GuardError, match=f"^{name} = "):
        GuardSettings(**{name: cast(Any, object())})


def test_a_wrong_value_made_by_hand_is_refused_like_any_other() -> None:
    with pytest.raises(GuardError, match="which every machine exceeds"):
        GuardSettings(host_memory_percent=0.9)
    with pytest.raises(GuardError, match="out of range"):
        GuardSettings(poll_s=math.nan)
    with pytest.raises(GuardError, match="'KILL' is invalid"):
        GuardSettings(signals=("KILL",))


@given(st.sampled_from(NAMES), st.text() | st.from_regex(r"[0-9.]{1,5} ?(%|s|m|h|GiB|KB)?"))
def test_no_text_in_the_environment_ends_in_anything_but_settings_or_a_sentence(name: str, text: str) -> None:
    try:
        assert isinstance(read_settings({variable(name): text}), GuardSettings)
    except GuardError as error:
        assert variable(name) in error.message and len(error.message) < 1000


@given(st.sampled_from(NAMES))
def test_settings_survive_being_written_as_variables_and_read_back(name: str) -> None:
    value = getattr(GuardSettings(), name)
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    assert getattr(read_settings({variable(name): text}), name) == value


def test_reading_settings_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom resilience.guard.settings import read_settings\n"
        "read_settings({'RESIL_GUARD__POLL_S': '10m'})\n"
        "print(*sorted({'difflib', 'subprocess', 'socket', 'json', 'logging', 'pathlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
