"""A slot of cron is taken once, whoever else wants it, dies over it, or has no room for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.cron import slots as cron_slots
from resilience.cron.records import Heartbeat, Installation, Outcome, RunRecord
from resilience.cron.slots import AHEAD_S, KEPT_SLOTS, Claim, machine
from resilience.cron.state_directory import CronDirectory, Damaged, Seen
from resilience.errors import StateDirectoryError
from tests.lab.disks import fill, make_read_only, small_disk
from tests.system.writer import writer

NOW = 1_800_000_000.0
KEY = "cron.hourly+a"
ROOT = Path(__file__).parents[2]

_RACER = """
import os, sys
from pathlib import Path
from resilience.cron.state_directory import CronDirectory
directory, key, count, step = CronDirectory(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ran = os.open(sys.argv[5], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
sys.stdin.read()
for number in range(count):
    slot = 1_800_000_000 + number * step
    if directory.take(key, slot, {"pid": os.getpid()}, now=1_800_000_000 + count * step):
        os.write(ran, b"%d %d\\n" % (slot, os.getpid()))
"""


def _race(directory: Path, processes: int, slots: int) -> list[tuple[int, int]]:
    """Have several processes want the same slots at the same moment; return who ran which."""
    ran = directory / "ran"
    words = [sys.executable, "-c", _RACER, str(directory), KEY, str(slots), "60", str(ran)]
    racers = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(processes)
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == b"ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
    for racer in racers:
        assert racer.wait(timeout=200) == 0
        assert racer.stdout is not None
        racer.stdout.close()
    return [(int(slot), int(pid)) for slot, pid in (line.split() for line in ran.read_text().splitlines())]


def test_two_schedulers_run_each_of_a_thousand_slots_once(tmp_path: Path) -> None:
    ran = _race(tmp_path, 2, 1000)
    assert Counter(slot for slot, _ in ran) == {int(NOW) + 60 * number: 1 for number in range(1000)}
    assert len({pid for _, pid in ran}) == 2, "both were at it"


def test_one_that_was_stopped_right_before_it_took_a_slot_takes_none_that_was_run_meanwhile(
    directory: CronDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP for a day: its slot was run and removed by others, and what it knows of the time is a day old."""
    now = NOW
    link_once = cron_slots.link_once

    def and_sleep(*given: object, **named: object) -> bool:
        nonlocal now
        monkeypatch.setattr(cron_slots, "link_once", link_once)
        now += 86400
        for number in range(60):
            assert directory.take(KEY, int(NOW) + 1440 * number, {}, now=now)
        return link_once(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(cron_slots, "link_once", and_sleep)
    assert directory.slots.claim(KEY, int(NOW), {}, lambda: now) is None


def test_sixteen_schedulers_run_each_slot_once(tmp_path: Path) -> None:
    ran = _race(tmp_path, 16, 30)
    assert Counter(slot for slot, _ in ran) == {int(NOW) + 60 * number: 1 for number in range(30)}


@pytest.fixture
def directory(tmp_path: Path) -> CronDirectory:
    return CronDirectory(tmp_path)


def test_a_slot_is_never_taken_twice(directory: CronDirectory) -> None:
    assert directory.take(KEY, int(NOW), {})
    assert not directory.take(KEY, int(NOW), {})
    assert directory.last_slots() == {KEY: int(NOW)}


def test_a_scheduler_that_was_frozen_for_a_day_takes_no_slot_that_was_run_meanwhile(directory: CronDirectory) -> None:
    for number in range(30):
        assert directory.take(KEY, int(NOW) + 60 * number, {}, now=NOW + 6000)
    for number in range(30 - KEPT_SLOTS):
        assert not directory.take(KEY, int(NOW) + 60 * number, {}, now=NOW + 6000)
    assert len(directory.slots.taken()[KEY]) == KEPT_SLOTS


def test_a_delayed_scheduler_loses_no_claimed_slot(directory: CronDirectory) -> None:
    """Frozen right after it took a slot, while another one went on for hours: its slot is its own still."""
    claim = directory.slots.claim(KEY, int(NOW), {}, lambda: NOW)
    assert claim is not None
    for number in range(1, 30):
        assert directory.take(KEY, int(NOW) + 60 * number, {}, now=NOW + 6000)
    assert directory.slots.is_won(claim) is True
    directory.slots.close(claim)
    assert directory.take(KEY, int(NOW) + 6000, {})
    assert len(directory.slots.taken()[KEY]) == KEPT_SLOTS
    assert not directory.take(KEY, int(NOW), {}, now=NOW + 6000)


def test_one_that_came_too_late_and_died_over_it_has_not_got_its_slot(directory: CronDirectory) -> None:
    for number in range(20):
        directory.take(KEY, int(NOW) + 60 * number, {})
    late = Claim(KEY, int(NOW), "abc", f"{machine()}-1-5-{int(NOW) + 1200}")
    for place in ("slots", "open"):
        (directory.path / place / (late.name if place == "open" else f"{KEY}@{late.slot}")).write_text('{"id": "abc"}')
    assert directory.slots.is_won(late) is False


def test_many_entries_share_one_directory_of_a_bounded_number_of_files(directory: CronDirectory) -> None:
    for entry in range(5):
        for slot in range(15):
            directory.take(f"crontab+{entry}", int(NOW) + slot, {})
    assert len(os.listdir(directory.path / "slots")) == 5 * (KEPT_SLOTS + 1)  # noqa: PTH208
    assert os.listdir(directory.path / "open") == []  # noqa: PTH208
    assert set(directory.last_slots().values()) == {int(NOW) + 14}


def test_slots_that_a_wrong_clock_took_do_not_count(directory: CronDirectory) -> None:
    directory.take(KEY, int(NOW), {})
    directory.take(KEY, int(NOW + AHEAD_S) + 86400, {})
    assert directory.last_slots(NOW) == {KEY: int(NOW)}
    assert directory.take(KEY, int(NOW) + 60, {}, now=NOW + 60), "and they push no slot of now out"


def test_a_moment_from_which_on_slots_count_is_a_last_slot(directory: CronDirectory) -> None:
    directory.write_seen({KEY: Seen(int(NOW), "@hourly")})
    assert directory.last_slots(NOW) == {KEY: int(NOW)}
    assert directory.seen() == {KEY: Seen(int(NOW), "@hourly")}


def test_strange_names_in_the_directory_are_no_slots(directory: CronDirectory) -> None:
    directory.take(KEY, int(NOW), {})
    for name in ("x", "@5", "a@", "a@-3", "a@\u0663", ".a@3~", "a@b@c@d", f"{KEY}@{int(NOW)}@x@y-z"):
        (directory.path / "slots" / name).touch()
        (directory.path / "open" / name).touch()
    os.mkfifo(directory.path / "slots" / f"b@{int(NOW)}")
    assert directory.last_slots() == {KEY: int(NOW), "b": int(NOW)}
    assert directory.slots.open_claims() == []
    assert not directory.take("b", int(NOW), {})


# ---- where a scheduler dies -----------------------------------------------------------------------------------------


def test_a_process_that_died_while_claiming_leaves_its_claim(directory: CronDirectory) -> None:
    claim = directory.slots.claim(KEY, int(NOW), {}, lambda: NOW)
    assert claim is not None and directory.slots.open_claims() == [claim] and claim.is_mine()
    assert not claim.is_gone(NOW) and directory.slots.is_won(claim) is True
    dead = claim._replace(owner=f"{machine()}-{2**22 + 1}-5-{int(NOW)}")
    assert dead.is_gone(NOW)
    directory.slots.close(claim)
    assert directory.slots.open_claims() == []


def test_a_reused_pid_is_not_the_same_process() -> None:
    assert Claim(KEY, 1, "x", f"{machine()}-{os.getpid()}-1-{int(NOW)}").is_gone(NOW)


def test_a_claim_of_another_host_is_left_alone_until_its_time_limit() -> None:
    claim = Claim(KEY, 1, "x", f"00000000-{os.getpid()}-1-{int(NOW)}")
    assert not claim.is_gone(NOW + 599) and claim.is_gone(NOW + 601)


def test_the_claim_of_a_dead_process_is_seized_by_one(directory: CronDirectory) -> None:
    claim = directory.slots.claim(KEY, int(NOW), {}, lambda: NOW)
    assert claim is not None
    mine = directory.slots.seize(claim, NOW + 5)
    assert mine is not None and mine.time == NOW + 5
    assert directory.slots.seize(claim, NOW + 5) is None
    assert directory.slots.is_won(mine) is True


_REQUEST = (
    "directory = CronDirectory(Path({path!r})); directory.slots.claim('a', 1800000000, {{'pid': 1}}, lambda: 1.8e9)"
)
_PRELOAD = "from resilience.cron.state_directory import CronDirectory"


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with writer(tmp_path_factory.mktemp("strace") / "log", _PRELOAD) as running:
        yield running


def test_a_taking_that_is_killed_at_any_system_call_gives_the_slot_to_one(claims: object, tmp_path: Path) -> None:
    """The dead one has it and left word, or the next one gets it."""
    done = 0
    warm = tmp_path / "warm"
    points = list(claims.kill_points(_REQUEST.format(path=str(warm))))  # type: ignore[attr-defined]
    for name, count in points:
        place = tmp_path / str(done)
        outcome = claims.run(_REQUEST.format(path=str(place)), f"{name}:signal=SIGKILL:when={count}")  # type: ignore[attr-defined]
        if outcome.code != -9:
            continue
        done += 1
        directory = CronDirectory(place)
        left = [claim for claim in directory.slots.open_claims() if claim.is_gone(NOW)]
        has_it = [claim for claim in left if directory.slots.is_won(claim)]
        gets_it = directory.take("a", int(NOW), {})
        assert gets_it == (not directory_was_taken(has_it)), (name, count)
        assert directory.last_slots() == {"a": int(NOW)}
    assert done >= 20


def directory_was_taken(has_it: list[Claim]) -> bool:
    assert len(has_it) <= 1
    return bool(has_it)


@pytest.mark.parametrize("word", ["EPERM", "EOPNOTSUPP", "ENOSYS"])
def test_a_file_system_without_hard_links_is_good_enough(claims: object, tmp_path: Path, word: str) -> None:
    request = _REQUEST.format(path=str(tmp_path))
    assert claims.run(request, f"link:error={word}", f"linkat:error={word}").code == 0  # type: ignore[attr-defined]
    directory = CronDirectory(tmp_path)
    (claim,) = directory.slots.open_claims()
    assert directory.slots.is_won(claim) is True
    assert not directory.take("a", int(NOW), {})


def test_a_link_whose_answer_was_lost_was_made_all_the_same(
    directory: CronDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lost(mine: str, place: str) -> None:
        link(mine, place)
        link(mine, place)  # the kernel asks again, and finds its own

    monkeypatch.setattr(os, "link", lost)
    assert directory.take(KEY, int(NOW), {})


@pytest.mark.parametrize("call", ["link", "fsync", "write", "openat"])
def test_a_slot_that_could_not_be_written_is_not_taken(claims: object, tmp_path: Path, call: str) -> None:
    CronDirectory(tmp_path).take("other", int(NOW), {})
    request = _REQUEST.format(path=str(tmp_path))
    inject = [f"{call}:error=EIO:when=1+"] if call != "openat" else ["openat:error=EDQUOT:when=1+"]
    assert claims.run(request, *inject).code == 7  # type: ignore[attr-defined]
    directory = CronDirectory(tmp_path)
    assert directory.slots.open_claims() == []
    assert directory.take("a", int(NOW), {})


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as place:
        directory = CronDirectory(place / "state")
        directory.take(KEY, int(NOW), {})
        ballast = fill(place)
        with pytest.raises(StateDirectoryError, match="No space left") as told:
            directory.take(KEY, int(NOW) + 60, {})
        assert told.value.exit_code == 75
        ballast.unlink()
        assert directory.take(KEY, int(NOW) + 60, {})


def test_a_read_only_disk_is_an_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as place:
        directory = CronDirectory(place / "state")
        directory.take(KEY, int(NOW), {})
        make_read_only(place, True)
        with pytest.raises(StateDirectoryError, match="Read-only"):
            directory.take(KEY, int(NOW) + 60, {})
        assert directory.last_slots() == {KEY: int(NOW)}
        make_read_only(place, False)
        assert directory.take(KEY, int(NOW) + 60, {})


# ---- whose directory it is
# ---------------------------------------------------------------------------------------------


def test_a_directory_is_private_and_so_are_its_files(directory: CronDirectory) -> None:
    directory.take(KEY, int(NOW), {})
    directory.check()
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert (directory.path / "slots" / f"{KEY}@{int(NOW)}").stat().st_mode & 0o777 == 0o600


def test_something_else_in_the_directories_place_is_refused(tmp_path: Path, directory: CronDirectory) -> None:
    (tmp_path / "elsewhere").mkdir()
    directory.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateDirectoryError, match="not a directory"):
        directory.check()


def test_only_the_group_may_share_it(tmp_path: Path) -> None:
    shared = CronDirectory(tmp_path, group="team")
    shared.take(KEY, int(NOW), {})
    shared.check()
    shared.path.chmod(0o2777)
    with pytest.raises(StateDirectoryError, match="other users can write") as told:
        shared.check()
    assert "chmod o-w" in told.value.hint


# ---- the other books ------------------------------------------------------------------------------------------------

RUN = RunRecord(name="cron.hourly/a", slot=int(NOW), outcome=Outcome.RUNNING, time=NOW)


def test_of_each_slot_the_last_word_counts_and_a_beginning_ends_nothing(directory: CronDirectory) -> None:
    directory.record(KEY, RUN)
    directory.record(KEY, replace(RUN, outcome=Outcome.DONE))
    directory.record(KEY, RUN)
    directory.record(KEY, replace(RUN, slot=int(NOW) + 60))
    assert [str(run.outcome) for run in directory.history(KEY)] == ["done", "running"]
    assert directory.keys() == (KEY,)


def test_damaged_lines_of_a_history_do_not_affect_the_others(directory: CronDirectory) -> None:
    directory.record(KEY, RUN)
    path = directory.path / "history" / f"{KEY}.jsonl"
    path.write_bytes(
        path.read_bytes() + b'{"slot": "x"}\n\xff\xfe\n[]\n{"name": "a", "slot": 3, "outcome": "new"}\n{"cut'
    )
    directory.record(KEY, replace(RUN, slot=5, outcome=Outcome.DONE))
    assert [run.slot for run in directory.history(KEY)] == [5, int(NOW)]


def test_a_heartbeat_comes_back_as_it_was(directory: CronDirectory) -> None:
    assert directory.heartbeat() is None
    beat = Heartbeat(time=NOW, expected=NOW + 60, alive_since=NOW, driver="slurm", job_id="88")
    directory.beat(beat)
    assert directory.heartbeat() == beat


@pytest.mark.parametrize("text", ["", "{", "[]", '{"time": null}', '{"time": "x", "expected": 2, "alive_since": 3}'])
def test_a_damaged_heartbeat_says_so_and_can_be_put_aside(directory: CronDirectory, text: str) -> None:
    directory.beat(Heartbeat(time=NOW, expected=NOW, alive_since=NOW))
    (directory.path / "heartbeat").write_text(text)
    with pytest.raises(Damaged, match="damaged"):
        directory.heartbeat()
    directory.quarantine("heartbeat")
    assert directory.heartbeat() is None and (directory.path / "heartbeat.damaged").read_text() == text


INSTALLED = Installation(
    driver="slurm", token="a", time=NOW, by="me", host="n1", project="/p", python="/usr/bin/python3"
)


def test_of_two_concurrent_installs_the_first_counts(directory: CronDirectory) -> None:
    assert directory.install(INSTALLED) == INSTALLED
    assert directory.install(replace(INSTALLED, token="b")) == INSTALLED
    assert [name for name in os.listdir(directory.path) if name.startswith(".")] == []  # noqa: PTH208
    directory.uninstall()
    assert directory.installation() is None


@pytest.mark.parametrize("text", ["", "{}{", "[]", "3"])
def test_anything_in_place_of_the_stop_file_stops(directory: CronDirectory, text: str) -> None:
    assert directory.stopped() is None
    directory.stop("alice", "moving", NOW)
    assert directory.stopped() == {"by": "alice", "why": "moving", "time": NOW}
    (directory.path / "stop").write_text(text)
    assert directory.stopped() is not None
    directory.unstop()
    assert directory.stopped() is None


def test_the_owner_of_a_slot_can_be_read(directory: CronDirectory) -> None:
    directory.take(KEY, int(NOW), {"host": "n1", "pid": 7})
    assert json.loads((directory.path / "slots" / f"{KEY}@{int(NOW)}").read_text())["host"] == "n1"
