"""Lines that other threads and programs write into a training's log, whatever the training does. Pure."""

# ruff: noqa: E501  (lines of output stand as they are written)

from __future__ import annotations

from tests.watch.trainers.day import Background, Now


def _memory(now: Now, n: int) -> str:
    return f"[mem] {now.clock('%H:%M:%S')} rss={21_300 + n % 700 + now.chance.randrange(90)} MiB shm={now.chance.randrange(300, 380)} MiB\n"


def _gpus(now: Now, n: int) -> str:
    used = [
        f"GPU{gpu} {now.chance.choice((0, 41, 97, 98, 99, 100))}% {71000 + now.chance.randrange(900)}MiB"
        for gpu in range(4)
    ]
    return f"{now.clock()} gpu-monitor: {', '.join(used)}\n"


def _loader(now: Now, n: int) -> str:
    return f"[dataloader] prefetched {64 * (n + 1)} shards, queue {now.chance.randrange(3, 17)}/16, {now.chance.randrange(80, 120)} MB/s\n"


def _nccl(now: Now, n: int) -> str:
    return (
        f"node01:{14022}:{14210 + n % 8} [{n % 8}] NCCL INFO [Service thread] keepalive {n} comm 0x55d0c{n % 4096:03x}"
        " rank 0 nranks 64\n"
    )


def _uptime(now: Now, n: int) -> str:
    return f"[agent] heartbeat {n}, up {int(now.elapsed_s)} s\n"


def _wandb(now: Now, n: int) -> str:
    return (
        f"wandb: Network error (ReadTimeout), entering retry loop. {n % 5 + 1}/20\n"
        if n % 7 == 3
        else (f"wandb: Syncing history, {37 * n + 12} files, {0.31 * n + 0.2:.1f} MB uploaded\n")
    )


def _warning(now: Now, n: int) -> str:
    return (
        f"/opt/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py:{now.chance.choice((557, 617))}: "
        "UserWarning: This DataLoader will create 16 worker processes in total.\n  warnings.warn(\n"
    )


def _watchdog(now: Now, n: int) -> str:
    return f"I{now.clock('%m%d %H:%M:%S.%f')} {14022} ProcessGroupNCCL.cpp:1316] [PG 0 Rank 0] status: {n} polls, last 300 s\n"


def _ray(now: Now, n: int) -> str:
    return f"(raylet) [{now.clock()}] node_manager: {now.chance.randrange(200, 230)} workers, object store {now.chance.randrange(20, 60)}% used\n"


def _scheduler(now: Now, n: int) -> str:
    return f"{now.clock('%Y-%m-%dT%H:%M:%S')} INFO scheduler: tick {n} (pending=0 running=1)\n"


def _power(now: Now, n: int) -> str:
    return f"power {now.chance.randrange(2100, 2700)} W, temperature {now.chance.randrange(51, 66)} C\n"


def _warm_up(now: Now, n: int) -> str:
    return f"lr warm-up {n + 1}/600: {3e-4 * (n + 1) / 600:.3e}\n"


MEMORY = Background(60.0, _memory)
GPUS = Background(30.0, _gpus)
LOADER = Background(20.0, _loader)
NCCL = Background(45.0, _nccl)
UPTIME = Background(60.0, _uptime)
WANDB = Background(300.0, _wandb)
WARNING = Background(1700.0, _warning)
WATCHDOG = Background(300.0, _watchdog)
RAY = Background(90.0, _ray)
SCHEDULER = Background(10.0, _scheduler)
POWER = Background(120.0, _power)
WARM_UP = Background(12.0, _warm_up, until_h=2.0)
MEMORY_UNTIL_KILLED = Background(60.0, _memory, until_h=6.0)
