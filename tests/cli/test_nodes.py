"""`resil nodes`: the table, what people decide, and the message for the administrators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from resilience.cluster import Node
from resilience.nodes.evidence import Evidence, Source, evidence_folder
from tests.lab.fakes import DOWN
from tests.lab.shell import SETTINGS, Shell

ENABLED = SETTINGS + "[act]\nenabled = true\n"


@pytest.fixture
def shell(shell: Shell) -> Shell:
    shell.settings(ENABLED)
    shell.fake.cluster = tuple(Node(f"n{number}", "IDLE", partitions=("gpu",)) for number in range(1, 9))
    return shell


def knows(shell: Shell, *sources: Source, node: str = "n7") -> None:
    now = shell.project.system.clock.now()
    evidence_folder(shell.project).add(
        [
            Evidence(
                node=node, time=now - 100 + n, source=source, why="gpu fault: ECC", about=f"gpt {n}", job="12", by="ada"
            )
            for n, source in enumerate(sources)
        ],
        now,
    )


def queued(shell: Shell, excluded: str = "") -> None:
    assert shell.resil("submit").code == 0
    shell.fake.records[-1] = replace(shell.fake.records[-1], partition="gpu", excluded=excluded)


def test_without_any_evidence_it_says_so(shell: Shell) -> None:
    said = shell.resil("nodes")
    assert said.code == 0 and "nothing is known of any node" in said.out


def test_the_table_has_the_worst_first_with_the_reason(shell: Shell) -> None:
    knows(shell, Source.NAMED, node="n2")
    knows(shell, Source.NAMED, Source.NAMED, Source.AVOIDED)
    lines = shell.resil("nodes").out.splitlines()
    assert lines[0].split() == ["NODE", "SCORE", "STATE", "EXCLUDED", "WHY"]
    assert (
        lines[1].split()[:3] == ["n7", "1", "excluded"] and "a failure names it (2 times): gpu fault: ECC" in lines[1]
    )
    assert "-> gpu fault: ECC" in lines[2] and lines[3].split()[:3] == ["n2", "0.5", "suspect"]
    (first, second) = shell.resil("nodes", "--json").json["nodes"]
    assert (first["node"], first["state"], len(first["evidence"]), second["score"]) == ("n7", "excluded", 3, 0.5)


def test_a_damaged_file_is_told_and_hides_nothing(shell: Shell) -> None:
    knows(shell, Source.CHECK)
    (path,) = evidence_folder(shell.project).path.iterdir()
    path.with_name(f"{path.name.split('.')[0]}.0123456789abcdef.json").write_text("{")
    said = shell.resil("nodes")
    assert "skipped 1 damaged files" in said.err and "n7" in said.out


def test_what_a_person_excludes_leaves_the_queue_at_once_and_comes_back_when_it_is_allowed(shell: Shell) -> None:
    queued(shell, "n1")
    said = shell.resil("nodes", "exclude", "n[7-8]", "--why", "slow disk", "--for", "3d")
    assert said.code == 0 and "n[7-8]: excluded for 3 d, for all runs that use" in said.out
    assert "excluded n[7-8] from job" in said.out and shell.fake.records[-1].excluded == "n[1,7-8]"
    assert "slow disk" in shell.resil("nodes").out
    assert shell.resil("submit", "--force").err.startswith("resil: without n[7-8] (n7: ")
    assert shell.fake.submissions[-1].options["exclude"] == "n[7-8]"
    said = shell.resil("nodes", "allow", "n7", "--why", "repaired")
    assert "may use n7 again" in said.out and shell.fake.records[-2].excluded == "n[1,8]"


def test_without_leave_it_is_only_told(shell: Shell) -> None:
    shell.settings(SETTINGS)
    queued(shell)
    said = shell.resil("nodes", "exclude", "n7")
    assert "this only tells" in said.out and "it would exclude n7 from the queued jobs of gpt" in said.out
    assert shell.fake.records[-1].excluded == ""
    said = shell.resil("submit", "--force")
    assert "it would be submitted without n7 if [act] were enabled" in said.err
    assert "exclude" not in shell.fake.submissions[-1].options


def test_a_dry_run_shows_the_exclusion(shell: Shell) -> None:
    knows(shell, Source.CHECK)
    assert "--exclude=n7" in shell.resil("submit", "--dry-run").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("exclude", "n99"), "there is no node 'n99'"),
        (("exclude", "n[7"), "n[7"),
        (("exclude", "../n7"), "'../n7' cannot be the name of a node"),
        (("allow", "n7/"), "'n7/' cannot be the name of a node"),
        (("allow", ""), "'' cannot be the name of a node"),
        (("allow", "n77"), "nothing is known of node n77, and the scheduler has none"),
        (("exclude", "n7", "--for", "soon"), "--for soon"),
        (("exclude", "n7", "--for", "90d"), "--for 90d must be"),
        (("report", "n7"), "nothing is known of node n7"),
    ],
)
def test_what_cannot_be_meant_is_refused(shell: Shell, words: tuple[str, ...], message: str) -> None:
    said = shell.resil("nodes", *words)
    assert said.code == 2 and message in said.err, said
    assert not evidence_folder(shell.project).path.exists()


def test_while_the_scheduler_does_not_answer_the_decision_is_kept(shell: Shell) -> None:
    queued(shell)
    shell.fake.trouble = DOWN
    said = shell.resil("nodes", "exclude", "n7")
    assert said.code == 75 and "that is recorded; queued jobs are not changed yet" in said.err
    assert "watch job" in said.err and "excluded" in shell.resil("nodes").out


def test_a_node_that_is_gone_can_be_allowed_and_nothing_else_is_mistaken_for_one(shell: Shell) -> None:
    knows(shell, Source.CHECK, node="old1")
    said = shell.resil("nodes", "allow", "old2")
    assert said.code == 2 and "did you mean old1?" in said.err
    assert shell.resil("nodes", "allow", "old1").code == 0
    assert shell.resil("nodes", "allow", "n3").code == 0, "a breaker may have excluded it without evidence"


def test_a_message_without_observations_has_the_word_of_the_person_who_excluded_it(shell: Shell) -> None:
    shell.resil("nodes", "exclude", "n7", "--why", "fan is dead")
    said = shell.resil("nodes", "report", "n7").out
    assert "fan is dead" in said and "observations" not in said
    shell.resil("nodes", "allow", "n7")
    refused = shell.resil("nodes", "report", "n7")
    assert refused.code == 2 and "nothing was seen of node n7" in refused.err


def test_the_message_for_the_administrators_is_ready_to_paste(shell: Shell, tmp_path: Path) -> None:
    knows(shell, Source.NAMED, Source.XID)
    shell.fake.answers = replace(shell.fake.answers, cluster="alpha")
    said = shell.resil("nodes", "report", "n7")
    assert said.code == 0 and said.out.startswith("Subject: node n7 of alpha seems to be faulty")
    assert "2 observations:" in said.out and "named, job 12, ada: gpu fault: ECC" in said.out
