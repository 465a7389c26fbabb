"""The plan of a submit: options, script and the facts for the lint."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.checkpoints.settings import read_store_settings
from resilience.cluster import ClusterConfig
from resilience.errors import UsageError
from resilience.guard.settings import read_settings
from resilience.job import JobId
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submit_plan import (
    SCRIPT_LIMIT_BYTES,
    SubmitPlan,
    SubmitRequest,
    guard_variables,
    lint_facts,
    output_pattern,
    owner_policy,
    passed_options,
    plan_submit,
    read_own_script,
    render_script,
    slowest_save_s,
)
from resilience.runs.templates.lint import LintFacts
from resilience.runs.templates.script import template_library
from resilience.settings.sections import ActSettings, NodeSettings, RunSettings, Settings, SubmitSettings
from resilience.submission import split_signal
from tests.lab.fakes import DOWN, FakeScheduler, make_project
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way


def plan(request: dict[str, Any] | None = None, logs: str = "/logs", **settings: Any) -> SubmitPlan:
    return plan_submit(SubmitRequest(run="gpt", **(request or {})), Settings(run=RunSettings(), **settings), logs)


def rendered(project: Project) -> str:
    """The script of the project's run, from a template."""
    request = SubmitRequest(run="gpt")
    planned = plan_submit(request, project.loaded.settings, "/logs")
    return render_script(project, request, planned, project.directory("gpt"))


OPTIONS: list[tuple[dict[str, Any], dict[str, str | None]]] = [
    ({}, {}),
    ({"array": "10"}, {"array": "1-10%1"}),
    ({"array": "1-10%3"}, {"array": "1-10%3"}),
    ({"chain": 3}, {}),
    ({"dependency": "12"}, {"dependency": "afterany:12"}),
    ({"after": JobId(12, 3)}, {"dependency": "afterany:12_3"}),
    ({"after": JobId(12), "dependency": "afterok:9"}, {"dependency": "afterany:12,afterok:9"}),
    ({"exclude": "n[1-3]", "time": "1:00:00", "begin": "now+1hour"},
     {"exclude": "n[1-3]", "time": "1:00:00", "begin": "now+1hour"}),
    ({"hold": True}, {"hold": None}),
    ({"signal": "B:USR2@120"}, {"signal": "B:USR2@120"}),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "options"), OPTIONS, ids=lambda value: str(value)[:40])
def test_only_what_was_asked_for_goes_onto_the_command_line(
    request_: dict[str, Any], options: dict[str, str | None]
) -> None:
    assert plan(request_).options == options


def test_the_settings_array_counts_unless_a_chain_or_an_own_script_is_wanted() -> None:
    submit = SubmitSettings(array="5")
    assert plan(submit=submit).options == {"array": "1-5%1"}
    assert plan({"array": "2"}, submit=submit).options == {"array": "1-2%1"}
    assert plan({"chain": 2}, submit=submit).options == {}
    assert plan({"script": Path("x.sh")}, submit=submit).options == {}


def test_an_own_script_gets_no_directives() -> None:
    planned = plan({"script": Path("x.sh"), "script_args": ("--lr", "1")}, sbatch={"partition": "gpu", "time": "60"})
    assert (planned.directives, planned.time_limit_s) == ((), None)


def test_a_rendered_script_says_everything_by_itself() -> None:
    planned = plan({"array": "3"}, sbatch={"partition": "gpu", "exclusive": True, "oversubscribe": False, "nodes": 4})
    assert dict(planned.directives) == {
        "job-name": "gpt", "output": "/logs/gpt-%A_%a.out", "open-mode": "append", "signal": "B:USR1@300",
        "partition": "gpu", "exclusive": None, "nodes": "4",
    }  # fmt: skip
    assert dict(plan().directives)["output"] == "/logs/gpt-%j.out"
    percent = dict(plan(logs="/100%j/logs").directives)["output"]
    assert percent == "/100%%j/logs/gpt-%j.out", "a percent sign in the path is no field of the file name"


