"""Daemons of SLURM are found by their names, ended, and started again under them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from resilience.inject.daemons import end, find_daemons
from resilience.inject.holding import send

REPOSITORY = Path(__file__).parents[2]
AGAIN = "import json, sys; from resilience.inject.daemons import start_again; start_again(json.loads(sys.argv[1]))"


def test_a_daemon_whose_name_is_a_link_is_found_again_after_it_was_started_again(tmp_path: Path) -> None:
    """Debian's slurmd is a link to slurmd-wlm."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy(sleep, tmp_path / "slurmd-wlm")
    (tmp_path / "slurmd").symlink_to("slurmd-wlm")
    conf = str(tmp_path / "slurm.conf")
    environ = {"PATH": str(tmp_path), "SLURM_CONF": conf}
    with subprocess.Popen(["slurmd", "600"], executable=tmp_path / "slurmd", env=environ) as process:
        try:
            (before,) = find_daemons("slurmd", conf)
            assert before.pid == process.pid
        finally:
            process.kill()
    try:
        for _ in range(2):  # the second one finds it
            subprocess.run([sys.executable, "-c", AGAIN, json.dumps(before)], cwd=REPOSITORY, check=True, timeout=120)
            (after,) = find_daemons("slurmd", conf)
        assert after.pid != before.pid and after.argv == before.argv
        assert after.argv == (str(tmp_path / "slurmd"), "600")
        end([(after.pid, after.ticks)])
        assert find_daemons("slurmd", conf) == []
    finally:
        for name in ("slurmd", "slurmd-wlm"):
            send(signal.SIGKILL, [(one.pid, one.ticks) for one in find_daemons(name, conf)])
