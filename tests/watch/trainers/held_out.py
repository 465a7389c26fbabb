"""The first held-out set: trainers of forms that the log watchdog was not tuned with when it was first measured."""

# ruff: noqa: E501  (lines of output stand as they are written)

from __future__ import annotations

from collections.abc import Sequence

from tests.watch.trainers.day import Background, Now, Trainer


def _smi(now: Now, n: int) -> str:
    rows = "".join(
        f"| N/A   {now.chance.randrange(40, 70)}C    P0   {now.chance.randrange(90, 690):3d}W / 700W | {now.chance.randrange(70000, 72000)}MiB / 81559MiB |    {now.chance.randrange(101):3d}%      Default |\n"
        for _ in range(4)
    )
    return f"{now.clock('%a %b %d %H:%M:%S %Y')}\n+{'-' * 69}+\n{rows}+{'-' * 69}+\n"


def _free(now: Now, n: int) -> str:
    return f"Mem: {now.chance.randrange(300, 420)}Gi used, {now.chance.randrange(90, 200)}Gi free; Swap: 0B\n"


def _server(now: Now, n: int) -> str:
    return f'INFO:     10.3.0.{now.chance.randrange(2, 66)}:{now.chance.randrange(30000, 60000)} - "GET /metrics HTTP/1.1" 200 OK\n'


def _reader(now: Now, n: int) -> str:
    return f"reader: total {int(now.elapsed_s * 83):,} files opened\n"


def _keepalive(now: Now, n: int) -> str:
    return f"[{now.clock('%H:%M:%S')}] <keepalive seq={n + 1} rtt={now.chance.uniform(0.1, 4):.2f}ms>\n"


def _store(now: Now, n: int) -> str:
    return f"TCPStore: {64} peers, {n * 3} pings, oldest {now.chance.randrange(20)} s\n"


def _mlflow(now: Now, n: int) -> str:
    return f"{now.clock('%Y/%m/%d %H:%M:%S')} INFO mlflow.system_metrics.system_metrics_monitor: logged batch {n}\n"


def _ecc(now: Now, n: int) -> str:
    return f"dcgm: {now.clock('%H:%M')} correctable ECC total {3 + n // 3}, throttle reasons 0x{now.chance.randrange(16):02x}\n"


SMI, FREE, SERVER, READER = (
    Background(300, _smi),
    Background(120, _free),
    Background(15, _server),
    Background(60, _reader),
)
KEEPALIVE, STORE, MLFLOW, ECC = (
    Background(30, _keepalive),
    Background(100, _store, until_h=9),
    Background(10, _mlflow),
    Background(600, _ecc),
)


class Marian(Trainer):
    """Marian NMT."""

    step_s, log_every = 0.31, 500
    start_s = (10.0, 60.0)
    eval_every, eval_s, save_every, save_s = 10_000, 420.0, 10_000, 25.0
    background = (FREE,)

    def step(self, now: Now) -> str:
        return (
            f"[{now.clock()}] Ep. 1 : Up. {now.step} : Sen. {812 * now.step:,} : Cost {now.loss:.8f} : Time"
            f" {500 * now.step_s:.2f}s : 41220.12 words/s : gNorm {now.norm:.4f}\n"
        )

    def ends_eval(self, now: Now) -> str:
        return f"[{now.clock()}] [valid] Ep. 1 : Up. {now.step} : cross-entropy : {30 * now.loss:.4f} : new best\n"


class OpenNmt(Trainer):
    """OpenNMT-py."""

    step_s, log_every, total = 1.3, 50, 100_000
    start_s = (20.0, 90.0)
    eval_every, eval_s, save_every, save_s = 2500, 1620.0, 2500, 40.0
    walltime_h, place = 6.0, "run"

    def step(self, now: Now) -> str:
        return (
            f"[{now.clock('%Y-%m-%d %H:%M:%S,%f')} INFO] Step {now.step}/{now.total}; acc: {40 + 10 * now.chance.random():.1f}; ppl:"
            f" {2**now.loss:6.1f}; xent: {now.loss:.1f}; lr: {now.lr:.5f}; sents: 40210; bsz: 4021/4012/80; 50120/50010 tok/s; {now.elapsed_s:6.0f} sec;\n"
        )

    def begins_eval(self, now: Now) -> str:
        return f"[{now.clock('%Y-%m-%d %H:%M:%S,%f')} INFO] valid stats calculation\n"

    def begins_save(self, now: Now) -> str:
        return f"[{now.clock('%Y-%m-%d %H:%M:%S,%f')} INFO] Saving checkpoint model_step_{now.step}.pt\n"


