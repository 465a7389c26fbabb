"""`resil status --prom`: what Prometheus' own parser reads, and nothing instead of a zero where nobody could look."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from resilience.cli import prom
from resilience.cli.prom import METRICS, Sample, render
from resilience.errors import StateDirectoryError
from resilience.job import JobId, JobState
from resilience.report.goodput import Category
from resilience.runs.project import Project
from tests.lab.fakes import DOWN
from tests.lab.shell import Office, Shell, full

LABELS = {"project", "run", "scheduler", "state", "condition", "class", "category", "verdict", "source"}
"""Each has few values, whatever happens; a job id or a path of a checkpoint would be a new series each time."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "resil.prom"


def read(path: Path) -> dict[str, float]:
    """Return the values by metric and labels other than the project, as Prometheus' parser reads them."""
    found = {}
    for family in parse(path.read_text()):
        for one in family.samples:
            assert one.timestamp is None and set(one.labels) <= LABELS and one.labels["project"]
            labels = [value for name, value in one.labels.items() if name != "project"]
            key = " ".join([one.name.removeprefix("resil_"), *labels])
            assert key not in found
            found[key] = one.value
    return found


def a_running_run(shell: Shell) -> None:
    shell.resil("submit", "--array", "3")
    (waiting,) = shell.fake.records
    running = replace(waiting, id=JobId(101, 1), raw_id=101, state=JobState.RUNNING, tasks="", task_count=1)
    rest = replace(waiting, tasks="2-3", task_count=2)
    shell.fake.records = [replace(running, end_time=time.time() + 3600), rest]
    attempts = shell.run_dir / "attempts"
    for number, job in ((1, 77), (2, 101)):
        text = (
            f'number = {number}\njob_id = {job}\nlabel = "{job}"\nhost = "n1"\npid = 4\nstart = {time.time() - 500}\n'
        )
        (attempts / f"{number:04d}").write_text(text)
    (attempts / "0001.end").write_text(f'end = "stopped"\nexit_code = 75\ntime = {time.time() - 600}\n')
    now = time.time()
    (shell.run_dir / "beats" / "101.n1").write_text(
        f'attempt = 2\nhost = "n1"\ntime = {now}\nstep = 620\n'
        f'[rank.0]\npid = 7\nstep = 620\nadvanced = {now}\nphase = "train"\n[rank.1]\npid = 8\ngone = true\n'
    )
    (shell.run_dir / "journal").mkdir(exist_ok=True)
    (shell.run_dir / "journal" / "101.0.jsonl").write_text(
        f'{{"event": "save", "time": {now - 100}, "attempt": 2, "step": 600}}\n'
    )


def test_a_parser_of_prometheus_reads_what_is_known(shell: Shell, file: Path) -> None:
    a_running_run(shell)
    said = shell.resil("status", "--fresh", "--prom", str(file))
    assert (said.code, said.out) == (0, "")
    found = read(file)
    assert found["run_info gpt fake"] == 1 and found["run_step gpt"] == 620
    assert [found[f"run_state gpt {state}"] for state in ("running", "queued", "finished", "not_queued")] == [
        1,
        0,
        0,
        0,
    ]
    assert found["run_time_left_seconds gpt"] == pytest.approx(3600, abs=60) and found["run_waiting_jobs gpt"] == 2
    assert found["checkpoint_age_seconds gpt"] == pytest.approx(100, abs=60)
    assert found["run_ranks gpt well"] == 1 and found["run_ranks gpt gone"] == 1 and found["run_ranks gpt silent"] == 0
    assert found["attempts_total gpt stopped"] == 1
    assert found["scrape_error gpt scheduler"] == 0
    assert found["scrape_completed_timestamp_seconds"] == pytest.approx(time.time(), abs=60)
    assert file.stat().st_mode & 0o777 == 0o644 and [one.name for one in file.parent.glob("*resil.prom*")] == [
        file.name
    ]


def test_where_the_time_went_is_told_by_category_and_sums_to_the_wall_clock(shell: Shell, file: Path) -> None:
    a_running_run(shell)
    shell.resil("status", "--fresh", "--prom", str(file))
    found = read(file)
    times = {key.split()[-1]: value for key, value in found.items() if key.startswith("run_time_seconds gpt ")}
    assert list(times) == [*Category], "every category, also without time"
    told = json.loads(shell.resil("goodput", "gpt", "--json").out)["goodput"]
    assert sum(times.values()) > 400
    assert sum(times.values()) == pytest.approx((told["end_ms"] - told["start_ms"]) / 1000, abs=60)
    assert found["run_ettr_ratio gpt"] == pytest.approx(times["productive"] / sum(times.values()))
    assert found["scrape_error gpt time"] == 0


def test_a_run_without_an_attempt_has_no_times_instead_of_zeros(shell: Shell, file: Path) -> None:
    shell.resil("submit")
    shell.resil("status", "--fresh", "--prom", str(file))
    assert not [key for key in read(file) if key.startswith(("run_time_seconds", "run_ettr"))]


