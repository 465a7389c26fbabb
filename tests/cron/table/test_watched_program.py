"""Whatever a program does, its run ends, in time, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from resilience.cron.records import Outcome
from tests.cron.table.runs import Runs, entry, quick, runs, until_true, wait_for

__all__ = ["quick", "runs"]


@pytest.mark.parametrize(
    ("script", "ok", "outcome", "code", "summary"),
    [
        ("echo fine", (0,), Outcome.DONE, 0, "fine"),
        ("true", (0,), Outcome.DONE, 0, ""),
        ("echo one; echo two >&2; exit 3", (0,), Outcome.FAILED, 3, "exit code 3: two"),
        ("echo WARN; exit 1", (0, 1, 2, 3), Outcome.DONE, 1, "exit code 1: WARN"),
        ("exit 4", (0, 1, 2, 3), Outcome.FAILED, 4, "exit code 4"),
        ("kill -SEGV $$", (0,), Outcome.FAILED, 139, "killed by SIGSEGV"),
        ("echo last; kill -KILL $$", (0,), Outcome.FAILED, 137, "killed by SIGKILL (out of memory?): last"),
        ("kill -TERM $$", (143,), Outcome.DONE, 143, "killed by SIGTERM"),
    ],
)
def test_the_end_of_a_program_is_described(
    runs: Runs, script: str, ok: tuple[int, ...], outcome: Outcome, code: int, summary: str
) -> None:
    record = runs.sh(script, ok=ok)
    assert (record.outcome, record.exit_code, record.summary) == (outcome, code, summary)
    assert runs.history() == (record,)
    assert record.started is not None and record.started <= record.time
    assert runs.active() == []


def test_a_program_sees_nothing_of_the_scheduler(runs: Runs) -> None:
    secret = os.open("/etc/hostname", os.O_RDONLY)  # without O_CLOEXEC would be its fault; even so
    os.set_inheritable(secret, True)
    try:
        record = runs.sh(
            "ls /proc/self/fd | wc -w; cat; umask; pwd; env\n"
            "read -r pid name state parent group session rest < /proc/$$/stat; echo $group $session $pid"
        )
    finally:
        os.close(secret)
    said = runs.words(record).decode().splitlines()
    assert said[0] == "4"  # standard streams, and the one of ls itself
    mask = os.umask(0)
    os.umask(mask)
    assert said[1] == f"{mask:04o}"  # cat came to the end of its input at once
    assert said[2] == str(runs.project)
    names = {line.partition("=")[0] for line in said[3:-1]}
    assert names <= {"PATH", "HOME", "PWD", "SHLVL", "_", "OLDPWD"}
    group, session, pid = said[-1].split()
    assert group == pid != session != str(os.getsid(0))


@pytest.mark.parametrize(
    ("group", "mask", "program"), [("", 0o027, b"0027"), ("", 0o077, b"0077"), ("team", 0o077, b"0007")]
)
def test_a_program_has_the_users_umask_and_that_of_a_group_shares_what_it_makes(
    runs: Runs, group: str, mask: int, program: bytes
) -> None:
    runs.directory.group = group
    before = os.umask(mask)
    try:
        assert runs.words(runs.sh("umask")) == program + b"\n"
    finally:
        os.umask(before)


def test_signals_are_as_a_login_shell_has_them(runs: Runs) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        record = runs.sh("grep -E 'Sig(Blk|Ign)' /proc/self/status")
    finally:
        signal.signal(signal.SIGQUIT, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    own_of_libc = 3 << 31  # signals 32 and 33 (nptl(7)): nobody can set them, and something before us may have
    masks = [int(line.split()[1], 16) & ~own_of_libc for line in runs.words(record).splitlines()]
    assert masks == [0, 0]


def test_a_hung_run_that_ignores_sigterm_is_killed_with_its_group(runs: Runs) -> None:
    record = runs.sh("trap '' TERM; echo waiting; sleep 87601 & sleep 87601; sleep 87601", timeout_s=0.3)
    assert record.outcome is Outcome.TIMEOUT
    assert record.summary == "ended after its timeout of 0.3 s: waiting"
    assert record.exit_code == 137
    assert runs.left("87601") == []


def test_a_run_has_time_to_clean_up_after_sigterm(runs: Runs) -> None:
    record = runs.sh("trap 'echo cleaned up; exit 0' TERM; sleep 60 & wait", timeout_s=0.3)
    assert (record.outcome, record.exit_code) == (Outcome.TIMEOUT, 0)
    assert record.summary.endswith(": cleaned up")


def test_a_stopped_process_is_ended_too(runs: Runs) -> None:
    record = runs.sh("kill -STOP $$", timeout_s=0.3)
    assert (record.outcome, record.exit_code) == (Outcome.TIMEOUT, 143)


def test_a_process_outside_its_group_does_not_escape_the_timeout(runs: Runs) -> None:
    script = "setsid sh -c 'trap \"\" TERM; sleep 87602; sleep 87602' & sleep 87602"
    record = runs.sh(script, timeout_s=0.3)
    assert record.outcome is Outcome.TIMEOUT
    assert runs.left("87602") == []


def test_a_leftover_daemon_is_killed_and_reported(runs: Runs) -> None:
    script = "(setsid sh -c 'sleep 87603' &) & echo started"
    record = runs.sh(script)
    assert record.outcome is Outcome.DONE and record.exit_code == 0
    assert "leftover process" in record.summary and record.summary.endswith(": started")
    assert runs.left("87603") == []


def test_a_daemon_that_ignores_sigterm_keeps_no_run_from_ending(runs: Runs) -> None:
    daemon = (
        "import os, signal, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('daemon is up', flush=True)\n"  # it keeps the pipe open
        "time.sleep(87604)\n"
    )
    record = runs.run(sys.executable, "-c", daemon, "87604")
    assert record.outcome is Outcome.DONE
    assert record.summary == "killed 1 leftover process: daemon is up"
    assert runs.left("87604") == []


def test_a_leftover_process_that_ends_soon_is_not_killed(runs: Runs) -> None:
    record = runs.sh("(trap 'echo disturbed' TERM; sleep 0.1; echo last words) & echo first")
    assert runs.words(record) == b"first\nlast words\n"
    assert record.summary == "last words"


def test_no_zombie_and_no_orphan_is_left(runs: Runs) -> None:
    script = (
        "import os, time\n"
        "for _ in range(30):\n"
        "    if not os.fork(): os._exit(0)\n"  # zombies: nobody waits for them
        "for _ in range(10):\n"
        "    if not os.fork():\n"
        "        if not os.fork(): time.sleep(0.2); os._exit(0)\n"  # orphans
        "        os._exit(0)\n"
        "print(os.getppid(), flush=True)\n"
        "time.sleep(0.3)\n"
        "open('go', 'w').write('x')\n"
        "time.sleep(1)\n"
    )
    started = runs.start(entry(sys.executable, "-c", script))
    wait_for(runs.project / "go")
    # What still lives has a living parent; the supervisor itself keeps no zombie.
    until_true(lambda: not zombies_of(started.pid), "the supervisor has no zombie")
    (record,) = runs.ends()
    assert record.outcome is Outcome.DONE and record.summary == str(started.pid)


def zombies_of(pid: int) -> list[str]:
    """The children of a process that nobody has reaped."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    states = {}
    for child in children:
        try:
            states[child] = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
    return [child for child, state in states.items() if state == "Z"]


