"""Damaged gradients, moments, weights and running variances of torch trainings are found and undone bit by bit."""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guard.guards import make_guard
from tests.integrations.launched import Launched, needs

pytestmark = [
    needs("torch"),
    pytest.mark.filterwarnings("ignore:Failed to initialize NumPy:UserWarning"),  # torch without numpy, at its import
]

STEPS = 50


class Training:
    """A small training with BatchNorm, dropout, noise from Python's generator, and a schedule.

    Attributes:
        inject: called in each step, before the backward pass, after it, and after the update.
    """

    def __init__(
        self, optimizer: str = "AdamW", *, on: bool = True, scaled: bool = False, clipped: bool = False
    ) -> None:
        import torch

        from resilience.integrations.sdc import TorchState

        torch.manual_seed(0)
        random.seed(0)
        torch.set_num_threads(1)
        layers = (torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
        self.model = torch.nn.Sequential(*layers)
        more = {"momentum": 0.9} if optimizer == "SGD" else {}
        self.optimizer: Any = getattr(torch.optim, optimizer)(self.model.parameters(), lr=1e-2, **more)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=7, enabled=scaled)
        self.clipped = clipped
        self.inject: Callable[[str, int], None] = lambda when, step: None
        self.done: list[int] = []
        self.said: list[str] = []
        self.guard = make_guard(sdc=on, say=self.said.append)
        self.state = TorchState(self.model, self.optimizer, also=[self.schedule, self.scaler])
        self.sdc: Any = self.guard.sdc(self.state)

    def step(self, batch: Any) -> float:
        import torch

        self.done.append(self.sdc.step)
        self.inject("before", self.sdc.step)
        self.optimizer.zero_grad()
        loss = (self.model(batch) - batch[:, :1].sin() + random.gauss(0, 0.01)).square().mean()
        self.scaler.scale(loss).backward()
        self.inject("gradient", self.sdc.step)
        if self.clipped:
            self.sdc.check()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.inject("after", self.sdc.step)
        return float(loss.detach())

    def run(self, steps: int = STEPS) -> Training:
        import torch

        with self.guard:
            for number in range(steps):
                self.sdc.run(self.step, torch.randn(16, 8, generator=torch.Generator().manual_seed(number)))
                if self.guard.step().stop:
                    break
        return self

    def hash(self) -> str:
        """Return a hash of every bit of the training's state."""
        kept = [*self.model.state_dict().values()]
        kept += [
            value for state in self.optimizer.state.values() for value in state.values() if hasattr(value, "numpy")
        ]
        found = hashlib.blake2b(b"".join(one.numpy().tobytes() for one in kept))
        found.update(
            repr((self.schedule.state_dict()["last_epoch"], self.scaler.state_dict(), random.random())).encode()
        )
        return found.hexdigest()

    def damage(self, kind: str, value: float, step: int, when: str = "") -> Training:
        """Put a value into one element, once."""
        left = [value]
        when = when or ("gradient" if kind == "gradient" else "before")

        def inject(at: str, this: int) -> None:
            if this != step or at != when or not left:
                return
            weight: Any = self.model[0].weight
            state = self.optimizer.state[weight]
            tensor = {
                "gradient": lambda: weight.grad,
                "moment": lambda: state["exp_avg" if "exp_avg" in state else "momentum_buffer"],
                "variance": lambda: self.model[1].running_var,
                "weight": lambda: weight.data,
            }[kind]()
            tensor.view(-1)[3] = left.pop()

        self.inject = inject
        return self


@pytest.fixture(scope="module")
def clean() -> dict[str, str]:
    """The hashes of trainings that are not watched."""
    return {name: Training(name, on=False).run().hash() for name in ("AdamW", "SGD")}


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_watched_training_has_the_same_bits(clean: dict[str, str], optimizer: str) -> None:
    training = Training(optimizer).run()
    assert training.hash() == clean[optimizer] and training.sdc.is_on and not training.sdc.found


@pytest.mark.parametrize("kind", ["gradient", "moment", "variance", "weight"])
@pytest.mark.parametrize(("optimizer", "value"), [("AdamW", -1e17), ("SGD", math.nan)])
def test_rolled_back_and_replayed_the_training_ends_with_the_same_bits(
    clean: dict[str, str], optimizer: str, kind: str, value: float
) -> None:
    training = Training(optimizer).damage(kind, value, step=31).run()
    assert [(one.verdict, one.step) for one in training.sdc.found] == [("transient", 31)]
    assert training.done == [*range(1, 32), 30, 31, *range(32, STEPS + 1)]
    assert training.hash() == clean[optimizer]


@pytest.mark.parametrize("kind", ["moment", "weight"])
def test_damage_after_the_check_is_found_at_the_next_step(clean: dict[str, str], kind: str) -> None:
    training = Training().damage(kind, 1e20, step=31, when="after").run()
    assert [one.step for one in training.sdc.found] == [32] and training.hash() == clean["AdamW"]


