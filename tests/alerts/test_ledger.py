"""Incidents, acknowledgements and silences are files that `cat` can read, and a damaged one costs itself alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.alerts.incident import Incident, Silence, fingerprint_of, hex_digest, matching_silence
from resilience.alerts.ledger import COPY_MAX_AGE_S, SILENCE_RETENTION_S, Ledger, LedgerCopy, Silences, silence_id
from resilience.alerts.policy import open_incident
from resilience.errors import StateDirectoryError, UsageError
from resilience.finding import Finding, Verdict
from resilience.records import to_record
from resilience.settings.alert_policy import AlertPolicy
from resilience.system.fallback_directory import FallbackDirectory
from tests.lab.disks import fill, make_read_only, small_disk
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

NOW = 1_800_000_000.0


def incident(subject: str = "/scratch", **fields: Any) -> Incident:
    fingerprint = fingerprint_of("fs", subject, "space")
    given: dict[str, Any] = {
        "episode": hex_digest(8, fingerprint),
        "fingerprint": fingerprint,
        "check": "fs",
        "subject": subject,
        "fault": "space",
        "verdict": Verdict.WARNING,
        "worst": Verdict.WARNING,
        "summary": "91% used",
        "opened": NOW,
        "changed": NOW,
        "seen": NOW,
        "looked": NOW,
    }
    return Incident(**(given | fields))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "incidents"


@pytest.fixture
def ledger(directory: Path, tmp_path: Path) -> Ledger:
    return Ledger(FallbackDirectory(directory, tmp_path / "spare" / "incidents"))


def again(ledger: Ledger) -> Ledger:
    """As the next process opens it."""
    return Ledger(FallbackDirectory(ledger.directory.primary, ledger.directory.fallback))


def test_saved_incidents_are_read_by_the_next_process_the_latest_first(ledger: Ledger) -> None:
    first, second = incident("/a"), incident("/b", opened=NOW + 1)
    ledger.save(first)
    ledger.save(second)
    assert again(ledger).incidents() == (second, first)
    assert ledger.errors == ()


def test_an_incident_is_a_readable_file(ledger: Ledger, directory: Path) -> None:
    ledger.save(incident("/scratch/Jürgen"))
    (file,) = directory.iterdir()
    assert file.name == incident("/scratch/Jürgen").fingerprint + ".json"
    lines = file.read_text().splitlines()
    assert ' "subject": "/scratch/Jürgen",' in lines
    assert ' "summary": "91% used",' in lines


def test_a_subject_that_is_no_text_is_kept(ledger: Ledger) -> None:
    ledger.save(incident("/data/\udcff"))
    assert again(ledger).incidents()[0].subject == "/data/\udcff"


def test_a_fault_that_comes_back_has_one_file(ledger: Ledger, directory: Path) -> None:
    ledger.save(incident())
    ledger.save(incident(episode="ffffffff", number=2))
    assert len(list(directory.iterdir())) == 1


def test_a_removed_incident_loses_its_acknowledgement(ledger: Ledger, directory: Path) -> None:
    ledger.save(incident())
    ledger.acknowledge(incident(), "ada", "", NOW)
    (kept,) = ledger.incidents()
    ledger.remove(kept)
    assert list(directory.iterdir()) == []


# ---- finding


def test_an_incident_is_found_by_the_beginning_of_its_id(ledger: Ledger) -> None:
    ledger.save(incident(episode="3f9a1c04"))
    for text in ("3f9a1c04", "3f9", " 3F9A "):
        assert ledger.find(text).episode == "3f9a1c04"


def test_an_id_that_fits_several_names_them(ledger: Ledger) -> None:
    ledger.save(incident("/a", episode="3f9a1c04"))
    ledger.save(incident("/b", episode="3f9b0000"))
    with pytest.raises(UsageError) as refused:
        ledger.find("3f9")
    assert "3f9a1c04 (fs /a)" in refused.value.hint
    assert "3f9b0000 (fs /b)" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "hint"), [("3f9a1c40", "did you mean 3f9a1c04?"), ("zzz", "resil alert list"), ("", "resil")]
)
def test_an_id_that_fits_none_names_the_nearest(ledger: Ledger, text: str, hint: str) -> None:
    ledger.save(incident(episode="3f9a1c04"))
    with pytest.raises(UsageError) as refused:
        ledger.find(text)
    assert hint in refused.value.hint


# ---- acknowledgements


def test_an_acknowledgement_outlives_a_watchdog_that_writes_at_the_same_moment(ledger: Ledger) -> None:
    ledger.save(incident())
    (read_before,) = again(ledger).incidents()
    ledger.acknowledge(read_before, "ada", "moving data", NOW + 5)
    again(ledger).save(replace(read_before, count=2))  # a watchdog that had not seen it
    (kept,) = again(ledger).incidents()
    assert (kept.acknowledged_by, kept.acknowledged_at, kept.acknowledged_note) == ("ada", NOW + 5, "moving data")
    assert kept.count == 2


def test_an_acknowledgement_can_be_removed(ledger: Ledger) -> None:
    ledger.save(incident())
    acknowledged = ledger.acknowledge(incident(), "ada", "", NOW)
    assert acknowledged.acknowledged_by == "ada"
    assert ledger.unacknowledge(incident()).acknowledged_by == ""
    assert again(ledger).incidents()[0].acknowledged_by == ""


def test_the_id_of_an_earlier_incident_leads_to_the_current_one(ledger: Ledger) -> None:
    first = incident()
    ended = replace(first, resolved=NOW + 10)
    finding = Finding(subject=first.subject, fault=first.fault, verdict=Verdict.CRITICAL, summary="full again")
    again = open_incident(ended, finding, first.check, NOW + 60, AlertPolicy())
    ledger.save(again)
    with pytest.raises(UsageError, match=f"is resolved; the fault came back as {again.episode}"):
        Ledger(ledger.directory).find(first.episode[:6])
    assert again.episode != first.episode and ledger.find(again.episode) == again


def test_an_acknowledgement_ends_with_its_episode(ledger: Ledger) -> None:
    ledger.save(incident())
    ledger.acknowledge(incident(), "ada", "", NOW)
    fresh = again(ledger)
    fresh.incidents()
    fresh.save(incident(episode="ffffffff", number=2))
    assert fresh.incidents()[0].acknowledged_by == ""
    assert not list(ledger.directory.primary.glob("*.ack"))


@needs_root
def test_an_unreadable_ledger_is_an_error_and_not_an_unknown_id(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    tmp_path.chmod(0o755)
    private = tmp_path / "private"
    Ledger(FallbackDirectory(private / "i", None)).save(incident())
    with acting_as(NOBODY), pytest.raises(StateDirectoryError, match="cannot look up") as caught:
        Ledger(FallbackDirectory(private / "i", None)).find("3f9a")
    assert not caught.value.transient and "[run] group" in caught.value.hint


@needs_root
def test_a_group_member_may_acknowledge_and_another_user_gets_a_hint(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    tmp_path.chmod(0o755)
    shared, private = tmp_path / "shared", tmp_path / "private"
    for place, options in ((shared, {"directory_mode": 0o2770, "file_mode": 0o660, "gid": NOBODY}), (private, {})):
        Ledger(FallbackDirectory(place / "i", None, **options)).save(incident())  # type: ignore[arg-type]
    private.chmod(0o755)
    (private / "i").chmod(0o755)
    (next((private / "i").iterdir())).chmod(0o644)
    with acting_as(12345, NOBODY):
        theirs = FallbackDirectory(shared / "i", None, directory_mode=0o2770, file_mode=0o660)
        Ledger(theirs).acknowledge(incident(), "colleague", "", NOW)
        with pytest.raises(StateDirectoryError) as refused:
            Ledger(FallbackDirectory(private / "i", None)).acknowledge(incident(), "stranger", "", NOW)
    assert "Permission denied" in refused.value.message
    assert Ledger(FallbackDirectory(shared / "i", None)).incidents()[0].acknowledged_by == "12345", (
        "the owner of the file"
    )


@needs_root
def test_an_acknowledgement_that_watchdogs_cannot_read_is_rejected(tmp_path: Path) -> None:
    """No other user reads the fallback directory of the user who acknowledges."""
    with small_disk(tmp_path / "disk") as disk:
        theirs = disk / "i"
        Ledger(FallbackDirectory(theirs, None)).save(incident())
        os.chown(theirs, NOBODY, NOBODY)
        make_read_only(disk, True)
        ledger = Ledger(FallbackDirectory(theirs, tmp_path / "spare" / "i"))
        with pytest.raises(StateDirectoryError) as refused:
            ledger.acknowledge(incident(), "ada", "", NOW)
        assert "was not saved" in refused.value.message
        assert ledger.incidents()[0].acknowledged_by == ""


# ---- damage

WHOLE = incident()
DAMAGE = {
    "empty": b"",
    "half": json.dumps({"episode": "3f9a"}).encode()[:9],
    "no object": b"[1, 2]",
    "no incident": b"{}",
    "a number": b"7",
    "not UTF-8": b"\xff\xfe{}",
    "NUL bytes": bytes(4096),
    "deep": b"[" * 100_000,
    "infinite": b'{"opened": 1e999}',
    "another's": b"",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_quarantined_and_reported_and_the_others_are_read(
    ledger: Ledger, directory: Path, kind: str
) -> None:
    other = incident("/home")
    ledger.save(other)
    ledger.save(WHOLE)
    path = directory / f"{WHOLE.fingerprint}.json"
    content = (directory / f"{other.fingerprint}.json").read_bytes() if kind == "another's" else DAMAGE[kind]
    path.write_bytes(content)
    fresh = again(ledger)
    assert fresh.incidents() == (other,)
    assert "is damaged" in fresh.errors[0]
    assert path.name in fresh.errors[0]
    assert not path.exists()
    (aside,) = directory.glob(".damaged-*")
    assert aside.read_bytes() == content
    fresh.save(WHOLE)  # it begins afresh
    assert set(again(ledger).incidents()) == {other, WHOLE}
    assert again(ledger).errors == ()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"acknowledged_by": 3}', b'{"acknowledged_at": "x"}', b"\xff"]
)
def test_a_damaged_acknowledgement_costs_the_acknowledgement_alone(
    ledger: Ledger, directory: Path, content: bytes
) -> None:
    ledger.save(WHOLE)
    (directory / f"{WHOLE.episode}.ack").write_bytes(content)
    fresh = again(ledger)
    assert fresh.incidents() == (WHOLE,)
    assert "acknowledgement" in fresh.errors[0]
    assert not (directory / f"{WHOLE.episode}.ack").exists()


def test_a_directory_or_link_instead_of_a_file_is_reported_and_quarantined(ledger: Ledger, directory: Path) -> None:
    ledger.save(WHOLE)
    (directory / "aa.json").mkdir()
    (directory / "bb.json").symlink_to("/etc/passwd")
    fresh = again(ledger)
    assert fresh.incidents() == (WHOLE,)
    assert len(fresh.errors) == 2 and all("moved to" in said for said in fresh.errors)
    assert again(ledger).incidents() == (WHOLE,) and not again(ledger).errors


# ---- disks


def test_incidents_survive_a_full_disk_and_move_home_afterwards(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        ledger = Ledger(FallbackDirectory(disk / "i", tmp_path / "spare" / "i"))
        ledger.save(incident("/a"))
        ballast = fill(disk)
        ledger.save(incident("/a", count=7, evidence=("x" * 5000,)))
        ledger.save(incident("/b", evidence=("x" * 5000,)))
        kept = again(ledger).incidents()
        assert {(i.subject, i.count) for i in kept} == {("/a", 7), ("/b", 0)}
        ballast.unlink()
        assert ledger.directory.flush_fallback() == 2
        assert Ledger(FallbackDirectory(disk / "i", None)).incidents() == kept


def test_incidents_survive_a_disk_that_becomes_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        ledger = Ledger(FallbackDirectory(disk / "i", tmp_path / "spare" / "i"))
        ledger.save(incident("/a"))
        make_read_only(disk, True)
        ledger.save(incident("/a", count=7))
        ledger.remove(incident("/b"))
        assert again(ledger).incidents()[0].count == 7
        make_read_only(disk, False)


def test_an_unreadable_state_is_reported(tmp_path: Path) -> None:
    ledger = Ledger(FallbackDirectory(tmp_path / "i", tmp_path / "spare" / "i", unavailable="it does not answer"))
    assert ledger.incidents() == ()
    assert "it does not answer" in ledger.errors[0]


# ---- many


def test_an_unchanged_incident_is_not_written_again(ledger: Ledger, directory: Path) -> None:
    ledger.save(WHOLE)
    fresh = again(ledger)
    (kept,) = fresh.incidents()
    before = (directory / f"{WHOLE.fingerprint}.json").stat().st_mtime_ns
    fresh.save(kept)
    assert (directory / f"{WHOLE.fingerprint}.json").stat().st_mtime_ns == before


def test_two_processes_that_write_at_once_leave_whole_files(ledger: Ledger, directory: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from dataclasses import replace\n"
        "from tests.alerts.test_ledger import incident; from resilience.alerts.ledger import Ledger\n"
        "from resilience.system.fallback_directory import FallbackDirectory\n"
        f"ledger = Ledger(FallbackDirectory(Path({str(directory)!r}), None))\n"
        "for n in range(200): ledger.save(incident(count=n, evidence=(sys.argv[1] * 3000,))); ledger.incidents()\n"
        "assert ledger.errors == (), ledger.errors\n"
    )
    root = Path(__file__).parents[2]
    both = [subprocess.Popen([sys.executable, "-c", script, who], cwd=root) for who in "ab"]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert again(ledger).incidents()[0].count == 199
    assert len(list(directory.iterdir())) == 1


def test_a_thousand_incidents_are_read_in_a_moment(ledger: Ledger) -> None:
    for number in range(1000):
        ledger.save(incident(f"job {number}"))
    fresh = again(ledger)
    began = time.monotonic()
    assert len(fresh.incidents()) == 1000
    assert time.monotonic() - began < 30  # 0.1 s on a quiet core


def contents(*incidents: Incident) -> list[bytes]:
    return [json.dumps(to_record(one, complete=True)).encode() for one in incidents]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "ledger-copy.json"


def test_open_incidents_are_copied(path: Path) -> None:
    given = (incident("/a"), incident("/b"))
    LedgerCopy(path).save(contents(*given), NOW)
    assert LedgerCopy(path).load(NOW + 60) == given
    LedgerCopy(path).save([], NOW)
    assert LedgerCopy(path).load(NOW) == ()


@pytest.mark.parametrize(("later_s", "count"), [(COPY_MAX_AGE_S - 1, 1), (COPY_MAX_AGE_S, 0), (-COPY_MAX_AGE_S, 0)])
def test_an_old_copy_is_ignored(path: Path, later_s: float, count: int) -> None:
    LedgerCopy(path).save(contents(incident()), NOW)
    assert len(LedgerCopy(path).load(NOW + later_s)) == count


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"time": 1e999, "incidents": []}'])
def test_a_damaged_copy_is_ignored(path: Path, content: bytes) -> None:
    LedgerCopy(path).save(contents(incident()), NOW)
    path.write_bytes(content)
    assert LedgerCopy(path).load(NOW) == ()


def test_only_this_user_reads_it(path: Path) -> None:
    LedgerCopy(path).save(contents(incident()), NOW)
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


@needs_root
def test_a_copy_of_another_user_is_ignored(path: Path) -> None:
    LedgerCopy(path).save(contents(incident()), NOW)
    os.chown(path, NOBODY, NOBODY)
    assert LedgerCopy(path).load(NOW) == ()


def test_without_a_directory_no_copy_is_saved_and_no_error_raised(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("not a directory")
    copy = LedgerCopy(tmp_path / "node" / "ledger-copy.json")
    copy.save(contents(incident()), NOW)
    assert copy.load(NOW) == ()


HOUR = 3600.0


def silence(id: str = "12ab34cd", hours: float = 1.0, **fields: str) -> Silence:
    return Silence(id=id, since=NOW, until=NOW + hours * HOUR, **({"check": "fs"} | fields))


@pytest.fixture
def silences(tmp_path: Path) -> Silences:
    return Silences(FallbackDirectory(tmp_path / "silences", None))


def test_a_silence_holds_until_its_end_and_the_first_to_end_comes_first(silences: Silences) -> None:
    long, short = silence("aa", 5.0), silence("bb", 1.0)
    silences.add(long)
    silences.add(short)
    assert silences.active(NOW) == (short, long)
    assert silences.active(NOW + 2 * HOUR) == (long,)
    assert silences.active(NOW + 6 * HOUR) == ()


def test_a_silence_is_a_readable_file(silences: Silences) -> None:
    silences.add(silence(why="moving /scratch"))
    assert "moving /scratch" in (silences.directory.primary / "12ab34cd.json").read_text()


def test_it_can_be_ended_by_the_beginning_of_its_id(silences: Silences) -> None:
    silences.add(silence("12ab34cd"))
    assert silences.remove(" 12A ").id == "12ab34cd"
    assert silences.active(NOW) == ()


@pytest.mark.parametrize(
    ("text", "said"), [("1", "several"), ("9", "there is no silence"), ("", "there is no silence")]
)
def test_an_id_that_fits_none_or_several_is_refused_naming_those_there_are(
    silences: Silences, text: str, said: str
) -> None:
    silences.add(silence("12ab34cd"))
    silences.add(silence("1f000000"))
    with pytest.raises(UsageError) as refused:
        silences.remove(text)
    assert said in refused.value.message
    assert "12ab34cd" in refused.value.hint


def test_where_there_is_none_none_can_be_ended(silences: Silences) -> None:
    with pytest.raises(UsageError) as refused:
        silences.remove("1")
    assert refused.value.hint == "no silence is active"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"id": "1", "until": "x", "check": "fs"}', b"\xff"])
def test_a_damaged_silence_is_quarantined_and_reported_and_the_others_apply(silences: Silences, content: bytes) -> None:
    silences.add(silence())
    silences.directory.write("bad.json", content)
    assert [s.id for s in silences.active(NOW)] == ["12ab34cd"]
    assert "bad.json" in silences.errors[0]
    assert "moved to" in silences.errors[0]
    assert silences.directory.names() == ("12ab34cd.json",)


def test_silences_that_expired_long_ago_are_removed(silences: Silences) -> None:
    silences.add(silence("aa"))
    silences.add(silence("bb", hours=24 * 30))
    silences.prune(NOW + HOUR + SILENCE_RETENTION_S + 1)
    assert silences.directory.names() == ("bb.json",)


def test_ids_differ_by_who_what_and_when() -> None:
    ids = {silence_id(what, by, now) for what in ("fs", "job") for by in ("ada", "bob") for now in (1.0, 2.0)}
    assert len(ids) == 8
    assert all(len(one) == 8 for one in ids)


def test_of_several_silences_the_last_to_end_counts() -> None:
    short, long = silence("aa", 1.0), silence("bb", 2.0, check="f*")
    other = silence("cc", 9.0, check="job")
    assert matching_silence((short, long, other), incident(), NOW) == long
    assert matching_silence((other,), incident(), NOW) is None
    assert matching_silence((short, long), incident(), NOW + 3 * HOUR) is None
