"""A secret lies where only its owner can read it, is refused otherwise with what to do, and never shows itself."""

from __future__ import annotations

import copy
import json
import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from resilience.errors import SettingsError
from resilience.system.ports import System
from resilience.system.secrets import Secret, check_secret, read_secret, read_secret_lines, scrubbed_environment
from tests.lab.canary import plant
from tests.lab.fakes import make_system
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way


@dataclass(frozen=True)
class Settings:
    token_file: str = ""
    token_variable: str = ""


@pytest.fixture
def system(tmp_path: Path, canary: str) -> System:
    return make_system(tmp_path, {"TOKEN": canary, "EMPTY": "", "TWO": f"{canary}\nX", "SHORT": "abc"})


def read(path: Path, system: System) -> str:
    found = read_secret(Settings(token_file=str(path)), "token", system)
    assert found is not None
    return found.reveal()


def refused(settings: Settings, system: System, canary: str) -> SettingsError:
    """The refusal, which shows nothing of the secret in any of its parts."""
    with pytest.raises(SettingsError) as caught:
        read_secret(settings, "token", system)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert canary not in str(chain) + repr(chain) + repr(getattr(chain, "hint", ""))
        chain = chain.__cause__ or chain.__context__
    return caught.value


def test_a_secret_is_read_from_a_private_file_or_a_variable(system: System, canary: str, canary_file: Path) -> None:
    assert read(canary_file, system) == canary
    canary_file.chmod(0o400)
    assert read(canary_file, system) == canary
    found = read_secret(Settings(token_variable="TOKEN"), "token", system)
    assert found is not None and found.reveal() == canary
    assert read_secret(Settings(), "token", system) is None


def test_a_file_may_lie_at_home(tmp_path: Path, system: System, canary: str) -> None:
    plant(system.host.home, "token", canary)
    assert read(Path("~/planted-secrets/token"), system) == canary


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o666, 0o700, 0o601, 0o620])
def test_a_file_that_others_may_touch_is_refused_with_the_command_to_run(
    system: System, canary: str, canary_file: Path, mode: int
) -> None:
    canary_file.chmod(mode)
    error = refused(Settings(token_file=str(canary_file)), system, canary)
    assert f"mode {mode:04o}" in error.message and error.hint == f"chmod 600 {canary_file}"


@needs_root
def test_a_file_of_another_user_is_refused_and_one_of_root_is_not(
    system: System, canary: str, canary_file: Path
) -> None:
    os.chown(canary_file, NOBODY, NOBODY)
    assert "another user" in refused(Settings(token_file=str(canary_file)), system, canary).message
    open_the_way(canary_file)
    canary_file.parent.chmod(0o755)
    with acting_as(NOBODY):
        assert read(canary_file, system) == canary


def test_a_link_a_directory_a_pipe_and_a_missing_file_are_refused(
    system: System, canary: str, canary_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(canary_file)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, word in (
        ("link", "symbolic link"),
        ("pipe", "not a regular file"),
        ("missing", "No such file"),
        (".", "not a regular file"),
    ):
        assert word in refused(Settings(token_file=f"{tmp_path}/{name}"), system, canary).message


@pytest.mark.parametrize(
    ("content", "word"),
    [("", "is empty"), ("\n \n", "is empty"), ("{canary}\nsecond", "more than one line"), ("{canary}\rX", "one line"),
     ("{canary}\0", "non-printable characters"), ("{canary}\x1b[2J", "non-printable characters"), ("abc", "shorter"),
     ("{canary}" * 1000, "too many for a secret")],
)  # fmt: skip
def test_what_is_no_secret_is_refused_without_showing_it(
    system: System, canary: str, tmp_path: Path, content: str, word: str
) -> None:
    path = plant(tmp_path, "token", content.replace("{canary}", canary))
    assert word in refused(Settings(token_file=str(path)), system, canary).message


def test_a_secret_without_an_end_of_line_or_with_blanks_around_is_understood(
    system: System, canary: str, tmp_path: Path
) -> None:
    path = plant(tmp_path, "token", "")
    for content in (canary, f"{canary}\r\n", f"  {canary}  \n\n"):
        path.write_text(content)
        assert read(path, system) == canary


@pytest.mark.parametrize(
    ("name", "word"), [("MISSING", "is not set"), ("EMPTY", "is empty"), ("TWO", "one line"), ("SHORT", "shorter")]
)
def test_a_variable_that_cannot_be_used_is_refused(system: System, canary: str, name: str, word: str) -> None:
    assert word in refused(Settings(token_variable=name), system, canary).message


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Settings("/a", "B"), "both token_file and token_variable"),
        (Settings("xoxb-CaNaRy"), "seems to be the secret itself"),
        (Settings("https://hooks.slack.com/services/CaNaRy"), "seems to be the secret itself"),
        (Settings("Bearer CaNaRy"), "seems to be the secret itself"),
        (Settings("relative.txt"), "an absolute path"),
        (Settings("", "hunter2 CaNaRy"), "name of an environment variable"),
        (Settings("", "https://CaNaRy"), "name of an environment variable"),
        (Settings(), "neither token_file nor token_variable"),
    ],
)
def test_settings_that_name_no_place_are_refused_without_showing_them(settings: Settings, word: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_secret(settings, "token")
    assert word in caught.value.message and "CaNaRy" not in caught.value.message + caught.value.hint


def test_a_secret_is_not_required_where_it_is_said_so() -> None:
    assert check_secret(Settings(), "token", required=False) is False
    assert check_secret(Settings("/a"), "token") is True


def test_several_lines_are_several_secrets_and_comments_are_passed_over(
    system: System, tmp_path: Path, canary: str
) -> None:
    path = plant(tmp_path, "urls", f"# mine\njson://{canary}/one\n\njson://{canary}/two")
    found = read_secret_lines(replace(Settings(), token_file=str(path)), "token", system)
    assert [secret.reveal()[-3:] for secret in found] == ["one", "two"]


def test_a_secret_never_shows_itself(canary: str) -> None:
    secret = Secret(canary)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret:>40}", f"{secret!r}", f"{secret!s}", f"{[secret]}",
             f"{({'token': secret})}", json.dumps({"token": secret}, default=str), str(vars(type(secret)))]  # fmt: skip
    assert not any(canary in text for text in shown)
    assert secret == Secret(canary) and secret != canary
    for write_down in (lambda: json.dumps(secret), lambda: pickle.dumps(secret), lambda: copy.copy(secret)):
        with pytest.raises(TypeError):
            write_down()


def test_a_program_sees_what_every_program_needs_and_no_more() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/home/ada",
        "LC_ALL": "C.UTF-8",
        "AWS_SECRET": "x",
        "TOKEN": "y",
        "PAGER_ROOM": "7",
    }
    assert scrubbed_environment(environ, ("PAGER_ROOM",)) == {
        "PATH": "/bin", "HOME": "/home/ada", "LC_ALL": "C.UTF-8", "PAGER_ROOM": "7",
    }  # fmt: skip
