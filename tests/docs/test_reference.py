"""What the documentation says is what the code does: commands, settings, codes, variables, links, promises."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any

import pytest

from resilience import errors
from resilience.demo.demo import DemoAttempt
from resilience.doctor.diagnosis import Diagnosis
from resilience.layout import FOLDERS
from resilience.plugins import Family
from resilience.runs.attempts import Attempt
from resilience.runs.status import JobRow, RunStatus
from resilience.runs.submit import SubmitResult
from resilience.schedulers import Scheduler
from resilience.switch import Switch
from resilience.system.ports import SystemClock
from resilience.system.process import ProcessRunner
from scripts import make_docs
from tests.docs.markdown import ROOT, Page, anchor, page, pages
from tests.lab.hints import check_command
from tests.lab.hints import errors as refusals
from tests.lab.waiting import until

VARIABLE = re.compile(r"\bRESIL_[A-Z][A-Z_]*[A-Z]\b")


def name_of(where: Page) -> str:
    return str(where.path.relative_to(ROOT))


every_page = pytest.mark.parametrize("where", pages(), ids=name_of)


# ---- generated pages ------------------------------------------------------------------------------------------


def test_the_generated_pages_are_what_the_code_says() -> None:
    assert not make_docs.stale(), "run `make docs`"


def test_a_page_that_differs_or_is_missing_is_stale(tmp_path: Any) -> None:
    assert set(make_docs.stale(tmp_path)) == set(make_docs.pages())
    for name, text in make_docs.pages().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "by hand\n")
    assert set(make_docs.stale(tmp_path)) == set(make_docs.pages())


def test_every_setting_is_described() -> None:
    rows = {row[0]: row for row in page("docs/reference/settings.md").rows()}
    empty = [key for key, row in rows.items() if len(row) == 4 and not row[3]]
    assert len(rows) > 15 and not empty


def test_the_picture_is_one_of_a_demo_that_went_well() -> None:
    root = ElementTree.parse(ROOT / make_docs.PICTURE).getroot()
    shown = "".join(root.itertext()).replace("\xa0", " ")
    assert root.tag.endswith("svg")
    assert "exactly the same" in shown


def test_the_picture_fits_on_a_page_and_cuts_no_word() -> None:
    texts = [
        "".join(text.itertext()).replace("\xa0", " ")
        for text in ElementTree.parse(ROOT / make_docs.PICTURE).getroot().iter()
        if text.tag.endswith("text") and text.get("class") != "resil-title"
    ]
    rows = "".join(texts).rstrip("\n").split("\n")
    assert 20 < len(rows) <= 35, rows
    assert max(map(len, rows)) <= 120
    assert not [row for row in rows if "..." in row or "…" in row]


# ---- exit codes, variables, JSON ------------------------------------------------------------------------------


def error_classes() -> list[type[errors.ResilError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, errors.ResilError)]


def test_exit_codes_names_every_error_with_its_code() -> None:
    told = {row[0].strip("`"): row[1] for row in page("docs/reference/exit-codes.md").rows() if len(row) == 3}
    assert {error.__name__: str(error("x").exit_code) for error in error_classes()}.items() <= told.items()


def test_environment_lists_the_variables_of_the_code_and_no_others() -> None:
    sources = [*(ROOT / "resilience").rglob("*.py"), *(ROOT / "slurm_templates").iterdir()]
    used = {name for path in sources if path.is_file() for name in VARIABLE.findall(path.read_text())}
    told = set(VARIABLE.findall(page("docs/reference/environment.md").text))
    assert {name for name in told if "__" not in name} == {name for name in used if "__" not in name}


def test_every_kind_of_json_document_is_described() -> None:
    sources = (ROOT / "resilience" / "cli").glob("*.py")
    kinds = {kind for path in sources for kind in re.findall(r'print_json\(\s*"([\w-]+)"', path.read_text())}
    assert len(kinds) > 4
    assert {f"kind-{kind}" for kind in kinds} <= page("docs/reference/json.md").anchors()


@pytest.mark.parametrize("words", [RunStatus, JobRow, Attempt, Switch, DemoAttempt, Diagnosis, SubmitResult])
def test_every_key_of_the_json_documents_is_described(words: Any) -> None:
    told = set(re.findall(r"`\.?(\w+)`", page("docs/reference/json.md").text))
    renamed = {"rows": "jobs", "ids": "job_ids", "directory": "run_dir"}
    assert {renamed.get(field.name, field.name) for field in fields(words)} <= told


# ---- links ----------------------------------------------------------------------------------------------------


@every_page
def test_every_relative_link_leads_somewhere(where: Page) -> None:
    broken = []
    for target in where.links():
        file, _, fragment = target.partition("#")
        path = (where.path.parent / file).resolve() if file else where.path
        if not path.exists() or (fragment and path.suffix == ".md" and fragment not in Page(path).anchors()):
            broken.append(target)
    assert not broken


def test_headings_get_githubs_names() -> None:
    assert anchor("## [run]".lstrip("# ")) == "run"
    assert anchor("resil config show") == "resil-config-show"
    assert anchor("kind `submit-plan`") == "kind-submit-plan"


# ---- command lines --------------------------------------------------------------------------------------------


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of each call of resil in a block for a shell; what a pipe or `;` adds is left out."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True) if "resil " in line else []
        if words[:1] == ["resil"]:
            ends = [position for position, word in enumerate(words) if word in ("|", ";", "&&", ">")]
            yield words[1 : min(ends, default=len(words))]


@every_page
def test_every_command_line_could_be_run(where: Page, capsys: pytest.CaptureFixture[str]) -> None:
    refused = []
    for block in where.blocks("sh", "console"):
        for words in command_lines(block):
            try:
                check_command(words)
            except refusals() as error:
                refused.append(f"resil {shlex.join(words)}: {error}")
    assert not refused


@pytest.mark.parametrize(
    "line", ["resil sbumit", "resil submit --arrya 10", "resil config shwo", "resil logs --lines x"]
)
def test_a_command_line_that_is_wrong_would_be_noticed(line: str) -> None:
    [words] = command_lines(f"$ {line} | head  # no")
    with pytest.raises(refusals()):
        check_command(words)


def test_the_readme_shows_the_five_commands_and_those_that_set_up() -> None:
    blocks = list(page("README.md").blocks("sh"))
    five = next(block for block in blocks if "resil init" in block)
    assert [words[0] for words in command_lines(five)] == ["init", "doctor", "submit", "status", "watch"]
    named = {line.split("#")[0].strip() for block in blocks for line in block.splitlines()}
    assert {"make demo", "make test"} <= named


def test_no_page_installs_a_package_whose_name_somebody_else_may_register() -> None:
    """resil is not on PyPI: `pip install resil` would fetch whatever has taken the name."""
    installs = re.compile(r"pip install [^\n#;`]*(?<![\w/-])resil(?![\w/.-])[^\n]*")
    found = [f"{name_of(where)}: {line}" for where in pages() for line in installs.findall(where.text)]
    assert not [line for line in found if "--no-index" not in line and "CHANGELOG" not in line]
    code = [path for path in (ROOT / "resilience").rglob("*.py") if "resil[" in path.read_text()]
    assert not code


# ---- what commands print --------------------------------------------------------------------------------------

TOLD = ("kill", "save", "clear", "cancel", "submit", "init")
"""Commands whose output is sentences of their own; the others print tables and logs."""


def told_lines(text: str) -> Iterator[str]:
    """The lines that these commands printed in a block for a shell; errors, scripts and `...` are left out."""
    listens = False
    for line in text.splitlines():
        if line.startswith("$ "):
            words = next(command_lines(line), [])
            listens = words[:1] != [] and words[0] in TOLD and not {"--dry-run", "-n"} & set(words)
        elif listens and not line.startswith(("resil: ", "  try: ", "...")):
            yield line.removeprefix("note: ")


@cache
def sentences() -> list[re.Pattern[str]]:
    """The texts that the command line prints; what is filled in matches anything."""
    found = []
    told_elsewhere = [
        ROOT / "resilience" / "runs" / name for name in ("init.py", "kill_outlook.py", "submit_outlook.py")
    ]
    for path in (*(ROOT / "resilience" / "cli").glob("*.py"), *told_elsewhere):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            fixed = [str(part.value) if isinstance(part, ast.Constant) else "" for part in parts]
            if sum(map(str.isalpha, "".join(fixed))) >= 5:  # else it would match anything
                found.append(re.compile("".join(re.escape(text) if text else ".*" for text in fixed)))
    return found


def forms(line: str) -> tuple[str, str, str]:
    """A line, without its indent, and without a word such as `stop` in front."""
    return line, line.strip(), line.strip().partition(" ")[2].strip()


@every_page
def test_what_commands_printed_is_what_they_print(where: Page) -> None:
    known = sentences()
    lines = [line for block in where.blocks("console") for line in told_lines(block)]
    known_lines = {line for line in lines for text in forms(line) if any(s.fullmatch(text) for s in known)}
    assert not set(lines) - known_lines


def test_output_of_an_earlier_release_would_be_noticed() -> None:
    block = """\
