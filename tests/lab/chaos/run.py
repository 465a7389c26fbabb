"""The run of a night: its settings, its watchdogs and its webhook, and how the night speaks with the training."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from resilience.checkpoints.directory import StoreDirectory
from tests.lab.chaos import training
from tests.lab.chaos.plan import SAVE_EVERY, Fault, Night
from tests.lab.slurm.training_run import TrainingRun

NODES, ARRAY, KEPT = 2, 3, 6
PATIENCE_S = 240.0
"""Without a step and an attempt, and for whatever is waited for."""

SETTINGS = """\
[run]
name = "{name}"
command = "{before}python train.py"
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


def is_held(row: str) -> bool:
    """Whether a row of `queued` is a job that is held: JobHeldUser, or JobHeldAdmin if root holds it."""
    return "JobHeld" in row


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
        over: what is undone once the night is over.
    """

    night: Night = field(default_factory=lambda: Night(0, (), 0))
    disk: Path = Path("/nonexistent")
    url: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    given_up: threading.Event = field(default_factory=threading.Event)
    injectors: list[subprocess.Popen[str]] = field(default_factory=list)
    mends: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)
    over: ExitStack = field(default_factory=ExitStack)

    @property
    def user(self) -> str:
        return "root" if self.night.is_roots else super().user

    def start(self) -> None:
        self.cluster.run(["mkdir", str(self.project)], self.user, check=True)
        self.cluster.run(["ln", "-s", str(self.disk), "checkpoints"], self.user, self.project, check=True)
        tasks = training.WORLD // NODES
        words = {"name": self.name, "url": self.url, "nodes": NODES, "tasks": tasks, "array": ARRAY, "kept": KEPT}
        words["before"] = "resil inject preload -- " if self.night.is_preloaded else ""
        self.write("resil.toml", SETTINGS.format(**words))
        self.write("train.py", Path(training.__file__).read_text())
        faults = [vars(fault) for fault in self.night.faults]
        self.write("plan.json", json.dumps({"faults": faults, "steps": self.night.steps, "save_every": SAVE_EVERY}))
        self.submit()

    @contextmanager
    def looked_after(self, count: int = 2, every_s: float = 4.0) -> Iterator[None]:
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

    def wait_for_looks(self, count: int) -> None:
        """Wait until each watchdog has looked so many times more."""

        def looks() -> list[int]:
            paths = sorted(self.project.glob("watch.?"))
            return [len(re.findall("^LOG ", path.read_text(), re.MULTILINE)) for path in paths]

        before = looks()
        self.until(lambda: all(now >= one + count for now, one in zip(looks(), before, strict=True)), "the watchdogs")

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
        return all(is_held(row) for row in self.queued)

    @property
    def store(self) -> StoreDirectory:
        return StoreDirectory(self.project / "checkpoints")
