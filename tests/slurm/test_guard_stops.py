"""The guard in jobs of a real SLURM: however a job is told to end, nothing is lost and nothing is done twice.

Every training here appends each step that it does to a log, per rank, and saves only when the guard says so. So a
stop that came without a save, a save of another step than the last, ranks that stopped at different steps, or two
attempts at a time would show as a gap or a double in 1, 2, 3, ... The ranks wait for each other in every step, as
they do in a collective: one that stopped alone would leave the others hanging.

slurmctld looks at time limits every 30 s and holds a requeued job back for 11 s. So all stories begin at once, on a
cluster of their own, and each test waits for its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec

import pytest

from resilience.system.files import read_lines
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.lab.slurm.processes import until

# argv: how many stops to go through before finishing, 10 steps after the last; and `gloo` for a real all-reduce.
TRAINING = """\
import json, os, sys, time
from multiprocessing.connection import Client, Listener
from resilience.guard import TrainingGuard

root, stops = os.environ["RESIL_RUN_DIR"], int(sys.argv[1])
rank = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
world = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
start = "{SLURM_JOB_ID}.{RESIL_RESTART_COUNT}".format_map({"RESIL_RESTART_COUNT": 0, **os.environ})


def say(name, text):
    with open(f"{root}/{name}.{rank}", "a") as file:
        file.write(f"{text}\\n")


def meet():
    # rank 0 is the barrier: one message from each rank, then one to each
    path = f"{root}/barrier.{start}"
    if rank == 0:
        listener = Listener(("127.0.0.1", 0))
        with open(path + ".tmp", "w") as file:
            json.dump(listener.address, file)
        os.rename(path + ".tmp", path)
        return [listener.accept() for _ in range(world - 1)]
    while not os.path.exists(path):
        time.sleep(0.05)
    return [Client(tuple(json.load(open(path))))]


def barrier():
    for other in others:
        other.recv_bytes() if rank == 0 else other.send_bytes(b"x")
    for other in others:
        other.send_bytes(b"x") if rank == 0 else other.recv_bytes()


step, stopped = 0, 0
if os.path.exists(f"{root}/checkpoint.{rank}"):
    step, stopped = map(int, open(f"{root}/checkpoint.{rank}").read().split())
last = step + 10 if stopped >= stops else 10**6
if sys.argv[2:] == ["gloo"]:
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")

    def barrier():
        dist.all_reduce(torch.ones(1))
else:
    others = meet()
with TrainingGuard.from_env() as guard:
    if guard.should_stop_early():
        sys.exit(guard.exit_code)
    guard.resumed(step)
    say("nodes", os.environ["SLURMD_NODENAME"])
    say("pids", f"{os.getpid()} {start} {step}")
    while step < last:
        time.sleep(0.05)
        barrier()
        step += 1
        say("steps", step)
        decision = guard.step()
        if decision.save:
            with guard.saving():
                time.sleep(rank)  # srun and torchrun end the others as soon as one exits with 75
                with open(f"{root}/.checkpoint.{rank}", "w") as file:
                    file.write(f"{step} {stopped + decision.stop}")
                os.rename(f"{root}/.checkpoint.{rank}", f"{root}/checkpoint.{rank}")
                say("saves", f"{step} {decision.label}")
        if decision.stop:
            say("stops", f"{step} {decision.why}")
            sys.exit(guard.exit_code)
    guard.finished()
sys.exit(guard.exit_code)
"""
# Understands what the template `torchrun` says, and starts the workers. It forwards no signal to anybody; as torchrun
# does, it ends the others as soon as one exits with anything but 0, and then exits with 1.
LAUNCHER = """\
#!/usr/bin/env python
import os, subprocess, sys, time
given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
command = [word for word in sys.argv[1:] if not word.startswith("--")]
nodes, local, node = (int(given[name]) for name in ("nnodes", "nproc_per_node", "node_rank"))
workers = [
    subprocess.Popen([sys.executable, *command], env={**os.environ, "RANK": str(node * local + number),
        "LOCAL_RANK": str(number), "WORLD_SIZE": str(nodes * local), "LOCAL_WORLD_SIZE": str(local),
        "TORCHELASTIC_RUN_ID": given["rdzv_id"], "TORCHELASTIC_RESTART_COUNT": "0"})
    for number in range(local)
]
while None in [worker.poll() for worker in workers] and not any(worker.returncode for worker in workers):
    time.sleep(0.1)
for worker in workers:
    worker.terminate()
