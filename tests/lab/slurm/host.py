"""What a test cluster takes from the machine: programs, ports, users, an interpreter that ordinary users can run."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.lab.slurm.processes import CGROUPS, HIERARCHIES

USERS = ("resil-alice", "resil-bob")
PROGRAMS = (
    "slurmctld",
    "slurmd",
    "sbatch",
    "squeue",
    "scontrol",
    "scancel",
    "sinfo",
    "munged",
    "useradd",
    "unshare",
)
HOW_TO_GET = "sudo apt-get install slurm-wlm munge (or sudo scripts/system-packages), then make test as root"
RELEASE = Path(os.environ["RESIL_TEST_SLURM"]) if os.environ.get("RESIL_TEST_SLURM") else None
"""Another release than this machine's, as scripts/slurm-release makes one: its programs and plugins are in `slurm`."""
PATH = os.pathsep.join(
    (
        *((str(RELEASE / "slurm"),) if RELEASE is not None else ()),
        *(os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
    )
)
REPOSITORY = Path(__file__).resolve().parents[3]

# Below the range the kernel gives to outgoing connections (ip_local_port_range starts at 32768).
FIRST_PORT, LAST_PORT, BLOCK = 21000, 31000, 50
LOCKS = Path("/run/resil-slurm")


def plugin_dir() -> str:
    """The line of slurm.conf and slurmdbd.conf that says where the plugins of another release are; mostly none."""
    return f"PluginDir={RELEASE}/slurm/plugins\n" if RELEASE is not None else ""


@cache
def release() -> tuple[int, int]:
    """The release of SLURM that is tested: (22, 5)."""
    said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, env={"PATH": PATH}, check=True).stdout
    major, minor = said.split()[-1].split(".")[:2]  # `slurm-wlm 22.05.8`
    return int(major), int(minor)


def requirements(more: tuple[str, ...] = ()) -> list[str]:
    """Return why a SLURM that needs `more` programs cannot be booted here, for a person; empty when it can."""
    reasons = []
    if not sys.platform.startswith("linux"):
        return ["SLURM needs Linux"]
    if os.geteuid() != 0:
        reasons.append("a cluster with several users needs root")
    missing = [program for program in PROGRAMS + more if shutil.which(program, path=PATH) is None]
    if missing:
        reasons.append(f"not installed: {', '.join(missing)}")
    return reasons


def choose_proctrack(wish: str) -> str:
    """Return "cgroup" where slurmd can track jobs by a version 1 freezer in a mount namespace, else "linuxproc".

    The two differ in who gets a signal: with cgroup, as on nearly every real site, SIGTERM reaches only the batch
    shell and each task's top process; with linuxproc every descendant.
    """
    if wish not in ("auto", "cgroup", "linuxproc"):
        raise ValueError(f"proctrack={wish!r}: choose auto, cgroup or linuxproc")
    if wish != "auto":
        return wish
    top = CGROUPS / "freezer"
    if not (top / "cgroup.procs").exists() or not os.access(top, os.W_OK):
        return "linuxproc"
    bind = f"mkdir -p {top}/resil-slurm && mount --bind {top}/resil-slurm {top}"
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", bind], capture_output=True, env={"PATH": PATH})
    return "cgroup" if tried.returncode == 0 else "linuxproc"


def hierarchies() -> tuple[str, ...]:
    """Return the cgroup hierarchies of this machine that slurmd is given."""
    return tuple(name for name in HIERARCHIES if (CGROUPS / name / "cgroup.procs").exists())


class Ports:
    """A block of loopback ports that no other cluster of ours takes while `lock` is open anywhere."""

    def __init__(self, count: int) -> None:
        LOCKS.mkdir(mode=0o700, exist_ok=True)
        for first in range(FIRST_PORT, LAST_PORT, BLOCK):
            lock = os.open(LOCKS / f"ports-{first}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            block = range(first, first + count)
            if _locked(lock) and all(map(_free, block)):
                self.lock, self.numbers = lock, block
                return
            os.close(lock)
        raise RuntimeError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT}")


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Say whether somebody takes connections on this loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def name() -> str:
    """Return this host's short name, as SLURM wants it."""
    return socket.gethostname().split(".")[0]


def ensure_users() -> None:
    """Create the two ordinary users where they are missing; they have no password and no home of their own."""
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    with open(LOCKS / "users", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two clusters may start at the same moment
        for user in USERS:
            try:
                pwd.getpwnam(user)
            except KeyError:
                subprocess.run(
                    ["useradd", "--no-create-home", "--user-group", "--shell", "/bin/bash", user],
                    check=True, capture_output=True, env={"PATH": PATH},
                )  # fmt: skip


def interpreter() -> str:
    """Return a Python of this minor version that ordinary users can run, or this one when there is none.

    A virtual environment often leads to an interpreter below /root, which is closed to everybody else.
    """
    command = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/local/bin/{command}", f"/usr/bin/{command}"):
        path = Path(os.path.realpath(candidate))
        # The way to the link counts as well: a virtual environment in a clone below /root leads out of it too late.
        if path.is_file() and is_open(path) and is_open(Path(candidate)):
            return candidate
    return sys.executable


def is_open(path: Path) -> bool:
    """Whether everybody may go to a path, through all the directories above it."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in (path, *path.parents))


RUNTIME = (
    *("typer", "jinja2", "markupsafe", "rich", "pygments", "markdown_it", "mdurl", "shellingham", "annotated_doc"),
    *("click", "typing_extensions.py"),
)
"""What `resil` imports of others; copied for the users when this clone is closed to them."""


def _copy_for_users(directory: Path) -> Path:
    """Copy the product and what it imports to where everybody may go."""
    directory.mkdir()
    for name in ("resilience", "slurm_templates", "cron"):
        shutil.copytree(REPOSITORY / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    packages = [Path(entry) for entry in sys.path if entry.endswith("-packages")]
    for source in (package / name for package in packages for name in RUNTIME):
        if source.is_dir():
            shutil.copytree(source, directory / source.name, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy2(source, directory)
    subprocess.run(["chmod", "-R", "a+rX", str(directory)], check=True)
    return directory


def write_interpreter(directory: Path) -> None:
    """Write `python`, `python3` and `resil` commands that work for every user, with what this process can import."""
    paths = [str(REPOSITORY), *(entry for entry in sys.path if entry.endswith("-packages"))]
    if not all(is_open(Path(path)) for path in paths):
        paths = [str(_copy_for_users(directory / "packages"))]
    python = directory / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{os.pathsep.join(paths)}${{PYTHONPATH:+:$PYTHONPATH}}"\nexport PYTHONPATH\n'
        f'exec {interpreter()} "$@"\n'
    )
    resil = directory / "resil"
    resil.write_text(f"#!{python}\nimport sys\nfrom resilience.cli.entry import main\nsys.exit(main())\n")
    for script in (python, resil):
        script.chmod(0o755)
    (directory / "python3").symlink_to(python)
