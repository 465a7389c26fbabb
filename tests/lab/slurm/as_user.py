"""A Runner whose programs run as one of a test cluster's users, with the real deadline logic.

scheduler = SCHEDULER(clock=SystemClock(), runner=AsUser(cluster, "resil-alice"), environ=cluster.environment(user))
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from resilience.system.process import CommandFailed, Completed, ProcessRunner, ProgramMissing
from tests.lab.slurm.cluster import Cluster


class AsUser:
    """Runs each argv as that user, in the environment of the cluster.

    An environment that is given is used as it is, but for what the user and the cluster are (HOME, USER, PATH,
    SLURM_CONF): these are filled in where they are missing.
    """

    def __init__(self, cluster: Cluster, user: str) -> None:
        self._cluster = cluster
        self._user = user
        self._runner = ProcessRunner()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        """As ProcessRunner.run; the working directory is the user's home unless given."""
        whole = self._environment(env)
        where = cwd if cwd is not None else str(self._cluster.home(self._user))
        done = self._runner.run(self._argv(argv, whole), timeout_s=timeout_s, env=whole, cwd=where, stdin=stdin)
        return replace(done, argv=tuple(argv))

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        """As ProcessRunner.stream."""
        whole = self._environment(env)
        try:
            yield from self._runner.stream(self._argv(argv, whole), timeout_s=timeout_s, env=whole)
        except CommandFailed as error:
            raise CommandFailed(replace(error.completed, argv=tuple(argv))) from error

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        own = self._cluster.environment(self._user)
        if env is None:
            return own
        named = ("HOME", "USER", "LOGNAME", "PATH", "SLURM_CONF")
        return {name: own[name] for name in named} | dict(env)

    def _argv(self, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        program = shutil.which(argv[0], path=env["PATH"])
        if program is None:  # setpriv's own failure would look like the program's
            raise ProgramMissing(f"cannot run {argv[0]}: no such program", hint=f"is {argv[0]} on PATH?")
        if os.geteuid() != 0:
            return list(argv)
        entry = pwd.getpwnam(self._user)
        become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--"]
        return [*become, program, *argv[1:]]