@pytest.mark.parametrize(("requeue", "flags"), [(None, set()), (True, {"requeue"}), (False, {"no-requeue"})])
def test_whether_slurm_may_requeue_is_the_sites_business_unless_set(requeue: bool | None, flags: set[str]) -> None:
    names = {name for name, _ in plan(submit=SubmitSettings(requeue=requeue)).directives}
    assert names & {"requeue", "no-requeue"} == flags


def test_a_job_that_requeues_itself_may_be_requeued(tmp_path: Path) -> None:
    act = ActSettings(requeue=True, keep_queued=2)
    assert ("requeue", None) in plan(act=act).directives
    for forbidden in ({"submit": SubmitSettings(requeue=False)}, {"sbatch": {"no_requeue": True}}):
        with pytest.raises(UsageError, match="requeue = true in \\[act\\] needs jobs that may be requeued"):
            plan(act=act, **forbidden)
    settings = '[run]\ncommand = "true"\n[act]\nkeep_queued = 2\nrequeue = {}\n'
    script = rendered(make_project(tmp_path, settings=settings.format("true")))
    assert "\nresil_keep_queued='' " in script and "\nresil_requeue='yes' " in script.replace("=yes ", "='yes' ")
    script = rendered(make_project(tmp_path, settings=settings.format("false")))
    assert f"-m resilience.cli.keep_queued {tmp_path}" in script and "\nresil_requeue='' " in script


def test_a_job_checks_its_nodes_where_that_is_wished(tmp_path: Path) -> None:
    settings = '[run]\ncommand = "true"\n[nodes]\npreflight = {}\n'
    script = rendered(make_project(tmp_path, settings=settings.format("true")))
    assert f"-m resilience.cli.preflight {tmp_path}" in script
    assert "\nresil_preflight='' " in rendered(make_project(tmp_path, settings=settings.format("false")))


def test_the_signal_that_slurm_sends_is_the_one_that_the_script_waits_for() -> None:
    planned = plan(submit=SubmitSettings(signal="sigusr2", signal_lead_s=90.7))
    assert (planned.signal, planned.signal_lead_s) == ("USR2", 90)
    assert dict(planned.directives)["signal"] == "B:USR2@90"
    asked = plan({"signal": "B:TERM@60"})
    assert (asked.signal, asked.signal_lead_s, dict(asked.directives)["signal"]) == ("TERM", 60, "B:TERM@60")


@pytest.mark.parametrize(("name", "table"), [("array", "[submit]"), ("signal", "[submit]")])
def test_what_resil_writes_itself_cannot_stand_among_sbatchs_options(name: str, table: str) -> None:
    """`array = 10` there would reach sbatch as one task of index 10; a signal there, the script would not wait for."""
    with pytest.raises(UsageError, match=f"{name} cannot be set in \\[sbatch\\]") as caught:
        plan(sbatch={name: 10})
    assert table in caught.value.hint


@pytest.mark.parametrize(
    ("request_", "sbatch", "limit_s"),
    [({"time": "90"}, {}, 5400), ({}, {"time": 90}, 5400), ({"time": "10"}, {"time": "90"}, 600), ({}, {}, None),
     ({}, {"time": "UNLIMITED"}, None), ({"time": "10", "script": Path("x")}, {}, 600)],
)  # fmt: skip
def test_the_time_limit_that_counts_is_known(
    request_: dict[str, Any], sbatch: dict[str, Any], limit_s: int | None
) -> None:
    assert plan(request_, sbatch=sbatch).time_limit_s == limit_s


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"chain": -1}, "would queue nothing"),
    ({"chain": 2, "array": "3"}, "cannot be given together"),
    ({"script_args": ("x",)}, "script of your own"),
    ({"after": JobId(1), "dependency": "2?3"}, "any of"),
    ({"time": "soon"}, "not a SLURM time"),
    ({"array": "0"}, "would queue nothing"),
    ({"dependency": "x"}, "not a job id"),
    ({"signal": "B:USR1@70000"}, "65535"),
]