sys.exit(any([worker.wait() for worker in workers]))
"""
SETTINGS = """\
[run]
name = "{name}"
command = "{command}"
template = "{template}"
{run}
[submit]
signal_lead_s = 2
[attempt]
beat_s = 1
[guard]
poll_s = 0.3
beat_s = 1
walltime_margin_s = 5
first_save_s = 2
{guard}
[sbatch]
time = "10"
{exclude}
{sbatch}
{more}
"""
WITH_SIGNAL = """\
#SBATCH --output=%A_%a.out
#SBATCH --signal=USR1@2
#SBATCH --ntasks=2
srun {command}
"""
WITHOUT_SIGNAL = """\
#SBATCH --output=%A_%a.out
#SBATCH --time=MINUTES
{command}
"""
PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=n5 PriorityTier=10 PreemptMode=OFF MaxTime=10 State=UP
"""
FOR_PREEMPTION = "n5"
HAS_TORCH = find_spec("torch") is not None
# The nodes are all on this host, and nobody knows them by name.
TORCHRUN = """\
[environment]
GLOO_SOCKET_IFNAME = "lo"
OMP_NUM_THREADS = 1
[template]
gpus_per_node = 2
torchrun_args = '--rdzv_endpoint="127.0.0.1:$MASTER_PORT" --local_addr=127.0.0.1'
"""


@dataclass
class Story(ClusterRun):
    """One run, and what its ranks wrote."""

    world: int = 1

    def steps(self, rank: int = 0) -> list[int]:
        return [int(line) for line in self.lines("steps", rank) if line.isdigit()]

    def pid(self, rank: int) -> int:
        """Of the newest attempt."""
        return int(self.lines("pids", rank)[-1].split()[0])

    def raw_job(self) -> str:
        """SLURM_JOB_ID of the newest attempt."""
        return self.lines("pids")[-1].split()[1].partition(".")[0]

    def until_trains(self, attempts: int = 1, steps: int = 5) -> None:
        """Wait until the newest of so many attempts has done some steps on every rank."""

        def trains() -> bool:
            starts = [self.lines("pids", rank) for rank in range(self.world)]
            done = [len(self.steps(rank)) for rank in range(self.world)]
            return all(len(found) >= attempts for found in starts) and all(
                count >= int(found[attempts - 1].split()[2]) + steps for count, found in zip(done, starts, strict=True)
            )

        self.until(trains, f"attempt {attempts} to train")

    def shorten(self, seconds: int) -> None:
        self.cluster.run(
            ["scontrol", "update", f"jobid={self.raw_job()}", f"EndTime=now+{seconds}"], self.user, check=True
        )

    def triggers(self) -> list[set[str]]:
        """What asked for each stop, in order."""
        records = [record for path in (self.directory / "journal").glob("*.0.jsonl") for record in read_lines(path)]
        stops = [record for record in records if record.get("event") == "decision" and record.get("stop")]
        return [set(stop["triggers"]) for stop in sorted(stops, key=lambda stop: stop["time"])]

    def check(self, stops: int, because: str) -> None:
        """Every rank did every step exactly once, and all stopped at the same ones, for this reason."""
        self.until((self.directory / "finished").exists, "the end")  # by rank 0; the others may still be writing
        until(lambda: len({len(self.steps(rank)) for rank in range(self.world)}) == 1, "all ranks' last lines")
        logs = [self.steps(rank) for rank in range(self.world)]
        assert logs == [list(range(1, len(logs[0]) + 1))] * self.world, self.log
        at = [self.lines("stops", rank) for rank in range(self.world)]
        assert len(at[0]) == stops and at == [at[0]] * self.world, self.log
        assert self.triggers()[-1] == {because}, self.log
        assert len(logs[0]) == int(at[0][-1].split()[0]) + 10, "the last attempt went on where the stop had saved"
        if any((self.directory / "attempts").iterdir()):  # a template's
            self.until(lambda: len(self.ends()) > stops, "the last end")
            assert self.ends() == [("stopped", 75)] * stops + [("finished", 0)], self.log

    def ends(self) -> list[tuple[str, int]]:
        """How the batch shells say that the attempts ended."""
        found = [self.end(int(path.stem)) for path in sorted((self.directory / "attempts").glob("*.end"))]
        return [(end["end"], end["exit_code"]) for end in found]


