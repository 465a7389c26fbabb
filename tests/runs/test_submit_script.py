"""The script is rendered from the template that wins, or is the person's own if sbatch would take it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.errors import UsageError
from resilience.guard.settings import read_settings
from resilience.runs.submit_plan import (
    SCRIPT_LIMIT_BYTES,
    SubmitRequest,
    guard_variables,
    owner_policy,
    plan_submit,
    read_own_script,
    render_script,
)
from resilience.runs.templates.script import template_library
from resilience.settings.sections import RunSettings
from tests.fakes import make_project
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

REFUSED = {
    "empty": (b"", "is empty", "#!/bin/bash"),
    "blank": (b" \n\n", "is empty", "#!/bin/bash"),
    "no interpreter": (b"echo hi\n", "does not start with #!", "#!/bin/bash"),
    "a blank before it": (b" #!/bin/bash\n", "does not start with #!", "#!/bin/bash"),
    "CRLF": (b"#!/bin/bash\r\necho hi\r\n", "CRLF", "sed -i"),
    "CRLF in one line": (b"#!/bin/bash\necho hi\r\n", "CRLF", "sed -i"),
    "NUL": (b"#!/bin/bash\n\0", "NUL", "batch script?"),
    "too large": (b"#!/bin/bash\n" + b"#" * SCRIPT_LIMIT_BYTES, "4 MiB", "batch script?"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_sbatch_would_refuse_is_refused_before(tmp_path: Path, case: str) -> None:
    content, message, hint = REFUSED[case]
    path = tmp_path / "my script.sh"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_own_script(path)
    assert message in caught.value.message and str(path) in caught.value.message
    assert hint in caught.value.hint


def test_the_advice_for_dos_line_ends_can_be_pasted_whatever_the_name(tmp_path: Path) -> None:
    path = tmp_path / "a b'c.sh"
    path.write_bytes(b"#!/bin/bash\r\n")
    with pytest.raises(UsageError) as caught:
        read_own_script(path)
    assert os.system(caught.value.hint) == 0
    assert read_own_script(path) == "#!/bin/bash\n"


def test_a_script_that_is_not_there_or_no_file_is_refused_and_nothing_hangs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no script"):
        read_own_script(tmp_path / "none.sh")
    with pytest.raises(UsageError, match="is a directory"):
        read_own_script(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="not a regular file"):
        read_own_script(tmp_path / "fifo")
    with pytest.raises(UsageError, match="Not a directory"):
        read_own_script(tmp_path / "fifo" / "x")


@needs_root
def test_a_script_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text("#!/bin/bash\n")
    path.chmod(0o600)
    open_the_way(path)
    with acting_as(NOBODY), pytest.raises(UsageError, match="Permission denied") as caught:
        read_own_script(path)
    assert "may read" in caught.value.hint


def test_a_link_is_followed_and_bytes_that_are_no_text_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_bytes(b"#!/bin/bash\n# \xe9\n")
    (tmp_path / "link").symlink_to("x.sh")
    assert read_own_script(tmp_path / "link").startswith("#!/bin/bash\n# ")


def test_the_projects_own_template_wins_over_the_persons_and_the_shipped_one(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    for place in (tmp_path / "home" / ".config" / "resil", project.world.cwd):
        (place / "slurm_templates").mkdir(parents=True)
        (place / "slurm_templates" / "python.sbatch.j2").write_text(f"#!/bin/bash\n# {place}\n")
        assert str(place) in template_library(project).source("python")


def test_the_rendered_script_holds_the_command_the_setup_and_the_environment(tmp_path: Path) -> None:
    settings = (
        '[run]\nname = "gpt"\ncommand = "python train.py --lr 1e-3"\nsetup = ["module load cuda"]\n'
        '[environment]\nTOKENIZERS_PARALLELISM = false\nNCCL_DEBUG = "a b"\n[sbatch]\npartition = "gpu"\n'
    )
    project = make_project(tmp_path, settings=settings)
    request = SubmitRequest(run="gpt")
    plan = plan_submit(request, project.loaded.settings, "/logs")
    script = render_script(project, request, plan, project.directory("gpt"))
    for text in ("python train.py --lr 1e-3", "module load cuda", "TOKENIZERS_PARALLELISM=false", "'a b'",
                 "#SBATCH --partition=gpu", str(project.directory("gpt").path)):  # fmt: skip
        assert text in script


ODD = {
    "poll_s": 0.1 + 0.2, "host_memory": False, "host_memory_percent": 200 / 3, "host_memory_free_bytes": 2**59 + 1,
    "signals": ("TERM", "HUP"), "walltime_safety": 1.1, "loss_window": 99, "interface": "a 'b' $c", "force_exit": "off",
}  # fmt: skip


def test_the_guard_in_the_job_reads_back_exactly_what_the_settings_say(tmp_path: Path) -> None:
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in ODD.items()]
    project = make_project(tmp_path, settings='[run]\ncommand = "env -0"\n[guard]\n' + "".join(lines))
    request = SubmitRequest(run="gpt")
    plan = plan_submit(request, project.loaded.settings, "/logs")
    script = render_script(project, request, plan, project.directory("gpt"))
    exports = "\n".join(line for line in script.splitlines() if line.startswith(("export RESIL_G", "unset")))
    told = subprocess.run(
        ["bash", "-u", "-c", f"{exports}\nenv -0"], env={"RESIL_GUARD__ROUND_S": "5"}, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    environ = dict(entry.split("=", 1) for entry in told.split("\0") if entry)
    settings = read_settings(environ)
    assert {name: getattr(settings, name) for name in ODD} == ODD
    told_it = project.loaded.settings.guard
    assert told_it is not None
    assert settings == replace(told_it, switch_owners="owner"), "and nothing of another job"


def test_what_is_not_set_is_left_to_the_guard(tmp_path: Path) -> None:
    assert guard_variables(make_project(tmp_path, settings="").loaded) == {"RESIL_GUARD__SWITCH_OWNERS": "owner"}


@pytest.mark.parametrize(
    ("settings", "policy"),
    [('[run]\ngroup = "root"\n', "group"), ('[run]\nswitch_owners = "any"\n', "any"),
     ('[guard]\nswitch_owners = "any"\n', "any")],
)  # fmt: skip
def test_the_guard_obeys_whom_the_batch_shell_obeys(tmp_path: Path, settings: str, policy: str) -> None:
    project = make_project(tmp_path, settings=settings)
    assert guard_variables(project.loaded)["RESIL_GUARD__SWITCH_OWNERS"] == policy
    assert owner_policy(project.loaded.settings.run) == policy


@pytest.mark.parametrize("command", ["", "  "])
def test_without_a_command_there_is_nothing_to_render(tmp_path: Path, command: str) -> None:
    project = make_project(tmp_path, settings=f'[run]\ncommand = "{command}"\n')
    request = SubmitRequest(run="gpt")
    with pytest.raises(UsageError, match="no command to run") as caught:
        render_script(project, request, plan_submit(request, project.loaded.settings, "/l"), project.directory("gpt"))
    assert "resil init" in caught.value.hint


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        (RunSettings(), "owner"),
        (RunSettings(group="lab"), "group"),
        (RunSettings(group="lab", switch_owners="any"), "any"),
    ],
)
def test_a_groups_run_obeys_the_group_unless_said_otherwise(settings: RunSettings, policy: str) -> None:
    assert owner_policy(settings) == policy