@pytest.mark.parametrize(("request_", "why"), CONTRADICTIONS)
def test_a_request_that_contradicts_itself_is_refused(request_: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        plan(request_)
    assert caught.value.hint


@pytest.mark.parametrize(
    "word", ["--array=5", "--array", "--arr=5", "-a5", "-a", "-d1", "--dependency=1", "--comment=x", "--comm=x",
             "--parsable", "--test-only"],
)  # fmt: skip
def test_what_resil_itself_tells_sbatch_cannot_be_undone_behind_its_back(word: str) -> None:
    with pytest.raises(UsageError, match="would override") as caught:
        plan({"extra_args": ("--qos=high", word)})
    assert caught.value.hint


def test_every_other_flag_of_sbatch_is_passed_through() -> None:
    plan({"extra_args": ("--qos=high", "-A", "x", "--partition=a", "--deadline=x", "-N2", "--constraint=c")})


SIGNALS = [
    ("B:USR1@300", ("USR1", 300)),
    ("USR1@300", ("USR1", 300)),
    ("b:usr1@300", ("USR1", 300)),
    ("SIGTERM", ("TERM", 60)),
    ("R:10@5", ("10", 5)),
    (" B:HUP@0 ", ("HUP", 0)),
]


@pytest.mark.parametrize(("text", "meant"), SIGNALS)
def test_a_signal_is_read_as_sbatch_reads_it(text: str, meant: tuple[str, int]) -> None:
    assert split_signal(text) == meant


@pytest.mark.parametrize(
    "text",
    ["", "B:", "@30", "B:@30", "X:USR1@30", "USR1@", "USR1@-3", "USR1@soon", "USR1@65536", "USR1@\u0663", "USR1@\u00b2",
     "USR1@" + "9" * 5000, "B:B:USR1@1", "US R1", "USR1;reboot", "SIG", "nan", "B:NAN@300",
     "WINCH", "0", "65", "\u0661\u0660"],
)  # fmt: skip
def test_what_is_no_signal_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        split_signal(text)
    assert "B:USR1@300" in caught.value.hint


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


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none.sh", "there is no script"),
        (".", "is a directory"),
        ("fifo", "not a regular file"),
        ("fifo/x", "Not a directory"),
    ],
)
def test_a_script_that_is_not_there_or_no_file_is_refused_and_nothing_hangs(
    tmp_path: Path, place: str, said: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match=said):
        read_own_script(tmp_path / place)


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
    for place in (tmp_path / "home" / ".config" / "resil", project.system.cwd):
        (place / "slurm_templates").mkdir(parents=True)
        (place / "slurm_templates" / "python.sbatch.j2").write_text(f"#!/bin/bash\n# {place}\n")
        assert str(place) in template_library(project).source("python")


