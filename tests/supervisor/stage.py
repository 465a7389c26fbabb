"""Real supervisors of real commands, with a run directory or without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience.cli.entry import run
from resilience.runs.attempts import Attempt
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import last_events, read_attempts
from resilience.system.child import fork
from tests.lab.waiting import until

REPOSITORY = Path(__file__).parents[2]
HANDLER = """
import signal, sys, time
def handle(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit({code})
for one in {signals!r}:
    signal.signal(getattr(signal, "SIG" + one), handle)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def handler(*signals: str, code: int = 7) -> tuple[str, ...]:
    """A command that prints the signal it gets, and exits with `code`."""
    return (sys.executable, "-S", "-c", HANDLER.format(signals=signals, code=code))


class Forked(subprocess.Popen[bytes]):
    """`resil run` in a fork of this process: the interpreter and the modules need not be loaded again, 0.1 s each."""

    def _execute_child(self, *given: Any) -> None:
        """As Popen's, of Python 3.11 to 3.14, but without exec."""
        words, cwd, environ, descriptors = given[0], given[5], given[6], given[10:16]
        stdin, _, _, stdout, _, stderr = descriptors
        start_new_session, process_group = given[21:23]
        self.pid = fork()
        if self.pid:
            self._child_created = True
            self._close_pipe_fds(*descriptors)  # type: ignore[attr-defined]
            return
        code = 1
        try:
            if start_new_session:
                os.setsid()
            if process_group != -1:
                os.setpgid(0, process_group)
            for number in {*signal.Signals} - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as the interpreter does
            for number, descriptor in enumerate((stdin, stdout, stderr)):
                if descriptor != -1:
                    os.dup2(descriptor, number)
            os.closerange(3, 65536)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(environ)
            code = run(words)
            sys.stdout.flush()
        finally:
            os._exit(code)


@dataclass
class Stage:
    """A directory with a run, and the environment of a job or of none."""

    path: Path
    environ: dict[str, str] = field(default_factory=dict)
    has_run: bool = True

    def __post_init__(self) -> None:
        self.run = RunDirectory(self.path / "state" / "gpt")
        self.run.create('[run]\nname = "gpt"\n')

    @property
    def full_environment(self) -> dict[str, str]:
        """What a supervisor gets."""
        mine = {name: text for name, text in os.environ.items() if not name.startswith(("RESIL_", "SLURM", "PYTHONUN"))}
        mine |= {"HOME": str(self.path), "PYTHONPATH": str(REPOSITORY)}
        if self.has_run:
            mine |= {"RESIL_RUN": "gpt", "RESIL_RUN_DIR": str(self.run.path)}
            mine |= {"RESIL_GUARD__BEAT_S": "0.1", "RESIL_GUARD__POLL_S": "0.05"}
        return mine | self.environ

    def start(self, *command: str, options: tuple[str, ...] = (), **popen: Any) -> subprocess.Popen[bytes]:
        """Start `resil run` with pipes for both streams."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | popen
        return Forked(["run", *options, "--", *command], cwd=self.path, env=self.full_environment, **pipes)

    def start_program(self, *words: str, **popen: Any) -> subprocess.Popen[bytes]:
        """Start an interpreter of its own, with the same environment."""
        return subprocess.Popen([sys.executable, *words], cwd=self.path, env=self.full_environment, **popen)

    def launched(self, process: subprocess.Popen[bytes]) -> int:
        """Wait until the command runs, and return its pid."""
        journals = (self.run.path / "journal").glob
        until(lambda: any('"launch"' in path.read_text() for path in journals("*.batch.jsonl")))
        return child_of(process)

    def finish(self, *command: str, options: tuple[str, ...] = (), **popen: Any) -> tuple[int, bytes, bytes]:
        """Run a command to its end; return exit code, stdout and stderr."""
        given = popen.pop("input", None)
        if given is not None:
            popen["stdin"] = subprocess.PIPE
        with self.start(*command, options=options, **popen) as process:
            out, err = process.communicate(given, timeout=60)
        return process.returncode, out, err

    def attempts(self) -> tuple[Attempt, ...]:
        """The recorded attempts."""
        return read_attempts(self.run)

    def events(self, job_id: int = 0) -> list[str]:
        """The names of the events in the journal of the batch shell's kind."""
        return [str(event["event"]) for event in last_events(self.run, job_id)]

    def file(self, name: str) -> dict[str, Any]:
        """A TOML file of the run directory; empty if there is none yet."""
        path = self.run.path / name
        return tomllib.loads(path.read_text()) if path.exists() else {}

    def beats(self) -> dict[str, Any]:
        """The newest heartbeat."""
        found = [path for path in (self.run.path / "beats").iterdir() if not path.name.startswith(".")]
        return tomllib.loads(found[0].read_text()) if found else {}

    def switch(self, kind: str, text: str = "") -> Path:
        """Set a switch."""
        path = self.run.path / "switches" / kind
        path.write_text(text)
        return path


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line of a supervised command."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def state_of(pid: int) -> str:
    """The state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def child_of(process: subprocess.Popen[bytes]) -> int:
    """The pid of the supervised command."""

    def look() -> int:
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return int(found[-1]) if len(found) > 1 else 0  # the first one keeps the records

    return until(look)