class Estimator(Trainer):
    """A TensorFlow Estimator: the step stands after the loss, the rate in a line of its own."""

    step_s, log_every = 0.37, 100
    start_s = (15.0, 100.0, 300.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 8000, 500.0, 10, 2000, 12.0
    background = (SERVER,)

    def step(self, now: Now) -> str:
        return (
            f"INFO:tensorflow:global_step/sec: {1 / now.step_s:.5f}\nINFO:tensorflow:loss = {now.loss:.6f}, step = {now.step}"
            f" ({100 * now.step_s:.3f} sec)\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"INFO:tensorflow:Evaluation [{n}/{of}]\n"

    def begins_save(self, now: Now) -> str:
        return f"INFO:tensorflow:Saving checkpoints for {now.step} into /ckpt/model.ckpt.\n"


class Paddle(Trainer):
    """PaddleNLP."""

    step_s, log_every, epoch_steps = 2.6, 10, 9000
    start_s = (20.0, 400.0)
    eval_every, eval_s, save_every, save_s = 1000, 760.0, 1000, 210.0
    background = (KEEPALIVE, SMI)

    def step(self, now: Now) -> str:
        return (
            f"[{now.clock('%Y-%m-%d %H:%M:%S,%f')}] [    INFO] - loss: {now.loss:.8f}, learning_rate: {now.lr:.3e}, global_step: {now.step},"
            f" interval_runtime: {10 * now.step_s:.4f}, interval_samples_per_second: {160 / now.step_s:.4f}, progress_or_epoch: {now.step / 9000:.4f}\n"
        )


class MindSpore(Trainer):
    """MindSpore's LossMonitor and TimeMonitor."""

    step_s, log_every, epoch_steps = 0.82, 25, 4000
    start_s = (10.0, 200.0, 900.0)
    save_every, save_s, reload_s = -1, 20.0, 240.0
    background = (ECC,)

    def step(self, now: Now) -> str:
        return f"epoch: {now.epoch + 1} step: {now.k}, loss is {now.loss}\n"

    def ends_epoch(self, now: Now) -> str:
        return f"Train epoch time: {1000 * now.of * now.step_s:.3f} ms, per step time: {1000 * now.step_s:.3f} ms\n"


class Icefall(Trainer):
    """icefall: two losses in brackets, the batch in the middle."""

    step_s, log_every, epoch_steps = 0.55, 50, 9500
    start_s = (20.0, 60.0, 100.0)
    eval_every, eval_s, save_every, save_s = 3000, 95.0, 4000, 15.0
    slows = True

    def step(self, now: Now) -> str:
        return (
            f"{now.clock('%Y-%m-%d %H:%M:%S,%f')} INFO [train.py:892] (0/8) Epoch {now.epoch + 1}, batch {now.k}, loss[loss={now.loss:.4f},"
            f" over {now.chance.randrange(9000, 16000)}.00 frames. ], tot_loss[loss={now.loss:.4f}, over 3012345.12 frames. ], batch size: {now.chance.randrange(50, 90)}, lr: {now.lr:.2e}\n"
        )

    def begins_eval(self, now: Now) -> str:
        return f"{now.clock('%Y-%m-%d %H:%M:%S,%f')} INFO [train.py:917] (0/8) Computing validation loss\n"

    def ends_eval(self, now: Now) -> str:
        return f"{now.clock('%Y-%m-%d %H:%M:%S,%f')} INFO [train.py:926] (0/8) Epoch {now.epoch + 1}, validation: loss={now.loss:.4f}\n"


class Yolox(Trainer):
    """YOLOX by loguru."""

    step_s, log_every, epoch_steps = 0.42, 10, 3700
    start_s = (10.0, 30.0, 120.0)
    eval_every, eval_s, eval_lines, save_every, save_s, reload_s = -1, 190.0, 40, -1, 5.0, 40.0
    walltime_h, place = 5.0, "pattern"

    def step(self, now: Now) -> str:
        return (
            f"{now.clock()} | INFO     | yolox.core.trainer:270 - epoch: {now.epoch + 1}/300, iter: {now.k}/{now.of}, mem: 12345Mb, iter_time:"
            f" {now.step_s:.3f}s, data_time: 0.001s, total_loss: {now.loss:.1f}, lr: {now.lr:.3e}, size: {32 * now.chance.randrange(14, 26)}, ETA: 5 days, 3:12:10\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"\r{now.bar(n, of, per_s=4.7)}"


class Darknet(Trainer):
    """Darknet: batch, loss, average, rate, seconds, images, hours left."""

    step_s, log_every = 5.9, 1
    start_s = (10.0, 40.0)
    save_every, save_s, eval_every, eval_s = 1000, 8.0, 1000, 520.0
    background = (FREE, KEEPALIVE)

    def step(self, now: Now) -> str:
        return (
            f"\n {now.step}: {now.loss:.6f}, {now.loss:.6f} avg loss, {now.lr:.6f} rate, {now.step_s:.6f} seconds, {64 * now.step} images,"
            f" {40 - now.elapsed_s / 7200:.6f} hours left\nLoaded: 0.000041 seconds\n"
        )


class SpaCy(Trainer):
    """spaCy: a table with the epoch, the step, and scores that rise and fall."""

    step_s, log_every = 1.7, 200
    start_s = (20.0, 60.0)
    eval_every, eval_s = 200, 65.0
    background = (SMI,)

    def starts(self, now: Now) -> Sequence[str]:
        return (
            "=========================== Initializing pipeline ===========================\nE    #       LOSS TRANS...  SCORE \n---  ------  -------------  ------\n",
        )

    def step(self, now: Now) -> str:
        return f"{now.step // 900:3d}  {now.step:6d}  {1000 * now.loss:13.2f}  {70 + 9 * now.chance.random():6.2f}  {0.7 + now.chance.random() / 10:6.2f}\n"


class Coqui(Trainer):
    """Coqui TTS: a headline with two counters, and metrics in a tree below."""

    step_s, log_every, epoch_steps, total = 0.66, 25, 1650, 10**7
    start_s = (10.0, 40.0)
    eval_every, eval_s, eval_lines, save_every, save_s = -1, 45.0, 5, 10_000, 14.0
    pause_s = 480.0

    def step(self, now: Now) -> str:
        return (
            f"\n\x1b[1m   --> TIME: {now.clock()} -- STEP: {now.k}/{now.of} -- GLOBAL_STEP: {now.step}\x1b[0m\n     | > loss: {now.loss:.5f}  ({now.loss:.5f})\n"
            f"     | > grad_norm: {now.norm:.5f}\n     | > step_time: {now.step_s:.4f}  ({now.step_s:.5f})\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"\x1b[1m   --> STEP: {n}\x1b[0m\n     | > loss: {now.loss:.5f}\n"


class Nerfstudio(Trainer):
    """nerfstudio: a table whose rows are step and share, milliseconds, and the time left."""

    step_s, log_every, total = 0.12, 300, 900_000
    start_s = (20.0, 300.0)
    save_every, save_s, eval_every, eval_s = 20_000, 9.0, 50_000, 340.0
    background = (MLFLOW,)

    def step(self, now: Now) -> str:
        return f"{now.step} ({100 * now.step / now.total:.2f}%)         {1000 * now.step_s:.3f} ms           {int((now.total - now.step) * now.step_s) // 3600} h, {now.chance.randrange(60)} m         {4096 / now.step_s / 1000:.2f} K\n"


class LeggedRobots(Trainer):
    """rsl_rl: a box with the iteration in its title."""

    step_s, log_every, total = 3.3, 1, 30_000
    start_s = (20.0, 150.0)
    save_every, save_s = 500, 3.0
    background = (ECC, FREE)

    def step(self, now: Now) -> str:
        return (
            f"{'#' * 80}\n{f' Learning iteration {now.step}/{now.total} ':^80s}\n\n{'Computation:':>35s} {98304 / now.step_s:.0f} steps/s (collection: 1.2s, learning 0.3s)\n"
            f"{'Value function loss:':>35s} {now.chance.random():.4f}\n{'Mean reward:':>35s} {now.chance.gauss(12, 5):.2f}\n{'-' * 80}\n"
            f"{'Total timesteps:':>35s} {98304 * now.step}\n{'ETA:':>35s} {(now.total - now.step) * now.step_s:.1f}s\n"
        )


class CleanRl(Trainer):
    """CleanRL: a line for each episode, at any time, and the steps per second."""

    step_s, log_every, noise = 0.9, 8, 0.5
    start_s = (5.0, 30.0)
    slows = True

    def step(self, now: Now) -> str:
        return f"SPS: {now.chance.randrange(1100, 1300)}\nglobal_step={1024 * now.step}, episodic_return=[{now.chance.gauss(200, 90):.1f}]\n"


class FastAi(Trainer):
    """fastai in a script: a row an epoch of 17 minutes, losses and a time."""

    step_s, log_every, epoch_steps = 0.51, 2000, 2000
    start_s = (10.0, 40.0)
    background = (SMI, READER)

    def begins_epoch(self, now: Now) -> str:
        return "epoch     train_loss  valid_loss  accuracy  time    \n" if now.epoch == 0 else ""

    def step(self, now: Now) -> str:
        seconds = int(now.of * now.step_s)
        return f"{now.epoch:<10d}{now.loss:.6f}    {now.loss + 0.1:.6f}    {now.chance.random():.6f}  {seconds // 60:02d}:{seconds % 60:02d}   \n"


class Levanter(Trainer):
    """Levanter: a bar by log lines, with a postfix; evaluations with a bar of their own."""

    step_s, log_every, total = 5.7, 4, 100_000
    start_s = (10.0, 100.0, 800.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 1000, 640.0, 8, 500, 4.0
    background = (STORE,)

    def step(self, now: Now) -> str:
        return f"{now.clock('%Y-%m-%dT%H:%M:%S')} - 0 - levanter.callbacks.progress - progress.py:57 - INFO :: Progress on:train {now.step / 1000:.2f}kit/{now.total / 1000:.0f}kit rate:{now.step_s:.1f}s/it remaining:{(now.total - now.step) * now.step_s / 3600:.1f}h elapsed:{now.long(now.elapsed_s)} postfix:loss={now.loss:.3f}\n"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"{now.clock('%Y-%m-%dT%H:%M:%S')} - 0 - levanter.callbacks.progress - progress.py:57 - INFO :: Progress on:eval {n}it/{of}it rate:71s/it postfix:loss={now.loss:.3f}\n"


class German(Trainer):
    """A script in German."""

    step_s, log_every = 27.0, 1
    start_s = (20.0, 500.0)
    save_every, save_s, eval_every, eval_s = 40, 90.0, 80, 1250.0
    background = (KEEPALIVE,)
    place, walltime_h, queue_s = "run", 7.0, 5000.0

    def step(self, now: Now) -> str:
        return f"Schritt {now.step:5d}: Verlust {now.loss:.4f}".replace(".", ",") + f" ({now.step_s:.1f} s)\n"

    def ends_save(self, now: Now) -> str:
        return "Modell gesichert\n"


class Chinese(Trainer):
    """A script in Chinese."""

    step_s, log_every, epoch_steps = 1.9, 20, 2400
    start_s = (20.0, 100.0)
    eval_every, eval_s = -1, 300.0
    background = (FREE, SERVER)

    def step(self, now: Now) -> str:
        return f"{now.clock()} 第{now.epoch + 1}轮 第{now.k}批 损失={now.loss:.4f} 学习率={now.lr:.2e}\n"

    def ends_eval(self, now: Now) -> str:
        return f"{now.clock()} 验证集 准确率={100 * now.chance.random():.2f}%\n"


class Dots(Trainer):
    """A dot for each batch, a line for each hundred."""

    step_s, log_every = 2.9, 1
    start_s = (5.0, 40.0)
    pause_s = 300.0

    def step(self, now: Now) -> str:
        return "." if now.step % 100 else f" {now.loss:.3f}\n"


class Share(Trainer):
    """Only a share of the whole, and the time left."""

    step_s, log_every, total = 3.7, 8, 60_000
    start_s = (5.0, 140.0)
    eval_every, eval_s = 1600, 700.0
    background = (MLFLOW, STORE)

    def step(self, now: Now) -> str:
        return f"Progress: {100 * now.step / now.total:.3f}% (ETA {now.long((now.total - now.step) * now.step_s)}) loss {now.loss:.3f}\n"


class Countdown(Trainer):
    """Counts the remaining batches down."""

    step_s, log_every, epoch_steps = 0.7, 30, 6000
    start_s = (5.0, 60.0)
    reload_s = 200.0
    background = (READER,)

    def step(self, now: Now) -> str:
        return f"remaining batches: {now.of - now.k}, running loss {now.loss:.4f}\n"


class Table(Trainer):
    """Comma-separated values: step, time, loss, rate."""

    step_s, log_every = 0.95, 50
    start_s = (5.0, 60.0)
    eval_every, eval_s, save_every, save_s = 6000, 2100.0, 3000, 75.0
    background = (ECC,)

    def starts(self, now: Now) -> Sequence[str]:
        return ("step,time,loss,lr,grad_norm\n",)

    def step(self, now: Now) -> str:
        return f"{now.step},{now.time:.1f},{now.loss:.5f},{now.lr:.3e},{now.norm:.3f}\n"


class Pairs(Trainer):
    """Two models that are trained in turn, each with a counter of its own."""

    step_s, log_every = 8.0, 1
    start_s = (5.0, 120.0)
    save_every, save_s = 250, 110.0
    background = (SMI,)
    slows = True

    def step(self, now: Now) -> str:
        return f"[D] update {2 * now.step}: real {now.chance.random():.3f} fake {now.chance.random():.3f}\n[G] update {now.step}: adv {now.loss:.3f}\n"


class LongSteps(Trainer):
    """Steps of 9 minutes, with generation in between that reports its share."""

    step_s, log_every, noise = 540.0, 1, 0.25
    start_s = (60.0, 600.0, 900.0)
    eval_every, eval_s, eval_lines = 20, 2300.0, 6
    background = (STORE, FREE)

    def step(self, now: Now) -> str:
        return f"=== iter {now.step} finished: reward {now.chance.random():.4f}, rollout {0.7 * now.step_s:.1f}s, train {0.3 * now.step_s:.1f}s ===\n"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"benchmark {n}: score {now.chance.random():.4f}\n"


class Molecules(Trainer):
    """Thermodynamic rows of a simulation that learns its potential."""

    step_s, log_every = 0.014, 1000
    start_s = (5.0, 25.0)
    save_every, save_s = 500_000, 30.0
    pause_s = 400.0

    def step(self, now: Now) -> str:
        return f"{now.step:9d} {300 + now.chance.gauss(0, 4):12.6f} {-48210.2 + now.chance.gauss(0, 9):14.4f} {now.chance.gauss(1, 30):12.5f}\n"


TRAINERS: tuple[type[Trainer], ...] = (
    Marian, OpenNmt, Estimator, Paddle, MindSpore, Icefall, Yolox, Darknet, SpaCy, Coqui, Nerfstudio, LeggedRobots,
    CleanRl, FastAi, Levanter, German, Chinese, Dots, Share, Countdown, Table, Pairs, LongSteps, Molecules,
)  # fmt: skip
