"""`resil watch fs --top` against `du -s`: a tree of a million files, the first time, from the disk, and unchanged.

Each scan is a call in a process of its own that has imported what it needs, as `du` is; the whole command line is a row
besides. A tree takes a minute to make and longer to delete, so there is one for each run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._peers import REPOSITORY
from benchmarks.measure import (
    BenchmarkError,
    Options,
    Report,
    Row,
    Sample,
    interleave,
    interpreter_environment,
    run_process,
)

TOPS, SUBS, QUICK_SUBS = 50, 100, 5
FILES, QUICK_FILES = 1_000_000, 50_000
WARM, COLD, UNCHANGED = 1.0, 0.75, 1 / 30
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
COLD_SAMPLES = 3

SCANNER = """\
import sys, time
from pathlib import Path
import resilience.base.mounts
from resilience.watch.scan.scan import scan
for line in sys.stdin:
    root, memory = line.split()
    began = time.perf_counter()
    found = scan(Path(root), None if memory == "-" else Path(memory), now=time.time())
    took_s = time.perf_counter() - began
    print(took_s, found.totals.files[0], found.totals.blocks[0] // 2, found.read, flush=True)
"""

NAIVE = """\
import os, sys, time
for root in map(str.strip, sys.stdin):
    began = time.perf_counter()
    blocks = files = 0
    for directory, _, names in os.walk(root):
        blocks += os.lstat(directory).st_blocks
        for name in names:
            blocks += os.lstat(os.path.join(directory, name)).st_blocks
            files += 1
    print(time.perf_counter() - began, files, blocks // 2, 0, flush=True)
"""


def run(options: Options) -> Report:
    """Make a tree and time them on it."""
    files, subs = (QUICK_FILES, QUICK_SUBS) if options.quick else (FILES, SUBS)
    make_tree(options.scratch / "tree", files, subs)
    time.sleep(3.5)  # what has changed just now is read again: it may change within the same tick
    return measure(options.scratch / "tree", options.scratch / "memory", options)


def measure(root: Path, memory: Path, options: Options) -> Report:
    """Time them in turn: du, this scan, os.walk with lstat, and a scan of what has not changed.

    A small tree has no targets: starting a second process takes as long as what it then has to do.
    """
    env = interpreter_environment(PYTHONPATH=str(REPOSITORY), HOME=str(memory))
    command = [sys.executable, "-m", "resilience", "watch", "fs", "--top", str(root)]
    du = shutil.which("du") or "du"
    kib = int(subprocess.run([du, "-s", root], capture_output=True, text=True, check=True).stdout.split()[0])
    files = sum(len(names) for _, _, names in os.walk(root))
    expected = (files, kib)
    warm_target, cold_target, unchanged_target = (None, None, None) if options.quick else (WARM, COLD, UNCHANGED)
    with _Talker(SCANNER, env) as scanner, _Talker(NAIVE, env) as naive:
        scanner.ask(f"{root} {memory}", expected)
        samples: dict[str, Sample] = {
            "du": lambda: run_process([du, "-s", str(root)], env),
            "scan": lambda: scanner.ask(f"{root} -", expected),
            "naive": lambda: naive.ask(str(root), expected),
            "unchanged": lambda: scanner.ask(f"{root} {memory}", expected, read=0),
            "command": lambda: run_process(command, env | {"XDG_CACHE_HOME": str(memory)}),
        }
        warm = interleave(samples, max(3, min(options.samples, 7)))
        rows = [
            Row("scan, warm", warm["scan"], "du -s", warm["du"], warm_target),
            Row("scan again, unchanged", warm["unchanged"], "du -s", warm["du"], unchanged_target),
            Row("scan, warm", warm["scan"], "os.walk and lstat", warm["naive"]),
            Row("resil watch fs --top, unchanged", warm["command"], "du -s", warm["du"]),
        ]
        notes = [f"{files:,} files, {kib // 1024:,} MiB"]
        if _may_drop_caches():
            from_disk = {name: _from_the_disk(samples[name]) for name in ("du", "scan", "unchanged")}
            cold = interleave(from_disk, COLD_SAMPLES, warm_ups=0)
            rows += [
                Row("scan, cold", cold["scan"], "du -s, cold", cold["du"], cold_target),
                Row("scan again, unchanged, cold", cold["unchanged"], "du -s, cold", cold["du"]),
            ]
        else:
            notes.append("cold: not measured; dropping the kernel's caches needs root")
    return Report("who filled it, against du", tuple(rows), tuple(notes))


def make_tree(root: Path, files: int, subs: int) -> None:
    """As many small files as wanted, in 50 directories of so many directories."""
    each = files // (TOPS * subs)
    for top in range(TOPS):
        for sub in range(subs):
            directory = root / f"run{top:02d}" / f"logs{sub:03d}"
            directory.mkdir(parents=True)
            opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            for number in range(each):
                file = os.open(f"task_{number:05d}.out", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=opened)
                if number % 10 == 0:
                    os.write(file, b"step 1\n" * 16)
                os.close(file)
            os.close(opened)


class _Talker:
    """A process that does what a line says and answers with a line: its start is not part of the time."""

    def __init__(self, program: str, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def __enter__(self) -> _Talker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate("")

    def ask(self, line: str, expected: tuple[int, int], read: int | None = None) -> float:
        """Have it done; return the seconds. Raise BenchmarkError if the result is not what du says."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer or (int(answer[1]), int(answer[2])) != expected:
            raise BenchmarkError(f"found {answer[1:3]}, not {expected}: {line}")
        if read is not None and int(answer[3]) != read:
            raise BenchmarkError(f"read {answer[3]} directories again, not {read}")
        return float(answer[0])


def _may_drop_caches() -> bool:
    return os.geteuid() == 0 and os.access(DROP_CACHES, os.W_OK)


def _from_the_disk(sample: Callable[[], float]) -> Sample:
    """As it is when nothing of the tree is in memory."""

    def cold() -> float:
        os.sync()
        DROP_CACHES.write_text("3\n")
        return sample()

    return cold
