"""A FUSE server that passes every operation to the real directory, but for what its Disk refuses.

Standard library only. The protocol is that of linux/fuse.h, release 7.31, spoken on /dev/fuse (fuse(4)); constants and
layouts have the names from there. A node is an O_PATH descriptor of the real inode, so that hard links, renames and
files without a name stay what they are; nothing is remembered about names and attributes (time-outs of 0), so that
other nodes of a shared file system are seen at once. Locks are kept by the kernel: they hold among the processes of
this host. The server acts as whoever asks: permissions and owners of new files are those of the real file system.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

from resilience.inject.files.behaviour import CHANGE, DIRECTORY_BYTES, LOOK, READ, SYNC, WRITE
from resilience.inject.files.disk import Disk

THREADS = 16
"""So many operations are under way at once; a slow disk is slow for everybody, but not one after the other."""

_MAX_WRITE = 2**20
_IN = struct.Struct("=IIQQIII4x")  # len opcode unique nodeid uid gid pid
_OUT = struct.Struct("=IiQ")  # len error unique
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("=QQQQII")  # nodeid generation entry_valid attr_valid and their nanoseconds
_SETATTR = struct.Struct("=I4xQQQQQQIIIIIII4x")
_INIT_OUT = struct.Struct("=IIIIHHIIHHII24x")
_STATFS_OUT = struct.Struct("=QQQQQIII28x")
_DIRENT = struct.Struct("=QQII")  # ino off namelen type
_FLAGS = 1 << 0 | 1 << 5 | 1 << 12 | 1 << 18 | 1 << 22
"""FUSE_ASYNC_READ, BIG_WRITES, AUTO_INVAL_DATA, PARALLEL_DIROPS, MAX_PAGES."""
_FATTR_MODE, _FATTR_UID, _FATTR_GID, _FATTR_SIZE, _FATTR_FH = 1, 2, 4, 8, 64
_FATTR_ATIME, _FATTR_MTIME, _FATTR_ATIME_NOW, _FATTR_MTIME_NOW = 16, 32, 128, 256
_UTIME_NOW, _UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2  # utimensat(2)
_AT_FDCWD = -100
_SETGROUPS = {"x86_64": 116, "aarch64": 159}.get(platform.machine())
"""The number of the system call: it changes one thread, the function of the C library all of them."""
_libc = ctypes.CDLL(None, use_errno=True)


class Passthrough:
    """The server."""

    def __init__(self, device: int, real: int, disk: Disk) -> None:
        """Answer on `device`, an open /dev/fuse, for the directory whose O_PATH descriptor is `real`."""
        self._device = device
        self._disk = disk
        self._lock = threading.Lock()
        self._nodes: dict[int, list[int]] = {1: [real, 1]}  # nodeid: descriptor, lookups
        self._ids: dict[tuple[int, int], int] = {_identity(os.fstat(real)): 1}
        self._last = 1
        self._listings: dict[int, list[tuple[bytes, int, int]]] = {}
        self._thread = threading.local()
        self._me = (os.geteuid(), os.getegid())

    def start(self) -> list[threading.Thread]:
        """Start the threads that serve; they end when the kernel has let go of the file system."""
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        return threads

    def _serve(self) -> None:
        buffer = bytearray(_MAX_WRITE + 2**14)
        view = memoryview(buffer)
        while True:
            try:
                size = os.readv(self._device, [buffer])
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):  # the operation was interrupted
                    continue
                return  # ENODEV: unmounted, and the last file is closed
            _, opcode, unique, node, uid, gid, pid = _IN.unpack_from(buffer)
            name, kind = _OPERATIONS.get(opcode, ("", ""))
            body = view[_IN.size : size]
            answer: int | bytes | None
            try:
                if not name:
                    raise OSError(errno.ENOSYS, "")
                self._disk.refuse(kind)
                self._as(uid, gid, pid)
                answer = getattr(self, name)(node, body)
            except OSError as error:
                answer = -(error.errno or errno.EIO)
            except Exception:  # a fault of ours must not leave the asker waiting for ever
                answer = -errno.EIO
            if opcode not in (_FORGET, _BATCH_FORGET):
                self._answer(unique, answer)

    def _answer(self, unique: int, answer: int | bytes | None) -> None:
        error, data = (answer, b"") if isinstance(answer, int) else (0, answer or b"")
        with suppress(OSError):  # ENOENT: the asker was killed meanwhile
            os.writev(self._device, [_OUT.pack(_OUT.size + len(data), error, unique), data])

    # Who asks

    def _as(self, uid: int, gid: int, pid: int) -> None:
        """Act as the asker from here on (setfsuid(2) is of a thread). Only root can; others serve only themselves."""
        if self._me[0] != 0 or getattr(self._thread, "who", self._me) == (uid, gid) == self._me:
            return
        _libc.setfsuid(0)  # with its rights, so that the groups can be changed
        if _SETGROUPS is not None:
            groups = _groups_of(pid)
            _libc.syscall(_SETGROUPS, len(groups), (ctypes.c_uint32 * len(groups))(*groups))
        _libc.setfsgid(gid)
        _libc.setfsuid(uid)
        self._thread.who = (uid, gid)

    # Nodes

    def _path(self, node: int) -> str:
        return f"/proc/self/fd/{self._nodes[node][0]}"

    def _entry(self, parent: int, name: str) -> bytes:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._nodes[parent][0])
        status = os.fstat(descriptor)
        with self._lock:
            node = self._ids.get(_identity(status))
            if node is None:
                self._last = node = self._last + 1
                self._ids[_identity(status)] = node
                self._nodes[node] = [descriptor, 1]
            else:
                self._nodes[node][1] += 1
                os.close(descriptor)
        return _ENTRY.pack(node, 0, 0, 0, 0, 0) + _attr(status)

    def _forget(self, node: int, count: int) -> None:
        with self._lock:
            if node == 1 or node not in self._nodes:
                return
            self._nodes[node][1] -= count
            if self._nodes[node][1] <= 0:
                descriptor = self._nodes.pop(node)[0]
                self._ids.pop(_identity(os.fstat(descriptor)), None)
                os.close(descriptor)

    def _freed(self, node: int, name: str) -> int:
        """Return how many bytes the removal of a name gives back: none if the file has another."""
        with suppress(OSError):
            status = os.stat(name, dir_fd=self._nodes[node][0], follow_symlinks=False)
            if status.st_nlink == 1 and stat.S_ISREG(status.st_mode):
                return status.st_size
        return 0

    # Operations: each takes the node and the message's body, and returns the answer's body or a negative errno

    def init(self, node: int, body: memoryview) -> bytes:
        _, _, readahead, flags = struct.unpack_from("=IIII", body)
        pages = _MAX_WRITE // 4096 if flags & 1 << 22 else 32
        return _INIT_OUT.pack(7, 31, readahead, flags & _FLAGS, THREADS, THREADS, pages * 4096, 1, pages, 0, 0, 0)

    def lookup(self, node: int, body: memoryview) -> bytes:
        return self._entry(node, _names(body)[0])

    def forget(self, node: int, body: memoryview) -> None:
        self._forget(node, struct.unpack_from("=Q", body)[0])

    def batch_forget(self, node: int, body: memoryview) -> None:
        (count,) = struct.unpack_from("=I4x", body)
        for each, times in struct.iter_unpack("=QQ", body[8 : 8 + 16 * count]):
            self._forget(each, times)

    def getattr(self, node: int, body: memoryview) -> bytes:
        return b"\0" * 16 + _attr(os.fstat(self._nodes[node][0]))

    def setattr(self, node: int, body: memoryview) -> bytes:
        valid, fh, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid = _SETATTR.unpack_from(body)
        path = self._path(node)
        if valid & _FATTR_MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & (_FATTR_UID | _FATTR_GID):
            os.chown(path, uid if valid & _FATTR_UID else -1, gid if valid & _FATTR_GID else -1)
        if valid & _FATTR_SIZE:
            before = os.stat(path).st_size
            os.truncate(fh if valid & _FATTR_FH else path, size)
            self._disk.give_back(before - size)
        if valid & (_FATTR_ATIME | _FATTR_MTIME):
            nanoseconds = [
                _UTIME_OMIT if not valid & given else _UTIME_NOW if valid & now else value
                for given, now, value in (
                    (_FATTR_ATIME, _FATTR_ATIME_NOW, atime_ns),
                    (_FATTR_MTIME, _FATTR_MTIME_NOW, mtime_ns),
                )
            ]
            times = struct.pack("@llll", atime, nanoseconds[0], mtime, nanoseconds[1])
            _check(_libc.utimensat(_AT_FDCWD, os.fsencode(path), times, 0))
        return self.getattr(node, body)

    def readlink(self, node: int, body: memoryview) -> bytes:
        return os.fsencode(os.readlink("", dir_fd=self._nodes[node][0]))

    def symlink(self, node: int, body: memoryview) -> bytes:
        name, target = _names(body)
        os.symlink(target, name, dir_fd=self._nodes[node][0])
        return self._entry(node, name)

    def mknod(self, node: int, body: memoryview) -> bytes:
        mode, device = struct.unpack_from("=II", body)
        (name,) = _names(body[16:])
        os.mknod(name, mode, device, dir_fd=self._nodes[node][0])
        return self._entry(node, name)

    def mkdir(self, node: int, body: memoryview) -> bytes:
        (mode,) = struct.unpack_from("=I", body)
        (name,) = _names(body[8:])
        self._disk.take(DIRECTORY_BYTES)
        os.mkdir(name, stat.S_IMODE(mode), dir_fd=self._nodes[node][0])
        return self._entry(node, name)

    def unlink(self, node: int, body: memoryview) -> None:
        (name,) = _names(body)
        freed = self._freed(node, name)
        os.unlink(name, dir_fd=self._nodes[node][0])
        self._disk.give_back(freed)

    def rmdir(self, node: int, body: memoryview) -> None:
        os.rmdir(_names(body)[0], dir_fd=self._nodes[node][0])
        self._disk.give_back(DIRECTORY_BYTES)

    def rename(self, node: int, body: memoryview) -> None:
        self._rename(node, struct.unpack_from("=Q", body)[0], 0, body[8:])

    def rename2(self, node: int, body: memoryview) -> None:
        target, flags = struct.unpack_from("=QI", body)
        self._rename(node, target, flags, body[16:])

    def _rename(self, node: int, target: int, flags: int, body: memoryview) -> None:
        old, new = _names(body)
        freed = self._freed(target, new) if flags == 0 else 0
        source_fd, target_fd = self._nodes[node][0], self._nodes[target][0]
        _check(_libc.renameat2(source_fd, os.fsencode(old), target_fd, os.fsencode(new), flags))
        self._disk.give_back(freed)

    def link(self, node: int, body: memoryview) -> bytes:
        (old,) = struct.unpack_from("=Q", body)
        (name,) = _names(body[8:])
        os.link(self._path(old), name, dst_dir_fd=self._nodes[node][0], follow_symlinks=True)
        return self._entry(node, name)

    def open(self, node: int, body: memoryview) -> bytes:
        (flags,) = struct.unpack_from("=I", body)
        return struct.pack("=QII", os.open(self._path(node), _flags(flags)), 0, 0)

    def create(self, node: int, body: memoryview) -> bytes:
        flags, mode = struct.unpack_from("=II", body)
        (name,) = _names(body[16:])
        descriptor = os.open(name, _flags(flags) | os.O_CREAT, stat.S_IMODE(mode), dir_fd=self._nodes[node][0])
        try:
            return self._entry(node, name) + struct.pack("=QII", descriptor, 0, 0)
        except OSError:
            os.close(descriptor)
            raise

    def read(self, node: int, body: memoryview) -> bytes:
        fh, offset, size = struct.unpack_from("=QQI", body)
        data = os.pread(fh, size, offset)
        self._disk.move(len(data))
        return data

    def write(self, node: int, body: memoryview) -> bytes:
        fh, offset, size, cached = struct.unpack_from("=QQII", body)
        data = body[40 : 40 + self._disk.take_for(fh, offset, size)]
        self._disk.move(len(data))
        if not (cached & 1 and fcntl.fcntl(fh, fcntl.F_GETFL) & os.O_APPEND):
            return struct.pack("=I4x", os.pwrite(fh, data, offset))
        # A page of a memory map (FUSE_WRITE_CACHE) has its place; pwrite(2) with O_APPEND would append it.
        with open(f"/proc/self/fd/{fh}", "rb+", buffering=0) as file:
            return struct.pack("=I4x", os.pwrite(file.fileno(), data, offset))

    def statfs(self, node: int, body: memoryview) -> bytes:
        real = os.fstatvfs(self._nodes[1][0])
        free, available = (
            self._disk.free(one * real.f_frsize) // real.f_frsize for one in (real.f_bfree, real.f_bavail)
        )
        sizes = (real.f_bsize, real.f_namemax, real.f_frsize)
        return _STATFS_OUT.pack(real.f_blocks, free, available, real.f_files, real.f_ffree, *sizes)

    def release(self, node: int, body: memoryview) -> None:
        (fh,) = struct.unpack_from("=Q", body)
        self._listings.pop(fh, None)
        os.close(fh)

    def flush(self, node: int, body: memoryview) -> None:
        os.close(os.dup(struct.unpack_from("=Q", body)[0]))  # some file systems tell errors at close(2) only

    def fsync(self, node: int, body: memoryview) -> None:
        fh, flags = struct.unpack_from("=QI", body)
        (os.fdatasync if flags & 1 else os.fsync)(fh)

    def opendir(self, node: int, body: memoryview) -> bytes:
        return struct.pack("=QII", os.open(self._path(node), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), 0, 0)

    def readdir(self, node: int, body: memoryview) -> bytes:
        fh, offset, size = struct.unpack_from("=QQI", body)
        if offset == 0 or fh not in self._listings:
            self._listings[fh] = list(_listing(fh))
        page = bytearray()
        for number, (name, inode, kind) in enumerate(self._listings[fh][offset:], offset + 1):
            record = _DIRENT.pack(inode, number, len(name), kind) + name
            record += bytes(-len(record) % 8)
            if len(page) + len(record) > size:
                break
            page += record
        return bytes(page)

    def access(self, node: int, body: memoryview) -> int:
        (mask,) = struct.unpack_from("=I", body)
        _check(_libc.faccessat(_AT_FDCWD, os.fsencode(self._path(node)), mask, 0x200))  # AT_EACCESS
        return 0

    def fallocate(self, node: int, body: memoryview) -> None:
        fh, offset, length, mode = struct.unpack_from("=QQQI", body)
        if not mode & 2:  # FALLOC_FL_PUNCH_HOLE
            self._disk.take(max(0, offset + length - os.fstat(fh).st_size))
        _check(_libc.fallocate(fh, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))


_FORGET, _BATCH_FORGET = 2, 42
_OPERATIONS = {
    1: ("lookup", LOOK), _FORGET: ("forget", ""), 3: ("getattr", LOOK), 4: ("setattr", CHANGE), 5: ("readlink", LOOK),
    6: ("symlink", CHANGE), 8: ("mknod", CHANGE), 9: ("mkdir", CHANGE), 10: ("unlink", CHANGE), 11: ("rmdir", CHANGE),
    12: ("rename", CHANGE), 13: ("link", CHANGE), 14: ("open", LOOK), 15: ("read", READ), 16: ("write", WRITE),
    17: ("statfs", LOOK), 18: ("release", ""), 20: ("fsync", SYNC), 25: ("flush", ""), 26: ("init", ""),
    27: ("opendir", LOOK), 28: ("readdir", LOOK), 29: ("release", ""), 30: ("fsync", SYNC), 34: ("access", LOOK),
    35: ("create", CHANGE), _BATCH_FORGET: ("batch_forget", ""), 43: ("fallocate", WRITE), 45: ("rename2", CHANGE),
}  # fmt: skip
"""Number in linux/fuse.h: method of Passthrough and the class of the operation. Whatever is missing answers ENOSYS."""


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _attr(status: os.stat_result) -> bytes:
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    seconds, nanoseconds = (tuple(time // 10**9 for time in times), tuple(time % 10**9 for time in times))
    numbers = (status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_rdev & 0xFFFFFFFF)
    unsigned = (second % 2**64 for second in seconds)
    return _ATTR.pack(
        status.st_ino, status.st_size, status.st_blocks, *unsigned, *nanoseconds, *numbers, status.st_blksize, 0
    )


def _names(body: memoryview) -> list[str]:
    return [os.fsdecode(name) for name in bytes(body).split(b"\0")[:-1]]


def _flags(flags: int) -> int:
    """Return the flags for the real file: buffers here are not aligned as O_DIRECT wants them."""
    return flags & ~(os.O_DIRECT | os.O_NOFOLLOW) | os.O_CLOEXEC


def _listing(directory: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, inode and type of each entry; types are those of readdir(3)."""
    yield from ((b".", 1, 4), (b"..", 1, 4))
    with os.scandir(directory) as entries:
        for entry in entries:
            yield os.fsencode(entry.name), entry.inode(), _type(entry)


def _type(entry: os.DirEntry[str]) -> int:
    """Return the type that was read with the name; 0: unknown, and who needs it asks (and needs the right to)."""
    with suppress(OSError):
        if entry.is_symlink():
            return 10
        return 4 if entry.is_dir(follow_symlinks=False) else 8 if entry.is_file(follow_symlinks=False) else 0
    return 0


def _groups_of(pid: int) -> list[int]:
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("Groups:"):
                return [int(group) for group in line.split()[1:]]
    return []


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "")
