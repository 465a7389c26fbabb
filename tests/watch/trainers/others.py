"""Trainings of other kinds: reinforcement learning, trees, and scripts that people write themselves."""

# ruff: noqa: E501  (lines of output stand as they are written)

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.watch.trainers.background import (
    GPUS,
    LOADER,
    MEMORY_UNTIL_KILLED,
    NCCL,
    POWER,
    RAY,
    SCHEDULER,
    UPTIME,
    WARM_UP,
    WARNING,
)
from tests.watch.trainers.day import Background, Now, Trainer


class StableBaselines(Trainer):
    """Stable-Baselines3: a table each iteration, whose rewards rise and fall."""

    step_s, log_every = 21.0, 1
    start_s = (5.0, 10.0, 20.0)
    eval_every, eval_s = 60, 240.0
    background = (WARNING,)

    def step(self, now: Now) -> str:
        rows = (
            ("rollout/", ""), ("   ep_len_mean", f"{now.chance.randrange(150, 500)}"), ("   ep_rew_mean", f"{now.chance.gauss(190, 40):.0f}"),
            ("time/", ""), ("   fps", f"{now.chance.randrange(1100, 1300)}"), ("   iterations", f"{now.step}"),
            ("   time_elapsed", f"{now.elapsed_s:.0f}"), ("   total_timesteps", f"{24576 * now.step}"),
            ("train/", ""), ("   approx_kl", f"{now.norm / 30:.9f}"), ("   loss", f"{now.chance.gauss(10, 4):.3g}"),
        )  # fmt: skip
        rule = "-" * 42 + "\n"
        return rule + "".join(f"| {name:24s}| {value:13s}|\n" for name, value in rows) + rule

    def ends_eval(self, now: Now) -> str:
        return f"Eval num_timesteps={24576 * now.step}, episode_reward={now.chance.gauss(200, 50):.2f} +/- 12.31\nEpisode length: 411.20 +/- 20.00\n"


def _status(now: Now, n: int) -> str:
    return (
        f"== Status ==\nCurrent time: {now.clock()} (running for {now.long(now.elapsed_s):0>8}.12)\n"
        f"Using FIFO scheduling algorithm.\nLogical resource usage: 9.0/16 CPUs, 1.0/1 GPUs\nNumber of trials: 1/1 (1 RUNNING)\n\n"
    )


class Rllib(Trainer):
    """RLlib under Tune: a status each 30 s, however long no iteration ends; and results."""

    step_s, log_every = 64.0, 1
    start_s = (20.0, 60.0, 60.0)
    save_every, save_s = 50, 12.0
    background = (Background(30.0, _status),)

    def step(self, now: Now) -> str:
        return (
            f"Result for PPO_env_{7}a3f1_00000:\n  date: {now.clock('%Y-%m-%d_%H-%M-%S')}\n  episode_reward_mean: {now.chance.gauss(190, 30):.3f}\n"
            f"  num_env_steps_sampled: {4000 * now.step}\n  time_total_s: {now.elapsed_s:.3f}\n  training_iteration: {now.step}\n\n"
        )


class Graphs(Trainer):
    """PyTorch Geometric: one line an epoch, some a second."""

    step_s, log_every = 0.31, 20
    start_s = (5.0, 40.0)
    slows = True

    def starts(self, now: Now) -> Sequence[str]:
        return ("Processing...\nDone!\n",)

    def step(self, now: Now) -> str:
        return f"Epoch: {now.step:03d}, Loss: {now.loss:.4f}, Train: {now.chance.random():.4f}, Val: 0.7812, Test: 0.7912\n"


class XgBoost(Trainer):
    """XGBoost: `[120]\ttrain-rmse:`."""

    step_s, log_every = 4.0, 1
    start_s = (30.0, 300.0)
    background = (MEMORY_UNTIL_KILLED,)

    def step(self, now: Now) -> str:
        return f"[{now.step}]\ttrain-rmse:{now.loss:.5f}\teval-rmse:{now.loss + 0.2:.5f}\n"


