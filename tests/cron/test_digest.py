"""The daily word that all is well: one for each local day, whoever ticks, whatever the clocks do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from resilience.alerts.state import open_alert_state
from resilience.cron.digest import compose, send_digest
from resilience.cron.edit import remove
from resilience.cron.health import Health, Judgement
from resilience.cron.records import Heartbeat, Outcome, RunRecord
from resilience.cron.run import tick
from resilience.cron.state_directory import Seen
from resilience.cron.table.due import due
from resilience.cron.table.own_entries import DIGEST, own_entries, parse_digest_at
from resilience.errors import SettingsError, StateDirectoryError, UsageError
from resilience.settings.cron_settings import CronSettings
from tests.cron.stage import Stage, until

KEY = DIGEST.replace("/", "+")


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


def sent(digest_at: str, *spans: tuple[float, float], step_s: float = 900.0) -> list[str]:
    """The local days of the digests that schedulers send that tick in these spans; installed at the first tick."""
    table, last, found = own_entries(CronSettings(digest_at=digest_at)), {KEY: int(spans[0][0])}, []
    for start, end in spans:
        for n in range(int((end - start) / step_s)):
            for one in due(table, last, start + n * step_s, tick_s=step_s):
                last[KEY] = one.slot
                found.append(time.strftime("%d", time.localtime(one.slot)))
    return found


DAYS = {
    "one a day": ("08:00", [("2026-11-20T00:00", "2026-11-23T00:00")], ["20", "21", "22"]),
    "installed at noon": ("08:00", [("2026-11-20T12:00", "2026-11-21T12:00")], ["21"]),
    "an outage of days": ("08:00", [("2026-11-20T07:00", "2026-11-20T09:00"), ("2026-11-24T21:30", "2026-11-25T09:00")],
                          ["20", "24", "25"]),
    "due a minute before midnight": ("23:59", [("2026-11-20T23:45", "2026-11-22T00:15")], ["20", "21"]),
}  # fmt: skip


@pytest.mark.parametrize("case", DAYS)
def test_one_a_day_and_none_for_days_without_a_scheduler(case: str) -> None:
    digest_at, spans, days = DAYS[case]
    with zone("UTC"):
        assert sent(digest_at, *((at(start), at(end)) for start, end in spans)) == days


@pytest.mark.parametrize("zone_name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
@pytest.mark.parametrize("digest_at", ["01:30", "02:30", "00:00", "23:59"])
def test_no_change_of_the_clocks_makes_two_of_a_day_or_none(zone_name: str, digest_at: str) -> None:
    with zone(zone_name):
        for year, month, day in ((2026, 3, 6), (2026, 3, 27), (2026, 10, 2), (2026, 10, 23), (2026, 10, 30)):
            start = time.mktime((year, month, day, 0, 0, 0, 0, 0, -1)) - 1
            days = [time.strftime("%d", time.localtime(start + 43200 + n * 86400)) for n in range(4)]
            found = sent(digest_at, (start, start + 4 * 86400 + 7200))
            assert found[:4] == days and len(found) == len(set(found)), (zone_name, month)


@pytest.mark.parametrize("text", ["8", "24:00", "08:60", "morning", "08:00:00", "-1:00"])
def test_an_invalid_time_of_day_is_refused_and_shown_as_an_entry_that_cannot_run(text: str) -> None:
    with pytest.raises(SettingsError, match="digest_at"):
        parse_digest_at(text)
    table = own_entries(CronSettings(digest_at=text))
    assert not table.entries and table.ignored[0].is_fault and "digest_at" in table.ignored[0].reason


def test_the_digest_is_an_entry_that_no_command_removes(tmp_path: Path) -> None:
    stage = Stage(tmp_path, cron='digest_at = "08:00"')
    (entry,) = stage.cron.read_table().entries
    assert (entry.name, entry.place) == (DIGEST, "resil.toml: [cron] digest_at")
    with pytest.raises(UsageError, match="digest_at"):
        remove(stage.cron, ["digest"])
    (tmp_path / "off").mkdir()
    assert not Stage(tmp_path / "off").cron.read_table().entries


def test_the_same_slot_is_sent_once_and_a_failure_is_one_of_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESIL_CRON_SLOT", "1800000000")
    stage = Stage(tmp_path)
    for _ in range(2):  # the entry is rerun after a crash
        send_digest(stage.cron)
    assert len(stage.told()) == 1 and "the scheduler is not installed" in stage.told()[0]
    (tmp_path / "silent").mkdir()
    with pytest.raises(UsageError, match="no channel"):
        send_digest(Stage(tmp_path / "silent", alert="").cron)

    def fail(*_: object) -> bool:
        raise StateDirectoryError("the disk is full")

    monkeypatch.setattr("resilience.alerts.outbox.Outbox.put", fail)
    with pytest.raises(StateDirectoryError):
        send_digest(stage.cron)


def test_the_digest_counts_from_the_one_before(tmp_path: Path) -> None:
    stage, now = Stage(tmp_path), time.time()

    def ran(name: str, ago_s: float, outcome: Outcome = Outcome.DONE) -> None:
        slot = int(now - ago_s)
        run = RunRecord(name=name, slot=slot, outcome=outcome, time=now - ago_s, started=slot + 4.0)
        stage.cron.state.record(name.replace("/", "+"), run)

    ran("cron.hourly/a", 200000)
    ran("cron.hourly/a", 100000, Outcome.FAILED)
    assert "0 of 0 runs failed" in send_digest(stage.cron).title, "of the last day, without one before"
    ran(DIGEST, 150000)
    alert = send_digest(stage.cron)
    assert "1 of 1 run failed" in alert.title and "late at most 4 s" in alert.title
    assert not open_alert_state(stage.project).outbox.names()


def test_the_digest_has_counts_failures_and_open_incidents() -> None:
    with zone("UTC"):
        now = at("2026-11-20T08:00")
        runs = [
            RunRecord(name=f"cron.hourly/{n % 8}", slot=n, outcome=Outcome.DONE, time=now - 60) for n in range(95)
        ] + [
            RunRecord(name="x/watch-fs", slot=1, outcome=Outcome.FAILED, time=at("2026-11-20T03:15")),
            RunRecord(name="x/watch-fs", slot=2, outcome=Outcome.SKIPPED, time=now, count=3),
            RunRecord(name="scheduler", slot=3, outcome=Outcome.REFUSED, time=now),
        ]
        beat = Heartbeat(
            time=now, expected=now + 60, alive_since=now - 86400, ticks=1440, next_slot=at("2026-11-20T09:00")
        )
        judged = Judgement(Health.ALIVE, "job 88 runs on n1")
        title, body = compose(judged, beat, runs, ["CRITICAL fs /scratch: full (3f9a)"], now - 86400, now)
    assert title == "resil is alive: 1 of 96 runs failed, 1 open incident"
    text = "\n".join(body)
    counts = "96 runs of 9 entries in 1 d: 95 succeeded, 1 failed (x/watch-fs 03:15)"
    for part in ("job 88 runs on n1", "1,440 ticks without a gap in 1 d", "3 slots skipped", "/scratch: full",
                 counts, "next: Fri 09:00"):  # fmt: skip
        assert part in text, part


def test_a_real_tick_sends_it_and_the_next_one_does_not(tmp_path: Path) -> None:
    stage = Stage(tmp_path, cron=f'digest_at = "{time.strftime("%H:%M")}"')
    tick(stage.cron, driver="foreground")  # the entry is new: its slots begin now
    seen = stage.cron.state.seen()
    stage.cron.state.write_seen({key: Seen(one.since - 120, one.schedule) for key, one in seen.items()})
    for _ in range(2):
        tick(stage.cron, driver="foreground")
        until(stage.told, "the daily word")
    (line,) = [line for line in stage.told() if "resil is alive" in line]
    assert "open incidents" in line
