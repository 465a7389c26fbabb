"""The second held-out set: trainers of other forms, written before the watchdog was measured with any of them.

Numbers in the forms of other languages, JSON and logfmt lines, bars drawn with carriage returns, labels of ranks, times
in other forms, and monitors that count.
"""

# ruff: noqa: E501  (lines of output stand as they are written)

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.watch.trainers.day import Background, Now, Trainer


def _french(number: float, decimals: int = 0) -> str:
    return f"{number:,.{decimals}f}".replace(",", "\u202f").replace(".", ",")


def _spanish(number: int) -> str:
    return f"{number:,}".replace(",", ".")


def _lustre(now: Now, n: int) -> str:
    return f"llite: read_bytes {int(now.elapsed_s * 2.1e8)} samples [bytes] 4096 4194304, open {n * 17 + 3}\n"


def _boards(now: Now, n: int) -> str:
    return f"T({' '.join(str(now.chance.randrange(48, 71)) for _ in range(8))}) fan {now.chance.randrange(30, 60)}\n"


def _scrape(now: Now, n: int) -> str:
    return f'time={now.clock("%Y-%m-%dT%H:%M:%S")}Z level=DEBUG source=exporter.go:118 msg="scrape done" n={n} took={now.chance.uniform(2, 40):.1f}ms\n'


def _json_poll(now: Now, n: int) -> str:
    return (
        json.dumps(
            {"ts": round(now.time, 3), "event": "host.poll", "seq": n, "rss_gb": round(now.chance.uniform(20, 40), 2)}
        )
        + "\n"
    )


def _sockets(now: Now, n: int) -> str:
    return (
        f"{now.clock('%b %d %H:%M:%S')} node01 sshd-proxy[881]: {now.chance.randrange(3, 9)} tunnels up, {n} rekeys\n"
    )


def _uptime(now: Now, n: int) -> str:
    days = int(now.elapsed_s / 86400)
    return f" {now.clock('%H:%M:%S')} up {days} days, {int(now.elapsed_s) // 3600 % 24}:{int(now.elapsed_s) // 60 % 60:02d}, 0 users, load average: {now.chance.uniform(10, 70):.2f}\n"


def _clients(now: Now, n: int) -> str:
    return f"[grpc] {now.chance.randrange(8, 13)} channels READY, {n + 1} pings acked\n"


def _allocator(now: Now, n: int) -> str:
    return f"alloc: pool {now.chance.uniform(60, 79):.2f} GB of 80 GB, {31 * n} blocks split so far\n"


LUSTRE, BOARDS, SCRAPE, POLL = (
    Background(60, _lustre),
    Background(20, _boards),
    Background(15, _scrape),
    Background(30, _json_poll),
)
SOCKETS, UPTIME, CLIENTS, ALLOCATOR = (
    Background(240, _sockets),
    Background(60, _uptime),
    Background(25, _clients),
    Background(45, _allocator),
)


class Francais(Trainer):
    """A script in French: narrow blanks between thousands, decimal commas."""

    step_s, log_every, total = 1.4, 20, 200_000
    start_s = (10.0, 120.0)
    eval_every, eval_s, save_every, save_s = 4000, 660.0, 4000, 45.0
    walltime_h, place = 6.0, "run"
    background = (LUSTRE,)

    def step(self, now: Now) -> str:
        return f"Itération {_french(now.step)} sur {_french(now.total)} — perte {_french(now.loss, 4)} — {_french(now.step_s, 2)} s/pas\n"

    def begins_eval(self, now: Now) -> str:
        return "Validation en cours…\n"

    def ends_save(self, now: Now) -> str:
        return f"Point de reprise écrit à l'itération {_french(now.step)}\n"


class Espanol(Trainer):
    """A script in Spanish: dots between thousands."""

    step_s, log_every = 3.1, 5
    start_s = (20.0, 200.0)
    save_every, save_s = 900, 130.0
    background = (UPTIME, BOARDS)

    def step(self, now: Now) -> str:
        return (
            f"[{now.clock('%d/%m/%Y %H:%M:%S')}] Paso {_spanish(now.step)}: pérdida = {now.loss:.3f}".replace(
                ".3", ",3"
            )
            + "\n"
        )


class Japanese(Trainer):
    """A script in Japanese."""

    step_s, log_every, epoch_steps = 0.8, 50, 7000
    start_s = (20.0, 90.0)
    eval_every, eval_s, reload_s = -1, 240.0, 60.0
    background = (POLL,)

    def step(self, now: Now) -> str:
        return f"{now.clock('%Y年%m月%d日 %H時%M分%S秒')} エポック{now.epoch + 1} 進捗 {now.k}／{now.of} 損失 {now.loss:.4f}\n"

    def ends_eval(self, now: Now) -> str:
        return f"検証精度 {now.chance.uniform(60, 90):.2f}％\n"


