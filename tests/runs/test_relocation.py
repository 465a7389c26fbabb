"""A project that was copied or moved: its jobs and alerts stay those of the original, and commands say so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from resilience.alerts.commands import listing
from resilience.alerts.notify import notify
from resilience.finding import Finding, Report, Verdict
from resilience.runs import submit
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.status import run_statuses
from resilience.runs.submissions import (
    Intent,
    describe_relocation,
    new_token,
    newest_intent,
    own_script_of,
    read_intents,
    read_journal,
    record_intent,
    submitted_ids,
)
from resilience.runs.submit_plan import SubmitRequest
from resilience.settings.load import load
from resilience.system.ports import System
from tests.lab.fakes import NOW, FakeScheduler, make_project, make_system


def submitted(path: Path, token: str = "", script: str = "") -> RunDirectory:
    directory = RunDirectory(path)
    directory.create("")
    record_intent(directory, Intent(token or new_token(), "fake", script, (), NOW, by="ada"))
    return directory


def test_the_jobs_of_the_original_are_not_those_of_a_copy(tmp_path: Path) -> None:
    original = submitted(tmp_path / "a/gpt")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = RunDirectory(tmp_path / "b/gpt")
    assert newest_intent(read_intents(copy)) is None and newest_intent(read_intents(original)) is not None
    assert submitted_ids(read_intents(copy)) == ()
    said = describe_relocation(read_journal(copy), copy)
    assert f"is a copy of {original.path}" in said and f"rm -r {copy.path}" in said
    own = new_token()
    submitted(copy.path, own)
    newest = newest_intent(read_intents(copy))
    assert newest is not None and newest.token == own
    assert describe_relocation(read_journal(original), original) == ""


def test_an_attempt_that_was_copied_before_its_end_is_no_attempt_of_the_copy(tmp_path: Path) -> None:
    original = submitted(tmp_path / "a/gpt")
    (original.path / "attempts/0001").write_text('job_id = 7\nlabel = "7"\nhost = "n1"\nstart = 1\n')
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    project = make_project(tmp_path, FakeScheduler())
    found = [run_statuses(project, (RunDirectory(tmp_path / name / "gpt"),))[0] for name in ("a", "b")]
    assert [len(status.attempts) for status in found] == [1, 0]


def test_a_copy_of_an_older_journal_is_known_by_its_scripts(tmp_path: Path) -> None:
    path = tmp_path / "a/gpt"
    submitted(path, script=str(path / "scripts/aa.sbatch"))
    journal = path / "submissions.jsonl"
    journal.write_text(journal.read_text().replace(f'"directory":"{path}"', '"old":1'))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert read_journal(RunDirectory(tmp_path / "b/gpt")).copied_from == str(path)


def test_a_moved_run_keeps_its_jobs_and_says_that_they_use_the_old_path(tmp_path: Path) -> None:
    original = submitted(tmp_path / "a/gpt")
    (tmp_path / "a").rename(tmp_path / "c")
    moved = RunDirectory(tmp_path / "c/gpt")
    assert len(read_intents(moved)) == 1
    said = describe_relocation(read_journal(moved), moved)
    assert f"queued from {original.path}, which is gone" in said and "resil cancel gpt" in said
    submitted(moved.path)
    assert describe_relocation(read_journal(moved), moved) == "", "queued anew"


def test_the_rendered_script_of_a_moved_run_is_not_taken_for_an_own_one(tmp_path: Path) -> None:
    submitted(tmp_path / "a/gpt", script=str(tmp_path / "a/gpt/scripts/aa.sbatch"))
    (tmp_path / "a").rename(tmp_path / "c")
    moved = RunDirectory(tmp_path / "c/gpt")
    assert own_script_of(moved, read_intents(moved)) == ""
    submitted(moved.path, script="/home/ada/mine.sbatch")
    assert own_script_of(moved, read_intents(moved)) == "/home/ada/mine.sbatch"


def test_another_path_to_the_same_directory_is_neither(tmp_path: Path) -> None:
    submitted(tmp_path / "a/gpt")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    same = RunDirectory(tmp_path / "link/gpt")
    assert len(read_intents(same)) == 1 and describe_relocation(read_journal(same), same) == ""


def attempt(directory: RunDirectory, number: int, job: int, end: str = "") -> None:
    (directory.path / f"attempts/{number:04d}").write_text(f'number = {number}\njob_id = {job}\nlabel = "{job}"\n')
    (directory.path / f"attempts/{number:04d}.{'end' if end else 'beat'}").write_text(
        f'end = "{end}"\n' if end else "1"
    )


def test_a_copy_neither_shows_nor_waits_for_the_attempt_that_runs_in_the_original(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    fake = FakeScheduler()
    project = make_project(tmp_path / "a", fake)
    submit.perform(project, submit.prepare(project, SubmitRequest(run="gpt")))
    original = project.directory("gpt")
    attempt(original, 1, 90, "stopped")
    attempt(original, 2, 101)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copied = make_project(tmp_path / "b", fake)
    directory = copied.directory("gpt")

    def shown() -> list[int]:
        return [one.number for one in run_statuses(copied, [directory], fresh=True)[0].attempts]

    assert shown() == [1]

    said: list[str] = []
    submit.perform(copied, submit.prepare(copied, SubmitRequest(run="gpt")), said.append)
    assert f"attempt 2 was copied from {original.path} without an end; removed here" in said
    assert sorted(path.name for path in (directory.path / "attempts").iterdir()) == ["0001", "0001.end"]
    assert (original.path / "attempts/0002.beat").exists()
    attempt(directory, 2, 102)
    assert shown() == [1, 2], "its own attempt is shown while it runs"


class Alerting:
    """A project with a channel, at a path."""

    def __init__(self, path: Path, log: str = "") -> None:
        path.mkdir(exist_ok=True)
        log = log or str(path.parent / "log")
        (path / "resil.toml").write_text(
            f'[run]\nname = "gpt"\n[alert]\nchannels = ["console"]\n[channel.console]\npath = "{log}"\n'
        )
        self.system: System = make_system(path.parent, environ={"XDG_STATE_HOME": str(path.parent / "node")}, cwd=path)
        self.project: Any = Project(self.system, load(self.system))

    def tick(self) -> str:
        fault = Finding(subject="/data", verdict=Verdict.CRITICAL, fault="space", summary="full")
        return "\n".join(notify(self.project, [Report(check="fs", findings=(fault,), time=NOW)]))


def test_a_copied_project_begins_without_the_alerts_of_the_original(tmp_path: Path) -> None:
    original = Alerting(tmp_path / "a")
    assert "notified console" in original.tick()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = Alerting(tmp_path / "b")
    found = listing(copy.project)
    assert found.known == () and "these alerts were copied from" in found.errors[0]
    assert listing(copy.project).errors == (), "said once"
    assert len(list((tmp_path / "b/.resil").glob(".alerts.copied-*"))) == 1
    assert "notified console" in copy.tick(), "an incident of its own"
    assert copy.tick() == original.tick() == ""
    ids = {known.incident.episode for one in (copy, original) for known in listing(one.project).known}
    assert len(ids) == 2


def test_a_moved_project_keeps_its_alerts(tmp_path: Path) -> None:
    original = Alerting(tmp_path / "a")
    original.tick()
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "a/.resil/.alerts").mkdir(parents=True)  # another project begins at the old path
    moved = Alerting(tmp_path / "c")
    assert moved.tick() == ""
    assert (tmp_path / "c/.resil/.alerts/home").read_text() == f"{tmp_path}/c/.resil/.alerts\n"
    assert len(listing(moved.project).known) == 1


def test_a_message_that_was_queued_before_a_move_names_the_new_path(tmp_path: Path) -> None:
    original = Alerting(tmp_path / "a", "/dev/full")
    assert "queued for console" in original.tick()
    (tmp_path / "a").rename(tmp_path / "c")
    moved = Alerting(tmp_path / "c")
    moved.system.clock.time += 3600  # type: ignore[attr-defined]
    moved.tick()
    assert f"cd {tmp_path}/c && resil alert ack" in (tmp_path / "log").read_text()
