"""`resil watch` as cron types it: real processes, real hangs, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.watchdogs import write_own_plugin
from tests.end_to_end.conftest import PATIENCE_S, Shell
from tests.lab.hung import hung_directory

SLOW = """
import os, time
from dataclasses import dataclass
from resilience.finding import Finding
from resilience.watch.reading import NO_MEMORY, Target
from resilience.finding import Verdict

@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    \"\"\"Where to look.

    Attributes:
        paths: the directories.
    \"\"\"

    paths: tuple[str, ...] = ()

@dataclass(frozen=True, slots=True)
class Reading:
    \"\"\"What it saw.\"\"\"

    size: int

class Slow:
    summary, Settings, Reading, memory = "slow things", Settings, Reading, NO_MEMORY
    argument, example = "paths", "resil watch slow /a"

    def targets(self, settings, context):
        return [Target(path, (path,)) for path in settings.paths]

    def probe(self, target, settings, context, before):
        if target.name == "sleep":
            with open("sleeping", "a") as file:
                print(os.getpid(), file=file)
            time.sleep(1000)
        return {target.name: Reading(os.statvfs(target.name).f_bsize)}

    def judge(self, subject, readings, settings, now):
        return [Finding(subject=subject, verdict=Verdict.OK, summary=f"it answers, {readings[-1].reading.size}")]

CHECK = Slow()
"""


@pytest.fixture
def watching(shell: Shell, tmp_path: Path) -> Shell:
    """A project, and two watchdogs of one's own: the guide's, and one that may be slow."""
    plugins = write_own_plugin(tmp_path / "plugins")
    (plugins / "checks" / "slow.py").write_text(SLOW)
    shell.environment |= {"RESIL_PLUGINS": str(plugins), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    return shell


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    with hung_directory(tmp_path / "hung") as directory:
        yield directory


def start(shell: Shell, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "resilience", *words], cwd=shell.directory, env=shell.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def waiting_at(directory: Path) -> int:
    """How many processes hang in the kernel below us or were left behind: those that name the project's directory."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            project = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        count += state == "D" and f"HOME={directory}".encode() in project
    return count


def test_a_hung_mount_is_told_at_the_deadline_then_at_once_and_clears_itself(watching: Shell, tmp_path: Path) -> None:
    with hung_directory(tmp_path / "hung") as directory:
        words = ("watch", "slow", str(directory), "/", "--deadline", "1s")
        first = watching.resil(*words)  # returns when the pipes are closed, as cron waits for that
        assert (first.returncode, first.stderr) == (3, "")
        assert f"SLOW UNKNOWN - {directory}: no answer within 1 s (worst of 2)" in first.stdout
        assert "SLOW OK - /: it answers" in first.stdout
        for _ in range(3):
            again = watching.resil(*words)
            assert again.returncode == 3 and f"SLOW UNKNOWN - {directory}: STUCK since " in again.stdout
            assert "SLOW OK - /: it answers" in again.stdout
        both = [start(watching, *words) for _ in range(2)]
        for process in both:
            assert process.wait(PATIENCE_S) == 3
            process.communicate()
        assert waiting_at(tmp_path) == 1
    directory.mkdir(exist_ok=True)
    watching.until(lambda: watching.resil(*words).returncode == 0)