@pytest.mark.parametrize("step", [1, 2])
def test_before_the_optimizer_has_a_state_the_first_steps_are_replayed(clean: dict[str, str], step: int) -> None:
    training = Training().damage("gradient", math.inf, step=step).run()
    assert [one.verdict for one in training.sdc.found] == ["transient"] and training.hash() == clean["AdamW"]


def test_a_loss_scaler_and_its_skipped_steps_are_no_fault_and_are_replayed_too() -> None:
    expected = Training(on=False, scaled=True).damage("gradient", math.inf, step=20).run().hash()
    skipped = Training(scaled=True).damage("gradient", math.inf, step=20).run()
    assert not skipped.sdc.found and skipped.hash() == expected, "the scaler skips a step with infinite gradients"
    damaged = Training(scaled=True).damage("moment", 1e20, step=30).run()
    assert [one.verdict for one in damaged.sdc.found] == ["transient"]
    assert damaged.hash() == Training(on=False, scaled=True).run().hash()


def test_clipping_hides_a_gradient_unless_the_check_comes_before_it() -> None:
    training = Training(clipped=True).damage("gradient", 1e30, step=31).run()
    assert [one.verdict for one in training.sdc.found] == ["transient"]
    assert training.hash() == Training(on=False, clipped=True).run().hash()


def test_the_names_of_damaged_tensors_are_told() -> None:
    training = Training().damage("moment", -1e17, step=31).run()
    assert training.sdc.found[0].why.startswith("exp_avg of 0.weight is 1e+17, at most ")
    training = Training().damage("variance", 1e30, step=31).run()
    assert "the buffer 1.running_var is 9e+29, at most" in training.sdc.found[0].why


def test_the_digest_changes_with_each_bit_and_nothing_else() -> None:
    import torch

    training = Training(on=False).run(3)
    before = training.state.digest(gradients=False)
    assert before == training.state.digest(gradients=False)
    bits = training.model[0].weight.data.view(torch.int32).view(-1)
    for bit in range(32):
        bits[5] ^= 1 << bit if bit < 31 else -(2**31)
        assert training.state.digest(gradients=False) != before, bit
        bits[5] ^= 1 << bit if bit < 31 else -(2**31)
    assert training.state.digest(gradients=False) == before
    training.model[1].running_var[0] = 5.0
    assert training.state.digest(gradients=False) == before, "replicas have running variances of their own"
    assert training.state.digest(gradients=True) != before


# ---- trainings of other kinds ---------------------------------------------------------------------------------------


class Small:
    """A training of any model, whose step function is `step`."""

    def __init__(self, model: Any, optimizer: Any, *, also: Any = ()) -> None:
        from resilience.integrations.sdc import TorchState

        self.model, self.optimizer, self.said = model, optimizer, list[str]()
        self.guard = make_guard(sdc=True, say=self.said.append)
        self.sdc: Any = self.guard.sdc(TorchState(model, optimizer, also=also))
        self.before: Callable[[int], None] = lambda step: None
        self.inject: Callable[[], Any] = lambda: None

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.model(batch).abs().square().mean().backward()
        if self.sdc.step == 30:
            self.inject()
        self.optimizer.step()

    def run(self, step: Callable[[Any], None] | None = None, *, steps: int = 40) -> list[tuple[str, int]]:
        """Return what was found."""
        import torch

        with self.guard:
            for number in range(1, steps + 1):
                self.before(number)
                self.sdc.run(step or self.step, torch.randn(8, 4, generator=torch.Generator().manual_seed(number)))
                assert not self.guard.step().stop, self.said
        assert self.sdc.is_on, self.said
        return [(one.verdict, one.step) for one in self.sdc.found]

    def once(self, tensor: Callable[[], Any], value: float = 1e20) -> Small:
        """Put a value into the first element of a tensor at step 30, once."""
        left = [value]
        self.inject = lambda: left and tensor().view(-1)[:1].fill_(left.pop())
        return self


