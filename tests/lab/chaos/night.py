"""One night of `make chaos` on a real cluster: it submits the run, does the faults that come from outside, plays the
person where one is needed, and collects the facts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import parse_committed
from resilience.system.files import read_lines
from tests.lab.chaos import training
from tests.lab.chaos.judge import Attempt, Facts
from tests.lab.chaos.plan import SAVE_EVERY, Fault, Night
from tests.lab.disks import fill, make_read_only
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import Process, environ, program
from tests.lab.slurm.training_run import TrainingRun

NODES, ARRAY, KEPT = 2, 3, 6
PATIENCE_S = 240.0
"""Without a step and an attempt, and for whatever is waited for."""

SETTINGS = """\
[run]
name = "{name}"
command = "python train.py"
template = "srun"
allow_inject = true
[act]
enabled = true
keep_queued = {kept}
[alert]
channels = ["webhook"]
group_s = 0
flap_count = 0
[channel.webhook]
url = "{url}"
[checkpoints]
path = "checkpoints"
[watch]
checks = ["job", "log"]
[watch.job]
churn_count = 0  # one attempt after the other is the point
end_notice_s = 0
[watch.log]
timeout_s = 15
on_hang = "restart_step"
[attempt]
beat_s = 1
[guard]
poll_s = 0.3
beat_s = 1
walltime_ask_s = 1
walltime_margin_s = 4
first_save_s = 2
sdc = true
sdc_replicas_every = 5
[submit]
array = "{array}"
signal_lead_s = 2
[sbatch]
time = "10"
mem = "400M"
nodes = {nodes}
ntasks-per-node = {tasks}
requeue = true
"""
# A watchdog on a login node, each look a process of its own. They are forked from one that has all modules, because on
# two cores most of the time would go to that. Two constants are those of fast time. Ends with its standard input.
WATCH = """\
import importlib, os, select, sys
from resilience.ranks import hangs
from resilience.watch.checks._log import reading

reading.CONFIRM_S, hangs.COOL_DOWN_S = 4.0, 5.0
while not select.select([sys.stdin], [], [], {every_s})[0]:
    theirs, ours = os.pipe()
    if (child := os.fork()) == 0:
        os.close(theirs)
        sys.argv = ["resil", "watch", "--all"]
        from resilience.cli import entry

        def leave(code):
            os.write(ours, " ".join(name for name in sys.modules if name.startswith("resilience.")).encode())
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)

        entry._leave = leave
        entry.main()
    os.close(ours)
    with open(theirs) as pipe:
        for name in pipe.read().split():
            importlib.import_module(name)
    os.waitpid(child, 0)
"""


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server on loopback that keeps what the channel `webhook` sends; yield its address and the messages."""
    messages: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", messages
        finally:
            server.shutdown()
            thread.join()


class Waited(Exception):
    """Something was waited for in vain."""