def test_settings_on_a_hung_mount_end_as_unknown_and_leave_one_process(
    watching: Shell, hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("watch", "slow", "/", "--config", str(hung / "resil.toml"))
    first = watching.resil(*words)
    assert first.returncode == 3 and "no answer within 5 s" in first.stderr
    for name in ("slow", "--all"):
        again = watching.resil("watch", name, "--config", str(hung / "resil.toml"))
        assert again.returncode == 3 and "STUCK since" in again.stderr
    assert waiting_at(tmp_path) == 1


def test_a_state_directory_that_hangs_costs_no_verdict(watching: Shell, hung: Path) -> None:
    (watching.directory / "some").write_text("9")
    watching.settings(f'[run]\nstate_dir = "{hung}/state"\n[watch]\nstate_deadline_s = 1\n')
    for words in ("no answer within 1 s", "STUCK since"):
        said = watching.resil("watch", "licence", "some", "--explain")
        assert said.returncode == 0 and "LICENCE OK - some: 9 licences left" in said.stdout
        assert words in said.stdout


def test_every_command_ends_in_time_when_the_state_directory_hangs_and_names_it(
    watching: Shell, hung: Path, tmp_path: Path
) -> None:
    watching.settings(f'[run]\nstate_dir = "{hung}/state"\n[watch]\nstate_deadline_s = 1\n')
    started = time.monotonic()
    said = watching.resil("watch", "job", "--deadline", "2s", "--scheduler", "local")
    assert time.monotonic() - started < 20  # of the 75 s that the queue may take
    assert said.returncode == 3
    assert f"JOB UNKNOWN - queue of local: {hung}/state does not respond: no answer within 2 s" in said.stdout
    for words in (("status",), ("status", "--all"), ("logs",), ("kill",), ("watch", "--all", "--deadline", "2s")):
        said = watching.resil(*words)
        assert said.returncode == (3 if words[0] == "watch" else 75), words
        assert f"{hung}/state" in said.stdout + said.stderr, words
    assert time.monotonic() - started < 60
    assert waiting_at(tmp_path) <= 7  # one for each target, and one for the state directory


def test_a_fallback_directory_that_hangs_too_is_replaced_by_one_in_tmp(watching: Shell, hung: Path) -> None:
    (watching.directory / "some").write_text("0")
    watching.environment["XDG_STATE_HOME"] = f"{hung}/local"
    watching.settings(
        f'[run]\nstate_dir = "{hung}/state"\n[watch]\nstate_deadline_s = 1\n[alert]\nchannels = ["console"]\n'
        '[watch.licence]\nservers = ["some"]\n'
    )
    started = time.monotonic()
    said = watching.resil("watch", "licence")
    assert said.returncode == 2 and "notified console: 1 incident" in said.stderr
    saved = re.search(rf"alerts are saved in (/tmp/resil-{os.getuid()}/alerts-[0-9a-f]+)/", said.stderr)
    assert saved is not None, said.stderr
    shutil.rmtree(saved[1])
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(("options", "code"), [((), 2), (("--every", "1h"), 0)])  # 2: CRITICAL, of the licences
def test_sigterm_prints_and_sends_what_is_known_and_the_rest_is_unknown(
    watching: Shell, options: tuple[str, ...], code: int
) -> None:
    (watching.directory / "some").write_text("0")
    watching.settings('[watch]\ndeadline_s = 1000\nchecks = ["licence", "slow"]\n[watch.licence]\nservers = ["some"]\n'
                      '[watch.slow]\npaths = ["sleep", "/"]\n[alert]\nchannels = ["console"]\n')  # fmt: skip
    process = start(watching, "watch", "--all", *options)
    sleeping = watching.directory / "sleeping"
    watching.until(lambda: sleeping.exists() and sleeping.read_text().endswith("\n"))
    time.sleep(1)  # the other targets answer meanwhile
    process.terminate()
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, out + errors
    assert "LICENCE CRITICAL - some: 0 licences left" in out and "SLOW OK - /: it answers" in out
    assert "SLOW UNKNOWN - sleep: no answer before SIGTERM, after " in out
    assert "notified console: 1 incident" in errors


def test_a_terminal_shows_findings_while_others_are_awaited(watching: Shell) -> None:
    (watching.directory / "some").write_text("9")
    watching.settings('[watch]\ndeadline_s = 1000\nchecks = ["licence", "slow"]\n[watch.licence]\nservers = ["some"]\n'
                      '[watch.slow]\npaths = ["sleep"]\n')  # fmt: skip
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "resilience", "watch", "--all"], cwd=watching.directory, env=watching.environment,
        stdout=its, stderr=its,
    )  # fmt: skip
    os.close(its)
    seen = b""
    while b"9 licences left" not in seen:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # EIO: the process has closed its end
            pytest.fail(seen.decode())
    assert process.poll() is None and b"sleep" not in seen
    process.terminate()
    with contextlib.suppress(OSError):  # EIO: the process has closed its end
        while chunk := os.read(ours, 65536):
            seen += chunk
    assert process.wait(PATIENCE_S) == 3
    os.close(ours)
    assert b"no answer before SIGTERM" in seen and seen.count(b"VERDICT") == seen.count(b"9 licences left") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_look_and_its_children_within_two_seconds(watching: Shell, number: int) -> None:
    process = start(watching, "watch", "slow", "sleep", "--deadline", "1000s")
    sleeping = watching.directory / "sleeping"
    watching.until(lambda: sleeping.exists() and sleeping.read_text().endswith("\n"))
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (3 if number == signal.SIGTERM else 130)
    pid = int(sleeping.read_text())
    watching.until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_repeated_look_ends_cleanly_when_it_is_told_to(watching: Shell, number: int) -> None:
    (watching.directory / "some").write_text("9")
    process = start(watching, "watch", "licence", "some", "--every", "1s", "--json")
    assert process.stdout is not None
    assert process.stdout.readline() == "{\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