def test_a_mask_of_infinities_is_no_fault_and_variances_have_bounds() -> None:
    import torch

    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    training = Small(model, torch.optim.Adam(model.parameters()))
    assert training.once(lambda: model[1].running_var).run() == [("transient", 30)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clips", [False, True])
def test_steps_that_a_loss_scaler_skips_are_no_fault_also_if_the_gradients_are_checked(
    *, fused: bool, clips: bool
) -> None:
    import torch

    model = torch.nn.Linear(4, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    training = Small(model, torch.optim.Adam(model.parameters(), fused=fused), also=[scaler])

    def step(batch: Any) -> None:
        training.optimizer.zero_grad()
        scaler.scale(10 * model(batch).square().mean()).backward()
        if clips:
            scaler.unscale_(training.optimizer)
            training.sdc.check()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(training.optimizer)
        scaler.update()

    assert training.run(step) == [] and 1e30 < scaler.get_scale() < 3e38


def test_layers_that_are_unfrozen_and_added_between_steps_are_watched_and_the_step_alone_is_replayed() -> None:
    import torch

    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[0].requires_grad_(False)
    training = Small(model, torch.optim.Adam(model[1].parameters()))

    def unfreeze(number: int) -> None:
        if number == 30:
            model[0].requires_grad_(True)
            training.optimizer.add_param_group({"params": list(model[0].parameters())})

    training.before = unfreeze
    assert training.once(lambda: model[0].weight.grad).run() == [("transient", 30)]
    assert "the step was replayed" in training.said[0] and training.optimizer.state[model[0].weight]["step"] == 11


def test_sparse_gradients_are_watched() -> None:
    import torch

    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 1)

        def forward(self, batch: Any) -> Any:
            return self.out(self.words((3 * batch.abs()).long().clamp(0, 9)))

    model = Words()
    training = Small(model, torch.optim.SGD(model.parameters(), lr=0.01))
    assert training.once(lambda: model.words.weight.grad._values()).run() == [("transient", 30)]


def test_complex_parameters_are_watched_and_generators_restored() -> None:
    import torch

    class Waves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.complex64))

        def forward(self, batch: Any) -> Any:
            noise = torch.randn(8, 4, generator=own)
            drawn.append(float(noise[0, 0]))
            return (batch + noise).to(torch.complex64) @ self.weight

    own, drawn = torch.Generator().manual_seed(1), list[float]()
    model = Waves()
    training = Small(model, torch.optim.Adam(model.parameters()), also=[own])
    assert training.once(lambda: model.weight.grad).run() == [("transient", 30)]
    assert drawn[30:32] == drawn[28:30] and len(set(drawn)) == 40


def test_a_spike_of_the_data_goes_into_the_moments_and_stops_nothing() -> None:
    import torch

    training = Small(model := torch.nn.Linear(4, 4), torch.optim.Adam(model.parameters()))
    training.inject = lambda: model.weight.grad.fill_(2e5)
    assert training.run(steps=60) == [("repeated", 30)], "its square, 4e7, is in the second moment for long"


def test_a_parameter_of_the_optimizer_alone_is_restored_too() -> None:
    import torch

    def train(at: int) -> tuple[list[tuple[str, int]], list[float]]:
        torch.manual_seed(0)
        model, scale = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.ones(3))
        training = Small(model, torch.optim.Adam([*model.parameters(), scale]))
        training.inject = lambda: None

        def step(batch: Any) -> None:
            training.optimizer.zero_grad()
            (model(batch).square().mean() * scale.sum()).backward()
            if training.sdc.step == at and left:
                scale.grad[0] = left.pop()
            training.optimizer.step()

        left = [1e20]
        return training.run(step), scale.tolist()

    (clean, expected), (found, scale) = train(0), train(30)
    assert clean == [] and found == [("transient", 30)] and scale == expected


@pytest.mark.parametrize(("damaged_at", "verdicts"), [(32, ["transient"]), (30, ["repeated"])])
def test_gradients_that_are_kept_from_one_call_to_the_next_are_restored(damaged_at: int, verdicts: list[str]) -> None:
    import torch

    def train(at: int) -> tuple[Small, list[float]]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        training = Small(model, torch.optim.Adam(model.parameters()))
        left = [1e20]

        def step(batch: Any) -> None:  # an update in each fourth call
            model(batch).square().mean().backward()
            if training.sdc.step == at and left:
                model.weight.grad[0, 0] = left.pop()
            if training.sdc.step % 4 == 0:
                training.optimizer.step()
                training.optimizer.zero_grad()

        with training.guard:
            for number in range(1, 41):
                training.sdc.run(step, torch.randn(8, 4, generator=torch.Generator().manual_seed(number)))
                if training.guard.step().stop:
                    break
        return training, model.weight.flatten().tolist()

    (_, expected), (training, weights) = train(0), train(damaged_at)
    assert [(one.verdict, one.step) for one in training.sdc.found] == [(verdicts[0], 32)]
    assert verdicts == ["repeated"] or weights == expected


def test_a_weight_that_is_nan_is_found_although_the_loss_scaler_skips_every_update() -> None:
    expected = Training(on=False, scaled=True).run().hash()
    training = Training(scaled=True).damage("weight", math.nan, step=30, when="after").run()
    assert [one.verdict for one in training.sdc.found] == ["transient"] and training.hash() == expected