@dataclass
class Stage:
    cluster: Cluster
    stories: dict[str, Story] = field(default_factory=dict)

    def play(
        self, name: str, *words: str, world: int = 1, stops: int = 1, tasks: int = 0, script: str = "", **settings: str
    ) -> None:
        """Begin a story: a directory of its own, and `resil submit` there."""
        cluster = self.cluster
        story = Story(cluster, name, world=world)
        command = f"{cluster.shared}/train.py {stops} {settings.pop('how', '')}".strip()
        if settings.get("template") != "torchrun":
            command = f"{cluster.python} {command}"
        wishes = {"template": "python", "run": "", "guard": "", "sbatch": "", "more": ""}
        wishes["exclude"] = "" if "nodelist" in settings.get("sbatch", "") else f'exclude = "{FOR_PREEMPTION}"'
        text = SETTINGS.format(name=name, command=command, **{**wishes, **settings})
        story.write("resil.toml", text)
        if script:
            text = "#!/bin/bash\n" + script.format(command=command)
            story.write("own.sbatch", text)
            words = ("own.sbatch", *words)
        story.submit("--array", str(tasks or stops + 1), *words)
        self.stories[name] = story


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Everything that SLURM is slow at begins here, at the same time."""
    for argv in (["groupadd", "-f", "resil-lab"], *(["usermod", "-aG", "resil-lab", user] for user in Cluster.users)):
        subprocess.run(argv, check=True, capture_output=True)
    with Cluster(nodes=5, kill_wait=20, extra=PREEMPTION) as cluster:
        stage = Stage(cluster)
        (cluster.shared / "train.py").write_text(TRAINING)
        for directory, text in (("bin", LAUNCHER), ("torch", '#!/bin/sh\nexec python -m torch.distributed.run "$@"\n')):
            (cluster.shared / directory).mkdir()
            (cluster.shared / directory / "torchrun").write_text(text)
            (cluster.shared / directory / "torchrun").chmod(0o755)
        two_nodes = "nodes = 2\nntasks-per-node = 2"
        no_clock = "walltime = false"  # else it might be the first to tell
        stage.play("clock", script=WITHOUT_SIGNAL.replace("MINUTES", "1"))
        stage.play("clock-changed", guard="walltime_ask_s = 10", script=WITHOUT_SIGNAL.replace("MINUTES", "10"))
        srun = "#SBATCH --ntasks=2\nsrun "
        stage.play("limit", world=2, tasks=1, guard=no_clock, script=WITHOUT_SIGNAL.replace("MINUTES\n", "10\n" + srun))
        stage.play("preempted", tasks=1, guard=no_clock, sbatch=f'nodelist = "{FOR_PREEMPTION}"')
        stage.play("requeued", world=2, tasks=1, template="srun", guard=no_clock, sbatch="ntasks = 2")
        stage.play("step-signal", world=2, guard=no_clock, script=WITH_SIGNAL)
        stage.play(
            "batch-signal", world=2, guard=no_clock, template="torchrun", more="[template]\ngpus_per_node = 2",
            run=f"setup = ['export PATH={cluster.shared}/bin:$PATH']",
        )  # fmt: skip
        if HAS_TORCH:
            stage.play(
                "torchrun", how="gloo", world=4, guard=no_clock, template="torchrun", sbatch="nodes = 2",
                run=f"setup = ['export PATH={cluster.shared}/torch:$PATH']", more=TORCHRUN,
            )  # fmt: skip
        stage.play("cancelled", world=2, template="srun", guard=no_clock, sbatch="ntasks = 2")
        stage.play("two-nodes", world=4, stops=2, template="srun", sbatch=two_nodes)
        stage.play("killed", world=4, template="srun", run='group = "resil-lab"', guard=no_clock, sbatch=two_nodes)
        for name, story in stage.stories.items():
            if name != "torchrun":  # it takes its time to import
                story.until_trains()
        stage.stories["step-signal"].shorten(35)
        stage.stories["batch-signal"].shorten(35)
        stage.stories["clock-changed"].shorten(45)
        stage.stories["limit"].shorten(5)
        raw_job = stage.stories["requeued"].raw_job()
        cluster.run(["scontrol", "requeue", raw_job], stage.stories["requeued"].user, check=True)
        cluster.run(["scancel", stage.stories["cancelled"].job + "_1"], stage.stories["cancelled"].user, check=True)
        urgent = ("-p", "urgent", "-t1", "--exclusive", "--wrap=sleep 5", "--output=/dev/null")
        cluster.run(["sbatch", *urgent], cluster.users[1], check=True)
        yield stage


def test_a_signal_to_srun_tasks_of_a_script_of_ones_own(stage: Stage) -> None:
    """`--signal=USR1@lead` without `B:`, by srun."""
    stage.stories["step-signal"].check(stops=1, because="signal")


def test_a_signal_to_the_batch_shell_below_which_a_launcher_forwards_nothing(stage: Stage) -> None:
    """`--signal=B:USR1@lead`: by the stop file."""
    stage.stories["batch-signal"].check(stops=1, because="stop")


def test_the_guards_own_clock_where_nobody_is_told_of_the_time(stage: Stage) -> None:
    stage.stories["clock"].check(stops=1, because="walltime")


def test_the_guards_own_clock_notices_a_changed_time_limit(stage: Stage) -> None:
    stage.stories["clock-changed"].check(stops=1, because="walltime")


def test_the_time_limit_itself_where_nothing_came_before_it(stage: Stage) -> None:
    """SIGTERM to srun's tasks, more than once, and SIGKILL after KillWait.

    The next task of an array would begin meanwhile: only the templates wait for the attempt before.
    """
    story = stage.stories["limit"]
    stage.cluster.wait_for(story.job, {"TIMEOUT", "FAILED"})
    story.submit("own.sbatch")
    story.check(stops=1, because="signal")


def test_preemption_by_a_job_that_needs_the_node(stage: Stage) -> None:
    """SIGTERM, and a requeue: the same job goes on afterwards."""
    story = stage.stories["preempted"]
    story.check(stops=1, because="signal")
    assert [line.split()[1] for line in story.lines("pids")] == [f"{story.raw_job()}.0", f"{story.raw_job()}.1"]


def test_a_requeue(stage: Stage) -> None:
    story = stage.stories["requeued"]
    story.check(stops=1, because="signal")
    assert [line.split()[1] for line in story.lines("pids")] == [f"{story.raw_job()}.0", f"{story.raw_job()}.1"]


def test_a_cancelled_task_of_an_array(stage: Stage) -> None:
    stage.stories["cancelled"].check(stops=1, because="signal")


def test_ranks_on_two_nodes_stop_together_when_one_is_told_and_when_the_batch_shell_is(stage: Stage) -> None:
    story = stage.stories["two-nodes"]
    assert len({line for rank in range(4) for line in story.lines("nodes", rank)}) == 2
    assert story.resil("save", "--label", "best").returncode == 0
    until(lambda: all(story.lines("saves", rank) for rank in range(4)), "a save on every rank")
    assert len({tuple(story.lines("saves", rank)) for rank in range(4)}) == 1
    assert story.lines("saves")[0].endswith(" best")
    until(lambda: not (story.directory / "switches" / "save").exists(), "the switch to be removed")
    os.kill(story.pid(3), signal.SIGUSR1)
    story.until_trains(attempts=2)
    story.cluster.run(["scancel", "--signal=USR1", "--batch", story.raw_job()], story.user, check=True)
    story.check(stops=2, because="stop")
    assert story.triggers()[0] == {"signal"}


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed: pip install torch (extra `torch`)")
def test_a_real_torchrun_with_real_all_reduces_on_two_nodes(stage: Stage) -> None:
    """The ranks save at different speeds, and torchrun exits with 1 where its workers exit with 75."""
    story = stage.stories["torchrun"]
    story.until_trains()
    story.cluster.run(["scancel", "--signal=USR1", "--batch", story.raw_job()], story.user, check=True)
    story.check(stops=1, because="stop")


def test_a_colleague_stops_a_run_that_he_may_not_cancel(stage: Stage) -> None:
    story = stage.stories["killed"]
    colleague = stage.cluster.users[1]
    refused = stage.cluster.run(["scancel", story.job], colleague)
    assert "ccess/permission denied" in refused.stderr
    thrown = story.resil("kill", str(story.directory), "--why", "loss is NaN", user=colleague)
    assert thrown.returncode == 0 and "will not accept" not in thrown.stdout, thrown.stdout + thrown.stderr
    stage.cluster.wait_for(story.job, {"FAILED"})
    assert len(story.lines("pids")) == 1, "the queued task saw the switch and trained nothing"
    assert f"kill switch was set by {colleague}" in story.log and "loss is NaN" in story.log
    cleared = story.resil("clear", str(story.directory), user=colleague)
    assert cleared.returncode == 0, cleared.stderr
    story.submit()
    story.check(stops=1, because="kill")
