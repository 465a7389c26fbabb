"""`resil watch ckpt`: a table of what it says of each reading, and a night on a real directory of checkpoints."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints.digest import OutOfTime
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.names import OWN, PRUNE, part_name
from resilience.checkpoints.quarantine import set_aside
from resilience.checkpoints.summary import Aside
from resilience.checkpoints.verified import read_verified, write_verified
from resilience.checkpoints.verify import Fault, verify
from resilience.errors import SettingsError
from resilience.finding import Finding
from resilience.records import from_record, to_record
from resilience.runs.project import Project
from resilience.watch.checks._ckpt.judge import interval_s, judge
from resilience.watch.checks._ckpt.reading import CkptReading, CkptSettings, Part, Save
from resilience.watch.checks.ckpt import CHECK
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import context_of
from tests.checkpoints.trees import RECORDED, commit_tree, rewrite, seal_tree, with_algorithm
from tests.lab.fakes import NOW, FakeClock, FakeScheduler, make_project
from tests.watch.checks.outcome import outcome

MIN, HOUR = 60.0, 3600.0
GIB = 2**30


def a_save(step: int, age_s: float, took_s: float | None = 60.0) -> Save:
    return Save(f"step-{step:08d}", step, NOW - age_s, took_s, 10 * GIB, NOW - age_s)


SAVES = tuple(a_save(100 * number, (10 - number) * 30 * MIN) for number in range(5, 10))
"""One every half an hour, the newest 30 min ago."""
NEWEST = SAVES[-1]
SOUND = CkptReading(
    path="/ckpts",
    run="gpt",
    began=NOW - 24 * HOUR,
    count=5,
    newest=NEWEST,
    saved_at=NEWEST.at,
    saves=SAVES,
    verified=NEWEST,
)
EMPTY = CkptReading(path="/ckpts", run="gpt", began=NOW - HOUR)
NO_STORE = CkptReading(path="/ckpts", nothing="no checkpoints in /ckpts", run="gpt", began=NOW - 23 * HOUR)
OLD = tuple(save._replace(at=save.at - HOUR) for save in SAVES)
"""The newest 90 min ago."""


def said(reading: CkptReading, **settings: Any) -> dict[str, str]:
    """Return the summaries by verdict and fault."""
    return {outcome(one): one.summary for one in judge("/ckpts", reading, CkptSettings(**settings), NOW)}


def with_saves(*saves: Save, **fields: Any) -> CkptReading:
    return replace(SOUND, newest=saves[-1], saved_at=saves[-1].at, saves=saves, **{"verified": saves[-1], **fields})


@pytest.mark.parametrize(
    ("reading", "settings", "expected", "words"),
    [
        (SOUND, {}, "OK", "step-00000900, saved 30 min ago, verified; 5 checkpoints"),
        (replace(SOUND, verified=SAVES[0]), {}, "OK", "sizes and structure hold; step 500 verified"),
        (EMPTY, {}, "OK", "no checkpoint yet"),
        (CkptReading(path="", nothing="no directory of checkpoints is set"), {}, "OK", "no directory"),
        (NO_STORE, {}, "OK", "no checkpoints in /ckpts"),
        (replace(NO_STORE, began=NOW - 25 * HOUR), {}, "WARNING overdue",
         "no checkpoints in /ckpts, and gpt has trained for 1 d 1 h"),
        (replace(NO_STORE, every_s=HOUR), {}, "WARNING overdue", "gpt has trained for 23 h"),
        # ---- content
        (replace(SOUND, fault="model.pt: 9f21 expected, 0c77 found", verified=SAVES[-2]), {}, "CRITICAL damaged",
         "is damaged: model.pt: 9f21 expected, 0c77 found; the newest verified one is step-00000800"),
        (replace(SOUND, fault="x", verified=None), {}, "CRITICAL damaged", "no other one is known to be sound"),
        (replace(SOUND, fault="rank3.pt does not exist", is_incomplete=True), {}, "CRITICAL incomplete", "rank3.pt"),
        (replace(SOUND, unknown="Input/output error"), {}, "UNKNOWN unknown", "could not be verified: Input/output"),
        (replace(EMPTY, bad=(Aside("step-1", "x"),)), {}, "CRITICAL none",
         "no checkpoint is left: 1 checkpoint set aside"),
        # ---- cadence: learned, set, of the guard; unknown; an attempt that has just begun
        (with_saves(*OLD), {}, "OK", "1 h ago"),
        (with_saves(*OLD), {"factor": 2.0}, "WARNING overdue",
         "no new checkpoint for 1 h 30 min; one is expected every 30 min; step-00000900, saved 1 h ago"),
        (with_saves(*OLD), {"factor": 1.4}, "CRITICAL overdue", "every 30 min"),
        (with_saves(*OLD), {"interval_s": 10 * MIN}, "CRITICAL overdue", "every 10 min"),
        (with_saves(*OLD, every_s=20 * MIN), {}, "WARNING overdue", "every 20 min"),
        (with_saves(*OLD, every_s=20 * MIN), {"interval_s": HOUR}, "OK", ""),
        (with_saves(*OLD, every_s=20 * MIN, began=NOW - 30 * MIN), {}, "OK", ""),
        (with_saves(*OLD, every_s=5 * MIN, began=NOW - 20 * MIN), {}, "WARNING overdue",
         "for 20 min, all of this attempt; one"),
        (with_saves(a_save(1, 9 * MIN), every_s=1.0), {}, "OK", "9 min ago"),
        (with_saves(a_save(1, 23 * HOUR)), {}, "OK", ""),
        (with_saves(a_save(1, 25 * HOUR), began=0.0), {}, "WARNING overdue", "no new checkpoint for 1 d 1 h; step-"),
        (replace(EMPTY, began=NOW - 25 * HOUR), {}, "WARNING overdue", "none was ever saved"),
        # ---- verified
        (replace(SOUND, verified=OLD[0]), {}, "WARNING unverified",
         "no checkpoint of the last 3 h 30 min was read again"),
        (replace(SOUND, verified=None, unread="7 files were not read within 30 s"), {}, "WARNING unverified",
         "found equal: 7 files were not read within 30 s"),
        (replace(SOUND, verified=None, began=NOW - HOUR), {}, "OK", "sizes and structure hold"),
        # ---- slow
        (with_saves(*SAVES[:-1], NEWEST._replace(took_s=400.0)), {}, "WARNING slow",
         "the save of step 900 took 6 min 40 s (10.0 GiB); the earlier ones took 1 min"),
        (with_saves(*SAVES[:-1], NEWEST._replace(took_s=400.0)), {"slow_factor": 7.0}, "OK", ""),
        (with_saves(*SAVES[:-1], NEWEST._replace(took_s=119.0)), {"slow_factor": 1.5}, "OK", ""),
        (with_saves(*SAVES[:1], NEWEST._replace(took_s=400.0), every_s=HOUR), {}, "OK", ""),
        # ---- a save in flight
        (replace(SOUND, parts=(Part(".part-00001000.a1.4", 1000, 3 * GIB, NOW - 20 * MIN),)), {}, "WARNING part",
         "the save of step 1000 stands still: nothing was written to .part-00001000.a1.4 for 20 min, at 3.0 GiB"),
        (replace(SOUND, parts=(Part(".part-00001000.a1.4", 1000, 3 * GIB, NOW - 10 * MIN),)), {}, "OK", ""),
        (with_saves(*(one._replace(took_s=HOUR) for one in SAVES),
                    parts=(Part(".part-00001000.a1.4", 1000, 3 * GIB, NOW - 20 * MIN),)), {}, "OK", ""),
        # ---- retention, quarantine
        (replace(SOUND, prune_failure="step-1: Permission denied", trash=2), {}, "WARNING prune",
         "the last prune failed: step-1: Permission denied; 2 names in .trash/"),
        (replace(SOUND, bad=(Aside("step-1", "a flipped bit", "resil", NOW - HOUR),)), {}, "WARNING bad",
         "step-1 was set aside 1 h ago: a flipped bit"),
        (replace(SOUND, bad=(Aside("step-1", "a flipped bit", "resil", NOW - 8 * 24 * HOUR),)), {}, "OK", ""),
        (replace(SOUND, bad=(Aside("step-1", "of a person", "ada", NOW),)), {}, "OK", ""),
    ],
)  # fmt: skip
def test_each_state_has_one_finding(reading: CkptReading, settings: dict[str, Any], expected: str, words: str) -> None:
    found = said(reading, **settings)
    assert list(found) == [expected], found
    assert words in found[expected]


@pytest.mark.parametrize(
    "over", ["the run is finished", "job 7 is over: failed, exit code 1", "it has not started yet"]
)
def test_a_run_that_does_not_train_is_late_with_nothing(over: str) -> None:
    saves = tuple(save._replace(at=save.at - 99 * HOUR) for save in SAVES)
    late = with_saves(
        *saves[:-1], saves[-1]._replace(took_s=9e3), verified=None, over=over, parts=(Part(".part-1", 1, 1, 0.0),),
    )  # fmt: skip
    assert set(said(replace(late, over=""))) >= {"CRITICAL overdue", "WARNING slow", "WARNING part"}
    assert list(said(late)) == ["OK"] and over in said(late)["OK"]
    assert list(said(replace(late, fault="a flipped bit"))) == ["CRITICAL damaged"], "the next job would load it"


def test_a_late_checkpoint_of_a_run_that_nobody_could_ask_about_is_unknown() -> None:
    """A hung controller is no sign that the run has ended: that could hide a training that never saves."""
    why = "not known whether it trains: squeue did not answer"
    assert list(said(with_saves(*SAVES, unasked=why))) == ["OK"]
    late = with_saves(*(save._replace(at=save.at - 99 * HOUR) for save in SAVES), unasked=why)
    found = said(late)
    assert list(found) == ["UNKNOWN overdue"] and why in found["UNKNOWN overdue"]


def test_an_interval_is_learned_from_three_checkpoints_and_pauses_do_not_count() -> None:
    assert interval_s(with_saves(*SAVES[:2]), CkptSettings())[0] is None
    assert interval_s(with_saves(*SAVES[:3]), CkptSettings()) == (30 * MIN, "the earlier checkpoints")
    paused = tuple(save._replace(at=save.at - 8 * 24 * HOUR) for save in SAVES[:3])
    assert interval_s(with_saves(*paused, *SAVES[3:]), CkptSettings())[0] == 30 * MIN


# ---- a real directory of checkpoints --------------------------------------------------------------------------------

SETTINGS = '[run]\nname = "gpt"\n[checkpoints]\npath = "ckpts"\n'


@dataclass
class Night:
    """A project with a run `gpt` that trains, and the watchdog's ticks."""

    directory: Path
    settings: str = SETTINGS
    clock: FakeClock = field(default_factory=FakeClock)
    memory: dict[str, Timed[CkptReading]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.project: Project = make_project(self.directory, FakeScheduler(), self.settings, clock=self.clock)
        self.path = self.project.loaded.project / "ckpts"

    def store(self) -> StoreDirectory:
        return StoreDirectory.create(self.path, "gpt")

    def train(self, number: int = 1, end: str = "") -> None:
        """Begin an attempt, or end it; its batch shell writes its heartbeat."""
        directory = self.project.directory("gpt")
        directory.create("")
        attempt = directory.path / "attempts" / f"{number:04d}"
        if end:
            Path(f"{attempt}.end").write_text(f'end = "{end}"\ntime = {self.clock.time}\nexit_code = 1\n')
        else:
            attempt.write_text(f'job_id = "7"\nlabel = "7_{number}"\nhost = "n1"\npid = 1\nstart = {self.clock.time}\n')

    def wait(self, seconds: float) -> None:
        self.clock.time += seconds

    def save(self, step: int, took_s: float = 60.0, wait_s: float = 30 * MIN) -> Checkpoint:
        """Commit a checkpoint after waiting."""
        self.wait(wait_s)
        return self.dated(commit_tree(self.store(), step, RECORDED / "safetensors"), took_s)

    def dated(self, checkpoint: Checkpoint, took_s: float = 60.0) -> Checkpoint:
        now = self.clock.time
        rewrite(checkpoint, replace(checkpoint.manifest(), run="gpt", durable_at=now, started_at=now - took_s))
        os.utime(checkpoint.manifest_path, (self.clock.time,) * 2)
        return checkpoint

    def tick(self, **settings: Any) -> dict[str, list[Finding]]:
        """Run one tick: targets, probe, judge; readings pass through JSON as when they are stored."""
        chosen, context = CkptSettings(**settings), context_of(self.project)
        found: dict[str, list[Finding]] = {}
        for target in CHECK.targets(chosen, context):
            for subject, reading in CHECK.probe(target, chosen, context, self.memory).items():
                record = json.loads(json.dumps(to_record(reading)))
                timed = Timed(self.clock.time, from_record(CkptReading, record))
                self.memory[subject] = timed
                found[subject] = list(CHECK.judge(subject, (timed,), chosen, self.clock.time))
        return found

    def expect(self, expected: str, *words: str, **settings: Any) -> Finding:
        """Run one tick; expect this verdict, fault and text of the only finding."""
        ((found,),) = self.tick(**settings).values()
        assert outcome(found) == expected and all(word in found.summary for word in words), found
        return found


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


def test_without_a_directory_of_checkpoints_it_is_quiet(tmp_path: Path) -> None:
    Night(tmp_path, settings="[run]\n").expect("OK", "no directory of checkpoints is set")
    night = Night(tmp_path)
    night.expect("OK", f"no checkpoints in {night.path}")
    night.path.mkdir()
    (night.path / "checkpoint-500").mkdir()
    night.expect("OK", "no checkpoints in")
    night.train()
    night.expect("OK", "no checkpoints in")
    night.wait(25 * HOUR)
    night.expect("WARNING overdue", "no checkpoints in", "and gpt has trained for 1 d 1 h")
    night.train(end="exited")
    night.expect("OK", "no checkpoints in")


def test_a_night_of_a_run(night: Night) -> None:
    """It trains and saves; then a save hangs, is late, and the attempt dies; the next one goes on."""
    night.train()
    for step in (100, 200, 300, 400):
        newest = night.save(step)
        night.expect("OK", f"step-{step:08d}, saved just now, verified")
    record = read_verified(newest)
    assert record is not None and (record.level, record.at, record.fault) == ("digest", night.clock.time, None)
    part = night.path / part_name(500, 1, 5)
    part.mkdir()
    (part / "shard").write_bytes(b"half of it")
    os.utime(part / "shard", (night.clock.time + 20 * MIN,) * 2)
    os.utime(part, (night.clock.time,) * 2)
    night.wait(30 * MIN)
    night.expect("OK", "step-00000400")
    night.wait(30 * MIN)
    night.expect("WARNING part", "the save of step 500 stands still", "for 40 min, at ")
    night.wait(HOUR)
    assert [outcome(one) for one in night.tick()[str(night.path)]] == ["WARNING overdue", "WARNING part"]
    night.train(end="exited")
    night.expect("OK", "step-00000400", "is over: exited, exit code 1")
    night.wait(24 * HOUR)
    night.expect("OK")
    shutil.rmtree(part)
    night.train(2)
    night.expect("OK", "step-00000400, saved 1 day ago, verified")
    night.save(500, took_s=20 * MIN)
    night.expect("WARNING slow", "the save of step 500 took 20 min")


@pytest.mark.parametrize(("every", "expected"), [("45 min", "45 min"), ("500 steps", "30 min"), ("auto", "30 min")])
def test_the_interval_of_the_guard_is_expected_if_it_is_a_time(tmp_path: Path, every: str, expected: str) -> None:
    night = Night(tmp_path, settings=SETTINGS + f'[guard]\nevery = "{every}"\n')
    night.train()
    for step in (100, 200, 300):
        night.save(step)
    night.wait(4 * HOUR)
    night.expect("CRITICAL overdue" if expected == "30 min" else "WARNING overdue", f"one is expected every {expected}")


def test_what_was_pruned_is_still_learned_from(night: Night) -> None:
    night.train()
    for step in range(100, 900, 100):
        newest = night.save(step)
        night.tick()
        shutil.rmtree(newest.path)
    newest = night.save(900)
    night.tick()
    (timed,) = night.memory.values()
    assert timed.reading.count == 1 and interval_s(timed.reading, CkptSettings())[0] == 30 * MIN
    night.wait(2 * HOUR)
    assert newest.name in night.expect("WARNING overdue", "one is expected every 30 min").summary


def test_damage_is_found_in_the_next_tick_named_and_recorded_until_it_is_gone(night: Night) -> None:
    night.train()
    good = night.save(100)
    night.expect("OK")
    damaged = night.save(200)
    file = damaged.path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    found = night.expect("CRITICAL damaged", "model.safetensors has other content than was committed: expected crc32 ")
    assert f"the newest verified one is {good.name}" in found.summary and found.run == "gpt"
    record = read_verified(damaged)
    assert record is not None and record.fault is not None and record.fault.file == "model.safetensors"
    night.expect("CRITICAL damaged")
    shutil.rmtree(damaged.path)
    night.expect("OK", f"{good.name}, saved 30 min ago, verified")


def test_a_missing_and_a_truncated_file_are_seen_in_each_tick_after_the_digests_were_good(night: Night) -> None:
    newest = night.save(100)
    night.expect("OK", "verified")
    file = newest.path / "model.safetensors"
    content = file.read_bytes()
    os.truncate(file, 9)
    night.expect("CRITICAL damaged", "model.safetensors is truncated", "no other one is known to be sound")
    file.unlink()
    night.expect("CRITICAL incomplete", "model.safetensors is missing")
    file.write_bytes(content)
    night.expect("OK", "verified")
    newest.manifest_path.unlink()
    night.expect("CRITICAL damaged", "manifest.json does not exist")
    night.memory.clear()
    night.expect("CRITICAL damaged", "manifest.json does not exist")


def test_digests_are_compared_once_and_by_whoever_was_first(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []

    def counted(checkpoint: Checkpoint, level: str, **options: Any) -> Any:
        levels.append(level)
        return verify(checkpoint, level, **options)

    monkeypatch.setattr("resilience.watch.checks._ckpt.probe.verify", counted)
    night.save(100)
    night.tick()
    night.tick()
    by_prune = night.save(200)
    write_verified(by_prune, verify(by_prune), night.clock.time)
    night.tick()
    assert levels == ["digest", "structure", "structure"]
    night.save(300)
    night.expect("OK", "sizes and structure hold; step 200 verified", verify_s=0.0)
    night.expect("OK", "step-00000300", "verified; 3")


def test_damage_that_somebody_else_has_read_is_not_cleared_by_a_look_at_the_structure(night: Night) -> None:
    first = night.save(100)
    night.expect("OK", "verified")
    fault = Fault("model.safetensors", "crc32 1", "2", "has other content than was committed")
    write_verified(first, replace(verify(first), fault=fault), night.clock.time)
    for _ in range(2):
        night.expect("CRITICAL damaged", "model.safetensors has other content", "no other one is known", verify_s=0.0)
    night.expect("OK", "verified")


def test_one_that_was_verified_and_is_damaged_now_is_not_the_newest_verified_one(night: Night) -> None:
    older = night.save(100)
    night.expect("OK", "verified")
    newest = night.save(200)
    os.truncate(newest.path / "model.safetensors", 9)
    night.expect("CRITICAL damaged", f"the newest verified one is {older.name}")
    os.truncate(older.path / "model.safetensors", 9)
    write_verified(older, verify(older), night.clock.time)
    night.expect("CRITICAL damaged", "no other one is known to be sound")


def test_an_older_one_that_cannot_be_read_hides_nothing(night: Night) -> None:
    older = night.save(100)
    (older.path / OWN).rename(older.path / "hidden")
    (older.path / OWN).symlink_to(OWN)
    night.save(200)
    night.expect("OK", "step-00000200", "verified")


def test_a_path_that_cannot_be_looked_at_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    night = Night(tmp_path, settings=f'[run]\nname = "gpt"\n[checkpoints]\npath = "{tmp_path}/loop/ckpts"\n')
    night.expect("UNKNOWN probe", "Too many levels of symbolic links")


def test_a_checkpoint_from_the_future_does_not_hide_that_none_follows(night: Night) -> None:
    """The clock of its node was ahead."""
    night.train()
    night.save(100)
    night.wait(30 * MIN)
    night.clock.time += 24 * HOUR
    night.dated(commit_tree(night.store(), 200, RECORDED / "safetensors"))
    night.clock.time -= 24 * HOUR
    night.expect("OK", "saved just now", interval_s=HOUR)
    night.wait(4 * HOUR)
    night.expect("WARNING overdue", "no new checkpoint for 4 h", interval_s=HOUR)


def test_what_is_never_verified_is_told_while_the_run_trains(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of a kind that cannot be computed here, and a checkpoint that is too large for the time."""
    often = {"interval_s": 10 * MIN}
    monkeypatch.setattr("resilience.checkpoints.digest.best_algorithm", lambda: "crc32")
    night.train()
    with_algorithm(night.save(100, wait_s=2 * HOUR), "xxh3_128")
    night.expect("WARNING unverified", "last 2 h", "digests of the kind xxh3_128 cannot be computed here", **often)
    tried: list[str] = []

    def too_long(path: Path, *_: Any, **__: Any) -> tuple[int, str]:
        tried.append(path.name)
        raise OutOfTime

    monkeypatch.setattr("resilience.checkpoints.verify.digest_file", too_long)
    night.save(200)
    for _ in range(2):
        night.expect("WARNING unverified", "1 file of the newest could not be read in 30 s", **often)
    assert tried == ["model.safetensors"], "what was too large is not read again"
    night.train(end="exited")
    night.expect("OK", "sizes and structure hold", **often)


def test_a_directory_that_vanishes_or_cannot_be_read_is_unknown_and_nothing_is_forgotten(night: Night) -> None:
    night.train()
    night.save(100)
    night.expect("OK")
    night.path.rename(night.path.with_name("elsewhere"))
    night.expect("UNKNOWN probe", "held checkpoints and holds none now: is its file system mounted on this node?")
    night.path.with_name("elsewhere").rename(night.path)
    night.expect("OK", "verified")
    (night.path / ".resil" / "store.json").write_text("{")
    night.expect("UNKNOWN probe", "store.json is damaged")


def test_a_directory_that_was_named_must_exist(night: Night, tmp_path: Path) -> None:
    night.expect("UNKNOWN probe", "does not exist: is its file system mounted", paths=(str(tmp_path / "no"),))
    night.expect("OK", "no checkpoints in", paths=(str(tmp_path),))


def test_a_run_that_is_not_known_here_is_late_by_the_given_interval_only(night: Night) -> None:
    for step in (100, 200, 300):
        night.save(step)
    night.wait(5 * HOUR)
    night.expect("OK", "the run gpt is not known here")
    night.expect("CRITICAL overdue", interval_s=30 * MIN)


def test_a_manifest_of_a_newer_version_is_unknown(night: Night) -> None:
    newest = night.save(100)
    rewrite(newest, replace(newest.manifest(), format=99))
    night.expect("UNKNOWN unknown", "this version of resil knows 1")


def test_what_was_set_aside_and_a_prune_that_failed_are_told(night: Night) -> None:
    night.clock.time = time.time()  # what is set aside is dated by the machine
    night.save(100)
    bad = night.save(200)
    set_aside(night.store(), bad, fault=Fault("model.pt", "9 bytes", "8 bytes", "is truncated"))
    night.wait(MIN)
    night.expect("WARNING bad", "step-00000200 was set aside 1 h ago: model.pt is truncated: expected 9 bytes, found 8")
    night.wait(8 * 24 * HOUR)
    night.expect("OK", "step-00000100")
    failed = {"at": night.clock.time, "deleted": [], "freed_bytes": 0, "failed": ["cannot delete x: Permission denied"]}
    (night.path / ".resil" / PRUNE).write_text(json.dumps(failed))
    night.expect("WARNING prune", "the last prune failed: cannot delete x: Permission denied")


def test_sealed_checkpoints_are_watched_alike(night: Night) -> None:
    night.dated(seal_tree(night.store(), 500, RECORDED / "hf", "checkpoint-500"))
    night.expect("OK", "checkpoint-500, saved just now, verified")
    night.wait(HOUR)
    ((found,),) = night.tick(interval_s=MIN).values()
    assert outcome(found) == "CRITICAL overdue" and "resil ckpt adopt --new" in found.advice
    os.truncate(next((night.path / "checkpoint-500").glob("*.safetensors")), 9)
    assert "quarantine" not in night.expect("CRITICAL damaged").advice
    shutil.rmtree(night.path / "checkpoint-500")
    night.expect("OK", "no checkpoint yet")


def test_each_run_may_have_a_directory_of_its_own(tmp_path: Path) -> None:
    night = Night(tmp_path, settings=SETTINGS.replace("ckpts", "all/{run}/ckpts"))
    above = str(night.project.loaded.project / "all")
    ((found,),) = night.tick().values()
    assert (found.subject, outcome(found)) == (above, "OK") and "no run has checkpoints in" in found.summary
    for run in ("gpt", "bert"):
        night.project.directory(run).create("")
        commit_tree(StoreDirectory.create(f"{above}/{run}/ckpts", run), 100, RECORDED / "safetensors")
    (Path(above) / "bert" / "ckpts" / "step-00000100" / "model.safetensors").unlink()
    said = {subject: [outcome(one) for one in found] for subject, found in night.tick().items()}
    assert said == {f"{above}/gpt/ckpts": ["OK"], f"{above}/bert/ckpts": ["CRITICAL incomplete"]}


@pytest.mark.parametrize(
    ("key", "value"), [("factor", 0.5), ("slow_factor", float("nan")), ("interval_s", 0.0), ("part_s", -1.0),
                       ("verify_s", -1.0)]
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(night: Night, key: str, value: float) -> None:
    with pytest.raises(SettingsError, match=key):
        night.tick(**{key: value})


def test_three_healthy_days_are_quiet(night: Night) -> None:
    """Saves of uneven length and distance, retention, attempts that end and queue, and one that goes back."""
    dice = random.Random(15)
    step, attempt, saves = 0, 0, 0
    while night.clock.time < NOW + 3 * 24 * HOUR:
        attempt += 1
        night.train(attempt)
        ends = night.clock.time + dice.uniform(0.2, 20) * HOUR
        if attempt == 3:
            shutil.rmtree(night.path / f"step-{step:08d}")
            step -= 100
        while night.clock.time < ends:
            step, saves = step + 100, saves + 1
            wait_s = dice.uniform(20, 50) * MIN
            for _ in range(int(wait_s / (15 * MIN))):
                night.wait(15 * MIN)
                night.expect("OK")
            night.save(step, took_s=dice.uniform(60, 110), wait_s=wait_s % (15 * MIN))
            for one in night.store().checkpoints()[:-2]:
                if one.step % 1000:
                    shutil.rmtree(one.path)
        night.train(attempt, end="stopped")
        night.wait(dice.uniform(0, 9) * HOUR)
        night.expect("OK")
    assert attempt > 3 and saves > 50
