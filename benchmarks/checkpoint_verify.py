"""What it costs to know that checkpoints are good: digests, structure, the newest of a thousand, a resume."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._peers import REPOSITORY
from benchmarks.measure import (
    BenchmarkError,
    Claim,
    Options,
    Program,
    Report,
    Row,
    interleave,
    interpreter_environment,
    timed,
)
from resilience.checkpoints import Store, fence
from resilience.checkpoints.commit import commit
from resilience.checkpoints.digest import CHUNK_BYTES, best_algorithm, digest_file
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import part_name
from resilience.checkpoints.verify import verify

MIB, QUICK_MIB = 1024, 128
MANY, QUICK_MANY = 1_000, 100
BARE, RESUME = 1.1, 1.15
LOAD = "import torch; torch.load({path!r})"
VERIFIED_LOAD = """
from resilience.checkpoints import Store
checkpoint = Store({store!r}).latest()
import torch; torch.load(checkpoint.path / "state.pt")
"""
SAVE = "import sys, torch; torch.save({{str(n): torch.randn(2**23) for n in range({count})}}, {path!r})"


def run(options: Options) -> Report:
    """Measure on one large checkpoint, and on many small ones."""
    rows, notes = _digests(options)
    many, claim = _many(options)
    return Report("what it costs to be sure", (*rows, *many, *_resume(options)), (notes,), (claim,))


def _digests(options: Options) -> tuple[list[Row], str]:
    path = options.scratch / "large.bin"
    block = os.urandom(2**20)
    with path.open("wb") as file:
        for _ in range(QUICK_MIB if options.quick else MIB):
            file.write(block)
        os.fsync(file.fileno())
    algorithm = best_algorithm()
    sha256sum = Program(["/usr/bin/sha256sum", str(path)], interpreter_environment())
    taken = interleave(
        {
            "best": timed(lambda: digest_file(path, algorithm)),
            "crc32": timed(lambda: digest_file(path, "crc32")),
            "bare": timed(lambda: _bare(path)),
            "sha256sum": sha256sum,
        },
        min(options.samples, 11),
    )
    path.unlink()
    rows = [
        Row(f"digest by {algorithm}", taken["best"], "the library alone", taken["bare"], BARE),
        Row(f"digest by {algorithm}", taken["best"], "sha256sum", taken["sha256sum"], 0.5),
        Row("digest by crc32", taken["crc32"], "sha256sum", taken["sha256sum"], 0.5),
    ]
    return rows, f"digests of {QUICK_MIB if options.quick else MIB:,} MiB in the page cache"


def _bare(path: Path) -> str:
    """What the library takes, with the least around it."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    if best_algorithm() == "crc32":
        import zlib

        value = 0
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                value = zlib.crc32(buffer[:count], value)
        return f"{value:08x}"
    import xxhash

    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _many(options: Options) -> tuple[list[Row], Claim]:
    """A thousand checkpoints of eight files each."""
    count = QUICK_MANY if options.quick else MANY
    store = StoreDirectory.create(options.scratch / "many")
    fence.begin(store, 0)
    for step in range(1, count + 1):
        name = part_name(step, 0, 1)
        (store.path / name).mkdir()
        for rank in range(8):
            (store.path / name / f"rank-{rank}.bin").write_bytes(b"x" * 1000)
        commit(store, name, {})
    checkpoints = store.checkpoints()

    def check(level: str) -> Callable[[], None]:
        def look() -> None:
            if not all(verify(one, level).is_good for one in checkpoints):
                raise BenchmarkError("a checkpoint is damaged")

        return look

    def latest() -> None:
        found = Store(store.path).latest()
        if found is None or found.step != count:
            raise BenchmarkError(f"found {found}")

    def naive() -> None:
        """The newest by name, as training scripts look for it: nothing is known of what is in it."""
        steps = [path for path in store.path.iterdir() if path.name.startswith("step-") and path.is_dir()]
        if not max(steps, key=lambda path: int(path.name[5:])).exists():
            raise BenchmarkError("nothing found")

    taken = interleave(
        {
            "structure": timed(check("structure")),
            "digest": timed(check("digest")),
            "walk": timed(lambda: _walk(store.path)),
            "latest": timed(latest),
            "naive": timed(naive),
        },
        min(options.samples, 7),
    )
    rows = [
        Row(f"structural verify of {count:,} checkpoints", taken["structure"], "os.walk and lstat", taken["walk"]),
        Row(f"verify of {count:,} by digest", taken["digest"], "os.walk and lstat", taken["walk"]),
        Row(f"latest() of {count:,}", taken["latest"], "the newest by name, unseen", taken["naive"]),
    ]
    each_ms = taken["structure"].median / count * 1e3
    return rows, Claim("structural verify of one, 8 files", each_ms, float("nan"), "ms")


def _walk(root: Path) -> int:
    total = 0
    for directory, _, names in os.walk(root):
        total += sum(os.lstat(os.path.join(directory, name)).st_size for name in names)  # noqa: PTH118 - as it is done
    return total


def _resume(options: Options) -> list[Row]:
    """Whole processes: import, look for the newest, load it; from the page cache, and from the disk."""
    store = StoreDirectory.create(options.scratch / "resume")
    fence.begin(store, 0)
    part = store.path / part_name(1, 0, 1)
    part.mkdir()
    count = (QUICK_MIB if options.quick else MIB) // 32
    env = interpreter_environment(PYTHONPATH=str(REPOSITORY), HOME=str(options.scratch))
    script = SAVE.format(count=count, path=str(part / "state.pt"))
    if subprocess.run([sys.executable, "-c", script], env=env, capture_output=True).returncode != 0:
        return []  # without PyTorch
    commit(store, part.name, {})
    path = store.checkpoints()[-1].path / "state.pt"

    def forget() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        time.sleep(0.1)

    bare = [sys.executable, "-c", LOAD.format(path=str(path))]
    verified = [sys.executable, "-c", VERIFIED_LOAD.format(store=str(store.path))]
    taken = interleave(
        {
            "bare": Program(bare, env),
            "verified": Program(verified, env),
            "bare, cold": Program(bare, env, forget),
            "verified, cold": Program(verified, env, forget),
        },
        min(options.samples, 5),
    )
    return [
        Row("start to verified load", taken["verified"], "start to load", taken["bare"], RESUME),
        Row("the same from the disk", taken["verified, cold"], "start to load", taken["bare, cold"], RESUME),
    ]
