"""A real SLURM on loopback for tests: munged, slurmctld and some slurmd as plain processes in one directory.

    with Cluster(nodes=4) as cluster:
        job = cluster.sbatch("#!/bin/bash\\nsleep 5\\n", user=cluster.users[0])
        cluster.wait_for(job, {"COMPLETED"})

Nothing of it survives the test process, whatever happens to that (see keeper.py). By hand:

    python -m tests.lab.slurm.cluster up         boot, print the environment, wait for Ctrl-C
    python -m tests.lab.slurm.cluster selftest   boot, run a job, stop, and say how long each took
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":  # run as a file: make `tests` importable
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.lab.slurm import accounting, host
from tests.lab.slurm.clients import Clients
from tests.lab.slurm.configuration import CGROUP_CONF, Tuning, cgroup_prelude, node_names, slurm_conf
from tests.lab.slurm.keeper import PREFIX, Keeper, remove, sweep
from tests.lab.slurm.processes import (
    Process,
    ancestors,
    argv,
    belonging,
    connections,
    descendants,
    environ,
    kill_all,
    program,
    until,
)

ACTIVE = "PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,REQUEUE_HOLD,SPECIAL_EXIT"
# Debian's slurmd looks for PMIx, which nobody needs here, and for hardware that we only pretend to have.
NOISE = (
    "Unauthorized credential",
    "pmix",
    "MPI",
    "hwloc",
    "Node configuration differs",
    "Domain socket",
    "CPU frequency",
    "CPUs=8",
)


class Cluster(Clients):
    """One SLURM with `nodes` nodes of 8 CPUs, partitions main, short (10 minutes) and closed (DOWN), two users."""

    def __init__(
        self,
        nodes: int = 4,
        proctrack: str = "auto",
        *,
        kill_wait: int = 5,
        message_timeout: int = 5,
        slurmd_timeout: int = 10,
        cred_expire: int = 10,
        extra: str = "",
        dbd: bool = False,
    ) -> None:
        """Take the wishes; nothing is started. `extra` is added to slurm.conf; the times are seconds.

        With `dbd` sacct and sacctmgr work: a MariaDB and slurmdbd boot as well, and both users have account `lab`.
        """
        super().__init__()
        self.nodes = node_names(nodes)
        self.proctrack = proctrack
        self.tuning = Tuning(kill_wait, message_timeout, slurmd_timeout, cred_expire, extra)
        self.dbd = dbd
        self._keeper: Keeper | None = None
        self._forgetful = False
        self._port = 0
        self._daemons: dict[str, Process] = {}

    # ---- life -------------------------------------------------------------------------------------------------

    @staticmethod
    def requirements(dbd: bool = False) -> list[str]:
        """Return why a cluster (with accounting) cannot be booted here, for a person; empty when it can."""
        return host.requirements(accounting.PROGRAMS if dbd else ())

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Boot and wait until all nodes are idle; does nothing when started already."""
        if self._keeper is not None:
            return
        if reasons := self.requirements(self.dbd):
            raise RuntimeError(f"no test cluster: {'; '.join(reasons)}. To get it: {host.HOW_TO_GET}")
        sweep(Path("/tmp"))
        host.ensure_users()
        self.proctrack = host.choose_proctrack(self.proctrack)
        ports = host.Ports(len(self.nodes) + 3)
        self.root = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        try:
            self._keeper = Keeper(self.root, keep_open=ports.lock)
            self._port = ports.numbers[0]
            self._write_files(ports.numbers)
            self._start_munged()
            if self.dbd:
                self._start_accounting(ports.numbers[-2], ports.numbers[-1])
            self.start_controller()
            for node in self.nodes:
                self._spawn_slurmd(node)
            self.wait_idle()
        except BaseException as error:
            logs = self.logs()
            self.stop()
            if isinstance(error, Exception):
                raise RuntimeError(f"the test cluster did not boot: {error}\n{logs}") from error
            raise
        finally:
            os.close(ports.lock)  # the keeper holds it from here on

    def stop(self) -> None:
        """Kill every process of the cluster, verify it, and remove its directory; does nothing when not started."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        left = keeper.stop()
        # The keeper has done all this; here it is checked, and made good should the keeper itself have been killed.
        left += remove(self.root, lambda: belonging(self.root))
        self._daemons.clear()
        if left or self.root.exists():
            raise RuntimeError(f"the test cluster in {self.root} left something behind: pids {left}")

    @property
    def keeper_pid(self) -> int:
        """The parent of all daemons; see keeper.py."""
        if self._keeper is None:
            raise RuntimeError("the cluster is not started")
        return self._keeper.pid

    def _write_files(self, ports: range) -> None:
        layout = self.layout
        self.root.chmod(0o755)
        for directory in layout.private:
            directory.mkdir(mode=0o755)
        layout.shared.mkdir()
        layout.shared.chmod(0o1777)
        layout.homes.mkdir(mode=0o755)
        for user in self.users:
            entry = pwd.getpwnam(user)
            self.home(user).mkdir(mode=0o750)
            os.chown(self.home(user), entry.pw_uid, entry.pw_gid)
        name = host.name()
        lines = accounting.slurm_conf_lines(layout, name, ports[-1]) if self.dbd else ""
        tuning = replace(self.tuning, extra=host.plugin_dir() + self.tuning.extra)
        layout.conf.write_text(slurm_conf(layout, name, ports, len(self.nodes), self.proctrack, tuning, lines))
        (self.root / "cgroup.conf").write_text(CGROUP_CONF)
        host.write_interpreter(layout.bin)
        key = self.root / "munge" / "key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))

    def logs(self, lines: int = 8) -> str:
        """Return the end of every daemon's log, for a failure message; without what every start complains of."""
        texts = []
        files = sorted(self.layout.logs.glob("*")) if self.root.exists() else []
        # What a daemon says to its log it also says to its output; that alone has what it said before the log.
        logged = {file.stem for file in files if file.suffix == ".log" and file.stat().st_size}
        for file in (file for file in files if file.suffix == ".log" or file.stem not in logged):
            said = file.read_text(errors="replace").splitlines()
            told = [line for line in said if not any(noise in line for noise in NOISE)]
            texts.append("\n".join([f"--- {file.name}", *told[-lines:]]))
        return "\n".join(texts)

    # ---- daemons ----------------------------------------------------------------------------------------------

    def _spawn(self, name: str, argv: Sequence[str], **env: str) -> None:
        if self._keeper is None:
            raise RuntimeError("the cluster is not started")
        base = {"PATH": host.PATH, "LANG": "C.UTF-8", "SLURM_CONF": str(self.layout.conf)}
        pid = self._keeper.spawn(list(argv), base | env, self.layout.logs / f"{name}.out")
        process = Process.of(pid)
        if process is None:
            raise RuntimeError(f"{name} ended at once")
        self._daemons[name] = process

    def _start_munged(self) -> None:
        munge = self.root / "munge"
        self._spawn(
            "munged", ["munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                       f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log"],
        )  # fmt: skip
        until(self.layout.munge_socket.exists, "munged's socket")

    def _start_accounting(self, database_port: int, port: int) -> None:
        accounting.create(self.layout, host.name(), database_port, port)
        self._spawn("mariadbd", accounting.mariadbd_argv(self.root / "db", database_port))
        until(lambda: host.answers(database_port), "the database to answer")
        self._spawn("slurmdbd", ["slurmdbd", "-D"])
        until(lambda: host.answers(port), "slurmdbd to answer")
        for words in (["cluster", "resil"], ["account", "lab"], ["user", *self.users, "account=lab"]):
            self.run(["sacctmgr", "-i", "add", *words], check=True)

    def _spawn_slurmd(self, node: str) -> None:
        argv = ["slurmd", "-D", "-N", node]
        if host.RELEASE is not None:
            argv += ["-d", f"{host.RELEASE}/slurm/slurmstepd"]  # it knows the one of its own installation only
        if self.proctrack == "cgroup":
            prelude = cgroup_prelude(self.root.name, host.hierarchies())
            argv = ["unshare", "--mount", "sh", "-c", prelude, "sh", *argv]
        # slurmstepd inherits it and jobs have it from slurmd: by this name a node's processes are found again.
        self._spawn(node, argv, SLURMD_NODENAME=node)

    def daemon(self, name: str) -> Process:
        """Return the process of "munged", "slurmctld" or a node's slurmd, alive or not."""
        return self._daemons[name]

    def _running(self, name: str) -> bool:
        return name in self._daemons and self._daemons[name].alive

    def start_controller(self) -> None:
        """Start slurmctld, or wake a stopped one, and wait until it answers."""
        if self._running("slurmctld"):
            self.continue_controller()
        else:
            self._spawn("slurmctld", ["slurmctld", "-D"])
        until(self._controller_is_up, "slurmctld to answer")

    def _controller_is_up(self) -> bool:
        if not self._running("slurmctld"):
            raise RuntimeError("slurmctld ended")
        return self.run(["scontrol", "ping"]).returncode == 0

    def stop_controller(self) -> None:
        """Hang slurmctld (SIGSTOP): it takes connections and answers nothing."""
        self._freeze("slurmctld")

    def continue_controller(self) -> None:
        self._daemons["slurmctld"].send(signal.SIGCONT)

    def wait_served(self) -> None:
        """Wait until slurmctld has done with every message that was sent to it, also by clients that are long gone."""
        # Since 24.11 slurmdbd keeps a connection to slurmctld open for what sacctmgr changes.
        spared = self._daemons["slurmdbd"].pid if self.dbd else 0
        until(lambda: connections(self._port, spared) == 0, "slurmctld to serve what lies in its backlog", every_s=0.05)

    def kill_controller(self) -> None:
        """Kill slurmctld (SIGKILL): it is gone without saving what it knew of the last seconds."""
        self._end("slurmctld", signal.SIGKILL)
        self._forgetful = True

    def terminate_controller(self) -> None:
        """Stop slurmctld in an orderly way (SIGTERM): its state is saved."""
        self._end("slurmctld", signal.SIGTERM)

    def _freeze(self, name: str) -> None:
        process = self._daemons[name]
        process.send(signal.SIGSTOP)
        until(lambda: process.stopped or not process.alive, f"{name} to stop")

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._daemons[name]
        process.send(number)
        process.send(signal.SIGCONT)
        process.wait_gone()

    def lose_slurmd(self, node: str) -> None:
        """Kill the node's slurmd alone: its jobs live on, and SLURM cannot know."""
        self._end(node, signal.SIGKILL)

    def fail_node(self, node: str) -> None:
        """Kill the node's slurmd and all its jobs, as a power failure does."""
        self._daemons[node].send(signal.SIGKILL)
        kill_all(lambda: self._node_processes(node))
        self._daemons[node].wait_gone()

    def hang_slurmd(self, node: str) -> None:
        """Stop the node's slurmd (SIGSTOP): it is as dead to the controller, and its jobs live on."""
        self._freeze(node)

    def continue_slurmd(self, node: str) -> None:
        self._daemons[node].send(signal.SIGCONT)

    def start_slurmd(self, node: str) -> None:
        """Start the node's slurmd, or wake a stopped one."""
        if self._running(node):
            self.continue_slurmd(node)
        else:
            self._spawn_slurmd(node)

    def adopt(self, name: str) -> None:
        """Take a daemon that somebody else has started in the place of the cluster's, once it is there."""
        words = {"slurmctld"} if name == "slurmctld" else {"slurmd", name}

        def found() -> list[Process]:
            ours = (pid for pid in self.processes() if program(pid) in words and words - {program(pid)} <= {*argv(pid)})
            return [process for process in map(Process.of, ours) if process is not None]

        until(found, f"another {name} to start")
        self._daemons[name] = min(found(), key=lambda process: process.started)

    def _node_processes(self, node: str) -> set[int]:
        """Return slurmstepd, jobs and their children on a node: those who say its name, and their descendants."""
        ours = self.processes()
        named = {pid for pid in ours if environ(pid).get("SLURMD_NODENAME") == node}
        # Since 24.11 slurmstepd itself has no such variable: it is the parent of a job's shell. One that lives on
        # would tell slurmctld that its job was killed, and SLURM would see a job that failed on a sound node.
        parents = {parent for pid in named for parent in ancestors(pid) if parent in ours}
        steps = {pid for pid in parents if program(pid) == "slurmstepd"}
        return named | steps | descendants(named | steps)

    def processes(self) -> set[int]:
        """Return the pids of all daemons, jobs and clients of this cluster, without its keeper."""
        if self._keeper is None:
            return set()
        return (descendants([self._keeper.pid]) | belonging(self.root)) - {self._keeper.pid}

    def wait_idle(self) -> None:
        """Wait until every node is idle, and so no job is running."""
        until(lambda: set(self.node_states().values()) == {"idle"}, "all nodes to be idle", every_s=0.05)

    def reset(self) -> None:
        """Bring the cluster back to how it booted: daemons up, no job, nodes idle, homes and shared empty."""
        if not self._running("munged"):
            self._start_munged()
        if self._forgetful:
            self._start_afresh()
        self.start_controller()
        for node in self.nodes:
            self.start_slurmd(node)
        self._cancel_all()
        for partition, state in (("main", "up"), ("short", "up"), ("closed", "down")):
            self._update(f"partitionname={partition}", f"state={state}")
        until(self._nodes_restored, "all nodes to be idle", every_s=0.05)
        for directory in (self.shared, *map(self.home, self.users)):
            for entry in directory.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()

    def _start_afresh(self) -> None:
        """Forget every job, here and on the nodes: a killed controller gives ids away twice, and nodes refuse those."""
        for name in ("slurmctld", *self.nodes):
            if self._running(name):
                self._end(name, signal.SIGKILL)
        kill_all(lambda: {pid for pid in self.processes() if "SLURM_JOB_ID" in environ(pid)})
        for directory in (self.root / "state", self.root / "spool"):
            shutil.rmtree(directory)
            directory.mkdir(mode=0o755)
        self._forgetful = False

    def _nodes_restored(self) -> bool:
        """Resume what is drained or down, and say whether every node is idle."""
        states = self.node_states()
        for node, state in states.items():
            if state.startswith(("drain", "down", "fail")):
                self.run(["scontrol", "update", f"nodename={node}", "state=resume"])
        return set(states.values()) == {"idle"}

    def _cancel_all(self) -> None:
        def gone() -> bool:
            ids = self.run(["squeue", "-h", "-t", ACTIVE, "-o", "%A"], check=True).stdout.split()
            if ids:
                self.run(["scancel", *ids])
            # KillWait is no test's business here; and a killed controller may have forgotten a job that runs.
            processes = {pid for pid in self.processes() if "SLURM_JOB_ID" in environ(pid)}
            kill_all(lambda: {pid for pid in processes if Process.of(pid)})
            return not ids and not processes

        until(gone, "all jobs to be gone", every_s=0.1)


def main(argv: Sequence[str]) -> int:
    """Serve a developer's shell: `up` or `selftest`."""
    if list(argv) not in (["up"], ["selftest"]):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    began = time.monotonic()
    cluster = Cluster()
    cluster.start()
    booted = time.monotonic()
    if argv[0] == "up":
        for name, value in cluster.env.items():
            print(f"export {name}={value}")
        print(f"# proctrack/{cluster.proctrack}, users {cluster.users}; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    else:
        job = cluster.sbatch("#!/bin/bash\nhostname; id\n")
        cluster.wait_for(job, "COMPLETED")
    ran = time.monotonic()
    cluster.stop()
    stopped = time.monotonic()
    print(f"# boot {booted - began:.2f} s, job {ran - booted:.2f} s, stop {stopped - ran:.2f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