$ resil kill gpt
kill switch set: /runs/gpt/switches/kill
  the running attempt saves and stops at its next look; queued jobs end within seconds of their start
$ resil submit --dry-run
#!/bin/bash
$ resil status
gpt  running
"""
    thrown, old = told_lines(block)
    matches = [any(sentence.fullmatch(line) for sentence in sentences()) for line in (thrown, old)]
    assert matches == [True, False]


# ---- promises -------------------------------------------------------------------------------------------------


def test_every_promise_names_a_test_that_exists() -> None:
    promises = re.split(r"\n- ", page("docs/promises.md").text)[1:]
    linked = [re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)", promise) for promise in promises]
    assert len(promises) > 50 and all(len(tests) == 1 for tests in linked)
    missing = [test for (test, file), *_ in linked if test not in functions_of(file)]
    assert not missing


def functions_of(file: str) -> set[str]:
    path = ROOT / file
    tree = ast.parse(path.read_text() if path.is_file() else "")
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


# ---- the code in the how-tos ----------------------------------------------------------------------------------


def test_the_scheduler_in_the_how_to_is_one(tmp_path: Any) -> None:
    plugin, _ = page("docs/how-to/add-a-scheduler.md").blocks("python")
    (tmp_path / "schedulers").mkdir()
    (tmp_path / "schedulers" / "other.py").write_text(plugin)
    made = Family("schedulers", "SCHEDULER", directories=(tmp_path,)).load("other")(
        clock=SystemClock(), runner=ProcessRunner(), environ={}, deadline_s=1.0
    )
    assert made.name == "other"
    assert all(callable(getattr(made, verb)) for verb in vars(Scheduler) if not verb.startswith("_") and verb != "name")


def test_the_contract_can_be_put_to_a_scheduler_of_ones_own(tmp_path: Any) -> None:
    _, claims = page("docs/how-to/add-a-scheduler.md").blocks("python")
    (tmp_path / "test_other.py").write_text(claims)
    look = ("--collect-only", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml")
    argv = [sys.executable, "-m", "pytest", *look, f"--basetemp={tmp_path}/base", str(tmp_path / "test_other.py")]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout
    assert "::test_the_same_intent_is_one_job_however_often_it_is_submitted" in found
    assert "[local]" not in found, "its own `place` is not the one that is used"


def test_the_training_of_the_tutorial_saves_when_told_and_resumes(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [source] = page("docs/tutorial/first-night.md").blocks("python")
    monkeypatch.chdir(tmp_path)
    for name, value in {"RUN_DIR": str(tmp_path), "JOB_ID": "7", "GUARD__POLL_S": "0.02"}.items():
        monkeypatch.setenv(f"RESIL_{name}", value)
    for directory in FOLDERS:
        (tmp_path / directory).mkdir()

    def stop_it_is_midway() -> None:
        until((tmp_path / "checkpoint.json").exists, "its first save", timeout_s=60)
        (tmp_path / "switches" / "stop.7").touch()

    threading.Thread(target=stop_it_is_midway).start()
    assert run_program(source.replace("= 3000, 0.1", "= 30000, 0.005")) == 75
    assert "save and stop, because" in capsys.readouterr().err
    step = json.loads((tmp_path / "checkpoint.json").read_text())["step"]
    (tmp_path / "switches" / "stop.7").unlink()
    assert run_program(source.replace("= 3000, 0.1", f"= {step + 60}, 0.0")) == 0
    assert f"resuming at step {step}" in capsys.readouterr().out
    assert (tmp_path / "finished").exists()


def run_program(source: str) -> object:
    """Run a program that ends by sys.exit in this process; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        exec(compile(source, "train.py", "exec"), {})
    return ended.value.code


# ---- paths ----------------------------------------------------------------------------------------------------

OURS = re.compile(r"`((?:resilience|tests|scripts|benchmarks|slurm_templates)/[\w./-]*\w(?:/|\.\w+)?)(?:::\w+)?`")
"""A path of this repository in a text; `resilience/schedulers/NAME.py` is one to write."""


@every_page
def test_every_path_of_the_repository_that_a_page_names_is_there(where: Page) -> None:
    if "measured" in where.path.parts or where.path.name == "CHANGELOG.md":
        return  # what was there on that day
    named = [path for path in OURS.findall(where.prose) if not re.search(r"[A-Z]{3}|\*", path)]
    assert not [path for path in named if not (ROOT / path).exists()]
