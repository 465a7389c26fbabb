"""resil.toml is found, read and refused with the place of what is wrong; without it everything has a default."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints.settings import CheckpointSettings
from resilience.errors import SettingsError
from resilience.guard.settings import GuardSettings
from resilience.settings.load import FILE_NAME, Loaded, find_file, load
from resilience.settings.sections import AttemptSettings, RunSettings, SchedulerSettings, Settings, SubmitSettings
from tests.lab.fakes import make_system
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way


def read(
    directory: Path, text: str | bytes | None = None, overrides: dict[str, str] | None = None, **env: Any
) -> Loaded:
    if text is not None:
        (directory / FILE_NAME).write_bytes(text.encode() if isinstance(text, str) else text)
    return load(make_system(directory, env), overrides=overrides)


def refusal(directory: Path, text: str | bytes | None = None, **env: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        read(directory, text, **env)
    assert caught.value.exit_code == 2
    return caught.value


# ---- what wins ----------------------------------------------------------------------------------------------------


def test_the_environment_overrides_the_file_and_the_command_line_both(tmp_path: Path) -> None:
    text = '[run]\nname = "file"\n[scheduler]\nname = "slurm"\n'
    loaded = read(tmp_path, text, {"scheduler.name": "local"}, RESIL_RUN__NAME="env", RESIL_SCHEDULER__NAME="auto")
    assert (loaded.settings.run.name, loaded.settings.scheduler.name) == ("env", "local")
    assert loaded.origins == {"run.name": "$RESIL_RUN__NAME", "scheduler.name": "command line"}


@pytest.mark.parametrize("spelling", ["state_dir", "state-dir"])
def test_a_key_is_the_same_with_a_dash_and_with_an_underscore(tmp_path: Path, spelling: str) -> None:
    loaded = read(tmp_path, f'[run]\n{spelling} = "/file"\n')
    assert (loaded.settings.run.state_dir, loaded.origins) == ("/file", {"run.state_dir": str(tmp_path / FILE_NAME)})
    assert read(tmp_path, RESIL_RUN__STATE_DIR="/env").settings.run.state_dir == "/env"


def test_a_key_with_both_spellings_is_rejected(tmp_path: Path) -> None:
    assert "given twice" in refusal(tmp_path, '[run]\nstate_dir = "a"\nstate-dir = "b"\n').message
    assert "given twice" in refusal(tmp_path, "[sbatch]\ngpus-per-node = 1\ngpus_per_node = 2\n").message


def test_sbatch_options_of_the_environment_replace_those_of_the_file(tmp_path: Path) -> None:
    loaded = read(tmp_path, "[sbatch]\ngpus-per-node = 8\n", RESIL_SBATCH__GPUS_PER_NODE="4")
    assert loaded.settings.sbatch == {"gpus-per-node": "4"}


def test_a_flag_of_sbatch_can_be_set_and_unset_by_the_environment(tmp_path: Path) -> None:
    loaded = read(tmp_path, RESIL_SBATCH__EXCLUSIVE="true", RESIL_SBATCH__REQUEUE="False")
    assert loaded.settings.sbatch == {"exclusive": True, "requeue": False}


def test_names_of_the_trainings_own_variables_keep_their_capitals(tmp_path: Path) -> None:
    loaded = read(tmp_path, "[environment]\nNCCL_DEBUG = 'INFO'\n", RESIL_ENVIRONMENT__NCCL_DEBUG="WARN")
    assert loaded.settings.environment == {"NCCL_DEBUG": "WARN"}


def test_numbers_and_booleans_of_the_environment_table_become_strings(tmp_path: Path) -> None:
    loaded = read(tmp_path, "[environment]\nA = true\nB = 3\nC = 1.5\nD = 'x'\n")
    assert loaded.settings.environment == {"A": "true", "B": "3", "C": "1.5", "D": "x"}


@pytest.mark.parametrize(
    "name", ["RESIL_RUN", "RESIL_RUN_DIR", "RESIL_ATTEMPT", "RESIL_JOB_ID", "RESIL_SCHEDULER", "RESIL_LOCAL_SPOOL",
             "RESIL_PLUGINS", "RESIL_TRACEBACK", "RESILX__Y", "XRESIL_RUN__NAME", "resil_run__name"],
)  # fmt: skip
def test_variables_of_a_job_are_not_settings(tmp_path: Path, name: str) -> None:
    assert load(make_system(tmp_path, {name: "something"})).origins == {}


@pytest.mark.parametrize(
    ("name", "said"),
    [("RESIL_RUN__NMAE", "unknown key 'nmae' in [run] ($RESIL_RUN__NMAE)"),
     ("RESIL_RNU__NAME", "unknown key 'rnu' in the tables of $RESIL_RNU__NAME"),
     ("RESIL_RUN__", "unknown key ''"),
     ("RESIL___", "unknown key ''")],
)  # fmt: skip
def test_a_misspelt_variable_is_rejected_by_name(tmp_path: Path, name: str, said: str) -> None:
    variables: dict[str, Any] = {name: "x"}
    assert said in refusal(tmp_path, '[run]\ncommand = "x"\n', **variables).message


@pytest.mark.parametrize(
    ("table", "key", "hint"),
    [("attempt", "stop_after", "stop_after belongs below [guard]"),
     ("submit", "stop_after", "stop_after belongs below [guard]"),
     ("run", "signal_lead_s", "signal_lead_s belongs below [submit]"),
     ("guard", "finish_on_success", "finish_on_success belongs below [run]"),
     ("run", "deadline_s", "deadline_s belongs below [scheduler] or [watch]"),
     ("cron", "beat_s", "beat_s belongs below [attempt] or [guard]")],
)  # fmt: skip
def test_a_key_in_the_wrong_table_is_rejected_with_the_right_table(
    tmp_path: Path, table: str, key: str, hint: str
) -> None:
    error = refusal(tmp_path, f"[{table}]\n{key} = 60\n")
    assert f"unknown key {key!r} in [{table}]" in error.message
    assert error.hint.startswith(hint)


def test_an_error_names_the_origin_of_the_key(tmp_path: Path) -> None:
    error = refusal(tmp_path, '[submit]\narray = "3"\n', RESIL_SUBMIT__SIGNAL_LEAD_S="soon")
    assert "$RESIL_SUBMIT__SIGNAL_LEAD_S" in error.message
    assert FILE_NAME not in error.message


# ---- which file ---------------------------------------------------------------------------------------------------


def test_the_file_is_found_in_a_directory_above_and_paths_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('[run]\nname = "above"\nstate_dir = "state"\n')
    deep = tmp_path / "src" / "deep"
    deep.mkdir(parents=True)
    loaded = load(make_system(tmp_path, cwd=deep))
    assert (loaded.settings.run.name, loaded.project, loaded.state_dir) == ("above", tmp_path, tmp_path / "state")


def test_the_search_in_parent_directories_ends_at_home(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("")
    system = make_system(tmp_path, cwd=tmp_path / "home" / "project")
    system.cwd.mkdir(parents=True)
    assert find_file(system) is None


def test_without_a_project_file_the_users_file_applies(tmp_path: Path) -> None:
    own = tmp_path / "home" / ".config" / "resil" / "config.toml"
    system = make_system(tmp_path)
    own.parent.mkdir(parents=True)
    own.write_text('[run]\ngroup = "lab"\n')
    loaded = load(system)
    assert (loaded.path, loaded.settings.run.group, loaded.project) == (own, "lab", tmp_path)


def test_a_named_file_is_used_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("")
    (tmp_path / "other.toml").write_text('[run]\nname = "other"\n')
    (tmp_path / "third.toml").write_text('[run]\nname = "third"\n')
    system = make_system(tmp_path, {"RESIL_CONFIG": "other.toml"})
    assert load(system).settings.run.name == "other"
    assert load(system, named=Path("third.toml")).settings.run.name == "third"
    for variables, named, source in (
        ({"RESIL_CONFIG": "no.toml"}, None, "RESIL_CONFIG"),
        ({}, Path("no"), "--config"),
    ):
        with pytest.raises(SettingsError, match=f"{source} names .*no.*no such file") as caught:
            load(make_system(tmp_path, variables), named=named)
        assert caught.value.hint == "make one: resil init"


def test_an_empty_variable_names_no_file(tmp_path: Path) -> None:
    assert read(tmp_path, "", RESIL_CONFIG="").path == tmp_path / FILE_NAME


@pytest.mark.parametrize("kind", ["directory", "fifo", "dangling link"])
def test_a_path_that_is_not_a_file_is_an_error_and_not_skipped(tmp_path: Path, kind: str) -> None:
    path = tmp_path / FILE_NAME
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    assert f"{path} is not a regular file" in refusal(tmp_path).message
    with pytest.raises(SettingsError, match="not a regular file"):
        load(make_system(tmp_path), named=path)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "shared.toml").write_text('[run]\nname = "shared"\n')
    (tmp_path / FILE_NAME).symlink_to("shared.toml")
    assert read(tmp_path).settings.run.name == "shared"


@needs_root
def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    open_the_way(tmp_path / FILE_NAME)
    (tmp_path / FILE_NAME).write_text("")
    (tmp_path / FILE_NAME).chmod(0o600)
    system = make_system(tmp_path)
    with acting_as(NOBODY), pytest.raises(SettingsError, match="Permission denied") as caught:
        load(system)
    assert "read permission" in caught.value.hint


@needs_root
def test_an_unreadable_parent_directory_is_skipped(tmp_path: Path) -> None:
    open_the_way(tmp_path / FILE_NAME)
    closed = tmp_path / "closed"
    here = closed / "here"
    here.mkdir(parents=True)
    system = make_system(tmp_path, cwd=here)
    closed.chmod(0o700)
    with acting_as(NOBODY):
        assert load(system).path is None


# ---- what it may say ----------------------------------------------------------------------------------------------

ODD = {
    "unknown key": ('[run]\nnmae = "x"\n', "unknown key 'nmae' in [run]", "did you mean name?"),
    "unknown table": ("[rnu]\n", "unknown key 'rnu' in the tables", "did you mean run?"),
    "far from any": ("[zzzzzz]\n", "unknown key 'zzzzzz'", "known keys: act, alert, attempt, channel, checkpoints"),
    "outside any table": ('name = "x"\n', "'name' in", "move it below [run]"),
    "sbatch's outside any table": ('partition = "gpu"\n', "'partition' in", "move it below [sbatch]"),
    "a table that is a text": ('run = "gpt"\n', "'run' in", "write [run] on a line of its own"),
    "a table that is a list": ("[[sbatch]]\n", "'sbatch' in", "write [sbatch] on a line of its own"),
    "a nested table": ("[sbatch.gpu]\nx = 1\n", "'gpu' in [sbatch]", "a dot in a key creates a table"),
    "a dotted key": ("[environment]\nA.B = 1\n", "'A' in [environment]", "quote the key"),
    "a list for sbatch": ("[sbatch]\nx = [1]\n", "x in [sbatch]", ""),
    "a date for sbatch": ("[sbatch]\nbegin = 2026-01-01\n", "begin in [sbatch]", ""),
    "a text for a flag": ("[submit]\nrequeue = 3\n", "must be true or false", ""),
    "not TOML": ("[run\n", "is not TOML", "toml.io"),
    "a quoteless text": ("[run]\nname = gpt\n", "is not TOML", "strings need quotes"),
    "a number of a thousand digits": ("[run]\nname = " + "9" * 5000, "is not TOML", ""),
    "brackets without end": ("[run]\nsetup = " + "[" * 50_000, "is not TOML", ""),
    "twice": ("[run]\n[run]\n", "is not TOML", ""),
    "a variable in the state directory": ('[run]\nstate_dir = "$SCRATCH/x"\n', "not expanded", "RESIL_RUN__STATE_DIR"),
    "nobody's home": ('[run]\nstate_dir = "~nosuchuser/x"\n', "no user 'nosuchuser'", "~/"),
    "a line end in the state directory": ('[run]\nstate_dir = "a\\nb"\n', "control character", ""),
}


@pytest.mark.parametrize("case", ODD)
def test_an_invalid_file_is_rejected_with_a_hint(tmp_path: Path, case: str) -> None:
    text, message, hint = ODD[case]
    error = refusal(tmp_path, text)
    assert message in error.message and hint in error.hint
    assert str(tmp_path) in error.message


@pytest.mark.parametrize(
    ("raw", "said"), [(b"\xff\xfe[run]", "not UTF-8"), (b"[run]\nname = '\xe9'\n", "not UTF-8"), (b"\0", "not TOML")]
)
def test_bytes_that_are_not_utf8_are_rejected_with_their_position(tmp_path: Path, raw: bytes, said: str) -> None:
    assert said in refusal(tmp_path, raw).message


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert read(tmp_path, b'\xef\xbb\xbf[run]\nname = "x"\n').settings.run.name == "x"


def test_an_oversized_file_is_rejected(tmp_path: Path) -> None:
    assert "larger than any settings file" in refusal(tmp_path, "#" * 2**20 + "\n[run]\n").message


def test_sbatch_options_of_any_name_are_passed_on(tmp_path: Path) -> None:
    text = '[sbatch]\n"odd.name" = 1\n"" = "x"\nx_y = true\n"with space" = 1.5\n'
    assert read(tmp_path, text).settings.sbatch == {"odd.name": 1, "": "x", "x-y": True, "with space": 1.5}


def test_template_variables_keep_their_names_and_types(tmp_path: Path) -> None:
    assert read(tmp_path, "[template]\ngpus_per_node = 8\nimage = 'x'\n").settings.launcher == {
        "gpus_per_node": 8, "image": "x"
    }  # fmt: skip


def test_tilde_is_expanded_in_the_state_directory(tmp_path: Path) -> None:
    loaded = read(tmp_path, '[run]\nstate_dir = "~/runs"\n')
    assert loaded.state_dir == tmp_path / "home" / "runs"


def test_a_relative_state_directory_is_relative_to_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, '[run]\nstate_dir = "../x"\n').state_dir == tmp_path / "../x"


OWNERS = [RunSettings, SubmitSettings, AttemptSettings, GuardSettings, CheckpointSettings, SchedulerSettings]


@pytest.mark.parametrize("owner", OWNERS)
def test_every_key_is_explained_and_has_a_default(owner: type) -> None:
    explained = re.findall(r"^ {4}(\w+):", inspect.getdoc(owner) or "", re.MULTILINE)  # dedented since Python 3.13
    assert explained == [field.name for field in fields(owner)]
    owner()


def test_without_any_file_a_run_is_private_serial_and_stops_five_minutes_early() -> None:
    settings = Settings()
    assert (settings.run.state_dir, settings.run.group, settings.scheduler.name) == (".resil", "", "auto")
    assert (settings.submit.signal, settings.submit.signal_lead_s, settings.submit.requeue) == ("USR1", 300.0, None)


def test_settings_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().run.name = "other"  # type: ignore[misc]
