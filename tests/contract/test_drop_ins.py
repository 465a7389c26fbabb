"""The shipped drop-ins work as they are shipped: run by the scheduler, by hand, by run-parts(8), and as jobs.

Each claim is about the files that `resil init` copies, run as programs in a project that says nothing but its name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.base.mounts import LASTING
from resilience.cron.environment import plan_environment
from resilience.cron.project import open_cron
from resilience.cron.records import Entry, Kind, Table
from resilience.cron.submit import submission_of
from resilience.cron.table.crontab_file import parse_crontab
from resilience.cron.table.directory import CronReader
from resilience.cron.table.environment import environment_of
from resilience.cron.table.options import default_options, parse_options
from resilience.errors import UsageError
from resilience.runs.init import init
from resilience.runs.project import Project
from resilience.runs.templates.directives import parse_directives
from resilience.schedulers.local import LocalScheduler
from resilience.settings.cron_settings import CronSettings
from resilience.settings.load import load
from resilience.submission import Submission
from resilience.system.ports import SystemClock
from resilience.system.process import ProcessRunner
from tests.end_to_end.conftest import REPOSITORY
from tests.lab.fakes import make_system
from tests.lab.waiting import until
from tests.schedulers.spooled import Lab, lab

CRON = REPOSITORY / "cron"
PROGRAMS = sorted(path for path in CRON.glob("cron.*/*") if path.name != ".keep")
SCRIPTS = sorted((CRON / "slurm").iterdir())
KEPT = (
    *("LANG", "LC_ALL", "TZ", "RESIL_PLUGINS", "RESIL_LOCAL_SPOOL", "RESIL_RUN__NAME", "XDG_CONFIG_HOME", "SLURM_CONF"),
    *("SBATCH_ACCOUNT", "SBATCH_PARTITION", "http_proxy", "HTTPS_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
    *LASTING,
)
"""Variables that an installation records."""
FULL = """
[watch.fs]
paths = ["."]
crit_percent = 0
"""
"""A disk with anything on it is too full."""


def name_of(path: Path) -> str:
    return str(path.relative_to(CRON))


each_program = pytest.mark.parametrize("path", PROGRAMS, ids=name_of)
each_script = pytest.mark.parametrize("path", SCRIPTS, ids=name_of)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project as `resil init` writes it, in a directory where a person's own programs lie as well."""
    directory = tmp_path / "gpt"
    init(directory=directory, source=None, force=False)
    (directory / "queue.py").write_text("raise SystemExit('a queue of my own')\n")
    return directory


def plain_environment(home: Path) -> dict[str, str]:
    """What cron(8) gives, with no `resil` on its PATH."""
    return {"HOME": str(home), "LOGNAME": "ada", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}


def cron_environment(project: Path, **environ: str) -> dict[str, str]:
    """What a scheduler that has these variables gives: no more than it must."""
    entry = Entry(name="cron.hourly/x", place="cron/cron.hourly/x", schedule="@hourly", kind=Kind.RUN, argv=("x",))
    return environment_of(
        entry,
        3600,
        environ=environ,
        home=project.parent,
        user="ada",
        config=project / "resil.toml",
        python=sys.executable,
        resil_directory=str(project),
    )


def run(argv: list[str], directory: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=directory, env=environ, capture_output=True, text=True, timeout=120)


# ---- how they are written ----------------------------------------------------------------------------------------


def test_the_directory_has_what_was_promised() -> None:
    watchdogs = {
        f"cron.quarter_hourly/watch-{name}" for name in ("ckpt", "fs", "inodes", "job", "log", "nodes", "ranks")
    }
    others = {f"cron.quarter_hourly/{name}" for name in ("alert-flush", "ckpt-adopt")}
    others |= {"cron.hourly/heartbeat", "cron.daily/prune-logs", "cron.weekly/report"}
    assert set(map(name_of, PROGRAMS)) == watchdogs | others
    assert {path.stem for path in SCRIPTS} == {path.name for path in PROGRAMS}


