"""Asks scheduler.bash, the keeper of the chain of jobs, which works without Python; its first lines list the verbs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from resilience.cron.drivers._slurm.script import comment_mark, parse_mark
from resilience.cron.records import Installation
from resilience.errors import SchedulerUnavailable
from resilience.job import JobState
from resilience.runs.context import Context

KEEP_WITHIN_S = 300.0
"""Time limit of an answer: each command of SLURM gets 40 s, and the state directory a minute."""


class ChainJob(NamedTuple):
    """A job of the chain, as squeue shows it.

    Attributes:
        kind: `s` a spare, `h` a head, `p` a pulse, `d` a daemon that failed or of an earlier release.
        begin: earliest start, seconds since the epoch; 0: none. Of a pulse its slot.
        start, end: seconds since the epoch; of a waiting job SLURM's estimate of its start; None: unknown.
        trouble: why the job could not work; empty: no trouble is known.
    """

    id: int
    state: JobState
    kind: str
    begin: int
    start: float | None
    end: float | None
    node: str
    reason: str
    trouble: str

    @property
    def is_running(self) -> bool:
        """Return whether the job has begun, and does not end yet."""
        return self.state.is_alive and not self.state.is_waiting and self.state is not JobState.COMPLETING


class Answer(NamedTuple):
    """Facts of scheduler.bash: (key, text) by line, in order."""

    code: int
    facts: tuple[tuple[str, str], ...]

    def of(self, key: str) -> tuple[str, ...]:
        """Return the texts of a key."""
        return tuple(text for name, text in self.facts if name == key)

    def ids(self, key: str) -> tuple[int, ...]:
        """Return the job ids of a key, each once."""
        return tuple(dict.fromkeys(int(word) for text in self.of(key) for word in text.split() if word.isdigit()))

    @property
    def problem(self) -> str:
        """The last problem; empty: none."""
        return next(iter(self.of("problem")[::-1]), "")


@dataclass(frozen=True, slots=True)
class Keeper:
    """The keeper of one installation's chain: the text of its batch script, run with a verb."""

    installation: Installation
    script: str
    context: Context

    def ask(self, verb: str) -> Answer:
        """Return the facts. Raise SchedulerUnavailable if bash did not end in time, or the queue did not answer and
        nothing was done."""
        environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
        done = self.context.system.runner.run(
            ["bash", "-s", "--", verb], timeout_s=KEEP_WITHIN_S, env=environ, stdin=self.script
        )
        lines = [line.partition(" ") for line in done.stdout.splitlines()]
        answer = Answer(done.returncode, tuple((key, text) for key, _, text in lines))
        if done.returncode not in (0, 3) and not answer.facts:
            raise SchedulerUnavailable(f"the keeper of the chain failed: {done.stderr.strip()[-300:] or verb}")
        if answer.problem.startswith("squeue does not answer"):
            raise SchedulerUnavailable(answer.problem, hint="slurmctld may be down; jobs keep running")
        return answer

    def jobs(self) -> tuple[ChainJob, ...]:
        """Return the chain's jobs by id, ended ones included. Raise SchedulerUnavailable if the queue does not
        answer."""
        return tuple(parse_row(text, self.installation.token) for text in self.ask("rows").of("row"))


def parse_row(text: str, token: str) -> ChainJob:
    """Return the job of a row. Pure."""
    number, state, start, end, node, reason, comment = text.split("|", 6)
    kind, begin, more = parse_mark(comment.removeprefix(comment_mark(token)))
    return ChainJob(
        int(number),
        JobState.parse(state),
        kind,
        begin,
        float(start) if start.isdigit() else None,
        float(end) if end.isdigit() else None,
        node,
        reason,
        more.partition("failed: ")[2],
    )


def trouble_of(directory: Path) -> tuple[str, float]:
    """Return (problem of the chain as its last job noted it, when) in `<state_dir>/.cron`; empty: none."""
    from resilience.system.files import read_regular

    path = directory / "driver" / "trouble"
    found = read_regular(path, 4096)
    return (found[0].decode("utf-8", "replace").strip(), path.stat().st_mtime) if found is not None else ("", 0.0)


def chain_problem(directory: Path, installation: Installation | None) -> str:
    """Return the problem of an installation's chain in `<state_dir>/.cron`; empty: none, or the chain has no jobs."""
    if installation is None or installation.driver != "slurm":
        return ""
    trouble, since = trouble_of(directory)
    return trouble if since >= installation.time else ""