@dataclass
class ChaosRun(TrainingRun):
    """The run of a night.

    Attributes:
        night: its plan.
        disk: the file system of its checkpoints.
        url: of the webhook; `messages`: what it has received.
        given_up: set when the campaign ends before the night.
        injectors: `resil inject` of faults that last.
        mends: what a person will do when told, and how many messages there were before.
        damaged: what the night did to checkpoints: the attempt, and the step.
    """

    night: Night = field(default_factory=lambda: Night(0, (), 0))
    disk: Path = Path("/nonexistent")
    url: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    given_up: threading.Event = field(default_factory=threading.Event)
    injectors: list[subprocess.Popen[str]] = field(default_factory=list)
    mends: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def start(self) -> None:
        self.cluster.run(["mkdir", str(self.project)], self.user, check=True)
        self.cluster.run(["ln", "-s", str(self.disk), "checkpoints"], self.user, self.project, check=True)
        tasks = training.WORLD // NODES
        words = {"name": self.name, "url": self.url, "nodes": NODES, "tasks": tasks, "array": ARRAY, "kept": KEPT}
        self.write("resil.toml", SETTINGS.format(**words))
        self.write("train.py", Path(training.__file__).read_text())
        faults = [vars(fault) for fault in self.night.faults]
        self.write("plan.json", json.dumps({"faults": faults, "steps": self.night.steps, "save_every": SAVE_EVERY}))
        self.submit()

    @contextmanager
    def looked_after(self, count: int = 2, every_s: float = 2.5) -> Iterator[None]:
        """Look every few seconds, as from several login nodes at once."""
        self.write("watch.py", WATCH.format(every_s=every_s))
        argv = [str(self.cluster.python), "watch.py"]
        dogs = []
        for number in range(count):
            with open(self.project / f"watch.{number}", "w") as log:
                dogs.append(
                    self.cluster.popen(argv, self.user, self.project, stdin=subprocess.PIPE, stdout=log, stderr=log)
                )
        try:
            yield
        finally:
            for dog in dogs:
                if dog.stdin is not None:
                    dog.stdin.close()
            for dog in dogs:
                dog.wait(120)

    def asked(self, fault: Fault) -> tuple[str, str] | None:
        """Node and raw id of the job that asks for a fault; None while none does."""
        path = self.project / f"asked.{fault.number}"
        if not path.exists():
            return None
        node, job = path.read_text().split()
        return node, job

    def answer(self, fault: Fault, word: str = "") -> None:
        """Let the training go on; with a word, raise an exception."""
        part = self.project / "done.new"
        part.write_text(word)
        part.rename(self.project / f"done.{fault.number}")

    def until(self, true: Callable[[], object], what: str) -> None:
        """Wait until something is true. Raise Waited if it never is, or the night is given up."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if self.given_up.is_set() or time.monotonic() > deadline:
                raise Waited(what)
            time.sleep(0.1)

    def inject(self, *words: str) -> subprocess.Popen[str]:
        """Start `resil inject`, and wait until the fault is on; it may need a heartbeat first."""
        deadline = time.monotonic() + 30
        while True:
            argv = ["resil", "inject", *words]
            pipe = subprocess.PIPE
            injector = self.cluster.popen(argv, self.user, self.project, stdout=pipe, stderr=subprocess.STDOUT)
            said = injector.stdout.readline() if injector.stdout is not None else ""
            if " " in said and not said.startswith("resil: "):
                self.injectors.append(injector)
                return injector
            rest, _ = injector.communicate()
            if time.monotonic() > deadline:
                raise Waited(f"resil inject {' '.join(words)}: {said}{rest}")

    def end_injections(self) -> list[str]:
        """End what is still on, as Ctrl-C does; return what stays on."""
        for injector in self.injectors:
            injector.send_signal(signal.SIGTERM)
            injector.communicate(timeout=60)
        found = json.loads(self.ask("inject", "list", "--json"))["injections"]
        return [f"injection {one['id']}" for one in found if one["until"] is not None and one["ended"] is None]

    def is_told(self, of: str, *, after: int = 0) -> bool:
        """Whether a message after the first ones tells of a fault of a watchdog."""
        notices = [notice for message in self.messages[after:] for notice in message["notices"]]
        return any(notice["fault"] == of and notice["reason"] != "RESOLVED" for notice in notices)

    def met(self, fault: Fault) -> tuple[tuple[int, int], ...]:
        """Step and attempt at each time that a fault came."""
        path = self.project / f"met.{fault.number}"
        rows = path.read_text().splitlines() if path.exists() else []
        return tuple((int(row.split()[0]), int(row.split()[1])) for row in rows)

    def lines_of(self, name: str) -> list[str]:
        """The whole lines of a file that the training writes."""
        path = self.project / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it runs or will: what is queued is held."""
        return all("JobHeldUser" in row for row in self.queued)

    @property
    def store(self) -> StoreDirectory:
        return StoreDirectory(self.project / "checkpoints")


