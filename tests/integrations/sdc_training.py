"""A data-parallel training over gloo whose steps are watched: `sdc_training.py FAULTS WORLD`.

FAULTS is JSON: by rank, a list of the step, what to damage there (`gradient`, `moment`, or `weight`, after the update),
and the value; or what happens in the replay of that step, after its all-reduce: the rank is killed (`die`), is sent a
signal (`USR1`), or a switch is thrown (`kill`, `save`). The ranks are forked, so that torch is imported once. Writes
each decision, what was found, the digests at the end, and with BITS=1 the bits after each step to rankN.jsonl, and a
checkpoint to checkpoint.pt.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from resilience.guard import TrainingGuard
from resilience.integrations.sdc import TorchState

STEPS = 60
NOTICED_S = 20.0


def bits(model: dict[str, Any], optimizer: dict[str, Any]) -> str:
    """Return a hash of all bits of the states of a model and its optimizer."""
    tensors = [*model.values(), *(one for state in optimizer["state"].values() for one in state.values())]
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()))
    return found.hexdigest()


def main() -> int:
    """Train."""
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = TorchState(model, optimizer)
    rank = dist.get_rank()
    faults: dict[str, Any] = json.loads(sys.argv[1])
    left = list(faults.get(str(rank), []))

    def note(event: str, **what: object) -> None:
        with open(f"rank{rank}.jsonl", "a") as diary:
            diary.write(json.dumps({"event": event, **what}) + "\n")

    def damage(kind: str, step: int) -> None:
        if left and left[0][:2] == [step, kind]:
            value = float(left.pop(0)[2])
            parameter = next(iter(model.parameters()))
            with torch.no_grad():
                if kind == "gradient":
                    parameter.grad[0, 0] = value
                elif kind == "moment":
                    optimizer.state[parameter]["exp_avg"][0, 0] = value
                else:
                    parameter[0, 0] = value

    def act(step: int) -> None:
        """Do what is to happen in the replay of this step, and wait until the guard has noticed."""
        if not left or left[0][0] != step or step not in done:
            return
        what = left.pop(0)[1]
        note(what, step=step)
        if what in ("kill", "save"):
            (Path(os.environ["RESIL_RUN_DIR"]) / "switches" / what).touch()
        else:
            os.kill(os.getpid(), signal.SIGKILL if what == "die" else signal.SIGUSR1)
        until = time.monotonic() + NOTICED_S
        while guard.limit > STEPS and time.monotonic() < until:
            time.sleep(0.01)

    done: set[int] = set()
    with TrainingGuard.from_env(sdc=True, sdc_replicas_every=10) as guard:
        sdc = guard.sdc(state)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            damage("moment", sdc.step)
            (model(batch) - batch[:, :1]).square().mean().backward()
            damage("gradient", sdc.step)
            act(sdc.step)
            done.add(sdc.step)
            optimizer.step()
            damage("weight", sdc.step)

        decision = None
        for number in range(1, STEPS + 1):
            sdc.run(step, torch.randn(8, 6, generator=torch.Generator().manual_seed(2 * number + rank)))
            decision = guard.step()
            if "BITS" in os.environ:
                note("step", step=number, bits=bits(model.state_dict(), optimizer.state_dict()))
            if decision:
                note("decision", step=decision.step, count=guard.count, stop=decision.stop, save=decision.save)
            if decision.save:
                with guard.saving():
                    if rank == 0:
                        kept = {"step": number, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save(kept, "checkpoint.pt")
            if decision.stop:
                break
            if sdc.found and sdc.found[-1].verdict == "replica":
                time.sleep(0.05)  # the decision comes some steps later
        digest = state.digest(gradients=False)
        found = [[one.verdict, one.step, one.why] for one in sdc.found]
        note("end", found=found, digest=digest, stop=bool(decision and decision.stop), is_on=sdc.is_on)
    return guard.exit_code


def run_rank(rank: int, world: int) -> None:
    """Be one rank."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", init_method=f"file://{Path('store').absolute()}", rank=rank, world_size=world)
    code = main()
    dist.destroy_process_group()
    sys.exit(code)


if __name__ == "__main__":
    count = int(sys.argv[2])
    ranks = [multiprocessing.get_context("fork").Process(target=run_rank, args=(one, count)) for one in range(count)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    Path("codes.json").write_text(json.dumps([process.exitcode for process in ranks]))
    sys.exit(max(process.exitcode or 0 for process in ranks))
