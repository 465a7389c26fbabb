"""[checkpoints] of resil.toml, of a job's environment and of arguments; wrong values are named with their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.checkpoints.settings import CheckpointSettings, as_variable, read_store_settings
from resilience.errors import SettingsError
from resilience.settings.convert import convert_checkpoints_table
from resilience.settings.load import FILE_NAME, load
from tests.lab.fakes import make_system


def test_arguments_take_precedence_over_the_jobs_environment() -> None:
    environ = {"RESIL_CHECKPOINTS__LATEST": "5", "RESIL_CHECKPOINTS__WITHIN": "2d", "RESIL_CHECKPOINTS__BEST": " "}
    found = read_store_settings(environ, latest=3, path=Path("/ckpt"))
    assert found == CheckpointSettings(latest=3, within=172800.0, path="/ckpt")


@pytest.mark.parametrize(
    "best", ["loss 3 min", {"metric": "loss", "n": 3}, {"metric": "loss", "n": "3", "mode": "min"}]
)
def test_the_best_ones_are_named_by_a_table_or_a_text(best: Any) -> None:
    found = read_store_settings({}, best=best)
    assert found.best == {"metric": "loss", "n": "3", "mode": "min"}
    assert read_store_settings({"RESIL_CHECKPOINTS__BEST": as_variable(found.best)}) == found


@pytest.mark.parametrize(
    ("key", "value", "message", "hint"),
    [("latest", -1, "latest = -1", "0 to 1e+06"), ("latest", 1.5, "latest = 1.5 is invalid", "latest = 2"),
     ("latest", True, "latest = True is invalid", ""), ("within", "soon", "'soon' is not a duration", "2d"),
     ("within", float("nan"), "nan", "0 to"), ("best", {"metrics": "loss"}, "best = {'metrics'", "metric ="),
     ("best", "loss 0", "best = 'loss 0'", ""), ("best", {"metric": "loss", "mode": "small"}, "'small'", "min or max"),
     ("manage", "perhaps", "manage = 'perhaps'", "true or false"), ("pattern", "ckpt", "does not name", "{step}"),
     ("pattern", "step-{step:08d}", "as a Store does", "saving()"),
     ("tracker", "a/latest", "not the name of a file", "latest_checkpointed_iteration.txt"),
     ("path", "$SCRATCH/x", "variables are not expanded", "write the path out"),
     ("path", "a\nb", "", "checkpoints"), ("latest", 0, "would keep no checkpoint", "latest = 2"),
     ("latests", 2, "'latests'", "latest")],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_place_and_an_example(key: str, value: Any, message: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_store_settings({}, **{key: value})
    assert message in caught.value.message and hint in caught.value.hint
    with pytest.raises(SettingsError, match="place of") as placed:
        convert_checkpoints_table({key: value}, lambda one: f"place of {one}")
    if key in CheckpointSettings.__dataclass_fields__:
        assert message in placed.value.message or "control character" in placed.value.message


def test_none_of_the_newest_is_a_rule_beside_another_rule() -> None:
    table = {"latest": 0, "every_steps": 1000}
    assert convert_checkpoints_table(table, str).latest == read_store_settings({}, **table).latest == 0


texts = st.text(max_size=8)


@given(st.dictionaries(st.sampled_from(list(CheckpointSettings.__dataclass_fields__)),
                       texts | st.integers() | st.floats() | st.booleans() | st.none() | st.dictionaries(texts, texts),
                       max_size=3))  # fmt: skip
def test_whatever_is_written_is_read_or_refused_in_words(table: dict[str, Any]) -> None:
    try:
        found = convert_checkpoints_table(table, lambda key: f"place of {key}")
    except SettingsError as error:
        assert "place of" in error.message
    else:
        environ = {f"RESIL_CHECKPOINTS__{key.upper()}": as_variable(getattr(found, key)) for key in table}
        assert read_store_settings(environ) == found


def test_a_path_is_relative_to_the_project_and_may_hold_the_runs_name(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('[checkpoints]\npath = "out/{run}"\n')
    assert load(make_system(tmp_path, {})).store_path("gpt") == tmp_path / "out" / "gpt"
    assert load(make_system(tmp_path, {"RESIL_CHECKPOINTS__PATH": "/x"})).store_path("gpt") == Path("/x")
    at_home = make_system(tmp_path, {"RESIL_CHECKPOINTS__PATH": "~/x"})
    assert load(at_home).store_path("gpt") == at_home.host.home / "x"
    in_a_job = {"RESIL_CHECKPOINTS__PATH": "/x", "RESIL_ATTEMPT": "2"}
    assert load(make_system(tmp_path, in_a_job)).store_path("gpt") == tmp_path / "out" / "gpt"
    (tmp_path / FILE_NAME).write_text("[checkpoints]\n")
    assert load(make_system(tmp_path, {})).store_path("gpt") is None
