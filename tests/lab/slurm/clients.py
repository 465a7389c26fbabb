"""What users and root do on a cluster: run commands as somebody, submit, look, wait."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.slurm import host
from tests.lab.slurm.configuration import Layout
from tests.lab.slurm.processes import PATIENCE_S, until

# What would make a client ask another cluster, or print in another way.
SCRUBBED = (
    "PYTEST_",  # a job is no test: the guard ends no test by force
    "SLURM",
    "SBATCH_",
    "SQUEUE_",
    "SINFO_",
    "SACCT_",
    "SALLOC_",
    "SCANCEL_",
    "SCONTROL_",
    "SRUN_",
    "PMI",
)


class CommandFailed(subprocess.CalledProcessError):
    """A client's failure that says in a test's report what the client said."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stdout}{self.stderr}"


class Clients:
    """The programs of SLURM, asked as one of two ordinary users or as root, on the cluster in `root`."""

    users: tuple[str, str] = host.USERS

    def __init__(self) -> None:
        self.root = Path("/nonexistent")

    @property
    def layout(self) -> Layout:
        return Layout(self.root)

    @property
    def shared(self) -> Path:
        """A directory that everybody may write to: the shared file system."""
        return self.layout.shared

    @property
    def python(self) -> Path:
        """An interpreter that every user can run and that imports what this one does; first on the users' PATH."""
        return self.layout.bin / "python"

    def home(self, user: str) -> Path:
        return self.layout.homes / user

    @property
    def env(self) -> dict[str, str]:
        """What a client needs in its environment to find this cluster; merge it over os.environ."""
        return {"SLURM_CONF": str(self.layout.conf), "PATH": f"{self.layout.bin}{os.pathsep}{host.PATH}"}

    def environment(self, user: str | None = None) -> dict[str, str]:
        """Return the whole environment of a client: this process's, scrubbed of other clusters, and the user's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SCRUBBED)} | self.env
        if user is not None:
            kept |= {"HOME": str(self.home(user)), "USER": user, "LOGNAME": user, "SHELL": "/bin/bash"}
            for name in (
                "XDG_CONFIG_HOME",
                "XDG_STATE_HOME",
                "XDG_CACHE_HOME",
                "XDG_RUNTIME_DIR",
                "MAIL",
                "PWD",
            ):
                kept.pop(name, None)
        return kept

    def popen(
        self,
        argv: Sequence[str | os.PathLike[str]],
        user: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> subprocess.Popen[str]:
        """Start a command as that user (root when none), by default in the user's home, in a session of its own."""
        if user is not None:
            entry = pwd.getpwnam(user)
            groups = os.getgrouplist(user, entry.pw_gid)
            kwargs |= {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
        where = cwd if cwd is not None else self.home(user) if user is not None else self.shared
        defaults = {"text": True, "umask": 0o022, "start_new_session": True}
        whole = self.environment(user) | dict(env or {})
        process: subprocess.Popen[str] = subprocess.Popen(argv, cwd=where, env=whole, **(defaults | kwargs))
        return process

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        user: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = PATIENCE_S,
        check: bool = False,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as that user and return what it said; its whole session is killed at the time-out."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        pipe = subprocess.PIPE
        with self.popen(argv, user, cwd, env, stdin=stdin, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(input, timeout)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check and done.returncode:
            raise CommandFailed(done.returncode, done.args, out, err)
        return done

    def sbatch(self, script: str, *args: str, user: str | None = None) -> str:
        """Submit a script's text with these options (by default as the first user) and return the job's id."""
        done = self.run(["sbatch", "--parsable", *args], user or self.users[0], input=script, check=True)
        return done.stdout.strip().split(";")[0]

    def squeue(self, fmt: str, *args: str) -> list[str]:
        """Return squeue's lines in this format, finished jobs included, all users'."""
        return self.run(["squeue", "-h", "-t", "all", "-o", fmt, *args], check=True).stdout.splitlines()

    def job_state(self, job_id: str) -> str:
        """Return a job's state by its long name; "" if unknown; an array's different states, comma-separated."""
        done = self.run(["squeue", "-h", "-t", "all", "-o", "%T", "-j", job_id])
        if done.returncode and "Invalid job id" not in done.stderr:
            raise CommandFailed(done.returncode, done.args, done.stdout, done.stderr)
        return ",".join(sorted(set(done.stdout.split())))

    def wait_for(self, job_id: str, states: str | Collection[str]) -> str:
        """Wait until all of a job (every array task) is in one of these states; return what job_state says then."""
        wanted = {states} if isinstance(states, str) else set(states)
        seen = ""

        def there() -> bool:
            nonlocal seen
            seen = self.job_state(job_id)
            return seen != "" and set(seen.split(",")) <= wanted

        try:
            until(there, f"job {job_id} to be {' or '.join(sorted(wanted))}", every_s=0.1)
        except TimeoutError as error:
            shown = self.run(["scontrol", "show", "job", job_id]).stdout
            raise TimeoutError(f"{error}; it is {seen or 'unknown'}\n{shown}") from None
        return seen

    def drain(self, node: str, reason: str = "test") -> None:
        self._update(f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        self._update(f"nodename={node}", "state=resume")

    def _update(self, *words: str) -> None:
        self.run(["scontrol", "update", *words], check=True)

    def node_states(self) -> dict[str, str]:
        """Return each node's state as sinfo's %T says it, e.g. idle, drained, down*."""
        out = self.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%N %T"], check=True).stdout
        words = out.split()
        return dict(zip(words[::2], words[1::2], strict=True))
