"""The outbox: durable when `put` returns, no duplicates, in order, bounded, robust against damaged files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.alerts import outbox as entries
from resilience.alerts.alert import Reason
from resilience.alerts.digest import FOLD_AT
from resilience.alerts.outbox import (
    LIMIT_BYTES,
    MAX_DEAD_LETTERS,
    MAX_SENT,
    SENT_RETENTION_S,
    Entry,
    Outbox,
    decode,
    encode,
    sending_order,
    trimmed,
)
from resilience.errors import StateDirectoryError
from resilience.finding import Verdict
from resilience.records import to_record
from tests.alerts.stand_in import an_alert, an_outbox
from tests.lab.disks import fill, make_read_only, small_disk
from tests.lab.fakes import NOW

HOUR = 3600.0


def names(box: Outbox) -> list[str]:
    return [entry.name for entry in box.pending()]


def ids(entries: Iterable[Entry]) -> list[str]:
    return [entry.alert.id for entry in entries]


@pytest.fixture
def box(tmp_path: Path) -> Outbox:
    return an_outbox(tmp_path)


def folded(box: Outbox, now: float = NOW, host: str = "n1") -> Entry:
    digest = box.fold("email", now, host=host, project="/p")
    assert digest is not None
    return digest


def an_entry(id: str, **fields: object) -> Entry:
    given = {"tries": fields.pop("tries", 0)}
    return Entry(alert=an_alert(id, **fields), channel="email", queued=NOW, **given)  # type: ignore[arg-type]


# ---- put


def test_a_queued_message_is_a_readable_file(tmp_path: Path) -> None:
    assert an_outbox(tmp_path).put(an_alert("a1", summary="91 % – voll"), "email", NOW)
    text = (tmp_path / "alerts" / "outbox" / "a1.email").read_text()
    assert "91 % – voll" in text and json.loads(text)["channel"] == "email"
    assert an_outbox(tmp_path).pending()[0].alert == an_alert("a1", summary="91 % – voll")


def test_the_same_alert_is_queued_once_per_channel(box: Outbox) -> None:
    assert [box.put(an_alert(), name, NOW) for name in ("email", "slack", "email")] == [True, True, False]
    assert names(box) == ["a1.email", "a1.slack"]


@pytest.mark.parametrize("end", ["delivered", "given up"])
def test_a_delivered_or_dead_alert_is_not_queued_again(box: Outbox, end: str) -> None:
    box.put(an_alert(), "email", NOW)
    if end == "delivered":
        box.delivered(box.pending()[0], NOW, "250 ok", "n1")
    else:
        box.give_up(box.pending()[0], "no such recipient", "", NOW, "n1")
    assert not box.put(an_alert(), "email", NOW + 60)
    assert box.names() == ()


@pytest.mark.parametrize("directory", ["sent", "dead"])
def test_a_message_that_may_not_have_been_sent_is_sent(tmp_path: Path, directory: str) -> None:
    """The directory of another user: nothing in it can be read, which is no proof that the message was delivered."""
    (tmp_path / "alerts" / directory / "a1.email").mkdir(parents=True)  # unreadable even for root
    box = an_outbox(tmp_path)
    assert box.put(an_alert(), "email", NOW)
    assert names(box) == ["a1.email"]


@pytest.mark.parametrize("damage", ["empty", "half", "directory", "fifo", "link"])
def test_an_obstacle_in_the_place_of_a_message_does_not_swallow_it(tmp_path: Path, damage: str) -> None:
    an_outbox(tmp_path).put(an_alert(), "email", NOW)
    place = tmp_path / "alerts" / "outbox" / "a1.email"
    half = place.read_bytes()[:100]
    place.unlink()
    if damage in ("empty", "half"):
        place.write_bytes(half if damage == "half" else b"")
    elif damage == "directory":
        place.mkdir()
    elif damage == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/null")
    box = an_outbox(tmp_path, tmp_path / "fallback")  # what cannot be put aside lets the fallback directory take it
    assert box.put(an_alert(), "email", NOW)
    assert names(an_outbox(tmp_path, tmp_path / "fallback")) == ["a1.email"]


@pytest.mark.parametrize("id", ["../../etc/passwd", "a/b", "", "a\nb", "x" * 300, "\x00"])
def test_an_id_cannot_leave_the_directory(tmp_path: Path, id: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        an_outbox(tmp_path).put(an_alert(id, thread="t"), "email", NOW)
    assert not (tmp_path / "etc").exists()


def test_an_alert_with_a_megabyte_of_evidence_is_cut_and_keeps_what_matters(tmp_path: Path) -> None:
    alert = an_alert(evidence=tuple("x" * 10_000 for _ in range(100)), summary="y" * 9000)
    short = trimmed(alert)
    assert len(json.dumps(to_record(short, complete=True))) <= LIMIT_BYTES
    assert (short.id, short.notices[0].subject, short.verdict) == (alert.id, "/scratch", alert.verdict)
    assert trimmed(an_alert()) == an_alert()


def test_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    entry = an_entry("a1", subject="/scratch/\udcff")
    assert decode(encode(entry)) == entry


# ---- in which order


def test_a_resolution_is_never_sent_before_its_incident() -> None:
    first = an_entry("1", thread="t", verdict=Verdict.WARNING)
    over = an_entry("2", thread="t", reason=Reason.RESOLVED, time=NOW)  # of the same moment
    assert ids(sending_order([over, first])) == ["1"]


def test_critical_is_sent_first_then_the_oldest() -> None:
    waiting = [
        an_entry("warning", time=NOW - 9),
        an_entry("late", verdict=Verdict.CRITICAL, time=NOW - 1),
        an_entry("early", verdict=Verdict.CRITICAL, time=NOW - 5),
        an_entry("over", reason=Reason.RESOLVED, time=NOW - 99),
    ]
    assert ids(sending_order(waiting)) == ["early", "late", "warning", "over"]


def test_a_message_that_failed_often_lets_the_other_threads_pass_but_not_its_own() -> None:
    bad = an_entry("bad", thread="t", verdict=Verdict.CRITICAL, tries=entries.DEMOTE_TRIES)
    its_end = an_entry("end", thread="t", reason=Reason.RESOLVED, time=NOW + 1)
    assert ids(sending_order([bad, its_end, an_entry("other")])) == ["other", "bad"]


def test_no_message_is_sent_before_the_digest_of_its_incident(box: Outbox) -> None:
    box.put(an_alert("1", thread="t"), "email", NOW)
    digest = folded(box)
    box.failed(digest, "down", "", "n1")
    for _ in range(entries.DEMOTE_TRIES):
        box.failed(box.pending("email")[0], "down", "", "n1")
    box.put(an_alert("2", thread="t", reason=Reason.RESOLVED, time=NOW + 60), "email", NOW + 60)
    box.put(an_alert("3", thread="u", time=NOW + 70), "email", NOW + 70)
    assert ids(sending_order(box.pending("email"))) == ["3", digest.alert.id]


# ---- what became of it


def test_a_delivered_message_is_kept_with_the_answer_and_without_evidence(tmp_path: Path, box: Outbox) -> None:
    box.put(an_alert(evidence=("log line",)), "email", NOW)
    box.delivered(box.pending()[0], NOW + 5, "250 queued as 77", "n1")
    (sent,) = an_outbox(tmp_path).sent()
    assert (sent.answer, sent.ended, sent.host) == ("250 queued as 77", NOW + 5, "n1")
    assert sent.alert.notices[0].evidence == ()


def test_a_dead_letter_has_the_reason_and_can_be_requeued(box: Outbox) -> None:
    box.put(an_alert(evidence=("log line",)), "email", NOW)
    box.give_up(box.pending()[0], "no such recipient", "write another", NOW + 5, "n1")
    (dead,) = box.dead()
    assert (dead.error, dead.hint, dead.ended) == ("no such recipient", "write another", NOW + 5)
    box.requeue(dead)
    assert (box.dead(), names(box)) == ((), ["a1.email"])
    assert box.pending()[0].alert == an_alert(evidence=("log line",)) and box.pending()[0].tries == 0


def test_a_delivery_recorded_before_a_crash_is_completed_by_the_next_reader(tmp_path: Path, box: Outbox) -> None:
    """A crash between the two, or a read-only disk."""
    box.put(an_alert(), "email", NOW)
    path = tmp_path / "alerts" / "outbox" / "a1.email"
    raw = path.read_bytes()
    box.delivered(box.pending()[0], NOW, "ok", "n1")
    path.write_bytes(raw)
    assert box.reload("a1.email") is None and box.pending() == ()
    assert not path.exists()


def test_old_messages_expire_but_dead_letters_do_not(box: Outbox) -> None:
    for id in ("old", "new", "dead"):
        box.put(an_alert(id), "email", NOW)
    by_id = {entry.alert.id: entry for entry in box.pending()}
    box.delivered(by_id["old"], NOW, "ok", "n1")
    box.delivered(by_id["new"], NOW + SENT_RETENTION_S, "ok", "n1")
    box.give_up(by_id["dead"], "no", "", NOW, "n1")
    box.cleanup(NOW + SENT_RETENTION_S + HOUR)
    assert ids(box.sent()) == ["new"]
    assert ids(box.dead()) == ["dead"]


def test_the_directories_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.alerts.outbox.MAX_SENT", 3)
    monkeypatch.setattr("resilience.alerts.outbox.MAX_DEAD_LETTERS", 3)
    assert MAX_SENT >= 1000 and MAX_DEAD_LETTERS >= 1000
    box = an_outbox(tmp_path)
    for number in range(10):
        box.put(an_alert(f"a{number}"), "email", NOW)
        box.put(an_alert(f"a{number}"), "slack", NOW)
        box.delivered(box.pending("email")[0], NOW + number, "ok", "n1")
        box.give_up(box.pending("slack")[0], "no", "", NOW + number, "n1")
    box.cleanup(NOW + HOUR)
    assert ids(box.sent()) == ids(box.dead()) == ["a7", "a8", "a9"]


# ---- folding


def test_many_messages_are_folded_into_one_file_and_none_is_lost(box: Outbox) -> None:
    for number in range(3 * FOLD_AT):
        box.put(an_alert(f"a{number}", time=NOW + number, subject=f"/disk{number}"), "email", NOW + number)
    assert len(box.names()) <= FOLD_AT
    digest = folded(box, NOW + HOUR)
    assert box.names() == (digest.name,)
    assert len(digest.lines) == digest.alert.total == 3 * FOLD_AT
    assert not box.put(an_alert("a0"), "email", NOW), "it is in the digest"
    box.delivered(digest, NOW, "ok", "n1")
    assert not box.put(an_alert("a0"), "email", NOW), "it was in the digest"


def test_a_crash_while_folding_leaves_no_duplicates(tmp_path: Path, box: Outbox) -> None:
    for number in range(4):
        box.put(an_alert(f"a{number}"), "email", NOW)
    kept = {path: path.read_bytes() for path in (tmp_path / "alerts" / "outbox").iterdir()}
    digest = folded(box)
    for path, raw in list(kept.items())[:2]:
        path.write_bytes(raw)
    assert names(box) == [digest.name]
    assert len(list((tmp_path / "alerts" / "outbox").iterdir())) == 1


def test_two_nodes_that_fold_at_once_make_one_digest_in_the_end(tmp_path: Path, box: Outbox) -> None:
    directory = tmp_path / "alerts" / "outbox"
    for number in range(4):
        box.put(an_alert(f"a{number}", subject=f"/disk{number}"), "email", NOW)
    kept = {path: path.read_bytes() for path in directory.iterdir()}
    one = folded(box)
    for path, raw in kept.items():
        path.write_bytes(raw)
    (directory / one.name).rename(tmp_path / "of the other node")
    box.put(an_alert("a9", subject="/disk9"), "email", NOW)
    two = folded(box, host="n2")
    (tmp_path / "of the other node").rename(directory / one.name)
    assert two.name != one.name
    whole = folded(box)
    assert box.names() == (whole.name,)
    assert sorted(line.subject for line in whole.lines) == ["/disk0", "/disk1", "/disk2", "/disk3", "/disk9"]


# ---- damage in its directory


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"null", b"[1]", b"\x00\xff", b'{"alert": {}, "channel": 1}', b"[" * 100_000]
)
def test_a_damaged_entry_is_quarantined_and_the_others_are_sent(tmp_path: Path, box: Outbox, content: bytes) -> None:
    box.put(an_alert("good"), "email", NOW)
    (tmp_path / "alerts" / "outbox" / "bad.email").write_bytes(content)
    assert names(box) == ["good.email"]
    assert "moved to" in box.error
    aside = [path for path in (tmp_path / "alerts" / "outbox").iterdir() if path.name.startswith(".damaged-bad")]
    assert aside[0].read_bytes() == content, "nothing is thrown away"


def test_an_entry_with_the_content_of_another_is_rejected(tmp_path: Path, box: Outbox) -> None:
    box.put(an_alert("good"), "email", NOW)
    directory = tmp_path / "alerts" / "outbox"
    (directory / "other.slack").write_bytes((directory / "good.email").read_bytes())
    assert names(box) == ["good.email"]


def test_a_fifo_a_link_or_a_directory_instead_of_an_entry_does_not_block(tmp_path: Path, box: Outbox) -> None:
    box.put(an_alert("good"), "email", NOW)
    directory = tmp_path / "alerts" / "outbox"
    os.mkfifo(directory / "a.email")
    (directory / "b.email").symlink_to("/etc/passwd")
    (directory / "c.email").mkdir()
    (directory / "stray").write_text("no channel")
    assert names(box) == ["good.email"]
    assert box.names() == ("good.email",), "what can never be sent does not wait for ever"
    assert "moved to" in box.error


# ---- disks in trouble


def test_on_a_full_disk_messages_go_to_the_fallback_directory_and_move_back(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        box = an_outbox(disk, tmp_path / "fallback")
        box.put(an_alert("before"), "email", NOW)
        ballast = fill(disk)
        assert box.put(an_alert("a1", evidence=("x" * 9000,)), "email", NOW)
        assert names(box) == ["a1.email", "before.email"]
        for entry in box.pending():
            box.delivered(entry, NOW, "ok", "n1")
        assert box.names() == () and len(box.sent()) == 2
        ballast.unlink()
        box.flush_fallback()
        assert [path.name for path in (disk / "alerts" / "sent").iterdir()].count("a1.email") == 1


def test_a_read_only_disk_does_not_make_a_message_go_out_at_every_tick(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        box = an_outbox(disk, tmp_path / "fallback")
        box.put(an_alert("before"), "email", NOW)
        make_read_only(disk, True)
        box.delivered(box.pending()[0], NOW, "ok", "n1")
        assert an_outbox(disk, tmp_path / "fallback").pending() == ()
        make_read_only(disk, False)


def test_without_a_writable_disk_an_error_is_raised(tmp_path: Path) -> None:
    (tmp_path / "alerts").write_text("a file")
    with pytest.raises(StateDirectoryError):
        an_outbox(tmp_path).put(an_alert(), "email", NOW)


def test_no_secret_that_a_log_quotes_leaves_with_an_alert(tmp_path: Path) -> None:
    outbox, key = an_outbox(tmp_path), ("-----BEGIN PRIVATE KEY-----", "x9Yb+/Zq" * 8, "-----END PRIVATE KEY-----")
    alert = an_alert("a")
    notices = tuple(
        replace(one, summary="password=hunter2x7", advice="hf_" + "aB" * 17, evidence=("line", *key, "end"))
        for one in alert.notices
    )
    outbox.put(replace(alert, title="token=1 sk-ant-" + "aB" * 40, body=key, notices=notices), "mail", 1.0)
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file() and b"REDACTED" in path.read_bytes()]
    text = path.read_text()
    assert not any(word in text for word in ("hunter2x7", "aBaB", "x9Yb"))
    assert '"line","REDACTED","end"' in text and "password=REDACTED" in text
