"""A Runner and a Clock that answer from a table, and what real SLURM said, for tests of the SLURM client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from resilience.errors import ProbeError
from resilience.schedulers._slurm.queue import QUEUE_COLUMNS, ROW_END, SEPARATOR
from resilience.system.process import CommandFailed, Completed
from tests.lab.fakes import FakeClock

RECORDED = Path(__file__).parents[1] / "recorded"
RELEASES = ("20.11", "22.05", "24.11", "26.05")
NOW = 1795168500.0
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def recorded(release: str, name: str) -> str:
    """What SLURM wrote, unchanged."""
    return (RECORDED / release / name).read_bytes().decode("utf-8", "surrogateescape")


def in_seconds(text: str) -> str:
    """Recorded text as SLURM_TIME_FORMAT=%s would have made it; the recordings are in UTC."""
    return _ISO.sub(lambda m: str(int(datetime.fromisoformat(m[0]).replace(tzinfo=UTC).timestamp())), text)


def row(**columns: str) -> str:
    """One row of squeue in the client's format, without its newline."""
    usual = {
        **dict.fromkeys(QUEUE_COLUMNS, "(null)"),
        "JobArrayID": "12",
        "JobID": columns.get("JobArrayID", "12").partition("_")[0],
        "ArrayTaskID": "N/A",
        "UserName": "alice",
        "State": "RUNNING",
        "Reason": "None",
        "Name": "train",
        "Partition": "main",
        "SubmitTime": "1795168400",
        "StartTime": "1795168410",
        "EndTime": "1795172010",
        "TimeLimit": "1:00:00",
        "NumNodes": "1",
        "NodeList": "n1",
        "RestartCnt": "0",
        "exit_code": "0",
    }
    assert columns.keys() <= usual.keys()
    return "".join(f"{(usual | columns)[name]}{SEPARATOR}" for name in QUEUE_COLUMNS) + ROW_END


def recorded_rows(release: str) -> list[str]:
    """The rows of `squeue_O.txt`, its columns put where the client asks for them.

    JobArrayID|JobID|ArrayJobID|ArrayTaskID|State|Reason|RestartCnt|TimeLeft|StartTime|EndTime|exit_code|NodeList|
    UserName|Dependency|Comment|Name|
    """
    rows = []
    for line in recorded(release, "squeue_O.txt").splitlines():
        shown, raw, _, task, state, reason, restarts, _, start, end, code, nodes, user, dependency, comment, name = (
            line.removesuffix("|").split("|", 15)
        )
        rows.append(
            row(
                JobArrayID=shown, JobID=raw, ArrayTaskID=task, State=state, Reason=reason, RestartCnt=restarts,
                StartTime=start, EndTime=end, exit_code=code, NodeList=nodes, UserName=user, Dependency=dependency,
                Comment=comment, Name=name,
            )
        )  # fmt: skip
    return rows


@dataclass(frozen=True)
class Answer:
    """How a program ends: after how long, with what."""

    stdout: str = ""
    stderr: str = ""
    returncode: int = 0
    takes_s: float = 0.02
    error: ProbeError | None = None


Say = Answer | Callable[[Sequence[str]], Answer]


def queue(*rows: str) -> Answer:
    return Answer("".join(f"{one}\n" for one in rows))


@dataclass
class FakeRunner:
    """Answers each program from its list, the last answer again and again; remembers what was asked."""

    answers: Mapping[str, Say | list[Say]]
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOW))
    calls: list[tuple[str, ...]] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> Completed:
        assert env is not None, "every call has an environment of its own"
        assert timeout_s > 0
        self.calls.append(tuple(argv))
        self.environments.append(env)
        answer = self._answer(argv)
        self.clock.sleep(min(answer.takes_s, timeout_s))
        if answer.error is not None:
            raise answer.error
        return Completed(tuple(argv), answer.returncode, answer.stdout, answer.stderr)

    def stream(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Iterator[str]:
        done = self.run(argv, timeout_s=timeout_s, env=env)
        yield from done.stdout.removesuffix("\n").split("\n") if done.stdout else ()
        if done.returncode != 0 or done.stderr:
            raise CommandFailed(done)

    def asked(self, *words: str) -> list[tuple[str, ...]]:
        """The calls that begin with these words."""
        return [call for call in self.calls if call[: len(words)] == words]

    def _answer(self, argv: Sequence[str]) -> Answer:
        for name in (" ".join(argv[:3]), " ".join(argv[:2]), argv[0]):
            if name in self.answers:
                said = self.answers[name]
                if isinstance(said, list):
                    said = said.pop(0) if len(said) > 1 else said[0]
                return said if isinstance(said, Answer) else said(argv)
        raise AssertionError(f"nobody expected {argv}")
