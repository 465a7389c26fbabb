"""Trainers of language models: Megatron-LM, DeepSpeed, the Hugging Face family, and those of the large runs."""

# ruff: noqa: E501  (lines of output stand as they are written)

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.watch.trainers.background import (
    GPUS,
    LOADER,
    MEMORY,
    MEMORY_UNTIL_KILLED,
    NCCL,
    RAY,
    SCHEDULER,
    UPTIME,
    WANDB,
    WARM_UP,
    WARNING,
    WATCHDOG,
)
from tests.watch.trainers.day import Background, Now, Trainer


class Megatron(Trainer):
    """Megatron-LM with silent evaluations of seven minutes and saves of two."""

    step_s, log_every, total = 2.3, 10, 500_000
    start_s = (15.0, 60.0, 240.0, 90.0)
    eval_every, eval_s = 1000, 420.0
    save_every, save_s = 1000, 130.0
    walltime_h, place = 6.0, "run"
    background: Sequence[Background] = (NCCL,)
    pause_s = 480.0

    def starts(self, now: Now) -> Sequence[str]:
        return (
            "using world size: 64, data-parallel size: 8, tensor-model-parallel size: 8\n",
            f" loading distributed checkpoint from /ckpt at iteration {now.step}\n",
            f"  successfully loaded checkpoint from /ckpt [ t 1/8, p 1/1 ] at iteration {now.step}\n"
            f"[before the start of training step] datetime: {now.clock()} \n",
        )

    def step(self, now: Now) -> str:
        return (
            f" [{now.clock()}] iteration {now.step:8d}/{now.total:8d} | consumed samples: {1024 * now.step:12d} | elapsed"
            f" time per iteration (ms): {1000 * now.step_s:.1f} | throughput per GPU (TFLOP/s/GPU):"
            f" {410 * now.chance.gauss(1, 0.01):.1f} | learning rate: {now.lr:.6E} | global batch size:  1024 | lm loss:"
            f" {now.loss:.6E} | loss scale: 1.0 | grad norm: {now.norm:.3f} | number of skipped iterations:   0 |"
            " number of nan iterations:   0 |\n"
        )

    def ends_eval(self, now: Now) -> str:
        text = f" validation loss at iteration {now.step} | lm loss value: {now.loss:.6E} | lm loss PPL: {2**now.loss:.6E} | "
        return f"{'-' * len(text)}\n{text}\n{'-' * len(text)}\n"

    def begins_save(self, now: Now) -> str:
        return f"saving checkpoint at iteration {now.step:7d} to /ckpt in torch_dist format\n"

    def ends_save(self, now: Now) -> str:
        return f"  successfully saved checkpoint from iteration {now.step:7d} to /ckpt [ t 1/8, p 1/1 ]\n"


class MegatronLarge(Megatron):
    """A model whose step takes 100 s; evaluations of 40 minutes that say `Evaluating iter`."""

    step_s, log_every = 98.0, 1
    start_s = (30.0, 300.0, 900.0, 300.0)
    eval_every, eval_s, eval_lines = 150, 2400.0, 10
    save_every, save_s = 60, 90.0
    walltime_h, background, pause_s = 0.0, (), 0.0
    place, slows = "path", True

    def begins_eval(self, now: Now) -> str:
        return "Evaluating on 163840 samples\n"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"Evaluating iter {n}/{of}\n"