@each_program
def test_a_drop_in_says_what_it_does_and_what_steers_it(path: Path) -> None:
    shebang, comment, options, *_ = path.read_text().splitlines()
    assert shebang == "#!/bin/sh" and os.access(path, os.X_OK)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", path.name), "run-parts(8) would pass it over"
    tables = re.findall(r"\[(\w+)(?:\.[\w*]+)?\]", comment)
    assert tables and set(tables) <= {"watch", "alert", "channel", "checkpoints", "cron"} and "resil.toml" in comment
    assert options.startswith("# resil: ") and "timeout=" in options


@each_script
def test_a_job_is_small_and_does_what_the_drop_in_does(path: Path) -> None:
    text = path.read_text()
    asked = dict(parse_directives(text).options)
    assert {
        "job-name": path.stem,
        "ntasks": "1",
        "cpus-per-task": "1",
        "no-requeue": None,
        "oversubscribe": None,
    }.items() <= asked.items()
    assert (
        set(asked) == {"job-name", "ntasks", "cpus-per-task", "no-requeue", "oversubscribe", "time"}
        and int(asked["time"] or 99) <= 30
    )
    (program,) = (program for program in PROGRAMS if program.name == path.stem)
    (words,) = set(re.findall(r'-m resilience ([a-z -]+?) "\$@"', program.read_text()))
    assert f'"${{resil[@]}}" {words}' in text
    assert program.read_text().splitlines()[1] == text.splitlines()[1], "both say the same"


def test_what_is_shipped_is_scheduled_and_nothing_of_it_is_a_fault(project: Path) -> None:
    table = CronReader(project / "cron", CronSettings()).table()
    assert {entry.name for entry in table.entries} == set(map(name_of, PROGRAMS))
    assert not [ignored for ignored in table.ignored if ignored.is_fault]


def test_the_job_in_the_place_of_the_executable_or_beside_it_is_all_that_happens(project: Path) -> None:
    """As the page beside them says: a link to the batch script. Whoever forgets the executable has nothing twice."""
    directory = project / "cron" / "cron.quarter_hourly"
    (directory / "watch-fs.slurm").symlink_to("../slurm/watch-fs.slurm")
    for _ in range(2):
        table = CronReader(project / "cron", CronSettings()).table()
        (entry,) = (entry for entry in table.entries if "watch-fs" in entry.name)
        assert entry.kind is Kind.SUBMIT
        if (directory / "watch-fs").exists():
            (ignored,) = (ignored for ignored in table.ignored if ignored.place.endswith("/watch-fs"))
            assert "watch-fs.slurm in the same directory is submitted instead" in ignored.reason
            (directory / "watch-fs").unlink()


def test_shellcheck_and_the_shells_find_no_fault() -> None:
    found = run(["shellcheck", *map(str, (*PROGRAMS, *SCRIPTS))], CRON, {"PATH": f"{Path(sys.executable).parent}:/bin"})
    assert (found.returncode, found.stdout) == (0, "")
    for path in (*PROGRAMS, *SCRIPTS):
        shell = "bash" if path in SCRIPTS else "sh"
        assert run([shell, "-n", str(path)], CRON, {"PATH": "/usr/bin:/bin"}).stderr == ""


# ---- as the scheduler runs them ----------------------------------------------------------------------------------


@each_program
def test_as_shipped_it_is_quiet_and_harmless(path: Path, project: Path) -> None:
    """Without a channel nobody is told; without anything wrong, and on a first day, nothing is; nothing is written but
    in the state directory."""
    before = {path: path.stat().st_mtime_ns for path in project.rglob("*")}
    done = run([str(project / "cron" / name_of(path))], project, cron_environment(project))
    assert done.returncode in allowed_codes(path), done
    assert done.stderr == "" and len(done.stdout.splitlines()) <= 4, done
    after = {path: path.stat().st_mtime_ns for path in project.rglob("*") if ".resil" not in path.parts}
    assert {path for path in after if after[path] != before.get(path) and path != project} == set()