class Structured(Trainer):
    """JSON lines of structlog, in which the counter is of tokens; the host is polled in the same form."""

    step_s, log_every = 6.2, 4
    start_s = (10.0, 60.0, 240.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 800, 900.0, 12, 800, 70.0
    walltime_h, place = 5.0, "pattern"
    background = (POLL,)

    def starts(self, now: Now) -> Sequence[str]:
        return tuple(
            json.dumps({"ts": round(now.time, 3), "event": "boot", "stage": name}) + "\n"
            for name in ("mesh", "weights")
        )

    def step(self, now: Now) -> str:
        return (
            json.dumps(
                {
                    "ts": round(now.time, 3),
                    "event": "optim",
                    "tokens": 4_194_304 * now.step,
                    "nll": round(now.loss, 4),
                    "gn": round(now.norm, 3),
                }
            )
            + "\n"
        )

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return (
            json.dumps({"ts": round(now.time, 3), "event": "probe", "task": f"t{n}", "nll": round(now.loss, 4)}) + "\n"
        )


class LogFmt(Trainer):
    """logfmt, as Go programs write it, beside an exporter in the same form."""

    step_s, log_every = 0.45, 100
    start_s = (5.0, 80.0)
    save_every, save_s, eval_every, eval_s = 8000, 22.0, 16_000, 410.0
    background = (SCRAPE,)

    def step(self, now: Now) -> str:
        return f'time={now.clock("%Y-%m-%dT%H:%M:%S")}Z level=INFO source=fit.go:77 msg="optimizer applied" seen={now.step * 512} nll={now.loss:.4f} rate={512 / now.step_s:.0f}\n'

    def begins_save(self, now: Now) -> str:
        return f'time={now.clock("%Y-%m-%dT%H:%M:%S")}Z level=INFO source=ckpt.go:31 msg="writing snapshot"\n'


class Labels(Trainer):
    """Four ranks with srun's labels, a step apart, with a bar of their own each."""

    step_s, log_every, total = 2.2, 5, 90_000
    start_s = (10.0, 60.0, 60.0)
    eval_every, eval_s, eval_lines = 3000, 500.0, 20
    background = (ALLOCATOR,)

    def starts(self, now: Now) -> Sequence[str]:
        return tuple(
            "".join(f"{rank}: {text}\n" for rank in range(4)) for text in ("joined the group", "model on device")
        )

    def step(self, now: Now) -> str:
        return "".join(f"{rank}: \r{rank}: {now.bar(now.step - rank % 2, now.total)}\n" for rank in range(4))

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return "".join(f"{rank}: \r{rank}: Scoring: {now.bar(n, of, per_s=25.0)}\n" for rank in range(4))


class AliveBar(Trainer):
    """alive-progress in a file: the same line drawn again."""

    step_s, log_every, total = 0.3, 40, 900_000
    start_s = (5.0, 60.0)
    save_every, save_s = 20_000, 60.0
    pause_s = 540.0
    background = (UPTIME,)

    def step(self, now: Now) -> str:
        filled = int(40 * now.step / now.total)
        return f"\ron {now.step}: |{'█' * filled}{' ' * (40 - filled)}| {now.step}/{now.total} [{now.percent}%] in {now.long(now.elapsed_s)} (~{now.long((now.total - now.step) * now.step_s)}, {1 / now.step_s:.1f}/s)"


class Syslog(Trainer):
    """Lines of syslog, in which only the tokens count, in billions."""

    step_s, log_every = 11.0, 2
    start_s = (20.0, 60.0, 600.0)
    eval_every, eval_s, save_every, save_s = 400, 1300.0, 200, 95.0
    walltime_h, place = 8.0, "run"
    background = (SOCKETS,)

    def step(self, now: Now) -> str:
        return f"{now.clock('%b %d %H:%M:%S')} node01 pretrain[24011]: consumed {now.step * 0.0042:.4f} G tokens, xent {now.loss:.4f}, {now.chance.uniform(380, 401):.1f} TFLOPs\n"


class Kaldi(Trainer):
    """Kaldi's nnet3: a range of minibatches."""

    step_s, log_every, epoch_steps = 1.1, 10, 1700
    start_s = (10.0, 30.0)
    reload_s, save_every, save_s = 70.0, -1, 12.0
    background = (BOARDS, LUSTRE)

    def step(self, now: Now) -> str:
        return (
            "LOG (nnet3-chain-train[5.5.1089~1-f6f4]:PrintStatsForThisPhase():nnet-training.cc:323) Average objective"
            f" function for 'output' for minibatches {now.k - 10}-{now.k - 1} is {-now.loss / 20:.6f} over {now.chance.randrange(9000, 12800)} frames.\n"
        )


class ProgressMeter(Trainer):
    """ProgressMeter.jl: a share without a counter, with its values below, drawn over with escape sequences."""

    step_s, log_every, total = 0.9, 12, 80_000
    start_s = (60.0, 240.0)
    eval_every, eval_s = 5000, 520.0
    walltime_h = 7.0
    background = (CLIENTS,)

    def step(self, now: Now) -> str:
        return f"\r\x1b[32mTraining: {now.percent:3d}%|{'█' * (now.percent // 5):20s}|  ETA: {now.long((now.total - now.step) * now.step_s)}\x1b[39m\n\x1b[34m  loss:   {now.loss}\x1b[39m\n\x1b[A\x1b[A"


class Evolution(Trainer):
    """An evolution strategy: generations of four minutes, with the fitness of each."""

    step_s, log_every, noise = 240.0, 1, 0.2
    start_s = (30.0, 300.0)
    save_every, save_s = 10, 20.0
    slows = True
    background = (CLIENTS, UPTIME)

    def step(self, now: Now) -> str:
        return f"gen {now.step:4d} | best {now.chance.gauss(310, 9):8.2f} | mean {now.chance.gauss(220, 20):8.2f} | sigma {0.1 / (1 + now.step / 90):.5f} | evals {4096 * now.step}\n"


class Terse(Trainer):
    """Two letters a word."""

    step_s, log_every, epoch_steps = 0.6, 25, 2500
    start_s = (5.0, 45.0)
    eval_every, eval_s, save_every, save_s = -1, 150.0, -1, 9.0
    background = (ALLOCATOR, SCRAPE)

    def step(self, now: Now) -> str:
        return f"ep={now.epoch} it={now.k} l={now.loss:.4f} gn={now.norm:.3f} dt={1000 * now.step_s:.0f}ms\n"

    def ends_eval(self, now: Now) -> str:
        return f"ep={now.epoch} va={now.chance.random():.4f}\n"


class Caffe(Trainer):
    """Caffe: glog, with a test at regular iterations."""

    step_s, log_every, total = 0.41, 100, 2_000_000
    start_s = (10.0, 100.0)
    eval_every, eval_s, eval_lines, save_every, save_s = 5000, 210.0, 2, 10_000, 6.0
    walltime_h, place = 9.0, "pattern"
    background = (LUSTRE,)

    def step(self, now: Now) -> str:
        head = f"I{now.clock('%m%d %H:%M:%S.%f')} 12345 "
        return (
            f"{head}solver.cpp:239] Iteration {now.step} ({1 / now.step_s:.5f} iter/s, {100 * now.step_s:.3f}s/100 iters), loss = {now.loss:.5f}\n"
            f"{head}solver.cpp:258]     Train net output #0: softmax = {now.loss:.5f} (* 1 = {now.loss:.5f} loss)\n{head}sgd_solver.cpp:112] Iteration {now.step}, lr = {now.lr:.6f}\n"
        )

    def begins_eval(self, now: Now) -> str:
        return f"I{now.clock('%m%d %H:%M:%S.%f')} 12345 solver.cpp:347] Iteration {now.step}, Testing net (#0)\n"

    def evaluates(self, now: Now, n: int, of: int) -> str:
        return f"I{now.clock('%m%d %H:%M:%S.%f')} 12345 solver.cpp:414]     Test net output #{n - 1}: accuracy = {now.chance.random():.4f}\n"


class Federated(Trainer):
    """Rounds of federated learning, with a line for each client, a clock with AM and PM."""

    step_s, log_every = 34.0, 1
    start_s = (10.0, 400.0)
    eval_every, eval_s, save_every, save_s = 25, 480.0, 25, 30.0
    background = (CLIENTS,)

    def step(self, now: Now) -> str:
        head = now.clock("[%I:%M:%S %p]")
        return (
            f"{head} round {now.step // 10 + 1}, client {now.step % 10 + 1}/10 reported ({now.chance.randrange(900, 1400)} examples)\n"
            + (f"{head} aggregated round {now.step // 10 + 1}: {now.loss:.4f}\n" if now.step % 10 == 9 else "")
        )


class Blocks(Trainer):
    """A block of one figure a line for each report, the counter in the middle."""

    step_s, log_every = 1.9, 30
    start_s = (10.0, 70.0)
    eval_every, eval_s, save_every, save_s = 3000, 840.0, 1500, 28.0
    background = (POLL, BOARDS)
    walltime_h, place, queue_s = 6.0, "run", 1800.0

    def step(self, now: Now) -> str:
        return f"{'=' * 40}\nlr            {now.lr:.3e}\nloss          {now.loss:.5f}\nseen_batches  {now.step}\ngrad_norm     {now.norm:.4f}\nelapsed       {now.long(now.elapsed_s)}\n"


class Timesteps(Trainer):
    """Only the time and the loss, without any counter, beside monitors that count."""

    step_s, log_every = 4.4, 5
    start_s = (5.0, 30.0)
    eval_every, eval_s = 900, 380.0
    background = (LUSTRE, CLIENTS)

    def step(self, now: Now) -> str:
        return f"{now.time:.2f} {now.loss:.6f} {now.norm:.6f}\n"


TRAINERS: tuple[type[Trainer], ...] = (
    Francais, Espanol, Japanese, Structured, LogFmt, Labels, AliveBar, Syslog, Kaldi, ProgressMeter, Evolution, Terse,
    Caffe, Federated, Blocks, Timesteps,
)  # fmt: skip
