"""Nothing that a test starts is left, however the test or its process ends. Each runs in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.leftovers import REPOSITORY, own_mark, unmark
from tests.lab.slurm.processes import Process, text_of, until

CONFTEST = """\
import tests.lab.leftovers
tests.lab.leftovers.GRACE_S = 0.5
"""

# Each test starts a grandchild that leaves parent, session, group and environment, and then ends in its own way.
PLANTED = """\
import os, signal, subprocess, time
import pytest

def leave(what):
    script = f"echo $$ >{pids}; exec sleep 86400.{what}"
    subprocess.run(["env", "-i", "setsid", "--fork", "sh", "-c", script], check=True)
    while not os.path.exists({pids!r}) or not open({pids!r}).read().endswith("\\n"):
        time.sleep(0.01)

def test_passes():
    leave(1)

def test_fails():
    leave(2)
    assert False, "on purpose"

@pytest.mark.timeout(8)
def test_hangs():
    leave(3)
    time.sleep(3600)

@pytest.mark.timeout(8, method="thread")
def test_hangs_and_takes_its_process_along():
    leave(4)
    time.sleep(3600)

def test_is_interrupted():
    leave(5)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(3600)

def test_is_killed():
    leave(6)
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(["sh", "-c", "while :; do sleep 0.01; sleep 0.5; done"])
    yield process
    process.kill()
    process.wait()

def test_uses_a_server_of_its_module(server):
    subprocess.run(["sleep", "0.7"])

@pytest.fixture(scope="module")
def careless():
    leave(7)

def test_uses_a_careless_fixture(careless):
    pass
"""
LEFT = "left processes running"


def session(directory: Path, test: str, *words: str) -> str:
    """Run one of these tests in a pytest of its own; return what that said."""
    pids = directory / "pids"
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_planted.py").write_text(
        PLANTED.replace("{pids}", str(pids)).replace("{pids!r}", repr(str(pids)))
    )
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(directory),
        f"--basetemp={directory}/base",
    ]
    done = subprocess.run(
        [*argv, *words, f"test_planted.py::{test}"], cwd=directory, env={"PYTHONPATH": str(REPOSITORY), "PATH": "/bin"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=unmark,
    )  # fmt: skip
    return done.stdout


def grandchild(directory: Path) -> Process | None:
    """Return the process that a test started; None: it is gone."""
    return Process.of(int(text_of(directory / "pids")))


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("test_passes", "the test left processes running, which were killed now"),
        ("test_fails", "1 failed, 1 error"),
        ("test_hangs", "Timeout"),
        ("test_uses_a_careless_fixture", "the module left processes running, which were killed now"),
    ],
)
def test_a_process_that_is_left_is_killed_and_named_and_its_test_fails(tmp_path: Path, test: str, said: str) -> None:
    output = session(tmp_path, test)
    assert grandchild(tmp_path) is None
    assert said in output and LEFT in output and "sleep 86400." in output, output


@pytest.mark.parametrize(
    ("test", "words", "said"),
    [
        ("test_hangs_and_takes_its_process_along", (), "Timeout"),
        ("test_is_killed", (), ""),
        pytest.param("test_is_killed", ("-n1",), "crashed while running", marks=pytest.mark.soak),
        ("test_is_interrupted", (), "KeyboardInterrupt"),
        pytest.param("test_hangs", ("-n1",), LEFT, marks=pytest.mark.soak),
    ],
)
def test_nothing_is_left_when_the_process_of_a_test_ends_with_it(
    tmp_path: Path, test: str, words: tuple[str, ...], said: str
) -> None:
    output = session(tmp_path, test, *words)
    assert said in output, output
    until(lambda: grandchild(tmp_path) is None, "the grandchild to be killed")


def test_the_server_of_a_module_and_what_it_starts_are_left_by_no_test(tmp_path: Path) -> None:
    output = session(tmp_path, "test_uses_a_server_of_its_module")
    assert "1 passed" in output and LEFT not in output, output


def test_a_pytest_inside_a_test_belongs_to_that_test(mark: int) -> None:
    code = "from tests.lab.leftovers import marked, own_mark\nwith marked() as mark: print(mark, own_mark())"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(mark)] * 2 == [str(own_mark())] * 2