def allowed_codes(path: Path) -> set[int]:
    """What the line of options calls no failure."""
    (text,) = re.findall(r"(?m)^# resil: (.*)$", path.read_text())
    return set(parse_options(text, default_options(CronSettings(), is_drop_in=True)).options.ok)


def test_what_a_watchdog_finds_is_no_failure_of_the_drop_in(project: Path) -> None:
    with (project / "resil.toml").open("a") as file:
        file.write(FULL)
    program = project / "cron" / "cron.quarter_hourly" / "watch-fs"
    done = run([str(program)], project, cron_environment(project))
    assert done.stdout.startswith("FS CRITICAL") and done.returncode == 2
    assert done.returncode in allowed_codes(program)


def test_what_a_framework_has_saved_is_sealed_when_its_tracker_moves(project: Path) -> None:
    """Megatron and DeepSpeed need no code for that."""
    settings = (project / "resil.toml").read_text()
    table = '[checkpoints]\npath = "out"\ntracker = "latest_checkpointed_iteration.txt"\n'
    (project / "resil.toml").write_text(settings.replace("[checkpoints]\n", table))
    for step in (100, 200):
        (project / "out" / f"iter_{step:07d}").mkdir(parents=True)
        (project / "out" / f"iter_{step:07d}" / "model.bin").write_bytes(b"weights")
    (project / "out" / "latest_checkpointed_iteration.txt").write_text("100")
    done = run([str(project / "cron" / "cron.quarter_hourly" / "ckpt-adopt")], project, cron_environment(project))
    assert done.returncode == 0 and "iter_0000100 is sealed: step 100" in done.stdout
    assert [path.name for path in (project / "out" / ".resil" / "seals").iterdir()] == ["00000100.iter_0000100.json"]