LOST = "the data loader has lost its index"


def lose_node(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    run.cluster.fail_node(node)
    run.answer(fault)
    run.cluster.start_slurmd(node)


def lose_slurmd(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    run.cluster.lose_slurmd(node)
    run.answer(fault)
    run.cluster.start_slurmd(node)


def kill_batch_shell(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    for pid in run.cluster.processes():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if environ(pid).get("SLURM_JOB_ID") == job and words[1:2] and words[1].endswith(b"slurm_script"):
                os.kill(pid, signal.SIGKILL)
    run.answer(fault)


def hang_controller(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    run.cluster.stop_controller()
    try:
        run.answer(fault, LOST)
        run.until(lambda: run.end(run.met(fault)[0][1]), "the end to be recorded without SLURM")
    finally:
        run.cluster.continue_controller()


def end_controller(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    run.cluster.terminate_controller()
    try:
        run.answer(fault, LOST)
        run.until(lambda: run.end(run.met(fault)[0][1]), "the end to be recorded without SLURM")
    finally:
        run.cluster.start_controller()


def _scontrol(*words: str) -> Callable[[ChaosRun, Fault, str, str], None]:
    def act(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
        task, _ = run.running()  # the raw id of an array's last task is that of the array
        run.cluster.run([word.format(job=task) for word in words], run.user, check=True)
        run.answer(fault)

    return act


def cut_checkpoint(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    path = _newest_file(run, fault)
    os.truncate(path, path.stat().st_size // 2)
    run.answer(fault, LOST)


def cut_all(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    for one in run.store.checkpoints():
        path = one.path / f"weights.{fault.rank}.safetensors"
        os.truncate(path, path.stat().st_size // 2)
    run.answer(fault, LOST)


def flip_bit(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    path = _newest_file(run, fault)
    words = ["--locations", "weights", "--first-bit", "1", "--allow-nan", "--seed", str(run.night.seed)]
    run.ask("inject", "checkpoint", str(path), *words, "--output", "altered")
    path.write_bytes((run.project / "altered").read_bytes())  # the tool makes a copy, and the disk changes the file
    run.answer(fault, LOST)


def _newest_file(run: ChaosRun, fault: Fault) -> Path:
    newest = run.store.checkpoints()[-1]
    run.damaged.append((run.met(fault)[0][1], newest.step))
    return newest.path / f"weights.{fault.rank}.safetensors"


def _inject(*words: str, is_killed: bool = False) -> Callable[[ChaosRun, Fault, str, str], None]:
    """A fault of `resil inject`; with `is_killed` its injector is killed, and its keeper undoes it."""

    def act(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
        injector = run.inject(*(word.format(rank=fault.rank) for word in words))
        if is_killed:
            injector.kill()
        run.answer(fault)

    return act


def fill_disk(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    ballast = fill(run.disk)
    run.answer(fault)
    if not fault.of.lasts:
        run.mends.append((len(run.messages), lambda: ballast.unlink(missing_ok=True)))


def lock_disk(run: ChaosRun, fault: Fault, node: str, job: str) -> None:
    make_read_only(run.disk, True)
    run.answer(fault)
    run.mends.append((len(run.messages), lambda: make_read_only(run.disk, False)))


def person(run: ChaosRun) -> None:
    """Mend the oldest cause that a person is told of, and let the run go on."""
    if run.mends and run.is_told("breaker-open", after=run.mends[0][0]):
        run.mends.pop(0)[1]()
        if "no job of it was held" in run.ask("breaker", "close") and not run.queued:
            run.submit()


ACTS: dict[str, Callable[[ChaosRun, Fault, str, str], None]] = {
    "kill": _inject("kill", "--rank", "{rank}"),
    "segfault": _inject("kill", "--rank", "{rank}", "--signal", "SEGV"),
    "exit": _inject("exit", "--rank", "{rank}", "--code", "3"),
    "memory": _inject("oom", "--rank", "{rank}"),
    "stop": _inject("stop", "--rank", "{rank}", "--for", "10m"),
    "stop_orphaned": _inject("stop", "--rank", "{rank}", "--for", "10m", is_killed=True),
    "slow": _inject("slow", "--rank", "{rank}", "--factor", "3", "--for", "4s"),
    "pause": _inject("hang", "--rank", "{rank}", "--for", "5s"),
    "leak": _inject("leak", "--rank", "{rank}", "--rate", "32MiB", "--most", "64MiB", "--for", "4s"),
    "disk_full_once": _inject("disk-full", "--for", "10m"),
    "clock_forward": _inject("clock", "forward", "--by", "2h", "--for", "8s"),
    "clock_back": _inject("clock", "back", "--by", "2h", "--for", "8s"),
    "answers_hang": _inject("scheduler", "hang", "--for", "8s"),
    "answers_garbage": _inject("scheduler", "garbage", "--for", "8s"),
    "answers_lag": _inject("scheduler", "lag", "--lag", "10s", "--for", "8s"),
    "node": lose_node,
    "slurmd": lose_slurmd,
    "batch_shell": kill_batch_shell,
    "controller_hangs": hang_controller,
    "controller_ends": end_controller,
    "requeue": _scontrol("scontrol", "requeue", "{job}"),
    "cancel": _scontrol("scancel", "{job}"),
    "walltime": _scontrol("scontrol", "update", "jobid={job}", "EndTime=now+12"),
    "flip": flip_bit,
    "cut": cut_checkpoint,
    "all_cut": cut_all,
    "disk_full": fill_disk,
    "disk_stays_full": fill_disk,
    "read_only": lock_disk,
}


def live(cluster: Cluster, disk: Path, night: Night, given_up: threading.Event) -> tuple[Facts, ChaosRun]:
    """Live through a night on a cluster that has nothing else to do, and whose nodes see that small disk."""
    cluster.reset()
    make_read_only(disk, False)
    for entry in disk.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    mounts = _mounts(cluster)
    with webhook() as (url, messages):
        run = ChaosRun(cluster, f"night-{night.seed}", night=night, disk=disk, url=url, messages=messages)
        run.given_up = given_up
        waited = ""
        run.start()
        with run.looked_after():
            try:
                _go_through(run)
            except (Waited, TimeoutError) as error:
                waited = str(error)
        left = run.end_injections() + _left_running(run) + [f"mount {line}" for line in _mounts(cluster) - mounts]
        return _collect(run, waited, left), run


def _mounts(cluster: Cluster) -> set[str]:
    """The mounts below the cluster's directory."""
    return {line for line in Path("/proc/self/mounts").read_text().splitlines() if str(cluster.root) in line}


def _go_through(run: ChaosRun) -> None:
    """Do what the training asks for until the run has ended, or nothing happens any more."""
    undone = [fault for fault in run.night.faults if fault.kind in ACTS]
    seen, since = "", time.monotonic()
    while True:
        if run.is_finished:
            run.until(lambda: not run.queued, "the rest of the queue to end")
            run.until(lambda: (known := run.incidents()) is not None and all(one["resolved"] for one in known),
                      "all incidents to be resolved")  # fmt: skip
            return
        run.incidents()
        if undone and (found := run.asked(undone[0])):
            fault = undone.pop(0)
            ACTS[fault.kind](run, fault, *found)
            since = time.monotonic()
        person(run)
        if not run.mends and run.is_open and run.is_told("breaker-open") and run.is_idle:
            time.sleep(5)  # whether it stays so
            if run.is_open and run.is_idle:
                return
        files = [len([*run.directory.glob(name)]) for name in ("attempts/*", "journal/*")]
        news = f"{files} {run.lines_of('steps.0')[-1:]}"
        if news != seen:
            seen, since = news, time.monotonic()
        if run.given_up.is_set() or time.monotonic() - since > PATIENCE_S:
            raise Waited(f"a step or an attempt; queued: {run.queued}")
        time.sleep(0.1)


def _left_running(run: ChaosRun) -> list[str]:
    daemons = {process.pid for process in run.cluster._daemons.values()}

    def left() -> set[int]:
        others = run.cluster.processes() - daemons
        return {pid for pid in others if Process.of(pid) and program(pid) != "slurmscriptd"}  # slurmctld's own

    deadline = time.monotonic() + 60
    while (found := left()) and time.monotonic() < deadline and not run.given_up.is_set():
        time.sleep(0.2)
    shown = []
    for pid in found:
        try:
            shown.append(f"process {pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:
            continue
    shown += [f"job {row}" for row in run.queued if "JobHeldUser" not in row]
    shown += [f"file {path}" for path in run.project.rglob("*.tmp")]
    return shown


def _collect(run: ChaosRun, waited: str, left: list[str]) -> Facts:
    told = json.loads(run.ask("attempts", "--json"))
    resumed: dict[int, list[int]] = {}
    for rank in range(training.WORLD):
        for row in run.lines_of(f"begins.{rank}"):
            attempt, step = map(int, row.split())
            resumed.setdefault(attempt, []).append(step)
    journals = [one for path in (run.directory / "journal").glob("*.0.jsonl") for one in read_lines(path)]
    rows = [row.split() for row in run.lines_of("steps.0")]
    outbox = run.project / ".resil" / ".alerts" / "outbox"
    final = run.project / "final"
    return Facts(
        night=run.night,
        alone=training.alone(run.night.steps),
        final=final.read_text() if run.is_finished and final.exists() else "",
        reason=told["breaker"]["reason"] if run.is_open else "",
        attempts=tuple(
            Attempt(
                row["attempt"], (row["failure"] or {}).get("failure", ""), run.end(row["attempt"]).get("launched", True)
            )
            for row in told["attempts"]
        ),
        met={fault.number: run.met(fault) for fault in run.night.faults},
        resumed={attempt: tuple(ranks) for attempt, ranks in resumed.items()},
        stepped=tuple((int(row[0]), int(row[1]), float(row[2]), row[3]) for row in rows),
        saved=tuple(
            (one["attempt"], parse_committed(one["name"]) or 0) for one in journals if one["event"] == "checkpoint"
        ),
        corrupted=tuple(one["step"] for one in journals if one["event"] == "sdc"),
        damaged=tuple(run.damaged),
        messages=tuple(run.messages),
        incidents=tuple(run.incidents()),
        undelivered=tuple(path.name for path in outbox.glob("*") if path.is_file()) if outbox.exists() else (),
        said="\n".join([*(path.read_text() for path in run.project.glob("watch.[0-9]")), *_batch_lines(run)]),
        left=tuple(left),
        waited=waited,
    )


def _batch_lines(run: ChaosRun) -> list[str]:
    """What the logs have that is not the training's own."""
    return [line for line in run.log.splitlines() if "slurm_script" in line or line.startswith("resil: ")]


def _told(message: Mapping[str, Any]) -> str:
    return f"{message['headline']} {[(one['episode'], one['fault'], one['reason']) for one in message['notices']]}"


def keep(run: ChaosRun, facts: Facts, violations: list[str], directory: Path) -> Path:
    """Keep what is needed to understand a night that went wrong."""
    place = directory / f"seed-{run.night.seed}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(run.project, place, symlinks=True, ignore=lambda *_: {"checkpoints"})
    text = [
        str(run.night),
        *violations,
        "",
        *map(_told, facts.messages),
        "",
        *map(str, facts.attempts),
        "",
        run.cluster.logs(40),
    ]
    (place / "violations.txt").write_text("\n".join(text))
    return place
