"""A slot of cron is taken once, whoever else wants it, dies over it, or has no room for it."""

from __future__ import annotations

import errno
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
from resilience.cron.book import Run, State
from resilience.cron.records import Heartbeat, Installation
from resilience.cron.slots import AHEAD_S, KEPT_SLOTS
from resilience.cron.state_directory import CronDirectory, Damaged, Seen
from resilience.errors import StateDirectoryError
from resilience.job import Liveness
from tests.cron.records import DEAD, put_run, take
from tests.lab.disks import fill, make_read_only, small_disk
from tests.system.writer import writer

NOW = 1_800_000_000.0
KEY = "cron.hourly+a"
ROOT = Path(__file__).parents[2]

_RACER = """
import os, sys
from pathlib import Path
from resilience.cron.state_directory import CronDirectory
from tests.cron.records import take
directory, key, count, step = CronDirectory(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ran = os.open(sys.argv[5], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
sys.stdin.read()
for number in range(count):
    slot = 1_800_000_000 + number * step
    if take(directory, key, slot, {"pid": os.getpid()}, now=1_800_000_000 + count * step):
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
            assert take(directory, KEY, int(NOW) + 1440 * number, {}, now=now)
        return link_once(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(cron_slots, "link_once", and_sleep)
    assert directory.book.claim(KEY, int(NOW), {}, lambda: now) is None


def test_sixteen_schedulers_run_each_slot_once(tmp_path: Path) -> None:
    ran = _race(tmp_path, 16, 30)
    assert Counter(slot for slot, _ in ran) == {int(NOW) + 60 * number: 1 for number in range(30)}


@pytest.fixture
def directory(tmp_path: Path) -> CronDirectory:
    return CronDirectory(tmp_path)


def test_a_slot_is_never_taken_twice(directory: CronDirectory) -> None:
    assert take(directory, KEY, int(NOW), {})
    assert not take(directory, KEY, int(NOW), {})
    assert directory.last_slots() == {KEY: int(NOW)}


def test_a_scheduler_that_was_frozen_for_a_day_takes_no_slot_that_was_run_meanwhile(directory: CronDirectory) -> None:
    for number in range(30):
        assert take(directory, KEY, int(NOW) + 60 * number, {}, now=NOW + 6000)
    for number in range(30 - KEPT_SLOTS):
        assert not take(directory, KEY, int(NOW) + 60 * number, {}, now=NOW + 6000)
    assert len(directory.book.slots.taken()[KEY]) == KEPT_SLOTS


def test_a_delayed_scheduler_loses_no_claimed_slot(directory: CronDirectory) -> None:
    """Frozen right after it took a slot, while another one went on for hours: its slot is its own still."""
    claim = directory.book.claim(KEY, int(NOW), {}, lambda: NOW)
    assert claim is not None
    for number in range(1, 30):
        assert take(directory, KEY, int(NOW) + 60 * number, {}, now=NOW + 6000)
    assert directory.book.has_slot(claim) is True
    directory.book.drop(claim)
    assert take(directory, KEY, int(NOW) + 6000, {})
    assert len(directory.book.slots.taken()[KEY]) == KEPT_SLOTS
    assert not take(directory, KEY, int(NOW), {}, now=NOW + 6000)


def test_one_that_came_too_late_and_died_over_it_has_not_got_its_slot(directory: CronDirectory) -> None:
    for number in range(20):
        take(directory, KEY, int(NOW) + 60 * number, {})
    late = put_run(directory, KEY, int(NOW), state=State.CLAIMED, pid=DEAD, at=NOW + 1200)
    os.link(directory.path / "runs" / late.name, directory.path / "slots" / f"{KEY}@{late.slot}")
    assert directory.book.has_slot(late) is False
    assert directory.book.settle(late, NOW + 1300, "it died", "n1") is None
    assert directory.book.active() == [] and directory.history(KEY) == ()


def test_many_entries_share_one_directory_of_a_bounded_number_of_files(directory: CronDirectory) -> None:
    for entry in range(5):
        for slot in range(15):
            take(directory, f"crontab+{entry}", int(NOW) + slot, {})
    assert len(os.listdir(directory.path / "slots")) == 5 * (KEPT_SLOTS + 1)  # noqa: PTH208
    assert os.listdir(directory.path / "runs") == []  # noqa: PTH208
    assert set(directory.last_slots().values()) == {int(NOW) + 14}


def test_slots_that_a_wrong_clock_took_do_not_count(directory: CronDirectory) -> None:
    take(directory, KEY, int(NOW), {})
    take(directory, KEY, int(NOW + AHEAD_S) + 86400, {})
    assert directory.last_slots(NOW) == {KEY: int(NOW)}
    assert take(directory, KEY, int(NOW) + 60, {}, now=NOW + 60), "and they push no slot of now out"


def test_a_floor_that_a_wrong_clock_raised_silences_no_entry(directory: CronDirectory) -> None:
    ahead = int(NOW + AHEAD_S) + 86400
    for number in range(KEPT_SLOTS + 2):
        assert take(directory, KEY, ahead + 60 * number, {}, now=ahead + 6000)
    assert take(directory, KEY, int(NOW), {}, now=NOW)


def test_only_slots_that_are_far_ahead_are_forgotten(directory: CronDirectory) -> None:
    ahead = int(NOW + AHEAD_S)
    for slot in (int(NOW) - 60, ahead, ahead + 1):
        assert take(directory, KEY, slot, {}, now=NOW)
    assert directory.book.slots.forget_ahead(lambda: NOW) == {KEY: ahead + 1}
    assert directory.book.slots.taken()[KEY] == [int(NOW) - 60, ahead]


def test_a_moment_from_which_on_slots_count_is_a_last_slot(directory: CronDirectory) -> None:
    directory.write_seen({KEY: Seen(int(NOW), "@hourly")})
    assert directory.last_slots(NOW) == {KEY: int(NOW)}
    assert directory.seen() == {KEY: Seen(int(NOW), "@hourly")}


def test_strange_names_in_the_directory_are_no_slots(directory: CronDirectory) -> None:
    take(directory, KEY, int(NOW), {})
    for name in ("x", "@5", "a@", "a@-3", "a@\u0663", ".a@3~", "a@b@c@d", f"{KEY}@{int(NOW)}@x@y-z"):
        (directory.path / "slots" / name).touch()
    os.mkfifo(directory.path / "slots" / f"b@{int(NOW)}")
    assert directory.last_slots() == {KEY: int(NOW), "b": int(NOW)}
    assert not take(directory, "b", int(NOW), {})


# ---- where a scheduler dies -----------------------------------------------------------------------------------------


def test_a_process_that_died_while_claiming_leaves_its_claim(directory: CronDirectory) -> None:
    claim = directory.book.claim(KEY, int(NOW), {}, lambda: NOW)
    assert claim is not None and directory.book.active() == [claim] and claim.is_mine
    assert directory.book.liveness(claim, NOW)[0] is Liveness.ALIVE and directory.book.has_slot(claim) is True
    dead = put_run(directory, KEY, int(NOW), state=State.CLAIMED, pid=DEAD)
    assert directory.book.liveness(dead, NOW)[0] is Liveness.GONE


def test_a_claim_whose_scheduler_died_before_it_had_the_slot_leaves_the_slot_to_the_next_one(
    directory: CronDirectory,
) -> None:
    dead = put_run(directory, KEY, int(NOW), state=State.CLAIMED, pid=DEAD)
    assert directory.book.has_slot(dead) is False
    assert directory.book.settle(dead, NOW + 60, "it was killed", "n1") is None and directory.history(KEY) == ()
    assert take(directory, KEY, int(NOW))


_REQUEST = (
    "directory = CronDirectory(Path({path!r})); directory.book.claim('a', 1800000000, {{'pid': 1}}, lambda: 1.8e9)"
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
        left = [claim for claim in directory.book.active() if directory.book.liveness(claim, NOW)[0] is Liveness.GONE]
        has_it = [claim for claim in left if directory.book.has_slot(claim)]
        gets_it = take(directory, "a", int(NOW), {})
        assert gets_it == (not directory_was_taken(has_it)), (name, count)
        assert directory.last_slots() == {"a": int(NOW)}
    assert done >= 20


def directory_was_taken(has_it: list[Run]) -> bool:
    assert len(has_it) <= 1
    return bool(has_it)


@pytest.mark.parametrize("word", ["EPERM", "EOPNOTSUPP", "ENOSYS"])
def test_a_file_system_without_hard_links_is_good_enough(claims: object, tmp_path: Path, word: str) -> None:
    request = _REQUEST.format(path=str(tmp_path))
    assert claims.run(request, f"link:error={word}", f"linkat:error={word}").code == 0  # type: ignore[attr-defined]
    directory = CronDirectory(tmp_path)
    (claim,) = directory.book.active()
    assert directory.book.has_slot(claim) is True
    assert not take(directory, "a", int(NOW), {})


def test_a_link_whose_answer_was_lost_was_made_all_the_same(
    directory: CronDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lost(mine: str, place: str) -> None:
        link(mine, place)
        link(mine, place)  # the kernel asks again, and finds its own

    monkeypatch.setattr(os, "link", lost)
    assert take(directory, KEY, int(NOW), {})


@pytest.mark.parametrize("call", ["link", "fsync", "write", "openat"])
def test_a_slot_that_could_not_be_written_is_not_taken(claims: object, tmp_path: Path, call: str) -> None:
    take(CronDirectory(tmp_path), "other", int(NOW), {})
    request = _REQUEST.format(path=str(tmp_path))
    inject = [f"{call}:error=EIO:when=1+"] if call != "openat" else ["openat:error=EDQUOT:when=1+"]
    assert claims.run(request, *inject).code == 7  # type: ignore[attr-defined]
    directory = CronDirectory(tmp_path)
    assert directory.book.active() == []
    assert take(directory, "a", int(NOW), {})


def test_a_slot_whose_directory_could_not_be_written_back_is_given_back(
    directory: CronDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(cron_slots, "sync_directory", fail)
        with pytest.raises(StateDirectoryError):
            take(directory, KEY, int(NOW), {})
    assert take(directory, KEY, int(NOW), {})


def test_a_read_only_disk_is_an_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as place:
        directory = CronDirectory(place / "state")
        take(directory, KEY, int(NOW), {})
        make_read_only(place, True)
        with pytest.raises(StateDirectoryError, match="Read-only"):
            take(directory, KEY, int(NOW) + 60, {})
        assert directory.last_slots() == {KEY: int(NOW)}
        make_read_only(place, False)
        assert take(directory, KEY, int(NOW) + 60, {})


# ---- whose directory it is
# ---------------------------------------------------------------------------------------------


def test_a_directory_is_private_and_so_are_its_files(directory: CronDirectory) -> None:
    take(directory, KEY, int(NOW), {})
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
    take(shared, KEY, int(NOW), {})
    shared.check()
    shared.path.chmod(0o2777)
    with pytest.raises(StateDirectoryError, match="other users can write") as told:
        shared.check()
    assert "chmod o-w" in told.value.hint


# ---- the other books ------------------------------------------------------------------------------------------------


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


def test_a_heartbeat_is_renewed_in_its_place_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as place:
        directory = CronDirectory(place)
        directory.beat(Heartbeat(time=NOW, expected=NOW, alive_since=NOW, trouble="a long word, to be overwritten"))
        fill(place)
        beat = Heartbeat(time=NOW + 60, expected=NOW, alive_since=NOW)
        with pytest.raises(StateDirectoryError, match="No space left"):
            directory.beat(beat)
        assert directory.heartbeat() == beat


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
    take(directory, KEY, int(NOW), {"host": "n1", "pid": 7})
    assert json.loads((directory.path / "slots" / f"{KEY}@{int(NOW)}").read_text())["host"] == "n1"
