"""What a log has around a failure: steps of a framework before it, the echo of a launcher after it."""

from __future__ import annotations

import random
from collections.abc import Callable

STEPS: dict[str, Callable[[int, float], str]] = {
    "none": lambda step, loss: f"2026-11-20 03:{step % 60:02}:11,412 - INFO - loading shard {step % 17} of 17",
    "hf": lambda step, loss: (
        f"{{'loss': {loss:.4f}, 'grad_norm': {loss / 3:.4f}, 'learning_rate': 9.7e-06, 'epoch': {step / 900:.2f}}}"
    ),
    "lightning": lambda step, loss: (
        f"Epoch 3:  {step % 100}%|####      | {step}/5000 [01:12<07:11, 11.52it/s, v_num=7, train_loss={loss:.3f}]"
    ),
    "nanogpt": lambda step, loss: f"iter {step}: loss {loss:.4f}, time 212.10ms, mfu 41.20%",
    "megatron": lambda step, loss: (
        f" [2026-11-20 03:14:15] iteration {step:8}/  500000 | consumed samples: {step * 512:12} | elapsed time per "
        f"iteration (ms): 2212.1 | learning rate: 1.500E-04 | global batch size:   512 | lm loss: {loss:.6E} | loss "
        "scale: 1.0 | grad norm: 0.412 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    "deepspeed": lambda step, loss: (
        f"[2026-11-20 03:14:15,926] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=2, lr=[0.0001], "
        f"mom=[(0.9, 0.95)] loss: {loss:.4f}"
    ),
    "fairseq": lambda step, loss: (
        f"2026-11-20 03:14:15 | INFO | train_inner | epoch 003: {step} / 9000 loss={loss:.3f}, ppl=12.1, wps=41235, "
        f"num_updates={step}, lr=0.0005, gnorm=0.812, loss_scale=4, wall=812"
    ),
    "timm": lambda step, loss: (
        f"Train: 12 [{step:4}/5004 ({step // 50:3}%)]  Loss: {loss:.3f} (3.12)  Time: 0.412s, 2485.12/s  LR: 1.000e-03"
    ),
    "torchtitan": lambda step, loss: (
        f"[rank0]:[titan] 2026-11-20 03:14:15,926 - root - INFO - step: {step}  loss:  {loss:.4f}  grad_norm:  0.8123"
        "  memory: 41.21GiB(52.11%)  tps: 7,812  tflops: 412.11  mfu: 41.67%"
    ),
    "jax": lambda step, loss: f"I1120 03:14:15.926535 4711 train.py:88] step {step}, loss = {loss:.5f}, 3.1 steps/s",
    "maxtext": lambda step, loss: (
        f"completed step: {step}, seconds: 2.212, TFLOP/s/device: 180.112, Tokens/s/device: 5123.1, loss: {loss:.3f}"
    ),
    "keras": lambda step, loss: f"{step}/5000 ━━━━━━━━━━━━━━━━━━━━ 3:12 41ms/step - accuracy: 0.712 - loss: {loss:.4f}",
    "nemo": lambda step, loss: (
        f"Training epoch 0, iteration {step}/500000 | lr: 0.0003 | global_batch_size: 512 | global_step: {step} | "
        f"reduced_train_loss: {loss:.3f} | train_step_timing in s: 2.212"
    ),
    "composer": lambda step, loss: f"[batch={step}/50000]: Train time/batch: {step} Train loss/train/total: {loss:.4f}",
}
START = (
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being "
    "overloaded, please further tune the variable for optimal performance in your application as needed.",
    "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader will "
    "create 8 worker processes in total. Our suggested max number of worker in current system is 4",
    "node07:4711:4711 [0] NCCL INFO cudaDriverVersion 12040",
    "wandb: Tracking run with wandb version 0.19.1; retry on network errors is on",
    "[WARNING] FileNotFoundError: no earlier checkpoint, starting from scratch (No such file or directory: last.pt)",
)
FRAMES = ("train.py", "pretrain_gpt.py", "main.py", "run_clm.py", "finetune.py")
PACKAGES = ("torch/nn/modules/module.py", "transformers/trainer.py", "lightning/pytorch/trainer/call.py")
NCCL = """\
[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, remote \
process exited or there was a network error, NCCL version 2.21.5
[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."""
WATCHDOG = """\
[rank2]:[E1120 03:24:15.926 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=8123, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600041 milliseconds before \
timing out."""
SIGTERM = """\
W1120 03:14:15.926 4711 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4712 closing \
signal SIGTERM
W1120 03:14:15.926 4711 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4713 closing \
signal SIGTERM
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15"""
ECHOES = {
    "bare": "",
    "srun": (
        "srun: error: node07: task {rank}: Exited with exit code 1\n"
        "slurmstepd: error: *** STEP 4242.0 ON node07 CANCELLED AT 2026-11-20T03:14:18 ***\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "srun: error: node08: tasks 8-15: Terminated"
    ),
    "torchrun": (
        "W1120 03:14:16.1 4700 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4712 closing "
        "signal SIGTERM\n"
        "E1120 03:14:16.9 4700 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: "
        "{rank} (pid: 4714) of binary: /opt/venv/bin/python\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/bin/torchrun", line 8, in <module>\n'
        "    sys.exit(main())\n"
        '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 269, in launch_agent\n'
        "    raise ChildFailedError(\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "============================================================\n"
        "train.py FAILED\n"
        "------------------------------------------------------------\n"
        "Root Cause (first observed failure):\n"
        "[0]:\n"
        "  time      : 2026-11-20_03:14:15\n"
        "  host      : node07\n"
        "  rank      : {rank} (local_rank: {rank})\n"
        "  exitcode  : 1 (pid: 4714)\n"
        "  error_file: <N/A>\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
        "============================================================"
    ),
    "deepspeed": (
        "[2026-11-20 03:14:17,001] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4711\n"
        "[2026-11-20 03:14:17,011] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4712\n"
        "[2026-11-20 03:14:17,021] [ERROR] [launch.py:325:sigkill_handler] ['/opt/venv/bin/python', '-u', 'train.py', "
        "'--local_rank={rank}'] exits with return code = 1"
    ),
    "accelerate": (
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/bin/accelerate", line 8, in <module>\n'
        "    sys.exit(main())\n"
        "subprocess.CalledProcessError: Command '['/opt/venv/bin/python', 'train.py']' returned non-zero exit status 1."
    ),
    "mpirun": (
        "--------------------------------------------------------------------------\n"
        "Primary job  terminated normally, but 1 process returned\n"
        "a non-zero exit code. Per user-direction, the job has been aborted.\n"
        "--------------------------------------------------------------------------\n"
        "mpirun detected that one or more processes exited with non-zero status, thus causing the job to be terminated."
    ),
}
ECHOES["srun-label"] = ECHOES["srun"]


