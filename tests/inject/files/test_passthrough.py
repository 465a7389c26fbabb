"""Without a fault, the mounted directory is as the real one: the same answers to the same operations."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.inject.files.behaviour import Behaviour
from tests.inject.files.faulty import faulty, needs_mount

pytestmark = needs_mount
soak = pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="a campaign: RESIL_SOAK=1")


class Tree:
    """A directory to which random operations are done; open files remain open from one to the next."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[int] = []

    def do(self, choose: random.Random) -> object:
        """Do one operation and return its result, or the name of its error."""
        operation = choose.choice(OPERATIONS)
        try:
            return operation.__name__, operation(self, choose)
        except OSError as error:
            return operation.__name__, errno.errorcode[error.errno or 0]

    def some(self, choose: random.Random) -> Path:
        """A path that may be there."""
        return self.root.joinpath(*(choose.choice("abcd") for _ in range(choose.choice((1, 1, 2, 3)))))

    def file(self, choose: random.Random) -> int:
        """An open file, or none."""
        if not self.files:
            raise OSError(errno.EBADF, "")
        return choose.choice(self.files)

    def open(self, choose: random.Random) -> None:
        flags = choose.choice((os.O_RDONLY, os.O_RDWR, os.O_WRONLY))
        flags |= choose.choice(
            (0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC, os.O_APPEND, os.O_TRUNC)
        )
        flags |= choose.choice((0, 0, os.O_NOFOLLOW, os.O_DIRECTORY))
        path, mode = self.some(choose), choose.choice((0o600, 0o644, 0o400))
        self.files.append(os.open(path, flags, mode))

    def close(self, choose: random.Random) -> None:
        file = self.file(choose)
        self.files.remove(file)
        os.close(file)

    def write(self, choose: random.Random) -> object:
        data = choose.randbytes(choose.choice((1, 100, 5000, 300_000)))
        where = choose.choice((0, 10, 4096, 100_000))
        file = self.file(choose)
        return os.pwrite(file, data, where) if choose.random() < 0.6 else os.write(file, data)

    def read(self, choose: random.Random) -> object:
        where = choose.choice((0, 10, 4096, 100_000))
        return os.pread(self.file(choose), choose.choice((1, 5000, 500_000)), where)

    def map(self, choose: random.Random) -> object:
        where, value = choose.choice((0, 5000)), choose.randrange(256)
        file = self.file(choose)
        size = os.fstat(file).st_size
        if not stat.S_ISREG(os.fstat(file).st_mode) or size <= where:
            return None
        with mmap.mmap(file, size) as memory:
            memory[where] = value
            return bytes(memory[:10_000])

    def truncate(self, choose: random.Random) -> None:
        size = choose.choice((0, 5, 5000, 200_000))
        os.truncate(self.file(choose) if choose.random() < 0.5 else self.some(choose), size)

    def allocate(self, choose: random.Random) -> None:
        size = choose.choice((1, 10_000, 400_000))
        os.posix_fallocate(self.file(choose), 0, size)

    def sync(self, choose: random.Random) -> None:
        choose.choice((os.fsync, os.fdatasync))(self.file(choose))

    def mkdir(self, choose: random.Random) -> None:
        os.mkdir(self.some(choose), choose.choice((0o777, 0o755, 0o2770)))

    def rmdir(self, choose: random.Random) -> None:
        os.rmdir(self.some(choose))

    def unlink(self, choose: random.Random) -> None:
        os.unlink(self.some(choose))

    def rename(self, choose: random.Random) -> None:
        os.rename(self.some(choose), self.some(choose))

    def link(self, choose: random.Random) -> None:
        os.link(self.some(choose), self.some(choose), follow_symlinks=False)

    def symlink(self, choose: random.Random) -> None:
        os.symlink(choose.choice("abcd"), self.some(choose))

    def readlink(self, choose: random.Random) -> object:
        return os.readlink(self.some(choose))

    def list(self, choose: random.Random) -> object:
        with os.scandir(self.some(choose)) as entries:
            return sorted((entry.name, entry.is_dir(), entry.is_symlink()) for entry in entries)

    def stat(self, choose: random.Random) -> object:
        status = os.stat(self.some(choose), follow_symlinks=choose.random() < 0.5)
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        return status.st_mode, status.st_nlink, status.st_uid, status.st_gid, size

    def chmod(self, choose: random.Random) -> None:
        os.chmod(self.some(choose), choose.choice((0o600, 0o755, 0o4711, 0o1777)))

    def chown(self, choose: random.Random) -> None:
        os.chown(self.some(choose), -1, os.getegid(), follow_symlinks=choose.random() < 0.5)

    def touch(self, choose: random.Random) -> object:
        path, times = self.some(choose), (choose.randrange(2**33) * 1000, choose.randrange(2**33) * 1000)
        os.utime(path, ns=times)
        status = os.stat(path)
        return status.st_mtime_ns, status.st_atime_ns

    def permitted(self, choose: random.Random) -> object:
        return os.access(self.some(choose), choose.choice((os.F_OK, os.R_OK, os.W_OK, os.X_OK)))

    def lock(self, choose: random.Random) -> None:
        how = choose.choice((fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB, fcntl.LOCK_UN))
        choose.choice((fcntl.flock, fcntl.lockf))(self.file(choose), how)


OPERATIONS: list[Callable[[Tree, random.Random], object]] = [
    value for name, value in vars(Tree).items() if name[0] != "_" and name not in ("do", "some", "file")
]


def contents(root: Path) -> list[tuple[object, ...]]:
    """Everything below a directory: names, modes, links and data."""
    found: list[tuple[object, ...]] = []
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        data: object = None
        if stat.S_ISREG(status.st_mode):
            data = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            data = path.readlink()
        size = None if path.is_dir() else status.st_size
        found.append((str(path.relative_to(root)), status.st_mode, status.st_nlink, size, data))
    return found


def compare(tmp_path: Path, seeds: range, operations: int) -> None:
    """Do the same operations to a plain directory and to one below a healthy server."""
    for name in ("plain", "mounted"):
        (tmp_path / name).mkdir()
    with faulty(tmp_path / "mounted", Behaviour()):
        for seed in seeds:
            plain, mounted = (tmp_path / name / str(seed) for name in ("plain", "mounted"))
            trees = []
            for root in (plain, mounted):
                root.mkdir()
                trees.append(Tree(root))
            first, second = random.Random(seed), random.Random(seed)
            try:
                for number in range(operations):
                    results = trees[0].do(first), trees[1].do(second)
                    assert results[0] == results[1], f"seed {seed}, operation {number}: {str(results)[:300]}"
                assert contents(plain) == contents(mounted), f"seed {seed}"
            finally:
                for file in (*trees[0].files, *trees[1].files):
                    os.close(file)
    for seed in seeds:  # and so it is below
        assert contents(tmp_path / "plain" / str(seed)) == contents(tmp_path / "mounted" / str(seed))


def test_without_a_fault_all_operations_have_the_answers_of_the_real_directory(tmp_path: Path) -> None:
    compare(tmp_path, range(3), 400)


@pytest.mark.soak
@soak
def test_without_a_fault_all_operations_have_the_answers_of_the_real_directory_for_long(tmp_path: Path) -> None:
    compare(tmp_path, range(1000, 1300), 1500)
