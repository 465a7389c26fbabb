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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

WORLD, WIDTH, PADDING, PACE_S = 4, 8, 2**16, 0.05
LATE = frozenset({"batch_shell", "cancel", "kill_node", "requeue", "walltime"})
"""Faults that end the attempt some steps later: it makes these slowly, so as not to come to the next fault."""
WAIT_S, DURABLE_S = 120.0, 20.0
"""For ranks that start late on a busy machine."""


def gradient(weights: list[float], rank: int, step: int) -> list[float]:
    """Of the squared error on this rank's example of this step, and that error."""
    source = random.Random(f"{rank}/{step}")
    inputs = [source.uniform(-1, 1) for _ in weights]
    error = sum(w * x for w, x in zip(weights, inputs, strict=True)) - sum(inputs[::2])
    return [*(error * x for x in inputs), error * error]


class Model:
    """The weights, which each rank has, and what the guard has to know of them to find silent corruption."""

    def __init__(self) -> None:
        self.weights = [0.0] * WIDTH
        self.mean = [0.0] * (WIDTH + 1)

    def descend(self, gradients: list[list[float]], check: Callable[[], None] = lambda: None) -> float:
        """One step of SGD with the mean of the ranks' gradients; return the mean loss."""
        self.mean = [sum(column) / len(gradients) for column in zip(*gradients, strict=True)]
        check()
        self.weights = [w - 0.1 * g for w, g in zip(self.weights, self.mean, strict=False)]
        return self.mean[-1]

    def attach(self, check: Callable[[], None]) -> None:
        """`descend` calls it."""

    def largest(self, *, gradients: bool) -> tuple[list[str], list[float]]:
        return ["gradient", "weights"], [max(map(abs, values)) for values in (self.mean, self.weights)]

    def layout(self) -> object:
        """All is trained, from the first step to the last."""

    def capture(self, old: object) -> list[float]:
        return list(self.weights)

    def restore(self, captured: list[float]) -> None:
        self.weights = list(captured)

    def digest(self, *, gradients: bool) -> str:
        return repr(self.weights + (self.mean if gradients else []))

    def save(self, path: Path, step: int) -> None:
        """Write a file of safetensors; the padding makes it worth a disk."""
        size = 8 * WIDTH
        tensors = {"weights": ("F64", [WIDTH], [0, size]), "padding": ("U8", [PADDING], [size, size + PADDING])}
        header: dict[str, Any] = {
            name: {"dtype": kind, "shape": shape, "data_offsets": offsets}
            for name, (kind, shape, offsets) in tensors.items()
        }
        text = json.dumps(header | {"__metadata__": {"step": str(step)}}).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(
            struct.pack("<Q", len(text)) + text + struct.pack(f"<{WIDTH}d", *self.weights) + bytes(PADDING)
        )

    def load(self, path: Path) -> int:
        """Read that file; return its step."""
        data = path.read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        self.weights = list(struct.unpack_from(f"<{WIDTH}d", data, 8 + size))
        return int(json.loads(data[8 : 8 + size])["__metadata__"]["step"])


def alone(steps: int) -> str:
    """Loss and weights after so many steps of a training that nothing happens to."""
    model, loss = Model(), 0.0
    for step in range(1, steps + 1):
        loss = model.descend([gradient(model.weights, rank, step) for rank in range(WORLD)])
    return final(loss, model.weights)


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
        self._wrong: dict[int, list[Callable[[Model, list[float]], list[float]]]] = {}

    def meet(self, step: int) -> float | None:
        """Do what the plan has for this step; return a loss instead of the true one, if that is the fault."""
        loss = None
        for fault in self.faults:
            met = Path(f"met.{fault['number']}")
            if fault["step"] == step and (fault["kind"] == "bug" or not met.exists()):
                self.wait_for_save(fault["saved"])
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

    def wait_for_save(self, step: int) -> None:
        """Wait until the checkpoint of this step, or a later one, is durable; on a full disk it never is."""
        deadline = time.monotonic() + DURABLE_S
        while time.monotonic() < deadline:
            if any(path.name[:13] >= f"step-{step:08d}" for path in Path("checkpoints").glob("step-*")):
                return
            time.sleep(0.05)

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

    def gradient(self, step: int) -> None:
        self._wrong[step] = [lambda _, mine: [1e30 * one for one in mine]]

    def weight(self, step: int, *values: float) -> None:
        def damage(value: float, model: Model, mine: list[float]) -> list[float]:
            model.weights[0] = value
            return mine

        self._wrong[step] = [partial(damage, value) for value in values or (1e30,)]

    def unstable(self, step: int) -> None:
        self.weight(step, 1e30, 2e30)

    def repeated(self, step: int) -> None:
        self.weight(step, 1e30, 1e30)

    def replica(self, step: int) -> None:
        def shift(model: Model, mine: list[float]) -> list[float]:
            model.weights[0] += 1e-3
            return mine

        self._wrong[step] = [shift]

    def corrupted(self, step: int, model: Model, mine: list[float]) -> list[float]:
        """Corrupt this rank's gradient, or its weights, without a word; in the next computation of this step as often
        as the fault says."""
        wrong = self._wrong.get(step)
        return wrong.pop(0)(model, mine) if wrong else mine

    def bug(self, step: int) -> NoReturn:
        raise IndexError(f"the tokens of shard {step} are not there")

    def exception(self, step: int) -> NoReturn:
        raise RuntimeError("the data loader has lost its index")

    def gpu_oom(self, step: int) -> NoReturn:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB")

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
    step, model = 0, Model()
    with TrainingGuard.from_env(store=(store := Store.from_env())) as guard:
        if guard.should_stop_early():
            return guard.exit_code
        after = guard.resumed_after  # a stop because the state was ruined: not to be resumed from
        if checkpoint := store.latest(up_to=after.since if after else None):
            step = model.load(checkpoint.path / f"weights.{rank}.safetensors")
            guard.resumed(step)
        with open(f"begins.{rank}", "a") as file:
            file.write(f"{attempt} {step}\n")
        ring, sdc = Ring(rank, f"ring.{attempt}"), guard.sdc(model, group="all")

        def train(step: int) -> float:
            mine = faults.corrupted(step, model, gradient(model.weights, rank, step))
            return model.descend(ring.gather(mine), sdc.check)

        while step < last:
            time.sleep(PACE_S)
            step += 1
            met = faults.meet(step)
            loss = sdc.run(train, step)
            with open(f"steps.{rank}", "a") as file:
                file.write(f"{attempt} {step} {time.time()} {loss.hex()}\n")
            decision = guard.step(loss=loss if met is None else met)
            if decision.save or step % every == 0 or step == last:
                with guard.saving() as part:
                    model.save(part.path / f"weights.{rank}.safetensors", step)
            if decision.stop and step < last:
                return guard.exit_code
        guard.finished()
        if rank == 0:
            Path("final").write_text(final(loss, model.weights))
    return guard.exit_code


if __name__ == "__main__":
    sys.exit(main())