def test_steps_without_an_update_are_told() -> None:
    import torch

    training = Small(model := torch.nn.Linear(4, 4), torch.optim.Adam(model.parameters()))
    assert training.run(lambda batch: model(batch).sum().backward(), steps=100) == []
    assert len(training.said) == 1 and "100 of the last 100 steps were not checked" in training.said[0]


# ---- ranks ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    launched = Launched(tmp_path)
    yield launched
    launched.finish()


def launch(launched: Launched, world: int, faults: dict[int, Any], **variables: str) -> list[int]:
    """Let the ranks of a data-parallel training end, and return their exit codes."""
    script = Path(__file__).parent / "sdc_training.py"
    launched.launch([sys.executable, str(script), json.dumps(faults), str(world)], GLOO_SOCKET_IFNAME="lo", **variables)
    launched.wait()
    return list(json.loads((launched.directory / "codes.json").read_text()))


def train(launched: Launched, world: int, faults: dict[int, Any]) -> list[Any]:
    """Return what the ranks of a data-parallel training tell at their end."""
    launch(launched, world, faults)
    return [launched.last(rank, "end") for rank in range(world)]


def test_data_parallel_ranks_replay_together(launched: Launched) -> None:
    told = train(launched, 2, {1: [[31, "moment", 1e30]]})
    assert [[found[:2] for found in one["found"]] for one in told] == [[["transient", 31]]] * 2
    assert all("rank 1 on " in one["found"][0][2] and one["is_on"] and not one["stop"] for one in told)
    assert told[0]["digest"] == told[1]["digest"]


@pytest.mark.soak
def test_four_data_parallel_ranks_replay_together_and_a_weight_that_differs_names_its_rank(launched: Launched) -> None:
    told = train(launched, 4, {1: [[31, "moment", 1e30]], 2: [[33, "weight", 0.4]]})
    assert [[found[:2] for found in one["found"]] for one in told] == [[["transient", 31], ["replica", 40]]] * 4
    assert all("rank 1 on " in one["found"][0][2] and "rank 2 on " in one["found"][1][2] for one in told)
    assert all(one["stop"] and one["is_on"] for one in told)
    digests = [one["digest"] for one in told]
    assert digests[0] == digests[1] == digests[3] != digests[2]
    found = [event for event in launched.guard_events() if event["event"] == "sdc"]
    assert [(event["of_rank"], event["verdict"]) for event in found] == [(1, "transient"), (2, "replica")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The bits after each step of a training of two ranks to which nothing happens."""
    launched = Launched(tmp_path_factory.mktemp("undisturbed"))
    try:
        assert launch(launched, 2, {}, BITS="1") == [0, 0]
        return [one["bits"] for one in launched.diary(0) if one["event"] == "step"]
    finally:
        launched.finish()


@pytest.mark.soak
@pytest.mark.parametrize(("step", "what", "code"), [(30, "kill", 75), (31, "save", 0), (30, "USR1", 75)])
def test_a_switch_or_a_signal_in_a_replay_is_obeyed_after_it_at_one_step_with_the_bits_of_an_undisturbed_training(
    launched: Launched, undisturbed: list[str], step: int, what: str, code: int
) -> None:
    import torch

    from tests.integrations.sdc_training import bits

    assert launch(launched, 2, {1: [[31, "moment", 1e30], [step, what, 0]]}) == [code, code]
    assert launched.count(1, what) == 1
    first, other = (launched.last(rank, "decision") for rank in range(2))
    assert first == other and first["step"] == first["count"] > 30 and first["save"] and first["stop"] == (code != 0)
    saved = torch.load(launched.directory / "checkpoint.pt")
    assert saved["step"] == first["step"]
    assert bits(saved["model"], saved["optimizer"]) == undisturbed[saved["step"] - 1]
    assert [one["step"] for one in launched.guard_events() if one["event"] == "save"] == [saved["step"]]
    assert [found[:2] for found in launched.last(0, "end")["found"]] == [["transient", 31]]


@pytest.mark.soak
@pytest.mark.parametrize(("rank", "step"), [(0, 30), (2, 31)])
def test_a_rank_that_is_killed_in_a_replay_leaves_the_others_to_end_with_what_was_found(
    launched: Launched, rank: int, step: int
) -> None:
    codes = launch(launched, 3, {1: [[31, "moment", 1e30]], rank: [[step, "die", 0]]})
    assert codes == [-9 if one == rank else 1 for one in range(3)]
    others = [one for one in range(3) if one != rank]
    assert launched.count(rank, "die") == 1 and not any(launched.count(one, "end") for one in others)
    said = launched.output.read_text()
    assert said.count("warning: sdc is off from here on") == 2, said
    what = "silent data corruption, perhaps: rank 1 on "
    assert said.count(what) == 2 and said.count("nobody can say whether it was the hardware") == 2, said
    if rank:
        assert "Connection closed by peer" in launched.end()["why"] and launched.end()["exit_code"] == 1
