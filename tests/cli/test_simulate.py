"""`resil simulate`: as a calculator, of a run, of published traces, as a sweep."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.cli.ckpt_plan import percent_text
from resilience.cli.show_simulation import counting
from resilience.job import JobState
from tests.lab.shell import SETTINGS, Shell, make_shell

ALONE = ("--nodes", "128", "--failures", "rsc-1", "--stall-s", "5", "--save-s", "90", "--restart-s", "600")
FEW = ("--days", "5", "--lives", "20")
RECORDED = Path(__file__).parents[1] / "recorded" / "gpus"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return make_shell(tmp_path, monkeypatch, capsys)


def test_numbers_given_by_hand_need_no_project_and_give_the_whole_screen(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    said = shell.resil("simulate", *ALONE, *FEW, "--queue-h", "2", "--seed", "7")
    assert said.code == 0 and len(said.out.splitlines()) <= 26
    assert said.out.startswith("5 d of training on 128 nodes (1,024 GPUs), 20 lives, seed 7\n")
    for text in ("Meta's RSC-1, 6.50 in 1,000 node-days", "ETTR with nodes", "days to finish", "GPU hours lost",
                 "jobs burnt", "of the time: trained", "Meta's E[ETTR]", "assumed"):  # fmt: skip
        assert text in said.out, text
    rows = {line[2:14].strip(): line[14:].split("  ")[-1].strip() for line in said.out.splitlines()[2:15]}
    assert (rows["training"], rows["GPUs"]) == ("given", "assumed"), "each number with its source"


def test_no_share_is_less_than_nothing() -> None:
    assert percent_text(-1e-17) == "0.0 %"


def test_the_same_seed_says_the_same_and_the_numbers_are_those_of_the_screen(shell: Shell) -> None:
    words = ("simulate", *ALONE, *FEW, "--json")
    first, again, other = (shell.resil(*words, *more).json for more in ((), ("--seed", "1"), ("--seed", "2")))
    assert first == again and first["outcome"] != other["outcome"]
    outcome = first["outcome"]
    assert sum(outcome["shares"].values()) == pytest.approx(1.0)
    said = shell.resil("simulate", *ALONE, *FEW).out
    assert f"{100 * outcome['ettr']['mean']:.1f} %" in said and f"{outcome['days']['high']:.1f}" in said
    assert first["scenario"]["mtbf_s"] == pytest.approx(86_400 / 128 / 0.0065)
    assert first["formulas"]["daly"] == pytest.approx(outcome["ettr_running"]["mean"], abs=0.01)


def test_the_how_to_shows_what_it_says(shell: Shell) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "ask-what-would-have-happened.md").read_text()
    command, _, output = text.partition("$ resil ")[2].partition("```")[0].partition("\n")
    assert shell.resil(*command.split()).out == output


def test_a_sweep_is_a_table_with_auto_and_a_picture(shell: Shell, tmp_path: Path) -> None:
    picture = tmp_path / "sweep.svg"
    said = shell.resil("simulate", *ALONE, *FEW, "--sweep", "interval", "--svg", str(picture))
    rows = said.out.split("INTERVAL")[1].splitlines()[1:]
    assert len(rows) == 10 and sum(row.startswith(">") for row in rows) == 1 and "auto" in rows[0]
    assert "5 d of training on 128 nodes (1,024 GPUs): interval" in picture.read_text()
    found = shell.resil("simulate", *ALONE, *FEW, "--sweep", "spares", "--json").json
    assert [one["name"] for one in found["points"]] == ["0", "1", "2", "4", "8"] and found["outcome"] is None


def test_a_published_trace_is_replayed_beside_pcchecks_formula(shell: Shell) -> None:
    words = ("--nodes", "7", "--gpus-per-node", "4", "--stall-s", "1", "--save-s", "20", "--interval", "60s")
    said = shell.resil("simulate", *words, "--failures", str(RECORDED / "pccheck.csv"), "--lives", "20")
    assert said.code == 0, said.err
    assert "PCcheck's formula" in said.out and "51 failures" in said.out and "ignores waits for GPUs" in said.out
    more = ("--failures", str(RECORDED / "bamboo-p3.csv"), "--nodes", "40")
    assert "at most 128 GPUs, and the job needs 160" in shell.resil("simulate", *words, *more).err


def test_a_csv_of_failures_and_a_breaker(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "past.csv").write_text("time,node,class,repair\n1d,,disk_full,10h\n9d,,,\n")
    words = ("simulate", *ALONE[:2], *ALONE[4:], *FEW, "--failures", str(tmp_path / "past.csv"), "--keep-queued", "1")
    burnt = {k: shell.resil(*words, "--breaker", k, "--json").json["outcome"]["burnt"]["high"] for k in ("0", "3")}
    assert burnt["3"] <= 1 and burnt["0"] > 30


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "how often failures come is unknown"),
        (("--failures", "nowhere.csv"), "there is no file nowhere.csv"),
        (("--failures", "rsc-1", "--failures-per-node-day", "0.1"), "two ways to say the same"),
        (("--failures", "rsc-1", "--interval", "often"), "'often' is no interval"),
        (("--failures", "rsc-1", "--interval", "500 steps"), "how long 500 steps take is unknown"),
        (("--failures", "rsc-1", "--svg", "x.svg"), "--svg draws a sweep"),
        (("--failures", str(RECORDED / "pccheck.csv"), "--sweep", "spares"), "replayed, not swept"),
        (("--failures", str(RECORDED)), "recorded"),
        (("--failures", "rsc-1", "--sweep", "nodes"), "--sweep"),
        (("--failures", "rsc-1", "--lives", "0"), "--lives"),
        (("--failures", "llama3", "--nodes", "10000000"), "a failure each 2.3 s"),
    ],
)
def test_questions_that_mean_nothing_are_refused(shell: Shell, words: tuple[str, ...], error: str) -> None:
    said = shell.resil("simulate", "--nodes", "2", "--stall-s", "5", *words)
    assert said.code != 0 and error in said.err and not said.out


@pytest.mark.parametrize(
    "words",
    [
        ("--failures-per-node-day", "0"),
        ("--failures-per-node-day", "500"),
        ("--failures-per-node-day", "1", "--restart-s", "1e9"),
        ("--failures-per-node-day", "1", "--stall-s", "1e9"),
        ("--failures-per-node-day", "1", "--stall-s", "0", "--in-flight", "10000000"),
        ("--failures-per-node-day", "1", "--walltime-h", "0.01"),
        ("--failures-per-node-day", "1", "--queue-h", "1e6"),
        ("--failures", "llama3", "--days", "0.001", "--spares", "10000"),
        ("--failures", "llama3", "--nodes", "10000"),
    ],
)
def test_extreme_numbers_give_an_answer(shell: Shell, words: tuple[str, ...]) -> None:
    said = shell.resil("simulate", "--nodes", "2", "--stall-s", "5", "--days", "1", "--lives", "1", *words)
    assert said.code == 0 and "of the time: trained" in said.out, said.err


def test_long_work_is_counted_on_a_terminal_and_short_or_redirected_work_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def said(terminal: io.StringIO, seconds: float) -> str:
        monkeypatch.setattr("sys.stderr", terminal)
        times = itertools.count(0.0, seconds)
        monkeypatch.setattr("time.monotonic", lambda: next(times))
        with counting(300) as tick:
            for _ in range(300):
                tick()
        return terminal.getvalue()

    assert said(Terminal(), 0.001) == "" == said(io.StringIO(), 0.1)
    shown = said(Terminal(), 0.1)
    assert "of 300 lives\x1b[K\rsimulated " in shown and shown.endswith("\r\x1b[K")


# ---- of a run -------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(shell: Shell) -> Shell:
    """A run on its third attempt; the first two failed after an hour each."""
    shell.settings(SETTINGS + '[guard]\nevery = "30 min"\n[act]\nenabled = true\nfailures = 4\nkeep_queued = 2\n')
    assert shell.resil("submit").code == 0
    now = shell.project.system.clock.now()
    shell.fake.records[0] = replace(
        shell.fake.records[0], state=JobState.RUNNING, start_time=now - 4000, end_time=now + 10 * 3600
    )
    for number in (1, 2, 3):
        start = int(now) - 4000 * (4 - number)
        job = 101 if number == 3 else 90 + number
        text = (
            f'number = {number}\njob_id = {job}\nlabel = "{job}"\nrestart = 0\nhost = "n1"\npid = 1\nstart = {start}\n'
        )
        (shell.run_dir / "attempts" / f"{number:04d}").write_text(text)
        if number < 3:
            end = f'end = "exited"\nexit_code = 1\ntime = {start + 3600}\nlaunched = true\n'
            (shell.run_dir / "attempts" / f"{number:04d}.end").write_text(end)
    pace = {"gaps": [], "saves": [30.0, 33.0], "stalls": [7.0, 7.0]}
    (shell.run_dir / "learned").mkdir(exist_ok=True)
    learned = {"version": 1, "pace": pace, "cadence": {"step_s": 1.0, "restart_s": 60.0}}
    (shell.run_dir / "learned" / "0.json").write_text(json.dumps(learned))
    return shell


def test_of_a_run_its_own_ledger_settings_and_saves_are_the_inputs(trained: Shell) -> None:
    said = trained.resil("simulate", "--lives", "20")
    assert said.code == 0, said.err
    assert said.out.startswith("gpt: 3 h ") and "replayed from random places" in said.out
    scenario = (document := trained.resil("simulate", "gpt", "--lives", "5", "--json").json)["scenario"]
    assert document["run"] == "gpt" and document["sources"]["stall_s"] == "median of 2 saves"
    assert scenario["costs"]["durable_s"] == 33.0 and scenario["every"]["seconds"] == 1800.0
    assert (scenario["breaker"], scenario["keep_queued"]) == (4, 2)
    assert scenario["mtbf_s"] == pytest.approx(6000, rel=0.1), "two failures in 12,000 s"
    assert scenario["queue_s"] == pytest.approx(200, rel=0.1), "400 s before the second, none since the last submit"


def test_options_replace_what_is_known_of_a_run(trained: Shell) -> None:
    words = ("--interval", "auto", "--spares", "1", "--failures", "rsc-2", "--nodes", "64", "--days", "2")
    document = trained.resil("simulate", "gpt", *words, "--lives", "5", "--json").json
    assert document["scenario"]["every"]["is_auto"] and document["scenario"]["spares"] == 1
    assert document["scenario"]["mtbf_s"] == pytest.approx(86_400 / 64 / 0.00234)
    assert document["sources"]["durable_s"] == "slowest of 2 saves" and document["sources"]["nodes"] == "given"


def test_a_run_that_only_crashed_is_told_to_take_failures_from_elsewhere(shell: Shell) -> None:
    assert shell.resil("submit").code == 0
    for number in (1, 2, 3):
        start = f'number = {number}\njob_id = 9{number}\nlabel = "9{number}"\nhost = "n1"\npid = 1\n'
        (shell.run_dir / "attempts" / f"{number:04d}").write_text(f"{start}start = {1_700_000_000 + 20 * number}\n")
        end = f'end = "exited"\nexit_code = {number}\ntime = {1_700_000_010 + 20 * number}\n'
        (shell.run_dir / "attempts" / f"{number:04d}.end").write_text(end)
    said = shell.resil("simulate", "--lives", "5")
    assert said.code == 2 and "by the ledger: 3 attempts" in said.err and "--failures rsc-1" in said.err


def test_a_run_without_an_attempt_needs_to_be_told_of_failures(shell: Shell) -> None:
    assert shell.resil("submit").code == 0
    said = shell.resil("simulate", "--lives", "5")
    assert said.code == 0 and "none" in said.out and "the ledger: 0 attempts" in said.out
    assert "gpt has met no failure yet, so none ever comes here: --failures rsc-1" in said.out
    for words in (("--failures", "rsc-1"), ("--failures-per-node-day", "0")):
        assert "no failure yet" not in shell.resil("simulate", *words, "--lives", "5").out


def test_starts_that_the_guard_has_not_measured_are_those_of_the_ledger_of_time(trained: Shell) -> None:
    (trained.run_dir / "learned" / "0.json").unlink()
    assert trained.resil("simulate", "--lives", "5", "--json").json["scenario"]["costs"]["restart_s"] == 0
    (trained.run_dir / "journal").mkdir(exist_ok=True)
    for number in (1, 2):
        start = float((trained.run_dir / "attempts" / f"{number:04d}").read_text().rpartition("start = ")[2])
        events = [{"event": "start", "time": start + 10},
                  {"event": "progress", "time": start + 300 * number, "step": 1},
                  {"event": "progress", "time": start + 3000, "step": 2000}]  # fmt: skip
        text = "".join(json.dumps(one | {"attempt": number}) + "\n" for one in events)
        (trained.run_dir / "journal" / f"{90 + number}.0.jsonl").write_text(text)
    document = trained.resil("simulate", "--lives", "5", "--json").json
    assert document["scenario"]["costs"]["restart_s"] == pytest.approx(450, abs=20)
    assert document["sources"]["restart_s"] == "median of the starts of 2 attempts"
