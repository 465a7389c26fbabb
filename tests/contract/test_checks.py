"""What every watchdog promises, whoever wrote it: the built-in ones, and one that is dropped into a directory."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from resilience.cli import entry
from resilience.cli.watch import RESERVED
from resilience.errors import ResilError
from resilience.finding import Finding, Verdict
from resilience.plugins import PLUGIN_PATH, Family
from resilience.records import from_record, to_record
from resilience.system.stuck import StuckMemory
from resilience.watch import watchdogs
from resilience.watch.options import attributes_of, options_of
from resilience.watch.reading import Memory, Target, Timed
from resilience.watch.watch import watch
from resilience.watch.watchdogs import Watchdog, context_of
from tests.contract.watchdogs import TouchedTheWorld, nobody_touches_the_world, write_own_plugin
from tests.lab.fakes import make_project

pytestmark = pytest.mark.usefixtures("probed_here")

BUILT_IN = Family("checks", "CHECK", ()).names()
EVERYBODY = (*BUILT_IN, "licence")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project directory, with a watchdog of one's own beside the built-in ones."""
    for name in [*os.environ]:
        if name.startswith(("RESIL_", "SLURM", "SBATCH", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv(PLUGIN_PATH, str(write_own_plugin(tmp_path / "plugins")))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RESIL_SCHEDULER__NAME", "local")
    monkeypatch.setenv("RESIL_LOCAL_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setattr(StuckMemory, "of", classmethod(lambda cls, system: cls([tmp_path / "node"])))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    watchdogs.checks.cache_clear()
    yield tmp_path / "project"
    watchdogs.checks.cache_clear()


def check_of(name: str) -> Any:
    return watchdogs.checks().load(name)


def resil(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = entry.run(words)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_there_are_those_that_the_house_promises() -> None:
    assert {"ckpt", "fs", "inodes", "job", "log", "nodes", "ranks"} <= set(BUILT_IN)


@pytest.mark.parametrize("name", EVERYBODY)
def test_settings_are_frozen_documented_and_work_without_configuration(directory: Path, name: str) -> None:
    owner = check_of(name).Settings
    settings = owner()
    assert is_dataclass(settings) and fields(owner)
    with pytest.raises((FrozenInstanceError, AttributeError)):
        setattr(settings, fields(owner)[0].name, None)
    helps = attributes_of(owner)
    assert {field.name for field in fields(owner)} == set(helps), "each field has its line below Attributes:"
    assert all(len(text) > 5 for text in helps.values())


@pytest.mark.parametrize("name", EVERYBODY)
def test_options_do_not_collide_with_each_other_nor_with_those_of_every_watchdog(directory: Path, name: str) -> None:
    flags = [option.flag for option in options_of(check_of(name).Settings)]
    assert len(flags) == len(set(flags)) and not set(flags) & RESERVED


def test_a_deadline_of_its_own_is_the_one_that_is_meant(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--deadline" in [option.flag for option in options_of(check_of("job").Settings)]
    assert resil(capsys, "watch", "job", "--help")[1].count("--deadline DURATION") == 1
    assert resil(capsys, "watch", "job", "--deadline", "70s", "--no-alert")[0] in (0, 3)
    assert "70s" in resil(capsys, "watch", "fs", "--deadline", "70sx")[2]


@pytest.mark.parametrize("name", EVERYBODY)
def test_it_says_in_a_line_what_it_looks_at_and_gives_an_example_that_is_understood(
    directory: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check = check_of(name)
    assert 5 < len(check.summary) < 100 and "\n" not in check.summary
    words = shlex.split(check.example)
    assert words[:3] == ["resil", "watch", name]
    code, out, _ = resil(capsys, *words[1:], "--help")
    assert code == 0 and check.example in " ".join(out.split())


@pytest.mark.parametrize("name", EVERYBODY)
def test_the_argument_is_a_field_that_takes_several_texts(directory: Path, name: str) -> None:
    check = check_of(name)
    options = {option.field: option for option in options_of(check.Settings)}
    assert check.argument == "" or options[check.argument].kind == "list"
    assert isinstance(check.memory, Memory) and 0 <= check.memory.count <= 10_000 and check.memory.spacing_s >= 0


@pytest.mark.parametrize("name", EVERYBODY)
def test_help_has_every_option_with_its_words(directory: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = resil(capsys, "watch", name, "--help")
    assert (code, err) == (0, "")
    flat = re.sub(r"\s+", " ", out)
    for option in options_of(check_of(name).Settings):
        assert f"{option.flag}" in flat and option.help.split(" ")[0] in flat
    for shared in ("--json", "--explain", "--no-alert", "--every", "--deadline", "--config", "--scheduler"):
        assert shared in flat


@pytest.mark.parametrize("name", EVERYBODY)
def test_looking_without_any_configuration_ends_with_a_verdict_and_a_finding(
    directory: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = resil(capsys, "watch", name, "--json", "--no-alert")
    found = json.loads(out)
    assert code == found["exit_code"] in (0, 1, 2, 3)
    (report,) = found["reports"]
    assert report["check"] == name and report["findings"]
    assert all(finding["summary"] and finding["subject"] for finding in report["findings"])
    bad = [finding for finding in report["findings"] if finding["verdict"] != "OK"]
    assert all(re.fullmatch(r"[a-z][a-z-]*", finding["fault"]) for finding in bad), "one stable word, without figures"
    assert not list(directory.iterdir()) or code != 0 or name == "licence", "a look leaves nothing in the directory"


@pytest.mark.parametrize("name", EVERYBODY)
def test_its_targets_are_named_once_and_need_no_disk(directory: Path, name: str) -> None:
    check, project = check_of(name), make_project(directory.parent)
    targets = check.targets(check.Settings(), context_of(project))
    assert all(isinstance(target, Target) and target.name for target in targets)
    assert len({target.name for target in targets}) == len(targets)


def looked_at(check: Any, project: Any) -> Mapping[str, Any]:
    """What it sees without any configuration."""
    context, settings = context_of(project), check.Settings()
    found: dict[str, Any] = {}
    for target in check.targets(settings, context):
        try:
            found |= check.probe(target, settings, context, {})
        except ResilError:  # nothing there to be seen
            continue
    return found


@pytest.mark.parametrize("name", EVERYBODY)
def test_a_reading_is_plain_and_comes_back_from_json_as_it_was(directory: Path, name: str) -> None:
    check = check_of(name)
    owner: Any = check.Reading
    assert is_dataclass(owner)
    for subject, reading in looked_at(check, make_project(directory.parent)).items():
        assert isinstance(subject, str) and type(reading) is owner
        record = json.loads(json.dumps(to_record(reading), allow_nan=True))
        assert from_record(owner, record) == reading


@pytest.mark.parametrize("name", EVERYBODY)
def test_judging_is_pure(directory: Path, name: str) -> None:
    check, settings = check_of(name), check_of(name).Settings()
    for subject, reading in looked_at(check, make_project(directory.parent)).items():
        series = (Timed(1000.0, reading), Timed(2000.0, reading))
        with nobody_touches_the_world():
            first = list(check.judge(subject, series, settings, 2000.0))
            second = list(check.judge(subject, series, settings, 2000.0))
        assert first == second, "the same readings, the same word"
        for finding in first:
            assert isinstance(finding, Finding) and isinstance(finding.verdict, Verdict)
            assert bool(finding.fault) == (finding.verdict is not Verdict.OK), "a fault has a name, and only a fault"
            assert not re.search(r"\d", finding.fault)
            assert "\n" not in finding.summary and finding.looked, "--explain must have something to say"


def test_the_hook_notices_who_is_not_pure() -> None:
    impures: list[Callable[[], object]] = [Path("/etc/passwd").read_text, Path.cwd().touch, lambda: os.system("true")]
    for impure in impures:
        with pytest.raises(TouchedTheWorld), nobody_touches_the_world():
            impure()


@pytest.mark.parametrize("name", EVERYBODY)
def test_an_option_wins_over_the_table_and_a_bad_one_is_unknown(
    directory: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in options_of(check_of(name).Settings):
        if option.metavar in ("NUMBER", "PERCENT", "DURATION", "SIZE"):
            code, out, err = resil(capsys, "watch", name, option.flag, "no-such")
            assert (code, out) == (3, "") and option.field in err and "command line" in err
            (directory / "resil.toml").write_text(f'[watch.{name}]\n{option.field} = "no-such"\n')
            code, out, err = resil(capsys, "watch", name)
            assert (code, out) == (3, "") and option.field in err and "resil.toml" in err
            (directory / "resil.toml").unlink()
    (directory / "resil.toml").write_text(f"[watch.{name}]\nno_such_key_at_all = 1\n")
    code, _, err = resil(capsys, "watch", name)
    assert code == 3 and "no_such_key_at_all" in err


@pytest.mark.parametrize("name", EVERYBODY)
def test_a_table_of_another_name_is_a_second_one_of_its_kind(
    directory: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "resil.toml").write_text(f'[watch.second-one]\nkind = "{name}"\n')
    code, out, _ = resil(capsys, "watch", "--list")
    row = next(line for line in out.splitlines() if line.startswith("second-one"))
    assert code == 0 and row.split()[1] == name and "[watch.second-one]" in row and "resil.toml" in row
    code, out, _ = resil(capsys, "watch", "second-one", "--help")
    assert code == 0 and "resil watch second-one [OPTIONS]" in out


@pytest.mark.parametrize("name", EVERYBODY)
def test_a_look_that_hangs_is_unknown_for_every_watchdog(
    directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    check = check_of(name)
    monkeypatch.setattr(type(check), "probe", lambda *_: time.sleep(100))
    monkeypatch.setattr(type(check), "targets", lambda *_: [Target("/somewhere", deadline_s=0.3)])
    (report,) = watch(make_project(directory.parent), [Watchdog(name, name, check, check.Settings())])
    assert report.verdict is Verdict.UNKNOWN and report.findings[0].fault == "stuck"


def test_a_dropped_in_file_gives_a_command_options_exit_codes_and_a_table(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, free in {"many": 9, "few": 3, "none": 0}.items():
        (directory / name).write_text(str(free))
    for words, code in (
        (["many"], 0), (["few"], 1), (["none"], 2), (["gone"], 3), (["many", "few"], 1), (["many", "none", "gone"], 2),
        (["few", "--warn-free", "2"], 0), (["--servers", "many", "--servers", "few"], 1), ([], 3),
        (["many", "--every", "0.01s", "--count", "2"], 0), (["none", "--json"], 2), (["few", "--explain"], 1),
    ):  # fmt: skip
        assert resil(capsys, "watch", "licence", *words)[0] == code, words
    (directory / "resil.toml").write_text('[watch.licence]\nservers = ["few"]\n[watch.mine]\nkind = "licence"\n')
    assert resil(capsys, "watch", "licence")[0] == 1
    assert resil(capsys, "watch", "licence", "many")[0] == 0  # the command line wins
    assert resil(capsys, "watch", "mine", "none")[0] == 2
    code, out, _ = resil(capsys, "watch", "--all", "--no-alert")
    assert "LICENCE WARNING - few: 3 licences left" in out
    assert "MINE UNKNOWN - mine: nothing to check" in out  # somebody wrote its table
    assert resil(capsys, "watch", "mime")[2].endswith("try: did you mean mine?\n")
