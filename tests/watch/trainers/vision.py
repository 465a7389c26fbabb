"""Trainers of images, speech and general models: Lightning, Keras, OpenMMLab, timm, and others."""

# ruff: noqa: E501  (lines of output stand as they are written)

from __future__ import annotations

from collections.abc import Sequence

from tests.watch.trainers.background import GPUS, LOADER, MEMORY, NCCL, POWER, SCHEDULER, UPTIME, WANDB, WARNING
from tests.watch.trainers.day import Background, Now, Trainer


class Lightning(Trainer):
    """Lightning's tqdm bars, with a validation bar after each epoch."""

    step_s, log_every, epoch_steps = 0.75, 4, 3600
    start_s = (15.0, 40.0, 60.0)
    eval_every, eval_s, eval_lines, save_every, save_s, reload_s = -1, 240.0, 60, -1, 10.0, 60.0
    background = (WARNING,)

    def starts(self, now: Now) -> Sequence[str]:
        return (
            "GPU available: True (cuda), used: True\nLOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1,2,3]\n",
            "\rSanity Checking: |          | 0/? [00:00<?, ?it/s]\rSanity Checking DataLoader 0: 100%|##########| 2/2 [00:01<00:00]\n",
        )

    def step(self, now: Now) -> str:
        more = f", v_num=2, train_loss={now.loss:.3f}"
        return f"\rEpoch {now.epoch}: {now.bar(now.k, now.of, more=more)}"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"\n\rValidation DataLoader 0: {now.bar(n, of, per_s=4)}\x1b[A"