class LightGbm(Trainer):
    """LightGBM: metrics by trees, between warnings."""

    step_s, log_every = 2.2, 10
    start_s = (60.0, 200.0)
    pause_s = 300.0

    def step(self, now: Now) -> str:
        warning = (
            "[LightGBM] [Warning] No further splits with positive gain, best gain: -inf\n"
            if now.chance.random() < 0.2
            else ""
        )
        return f"{warning}[{now.step}]\ttraining's l2: {now.loss:.6f}\tvalid_1's l2: {now.loss + 0.1:.6f}\n"


class CatBoost(Trainer):
    """CatBoost: `120:\tlearn: 0.3123\ttest: 0.41\tbest: ...`."""

    step_s, log_every = 7.0, 5
    start_s = (120.0, 60.0)
    background = (SCHEDULER,)

    def step(self, now: Now) -> str:
        return (
            f"{now.step}:\tlearn: {now.loss:.7f}\ttest: {now.loss + 0.1:.7f}\tbest: {now.loss + 0.09:.7f} ({now.step - 3})\ttotal:"
            f" {int(now.elapsed_s) // 60}m {int(now.elapsed_s) % 60}s\tremaining: {now.chance.randrange(3, 60)}h 12m\n"
        )


class OnlyNumbers(Trainer):
    """A script that prints its loss, and nothing else."""

    step_s, log_every = 9.0, 1
    start_s = (5.0, 100.0)

    def starts(self, now: Now) -> Sequence[str]:
        return ("cuda\n",)

    def step(self, now: Now) -> str:
        return f"{now.loss}\n"


class OnlyNumbersWithMonitor(OnlyNumbers):
    """The same, beside a monitor of the GPUs."""

    step_s, noise = 14.0, 0.3
    background = (GPUS,)


class Samples(Trainer):
    """A script of its own: `processed 120000 samples, 43 samples/s`."""

    step_s, log_every = 6.0, 5
    start_s = (5.0, 200.0)
    eval_every, eval_s = 600, 800.0
    background = (POWER, WARM_UP)

    def step(self, now: Now) -> str:
        return f"processed {256 * now.step} samples, {256 / now.step_s:.1f} samples/s\n"

    def ends_eval(self, now: Now) -> str:
        return f"dev accuracy {100 * now.chance.random():.2f}\n"


class JsonLines(Trainer):
    """JSON lines, those of the system beside those of the training."""

    step_s, log_every = 2.0, 10
    start_s = (5.0, 60.0)
    eval_every, eval_s, save_every, save_s = 1500, 500.0, 1500, 40.0
    background = (
        Background(
            30.0,
            lambda now, n: (
                json.dumps({"type": "system", "n": n, "t": round(now.time, 1), "cpu": now.chance.randrange(100)}) + "\n"
            ),
        ),
    )

    def step(self, now: Now) -> str:
        return (
            json.dumps(
                {"type": "train", "step": now.step, "loss": round(now.loss, 4), "lr": now.lr, "t": round(now.time, 1)}
            )
            + "\n"
        )

    def ends_eval(self, now: Now) -> str:
        return (
            json.dumps({"type": "eval", "step": now.step, "loss": round(now.loss, 4), "t": round(now.time, 1)}) + "\n"
        )


