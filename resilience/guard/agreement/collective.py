"""Agreement by an all-reduce every few steps, for those who want it: torch's own collectives, no extra connection.

All ranks meet after the same steps, so whoever asks is heard by all at once, and what is decided there holds there.
The price: a decision waits for the next meeting, every meeting is a collective, and a rank whose count differs from
the others' would meet nobody. `poll()` announces nothing between two meetings, because ranks may poll unequally often.
"""

from __future__ import annotations

import threading

from resilience.errors import AgreementLost, GuardError
from resilience.guard.agreement.alone import Alone
from resilience.guard.agreement.heard import Heard
from resilience.guard.agreement.messages import read_request, sendable
from resilience.guard.decision import CONTINUE, FAILED, OBEYED, SAVED, Decision, Request, merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from resilience.guard.gate import Gate
    from resilience.guard.place import Place

LAST_MEETING_S = 60.0
"""How long the last meeting, after a stop, waits for the slowest rank's save."""


class Collective:
    """Choose this agreement: `TrainingGuard.from_env(agreement=Collective(every=10))`, the same on every rank.

    Args:
        every: all ranks meet after each step whose number is a multiple of this.
        group: the process group of all ranks to meet in. Default: a gloo group made at the first meeting, on the CPU,
            so that no device has to be waited for.

    Raise GuardError if `every` is no whole number from 1 on.
    """

    def __init__(self, *, every: int = 10, group: Any = None) -> None:
        if type(every) is not int or every < 1:
            raise GuardError(f"Collective(every={every!r}) is not possible", hint="a whole number of steps, from 1 on")
        self.every = every
        self.group = group

    def __call__(self, gate: Gate, hear: Callable[[Heard], None], place: Place) -> CollectiveAgreement | Alone:
        """The agreement of this process; called by the guard."""
        if place.world == 1:
            return Alone(gate, hear)
        return CollectiveAgreement(gate, hear, place, every=self.every, group=self.group)


