"""The cluster behind the pytest fixture `resil_cluster`: jobs of a test, in a project of its own."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from resilience.drills.stage import NotInTime, Stage, own_environ
from resilience.errors import ResilError
from resilience.job import Job, JobId
from resilience.quantities import quote_toml
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_logs import newest_log
from resilience.runs.submissions import read_intents
from resilience.runs.submit_plan import SubmitRequest
from resilience.settings.load import FILE_NAME, load
from resilience.system.files import make_directory, write_atomic
from resilience.system.ports import System

RUN = "test"
PING_S = 10.0
LOG_LINES = 15
FAST = {"attempt.beat_s": "1", "guard.poll_s": "0.1", "guard.beat_s": "0.2"}
"""A test does not wait for the intervals of a training that takes weeks."""


class TestCluster:
    """Runs jobs of one test.

    Attributes:
        kind: `slurm` or `local`, the embedded scheduler.
        directory: the project directory, with `resil.toml` and the state directory.
    """

    __test__ = False  # for pytest, which collects classes of this name

    def __init__(self, system: System, directory: Path, scheduler: str) -> None:
        self.kind = scheduler
        self.directory = directory
        spool = directory / "spool" if scheduler == "local" else None
        # Not the user's own settings, except those that a cluster requires of every job (account, partition).
        kept = {
            name: text
            for name, text in system.environ.items()
            if name.startswith("RESIL_SBATCH__") or not (name.startswith("RESIL_") and "__" in name)
        }
        environ = own_environ(kept, {"RESIL_CONFIG": str(directory / FILE_NAME)}, spool)
        self._system = replace(system, cwd=directory, environ=environ)
        self._stages: list[Stage] = []

    def submit(
        self,
        what: str | Path | Sequence[str],
        *,
        run: str = RUN,
        array: int = 0,
        time: str = "",
        settings: str = "",
    ) -> JobId:
        """Queue a run and return the id of its job or array.

        Args:
            what: a command, as a shell line or as a list of words, which the template `python` launches; or the `Path`
                of your own batch script.
            run: the name of the run. A run that has ended may be submitted again.
            array: so many jobs, one after another; 0 for a single one.
            time: the time limit, as sbatch takes it. Default: ten minutes, or what the script says.
            settings: further lines of resil.toml, such as `[guard]` and its keys.
        """
        command = "" if isinstance(what, Path) else what if isinstance(what, str) else shlex.join(what)
        text = f"[run]\nname = {quote_toml(run)}\ncommand = {quote_toml(command or 'true')}\n{settings}\n"
        path = self.directory / FILE_NAME
        write_atomic(path, text, mode=0o644)
        loaded = load(self._system, named=path, overrides={"scheduler.name": self.kind, **_not_in(text)})
        stage = Stage(Project(self._system, loaded))
        self._stages.append(stage)
        script = Path(what).absolute() if isinstance(what, Path) else None
        limit = time or ("" if script else "10")
        request = SubmitRequest(run=run, script=script, array=str(array or ""), time=limit)
        return stage.submit(request)

    def wait(
        self, job: JobId | None = None, *, until: str | Callable[[], object] = "ended", timeout_s: float = 120.0
    ) -> tuple[Job, ...]:
        """Wait, and return the jobs: of one id, or of all that were submitted.

        Args:
            job: what `submit` returned; None: all.
            until: `ended`; `running`, which one of them is enough for; or a function that returns something true.
            timeout_s: then TimeoutError is raised, with the states of the jobs and the end of the log; before, if they
                have all ended in vain.
        """
        __tracebackhide__ = True
        if not callable(until) and until not in ("ended", "running"):
            raise ValueError(f"until={until!r}: write 'ended', 'running', or give a function")
        found: tuple[Job, ...] = ()
        is_so = False

        def is_so_or_never() -> bool:
            nonlocal found, is_so
            found = tuple(one for one in self.jobs if job is None or one.id.whole == job.whole)
            is_over = bool(found) and not any(one.state.is_alive for one in found)
            if callable(until):
                is_so = bool(until())
            else:
                is_so = is_over if until == "ended" else any(one.state.value == "RUNNING" for one in found)
            return is_so or is_over

        what = "the condition of wait()" if callable(until) else until
        try:
            self._newest.until(is_so_or_never, timeout_s, what)
            why = f"all jobs ended before {what}"
        except NotInTime as error:
            why = error.message
        if not is_so:
            states = ", ".join(f"job {one.id} is {one.state}" for one in found) or "there is no job"
            raise TimeoutError(f"{why}: {states}\n{self.log(lines=LOG_LINES)}")
        return found

    def kill(self, rank: int = 0, *, run: str = RUN, by: str = "KILL") -> str:
        """Send SIGKILL, or another signal, to a rank of the running job; return a sentence about it.

        Waits a minute for the first heartbeat of the rank's guard, as long as a job of the test is not over.
        """

        def beats_or_never() -> bool:
            return rank in self._newest.ranks(run) or not any(one.state.is_alive for one in self.jobs)

        self._newest.until(beats_or_never, 60, f"a heartbeat of rank {rank} of run {run}")
        return self._newest.inject(run, "kill", {"rank": rank, "signal": by}).injection.does

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Return every job of the test, also those that have ended."""
        return self._stages[-1].jobs() if self._stages else ()

    def run(self, name: str = RUN) -> RunDirectory:
        """Return the directory of a run: attempts, journal, heartbeats, switches."""
        return self._newest.run(name)

    def step(self, rank: int = 0, *, run: str = RUN) -> int:
        """Return the newest step in the heartbeat of a rank; 0 before the first."""
        found = self._newest.ranks(run).get(rank)
        return found[1].step if found is not None else 0

    def log(self, *, run: str = RUN, lines: int = 1000) -> str:
        """Return the end of the newest log of a run; empty if there is none."""
        directory = self.run(run)
        path = newest_log(directory, read_intents(directory))
        return "" if path is None else "\n".join(path.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> list[str]:
        """End all jobs; return a sentence for each thing that is left."""
        return self._stages[-1].close() if self._stages else []

    @property
    def _newest(self) -> Stage:
        if not self._stages:
            raise ValueError("nothing was submitted yet: call submit() first")
        return self._stages[-1]


def _not_in(text: str) -> dict[str, str]:
    """Return the intervals that a test's own settings do not have."""
    import tomllib

    given = tomllib.loads(text)
    return {
        key: value for key, value in FAST.items() if key.partition(".")[2] not in given.get(key.partition(".")[0], {})
    }


def answers(system: System) -> str:
    """Return why SLURM cannot be used here; empty if it answers."""
    if shutil.which("sbatch", path=system.environ.get("PATH")) is None:
        return "sbatch is not on PATH"
    try:
        done = system.runner.run(["scontrol", "ping"], timeout_s=PING_S, env=system.environ)
    except ResilError as error:
        return error.message
    return "" if " UP" in done.stdout else f"scontrol ping says: {(done.stdout or done.stderr).strip()[:200]}"


@contextmanager
def open_cluster(kind: str, directory: Path, root: Path) -> Iterator[TestCluster]:
    """Yield a cluster, and end all its jobs afterwards.

    `kind`: embedded, auto or slurm. On SLURM, whose nodes do not see the temporary directory of this one, the project
    is a directory below `root`, removed at the end.
    """
    import pytest

    system = System()
    why = "not asked for" if kind == "embedded" else answers(system)
    if kind == "slurm" and why:
        pytest.skip(f"resil_cluster = slurm: {why}")
    if not why:
        directory = Path(tempfile.mkdtemp(prefix=".resil-cluster-", dir=root))
    make_directory(directory, mode=0o700)
    cluster = TestCluster(system, directory, "local" if why else "slurm")
    left = []
    try:
        yield cluster
    finally:
        left = cluster.close()
        if not why and not left:
            shutil.rmtree(directory, ignore_errors=True)
    if left:
        pytest.fail("; ".join(left), pytrace=False)


__all__ = ["TestCluster", "open_cluster"]
