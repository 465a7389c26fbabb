"""The mirror process's thread for files keeps what it cannot write, within bounds, and says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.guard.heartbeat.beat import Pulse, RankBeat
from resilience.guard.heartbeat.process import MOST_LINES, Files, look_again
from tests.guard.guards import make_run, wait_until


class Asker:
    """A rank that asks for the text of a file."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def say(self, message: dict[str, Any]) -> None:
        self.heard.append(message)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "demo")


@pytest.fixture
def files(run: Path) -> Iterator[Files]:
    order = {"run_dir": str(run), "job_id": "12", "attempt": 3, "host": "n1", "beat_s": 0.05,
             "address": str(run / "agreement" / "12")}  # fmt: skip
    files = Files(order)
    yield files
    files.finish(20.0)


def test_a_rank_is_shown_soon_after_it_came_and_nothing_before(files: Files, run: Path) -> None:
    assert not list((run / "beats").iterdir())
    files.admit(0, RankBeat(77, Pulse(5.0)))
    wait_until((run / "beats" / "12.n1").exists)
    assert tomllib.loads((run / "beats" / "12.n1").read_text())["rank"]["0"]["pid"] == 77


def test_what_a_killed_mirror_left_beside_the_beats_is_removed(files: Files, run: Path) -> None:
    (run / "beats" / ".12.n1.abc.tmp").touch()
    os.utime(run / "beats" / ".12.n1.abc.tmp", (1000.0, 1000.0))
    files.admit(0, RankBeat(77, Pulse(5.0)))
    wait_until(lambda: [path.name for path in (run / "beats").iterdir()] == ["12.n1"])


def test_lines_wait_for_the_run_directory_in_bounded_number(files: Files, run: Path) -> None:
    shutil.rmtree(run)
    for number in range(MOST_LINES + 10):
        files.add_line(1, json.dumps({"number": number}).encode() + b"\n")
    files.add_line(2, b"{}\n")
    wait_until(lambda: files.writer.error)
    assert "No such file" in files.writer.error and str(run) in files.writer.error
    make_run(run)
    files.add_line(2, b"{}\n")
    wait_until(lambda: not files.writer.error)
    wait_until(lambda: (run / "journal" / "12.2.jsonl").exists())
    numbers = [json.loads(line)["number"] for line in (run / "journal" / "12.1.jsonl").read_text().splitlines()]
    assert numbers == list(range(10, MOST_LINES + 10))
    assert (run / "journal" / "12.2.jsonl").read_text() == "{}\n{}\n"


def test_the_last_words_are_written_before_the_end(run: Path) -> None:
    order = {"run_dir": str(run), "job_id": "12", "attempt": 3, "host": "n1", "beat_s": 1000.0, "address": "/x/y"}
    files = Files(order)
    pulse = Pulse(5.0)
    files.admit(0, RankBeat(77, pulse))
    wait_until((run / "beats" / "12.n1").exists)
    pulse.look((41, 0, "train"), 6.0)
    files.add_line(0, b"{}\n")
    files.finish(20.0)
    assert tomllib.loads((run / "beats" / "12.n1").read_text())["step"] == 41
    assert (run / "journal" / "12.0.jsonl").read_text() == "{}\n"


def test_every_asker_hears_the_address_or_that_there_is_none(files: Files, run: Path) -> None:
    askers = [Asker(), Asker()]
    files.ask(0, "address", askers[0].say)
    wait_until(lambda: askers[0].heard == [{"address": None}])
    look_again(str(run / "agreement" / "12"))
    file = run / "agreement" / "12"
    file.touch(mode=0o600)
    file.write_text("told")
    for asker in askers:
        files.ask(0, "address", asker.say)
    wait_until(lambda: all(asker.heard[-1:] == [{"address": "told"}] for asker in askers))


def test_a_rank_hears_what_it_had_learned_and_no_other(files: Files, run: Path) -> None:
    askers = [Asker(), Asker()]
    files.keep_learned(1, "{}\n")
    wait_until((run / "learned" / "1.json").exists)
    for rank, asker in enumerate(askers):
        files.ask(rank, "learned", asker.say)
    wait_until(lambda: [asker.heard for asker in askers] == [[{"learned": None}], [{"learned": "{}\n"}]])


def test_looking_again_makes_only_the_one_folder_and_leaves_no_file(run: Path) -> None:
    look_again(str(run / "gone" / "deeper" / "file"))
    assert not (run / "gone").exists()
    look_again(str(run / "agreement" / "12"))
    assert list((run / "agreement").iterdir()) == []
