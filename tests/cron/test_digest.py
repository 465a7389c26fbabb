"""The daily word that all is well: one for each local day, whoever ticks, whatever the clocks do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from resilience.alerts.state import open_alert_state
from resilience.cron import digest as cron_digest
from resilience.cron.digest import Tally, compose, day_of, is_due, parse_digest_at, send_digest
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Heartbeat, Outcome, RunRecord
from resilience.cron.run import tick
from resilience.errors import SettingsError
from resilience.runs.project import Project
from tests.cron.stage import Stage, until
from tests.lab.fakes import FakeClock

HOUR = 3600.0


@contextmanager
def zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


class System:
    """A project whose clock is moved by hand."""

    def __init__(self, tmp_path: Path, digest_at: str = "08:00") -> None:
        stage = Stage(tmp_path, cron=f'digest_at = "{digest_at}"')
        self.clock = FakeClock()
        self.project: Project = replace(stage.project, system=replace(stage.project.system, clock=self.clock))
        self.cron: CronProject = open_cron(self.project)

    def sent_at(self, moment: float) -> bool:
        self.clock.time = moment
        return is_due(self.cron) and send_digest(self.cron, None)

    def queued(self) -> list[str]:
        return sorted(open_alert_state(self.project).outbox.names())


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    with zone("UTC"):
        yield System(tmp_path)


def test_one_a_day_whatever_scheduler_ticks_and_however_often(system: System) -> None:
    start = at("2026-11-20T00:00")
    sent = [start + n * 600 for n in range(3 * 144) if system.sent_at(start + n * 600)]
    assert [datetime.fromtimestamp(one, UTC).strftime("%d %H:%M") for one in sent] == [
        "20 08:00",
        "21 08:00",
        "22 08:00",
    ]
    assert system.queued() == [f"cron-digest-202611{day}.console" for day in (20, 21, 22)]


def test_after_an_outage_there_is_one_for_today_and_none_for_the_days_before(system: System) -> None:
    assert system.sent_at(at("2026-11-20T08:00"))
    assert system.sent_at(at("2026-11-24T21:30"))
    assert not system.sent_at(at("2026-11-24T21:31"))
    assert system.sent_at(at("2026-11-25T08:00"))
    assert len(system.queued()) == 3


def test_an_installation_at_noon_gets_its_first_digest_the_next_morning(system: System) -> None:
    assert not system.sent_at(at("2026-11-20T12:00"))
    assert not system.sent_at(at("2026-11-20T23:59"))
    assert system.sent_at(at("2026-11-21T08:00"))


@pytest.mark.parametrize("zone_name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
@pytest.mark.parametrize("digest_at", ["01:30", "02:30", "00:00", "23:59"])
def test_no_change_of_the_clocks_makes_two_of_a_day_or_none(tmp_path: Path, zone_name: str, digest_at: str) -> None:
    with zone(zone_name):
        sent: list[str] = []
        known: set[int] = set()
        for start in (at("2026-03-06T00:00"), at("2026-03-27T00:00"), at("2026-10-01T00:00"), at("2026-10-23T00:00"),
                      at("2026-10-30T00:00")):  # fmt: skip
            for n in range(4 * 96):
                now = start + n * 900.0
                day = day_of(now, digest_at)
                if now >= day.due and day.number not in known:
                    known.add(day.number)
                    sent.append(f"{day.number}")
            local = time.localtime(start + 4 * 86400 - 900)
            last = local.tm_year * 10000 + local.tm_mon * 100 + local.tm_mday
            first = time.localtime(start)
            expected = {int(time.strftime("%Y%m%d", time.localtime(start + d * 86400 + 3600))) for d in range(1, 4)}
            assert expected - {last} <= known, (zone_name, first)
        assert len(sent) == len(set(sent))


def test_one_that_is_due_a_minute_before_midnight_comes_after_it(tmp_path: Path) -> None:
    with zone("UTC"):
        system = System(tmp_path, digest_at="23:59")
        assert not system.sent_at(at("2026-11-20T23:45"))
        assert system.sent_at(at("2026-11-21T00:00"))
        assert not system.sent_at(at("2026-11-21T00:15"))
        assert system.sent_at(at("2026-11-22T00:00"))
        assert len(system.queued()) == 2


def test_a_tick_killed_in_between_is_completed_by_the_next(system: System) -> None:
    directory = system.cron.state.path / "digest"
    directory.mkdir(parents=True)
    taken = directory / "20261120.taken"
    taken.touch()
    moment = at("2026-11-20T08:01")
    os.utime(taken, (moment, moment))
    assert not system.sent_at(moment + 60), "whoever took it may still be at it"
    assert system.sent_at(moment + 600)
    assert not system.sent_at(moment + 660)


def test_a_failed_submission_is_retried(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    from resilience.alerts.outbox import Outbox
    from resilience.errors import StateDirectoryError

    moment = at("2026-11-20T08:00")
    with monkeypatch.context() as patched:

        def fail(*_: object) -> bool:
            raise StateDirectoryError("the disk is full")

        patched.setattr(Outbox, "put", fail)
        with pytest.raises(StateDirectoryError):
            system.sent_at(moment)
    path = system.cron.state.path / "digest" / "20261120.taken"
    os.utime(path, (moment, moment))
    assert system.sent_at(moment + 600)


def test_without_digests_there_is_no_cost(tmp_path: Path) -> None:
    system = System(tmp_path, digest_at="")
    beat = Heartbeat(time=1.0, expected=2.0, alive_since=0.0)
    cron_digest.count(system.cron, beat)
    assert not is_due(system.cron) and not system.cron.state.path.exists()


@pytest.mark.parametrize("text", ["8", "24:00", "08:60", "morning", "08:00:00", "-1:00"])
def test_an_invalid_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="digest_at"):
        parse_digest_at(text)


def test_ticks_and_their_lateness_are_counted_from_digest_to_digest(system: System) -> None:
    now = at("2026-11-20T07:00")
    for n in range(5):
        cron_digest.count(system.cron, Heartbeat(time=now + n, expected=now + 60, alive_since=now, late_s=float(n)))
    system.sent_at(at("2026-11-20T08:00"))
    (entry,) = open_alert_state(system.project).outbox.pending()
    assert "5 ticks" in entry.alert.title and "late at most 4 s" in entry.alert.title


def test_the_digest_has_counts_failures_and_open_incidents() -> None:
    with zone("UTC"):
        now = at("2026-11-20T08:00")
        runs = [
            RunRecord(name=f"cron.hourly/{n % 8}", slot=n, outcome=Outcome.DONE, time=now - 60) for n in range(95)
        ] + [
            RunRecord(name="watch-fs", slot=1, outcome=Outcome.FAILED, time=at("2026-11-20T03:15")),
            RunRecord(name="watch-fs", slot=2, outcome=Outcome.SKIPPED, time=now, count=3),
        ]
        beat = Heartbeat(time=now, expected=now + 60, alive_since=0.0, next_slot=at("2026-11-20T09:00"))
        alert = compose(
            20261120, Tally(now - 86400, 1440, 4.0), runs, ["CRITICAL fs /scratch: full (3f9a)"], beat, now,
            open_count=2, host="login1", project="/p",
        )  # fmt: skip
    text = "\n".join((alert.title, *alert.body))
    assert alert.title.startswith("resil is alive: 1,440 ticks, late at most 4 s")
    for part in ("96 runs of 9 entries: 95 succeeded, 1 failed (watch-fs 03:15)", "3 slots skipped", "2 open incidents",
                 "/scratch: full", "next: Fri 09:00"):  # fmt: skip
        assert part in text, part


def test_a_real_tick_sends_it_and_the_next_one_does_not(tmp_path: Path) -> None:
    stage = Stage(tmp_path, cron=f'digest_at = "{time.strftime("%H:%M")}"')
    for _ in range(2):
        tick(stage.cron, driver="foreground")
        until(stage.told, "the daily word")
    (line,) = [line for line in stage.told() if "resil is alive" in line]
    assert "open incidents" in line