def test_a_program_that_forks_faster_than_it_is_killed_is_ended(runs: Runs) -> None:
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n"
        "    if os.fork(): time.sleep(0.02); os._exit(0)\n"  # always another one, never for long, in no group of ours
        "    os.setsid()\n"
        "    time.sleep(0.02)\n"
    )
    record = runs.run(sys.executable, "-c", script, "87605")
    assert record.outcome is Outcome.DONE and "leftover process" in record.summary
    until_true(lambda: runs.left("87605") == [], "none is left")


def test_two_million_lines_cost_neither_memory_nor_disk(runs: Runs) -> None:
    record = runs.sh("yes 'a line as programs write them' | head -n 2000000; echo the end", slot=5)
    assert record.outcome is Outcome.DONE and record.summary == "the end"
    words = runs.words(record)
    assert len(words) <= 65536 + 200
    assert words.startswith(b"a line as") and words.endswith(b"programs write them\nthe end\n")
    assert b" lines (57.2 MiB) left out ...\n" in words


def test_while_it_writes_memory_and_file_are_bounded(runs: Runs) -> None:
    started = runs.start(entry("/bin/sh", "-c", "yes 'a line as programs write them'", timeout_s=1.5))
    file, largest_kib, largest_bytes = runs.directory.path / "output" / "crontab+it" / f"{SLOT_NAME}.txt", 0, 0
    begin_kib = memory_kib(started.pid)
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        largest_kib = max(largest_kib, memory_kib(started.pid))
        largest_bytes = max(largest_bytes, file.stat().st_size if file.exists() else 0)
        time.sleep(0.05)
    (record,) = runs.ends()
    assert record.outcome is Outcome.TIMEOUT
    assert 0 < largest_bytes <= 65536
    assert largest_kib < begin_kib + 20_000


SLOT_NAME = 1_800_000_000


def memory_kib(pid: int) -> int:
    """What a process holds in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (r"printf 'a\0b\377\376\n'", b"a\0b\xff\xfe\n"),
        (r"printf '10%%\r20%%\r100%%\n'", b"10%\r20%\r100%\n"),
        ("printf 'no line end'", b"no line end"),
        ("echo before; exec >&- 2>&-; sleep 0.2; echo lost", b"before\n"),
        ("cat; echo read to the end; read line || echo nothing there", b"read to the end\nnothing there\n"),
    ],
)
def test_words_are_kept_as_they_were_written(runs: Runs, script: str, words: bytes) -> None:
    assert runs.words(runs.sh(script)) == words


def test_a_huge_line_without_an_end_is_kept_in_part(runs: Runs) -> None:
    record = runs.sh("head -c 50000000 /dev/zero | tr '\\0' x")
    words = runs.words(record)
    assert len(words) <= 65536 + 100 and b"MiB left out" in words
    assert record.summary == "x" * 199 + "…"
