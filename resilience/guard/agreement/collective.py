"""Optional agreement by an all-reduce every few steps: torch's own collectives, no additional connection.

All ranks exchange their requests after the same steps, and the decision applies to that step. The cost: a decision
waits for the next exchange, every exchange is a collective, and a rank whose count differs from the others' deadlocks.
`poll()` announces nothing between two exchanges, because ranks may poll unequally often.
"""

from __future__ import annotations

import threading

from resilience.errors import AgreementLost, GuardError
from resilience.guard.agreement.base import Agreement, AgreementEvent, ExitSummary, SingleProcess, never_hurried
from resilience.guard.agreement.messages import read_request, sendable
from resilience.guard.decision import CONTINUE, FAILED, IN_FLIGHT, OBEYED, SAVED, Decision, Request, merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from resilience.guard.gate import Gate
    from resilience.guard.rank_info import RankInfo

LAST_EXCHANGE_S = 60.0
"""How long the last exchange, after a stop, waits for the slowest rank's save."""


class Collective:
    """Choose this agreement: `TrainingGuard.from_env(agreement=Collective(every=10))`, the same on every rank.

    Args:
        every: all ranks exchange requests after each step whose number is a multiple of this.
        group: the process group of all ranks. Default: a gloo group made at the first exchange, on the CPU, so that no
            exchange waits for a device.

    Raise GuardError unless `every` is a whole number from 1 on.
    """

    def __init__(self, *, every: int = 10, group: Any = None) -> None:
        if type(every) is not int or every < 1:
            raise GuardError(f"Collective(every={every!r}) is not possible", hint="a whole number of steps, from 1 on")
        self.every = every
        self.group = group

    def __call__(
        self, gate: Gate, on_event: Callable[[AgreementEvent], None], place: RankInfo
    ) -> CollectiveAgreement | SingleProcess:
        """Return the agreement of this process; called by the guard."""
        if place.world == 1:
            return SingleProcess(gate, on_event)
        return CollectiveAgreement(gate, on_event, place, every=self.every, group=self.group)


class _Decided:
    """A decision whose outcome is not known on all ranks. All ranks have the same ones, in the same order."""

    def __init__(self, decision: Decision, asked: list[Request]) -> None:
        self.decision = decision
        self.asked = asked
        self.is_obeyed = False
        self.outcome: tuple[str, float] | None = None  # None: not known yet on this rank

    def report(self) -> tuple[str, float] | None:
        """Return the outcome on this rank; None while a save is in flight. A skipped decision is reported as
        `obeyed`."""
        return self.outcome if self.is_obeyed else (OBEYED, 0.0)