class Prefixed(Trainer):
    """Lines with a time, a level and a rank, in whose middle the update stands."""

    step_s, log_every = 1.1, 25
    start_s = (5.0, 60.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 5000, 300.0, 10, 5000, 90.0
    background = (UPTIME, NCCL)
    walltime_h, place = 8.0, "pattern"

    def step(self, now: Now) -> str:
        return f"{self._head(now)} train: update {now.step} of {now.total}: loss={now.loss:.4f} tokens={65536 * now.step} ({65536 / now.step_s:.0f}/s)\n"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"{self._head(now)} dev: part {n} of {of}\n"

    def begins_save(self, now: Now) -> str:
        return f"{self._head(now)} writing weights ({now.step})\n"

    def _head(self, now: Now) -> str:
        return f"{now.clock('%Y-%m-%dT%H:%M:%S.%f')}Z [INFO ] [rank=0 node=node01]"


class Ranks(Trainer):
    """Eight ranks in one file, by `srun --label`, in any order; saves of ten minutes without a word."""

    step_s, log_every = 12.0, 1
    start_s = (10.0, 300.0)
    save_every, save_s = 150, 580.0
    slows = True

    def starts(self, now: Now) -> Sequence[str]:
        return ("".join(f"{rank}: initialised rank {rank} of 8\n" for rank in range(8)),)

    def step(self, now: Now) -> str:
        ranks = now.chance.sample(range(8), 8)
        return "".join(f"{rank}: batch {now.step} loss {now.loss:.4f} in {now.step_s:.2f} s\n" for rank in ranks)


class Buffered(Trainer):
    """A script whose output Python buffers: nothing for many steps, then 8 KiB."""

    step_s, log_every = 0.8, 5
    start_s = (5.0, 60.0)
    is_buffered = True

    def step(self, now: Now) -> str:
        return f"step {now.step}: loss {now.loss:.4f} lr {now.lr:.3e} grad {now.norm:.3f}\n"


class EpochSteps(Trainer):
    """A loop whose counter restarts in each epoch, without a word about epochs."""

    step_s, log_every, epoch_steps = 1.5, 20, 1600
    start_s = (5.0, 60.0)
    eval_every, eval_s, reload_s = -1, 240.0, 60.0
    background = (LOADER,)

    def step(self, now: Now) -> str:
        return f"[{now.k}/{now.of}] loss {now.loss:.3f}\n"

    def ends_eval(self, now: Now) -> str:
        return f"val loss {now.loss:.3f}\n"


class Warnings(Trainer):
    """Steps between many warnings of libraries and the lines of every data-loader worker."""

    step_s, log_every = 15.0, 4
    start_s = (5.0, 30.0, 300.0)
    eval_every, eval_s = 400, 1200.0
    background = (
        WARNING,
        RAY,
        Background(
            8.0,
            lambda now, n: (
                f"[W{now.clock('%m%d %H:%M:%S')}.{n % 1000:03d} reader.cpp:88] worker {n % 12}: slow read of shard-{now.chance.randrange(9999):05d}.tar: {now.chance.uniform(2, 9):.2f} s\n"
            ),
        ),
    )

    def step(self, now: Now) -> str:
        return f"it {now.step} | {now.loss:.4f} | {now.elapsed_s / 3600:.2f} h\n"


class SlowEpochs(Trainer):
    """A large training of 26 minutes an epoch, with one line for each."""

    step_s, log_every, epoch_steps = 1.3, 1200, 1200
    start_s = (20.0, 600.0)
    background = (GPUS,)
    place, walltime_h, queue_s = "run", 7.5, 3000.0
    save_every, save_s = -1, 25.0

    def step(self, now: Now) -> str:
        return f"epoch {now.epoch:3d} | train {now.loss:.4f} | dev {now.loss + 0.1:.4f} | {now.of * now.step_s / 60:.1f} min\n"


class Stages(Trainer):
    """A recipe of two stages, whose lines differ and whose counters start at 0."""

    step_s, log_every = 3.4, 10
    start_s = (10.0, 200.0)
    eval_every, eval_s = 900, 400.0
    background = (UPTIME,)

    def step(self, now: Now) -> str:
        if now.step < 8000:
            return f"[stage 1/2] {now.step:6d} updates, ctc {now.loss:.4f}\n"
        return f"[stage 2/2] pass {now.step - 8000} of 40000 (att {now.loss:.4f}, ctc {now.loss:.4f})\n"


class Fold(Trainer):
    """Cross-validation: folds and epochs restart, the figures of each line go up and down."""

    step_s, log_every, epoch_steps = 33.0, 1, 60
    start_s = (20.0, 60.0)
    reload_s = 120.0
    background = (SCHEDULER,)

    def step(self, now: Now) -> str:
        return f"fold {now.epoch + 1} ep {now.k}: tr {now.loss:.4f} va {now.loss + 0.1:.4f} auc {0.5 + now.chance.random() / 2:.4f}\n"


TRAINERS: tuple[type[Trainer], ...] = (
    StableBaselines, Rllib, Graphs, XgBoost, LightGbm, CatBoost, OnlyNumbers, OnlyNumbersWithMonitor, Samples, JsonLines,
    Prefixed, Ranks, Buffered, EpochSteps, Warnings, SlowEpochs, Stages, Fold,
)  # fmt: skip