class GptNeox(Trainer):
    """GPT-NeoX, whose evaluations are silent."""

    step_s, log_every, total = 8.4, 10, 320_000
    start_s = (20.0, 200.0, 200.0)
    eval_every, eval_s, save_every, save_s = 500, 900.0, 500, 60.0
    background = (WANDB, MEMORY)
    slows = True

    def starts(self, now: Now) -> Sequence[str]:
        return ("NeoXArgs.from_ymls() ['configs/20B.yml']\n", "done with setup ...\n")

    def step(self, now: Now) -> str:
        return (
            f" samples/sec: {1024 / now.step_s:.3f} | iteration {now.step:8d}/{now.total:8d} | elapsed time per iteration"
            f" (ms): {1000 * now.step_s:.1f} | learning rate: {now.lr:.3E} | approx flops per GPU: 48.2TFLOPS | lm_loss:"
            f" {now.loss:.6E} | loss scale: 65536.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )

    def ends_eval(self, now: Now) -> str:
        return f" validation results at iteration {now.step} | lm_loss value: {now.loss:.6E} | lm_loss_ppl value: 4.9E+00 | \n"

    def ends_save(self, now: Now) -> str:
        return (
            f"[{now.clock()},{123}] [INFO] [logging.py:60:log_dist] [Rank 0] Saving model checkpoint: ckpt/{now.step}\n"
        )


class DeepSpeed(Trainer):
    """DeepSpeed: two lines each ten steps, the second with the timer's counters."""

    step_s, log_every = 3.1, 10
    start_s = (20.0, 100.0, 100.0)
    save_every, save_s = 400, 240.0
    background = (GPUS, UPTIME)
    walltime_h, place = 5.0, "pattern"

    def starts(self, now: Now) -> Sequence[str]:
        head = f"[{now.clock()},{104}] [INFO]"
        return (
            f"{head} [comm.py:637:init_distributed] cdb=None\n",
            f"{head} [engine.py:171:_configure_lr] DeepSpeed LR\n",
        )

    def step(self, now: Now) -> str:
        head = f"[{now.clock('%Y-%m-%d %H:%M:%S,%f')}] [INFO]"
        return (
            f"{head} [logging.py:96:log_dist] [Rank 0] step={now.step}, skipped=0, lr=[{now.lr}, {now.lr}], mom=[(0.9,"
            f" 0.95), (0.9, 0.95)]\n{head} [timer.py:215:stop] epoch=0/micro_step={4 * now.step}/global_step={now.step},"
            f" RunningAvgSamplesPerSec={41.2 * now.chance.gauss(1, 0.001)}, CurrSamplesPerSec={128 / now.step_s},"
            " MemAllocated=22.4GB, MaxMemAllocated=61.2GB\n"
        )

    def begins_save(self, now: Now) -> str:
        head = f"[{now.clock('%Y-%m-%d %H:%M:%S,%f')}] [INFO]"
        return (
            f"{head} [torch_checkpoint_engine.py:21:save] [Torch] Saving ckpt/global_step{now.step}/mp_rank_00.pt...\n"
        )

    def ends_save(self, now: Now) -> str:
        head = f"[{now.clock('%Y-%m-%d %H:%M:%S,%f')}] [INFO]"
        return f"{head} [torch_checkpoint_engine.py:23:save] [Torch] Saved ckpt/global_step{now.step}/mp_rank_00.pt.\n"


class HuggingFace(Trainer):
    """The Trainer with its tqdm bar, whose evaluations have a bar of their own."""

    step_s, log_every, total = 3.0, 1, 40_000
    start_s = (30.0, 90.0, 60.0)
    eval_every, eval_s, eval_lines = 500, 240.0, 60
    save_every, save_s = 500, 35.0
    epoch_steps = 7440
    reload_s = 70.0
    background: Sequence[Background] = (WARNING,)

    def starts(self, now: Now) -> Sequence[str]:
        return (
            "Loading checkpoint shards: 100%|██████████| 4/4 [00:21<00:00,  5.31s/it]\n",
            f"***** Running training *****\n  Num examples = 952,320\n  Total optimization steps = {now.total:,}\n"
            f"\r  0%|          | 0/{now.total} [00:00<?, ?it/s]",
        )

    def step(self, now: Now) -> str:
        bar = "\r" + now.bar(now.step, now.total)
        return bar if now.step % 20 else f"{bar}\r{' ' * 60}\r{self.logs(now)}\n{bar}"

    def logs(self, now: Now) -> str:
        """The dictionary of a step."""
        epoch = now.step / (self.epoch_steps or 7440)
        return f"{{'loss': {now.loss:.4f}, 'grad_norm': {now.norm:.6f}, 'learning_rate': {now.lr:.6e}, 'epoch': {epoch:.2f}}}"

    def begins_eval(self, now: Now) -> str:
        return "\n***** Running Evaluation *****\n  Num examples = 4800\n  Batch size = 8\n"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"\r{now.bar(10 * n, 600, per_s=self.eval_s / 600)}"

    def ends_eval(self, now: Now) -> str:
        return f"\n{{'eval_loss': {now.loss:.6f}, 'eval_runtime': {self.eval_s:.4f}, 'epoch': {now.step / 7440:.2f}}}\n"

    def begins_save(self, now: Now) -> str:
        return f"Saving model checkpoint to out/checkpoint-{now.step}\n"

    def ends_save(self, now: Now) -> str:
        return f"tokenizer config file saved in out/checkpoint-{now.step}/tokenizer_config.json\n"


class HuggingFaceWithoutBar(HuggingFace):
    """`disable_tqdm=True`: only dictionaries, whose epoch has two decimals; evaluations and saves say nothing."""

    log_every = 50
    eval_lines, eval_s, eval_every = 0, 700.0, 1000
    save_every = 1000
    epoch_steps = 0
    background: Sequence[Background] = (MEMORY_UNTIL_KILLED,)
    slows = True

    def starts(self, now: Now) -> Sequence[str]:
        return ("loading model\n", "tokenizing\n")

    def step(self, now: Now) -> str:
        return f"{self.logs(now)}\n"

    def begins_eval(self, now: Now) -> str:
        return ""

    def ends_eval(self, now: Now) -> str:
        return super().ends_eval(now).lstrip("\n")

    def begins_save(self, now: Now) -> str:
        return ""

    def ends_save(self, now: Now) -> str:
        return ""


class HuggingFaceFive(HuggingFaceWithoutBar):
    """Transformers 5, whose values are strings; the same rounded epoch for an hour."""

    step_s, log_every, save_every, eval_every = 11.0, 10, 300, 300
    background = (GPUS, WANDB)
    slows, pause_s = False, 420.0

    def logs(self, now: Now) -> str:
        epoch = f"{now.step / 90_000:.3g}"
        return f"{{'loss': '{now.loss:.4g}', 'grad_norm': '{now.norm:.4g}', 'learning_rate': '{now.lr:.4g}', 'epoch': '{epoch}'}}"


class Trl(HuggingFaceWithoutBar):
    """GRPO: long dictionaries with rewards that rise and fall."""

    step_s, log_every, noise = 41.0, 1, 0.2
    eval_every, save_every, save_s = 0, 100, 90.0
    background = (SCHEDULER,)
    slows = False
    place, walltime_h = "run", 8.0
    queue_s = 2400.0

    def logs(self, now: Now) -> str:
        reward = 0.5 + 0.4 * now.chance.random()
        length = now.chance.uniform(180, 260)
        return (
            f"{{'loss': {now.chance.gauss(0, 0.01):.4f}, 'grad_norm': {now.norm:.4f}, 'learning_rate': {now.lr:.3e},"
            f" 'num_tokens': {30000.0 * now.step}, 'completions/mean_length': {length:.2f}, 'rewards/accuracy/mean':"
            f" {reward:.4f}, 'reward': {reward:.4f}, 'reward_std': {now.chance.random():.4f}, 'kl': 0.0{now.chance.randrange(999)},"
            f" 'epoch': {now.step / 60_000:.2f}}}"
        )


class Swift(HuggingFace):
    """ms-swift: dictionaries with `global_step/max_steps`, beside the bar."""

    step_s, total = 4.4, 25_000
    eval_s, eval_lines, save_s = 900.0, 30, 60.0
    background = (UPTIME,)

    def step(self, now: Now) -> str:
        bar = "\rTrain: " + now.bar(now.step, now.total)
        return bar if now.step % 5 else f"\n{self.logs(now)}\n{bar}"

    def logs(self, now: Now) -> str:
        return (
            f"{{'loss': {now.loss:.8f}, 'grad_norm': {now.norm:.8f}, 'learning_rate': {now.lr:.2e}, 'memory(GiB)': 41.02,"
            f" 'train_speed(iter/s)': {1 / now.step_s:.6f}, 'epoch': {now.step / 7440:.2f}, 'global_step/max_steps':"
            f" '{now.step}/{now.total}', 'percentage': '{now.percent}.00%', 'elapsed_time': '{int(now.elapsed_s) // 60}m"
            f" {int(now.elapsed_s) % 60}s', 'remaining_time': '{(now.total - now.step) // 800}h 2m 10s'}}"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"\rVal: {now.bar(n, of, per_s=30)}"


class LlamaFactory(HuggingFaceWithoutBar):
    """LLaMA-Factory: a callback logs dictionaries with a time and the throughput."""

    step_s, log_every, save_every, save_s, eval_every = 6.2, 10, 200, 75.0, 0
    background = (LOADER,)
    slows = False

    def step(self, now: Now) -> str:
        rate = f"{5200 * now.chance.gauss(1, 0.01):.2f}"
        return (
            f"[INFO|{now.clock()}] llamafactory.train.callbacks:143 >> {{'loss': {now.loss:.4f}, 'learning_rate':"
            f" {now.lr:.4e}, 'epoch': {now.step / 7440:.2f}, 'throughput': {rate}}}\n"
        )

    def begins_save(self, now: Now) -> str:
        return f"[INFO|trainer.py:3984] {now.clock()} >> Saving model checkpoint to saves/checkpoint-{now.step}\n"


class Axolotl(HuggingFace):
    """axolotl: the Trainer's bar and dictionaries between prefixed lines of every rank."""

    step_s, total, eval_every, save_every = 1.4, 60_000, 2000, 2000
    eval_s, eval_lines = 200.0, 20
    background = (GPUS, WANDB)
    pause_s = 480.0

    def step(self, now: Now) -> str:
        text = super().step(now)
        if now.step % 300:
            return text
        head = f"[{now.clock('%Y-%m-%d %H:%M:%S,%f')}] [INFO] [axolotl.callbacks.log_gpu_memory:103]"
        return f"{text}\n" + "".join(
            f"{head} [PID:{900 + rank}] [RANK:{rank}] GPU memory usage: 61.2GB\n" for rank in range(4)
        )


class Accelerate(Trainer):
    """run_clm_no_trainer of Accelerate: one bar over all epochs, evaluations without output of 12 minutes."""

    step_s, log_every, total = 0.9, 2, 90_000
    start_s = (15.0, 120.0, 30.0)
    epoch_steps, eval_every, eval_s = 9000, -1, 720.0
    save_every, save_s = -1, 20.0

    def starts(self, now: Now) -> Sequence[str]:
        head = f"{now.clock('%m/%d/%Y %H:%M:%S')} - INFO - __main__ -"
        return (f"{head} Distributed environment: MULTI_GPU\n", f"{head} ***** Running training *****\n")

    def step(self, now: Now) -> str:
        return f"\r{now.bar(now.step, now.total)}"

    def ends_eval(self, now: Now) -> str:
        head = f"{now.clock('%m/%d/%Y %H:%M:%S')} - INFO - __main__ -"
        return f"\n{head} epoch {now.epoch}: perplexity: {2**now.loss:.4f} eval_loss: {now.loss:.6f}\n"


class Composer(Trainer):
    """Composer (LLM Foundry): a block of lines each batch, the counters of time falling and rising with epochs."""

    step_s, log_every, total, epoch_steps = 5.5, 4, 19_200, 1200
    start_s = (20.0, 200.0, 300.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 600, 1500.0, 0, 600, 100.0
    background = (MEMORY, NCCL)

    def starts(self, now: Now) -> Sequence[str]:
        return (
            "Building train loader...\n",
            "Starting training...\n" + "*" * 30 + "\nConfig:\nnum_nodes: 2\n" + "*" * 30 + "\n",
        )

    def step(self, now: Now) -> str:
        left = (now.total - now.step) * now.step_s / 3600
        return (
            f"[batch={now.step}/{now.total}]:\n\t Train time/epoch: {now.epoch}\n\t Train time/batch: {now.step - 1}\n\t"
            f" Train time/sample: {512 * (now.step - 1)}\n\t Train time/batch_in_epoch: {now.k - 1}\n\t Train time/token:"
            f" {1048576 * (now.step - 1)}\n\t Train memory/peak_allocated_mem: 41.2010\n\t Train loss/train/total:"
            f" {now.loss:.4f}\n\t Train throughput/batches_per_sec: {1 / now.step_s:.4f}\n\t Train time/train:"
            f" {now.elapsed_s / 3600:.4f}\n\t Train time/remaining_estimate: {left:.4f}\n\t Train lr-DecoupledAdamW/group0: {now.lr:.4f}\n"
        )

    def ends_eval(self, now: Now) -> str:
        return f"[Eval batch=300/300] Eval on eval data:\n\t Eval metrics/eval/LanguagePerplexity: {2**now.loss:.4f}\n"


class MaxText(Trainer):
    """MaxText: a line each step, after a compilation of 20 minutes; asynchronous saves."""

    step_s, log_every = 3.1, 1
    start_s = (10.0, 40.0, 1150.0)
    save_every, save_s = 1000, 8.0
    eval_every, eval_s = 2000, 330.0
    background = (WATCHDOG, WARM_UP)
    slows = True

    def starts(self, now: Now) -> Sequence[str]:
        return ("System Information: Jax Version: 0.4.38\n", "number parameters: 8.030 billion\n")

    def step(self, now: Now) -> str:
        return (
            f"completed step: {now.step}, seconds: {now.step_s:.3f}, TFLOP/s/device: {210 * now.chance.gauss(1, 0.01):.3f},"
            f" Tokens/s/device: {16384 / now.step_s:.3f}, total_weights: 131072, loss: {now.loss:.3f}\n"
        )

    def ends_eval(self, now: Now) -> str:
        return f"average loss after step {now.step}: eval_loss={now.loss:.3f}, total_weights=1048576.0\n"

    def ends_save(self, now: Now) -> str:
        return f"saved a checkpoint at step {now.step}\n"


class TorchTitan(Trainer):
    """torchtitan, with its colours."""

    step_s, log_every = 4.2, 10
    start_s = (10.0, 60.0, 400.0)
    save_every, save_s, eval_every, eval_s = 500, 55.0, 500, 200.0
    walltime_h, place, background = 4.0, "run", (WARNING,)
    queue_s = 1500.0

    def starts(self, now: Now) -> Sequence[str]:
        head = f"[rank0]:[titan] {now.clock('%Y-%m-%d %H:%M:%S,%f')} - root - INFO -"
        return (f"{head} Starting job: Llama 3 8B training\n", f"{head} Training starts at step {now.step + 1}\n")

    def step(self, now: Now) -> str:
        return (
            f"[rank0]:[titan] {now.clock('%Y-%m-%d %H:%M:%S,%f')} - root - INFO - \x1b[31mstep: {now.step:2}  \x1b[32mloss:"
            f" {now.loss:7.4f}  \x1b[38;2;180;60;0mgrad_norm: {now.norm:7.4f}  \x1b[38;2;54;234;195mmemory: 40.12GiB(50.65%)"
            f"  \x1b[34mtps: {round(8192 / now.step_s):,}  \x1b[36mtflops: {210 * now.chance.gauss(1, 0.01):,.2f}"
            "  \x1b[35mmfu: 21.26%\x1b[39m\n"
        )

    def begins_save(self, now: Now) -> str:
        return f"[rank0]:[titan] {now.clock('%Y-%m-%d %H:%M:%S,%f')} - root - INFO - Saving the checkpoint (or staging if async is enabled).\n"

    def ends_save(self, now: Now) -> str:
        head = f"[rank0]:[titan] {now.clock('%Y-%m-%d %H:%M:%S,%f')} - root - INFO -"
        return f"{head} Finished saving the checkpoint (or staging if async is enabled) in {self.save_s:.2f} seconds.\n"


class Nemo(Trainer):
    """NeMo 1: Lightning's bar with global_step as a float."""

    step_s, log_every, total = 3.0, 1, 30_000
    start_s = (60.0, 400.0, 200.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 800, 360.0, 30, 800, 160.0
    background = (NCCL,)

    def step(self, now: Now) -> str:
        more = (
            f", v_num=0, reduced_train_loss={now.loss:.3f}, global_step={now.step - 1}.0, consumed_samples="
            f"{512.0 * now.step:.3g}, train_step_timing in s={now.step_s:.3f}"
        )
        return f"\rEpoch 0: : {now.bar(now.step, now.total, more=more)}"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"\n\rValidation DataLoader 0: {now.bar(n, of, per_s=12)}\x1b[A"

    def ends_eval(self, now: Now) -> str:
        return f"\nEpoch 0, global step {now.step}: 'val_loss' reached {now.loss:.5f}, saving model to '/ckpt/{now.step}.ckpt'\n"


class NemoTwo(Trainer):
    """NeMo 2 with its plain printer: one line of pipes and slashes each step."""

    step_s, log_every, total = 7.4, 1, 10_000
    start_s = (60.0, 300.0, 500.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 250, 600.0, 20, 250, 60.0
    background = (GPUS,)
    walltime_h, place = 4.0, "pattern"

    def step(self, now: Now) -> str:
        return (
            f"Training epoch 0, iteration {now.step - 1}/{now.total - 1} | lr: {now.lr:.4g} | consumed_samples:"
            f" {512 * now.step} | global_batch_size: 512 | global_step: {now.step - 1} | reduced_train_loss: {now.loss:.4g} |"
            f" train_step_timing in s: {now.step_s:.4g}\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"Validation: iteration {n}/{of}\n"


class Verl(Trainer):
    """verl on Ray: a line each 93 s, whose lengths vary by half; a validation each 20 steps, silent."""

    step_s, log_every, total, noise = 93.0, 1, 1000, 0.25
    start_s = (60.0, 700.0, 1400.0)
    eval_every, eval_s, save_every, save_s = 20, 1100.0, 20, 150.0
    background = (RAY,)

    def starts(self, now: Now) -> Sequence[str]:
        return (
            "INFO worker.py:1843 -- Started a local Ray instance.\n",
            "(TaskRunner pid=12345) Total training steps: 1000\n",
        )

    def step(self, now: Now) -> str:
        tokens = now.chance.randrange(420_000, 500_000)
        line = (
            f"(TaskRunner pid=12345) step:{now.step} - global_seqlen/min:{tokens - 30000} - global_seqlen/max:{tokens + 30000}"
            f" - global_seqlen/mean:{tokens}.5 - actor/entropy:{now.chance.random():.6f} - actor/pg_loss:"
            f"{now.chance.gauss(0, 0.05):.6f} - actor/grad_norm:{now.norm:.4f} - training/global_step:{now.step} -"
            f" training/epoch:0 - critic/score/mean:{now.chance.random():.4f} - timing_s/gen:{0.6 * now.step_s:.3f} -"
            f" timing_s/step:{now.step_s:.3f} - perf/throughput:{tokens / now.step_s / 8:.3f}\n"
        )
        return f"{line}Training Progress: {now.bar(now.step, now.total)}\n"


class Fairseq(Trainer):
    """fairseq's simple format: `epoch 003:    120 / 1251 loss=2.312, ...`."""

    step_s, log_every, epoch_steps = 0.6, 100, 9000
    start_s = (20.0, 100.0, 30.0)
    eval_every, eval_s, save_every, save_s = -1, 500.0, -1, 60.0
    reload_s = 180.0
    background: Sequence[Background] = (LOADER, WARNING)

    def begins_epoch(self, now: Now) -> str:
        return f"{self._head(now, 'fairseq.trainer')} begin training epoch {now.epoch + 1}\n"

    def step(self, now: Now) -> str:
        return (
            f"{self._head(now, 'train_inner')} epoch {now.epoch + 1:03d}: {now.k:6d} / {now.of} loss={now.loss:.3f}, "
            f"nll_loss={now.loss - 0.4:.3f}, ppl={2**now.loss:.2f}, wps={41000 / now.step_s:.1f}, ups={1 / now.step_s:.2f}, "
            f"wpb=41021.3, bsz=1024, num_updates={now.step}, lr={now.lr:.6g}, gnorm={now.norm:.3f}, clip=0, "
            f"train_wall={now.elapsed_s * 0.9:.0f}, gb_free=20.1, wall={now.elapsed_s:.0f}\n"
        )

    def ends_eval(self, now: Now) -> str:
        return (
            f"{self._head(now, 'valid')} epoch {now.epoch + 1:03d} | valid on 'valid' subset | loss {now.loss:.3f} | ppl"
            f" {2**now.loss:.2f} | num_updates {now.step} | best_loss {now.loss:.3f}\n"
        )

    def begins_save(self, now: Now) -> str:
        return f"{self._head(now, 'fairseq.checkpoint_utils')} Preparing to save checkpoint for epoch {now.epoch + 1} @ {now.step} updates\n"

    def ends_save(self, now: Now) -> str:
        return f"{self._head(now, 'fairseq.checkpoint_utils')} Saved checkpoint ckpt/checkpoint{now.epoch + 1}.pt\n"

    def _head(self, now: Now, name: str) -> str:
        return f"{now.clock()} | INFO | {name} |"


class FairseqJson(Fairseq):
    """fairseq with `--log-format json`."""

    step_s, log_every, epoch_steps, reload_s = 1.9, 50, 4000, 400.0
    background = (UPTIME,)

    def step(self, now: Now) -> str:
        values = {
            "epoch": now.epoch + 1, "update": round(now.epoch + now.k / now.of, 3), "loss": f"{now.loss:.3f}",
            "ppl": f"{2**now.loss:.2f}", "ups": f"{1 / now.step_s:.2f}", "num_updates": str(now.step),
            "lr": f"{now.lr:.6g}", "gnorm": f"{now.norm:.3f}", "wall": f"{now.elapsed_s:.0f}",
        }  # fmt: skip
        return f"{self._head(now, 'train_inner')} {json.dumps(values)}\n"


class FairseqTwo(Trainer):
    """fairseq2: metrics with the step in brackets and thousands separators."""

    step_s, log_every = 1.2, 100
    start_s = (15.0, 60.0, 60.0)
    eval_every, eval_s, save_every, save_s = 2000, 150.0, 2000, 45.0
    slows = True

    def step(self, now: Now) -> str:
        return (
            f"[{now.clock()}] [Rank 0] INFO fairseq2 - Train Metrics (step {now.step:,}) - NLL Loss: {now.loss:.4f} | Gradient"
            f" Norm: {now.norm:.4f} | Learning Rate: {now.lr:.5g} | Batch Size: 512 | Elements per Second: 41,200 | Wall Time:"
            f" {now.long(now.elapsed_s)}\n"
        )

    def begins_save(self, now: Now) -> str:
        return f"[{now.clock()}] [Rank 0] INFO fairseq2 - Saving checkpoint at step {now.step}.\n"


class Olmo(Trainer):
    """OLMo: a line with step and epoch, and its metrics below."""

    step_s, log_every, total = 2.8, 10, 739_328
    start_s = (20.0, 200.0, 400.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 1000, 800.0, 40, 1000, 70.0
    background = (MEMORY,)

    def step(self, now: Now) -> str:
        return (
            f"{self._head(now)}\t[step={now.step}/{now.total},epoch=0]\n    optim/total_grad_norm={now.norm:.4f}\n"
            f"    train/CrossEntropyLoss={now.loss:.3f}\n    train/Perplexity={2**now.loss:.2f}\n"
            f"    throughput/total_tokens={4194304 * now.step:,}\n    throughput/device/batches_per_second={1 / now.step_s:.4f}\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"{self._head(now)}\t[eval_step={n}/{of}]\n"

    def _head(self, now: Now) -> str:
        return f"{now.clock('%Y-%m-%d %H:%M:%S.%f')}\tnode01:0\tolmo.train:845\tINFO"


class LitGpt(Trainer):
    """LitGPT: iterations and steps, and the remaining time in days."""

    step_s, log_every = 0.37, 40
    start_s = (10.0, 40.0, 30.0)
    eval_every, eval_s, save_every, save_s = 8000, 140.0, 8000, 30.0
    pause_s = 480.0

    def step(self, now: Now) -> str:
        return (
            f"Epoch 1 | iter {now.step} step {now.step // 4} | loss train: {now.loss:.3f}, val: n/a | iter time:"
            f" {1000 * now.step_s:.2f} ms{' (step)' if now.step % 4 == 0 else ''} remaining time: 2 days, 3:12:10\n"
        )

    def begins_eval(self, now: Now) -> str:
        return "Validating ...\n"

    def ends_eval(self, now: Now) -> str:
        return f"iter {now.step}: val loss {now.loss:.4f}, val time: {1000 * self.eval_s:.2f} ms\n"

    def begins_save(self, now: Now) -> str:
        return f"Saving checkpoint to 'out/step-{now.step // 4:08d}/lit_model.pth'\n"


class NanoGpt(Trainer):
    """nanoGPT."""

    step_s, log_every, total = 0.37, 10, 600_000
    start_s = (5.0, 20.0, 90.0)
    eval_every, eval_s, save_every, save_s = 2000, 200.0, 2000, 12.0

    def step(self, now: Now) -> str:
        return f"iter {now.step}: loss {now.loss:.4f}, time {1000 * now.step_s:.2f}ms, mfu {12.3 * now.chance.gauss(1, 0.01):.2f}%\n"

    def ends_eval(self, now: Now) -> str:
        return f"step {now.step}: train loss {now.loss:.4f}, val loss {now.loss + 0.1:.4f}\n"

    def begins_save(self, now: Now) -> str:
        return "saving checkpoint to out\n"


TRAINERS: tuple[type[Trainer], ...] = (
    Megatron, MegatronLarge, GptNeox, DeepSpeed, HuggingFace, HuggingFaceWithoutBar, HuggingFaceFive, Trl, Swift,
    LlamaFactory, Axolotl, Accelerate, Composer, MaxText, TorchTitan, Nemo, NemoTwo, Verl, Fairseq, FairseqJson,
    FairseqTwo, Olmo, LitGpt, NanoGpt,
)  # fmt: skip