class CollectiveAgreement(Agreement):
    """The agreement that `Collective` makes on each rank."""

    def __init__(
        self, gate: Gate, on_event: Callable[[AgreementEvent], None], place: RankInfo, *, every: int, group: Any = None
    ) -> None:
        super().__init__(gate)
        self.world = place.world
        self._on_event = on_event
        self._place = place
        self._every = every
        self._given_group = group
        self._group: Any = None
        self._made_under: Any = None  # torch's default group when ours was made: it may be replaced
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        self._start = threading.Event()
        self._start_decision: Decision | None = None
        self._stopped: Decision | None = None
        self._decided: dict[int, _Decided] = {}  # by number, until all ranks know the outcome of all
        self._count = 0

    # ---- any thread -------------------------------------------------------------------------------------------

    def request(self, request: Request) -> None:
        """Queue a request for the next exchange."""
        with self._lock:
            self._requests.append(sendable(request, self._place.rank))

    def decide_start(self, decision: Decision) -> None:
        """See `Agreement`."""
        if self._start_decision is None:
            self._start_decision = decision
            self._start.set()

    def saved(self, number: int, outcome: str, seconds: float) -> None:
        """See `Agreement`. The others receive the outcome at the next exchange, or at the end."""
        if number in self._decided:
            self._decided[number].outcome = outcome, seconds

    # ---- training thread --------------------------------------------------------------------------------------

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """Return the decision of rank 0 about the start: a broadcast, so all ranks call this or none.

        Before torch.distributed is initialized no broadcast is possible: all continue, and the first exchange decides.
        """
        if self._place.is_first:
            self._start.wait(timeout_s)
        if not _is_initialized():
            return CONTINUE
        mine = self._start_decision.as_dict() if self._place.is_first and self._start_decision is not None else None
        gathered: Any = next((fields for fields in self._gather(mine) if fields is not None), None)
        return None if gathered is None else Decision(**gathered)

    def on_step(self) -> Decision:
        """Return the decision after a step that reached the limit, which may need an exchange."""
        step = self._gate.count
        if self._stopped is not None:
            return Decision(**{**self._stopped.as_dict(), "save": False, "step": step})
        if step % self._every:
            self.restore()
            return CONTINUE
        with self._lock:
            requested = list(self._requests)
        decision = CONTINUE
        if self._is_anything_asked(bool(requested) or any(one.report() for one in self._decided.values())):
            decision = self._decide(requested, step)
        self.restore()
        return decision

    def on_poll(self) -> Decision:
        """Announce a stop that was already decided; exchange nothing, because ranks may poll unequally often."""
        self.restore()
        if self._stopped is None:
            return CONTINUE
        return Decision(**{**self._stopped.as_dict(), "save": False, "step": self._gate.count})

    def finish(self, outcome: str, seconds: float) -> int:
        """See `Agreement`. The others receive the outcome at the next exchange, or at the end."""
        last = self._decided.get(self._count)
        if last is not None and not last.is_obeyed:
            last.is_obeyed = True
            last.outcome = None if outcome == IN_FLIGHT else (outcome, seconds)
        self.restore()
        return self._count

    def restore(self) -> None:
        """Let the training run until the next exchange."""
        gate = self._gate
        if self._stopped is not None:
            gate.limit = gate.poll_limit = 0
            return
        gate.open()
        gate.limit = (gate.count // self._every + 1) * self._every
        if self._count in self._decided and not self._decided[self._count].is_obeyed:
            gate.limit = gate.count + 1  # the next step reports the outcome if nothing has before
        if gate.urgent:  # a signal arrived meanwhile: its handler wrote the limits before us
            gate.limit = gate.poll_limit = 0

    def resumed(self) -> None:
        """Adapt to counters set on all ranks. A save whose outcome was not exchanged counts as failed."""
        for number in list(self._decided):
            self._close(number, [(FAILED, 0.0)])
        self.restore()

    def announce_exit(
        self, how: str, why: str, wait_s: float, is_hurried: Callable[[], bool] = never_hurried
    ) -> ExitSummary:
        """After a stop, exchange outcomes and ends with all ranks once, for at most `wait_s` seconds. A rank with a
        fault does not take part: the others detect that it is gone."""
        mine = {"outcomes": [one.report() for one in self._decided.values()], "how": how, "why": why}
        gathered: list[Any] = [mine]
        if self._stopped is not None and how != FAILED:
            try:
                from datetime import timedelta

                gathered = self._gather(mine, timedelta(seconds=min(wait_s, LAST_EXCHANGE_S)))
            except (AgreementLost, GuardError, TypeError, KeyError) as error:
                why = f"not all ranks took part at the end: {error}"  # a rank or torch's group is gone
        for index, number in enumerate(list(self._decided)):
            self._close(number, [tuple(one["outcomes"][index] or (FAILED, 0.0)) for one in gathered])
        faults = [f"rank {rank} left with {one['why']}" for rank, one in enumerate(gathered) if one["how"] == FAILED]
        if self._stopped is not None and len(gathered) == 1 and how != FAILED:
            faults.append(why)
        return ExitSummary(self.world, len(gathered) - len(faults), faults)

    # ---- exchanges --------------------------------------------------------------------------------------------

    def _decide(self, requested: list[Request], step: int) -> Decision:
        """Exchange all requests and outcomes, and merge the requests into one decision."""
        outcomes = [one.report() for one in self._decided.values()]
        gathered = self._gather({"outcomes": outcomes, "requests": [request.as_dict() for request in requested]})
        for index, number in enumerate(list(self._decided)):
            if all(fields["outcomes"][index] for fields in gathered):
                self._close(number, [tuple(fields["outcomes"][index]) for fields in gathered])
        asked = [read_request(request) for fields in gathered for request in fields["requests"]]
        with self._lock:
            del self._requests[: len(requested)]
        if not asked:
            return CONTINUE
        decision = merge(asked, step)
        self._count += 1
        self._decided[self._count] = _Decided(decision, asked)
        if decision.stop:
            self._stopped = decision
        if self._place.is_first:
            self._on_event(AgreementEvent("committed", str(decision), decision=decision, requests=asked))
        return decision

    def _close(self, number: int, outcomes: Sequence[tuple[str, float]]) -> None:
        """Report the worst of all outcomes of a decision, on rank 0."""
        closed = self._decided.pop(number)
        decision, asked = closed.decision, closed.asked
        words = {word for word, _ in outcomes}
        outcome = next((word for word in (FAILED, SAVED) if word in words), OBEYED)
        seconds = max((seconds for _, seconds in outcomes), default=0.0)
        if self._place.is_first:
            failed = [rank for rank, (word, _) in enumerate(outcomes) if word == FAILED]
            text = f"{outcome}: {decision}"
            self._on_event(
                AgreementEvent(
                    "outcome", text, decision=decision, requests=asked, outcome=outcome, seconds=seconds, ranks=failed
                )
            )

    def _is_anything_asked(self, here: bool) -> bool:
        """Return whether any rank has something to exchange: one number, usually all that is exchanged."""
        import torch
        import torch.distributed as dist

        group = self._process_group()
        flag = torch.tensor([int(here)], dtype=torch.int32, device=_device_of(group))
        try:
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return bool(flag.item())

    def _gather(self, mine: Any, timeout: Any = None) -> list[Any]:
        """Exchange values, and return them by rank: JSON as bytes, lengths first, because tensors have equal sizes."""
        import json

        import torch
        import torch.distributed as dist

        group = self._process_group()
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

    def _process_group(self) -> Any:
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
            f"rank {self._place.rank} reached no other rank at step {self._gate.count}: {error}",
            hint="another rank is gone, or counts its steps differently; the next job resumes from the last save",
        )


def _is_initialized() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


def _device_of(group: Any) -> Any:
    """Return the CPU, unless the group supports GPUs only."""
    import torch
    import torch.distributed as dist

    backend = str(dist.get_backend(group))
    return torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
