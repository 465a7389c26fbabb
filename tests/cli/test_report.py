"""`resil report` and `resil timeline`, on run directories as batch shells and guards leave them."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints.directory import StoreDirectory
from resilience.nodes.evidence import Evidence, Source, evidence_folder
from resilience.report.sources import saves_of
from tests.checkpoints.saves import committed, new_store
from tests.lab.shell import ALERTING, Office, Shell, full, well
from tests.lab.waiting import until
from tests.report.run_on_disk import BEGIN, write_attempts


def told(shell: Shell, *words: str) -> dict[str, Any]:
    said = shell.resil("report", *words, "--json")
    assert said.code == 0, said.err
    document: dict[str, Any] = said.json
    return document


def page(shell: Shell, *words: str) -> str:
    said = shell.resil("report", *words, "-o", "page.html")
    assert said.code == 0, said.err
    return (shell.directory / "page.html").read_text()


@pytest.fixture
def shell(shell: Shell) -> Shell:
    assert shell.resil("submit").code == 0
    return shell


def test_the_page_and_its_json_are_those_of_the_run(shell: Shell) -> None:
    write_attempts(shell.run_dir, 5)
    document, text = told(shell), page(shell)
    assert [one["attempt"] for one in document["attempts"]] == [1, 2, 3, 4, 5]
    assert [one["failure"] for one in document["attempts"]] == ["stopped", "gpu oom", "stopped", "gpu oom", "finished"]
    assert document["attempts"][1]["redone_steps"] == 300 and document["state"] == "finished"
    assert document["saves"] == {"count": 28, "stall_s": 8.0, "durable_s": 40.0, "interval_s": 608.0}
    assert sum(document["time"]["ms"].values()) == document["time"]["end_ms"] - document["time"]["start_ms"]
    embedded = json.loads(text.split('id="resil-report">')[1].split("</script>")[0])
    assert {**embedded, "made_at": 0} == {key: value for key, value in {**document, "made_at": 0}.items()
                                          if key not in ("schema", "kind")}  # fmt: skip
    assert "5 attempts, 2 of them failed" in text and "CUDA out of memory" in text


def test_what_was_redone_is_that_of_the_ledger_of_time_where_a_run_went_back_twice(shell: Shell) -> None:
    write_attempts(shell.run_dir, 3)
    for job, step in ((1002, 1200), (1003, 600)):
        journal = shell.run_dir / "journal" / f"{job}.0.jsonl"
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        lines = [json.dumps(one | ({"step": step} if one["event"] == "resume" else {})) for one in events]
        journal.write_text("\n".join(lines) + "\n")
    document = told(shell)
    assert [one["redone_steps"] for one in document["attempts"]] == [
        one["redone_steps"] for one in document["time"]["by_attempt"]
    ]
    assert document["attempts"][0]["redone_steps"] > 1200 - 600, "the second time went back further"


def test_the_page_is_written_beside_the_project_and_named_after_the_run(shell: Shell) -> None:
    write_attempts(shell.run_dir, 1)
    said = shell.resil("report")
    assert said.code == 0 and said.out.startswith("gpt: finished; 1 attempt, none failed; ")
    assert said.out.endswith("  gpt-report.html\n")
    assert (shell.directory / "gpt-report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_page_that_cannot_be_written_is_an_error(shell: Shell) -> None:
    said = shell.resil("report", "-o", "missing/page.html")
    assert said.code == 1 and "cannot write" in said.err


def test_a_run_without_an_attempt_has_a_page(shell: Shell) -> None:
    text = page(shell)
    assert "Not started" in text and "nothing to draw" in text


def test_sources_that_are_not_there_are_said(shell: Shell) -> None:
    write_attempts(shell.run_dir, 2, learned=False)
    missing = "\n".join(told(shell)["missing"])
    assert "no record of the scheduler (sacct) of 2 of 2 ended attempts" in missing
    assert "no directory of checkpoints is configured" in missing
    assert "no loss" in missing and "no channel is configured" in missing
    assert all(line in page(shell).replace("&gt;", ">") for line in missing.split("\n"))


def test_an_attempt_without_end_and_heartbeat_may_be_lost(shell: Shell) -> None:
    write_attempts(shell.run_dir, 1, is_finished=False)
    document = told(shell)
    assert "attempt 1 has no recorded end, and no heartbeat ever" in str(document)
    assert document["state"] == "running, or lost" and not document["time"]["is_running"]
    (shell.run_dir / "attempts" / "0001.beat").touch()
    document = told(shell)
    assert "no heartbeat" not in str(document)
    assert document["state"] == "running" and document["time"]["is_running"]


@pytest.mark.parametrize(("name", "state"), [("switches/kill", "killed"), ("attempts/breaker", "held by the breaker")])
def test_a_run_that_does_not_go_on_says_so(shell: Shell, name: str, state: str) -> None:
    write_attempts(shell.run_dir, 2, is_finished=False)
    (shell.run_dir / "attempts" / "0002.end").write_text('end = "exited"\nexit_code = 1\ntime = 1795010000\n')
    assert told(shell)["state"] == "not finished"
    (shell.run_dir / name).write_text("")
    assert told(shell)["state"] == state


def test_incidents_are_told_with_their_evidence(shell: Shell) -> None:
    write_attempts(shell.run_dir, 1, is_finished=False)
    office = Office(shell)
    office.tick(full())
    office.tick(well())
    office.tick(full("/home"))
    first, second = told(shell)["incidents"]
    assert (first["subject"], first["messages"], first["resolved"] is None) == ("/scratch", 1, False)
    assert (second["subject"], second["messages"], second["resolved"]) == ("/home", 1, None)
    assert "2 incidents, each told once" in page(shell) and "df: 99%" in page(shell)


def test_a_fault_that_came_back_is_counted_as_often_as_it_was_found(shell: Shell) -> None:
    write_attempts(shell.run_dir, 1, is_finished=False)
    office = Office(shell)
    for _ in range(3):
        office.tick(full())
        office.tick(well())
    (only,) = told(shell)["incidents"]
    assert only["times"] == 3
    assert "3 incidents of 1 fault" in page(shell)


def test_a_copy_of_a_run_says_that_its_queue_and_its_incidents_are_those_of_the_original(
    shell: Shell, tmp_path: Path
) -> None:
    write_attempts(shell.run_dir, 2)
    Office(shell).tick(full())
    copy = tmp_path / "archive"
    shutil.copytree(shell.directory, copy)
    for _ in range(2):  # the first one sets the copied incidents aside
        found = told(shell, "-c", str(copy / "resil.toml"))
        assert found["incidents"] == [] and f"a copy of {shell.run_dir}: " in "\n".join(found["missing"])
    assert len(told(shell)["incidents"]) == 1 and "a copy of" not in str(told(shell)["missing"])


def test_checkpoints_are_shown_with_their_verification(shell: Shell) -> None:
    write_attempts(shell.run_dir, 1)
    store = shell.directory / "checkpoints"
    shell.settings('[run]\nname = "gpt"\ncommand = "x"\n[checkpoints]\npath = "checkpoints"\n')
    assert "no checkpoint was committed" in str(told(shell)["missing"])
    names = [committed(new_store(store, step), step, step) for step in (10, 20, 30)]
    assert shell.resil("ckpt", "verify", names[0], "--deep", "--store", str(store)).code == 0
    (store / names[1] / "model.bin").write_bytes(b"x")
    shell.resil("ckpt", "verify", names[1], "--store", str(store))
    (StoreDirectory(store).checkpoints()[2].manifest_path).write_text("{")
    found = {one["step"]: one for one in told(shell)["checkpoints"]}
    assert [found[step]["state"] for step in (10, 20, 30)] == ["verified", "damaged", "damaged"]
    assert "model.bin" in found[20]["why"] and found[10]["size_bytes"] > 0


def test_nodes_are_shown_with_what_is_known_against_them(shell: Shell) -> None:
    write_attempts(shell.run_dir, 4)
    now = time.time()
    bad = Evidence(node="n3", time=now, source=Source.XID, why="Xid 79: fallen off the bus", about="x")
    evidence_folder(shell.project).add([bad], now)
    (worst, *others) = told(shell)["nodes"]
    assert (worst["node"], worst["state"], worst["attempts"]) == ("n3", "excluded", 1)
    assert "Xid 79" in worst["why"] and {one["state"] for one in others} == {"good"}
    assert "Xid 79" in page(shell)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"losses": 7}', '{"losses": [{"step": "x", "losses": [1]}]}'])
def test_losses_that_cannot_be_read_are_none(shell: Shell, text: str) -> None:
    write_attempts(shell.run_dir, 1)
    assert len(told(shell)["losses"]) == 200
    (shell.run_dir / "learned" / "0.json").write_text(text)
    assert told(shell)["losses"] == []


def test_what_saves_cost_is_a_median_within_attempts() -> None:
    events = [
        {"event": "save_begin", "attempt": attempt, "time": 1000.0 * attempt + 100 * number}
        for attempt in (1, 2)
        for number in range(3)
    ]
    assert saves_of(events).interval_s == 100.0, "not from one attempt to the next"
    assert saves_of([{"event": "save", "seconds": "x"}, {"event": "save_begin", "time": None}]).count == 0
    assert saves_of([{"event": ["save"], "seconds": 1.0}]).count == 0


def test_a_timeline_is_text_and_a_picture(shell: Shell, tmp_path: Path) -> None:
    assert shell.resil("timeline").out == "gpt: 0 attempts in 0 s, 0 s of them running\n"
    write_attempts(shell.run_dir, 3)
    said = shell.resil("timeline")
    assert said.code == 0 and [line[:7] for line in said.out.splitlines()[1:]] == ["    1 │", "    2 │", "    3 │"]
    assert "gpu oom, step" in said.out
    picture, same = tmp_path / "gpt.svg", tmp_path / "same.svg"
    assert shell.resil("timeline", "--svg", str(picture)).out == ""
    shell.resil("attempts", "--svg", str(same))
    assert picture.read_text() == same.read_text() and "gpu oom" in picture.read_text()


def test_the_first_attempt_began_when_it_did(shell: Shell) -> None:
    write_attempts(shell.run_dir, 2)
    assert told(shell)["attempts"][0]["start_time"] == BEGIN


def test_a_run_that_cannot_be_read_does_not_keep_the_others_from_being_sent(shell: Shell) -> None:
    Office(shell)
    assert shell.resil("submit", "--run", "abc").code == 0
    write_attempts(shell.run_dir, 2, is_finished=False)
    (shell.run_dir / "attempts" / "0002.beat").touch()
    broken = shell.run_dir.with_name("abc") / "attempts"
    broken.rmdir()
    broken.write_text("")
    said = shell.resil("report", "--send")
    assert said.out.startswith("gpt: running; 2 attempts") and said.code == 1 and "abc" in said.err


def test_send_queues_one_message_for_each_run_and_slot(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Office(shell)  # before the first command: the channels that there are, are listed once
    shell.settings("")
    said = shell.resil("report", "--send")
    assert (said.code, said.out) == (0, "no channel is configured, so no report is sent: [alert] channels\n")
    shell.settings(ALERTING)
    write_attempts(shell.run_dir, 2)
    monkeypatch.setenv("RESIL_CRON_SLOT", "1795000000")
    assert shell.resil("report", "--send").out == "", "it ended before this week"
    for _ in range(2):
        said = shell.resil("report", "gpt", "--send")
        assert said.code == 0 and said.out.startswith("gpt: finished; 2 attempts")
    kept = shell.directory / ".resil" / ".alerts" / "sent"

    def sent() -> list[str]:
        return sorted(path.name for path in kept.iterdir()) if kept.is_dir() else []

    until(
        lambda: len(sent()) >= 2 or shell.resil("report", "gpt", "--send").code, timeout_s=100.0
    )  # later on a busy machine
    assert sent() == ["report-gpt-1795000000.list", "report-gpt-1795000000.pager"], "a slot is told once"
    assert (shell.run_dir / "report.png").exists() and (shell.run_dir / "report.html").stat().st_size > 10_000
