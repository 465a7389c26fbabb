"""What a node tells beside its guards: py-spy, NCCL's RAS and the kernel's log, each bounded; one task per node."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from resilience.ranks import node as module
from resilience.ranks import ras
from resilience.ranks.node import kernel_lines, look, parse_looks, ras_address
from tests.ranks.test_ras import nccl, report, server

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC).timestamp()
LOG = """\
2026-11-21T10:00:00,000000+00:00 NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.
2026-11-23T10:00:00,000000+00:00 NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.
2026-11-23T10:00:01,000000+00:00 eth0: link becomes ready
2026-11-23T13:00:02+0200 n2 kernel: INFO: task python:4711 blocked for more than 122 seconds.
2026-11-23T11:30:00,000000+00:00 oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=4711
[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, of a dmesg without times
"""


def program(path: Path, name: str, text: str) -> None:
    (path / name).write_text(f"#!/bin/sh\n{text}\n")
    (path / name).chmod(0o755)


def test_lines_of_the_kernel_that_may_explain_a_hang_are_kept_for_a_day() -> None:
    found = kernel_lines(LOG, NOW)
    assert [line[:13] for line in found] == ["2026-11-23T10", "2026-11-23T13", "2026-11-23T11"]
    assert len(kernel_lines(LOG * 20, NOW)) == module.KERNEL_LINES


@pytest.mark.parametrize(
    ("line", "tells"),
    [
        ("rcu: INFO: rcu_sched self-detected stall on CPU", 1),
        ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", 1),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", 1),
        ("Command line: quiet rcupdate.rcu_cpu_stall_suppress=1 panic=1", 0),
    ],
)
def test_a_stall_of_the_kernel_is_told_and_not_its_setting(line: str, tells: int) -> None:
    assert len(kernel_lines(f"2026-11-23T11:59:00,000000+00:00 {line}\n", NOW)) == tells


def test_a_log_that_users_may_not_read_is_unknown_and_the_journal_is_asked(tmp_path: Path) -> None:
    environ = {"PATH": f"{tmp_path}:/bin"}
    program(tmp_path, "dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    program(tmp_path, "journalctl", "exit 1")
    assert look("n1", environ).kernel is None
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    program(tmp_path, "journalctl", f"echo '{stamp} n1 kernel: nfs: server fs1 not responding, still trying'")
    (line,) = look("n1", environ).kernel or ()
    assert line.endswith("nfs: server fs1 not responding, still trying")


def test_programs_that_hang_are_ended_and_the_rest_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PY_SPY_S", "KERNEL_S"):
        monkeypatch.setattr(module, name, 0.3)
    for name in ("py-spy", "dmesg", "journalctl"):
        program(tmp_path, name, "exec sleep 60")
    began = time.monotonic()
    found = look("n1", {"PATH": f"{tmp_path}:/bin"}, silent=[os.getpid()])
    assert time.monotonic() - began < 3.0
    assert (found.kernel, found.stacks) == (None, {})
    assert "did not end within 0.3 s" in found.unread[os.getpid()]


def test_ras_is_asked_where_the_training_says_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "LOOKS_S", 0.05)
    assert ras_address([2**22 + 1], {"NCCL_RAS_ADDR": "localhost:1"}) == "localhost:1"
    assert ras_address([], {}) == "localhost:28028"
    with server(nccl(report(5, 4)), nccl(report(5, 4))) as address:
        environ = {"NCCL_RAS_ADDR": address, "PATH": os.defpath}
        with subprocess.Popen(["sleep", "60"], env=environ) as training:
            try:
                found = look("n1", {"PATH": "/nowhere"}, pids=[training.pid], ras=True)
            finally:
                training.kill()
    assert [one.members[0].rank for one in found.signals] == [1]


def test_a_task_answers_for_its_host_among_other_output(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path), "SLURMD_NODENAME": "n7", "PYTHONPATH": os.pathsep.join(sys.path)}
    program(tmp_path, "py-spy", "exit 3")
    order: Any = {"n7": {"pids": [1], "silent": [1], "ras": True}, "n8": {}}
    environ["NCCL_RAS_ADDR"] = "localhost:1"
    done = subprocess.run(
        module.task_command(order), env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    (found,) = parse_looks(["welcome to n7", "{}", "[1]", '{"host": 1}', *done.stdout.splitlines()])
    assert (found.host, found.stacks, found.unread, found.signals) == ("n7", {}, {1: "no answer"}, ())
    assert found.kernel is None
