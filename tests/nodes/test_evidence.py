"""The folder of evidence: many writers at once, the same fact once, and damaged files that hide no other."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.errors import StateDirectoryError
from resilience.nodes import evidence as module
from resilience.nodes.evidence import KEPT_S, Evidence, EvidenceFolder, Source, evidence_folder
from resilience.nodes.standing import State, judge
from tests.lab.fakes import NOW, make_project

ONE = Evidence(node="n7", time=NOW, source=Source.NAMED, why="gpu fault", about="/runs/gpt 3", run="gpt", by="ada")

WRITER = """
import sys
from pathlib import Path
from resilience.nodes.evidence import Evidence, EvidenceFolder, Source
folder, me = EvidenceFolder(Path(sys.argv[1])), sys.argv[2]
sys.stdin.read(1)
for number in range(25):
    shared = Evidence(node="n7", time=1e9 - number, source=Source.NAMED, why="seen by all", about=f"gpt {number}")
    own = Evidence(node="n8", time=1e9 - number, source=Source.CHECK, why=f"seen by {me}", about=f"{me} {number}")
    folder.add([shared, own], 1e9)
    assert own in folder.read(1e9).evidence
"""


@pytest.fixture
def folder(tmp_path: Path) -> EvidenceFolder:
    return EvidenceFolder(tmp_path / "evidence")


def test_eight_processes_write_and_read_at_once_and_nothing_is_lost_or_counted_twice(folder: EvidenceFolder) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, folder.path, str(number)], stdin=subprocess.PIPE)
        for number in range(8)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait() for writer in writers] == [0] * 8
    found = folder.read(1e9)
    assert not found.damaged
    assert sum(one.node == "n7" for one in found.evidence) == 25
    assert sorted(one.about for one in found.evidence if one.node == "n8") == sorted(
        f"{me} {number}" for me in range(8) for number in range(25)
    )
    assert not [path for path in folder.path.iterdir() if path.suffix != ".json"]


def test_the_same_fact_is_kept_once_although_its_time_became_known_later(folder: EvidenceFolder) -> None:
    assert folder.add([ONE], NOW) == 1
    assert folder.add([ONE, replace(ONE, time=NOW + 60)], NOW) == 0
    (path,) = folder.path.iterdir()
    path.with_name(f"{round(NOW) + 60}.{ONE.key}.json").write_bytes(path.read_bytes())  # by two writers at once
    assert folder.read(NOW).evidence == (ONE,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"node":"n1,n2","time":1,"source":"xid","why":"","about":""}',
        '{"node": 7}',
        '{"node":"n7","time":1e999}',
        '{"node":"n7","time":-1e300,"source":"xid","why":"","about":""}',
        '{"node":"n7","time":1' + "0" * 400 + ',"source":"xid","why":"","about":""}',
        "\0",
        "9" * 70000,
    ],
)
def test_a_damaged_record_is_named_and_hides_no_other(folder: EvidenceFolder, text: str) -> None:
    folder.add([ONE], NOW)
    bad = folder.path / f"{round(NOW)}.0123456789abcdef.json"
    bad.write_text(text)
    found = folder.read(NOW)
    assert found.evidence == (ONE,) and found.damaged == (bad.name,)


def test_what_a_clock_that_is_ahead_reports_can_be_allowed(folder: EvidenceFolder) -> None:
    folder.add([replace(ONE, time=NOW + 86400, source=Source.XID)], NOW)
    assert judge(folder.read(NOW).evidence, NOW)[0].state is State.EXCLUDED
    folder.add([replace(ONE, time=NOW + 60, source=Source.ALLOWED, about="ada")], NOW + 60)
    for later_s in (60, 2 * 86400):
        assert judge(folder.read(NOW + later_s).evidence, NOW + later_s)[0].state is State.GOOD


def test_what_a_host_with_a_wrong_clock_wrote_counts_from_when_the_file_server_got_it(folder: EvidenceFolder) -> None:
    """Else it would be the newest word for years: nobody could allow the node."""
    folder.add([replace(ONE, time=NOW + 1e8, source=Source.EXCLUDED, until=NOW + 1e8 + 3600)], NOW + 1e8)
    (path,) = folder.path.iterdir()
    os.utime(path, (NOW - 60, NOW - 60))
    (found,) = folder.read(NOW).evidence
    assert (found.time, found.until) == (NOW - 60, NOW - 60 + 3600)
    assert judge(folder.read(NOW).evidence, NOW)[0].state is State.EXCLUDED
    folder.add([replace(ONE, time=NOW + 60, source=Source.ALLOWED, about="ada")], NOW + 60)
    assert judge(folder.read(NOW + 60).evidence, NOW + 60)[0].state is State.GOOD
    os.utime(path, (NOW + 1e8, NOW + 1e8))
    seen = folder.read(NOW + 60)
    assert [one.source for one in seen.evidence] == [Source.ALLOWED] and seen.ahead == (path.name,)


def test_of_very_many_records_the_newest_are_read_and_every_decision_of_a_person(
    folder: EvidenceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_READ", 3)
    by_hand = replace(ONE, node="n1", time=NOW - 900, source=Source.EXCLUDED, until=NOW + 900)
    folder.add([by_hand, *(replace(ONE, time=NOW - at, about=f"/runs/gpt {at}") for at in range(5))], NOW)
    found = folder.read(NOW)
    assert found.evidence[0] == by_hand and len(found.evidence) == 4 and found.older == 2
    assert folder.read(NOW + KEPT_S - 901).evidence, "it is as old as any other in the end"
    folder.add([replace(ONE, time=NOW + KEPT_S)], NOW + KEPT_S)
    assert len([*folder.path.iterdir()]) == 1


def test_a_link_or_a_pipe_is_no_record(folder: EvidenceFolder, tmp_path: Path) -> None:
    folder.add([ONE], NOW)
    (tmp_path / "secret").write_text("{}")
    (folder.path / f"{round(NOW)}.00000000000000aa.json").symlink_to(tmp_path / "secret")
    os.mkfifo(folder.path / f"{round(NOW)}.00000000000000bb.json")
    assert len(folder.read(NOW).damaged) == 2


def test_old_records_are_not_read_and_go_with_the_next_write(folder: EvidenceFolder) -> None:
    folder.add([ONE], NOW)
    later = NOW + KEPT_S + 1
    assert folder.read(later).evidence == ()
    new = replace(ONE, time=later, about="/runs/gpt 9")
    folder.add([new], later)
    assert len([*folder.path.iterdir()]) == 1 and folder.read(later).evidence == (new,)


def test_without_a_folder_nothing_is_known_and_none_is_made(folder: EvidenceFolder) -> None:
    assert folder.read(NOW).evidence == () and folder.add([], NOW) == 0 and not folder.path.exists()


def test_a_folder_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("")
    with pytest.raises(StateDirectoryError):
        EvidenceFolder(tmp_path / "evidence").read(NOW)


@pytest.mark.parametrize(("group", "modes"), [("", (0o700, 0o600)), ("own", (0o2770, 0o660))])
def test_it_is_private_or_the_groups(tmp_path: Path, group: str, modes: tuple[int, int]) -> None:
    import grp

    path = tmp_path / "evidence"
    EvidenceFolder(path, grp.getgrgid(os.getgid()).gr_name if group else "").add([ONE], NOW)
    (record,) = path.iterdir()
    assert tuple(stat.S_IMODE(one.stat().st_mode) for one in (path, record)) == modes


def test_in_a_directory_that_the_group_may_write_its_files_are_the_groups(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    path.mkdir()
    path.chmod(0o2770)
    EvidenceFolder(path).add([ONE], NOW)
    assert [stat.S_IMODE(one.stat().st_mode) for one in path.iterdir()] == [0o660]


def test_projects_share_it_where_that_is_set(tmp_path: Path) -> None:
    project = make_project(tmp_path, settings="[nodes]\nevidence = '~/nodes'\n")
    assert evidence_folder(project).path == tmp_path / "home" / "nodes"
    project = make_project(tmp_path, settings="[run]\nstate_dir = '/shared/resil'\n")
    assert evidence_folder(project).path == Path("/shared/resil/nodes/evidence")
