"""What the training's own Python computes for a check: products of matrices, and all-reduces with other nodes.

It runs as `python -c SOURCE`, because that Python may have torch and no resil: nothing but the standard library and
torch is imported. It answers each line of JSON on its standard input with a line. GPUs use NCCL, processors gloo, as in
DLRover's node check.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any

ON_GPU, ON_CPU = 4096, 512
"""Rows of the matrices: a millisecond or two each."""
TIMES = 20
VALUES_ON_GPU, VALUES_ON_CPU = 2**24, 2**18
"""Of an all-reduce: 64 MiB and 1 MiB."""


def main() -> int:
    """Say on what it computes, then do what each line asks for: products, or an all-reduce with other ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    _say({"device": "cuda" if gpus else "cpu", "port": store.port})
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {"token": order["token"]}
        try:
            if "rank" in order:
                answer["seconds"] = all_reduce(order, store, on_gpu=gpus > 0)
            else:
                found = {f"matmul_gpu{index}_s": product(f"cuda:{index}") for index in range(gpus)}
                answer["products"] = found or {"matmul_s": product("cpu")}
        except (RuntimeError, OSError, ValueError) as error:  # torch's errors are RuntimeErrors
            answer["error"] = " ".join(str(error).split())[:300]
        _say(answer)
    return 0


def product(device: str) -> float:
    """Return the shortest time of many products of matrices: the others are what else happened there."""
    import torch

    is_gpu = device != "cpu"
    rows, kind = (ON_GPU, torch.float16) if is_gpu else (ON_CPU, torch.float32)
    one = torch.ones(rows, rows, dtype=kind, device=device)
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        one @ one
        if is_gpu:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times)


def all_reduce(order: dict[str, Any], own: Any, *, on_gpu: bool) -> float:
    """Return the shortest time of many all-reduces with the other ranks; their store is that of rank 0."""
    import torch
    import torch.distributed as dist

    timeout = timedelta(seconds=order["timeout_s"])
    store = own
    if order["rank"] > 0:
        store = dist.TCPStore(*order["store"], is_master=False, wait_for_workers=False, timeout=timeout)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.PrefixStore(order["token"], store),
        rank=order["rank"],
        world_size=order["ranks"],
        timeout=timeout,
    )
    try:
        values = torch.ones(VALUES_ON_GPU if on_gpu else VALUES_ON_CPU, device="cuda:0" if on_gpu else "cpu")
        times = []
        for _ in range(TIMES):
            began = time.perf_counter()
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
            if on_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return min(times)
    finally:
        dist.destroy_process_group()


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