def test_a_watchdog_sees_the_storage_that_its_person_sees(project: Path, tmp_path: Path) -> None:
    """The environment of crontab is nearly empty. What `resil watch fs` looks at by hand, the drop-in looks at, too."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    person = {"SCRATCH": str(scratch), "HTTPS_PROXY": "http://proxy:3128", "RESIL_PLUGINS": "/mine", "TMPDIR": "/tmp/7"}
    kept = plan_environment(person, user="ada", home=tmp_path, config=None, directories=())
    environ = cron_environment(project, **kept)
    assert person.items() - environ.items() == {("TMPDIR", "/tmp/7")}, "that is a directory of one session"
    done = run([str(project / "cron" / "cron.quarter_hourly" / "watch-fs"), "--explain"], project, environ)
    assert "$SCRATCH" in done.stdout


def test_what_an_install_records_reaches_what_runs(project: Path, tmp_path: Path) -> None:
    kept = plan_environment(dict.fromkeys(KEPT, "x"), user="ada", home=tmp_path, config=None, directories=())
    assert set(KEPT) <= set(kept) and kept.keys() <= cron_environment(project, **kept).keys()


def test_the_page_names_every_file_that_a_night_of_the_scheduler_leaves(project: Path, tmp_path: Path) -> None:
    """docs/reference/cron-directory.md, against what lies in the state directory afterwards."""
    (project / "resil.toml").write_text('[scheduler]\nname = "local"\n')
    hourly = project / "cron" / "cron.hourly"
    (hourly / "fails").write_text("#!/bin/sh\necho no; exit 1\n")
    (hourly / "fails").chmod(0o755)
    (hourly / "heartbeat.slurm").symlink_to("../slurm/heartbeat.slurm")
    state = project / ".resil" / ".cron"
    with lab(tmp_path) as opened:
        environ = opened.environ | cron_environment(project, RESIL_LOCAL_SPOOL=str(opened.spool))
        resil = [sys.executable, "-P", "-m", "resilience", "cron"]
        assert run([*resil, "install", "--backend", "slurm"], project, environ).returncode == 0
        until(lambda: (state / "seen").exists(), what="the first tick", timeout_s=60)
        seen = json.loads((state / "seen").read_text())
        (state / "seen").write_text(json.dumps({key: [since - 3600, text] for key, (since, text) in seen.items()}))
        assert run([*resil, "tick"], project, environ).returncode == 0
        assert run([*resil, "stop"], project, environ).returncode == 0
    there = {path.name + "/" * path.is_dir() for path in state.iterdir() if not path.name.startswith(".")}
    told = re.findall(r"(?m)^  ([a-z][\w./, ]*?)  ", (REPOSITORY / "docs/reference/cron-directory.md").read_text())
    names = {name for row in told for name in row.split(", ")}
    assert there <= names and {"driver.json", "slots/", "history/", "output/", "stop"} <= there


# ---- by hand, and by run-parts -----------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("run-parts") is None, reason="needs run-parts (Debian: debianutils)")
def test_run_parts_runs_all_of_a_directory_from_anywhere(project: Path, tmp_path: Path) -> None:
    """From a crontab of one's own: no variable of ours, another directory, resil only in the project's .venv."""
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "resil").symlink_to(Path(sys.executable).with_name("resil"))
    if not (project / ".venv" / "bin" / "resil").exists():
        pytest.skip("resil is not installed in this environment; `make test` installs it")
    directory = project / "cron" / "cron.quarter_hourly"
    done = run(["run-parts", "--verbose", str(directory)], tmp_path, plain_environment(tmp_path))
    assert done.stderr.count("run-parts: executing") == 9 and "not found" not in done.stderr
    for line in ("CKPT OK", "FS OK", "INODES OK", "JOB OK", "LOG OK", "nothing is queued"):
        assert line in done.stdout
    assert (project / ".resil").is_dir(), "it is the project's resil.toml that counts"


# ---- as jobs -----------------------------------------------------------------------------------------------------


def submit(opened: Lab, script: Path, directory: Path, environ: dict[str, str]) -> str:
    """Queue a shipped script from a project directory, wait for its end; return its state, code and output."""
    scheduler = LocalScheduler(
        clock=SystemClock(), runner=ProcessRunner(), environ={**opened.environ, **environ}, deadline_s=20.0
    )
    token = os.urandom(6).hex()
    job = opened.ended(scheduler.submit(Submission(token, ".cron", str(script), directory=str(directory))).id, 120)[0]
    return f"{job.state} {job.exit_code}\n{opened.output(job)}"


def test_as_jobs_they_look_and_end_well_whatever_they_find(project: Path, tmp_path: Path) -> None:
    with (project / "resil.toml").open("a") as file:
        file.write(FULL)
    environ = cron_environment(project)
    with lab(tmp_path, **environ) as opened:
        said = {script.stem: submit(opened, script, project, environ) for script in SCRIPTS}
    assert {name for name, text in said.items() if not text.startswith("COMPLETED")} == set(), said
    lines = {"watch-fs": "FS CRITICAL", "watch-inodes": "INODES OK", "watch-job": "JOB OK", "watch-log": "LOG OK"}
    lines |= {
        "watch-ckpt": "CKPT OK",
        "alert-flush": "nothing is queued",
        "ckpt-adopt": "nothing to adopt",
        "heartbeat": "CRON ",
        "report": "no channel is configured",
    }
    assert [name for name, line in lines.items() if line not in said[name]] == [], said


def test_where_the_jobs_go_stands_in_the_settings_once_and_in_no_copy(project: Path) -> None:
    """A site that wants an account of every job gets it; a script that says where it goes itself goes there."""
    with (project / "resil.toml").open("w") as file:
        file.write('[cron]\nsbatch = { partition = "cpu", account = "abc", mem = "", time = "1:00" }\n')
    hourly = project / "cron" / "cron.hourly"
    (hourly / "heartbeat.slurm").symlink_to("../slurm/heartbeat.slurm")
    (hourly / "gpu.slurm").write_text("#!/bin/bash\n# resil: sbatch=cron\n#SBATCH -p gpu\n")
    (hourly / "mine.slurm").write_text("#!/bin/bash\n")
    system = make_system(project)
    cron = open_cron(Project(system, load(system)))
    submissions = {
        entry.name.rpartition("/")[2]: submission_of(cron, entry, 3600).options
        for entry in cron.read_table().entries
        if entry.kind is Kind.SUBMIT
    }
    where = {name: {key: options[key] for key in sorted(options) if key not in ("output", "job-name")}
             for name, options in submissions.items()}  # fmt: skip
    assert where == {"heartbeat.slurm": {"account": "abc", "partition": "cpu"}, "gpu.slurm": {"account": "abc"},
                     "mine.slurm": {}}  # fmt: skip
    with pytest.raises(UsageError, match="sbatch=mine"):
        parse_options("sbatch=mine", default_options(CronSettings(), is_drop_in=True))


def test_neither_the_scheduler_nor_a_watchdog_takes_the_cpus_of_a_training_on_one_machine(
    project: Path, tmp_path: Path
) -> None:
    """A training may ask for all of them, and must not wait for a job that only watches; nor such a job for it."""
    with lab(tmp_path, RESIL_LOCAL_CPUS="1") as opened:
        environ = opened.environ | {"RESIL_SCHEDULER__NAME": "local", "RESIL_CONFIG": str(project / "resil.toml")}
        resil = [sys.executable, "-P", "-m", "resilience", "cron"]
        installed = run([*resil, "install", "--backend", "slurm"], project, environ)
        assert installed.returncode == 0, installed
        until(lambda: (project / ".resil" / ".cron" / "heartbeat").exists(), what="the first tick", timeout_s=60)
        training = opened.submit("echo trains; sleep 600", time="1:00:00")
        opened.says(training, "trains")
        said = submit(opened, CRON / "slurm" / "watch-inodes.slurm", project, cron_environment(project))
        assert said.startswith("COMPLETED") and not opened.one(training).state.is_final
        assert run([*resil, "stop"], project, environ).returncode == 0


def test_a_job_without_resil_says_what_to_do_and_fails(project: Path, tmp_path: Path) -> None:
    with lab(tmp_path, **plain_environment(tmp_path)) as opened:
        said = submit(opened, CRON / "slurm" / "watch-fs.slurm", project, plain_environment(tmp_path))
    assert said.startswith("FAILED") and "127" in said.splitlines()[0]
    assert "neither RESIL_PYTHON, nor PATH, nor" in said and "try: submit from the project directory" in said


def test_a_job_that_could_not_look_at_all_has_failed(project: Path, tmp_path: Path) -> None:
    """An exit code of 1 to 3 is a verdict only where a line says so: Python's own failures have the same codes."""
    (project / "resil.toml").write_text("[torn")
    environ = cron_environment(project)
    with lab(tmp_path, **environ) as opened:
        said = submit(opened, CRON / "slurm" / "watch-fs.slurm", project, environ)
    assert said.startswith("FAILED") and "is not TOML" in said


def test_the_examples_of_the_crontab_can_be_used_as_they_stand() -> None:
    """Every line that is commented out means what it says once the `#` is gone."""
    text = (CRON / "crontab").read_text()
    assert parse_crontab(text, "crontab", CronSettings()) == Table(), "as shipped, nothing is scheduled"
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    examples = [line for line in lines if re.match(r"[\d*][^ ]* |[A-Z_]+=", line)]
    table = parse_crontab("\n".join(examples), "crontab", CronSettings())
    assert table.ignored == () and len(table.entries) == 3
    morning, look, archive = table.entries
    assert (morning.argv[2], morning.mail_to) == ("resil status", "you@example.org")
    assert look.options.ok == (0, 1, 2, 3) and archive.argv[:2] == ("/bin/sh", "-c") and archive.zone == "Europe/Paris"


def test_the_settings_of_the_drop_ins_exist() -> None:
    """`prune-logs` and `heartbeat` name keys of [cron]."""
    named = re.findall(r"(\w+_\w+) ", (CRON / "cron.daily" / "prune-logs").read_text().splitlines()[1])
    assert named and all(hasattr(CronSettings(), key) for key in named)
