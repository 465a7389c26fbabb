#!/usr/bin/env python3
"""Makes programs really fail, and writes their logs for tests/attempts/corpus/produced.txt.

    PYTHONPATH=. python scripts/produce_failures.py [--only NAME] > tests/attempts/corpus/produced.txt

As root on Linux with torch, jax and gcc: full and read-only tmpfs, a small /dev/shm and a memory cgroup (v1) are made
and removed. The label of each case and the expression of its deciding line were written with the case, not taken from
what the classifier said.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

CASES = Path(__file__).resolve().parents[1] / "tests" / "attempts" / "corpus" / "failures.toml"
PYTHON = sys.executable
LONGEST = 120
"""Lines of a log that are kept, from its end."""
HEAD = """import os, sys, time
def steps(number=4, first=100):
    for step in range(first, first + number):
        print(f"step {step} | loss {3.2 - step / 1000:.4f} | lr 3.0e-04 | 212 ms", flush=True)
"""
GLOO = (
    HEAD
    + """
import datetime, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=int(os.environ.get("WAIT_S", "20"))))
rank = dist.get_rank()
one = torch.ones(4)
dist.all_reduce(one)
if rank == 0: steps()
"""
)
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


OOM = """import os, time
if os.environ["RANK"] == "1":
    memory = bytearray(10**9)
    memory[::4096] = memory[::4096]
time.sleep(9)
"""


@dataclass(frozen=True)
class Case:
    """One failure.

    Attributes:
        name: unique.
        label: a FailureClass.
        key: expression of the line that decides; empty: only the exit code does.
        code: of train.py.
        how: python, ranks (under torchrun) or bash.
        where: "", full, read_only, shm or memory: the directory it runs in, or its limit.
    """

    name: str
    label: str
    key: str
    code: str
    how: str = "python"
    where: str = ""


def cases() -> list[Case]:
    """Return the cases of the file beside the corpus."""
    heads = {"python": HEAD, "ranks": GLOO, "bash": ""}
    return [
        Case(
            one["name"], one["class"], one.get("key", ""), heads[how] + one["code"].rstrip("\n"), how,
            one.get("where", ""),
        )
        for one in tomllib.loads(CASES.read_text())["case"]
        for how in (one.get("how", "python"),)
    ]  # fmt: skip


def run(case: Case) -> tuple[str, int, bool]:
    """Return the log, the exit code, and whether the kernel killed for memory."""
    directory = Path(tempfile.mkdtemp(prefix="resil-fail-"))
    place, cgroup, before = directory / "work", None, []
    place.mkdir()
    try:
        (place / "train.py").write_text(case.code.replace("{python}", PYTHON))
        (place / "ok.py").write_text("print('step 1')\n")
        (place / "oom.py").write_text(OOM)
        if case.where in ("full", "read_only"):
            disk = directory / "disk"
            disk.mkdir()
            options = "size=256k,nr_inodes=64" if case.where == "full" else "ro"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True)
        elif case.where == "shm":
            before = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"', "sh"]
        elif case.where == "memory":
            cgroup = Path("/sys/fs/cgroup/memory") / directory.name
            cgroup.mkdir()
            limit = 700 if "{torchrun}" in case.code else 100
            (cgroup / "memory.limit_in_bytes").write_text(f"{limit}M")
            before = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh"]
        where = directory / "disk" if case.where in ("full", "read_only") else place
        if case.how == "bash":
            torchrun = " ".join(TORCHRUN)
            (place / "job.sh").write_text(case.code.replace("{python}", PYTHON).replace("{torchrun}", torchrun))
            command = ["bash", str(place / "job.sh")]
        elif case.how == "ranks":
            command = [*TORCHRUN, str(place / "train.py")]
        else:
            command = [PYTHON, str(place / "train.py")]
        environment = {
            "PATH": os.environ["PATH"], "HOME": "/root", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
            "WAIT_S": "5" if case.label == "collective_timeout" else "20", "JAX_PLATFORMS": "cpu",
        }  # fmt: skip
        done = subprocess.run(
            [*before, *command], cwd=where, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=120, check=False,
        )  # fmt: skip
        oom = cgroup is not None and "oom_kill 0" not in (cgroup / "memory.oom_control").read_text()
        text = done.stdout.decode("utf-8", "backslashreplace")
        text = text.replace(str(place), "/home/ada/run").replace(str(directory), "/home/ada")
        text = re.sub(r"[^\s\"']*/\.venv|/opt/\S*?venv\S*?(?=/lib/python|/bin/)", "/opt/venv", text)
        text = text.replace(f"{sys.base_prefix}/lib/", "/usr/local/lib/")  # the standard library
        return text, done.returncode if done.returncode >= 0 else 128 - done.returncode, oom
    finally:
        subprocess.run(["umount", "-q", "-l", directory / "disk"], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(directory, ignore_errors=True)
        if cgroup is not None:
            cgroup.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAMES", help="separated by commas")
    wanted = parser.parse_args()
    print("# Logs of programs that really failed.\n")
    for case in cases():
        if wanted.only and case.name not in wanted.only.split(","):
            continue
        try:
            text, code, oom = run(case)
        except subprocess.TimeoutExpired:
            print(f"{case.name}: too slow", file=sys.stderr)
            continue
        lines = text.splitlines()[-LONGEST:]
        matching = [at for at, line in enumerate(lines) if case.key and re.search(case.key, line)]
        at = next(
            (at for at in matching if not lines[at].startswith(("  ", "[rank1]:   ", "[rank0]:   "))),
            matching[0] if matching else None,
        )
        if (case.key and at is None) or code == 0:
            print(f"{case.name}: exit code {code}, no line with {case.key!r}:\n{text[-900:]}", file=sys.stderr)
            continue
        if at is not None:
            lines[at] = f"» {lines[at]}"
        options = f"exit={code}" + (" oom_kill=yes" if oom else "")
        print(f"%%%% {case.label} {case.name} {options} | produced by scripts/produce_failures.py")
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
