"""Requests of triggers, and the decision for all ranks that merges them. Pure.

Plain classes: `import dataclasses` imports `inspect`, which alone would use up the guard's import budget.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Protocol

    class Trigger(Protocol):
        """A source of requests: any object with these two methods.

        Four attributes are optional: `name` (default: the class's name); `ranks`, the ranks that poll the trigger
        (`"every"`, the default; `"node"`, the first rank of each node; `"first"`, rank 0); `shared`, True if `poll`
        touches the shared file system and needs the thread for that (default False); `look_again_s`, seconds until
        the next poll, if shorter than the usual interval (default None).
        """

        def poll(self) -> Request | str | None:
            """Return a request, or None. A text requests a save and a stop for that reason.

            Called every few seconds from a thread of the guard. After a request, not called again before `done()`.
            """

        def done(self, outcome: str) -> None:
            """Receive the outcome of the request: `saved` (the checkpoint is durable on every rank), `failed` (the
            save failed), `obeyed` (nothing had to be saved), or `skipped` (another save was in flight; request
            again)."""


SAVED = "saved"
FAILED = "failed"
OBEYED = "obeyed"
SKIPPED = "skipped"
IN_FLIGHT = "in_flight"
"""Between ranks only: the training continues while the save is being written. SAVED or FAILED follows."""

DONE = "done"
STOPPED = "stopped"
"""How a rank leaves: its training ended by itself, or followed a stop; otherwise FAILED."""

EXIT_DONE = 0
EXIT_ERROR = 1
EXIT_STOPPED = 75
"""Exit code of a training stopped on purpose; the next job continues the run (EX_TEMPFAIL, sysexits.h)."""


class BuiltInTrigger:
    """Defaults of a trigger: polled on every rank, touches no shared file, ignores the outcome of its requests."""

    name = ""
    ranks = "every"
    shared = False
    look_again_s: float | None = None

    def done(self, outcome: str) -> None:
        """See `Trigger`."""


class Request:
    """One request of one trigger. Immutable by convention.

    Attributes:
        trigger: name of the trigger.
        why: the reason, as a sentence without a full stop.
        save: whether to save a checkpoint.
        stop: whether to stop the training.
        label: name of the checkpoint; empty to let the training choose.
        discard: whether to save nothing, overriding all other requests: superseded attempt, or loss is NaN.
        exit_code: the exit code if this request stops the training.
        rank: the requesting rank; set by the guard.
        step: the step at which the state of the training was found ruined, and `since`: the last one at which it was
            not; 0 if unknown or if it is not ruined. Told to the next attempt.
        at: the step after which to save, a few seconds ahead: the decision does not come earlier, unless a stop comes
            with it, and later only if a rank has passed that step. 0: as soon as possible. A stop that is requested
            once the ranks have agreed on `at` waits for that step too.
    """

    __slots__ = ("at", "discard", "exit_code", "label", "rank", "save", "since", "step", "stop", "trigger", "why")

    def __init__(
        self,
        trigger: str,
        why: str,
        *,
        save: bool = True,
        stop: bool = True,
        label: str = "",
        discard: bool = False,
        exit_code: int = EXIT_STOPPED,
        rank: int = 0,
        step: int = 0,
        since: int = 0,
        at: int = 0,
    ) -> None:
        self.trigger = trigger
        self.why = why
        self.save = save
        self.stop = stop
        self.label = label
        self.discard = discard
        self.exit_code = exit_code
        self.rank = rank
        self.step = step
        self.since = since
        self.at = at

    def __repr__(self) -> str:
        return f"Request({self.trigger}: {_describe_action(self) or 'nothing'}, because {self.why})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.trigger, self.why, self.rank))

    def as_dict(self) -> dict[str, Any]:
        """Return the request in JSON types, as sent between ranks."""
        return {name: getattr(self, name) for name in sorted(self.__slots__)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Request:
        """Return the request of an `as_dict` record. Raise ValueError for other input, which comes from the network."""
        types = {"trigger": str, "why": str, "save": bool, "stop": bool, "label": str, "discard": bool}
        types |= {"exit_code": int, "rank": int, "step": int, "since": int, "at": int}
        if set(fields) != set(types) or any(type(fields[name]) is not kind for name, kind in types.items()):
            raise ValueError(f"not a request: {sorted(fields)}")
        return cls(**fields)


class Decision:
    """The action that every rank takes at the same step. Falsy if there is nothing to do.

    Attributes:
        save: whether to save now.
        stop: whether to leave the training loop, after the save.
        label: name of the checkpoint; empty to let the training choose.
        reasons: one sentence per request.
        step: the step after which the decision takes effect, by the guard's count.
        exit_code: the exit code if `stop` is set.
        triggers: names of the requesting triggers.
        earlier: only in the decision before the first step: records of earlier attempts, see `earlier_stops.py`.
    """

    __slots__ = ("earlier", "exit_code", "label", "reasons", "save", "step", "stop", "triggers")

    def __init__(
        self,
        *,
        save: bool = False,
        stop: bool = False,
        label: str = "",
        reasons: Sequence[str] = (),
        step: int = 0,
        exit_code: int = EXIT_STOPPED,
        triggers: Sequence[str] = (),
        earlier: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.save = save
        self.stop = stop
        self.label = label
        self.reasons = tuple(reasons)
        self.step = step
        self.exit_code = exit_code
        self.triggers = tuple(triggers)
        self.earlier = tuple(earlier)

    def __bool__(self) -> bool:
        return self.save or self.stop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.step, self.save, self.stop, self.reasons))

    def __repr__(self) -> str:
        return f"Decision(save={self.save}, stop={self.stop}, step={self.step}, reasons={list(self.reasons)})"

    def __str__(self) -> str:
        """Return a sentence: `step 120: save and stop, because the kill switch was set by bob: ...`."""
        because = f", because {self.why}" if self.reasons else ""
        return f"step {self.step}: {_describe_action(self) or 'continue'}{because}"

    @property
    def why(self) -> str:
        """Return all reasons as one text."""
        return "; ".join(self.reasons)

    def as_dict(self) -> dict[str, Any]:
        """Return the decision in JSON types; `earlier` only if there is any."""
        earlier = {"earlier": list(self.earlier)} if self.earlier else {}
        return {
            "save": self.save,
            "stop": self.stop,
            "label": self.label,
            "reasons": list(self.reasons),
            "step": self.step,
            "exit_code": self.exit_code,
            "triggers": list(self.triggers),
            **earlier,
        }


def _describe_action(action: Request | Decision) -> str:
    return " and ".join(word for word in ("save", "stop") if getattr(action, word))


def wanted_step(requests: Iterable[Request]) -> int:
    """Return the step before which these requests are not to be decided; 0: now. A stop does not wait."""
    requests = list(requests)
    return 0 if any(request.stop for request in requests) else max((request.at for request in requests), default=0)


def without_wish(request: Request) -> Request:
    """Return a request without its `at`: the training has gone on from another step."""
    return Request(**{**request.as_dict(), "at": 0}) if request.at else request


CONTINUE = Decision()
"""The decision to do nothing, which `step()` nearly always returns."""


def merge(requests: Iterable[Request], step: int) -> Decision:
    """Given all pending requests, return the one decision for all ranks at `step`.

    A `discard` cancels every save. The exit code of an error overrides that of a stop on purpose, which overrides 0
    (the run is finished). The first label is used. If saves are discarded, a trigger that requested only a save is
    not listed in `triggers`: it receives no outcome, and a save switch stays for the next attempt.
    """
    ordered = sorted(requests, key=lambda request: (request.rank, request.trigger, request.why))
    codes = [request.exit_code for request in ordered if request.stop]
    discard = any(request.discard for request in ordered)
    served = [request for request in ordered if request.stop or not discard]
    return Decision(
        save=any(request.save for request in ordered) and not discard,
        stop=bool(codes),
        label=next((request.label for request in ordered if request.label), ""),
        reasons=list(dict.fromkeys(request.why for request in ordered)),
        step=step,
        exit_code=next((code for code in (EXIT_ERROR, EXIT_STOPPED, EXIT_DONE) if code in codes), EXIT_STOPPED),
        triggers=list(dict.fromkeys(request.trigger for request in served)),
    )
