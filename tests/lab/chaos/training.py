"""The training of `make chaos`: four ranks that wait for each other at each step, in plain Python, so that it starts at
once. Its weights are a function of the steps alone: `alone` returns the end of a training that nothing happens to.

Copied into a project and run there. Its directory has `plan.json`, the faults of the night: the rank that a fault names
does it when it comes to its step, once; what only something outside can do, it asks for, and waits.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

WORLD, WIDTH, PACE_S = 4, 8, 0.05
PADDING_BYTES = 2**16
LATE = frozenset({"batch_shell", "cancel", "requeue", "walltime"})
"""Faults that end the attempt some steps later: it makes these slowly, so as not to come to the next fault."""
WAIT_S = 120.0
"""For ranks that start late on a busy machine."""


def gradient(weights: list[float], rank: int, step: int) -> list[float]:
    """Of the squared error on this rank's example of this step, and that error."""
    source = random.Random(f"{rank}/{step}")
    inputs = [source.uniform(-1, 1) for _ in weights]
    error = sum(w * x for w, x in zip(weights, inputs, strict=True)) - sum(inputs[::2])
    return [*(error * x for x in inputs), error * error]


def descend(weights: list[float], gradients: list[list[float]]) -> float:
    """One step of SGD with the mean of the ranks' gradients; return the mean loss."""
    mean = [sum(column) / len(gradients) for column in zip(*gradients, strict=True)]
    loss: float = mean.pop()
    weights[:] = [w - 0.1 * g for w, g in zip(weights, mean, strict=True)]
    return loss


def alone(steps: int) -> str:
    """Loss and weights after so many steps of a training that nothing happens to."""
    weights, loss = [0.0] * WIDTH, 0.0
    for step in range(1, steps + 1):
        loss = descend(weights, [gradient(weights, rank, step) for rank in range(WORLD)])
    return final(loss, weights)


def final(loss: float, weights: list[float]) -> str:
    return f"{loss.hex()} {' '.join(weight.hex() for weight in weights)}"


class Ring:
    """All ranks' gradients on each rank, by sockets: rank 0 collects, and sends them to all."""

    def __init__(self, rank: int, name: str) -> None:
        self._rank, self._peers = rank, []
        form = f"{WIDTH + 1}d"
        self._one, self._all = struct.Struct(form), struct.Struct(form * WORLD)
        deadline = time.monotonic() + WAIT_S
        if rank == 0:
            with socket.socket(socket.AF_UNIX) as server:
                server.settimeout(WAIT_S)
                server.bind(f"{name}.new")
                server.listen()
                Path(f"{name}.new").rename(name)
                found = [server.accept()[0] for _ in range(WORLD - 1)]
            Path(name).unlink()
            self._peers = [peer for _, peer in sorted((peer.recv(1)[0], peer) for peer in found)]
            return
        while True:
            peer = socket.socket(socket.AF_UNIX)
            try:
                peer.connect(name)
                break
            except OSError:
                peer.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        peer.sendall(bytes([rank]))
        self._peers = [peer]

    def gather(self, mine: list[float]) -> list[list[float]]:
        if self._rank == 0:
            whole = self._one.pack(*mine) + b"".join(self._receive(peer, self._one.size) for peer in self._peers)
            for peer in self._peers:
                peer.sendall(whole)
        else:
            self._peers[0].sendall(self._one.pack(*mine))
            whole = self._receive(self._peers[0], self._all.size)
        values = self._all.unpack(whole)
        return [list(values[at : at + WIDTH + 1]) for at in range(0, len(values), WIDTH + 1)]

    def _receive(self, peer: socket.socket, size: int) -> bytes:
        data = peer.recv(size, socket.MSG_WAITALL)
        if len(data) != size:
            raise ConnectionResetError(104, "Connection reset by peer")
        return data


class Faults:
    """What this rank does at which step."""

    def __init__(self, rank: int, plan: dict[str, Any]) -> None:
        self.faults = [fault for fault in plan["faults"] if fault["rank"] == rank]
        self._slow_until, self._slow_s = 0, 0.0

    def meet(self, step: int) -> float | None:
        """Do what the plan has for this step; return a loss instead of the true one, if that is the fault."""
        loss = None
        for fault in self.faults:
            met = Path(f"met.{fault['number']}")
            if fault["step"] == step and (fault["kind"] == "bug" or not met.exists()):
                with open(met, "a") as file:
                    file.write(f"{step} {os.environ['RESIL_ATTEMPT']} {time.time()}\n")
                act = getattr(self, fault["kind"], None)
                if act is None:
                    self.ask(fault)
                    self._slow_until, self._slow_s = step + 10, 1.0 if fault["kind"] in LATE else 0.0
                else:
                    loss = act(step)
        if step <= self._slow_until:
            time.sleep(self._slow_s)
        return loss

    def ask(self, fault: dict[str, Any]) -> None:
        """Have something outside do it, and wait, though not for ever: the fault may have been the end of this."""
        asked = Path(f"asked.{fault['number']}")
        asked.with_suffix(".new").write_text(f"{os.environ['SLURMD_NODENAME']} {os.environ['SLURM_JOB_ID']}")
        asked.with_suffix(".new").rename(asked)
        done = Path(f"done.{fault['number']}")
        while not done.exists():
            time.sleep(0.02)
        if word := done.read_text():
            raise RuntimeError(word)

    def bug(self, step: int) -> NoReturn:
        raise IndexError(f"the tokens of shard {step} are not there")

    def exception(self, step: int) -> NoReturn:
        raise RuntimeError("the data loader has lost its index")

    def gpu_oom(self, step: int) -> NoReturn:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB")

    def io_error(self, step: int) -> NoReturn:
        raise OSError(5, "Input/output error", "/scratch/tokens.bin")

    def nan(self, step: int) -> float:
        return float("nan")

    def hang(self, step: int) -> None:
        while True:  # each call keeps the GIL until a signal comes
            ctypes.PyDLL(None).pause()


def main() -> int:
    from resilience.checkpoints import Store
    from resilience.guard import TrainingGuard

    rank, attempt = int(os.environ["RANK"]), os.environ["RESIL_ATTEMPT"]
    plan = json.loads(Path("plan.json").read_text())
    faults, last, every = Faults(rank, plan), plan["steps"], plan["save_every"]
    step, weights = 0, [0.0] * WIDTH
    with TrainingGuard.from_env(store=(store := Store.from_env())) as guard:
        if guard.should_stop_early():
            return guard.exit_code
        if checkpoint := store.latest():
            step, weights = json.loads((checkpoint.path / f"weights.{rank}.json").read_text())[:2]
            guard.resumed(step)
        with open(f"begins.{rank}", "a") as file:
            file.write(f"{attempt} {step}\n")
        ring = Ring(rank, f"ring.{attempt}")
        while step < last:
            time.sleep(PACE_S)
            step += 1
            met = faults.meet(step)
            loss = descend(weights, ring.gather(gradient(weights, rank, step)))
            with open(f"steps.{rank}", "a") as file:
                file.write(f"{attempt} {step} {time.time()} {loss.hex()}\n")
            decision = guard.step(loss=loss if met is None else met)
            if decision.save or step % every == 0 or step == last:
                with guard.saving() as part:
                    text = json.dumps([step, weights, "0" * PADDING_BYTES])
                    (part.path / f"weights.{rank}.json").write_text(text)
            if decision.stop and step < last:
                return guard.exit_code
        guard.finished()
        if rank == 0:
            Path("final").write_text(final(loss, weights))
    return guard.exit_code


if __name__ == "__main__":
    sys.exit(main())