def test_a_journal_that_would_take_long_to_read_is_left_alone(
    shell: Shell, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_running_run(shell)
    monkeypatch.setattr(prom, "MOST_JOURNAL_BYTES", 10)
    shell.resil("status", "--fresh", "--prom", str(file))
    found = read(file)
    assert not [key for key in found if key.startswith(("run_time_seconds", "run_ettr")) or key.endswith(" time")]
    assert found["run_step gpt"] == 620, "all else is told"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
def test_promtool_finds_nothing_to_mend(shell: Shell, file: Path) -> None:
    a_running_run(shell)
    shell.resil("status", "--fresh", "--prom", str(file))
    done = subprocess.run(["promtool", "check", "metrics"], input=file.read_text(), capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == 0 and done.stdout + done.stderr == ""


def test_a_scheduler_that_is_down_leaves_no_zero(shell: Shell, file: Path) -> None:
    a_running_run(shell)
    shell.fake.trouble = DOWN
    assert shell.resil("status", "--prom", str(file)).code == 0
    found = read(file)
    assert found["scrape_error gpt scheduler"] == 1 and found["run_step gpt"] == 620
    assert not [key for key in found if key.startswith(("run_state", "run_waiting", "run_time_left"))]


def test_what_cannot_be_read_is_an_error_and_has_no_sample(
    shell: Shell, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_running_run(shell)
    state = shell.directory / ".resil"
    (state / "bert").mkdir()
    (state / "bert" / "submissions.jsonl").mkdir()  # where the journal should be
    (state / "bert" / "switches").mkdir()
    shell.resil("status", "--prom", str(file))
    found = read(file)
    assert found["scrape_error bert run_directory"] == 1 and found["scrape_error gpt run_directory"] == 0
    assert [key for key in found if "bert" in key] == ["scrape_error bert run_directory"]


def test_runs_that_cannot_be_listed_are_an_error_and_not_none(
    shell: Shell, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_running_run(shell)
    shell.resil("status", "--prom", str(file))
    assert read(file)["scrape_error state_directory"] == 0

    def fail(self: Project) -> NoReturn:
        raise StateDirectoryError("Input/output error")

    monkeypatch.setattr(Project, "runs", fail)
    shell.resil("status", "--prom", str(file))
    found = read(file)
    assert found["scrape_error state_directory"] == 1 and not [key for key in found if "gpt" in key]


def test_incidents_are_counted_and_those_that_cannot_be_read_are_not_zero(shell: Shell, file: Path) -> None:
    office = Office(shell)
    office.tick(full(), full("/home"))
    shell.resil("status", "--prom", str(file))
    assert read(file)["incidents_open critical"] == 2 and read(file)["incidents_open warning"] == 0
    alerts = shell.directory / ".resil" / ".alerts"
    alerts.chmod(0o777)  # anybody could write incidents
    shell.resil("status", "--prom", str(file))
    assert read(file)["scrape_error incidents"] == 1 and not [key for key in read(file) if "incidents_open" in key]


def test_without_a_channel_nobody_records_incidents_and_there_is_no_zero(shell: Shell, file: Path) -> None:
    shell.resil("status", "--prom", str(file))
    assert not [key for key in read(file) if "incidents" in key]


def test_the_text_keeps_the_rules_of_the_collector() -> None:
    hostile = 'a\\b"c\nd\x00'
    text = render(
        [Sample("resil_run_step", {"run": hostile}, 2**40), Sample("resil_attempts_total", {"class": "x"}, 3),
         Sample("resil_run_step", {"run": "b"}, 0.1)], hostile
    )  # fmt: skip
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert re.findall(r"# (?:HELP|TYPE) (\w+)", text) == ["resil_run_step"] * 2 + ["resil_attempts_total"] * 2
    steps, attempts = parse(text)
    assert (steps.type, attempts.type, [one.value for one in steps.samples]) == ("gauge", "counter", [2**40, 0.1])
    assert steps.samples[0].labels == {"project": hostile, "run": hostile}


def test_every_metric_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "watch-from-grafana.md").read_text()
    assert set(re.findall(r"`(resil_[a-z_]+)`", page)) == set(METRICS)


def test_metrics_are_named_as_prometheus_asks() -> None:
    for name, (kind, text) in METRICS.items():
        assert re.fullmatch(r"resil_[a-z_]+", name) and text.endswith(".") and "\n" not in text and "\\" not in text
        assert (kind == "counter") == name.endswith("_total")
        assert not re.search(r"_(ms|minutes|hours|mib|percent|count)$", name), "base units"


def test_another_suffix_and_contradicting_options_are_refused(shell: Shell, file: Path) -> None:
    said = shell.resil("status", "--prom", str(file.with_suffix(".txt")))
    assert said.code == 2 and "resil status --prom" in said.err and not list(file.parent.glob("*.txt"))
    assert shell.resil("status", "--prom", str(file), "--json").code == 2