def surround(body: str, framework: str, launcher: str, name: str) -> str:
    """Return a log that ends with this failure, the same each time for the same name."""
    chance = random.Random(name)
    rank = chance.randrange(8)
    prefix = {"torchrun": f"[rank{rank}]: ", "srun-label": f"{rank}: "}.get(launcher, "")
    first = chance.randrange(1000, 30000)
    lines = list(chance.sample(START, 3)) + _steps(framework, first, chance.randrange(8, 40), chance)
    for line in body.split("\n") if body else []:
        lines += [
            one if one.startswith(("[rank", "srun", "slurmstepd", "E1", "W1")) else prefix + one
            for one in _expand(line, framework, first, chance).split("\n")
        ]
    echo = ECHOES[launcher].format(rank=rank)
    return "\n".join([*lines, *([echo] if echo else [])]) + "\n"


def _steps(framework: str, first: int, number: int, chance: random.Random) -> list[str]:
    show = STEPS[framework]
    return [show(first + at, 3.1 - at / 1000 + chance.random() / 10) for at in range(number)]


def _expand(line: str, framework: str, first: int, chance: random.Random) -> str:
    match line:
        case "@tb":
            own, package, number = chance.choice(FRAMES), chance.choice(PACKAGES), chance.randrange(20, 400)
            return (
                "Traceback (most recent call last):\n"
                f'  File "/home/ada/{own}", line {number + 40}, in <module>\n    main()\n'
                f'  File "/home/ada/{own}", line {number}, in main\n    run(model, batch)\n'
                f'  File "/opt/venv/lib/python3.11/site-packages/{package}", line {number * 3}, in _call\n'
                "    return function(*args, **kwargs)"
            )
        case "@worker":
            return (
                "RuntimeError: Caught exception in DataLoader worker process 3.\nOriginal Traceback (most recent call "
                'last):\n  File "/home/ada/data.py", line 31, in __getitem__\n    return self.read(index)'
            )
        case "@during":
            return "\nDuring handling of the above exception, another exception occurred:\n"
        case "@nccl":
            return NCCL
        case "@watchdog":
            return WATCHDOG
        case "@sigterm":
            return SIGTERM
        case "@steps":
            return "\n".join(_steps(framework, first + 100, 12, chance))
    return line