class LightningRich(Trainer):
    """Lightning's rich bar, which a thread redraws with the time that passes."""

    step_s, log_every, epoch_steps = 1.8, 1, 1900
    start_s = (15.0, 40.0, 120.0)
    eval_every, eval_s, eval_lines, save_every, save_s, reload_s = -1, 420.0, 40, -1, 30.0, 45.0

    def step(self, now: Now) -> str:
        return f"\r\x1b[2K{self._bar(f'Epoch {now.epoch}/-2', now.k, now.of, now.k * now.step_s, now)} v_num: 2.000 train_loss: {now.loss:.3f}"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"\r\x1b[2K{self._bar('Validation', n, of, n * 10, now)}"

    def redraws(self, now: Now) -> str:
        return f"\r\x1b[2K{self._bar(f'Epoch {now.epoch}/-2', now.k, now.of, now.elapsed_s, now)} v_num: 2.000"

    def _bar(self, label: str, k: int, of: int, gone_s: float, now: Now) -> str:
        drawn = "━" * (20 * k // of)
        rate = f"{k / max(1.0, gone_s):.2f}it/s"
        return f"{label:15s} \x1b[38;2;98;6;224m{drawn:20s}\x1b[0m \x1b[37m{k}/{of}\x1b[0m {now.long(gone_s)} • {now.long((of - k) * self.step_s)} {rate}"


class KerasBar(Trainer):
    """Keras 3: a bar that is drawn over, and epochs; the validation says nothing."""

    step_s, log_every, epoch_steps = 0.37, 8, 5004
    start_s = (10.0, 30.0, 120.0)
    eval_every, eval_s, save_every, save_s = -1, 180.0, -1, 15.0
    background: Sequence[Background] = (MEMORY,)

    def begins_epoch(self, now: Now) -> str:
        return f"Epoch {now.epoch + 1}/90\n"

    def step(self, now: Now) -> str:
        drawn = f"\x1b[32m{'━' * (20 * now.k // now.of)}\x1b[0m\x1b[37m{'━' * (20 - 20 * now.k // now.of)}\x1b[0m"
        left = int((now.of - now.k) * now.step_s)
        return (
            f"\r\x1b[1m{now.k:4d}/{now.of}\x1b[0m {drawn} \x1b[1m{left // 60}:{left % 60:02d}\x1b[0m"
            f" {1000 * now.step_s:.0f}ms/step - accuracy: {now.chance.random():.4f} - loss: {now.loss:.4f}"
        )

    def ends_eval(self, now: Now) -> str:
        return f" - val_accuracy: {now.chance.random():.4f} - val_loss: {now.loss:.4f}\n"


class KerasBackspaces(KerasBar):
    """Keras 2 into a file: the bar takes itself back with backspaces, in one endless line."""

    step_s, log_every, epoch_steps, reload_s = 0.9, 5, 2000, 90.0
    background = ()
    slows = True

    def step(self, now: Now) -> str:
        left = (now.of - now.k) * now.step_s
        done = 29 * now.k // now.of
        text = f"{now.k:4d}/{now.of} [{'=' * done}>{'.' * (29 - done)}] - ETA: {int(left) // 60}:{int(left) % 60:02d} - loss: {now.loss:.4f}"
        return "\b" * len(text) + text


class KerasEpochs(Trainer):
    """Keras with `verbose=2`: one line an epoch, of 11 minutes."""

    step_s, log_every, epoch_steps = 0.55, 1200, 1200
    start_s = (10.0, 30.0, 120.0)
    eval_every, eval_s = 0, 0.0
    background = (GPUS,)

    def begins_epoch(self, now: Now) -> str:
        return f"Epoch {now.epoch + 1}/200\n"

    def step(self, now: Now) -> str:
        return (
            f"{now.of}/{now.of} - {now.of * now.step_s:.0f}s - {1000 * now.step_s:.0f}ms/step - accuracy:"
            f" {now.chance.random():.4f} - loss: {now.loss:.4f} - val_accuracy: 0.6102 - val_loss: {now.loss + 0.2:.4f}\n"
        )


class MmEngine(Trainer):
    """MMEngine, epochs: training lines each 50 iterations, validation lines, a checkpoint."""

    step_s, log_every, epoch_steps = 0.52, 50, 4100
    start_s = (20.0, 30.0, 90.0)
    eval_every, eval_s, eval_lines, save_every, save_s, reload_s = -1, 400.0, 20, -1, 20.0, 60.0
    background: Sequence[Background] = (MEMORY, LOADER)

    def step(self, now: Now) -> str:
        return (
            f"{self._head(now)} - Epoch(train)  [{now.epoch + 1}][{now.k:4d}/{now.of}]  "
            f"base_lr: {now.lr:.4e} lr: {now.lr:.4e}  eta: {now.long(90000 - now.step * 0.1)}  time: {now.step_s:.4f}  data_time: 0.0123"
            f"  memory: 12345  grad_norm: {now.norm:.4f}  loss: {now.loss:.4f}\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"{self._head(now)} - Epoch(val)  [{now.epoch + 1}][{50 * n:4d}/{50 * of}]    eta: {now.long((of - n) * 20)}  time: 0.4012  data_time: 0.0021  memory: 3210  \n"

    def ends_eval(self, now: Now) -> str:
        return f"{self._head(now)} - Epoch(val) [{now.epoch + 1}][1000/1000]    coco/bbox_mAP: 0.3710  data_time: 0.0021  time: 0.4012\n"

    def begins_save(self, now: Now) -> str:
        return f"{self._head(now)} - Saving checkpoint at {now.epoch + 1} epochs\n"

    def _head(self, now: Now) -> str:
        return f"{now.clock('%Y/%m/%d %H:%M:%S')} - mmengine - INFO"


class MmEngineIterations(MmEngine):
    """MMEngine by iterations: `Iter(train) [  1000/160000]`, validations without a line of their own."""

    step_s, log_every, epoch_steps, total = 0.95, 50, 0, 160_000
    eval_every, eval_s, eval_lines, save_every, reload_s = 4000, 1300.0, 0, 4000, 0.0
    background = (GPUS,)

    def step(self, now: Now) -> str:
        return (
            f"{self._head(now)} - Iter(train) [{now.step:6d}/{now.total}]  base_lr: {now.lr:.4e} lr: {now.lr:.4e}  eta:"
            f" {now.long((now.total - now.step) * now.step_s)}  time: {now.step_s:.4f}  data_time: 0.0041  memory: 9021"
            f"  loss: {now.loss:.4f}  decode.acc_seg: {100 * now.chance.random():.4f}\n"
        )

    def ends_eval(self, now: Now) -> str:
        return (
            f"{self._head(now)} - Iter(val) [500/500]    aAcc: 81.2  mIoU: {40 * now.chance.random():.4f}  mAcc: 51.2\n"
        )

    def begins_save(self, now: Now) -> str:
        return f"{self._head(now)} - Saving checkpoint at {now.step} iterations\n"


class MmDetectionTwo(Trainer):
    """mmdet 2: a validation bar without a label, redrawn at each of 5,000 images."""

    step_s, log_every, epoch_steps = 0.61, 50, 7330
    start_s = (20.0, 30.0, 60.0)
    eval_every, eval_s, eval_lines, save_every, save_s, reload_s = -1, 900.0, 250, -1, 10.0, 90.0
    background = (WANDB,)

    def step(self, now: Now) -> str:
        return (
            f"{now.clock('%Y-%m-%d %H:%M:%S,%f')} - mmdet - INFO - Epoch [{now.epoch + 1}][{now.k}/{now.of}]\tlr: {now.lr:.3e},"
            f" eta: {now.long(90000)}, time: {now.step_s:.3f}, data_time: 0.021, memory: 4021, loss_cls: 0.3121, loss: {now.loss:.4f}\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        done, all_ = 5000 * n // of, 5000
        gone = int(self.eval_s * n / of)
        return f"\r[{'>' * (20 * n // of):20s}] {done}/{all_}, {done / max(1, gone):.1f} task/s, elapsed: {gone}s, ETA: {int(self.eval_s) - gone:5d}s"

    def ends_eval(self, now: Now) -> str:
        return f"\n{now.clock('%Y-%m-%d %H:%M:%S,%f')} - mmdet - INFO - Epoch(val) [{now.epoch + 1}][5000]\tbbox_mAP: 0.3710\n"


class Timm(Trainer):
    """timm: `Train: 3 [ 150/1251 ( 12%)]`, and test lines."""

    step_s, log_every, epoch_steps = 0.37, 50, 5004
    start_s = (15.0, 30.0, 45.0)
    eval_every, eval_s, eval_lines, save_every, save_s, reload_s = -1, 120.0, 20, -1, 8.0, 90.0
    background = (LOADER,)
    slows = True

    def step(self, now: Now) -> str:
        return (
            f"Train: {now.epoch} [{now.k:4d}/{now.of} ({100 * now.k // now.of:3d}%)]  Loss: {now.loss:.2f} ({now.loss:.2f})"
            f"  Time: {now.step_s:.3f}s, {1024 / now.step_s:>7.2f}/s  ({now.step_s:.3f}s, {1024 / now.step_s:>7.2f}/s)"
            f"  LR: {now.lr:.3e}  Data: 0.010 (0.012)\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"Test: [{n:4d}/{of}]  Time: 0.212 (0.231)  Loss:  {now.loss:>6.3f} ({now.loss:>6.3f})  Acc@1: 71.201 (70.212)\n"

    def ends_eval(self, now: Now) -> str:
        return "Current checkpoints:\n" + "".join(
            f" ('./out/checkpoint-{max(0, now.epoch - n)}.pth.tar', 7{n}.312)\n" for n in range(3)
        )


class Mae(Trainer):
    """MAE and DINO: `Epoch: [3]  [ 120/1251]  eta:`, without an evaluation for epochs."""

    step_s, log_every, epoch_steps = 0.48, 20, 2502
    start_s = (20.0, 60.0, 90.0)
    save_every, save_s, reload_s = -1, 40.0, 150.0
    walltime_h, place = 7.0, "pattern"

    def step(self, now: Now) -> str:
        return (
            f"Epoch: [{now.epoch}]  [{now.k - 1:4d}/{now.of}]  eta: {now.long((now.of - now.k) * now.step_s)}  lr: {now.lr:.6f}"
            f"  loss: {now.loss:.4f} ({now.loss:.4f})  time: {now.step_s:.4f}  data: 0.0002  max mem: 12345\n"
        )

    def ends_epoch(self, now: Now) -> str:
        return f"Epoch: [{now.epoch}] Total time: {now.long(now.of * 0.48)} (0.4800 s / it)\nAveraged stats: lr: {now.lr:.6f}  loss: {now.loss:.4f}\n"


class Imagenet(Trainer):
    """The ImageNet example of PyTorch."""

    step_s, log_every, epoch_steps = 0.37, 10, 5005
    start_s = (5.0, 20.0, 60.0)
    eval_every, eval_s, eval_lines, save_every, save_s, reload_s = -1, 100.0, 19, -1, 3.0, 120.0
    pause_s = 480.0

    def step(self, now: Now) -> str:
        return (
            f"Epoch: [{now.epoch}][{now.k:4d}/{now.of}]\tTime {now.step_s:6.3f} ({now.step_s:6.3f})\tData  0.010 ( 0.012)\t"
            f"Loss {now.loss:.4e} ({now.loss:.4e})\tAcc@1 {100 * now.chance.random():6.2f} ( 31.20)\tAcc@5  60.10 ( 59.80)\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"Test: [{10 * n:3d}/{10 * of + 6}]\tTime  0.212 ( 0.231)\tLoss {now.loss:.4e} ({now.loss:.4e})\tAcc@1  71.20 ( 70.21)\n"

    def ends_eval(self, now: Now) -> str:
        return f" *   Acc@1 {100 * now.chance.random():.3f} Acc@5 91.233\n"


class Detectron(Trainer):
    """detectron2: `iter: 1219` after the ETA, inference lines each five seconds."""

    step_s, log_every, total = 0.41, 20, 270_000
    start_s = (20.0, 60.0, 60.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 10_000, 1200.0, 100, 5000, 6.0
    background = (MEMORY,)

    def step(self, now: Now) -> str:
        return (
            f"\x1b[32m[{now.clock('%m/%d %H:%M:%S')} d2.utils.events]: \x1b[0m eta: {now.long((now.total - now.step) * 0.41)}"
            f"  iter: {now.step - 1}  total_loss: {now.loss:.4g}  loss_cls: 0.3121  loss_box_reg: 0.2012    time: {now.step_s:.4f}"
            f"  last_time: {now.step_s:.4f}  data_time: 0.0123  last_data_time: 0.0101   lr: {now.lr:.5g}  max_mem: 12345M\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return (
            f"\x1b[32m[{now.clock('%m/%d %H:%M:%S')} d2.evaluation.evaluator]: \x1b[0mInference done {50 * n}/{50 * of}."
            f" Dataloading: 0.0011 s/iter. Inference: 0.0712 s/iter. Eval: 0.0003 s/iter. Total: 0.0726 s/iter. ETA=0:{(of - n) * 12 // 60:02d}:05\n"
        )


class Ultralytics(Trainer):
    """Ultralytics: the epoch and figures before the bar, a short validation bar."""

    step_s, log_every, epoch_steps = 0.37, 6, 1850
    start_s = (10.0, 30.0, 60.0)
    eval_every, eval_s, eval_lines, save_every, save_s, reload_s = -1, 60.0, 20, 0, 0.0, 5.0
    background = (WARNING,)

    def begins_epoch(self, now: Now) -> str:
        return "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"

    def step(self, now: Now) -> str:
        return f"\r{now.epoch + 1:7d}/300      12.3G {now.loss:10.4g} {now.loss + 1:10.4g}      1.012 {now.chance.randrange(80, 200):10d}        640: {now.bar(now.k, now.of)}"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"\r                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): {now.bar(n, of, per_s=3)}"

    def ends_eval(self, now: Now) -> str:
        return f"\n                   all       5000      36335      0.631      0.512      0.5{now.chance.randrange(99)}      0.381\n"


class Espnet(Trainer):
    """ESPnet: `3epoch:train:1201-1300batch:`."""

    step_s, log_every, epoch_steps = 0.85, 100, 5000
    start_s = (20.0, 90.0, 30.0)
    eval_every, eval_s, save_every, save_s, reload_s = -1, 360.0, -1, 30.0, 120.0
    background = (POWER,)
    walltime_h, place, queue_s = 5.0, "run", 600.0

    def step(self, now: Now) -> str:
        return (
            f"[node01:0/4] {now.clock('%Y-%m-%d %H:%M:%S,%f')} (trainer:762) INFO: {now.epoch + 1}epoch:train:"
            f"{now.k - 99}-{now.k}batch: iter_time=1.2e-04, forward_time=0.121, loss_ctc={10 * now.loss:.3f}, loss_att={now.loss:.3f},"
            f" acc={now.chance.random():.3f}, loss={now.loss:.3f}, backward_time=0.131, optim_step_time=0.041, optim0_lr0={now.lr:.3e},"
            f" train_time={4 * now.step_s:.3f}\n"
        )

    def ends_eval(self, now: Now) -> str:
        return f"[node01:0/4] {now.clock('%Y-%m-%d %H:%M:%S,%f')} (trainer:357) INFO: {now.epoch + 1}epoch results: [train] iter_time=1.1e-04, [valid] loss={now.loss:.3f}, time=6 minutes\n"


class Whisper(Trainer):
    """Whisper fine-tuned with the Trainer: an evaluation with generation, of 38 minutes, with a bar."""

    step_s, log_every, total = 5.1, 1, 20_000
    start_s = (30.0, 200.0, 60.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 500, 2280.0, 120, 500, 50.0

    def step(self, now: Now) -> str:
        bar = "\r" + now.bar(now.step, now.total)
        if now.step % 25:
            return bar
        return f"{bar}\r{{'loss': {now.loss:.4f}, 'grad_norm': {now.norm:.6f}, 'learning_rate': {now.lr:.4e}, 'epoch': {now.step / 2000:.2f}}}\n{bar}"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"\r{now.bar(n, of, per_s=19)}"

    def ends_eval(self, now: Now) -> str:
        return f"\n{{'eval_loss': {now.loss:.6f}, 'eval_wer': {30 * now.chance.random():.6f}, 'eval_runtime': 2280.12, 'epoch': {now.step / 2000:.2f}}}\n"


class Diffusers(Trainer):
    """A Diffusers example: `Steps:` bar; validation images every 500 steps, announced by one line."""

    step_s, log_every, total = 2.9, 1, 50_000
    start_s = (20.0, 100.0, 30.0)
    eval_every, eval_s, save_every, save_s = 500, 150.0, 500, 60.0
    background = (SCHEDULER,)

    def step(self, now: Now) -> str:
        return f"\rSteps: {now.bar(now.step, now.total, more=f', lr={now.lr:.2g}, step_loss={now.loss:.3g}')}"

    def begins_eval(self, now: Now) -> str:
        return f"\n{now.clock('%m/%d/%Y %H:%M:%S')} - INFO - __main__ - Running validation... \n Generating 4 images with prompt: a cat.\n"

    def begins_save(self, now: Now) -> str:
        return f"\n{now.clock('%m/%d/%Y %H:%M:%S')} - INFO - accelerate.accelerator - Saving current state to out/checkpoint-{now.step}\n"


class Flax(Trainer):
    """A Flax example by absl and clu: `[120] accuracy=0.31, loss=2.31`."""

    step_s, log_every = 0.09, 1000
    start_s = (10.0, 60.0, 600.0)
    eval_every, eval_s, save_every, save_s = 50_000, 300.0, 50_000, 20.0
    background = (UPTIME,)

    def step(self, now: Now) -> str:
        head = f"I{now.clock('%m%d %H:%M:%S')}.123456 140223133 logging_writer.py:48]"
        return f"{head} [{now.step}] accuracy={now.chance.random():.6f}, learning_rate={now.lr:.6g}, loss={now.loss:.6f}, steps_per_second={1 / now.step_s:.3f}\n"

    def ends_eval(self, now: Now) -> str:
        return f"I{now.clock('%m%d %H:%M:%S')}.123456 140223133 logging_writer.py:48] [{now.step}] eval_accuracy=0.6101, eval_loss={now.loss:.6f}\n"


class FlaxEpochs(Trainer):
    """A Flax loop that logs an epoch a line: `train epoch: 3, loss: 2.3123, accuracy: 31.20`."""

    step_s, log_every, epoch_steps = 0.11, 3900, 3900
    start_s = (10.0, 30.0, 400.0)
    background = (MEMORY, NCCL)

    def step(self, now: Now) -> str:
        return f"train epoch: {now.epoch + 1}, loss: {now.loss:.4f}, accuracy: {100 * now.chance.random():.2f}\n"


class AlphaFold(Trainer):
    """A training with absl lines, the step in the middle, 45 s each; steps of a few lengths."""

    step_s, log_every, noise = 45.0, 1, 0.3
    start_s = (20.0, 300.0, 1300.0)
    save_every, save_s, eval_every, eval_s = 200, 40.0, 400, 1500.0
    background = (NCCL, GPUS)
    slows = True

    def step(self, now: Now) -> str:
        return (
            f"I{now.clock('%m%d %H:%M:%S')}.402131 139931 train.py:412] global_step: {now.step} loss: {now.loss:.5f} fape: {now.norm:.5f}"
            f" lddt: {now.chance.random():.4f} sec/step: {now.step_s:.2f}\n"
        )

    def begins_eval(self, now: Now) -> str:
        return f"I{now.clock('%m%d %H:%M:%S')}.402131 139931 eval.py:77] Running CAMEO validation on 120 targets\n"


TRAINERS: tuple[type[Trainer], ...] = (
    Lightning, LightningRich, KerasBar, KerasBackspaces, KerasEpochs, MmEngine, MmEngineIterations, MmDetectionTwo,
    Timm, Mae, Imagenet, Detectron, Ultralytics, Espnet, Whisper, Diffusers, Flax, FlaxEpochs, AlphaFold,
)  # fmt: skip
