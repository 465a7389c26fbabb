"""Stands before SLURM's commands for resil's own calls while a fault of the scheduler is injected.

A program of its own, started as `python -IS slurm_command.py ORDER NAME ARGUMENTS`, by the scripts that
faults/scheduler.py writes. After the time of the fault it is the real command again. Standard library only.
"""

# pathlib costs milliseconds at each call of a command.
# ruff: noqa: PTH102, PTH104, PTH118, PTH120, PTH208

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from zlib import crc32

DOWN, HUNG = "Unable to contact slurm controller (connect failure)", "Socket timed out on send/recv operation"
GARBAGE = "\x1f7|gpt|RUNN\x00\x1b[2J<html>502 Bad Gateway\n"
MESSAGE_TIMEOUT_S = 10.0
PREFIX = "slurm_load_jobs error: "
PREFIXES = {
    "sbatch": "sbatch: error: Batch job submission failed: ",
    "sinfo": "slurm_load_partitions: ",
    "scancel": "scancel: error: ",
    "srun": "srun: error: Unable to allocate resources: ",
    "sacct": "sacct: error: ",
}
"""What the commands print before an error (22.05); the others print PREFIX."""
QUERIES = ("squeue", "sinfo", "sacct", "sdiag", "sshare", "sprio")


def main(order_file: str, name: str, arguments: list[str]) -> int:
    """Do what the order says, or become the real command."""
    try:
        with open(order_file) as file:
            order = json.load(file)
    except FileNotFoundError:  # the fault was undone as this was started
        order = {"until": 0.0, "mode": "", "bin": os.path.dirname(order_file)}
    left_s = order["until"] - time.time()
    path = ":".join(one for one in os.environ.get("PATH", os.defpath).split(":") if one != order["bin"])
    real = shutil.which(name, path=path)
    if real is None:
        sys.stderr.write(f"{name}: command not found\n")
        return 127
    mode = order["mode"]
    if left_s <= 0 or "--version" in arguments or "-V" in arguments:
        os.execv(real, [real, *arguments])
    if mode == "garbage":
        sys.stdout.write(GARBAGE)
        return 0
    if mode == "hang":
        time.sleep(min(MESSAGE_TIMEOUT_S, left_s))
        if left_s <= MESSAGE_TIMEOUT_S:
            os.execv(real, [real, *arguments])
    if mode in ("hang", "down"):
        error = DOWN if mode == "down" else HUNG
        sys.stderr.write(f"{PREFIXES.get(name, PREFIX)}{error}\n")
        return 1
    is_query = name in QUERIES or (name == "scontrol" and "show" in arguments)
    if mode != "lag" or not is_query:
        os.execv(real, [real, *arguments])
    try:
        return old_answer(order, real, [name, *arguments])
    except FileNotFoundError:  # undone meanwhile
        os.execv(real, [real, *arguments])


def old_answer(order: dict[str, object], real: str, words: list[str]) -> int:
    """Ask, keep the answer, and print the newest one that is old enough, else the oldest."""
    directory = os.path.join(str(order["bin"]), f".answers-{crc32(json.dumps(words).encode()):08x}")
    with suppress(FileExistsError):
        os.mkdir(directory, mode=0o700)  # not the one above it, which goes when the fault is undone
    done = subprocess.run([real, *words[1:]], capture_output=True, text=True, errors="surrogateescape", check=False)
    now = time.time()
    path = os.path.join(directory, f"{now:.3f}")
    with open(f"{path}.tmp", "w") as file:
        json.dump([done.returncode, done.stdout, done.stderr], file)
    os.rename(f"{path}.tmp", path)
    times = sorted(float(one) for one in os.listdir(directory) if not one.endswith(".tmp"))
    old = [one for one in times if one <= now - float(str(order["lag_s"]))]
    with open(os.path.join(directory, f"{old[-1] if old else times[0]:.3f}")) as file:
        code, out, err = json.load(file)
    sys.stdout.write(out)
    sys.stderr.write(err)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
