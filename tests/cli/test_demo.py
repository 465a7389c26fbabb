"""`resil demo` shows what happens, ends with a table and a picture, and fails where the ends differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from resilience.cli import demo
from resilience.cli.demo import write_svg
from resilience.demo.cron import CronNight
from resilience.demo.demo import DemoAttempt, DemoResult
from resilience.demo.night import NotifiedFault
from resilience.demo.sdc import Corruption, SdcResult
from resilience.errors import StateDirectoryError
from tests.lab.shell import Shell

ATTEMPTS = (
    DemoAttempt(1, 8, "7_1", "n1", 0, 90, 0, (), (), "crashed", (), 2.5, 1),
    DemoAttempt(2, 9, "7_2", "n1", 80, 400, 10, (), ((99, "best"),), "finished", (), 3.0, 0),
)


NIGHT = (
    NotifiedFault("full disk", "3f9a1c04", ("CRITICAL: /scratch", "RESOLVED: /scratch"), 2, "ada", True),
    NotifiedFault("dead queue", "77aa01bb", ("CRITICAL: gpt", "RESOLVED: gpt"), 2, "ada", True),
)


CRON = CronNight(killed="3", successor="4", mail="CRITICAL: /disk", told_s=2.1, slots=5, twice=0, left=0)


def plays(
    monkeypatch: pytest.MonkeyPatch,
    loss: float = 1.5,
    night: tuple[NotifiedFault, ...] = NIGHT,
    cron: CronNight | None = CRON,
) -> dict[str, Any]:
    """Let the demo end with this loss, this night and this cron; what it was asked for is in the answer."""
    asked: dict[str, Any] = {}

    def run_demo(project: Any, *, report: Callable[[float, str], None], **options: Any) -> DemoResult:
        asked.update(options, scheduler=project.scheduler_name())
        report(1.0, "attempt 1 ended at step 90: crashed")
        return DemoResult(ATTEMPTS, 1, 7, 0.5, loss, 1.5, 20.0, Path("/kept"), night, cron)

    monkeypatch.setattr(demo, "run_demo", run_demo)
    return asked


def test_the_table_tells_each_attempt_and_that_nothing_was_changed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = plays(monkeypatch)
    said = shell.resil("demo")
    assert said.code == 0 and asked["scheduler"] == "local"
    assert "   1.0 s  attempt 1 ended at step 90: crashed" in said.out
    assert "2        7_2  80-400  10      3 s     0     finished" in said.out
    assert (
        "2 attempts, 10 steps redone, 1 rejected by the kill switch, 7 of 10 jobs not needed, 20 s in all" in said.out
    )
    assert "final loss 1.5; uninterrupted 1.5: exactly the same" in said.out


def test_an_end_that_differs_is_a_failure(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(monkeypatch, loss=1.6)
    said = shell.resil("demo", "--json")
    assert said.code == 1 and "did not reach the loss" in said.err
    assert said.json["exact"] is False


def test_the_night_is_a_table_of_who_was_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(monkeypatch)
    said = shell.resil("demo")
    assert said.code == 0
    assert "full disk   3f9a1c04  2      2      ada              yes" in said.out
    assert "2 faults, each notified once when it started and once when it was resolved" in said.out


@pytest.mark.parametrize(
    "fault",
    [
        NotifiedFault("full disk", "3f9a1c04", ("CRITICAL",) * 3, 3, "ada", True),
        NotifiedFault("full disk", "3f9a1c04", ("CRITICAL", "RESOLVED"), 1, "ada", True),
        NotifiedFault("full disk", "3f9a1c04", ("CRITICAL", "CRITICAL"), 2, "ada", False),
    ],
    ids=["too often", "not by Slack", "its end not"],
)
def test_a_fault_that_is_not_told_as_it_must_be_is_a_failure(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, fault: NotifiedFault
) -> None:
    plays(monkeypatch, night=(fault,))
    said = shell.resil("demo")
    assert said.code == 1 and "NOT notified" in said.out and "not notified exactly once" in said.err


def test_the_scheduler_that_outlived_its_node_is_a_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(monkeypatch)
    said = shell.resil("demo")
    assert said.code == 0
    assert (
        "died with job 3, job 4 took over: 5 slots, each run once, and the full disk notified after 2.1 s" in said.out
    )
    plays(monkeypatch, night=(), cron=None)
    assert shell.resil("demo", "--scheduler", "slurm").code == 0, "on a cluster neither act two nor three is played"


@pytest.mark.parametrize(
    "changed", [{"successor": "3"}, {"successor": ""}, {"mail": ""}, {"slots": 0}, {"twice": 1}, {"left": 1}]
)
def test_a_scheduler_that_is_not_as_it_must_be_is_a_failure(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    plays(monkeypatch, cron=replace(CRON, **changed))
    said = shell.resil("demo", "--json")
    assert said.code == 1 and "did not survive the loss of its node" in said.err
    assert said.json["cron"] == asdict(replace(CRON, **changed))


def test_programs_get_json_alone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(monkeypatch)
    document = shell.resil("demo", "--json").json
    assert (document["exact"], [a["why"] for a in document["attempts"]]) == (True, ["crashed", "finished"])


def test_the_picture_shows_what_was_printed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(monkeypatch)
    shell.resil("demo", "--svg", "demo.svg")
    text = "".join(ElementTree.parse(shell.directory / "demo.svg").getroot().itertext()).replace("\xa0", " ")
    assert "attempt 1 ended at step 90: crashed" in text


def test_broken_settings_of_the_directory_one_is_in_are_no_obstacle(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.settings("[torn")
    plays(monkeypatch)
    assert shell.resil("demo").code == 0


def test_the_directory_and_the_scheduler_are_as_asked_for(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = plays(monkeypatch)
    said = shell.resil("demo", "--folder", "here", "--scheduler", "slurm")
    assert (asked["directory"], asked["scheduler"]) == (shell.directory / "here", "slurm")
    assert "kept: /kept" in said.out


def shown(path: Path) -> str:
    return "".join(ElementTree.parse(path).getroot().itertext()).replace("\xa0", " ")


def test_every_line_is_in_the_picture_in_one_piece(tmp_path: Path) -> None:
    long = "a line that is much wider than eighty columns " * 4
    write_svg(
        tmp_path / "x.svg", [("$ resil demo", "bold"), (long, "red"), ("", ""), ("é 漢 [bold]x[/]", "dim")], title="T"
    )
    text = shown(tmp_path / "x.svg")
    assert "$ resil demo" in text and long.rstrip() in text and "é 漢 [bold]x[/]" in text


def test_nothing_in_a_text_breaks_the_picture(tmp_path: Path) -> None:
    write_svg(tmp_path / "x.svg", [("<script>alert(1)</script> & \"'", "no such colour")], title="<T>")
    assert "<script>alert(1)</script> & \"'" in shown(tmp_path / "x.svg")


def test_the_picture_asks_the_network_for_nothing(tmp_path: Path) -> None:
    write_svg(tmp_path / "x.svg", [("x", "")], title="T")
    drawn = (tmp_path / "x.svg").read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http" not in drawn.replace("https://www.textualize.io", "") and "@font-face" not in drawn


def test_a_picture_of_nothing_is_a_picture(tmp_path: Path) -> None:
    write_svg(tmp_path / "x.svg", [], title="T")
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag.endswith("svg")


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError, match="No such file"):
        write_svg(tmp_path / "none" / "x.svg", [("x", "")], title="T")


# ---- silent data corruption ----------------------------------------------------------------------------------------


def plays_sdc(monkeypatch: pytest.MonkeyPatch, named: str = "rank 1 on n1, step 50", loss: float = 0.5) -> None:
    """Let the demo of silent data corruption end with this."""
    found = Corruption("a bit flip", "digests", named, "a replay", (0.5, loss))

    def play_sdc(system: Any, *, directory: Path | None, say: Callable[[str], None]) -> SdcResult:
        say("a bit flips")
        return SdcResult((found, found, found), 0.5, 9.0)

    monkeypatch.setattr(demo, "play_sdc", play_sdc)


def test_the_table_of_silent_corruptions_tells_what_was_found_and_how_it_was_survived(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    plays_sdc(monkeypatch)
    said = shell.resil("demo", "--sdc")
    assert said.code == 0 and "each found, named and survived" in said.out
    assert "rank 1 on n1, step 50" in said.out and "a replay" in said.out
    assert shell.resil("demo", "--sdc", "--json").json["survived"] is True


@pytest.mark.parametrize(("named", "loss"), [("", 0.5), ("rank 1", 0.6)])
def test_a_corruption_that_is_not_found_or_changes_the_loss_fails(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, named: str, loss: float
) -> None:
    plays_sdc(monkeypatch, named, loss)
    said = shell.resil("demo", "--sdc")
    assert said.code == 1 and "NOT each found" in said.out


def test_the_demo_of_silent_corruption_takes_an_empty_directory_only(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty" in shell.resil("demo", "--sdc", "--folder", str(tmp_path / "full")).err