def test_the_rendered_script_holds_the_command_the_setup_and_the_environment(tmp_path: Path) -> None:
    settings = (
        '[run]\nname = "gpt"\ncommand = "python train.py --lr 1e-3"\nsetup = ["module load cuda"]\n'
        '[environment]\nTOKENIZERS_PARALLELISM = false\nNCCL_DEBUG = "a b"\n[sbatch]\npartition = "gpu"\n'
    )
    project = make_project(tmp_path, settings=settings)
    script = rendered(project)
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
    exports = "\n".join(line for line in rendered(project).splitlines() if line.startswith(("export RESIL_G", "unset")))
    exported = subprocess.run(
        ["bash", "-u", "-c", f"{exports}\nenv -0"], env={"RESIL_GUARD__ROUND_S": "5"}, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    settings = read_settings(dict(entry.split("=", 1) for entry in exported.split("\0") if entry))
    assert {name: getattr(settings, name) for name in ODD} == ODD
    written = project.loaded.settings.guard
    assert written is not None
    assert settings == replace(written, switch_owners="owner"), "and nothing of another job"


def test_what_is_not_set_is_left_to_the_guard(tmp_path: Path) -> None:
    assert guard_variables(make_project(tmp_path, settings="").loaded) == {"RESIL_GUARD__SWITCH_OWNERS": "owner"}


def test_the_store_of_a_job_reads_what_the_file_says_and_nothing_of_another_job(tmp_path: Path) -> None:
    table = 'path = "out/{run}"\nlatest = 5\nwithin = "2d"\nbest = { metric = "loss", n = 3 }\nreuse = false\n'
    project = make_project(tmp_path, settings=f'[run]\ncommand = "env -0"\n[checkpoints]\n{table}')
    lines = rendered(project).splitlines()
    exports = "\n".join(line for line in lines if line.startswith(("export RESIL_CHECKPOINTS", "unset")))
    of_another = {"RESIL_CHECKPOINTS__LATEST": "1", "RESIL_CHECKPOINTS__EVERY_STEPS": "7"}
    exported = subprocess.run(
        ["bash", "-u", "-c", f"{exports}\nenv -0"], env=of_another, capture_output=True, text=True, check=True
    ).stdout
    settings = read_store_settings(dict(entry.split("=", 1) for entry in exported.split("\0") if entry))
    written = project.loaded.settings.checkpoints
    assert written is not None
    assert settings == replace(written, path=str(project.loaded.store_path("gpt")))


@pytest.mark.parametrize(
    ("settings", "policy"),
    [('[run]\ngroup = "root"\n', "group"), ('[run]\nswitch_owners = "any"\n', "any"),
     ('[guard]\nswitch_owners = "any"\n', "any")],
)  # fmt: skip
def test_the_guard_accepts_the_switches_that_the_batch_shell_accepts(
    tmp_path: Path, settings: str, policy: str
) -> None:
    project = make_project(tmp_path, settings=settings)
    assert guard_variables(project.loaded)["RESIL_GUARD__SWITCH_OWNERS"] == policy
    assert owner_policy(project.loaded.settings.run) == policy


@pytest.mark.parametrize("command", ["", "  "])
def test_without_a_command_there_is_nothing_to_render(tmp_path: Path, command: str) -> None:
    with pytest.raises(UsageError, match="no command to run") as caught:
        rendered(make_project(tmp_path, settings=f'[run]\ncommand = "{command}"\n'))
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


def test_a_directory_for_the_output_of_an_own_script_must_be_there(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --output=logs/%j.out\n#SBATCH --error=/nowhere/%x/x.err\n"
    own = Path("x.sh")
    found = facts(tmp_path, None, script, script=own)
    assert found.missing_directories == (str(tmp_path / "project" / "logs"),), "one with a field cannot be judged"
    (tmp_path / "project" / "logs").mkdir()
    assert facts(tmp_path, None, script, script=own).missing_directories == ()
    assert facts(tmp_path, None, script).missing_directories == ()


def test_the_directory_of_the_output_is_looked_for_where_the_job_changes_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "logs").mkdir(parents=True)
    own = tmp_path / "mine.sh"
    script = f"#!/bin/bash\n#SBATCH -D {tmp_path}/elsewhere\n#SBATCH -o logs/a.out\n#SBATCH -e errors/a.err\n"
    own.write_text(script)
    assert facts(tmp_path, None, script, script=own).missing_directories == (f"{tmp_path}/elsewhere/errors",)


@pytest.mark.parametrize("name", ["~", "~nosuchuser"])
def test_a_tilde_is_no_home_to_slurm(tmp_path: Path, name: str) -> None:
    found = facts(tmp_path, None, f"#!/bin/bash\n#SBATCH --output={name}/x.out\n", script=Path("x.sh"))
    assert found.missing_directories == (str(tmp_path / "project" / name),)


def test_the_run_that_a_directory_belongs_to_is_known(tmp_path: Path) -> None:
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


PATTERNS = [
    ("#!/bin/bash\n", {}, {}, "/home/me/slurm-%j.out"),
    ("#!/bin/bash\n#SBATCH -a 1-3\n", {}, {}, "/home/me/slurm-%A_%a.out"),
    ("#!/bin/bash\n", {"array": "1-3%1"}, {}, "/home/me/slurm-%A_%a.out"),
    ("#!/bin/bash\n#SBATCH -o a.log\n", {}, {}, "/home/me/a.log"),
    ("#!/bin/bash\n#SBATCH -o a.log\n", {}, {"SBATCH_OUTPUT": "b.log"}, "/home/me/b.log"),
    ("#!/bin/bash\n#SBATCH -o a.log\n", {"output": "c.log"}, {"SBATCH_OUTPUT": "b.log"}, "/home/me/c.log"),
    ("#!/bin/bash\n#SBATCH -D /data -o %x/%j.log\n", {}, {}, "/data/my.sh/%j.log"),
    ("#!/bin/bash\n#SBATCH -J 50% -o %x-%%x\n", {}, {}, "/home/me/50%%-%%x"),
    ("#!/bin/bash\n#SBATCH --output=/logs/%A.out\n", {"chdir": "sub"}, {}, "/logs/%A.out"),
]


@pytest.mark.parametrize(("script", "options", "environ", "pattern"), PATTERNS)
def test_where_the_output_of_a_script_goes(
    script: str, options: dict[str, str | None], environ: dict[str, str], pattern: str
) -> None:
    assert output_pattern(script, options, environ, "/home/me", "my.sh") == pattern


# ---- spares ---------------------------------------------------------------------------------------------------------


def with_spares(sbatch: dict[str, Any] | None = None, request: dict[str, Any] | None = None, spares: int = 1) -> Any:
    wanted = {"nodes": 4, "ntasks-per-node": 8} if sbatch is None else sbatch
    return dict(plan(request, nodes=NodeSettings(spares=spares), sbatch=wanted).directives)


def test_a_job_with_spares_has_more_nodes_and_survives_the_loss_of_one() -> None:
    found = with_spares()
    assert (found["nodes"], found["no-kill"], found["ntasks-per-node"]) == ("5", None, "8")
    assert "no-kill" not in with_spares(spares=0) and with_spares(spares=0)["nodes"] == "4"
    assert "no-kill" not in with_spares(request={"script": Path("own.sbatch")}), "a script of one's own is unchanged"


@pytest.mark.parametrize(
    ("sbatch", "request_", "spares", "said"),
    [
        ({}, {}, 1, "needs the number of nodes of the launch, not ''"),
        ({"nodes": "2-4"}, {}, 1, "not '2-4'"),
        ({"nodes": 4}, {}, -1, "spares = -1"),
        ({"nodes": 4, "ntasks": 4}, {}, 1, "ntasks under .sbatch. counts over all nodes"),
        ({"nodes": 4, "gpus": 32}, {}, 1, "gpus under .sbatch. counts over all nodes"),
        ({"nodes": 4}, {"extra_args": ("--nodes=8",)}, 1, "would change the number of spares"),
        ({"nodes": 4}, {"array": "10"}, 1, "SLURM starts its next task when the running one loses a node"),
    ],
)
def test_spares_that_cannot_work_are_refused(
    sbatch: dict[str, Any], request_: dict[str, Any], spares: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        with_spares(sbatch, request_, spares)


SPARES = """\
[run]
name = "gpt"
command = "python train.py"
template = "srun"
[nodes]
spares = 2
[sbatch]
nodes = 4
"""


def test_a_rendered_script_launches_on_the_nodes_without_the_spares(tmp_path: Path) -> None:
    text = rendered(make_project(tmp_path, settings=SPARES))
    assert "#SBATCH --nodes=6\n#SBATCH --no-kill\n" in text and "resil_nodes=4 " in text
    assert "-m resilience.cli.spares" in text


def test_the_embedded_scheduler_has_no_spares(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="need SLURM: the embedded scheduler has one node"):
        rendered(make_project(tmp_path, FakeScheduler(name="local"), settings=SPARES))
