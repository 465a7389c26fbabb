"""The lint judges by facts; one that cannot be found out is left unknown, and nobody is asked without need."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.cluster import ClusterConfig
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submit_plan import SubmitRequest, lint_facts, passed_options, plan_submit, slowest_save_s
from resilience.runs.templates.lint import LintFacts
from tests.fakes import DOWN, FakeScheduler, make_project


def facts(tmp_path: Path, fake: FakeScheduler | None = None, text: str = "", **asked: Any) -> LintFacts:
    project = make_project(tmp_path, fake, environ=asked.pop("environ", None))
    request = SubmitRequest(run="gpt", **asked)
    plan = plan_submit(request, project.loaded.settings, "/logs")
    return lint_facts(project, request, plan, project.directory("gpt"), text)


def test_the_limit_of_arrays_is_asked_for_only_when_it_may_matter(tmp_path: Path) -> None:
    fake = FakeScheduler(answers=ClusterConfig("slurm", max_array_size=5001))
    assert facts(tmp_path, fake, array="1000").max_array_size is None and fake.calls == []
    assert facts(tmp_path, fake, array="1001").max_array_size == 5001 and fake.calls == ["config"]
    assert facts(tmp_path, FakeScheduler(trouble=DOWN), array="1001").max_array_size is None


def test_the_slowest_save_of_the_journal_is_known_whatever_else_lies_there(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "gpt")
    assert slowest_save_s(directory) is None
    directory.create("")
    records: list[Any] = [
        {"event": "save", "seconds": 12}, {"event": "save", "seconds": 41.5}, {"event": "save", "seconds": "99"},
        {"event": "step", "seconds": 500}, {"event": "save"}, [], 3,
    ]  # fmt: skip
    journal = directory.path / layout.JOURNAL
    (journal / "1.0.jsonl").write_text("\n".join(json.dumps(record) for record in records) + "\n{torn")
    (journal / "2.0.jsonl").write_bytes(b"\xff\0\n")
    os.mkfifo(journal / "3.0.jsonl")
    (journal / "0.0.jsonl").mkdir()
    assert slowest_save_s(directory) == 41.5


def test_a_folder_for_the_output_of_an_own_script_must_be_there(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --output=logs/%j.out\n#SBATCH --error=/nowhere/%x/x.err\n"
    own = Path("x.sh")
    found = facts(tmp_path, None, script, script=own)
    assert found.missing_directories == (str(tmp_path / "project" / "logs"),), "one with a field cannot be judged"
    (tmp_path / "project" / "logs").mkdir()
    assert facts(tmp_path, None, script, script=own).missing_directories == ()
    assert facts(tmp_path, None, script).missing_directories == ()


def test_a_tilde_is_no_home_to_slurm(tmp_path: Path) -> None:
    for name in ("~", "~nosuchuser"):
        script = f"#!/bin/bash\n#SBATCH --output={name}/x.out\n"
        found = facts(tmp_path, None, script, script=Path("x.sh"))
        assert found.missing_directories == (str(tmp_path / "project" / name),)


def test_the_run_that_a_folder_belongs_to_is_known(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    assert facts(tmp_path).run_dir_owner == ""
    project.directory("gpt").create('[run]\nname = "llama"\n')
    assert facts(tmp_path).run_dir_owner == "llama"
    (project.directory("gpt").path / layout.RUN_FILE).write_text('run = "odd"\n')
    assert facts(tmp_path).run_dir_owner == ""


def test_variables_that_sbatch_would_obey_in_silence_are_named(tmp_path: Path) -> None:
    environ = {"SBATCH_PARTITION": "x", "SBATCH_ACCOUNT": "y", "SLURM_JOB_ID": "1"}
    assert facts(tmp_path, environ=environ).sbatch_environment == ("SBATCH_ACCOUNT", "SBATCH_PARTITION")


@pytest.mark.parametrize(
    ("words", "options"),
    [((), {}), (("--qos=high", "-x", "n1"), {"qos": "high", "exclude": "n1"}), (("-H",), {"hold": None}),
     (("--comment=a b # c",), {"comment": "a b # c"})],
)  # fmt: skip
def test_what_is_passed_through_is_judged_by_its_long_names(words: tuple[str, ...], options: dict[str, str]) -> None:
    assert passed_options(words) == options
