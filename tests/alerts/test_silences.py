"""Silences are kept where every watchdog reads them, until they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.alerts.incident import Silence
from resilience.alerts.ledger import KEPT_S, Silences, silence_id, silencing
from resilience.errors import UsageError
from resilience.system.spare_folder import SpareFolder
from tests.alerts.test_ledger import incident

NOW = 1_800_000_000.0
HOUR = 3600.0


def silence(id: str = "12ab34cd", hours: float = 1.0, **fields: str) -> Silence:
    return Silence(id=id, since=NOW, until=NOW + hours * HOUR, **({"check": "fs"} | fields))


@pytest.fixture
def silences(tmp_path: Path) -> Silences:
    return Silences(SpareFolder(tmp_path / "silences", None))


def test_a_silence_holds_until_its_end_and_the_first_to_end_comes_first(silences: Silences) -> None:
    long, short = silence("aa", 5.0), silence("bb", 1.0)
    silences.add(long)
    silences.add(short)
    assert silences.all(NOW) == (short, long)
    assert silences.all(NOW + 2 * HOUR) == (long,)
    assert silences.all(NOW + 6 * HOUR) == ()


def test_it_is_text_that_cat_can_read(silences: Silences) -> None:
    silences.add(silence(why="moving /scratch"))
    assert "moving /scratch" in (silences.folder.folder / "12ab34cd.json").read_text()


def test_it_can_be_ended_by_the_beginning_of_its_id(silences: Silences) -> None:
    silences.add(silence("12ab34cd"))
    assert silences.remove(" 12A ").id == "12ab34cd"
    assert silences.all(NOW) == ()


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
    assert refused.value.hint == "there is none at all"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"id": "1", "until": "x", "check": "fs"}', b"\xff"])
def test_a_damaged_silence_is_set_aside_and_said_and_the_others_hold(silences: Silences, content: bytes) -> None:
    silences.add(silence())
    silences.folder.write("bad.json", content)
    assert [s.id for s in silences.all(NOW)] == ["12ab34cd"]
    assert "bad.json" in silences.trouble[0]
    assert "set aside" in silences.trouble[0]
    assert silences.folder.names() == ("12ab34cd.json",)


def test_silences_that_ended_long_ago_are_forgotten(silences: Silences) -> None:
    silences.add(silence("aa"))
    silences.add(silence("bb", hours=24 * 30))
    silences.prune(NOW + HOUR + KEPT_S + 1)
    assert silences.folder.names() == ("bb.json",)


def test_ids_differ_by_who_what_and_when() -> None:
    ids = {silence_id(what, by, now) for what in ("fs", "job") for by in ("ada", "bob") for now in (1.0, 2.0)}
    assert len(ids) == 8
    assert all(len(one) == 8 for one in ids)


def test_of_several_silences_the_last_to_end_counts() -> None:
    short, long = silence("aa", 1.0), silence("bb", 2.0, check="f*")
    other = silence("cc", 9.0, check="job")
    assert silencing((short, long, other), incident(), NOW) == long
    assert silencing((other,), incident(), NOW) is None
    assert silencing((short, long), incident(), NOW + 3 * HOUR) is None