class CollectiveAgreement:
    """What `Collective` makes on each rank. Any thread may call `wish`; the others are for the training thread."""

    def __init__(
        self, gate: Gate, hear: Callable[[Heard], None], place: Place, *, every: int, group: Any = None
    ) -> None:
        self._gate = gate
        self._hear = hear
        self._place = place
        self._every = every
        self._given_group = group
        self._group: Any = None
        self._made_under: Any = None  # torch's default group when ours was made: it may be formed anew
        self._wishes: list[Request] = []
        self._lock = threading.Lock()
        self._start = threading.Event()
        self._start_decision: Decision | None = None
        self._stopped: Decision | None = None
        self._obeying: tuple[Decision, list[Request]] | None = None  # until all know how it went everywhere
        self._outcome: tuple[str, float] | None = None

    # ---- any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Nothing to be started: the first meeting makes the group."""

    def wish(self, request: Request) -> None:
        """Ask for something: the next meeting decides."""
        with self._lock:
            self._wishes.append(sendable(request, self._place.rank))

    def decide_start(self, decision: Decision) -> None:
        """On rank 0: what to do before the first step. The first word counts."""
        if self._start_decision is None:
            self._start_decision = decision
            self._start.set()

    # ---- training thread --------------------------------------------------------------------------------------

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """What rank 0 decides about the start: a broadcast, so all ranks call this or none.

        Before torch.distributed is initialized nobody can be told: then all go on, and the first meeting decides.
        """
        if self._place.is_first:
            self._start.wait(timeout_s)
        if not _is_initialized():
            return CONTINUE
        mine = self._start_decision.as_dict() if self._place.is_first and self._start_decision is not None else None
        told: Any = next((fields for fields in self._gather(mine) if fields is not None), None)
        return None if told is None else Decision(**told)

    def awaited(self) -> Decision | None:
        """Nothing: what is agreed upon in a meeting is given to the training there and then."""
        return None

    def arrive(self) -> Decision:
        """The training has done a step that reached the limit: a meeting, or something of this rank alone."""
        step = self._gate.count
        if self._stopped is not None:
            return Decision(**{**self._stopped.as_dict(), "save": False, "step": step})
        if step % self._every:
            self.restore()
            return CONTINUE
        with self._lock:
            wishes = list(self._wishes)
        decision = CONTINUE
        if self._is_anything_asked(bool(wishes) or self._outcome is not None):
            decision = self._decide(wishes, step)
        self.restore()
        return decision

    def arrive_at_poll(self) -> Decision:
        """Ranks may poll unequally often: only a stop that was decided already is announced."""
        self.restore()
        if self._stopped is None:
            return CONTINUE
        return Decision(**{**self._stopped.as_dict(), "save": False, "step": self._gate.count})

    def finish(self, outcome: str, seconds: float) -> None:
        """The last decision has been obeyed here. The others hear it at the next meeting, or at the end."""
        if self._obeying is not None and self._outcome is None:
            self._outcome = outcome, seconds
        self.restore()

    def restore(self) -> None:
        """Let the training run until the next meeting."""
        gate = self._gate
        if self._stopped is not None:
            gate.limit = gate.poll_limit = 0
            return
        gate.open()
        gate.limit = (gate.count // self._every + 1) * self._every
        if self._obeying is not None and self._outcome is None:
            gate.limit = gate.count + 1  # the next step tells that it was obeyed, if nothing did before
        if gate.urgent:  # a signal came meanwhile: its handler wrote the limits before us
            gate.limit = gate.poll_limit = 0

    def resumed(self) -> None:
        """The counters were set anew, on all ranks. How a save went that nobody told of is not known."""
        if self._obeying is not None:
            self._close([(FAILED, 0.0)])
        self.restore()

    def outlast(self, wait_s: float) -> None:
        """After a stop, all ranks tell each other how the last save went: once, for at most `wait_s` seconds."""
        if self._obeying is None or self._outcome is None:
            return
        mine = self._outcome
        if self._stopped is None:
            self._close([mine])  # the end came before the next meeting, on this rank at least
            return
        outcomes = [mine]
        try:
            from datetime import timedelta

            told = self._gather({"outcome": mine, "wishes": []}, timedelta(seconds=min(wait_s, LAST_MEETING_S)))
            outcomes = [tuple(fields["outcome"]) for fields in told if fields["outcome"] is not None]
        except (AgreementLost, GuardError, TypeError, KeyError):
            pass  # a rank is gone, or torch's groups are: what is known here has to do
        self._close(outcomes)

    def leave(self, wait_s: float) -> None:
        """The training is over."""
        self.outlast(wait_s)

    def forget(self) -> None:
        """In a forked child: nothing to close."""

    # ---- meetings ---------------------------------------------------------------------------------------------

    def _decide(self, wishes: list[Request], step: int) -> Decision:
        """Somebody asks for something, or tells how the last save went: exchange it all and merge it."""
        told = self._gather({"outcome": self._outcome, "wishes": [request.as_dict() for request in wishes]})
        if self._obeying is not None:
            # A rank that has not told passed over the decision, and `finish` has nothing to say before its next step.
            self._close([tuple(fields["outcome"] or (OBEYED, 0.0)) for fields in told])
        asked = [read_request(request) for fields in told for request in fields["wishes"]]
        with self._lock:
            del self._wishes[: len(wishes)]
        if not asked:
            return CONTINUE
        decision = merge(asked, step)
        self._obeying, self._outcome = (decision, asked), None
        if decision.stop:
            self._stopped = decision
        if self._place.is_first:
            self._hear(Heard("committed", str(decision), decision=decision, requests=asked))
        return decision

    def _close(self, outcomes: Sequence[tuple[str, float]]) -> None:
        """All that can be known of how the last decision was obeyed is known: rank 0's host hears the worst."""
        assert self._obeying is not None
        (decision, asked), self._obeying, self._outcome = self._obeying, None, None
        words = {word for word, _ in outcomes}
        outcome = next((word for word in (FAILED, SAVED) if word in words), OBEYED)
        seconds = max((seconds for _, seconds in outcomes), default=0.0)
        if self._place.is_first:
            text = f"{outcome}: {decision}"
            self._hear(Heard("outcome", text, decision=decision, requests=asked, outcome=outcome, seconds=seconds))

    def _is_anything_asked(self, here: bool) -> bool:
        """One number for all: the only thing that is exchanged at nearly every meeting."""
        import torch
        import torch.distributed as dist

        group = self._meeting_group()
        flag = torch.tensor([int(here)], dtype=torch.int32, device=_device_of(group))
        try:
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return bool(flag.item())

    def _gather(self, mine: Any, timeout: Any = None) -> list[Any]:
        """What each rank says, by rank: JSON as bytes, lengths first, because tensors have one size everywhere."""
        import json

        import torch
        import torch.distributed as dist

        group = self._meeting_group()
        device = _device_of(group)
        world = dist.get_world_size(group)
        raw = json.dumps(mine).encode()

        def exchange(tensor: Any) -> list[Any]:
            parts = [torch.zeros_like(tensor) for _ in range(world)]
            work = dist.all_gather(parts, tensor, group=group, async_op=True)
            if timeout is None:
                work.wait()
            else:
                work.wait(timeout)
            return parts

        try:
            lengths = [int(part.item()) for part in exchange(torch.tensor([len(raw)], device=device))]
            padded = raw.ljust(max(lengths))
            said = exchange(torch.tensor(list(padded), dtype=torch.uint8, device=device))
        except RuntimeError as error:
            raise self._lost(error) from error
        return [json.loads(bytes(part.tolist()).decode()) for part in said]

    def _meeting_group(self) -> Any:
        import torch.distributed as dist

        if not _is_initialized():
            raise GuardError(
                "Collective needs torch.distributed, which is not initialized",
                hint="call torch.distributed.init_process_group() before the first step",
            )
        if self._given_group is not None:
            return self._given_group
        if self._made_under is not dist.group.WORLD:
            self._made_under = dist.group.WORLD
            self._group = dist.new_group(backend="gloo")
        return self._group

    def _lost(self, error: RuntimeError) -> AgreementLost:
        return AgreementLost(
            f"rank {self._place.rank} met nobody at step {self._gate.count}: {error}",
            hint="another rank is gone, or counts its steps differently; the next job resumes from the last save",
        )


def _is_initialized() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


def _device_of(group: Any) -> Any:
    """The CPU, unless a group was given that knows devices only."""
    import torch
    import torch.distributed as dist

    backend = str(dist.get_backend(group))
    return torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
