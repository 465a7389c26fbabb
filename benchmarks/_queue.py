"""A queue of 100,000 rows, twice: as our own squeue call answers, and as `squeue --json` does.

Some thousand jobs are really submitted to a real SLURM and asked for in both ways; then both answers are repeated with
other ids. Where no SLURM can be booted the jobs are the recorded ones of the tests: some tens, not thousands.
"""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import BenchmarkError
from resilience.schedulers._slurm.query import client_environment, queue_command
from resilience.schedulers._slurm.queue import ROW_END, SEPARATOR
from tests.lab.slurm.cluster import Cluster

JOBS_OF_A_RUN = 5
ROOM = "MaxJobCount=100000\n"
"""For slurm.conf. Each task of an array counts, and at the default of 10,000 sbatch waits instead of failing."""
RECORDED = Path(__file__).resolve().parents[1] / "tests" / "recorded" / "22.05"
_NUMBERS = re.compile(r'("(?:array_)?job_id":\s*)([1-9]\d*)')
_ROW = re.compile(rf"([1-9]\d*)([^{SEPARATOR}]*){SEPARATOR}([1-9]\d*){SEPARATOR}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Answers:
    """One queue in both forms.

    Attributes:
        rows: our own squeue call's, one text per job.
        head, records, tail: the JSON text around and of each job, as squeue wrote it.
        run: a run that some of the jobs are of.
        where_from: how the jobs came to be, for people.
    """

    rows: tuple[str, ...]
    head: str
    records: tuple[str, ...]
    tail: str
    run: str
    where_from: str


def ask(cluster: Cluster, count: int) -> Answers:
    """Submit about `count` jobs and ask for them both ways, while nothing moves."""
    _submit(cluster, count)
    argv, env = queue_command((), finished=True), client_environment(cluster.environment())
    for _ in range(20):
        text = cluster.run(argv, env=env, check=True).stdout
        document = cluster.run(["squeue", "--all", "--states=all", "--json"], check=True).stdout
        if text == cluster.run(argv, env=env, check=True).stdout:  # nothing began or ended in between
            break
    version = cluster.run(["squeue", "--version"]).stdout.strip()
    rows = split_rows(text)
    return _pair(rows, document, f"{len(rows)} real jobs of {version}", run="run-0007")


def recorded() -> Answers:
    """The answers that the tests keep; of one release and one cluster, but not of the same moment."""
    rows = split_rows((RECORDED / "squeue_client.txt").read_text())
    document = (RECORDED / "squeue_all.json").read_text()
    head, records, tail = split_document(document)
    # Each job in both forms the same number of times: the longer answer gives up what it has more.
    count = min(len(rows), len(records))
    where_from = f"no SLURM can be booted here, so {count} recorded jobs of 22.05, none of them a run's"
    return Answers(tuple(rows[:count]), head, tuple(records[:count]), tail, "demo", where_from)


def _pair(rows: Sequence[str], document: str, where_from: str, run: str) -> Answers:
    head, records, tail = split_document(document)
    # The two are sorted each in its way; in one order, what is cut off at the end is the same of both.
    mine = {int(row.split(SEPARATOR)[1]): row for row in rows}
    theirs = {int(json.loads(record)["job_id"]): record for record in records}
    if set(mine) != set(theirs) or len(rows) != len(records):
        raise BenchmarkError(f"the two answers are not of the same queue: {len(rows)} rows, {len(records)} records")
    ordered = sorted(mine)
    texts = tuple(mine[number] for number in ordered), tuple(theirs[number] for number in ordered)
    return Answers(texts[0], head, texts[1], tail, run, where_from)


def split_rows(text: str) -> list[str]:
    """Given the whole answer, return its rows; one may hold newlines."""
    return [f"{row}{ROW_END}\n" for row in text.split(f"{ROW_END}\n") if row]


def split_document(text: str) -> tuple[str, list[str], str]:
    """Given `squeue --json`'s text, return what is before the jobs, each job, and what is after, as it stands there."""
    start = text.index('"jobs": [') + len('"jobs": [')
    decode, position, records = json.JSONDecoder().raw_decode, start, []
    while text[position:].lstrip()[:1] == "{" if position == start else text[position] == ",":
        begin = text.index("{", position)
        _, position = decode(text, begin)
        records.append(text[begin:position])
    return text[: text.index("{", start)], records, text[position:]


def write_rows(answers: Answers, path: Path, count: int) -> None:
    """Write `count` rows of our own call's form."""
    with path.open("w") as file:
        for row, added in _repeated(answers.rows, count):
            file.write(_ROW.sub(lambda m, n=added: _renumbered(m, n), row, count=1))  # type: ignore[misc]


def write_document(answers: Answers, path: Path, count: int) -> None:
    """Write the JSON document of `count` jobs."""
    with path.open("w") as file:
        file.write(answers.head)
        for number, (record, added) in enumerate(_repeated(answers.records, count)):
            file.write(",\n    " if number else "")
            file.write(_NUMBERS.sub(lambda m, n=added: f"{m[1]}{int(m[2]) + n}", record))  # type: ignore[misc]
        file.write(answers.tail)


def _repeated(texts: Sequence[str], count: int) -> Iterator[tuple[str, int]]:
    """`count` texts and what to add to their ids, so that none comes twice."""
    for number in range(count):
        yield texts[number % len(texts)], number // len(texts) * 1_000_000


def _renumbered(match: re.Match[str], added: int) -> str:
    return f"{int(match[1]) + added}{match[2]}{SEPARATOR}{int(match[3]) + added}{SEPARATOR}"


# ---- the jobs -----------------------------------------------------------------------------------------------------


def _submit(cluster: Cluster, count: int) -> None:
    """Let both users submit jobs as people name them; nearly all wait, for six reasons."""
    dice = random.Random(22)
    for number, user in enumerate(cluster.users):
        project = cluster.home(user) / "projects" / "language-model-pretraining"
        lines = [f"mkdir -p {project} && cd {project}", "printf '#!/bin/bash\\nsleep 3600\\n' >train.sbatch"]
        lines += [
            _sbatch(dice, run * len(cluster.users) + number)
            for run in range(count // len(cluster.users) // JOBS_OF_A_RUN)
            for _ in range(JOBS_OF_A_RUN)
        ]
        cluster.run(["bash", "-s"], user, input="\n".join(lines) + "\n", timeout=180, check=True)
    for _ in range(20):
        cluster.sbatch("#!/bin/bash\ntrue\n", "--job-name=short", "--mem=10")


def _sbatch(dice: random.Random, run: int) -> str:
    name = f"run-{run:04d}"
    token = f"{dice.getrandbits(64):016x}"
    kind = dice.random()
    wishes = [f"--job-name={name}", f"--comment=resil:{name}:{token}", "--mem=100"]
    if kind < 0.3:  # somebody else's job, named as people do
        long = f"eval | {dice.choice(('wikitext', 'größe', 'a b c', '70B-instruct'))} lr={dice.random():.2e} {'x' * 40}"
        wishes = [f"--job-name={long[: dice.randint(4, 80)]}", "--mem=100"]
        wishes += [f"--comment={dice.choice(('sweep 17, see wiki', 'asked by Ann', 'über Nacht'))}"] * (kind < 0.15)
    wishes += dice.choice(
        [
            ["--hold"],
            ["--begin=now+30days"],
            ["--partition=closed"],
            ["--array=1-10%1", "--hold"],
            ["--array=0-99:7%4", "--begin=now+7days"],
            ["--dependency=singleton", "--nodes=4", "--exclusive"],
            ["--nodes=2-4", "--ntasks-per-node=8", "--time=2-00:00:00"],
            ["--cpus-per-task=8", "--time=12:00:00"],
        ]
    )
    return shlex.join(["sbatch", "--parsable", "--output=/dev/null", *wishes, "train.sbatch"]) + " >/dev/null"
