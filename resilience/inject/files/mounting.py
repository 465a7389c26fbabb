"""Mounting a FUSE file system over a directory, and taking it away: as root with mount(2), else by fusermount3(1)."""

from __future__ import annotations

import array
import ctypes
import errno
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from resilience.base.mounts import Mount, current_mounts, parse_mountinfo
from resilience.errors import ResilError

TYPE = "fuse.resil"
"""The type of our mounts in /proc/self/mountinfo: `mount -t fuse.resil` lists them."""

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MNT_DETACH, _CLONE_NEWNS = 2, 0x20000
_FUSERMOUNT_S = 20.0


def why_not() -> str:
    """Return why this process cannot mount a FUSE file system that the other processes of this host see, or nothing."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    if os.geteuid() != 0 and fusermount() is None:
        return "neither fusermount3 nor fusermount is installed, and this is not root"
    return ""


def fusermount() -> str | None:
    """Return the program by which users mount; None: there is none."""
    return shutil.which("fusermount3") or shutil.which("fusermount")


def mount(directory: Path, name: str, *, read_only: bool) -> int:
    """Mount over a directory and return the open /dev/fuse; nothing there is answered until a server reads it.

    `name` is shown as the device, by df(1) for instance. Raise ResilError if it is not permitted.
    """
    return (_mount if os.geteuid() == 0 else _fusermount)(directory, name, read_only)


def unmount(directory: Path, name: str) -> None:
    """Take the file system of this name away if it is there, lazily: open files remain until they are closed.

    Raise ResilError if that fails.
    """
    if mounted_at(directory, current_mounts(), name) is None:
        return
    if os.geteuid() == 0:
        try:
            _detach(directory, name)
        except OSError as error:
            raise ResilError(f"cannot unmount {directory}: {error.strerror}", hint=_by_hand(directory)) from None
        _unmount_elsewhere(name)
        return
    done = _run([fusermount() or "fusermount3", "-u", "-z", "--", str(directory)])
    if done:
        raise ResilError(f"cannot unmount {directory}: {done}", hint=_by_hand(directory))


def mounted_at(directory: Path, mounts: Iterable[Mount], name: str = "") -> Mount | None:
    """Return our mount on a directory, if it is the topmost one there, and of this name if there is one. Pure."""
    here = [mount for mount in mounts if mount.point == str(directory)]
    return here[-1] if here and here[-1].type == TYPE and name in ("", here[-1].source) else None


def _mount(directory: Path, name: str, read_only: bool) -> int:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mode = stat.S_IFMT(directory.stat().st_mode)
    data = f"fd={device},rootmode={mode:o},user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if read_only else 0)
    if libc.mount(name.encode(), os.fsencode(directory), TYPE.encode(), flags, data.encode()) != 0:
        error = ctypes.get_errno()
        os.close(device)
        raise ResilError(f"cannot mount over {directory}: {os.strerror(error)}")
    return device


def _fusermount(directory: Path, name: str, read_only: bool) -> int:
    """Have fusermount3 mount; it sends the open /dev/fuse through a socket, as libfuse's lib/mount.c has it."""
    program = fusermount() or "fusermount3"
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, its:
        env = {**os.environ, "_FUSE_COMMFD": str(its.fileno())}
        argv = [
            program,
            "-o",
            f"nosuid,nodev,fsname={name},subtype=resil{',ro' if read_only else ''}",
            "--",
            str(directory),
        ]
        said = _run(argv, env=env, keep=its.fileno())
        its.close()
        if said:
            raise ResilError(f"cannot mount over {directory}: {said}")
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            device = array.array("i", data[:4])[0]
            os.set_inheritable(device, False)
            return device
    raise ResilError(f"cannot mount over {directory}: {program} sent no descriptor")


def _unmount_elsewhere(name: str) -> None:
    """Unmount it in the mount namespaces that were made meanwhile, of containers and services: they have copied it.

    Where this is not permitted, or fails, the server goes on for them.
    """
    done = {os.readlink("/proc/self/ns/mnt")}  # noqa: PTH115 - no path
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            text = os.fsdecode((process / "mountinfo").read_bytes())
            for mount in parse_mountinfo(text) if name in text else ():
                namespace = os.readlink(process / "ns/mnt")  # noqa: PTH115
                if mount.type == TYPE and mount.source == name and namespace not in done:
                    done.add(namespace)
                    _detach_in(process / "ns/mnt", Path(mount.point), name)


def _detach(directory: Path, name: str, proc: str = "/proc/self") -> None:
    """Unmount what this process sees there if it is the file system of this name. By a descriptor: by the path another
    process may have been faster, and the file system below would go. `proc`: this process in /proc."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with open(f"{proc}/fdinfo/{descriptor}") as file:
            number = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
        with open(f"{proc}/mountinfo") as file:
            here = parse_mountinfo("".join(line for line in file if line.split()[0] == number))
        libc = ctypes.CDLL(None, use_errno=True)
        is_ours = any(mount.type == TYPE and mount.source == name for mount in here)
        failed = is_ours and libc.umount2(f"{proc}/fd/{descriptor}".encode(), _MNT_DETACH) != 0
        if failed and (code := ctypes.get_errno()) != errno.EINVAL:  # that is: another process was faster
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)


def _detach_in(namespace: Path, directory: Path, name: str) -> None:
    """Do that in another mount namespace, by a child: its /proc may be another one."""
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            own, there = os.open("/proc/self", os.O_PATH), os.open(namespace, os.O_RDONLY)
            if ctypes.CDLL(None).setns(there, _CLONE_NEWNS) == 0:
                os.fchdir(own)
                _detach(directory, name, ".")
        os._exit(0)
    os.waitpid(child, 0)


def _run(argv: list[str], *, env: dict[str, str] | None = None, keep: int | None = None) -> str:
    """Run it; return what went wrong, or nothing."""
    try:
        done = subprocess.run(
            argv, env=env, pass_fds=() if keep is None else (keep,), stdin=subprocess.DEVNULL, timeout=_FUSERMOUNT_S,
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"{argv[0]} ended with {done.returncode}"


def _by_hand(directory: Path) -> str:
    return f"umount -l {directory}, or fusermount3 -uz {directory}"