def test_a_repeated_look_takes_up_new_settings_and_survives_broken_ones(watching: Shell) -> None:
    (watching.directory / "some").write_text("3")
    watching.settings("[watch.licence]\nwarn_free = 1\n")
    process = start(watching, "watch", "licence", "some", "--every", "0.2s")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith("LICENCE OK")
    watching.settings("[watch.licence]\nwarn_free = 4\n")
    while not process.stdout.readline().startswith("LICENCE WARNING"):
        pass
    watching.settings("[watch.licence\n")
    assert "the previous settings stay in use" in process.stderr.readline()
    while not process.stdout.readline().startswith("LICENCE WARNING"):
        pass
    (watching.directory / "resil.toml").unlink()  # as when its file system is no longer mounted
    while "no longer exists; the previous settings stay in use" not in process.stderr.readline():
        pass
    while not process.stdout.readline().startswith("LICENCE WARNING"):
        pass
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_repeated_look_with_a_count_ends_with_the_last_verdict(watching: Shell) -> None:
    (watching.directory / "some").write_text("0")
    said = watching.resil("watch", "licence", "some", "--every", "0.1s", "--count", "3")
    assert said.returncode == 2 and said.stdout.count("LICENCE CRITICAL - some: 0 licences left |") == 3


def test_a_log_that_falls_silent_between_two_ticks_is_told_at_its_deadline(watching: Shell) -> None:
    log = watching.directory / "train.out"
    log.write_text("step 1 loss 2\nstep 2 loss 2\n")
    process = start(watching, "watch", "log", "train.out", "--timeout", "5s", "--every", "1h")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("LOG OK")
    assert process.stdout.readline().startswith("LOG CRITICAL")
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_everything_on_a_fresh_machine_without_configuration_is_a_useful_table(shell: Shell) -> None:
    said = shell.resil("watch", "--all")
    assert said.returncode in (0, 1, 2) and said.stderr == ""
    first, *rest = said.stdout.splitlines()
    assert first.startswith("RESIL ") and " in 8 watchdogs" in first and "used'=" in first
    names = {"ckpt", "cron", "fs", "inodes", "job", "log", "nodes", "ranks"}
    assert {line.partition(" ")[0].lower() for line in rest if not line.startswith(" ")} == names
    document = json.loads(shell.resil("watch", "--all", "--json").stdout)
    assert {report["check"] for report in document["reports"]} == names
    assert not list(shell.directory.iterdir())  # nothing is left in a directory that nobody made a project


def test_tab_completes_the_names_of_watchdogs(watching: Shell) -> None:
    watching.settings('[watch.scratch]\nkind = "fs"\n')
    script = {"COMP_WORDS": "resil watch s", "COMP_CWORD": "2", "_RESIL_COMPLETE": "complete_bash"}
    said = watching.resil(cwd=None, **script)
    assert {"scratch", "slow"} <= set(said.stdout.split()) and said.stderr == ""


def resident_kib(pid: int) -> int:
    fields = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line for line in fields.splitlines() if line.startswith("Rss")).split()[1])


@pytest.mark.parametrize(
    "ticks", [60, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200), pytest.mark.skipif(
        os.environ.get("RESIL_SOAK") != "1", reason="ten thousand ticks: set RESIL_SOAK=1")])]
)  # fmt: skip
def test_memory_does_not_drift_over_many_ticks(watching: Shell, ticks: int) -> None:
    (watching.directory / "some").write_text("9")
    process = start(watching, "watch", "licence", "some", "--every", "0.01s", "--no-alert")
    assert process.stdout is not None
    sizes = []
    for number in range(ticks):
        assert process.stdout.readline().startswith("LICENCE OK")
        if number in (ticks // 6, ticks - 1):
            sizes.append(resident_kib(process.pid))
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    print(f"{ticks} ticks: {sizes[0]} KiB, then {sizes[1]} KiB")
    assert sizes[1] - sizes[0] < 5 * 1024
