"""What triggers ask for, and what all ranks do about it. Pure; plain classes, because dataclasses cost milliseconds.

`import dataclasses` brings `inspect` along, which alone would take the guard's whole budget for its import.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Protocol

    class Trigger(Protocol):
        """What may ask the guard for something. Anything with these two methods is one.

        Four attributes are looked at when they are there: `name` (default: the class's name), `ranks`, which ranks
        ask it (`"every"`, the default; `"node"`, the first of each node; `"first"`, rank 0), `shared`, whether it
        touches the shared file system (default False), so that it waits in a thread of its own when that hangs, and
        `look_again_s`, in how many seconds it must be asked again if that is sooner than usual (default None).
        """

        def poll(self) -> Request | str | None:
            """Say what is wanted now, or None. A text stands for a request to save and stop, for that reason.

            Called every few seconds from a thread of the guard, and not again before `done()` was called.
            """

        def done(self, outcome: str) -> None:
            """Hear what became of the request: `saved`, once the checkpoint is durable on every rank; `failed` (the
            save); `obeyed` (there was nothing to save); or `skipped` (another save was in flight: ask again)."""


SAVED = "saved"
FAILED = "failed"
OBEYED = "obeyed"
SKIPPED = "skipped"
IN_FLIGHT = "in_flight"
"""Between ranks only: the training goes on, and the bytes are still on their way. SAVED or FAILED follows."""

DONE = "done"
STOPPED = "stopped"
"""How a rank leaves: its training ran to its own end, or it followed a stop; else FAILED."""

EXIT_DONE = 0
EXIT_ERROR = 1
EXIT_STOPPED = 75
"""Exit code of a training that was stopped on purpose: please continue in the next job (EX_TEMPFAIL, sysexits.h)."""


class BuiltInTrigger:
    """The defaults of a trigger: every rank asks it, nothing shared is touched, and nothing follows its request."""

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
        why: a sentence without a full stop, for people: who wants it and for what reason.
        save: whether a checkpoint is wanted.
        stop: whether the training shall end.
        label: what the checkpoint shall be called; empty for the training's own choice.
        discard: whether nothing may be saved, whatever others wish: this attempt was superseded, or its loss is NaN.
        exit_code: what the training should exit with when this request stops it.
        rank: the rank that wishes it; filled in by the guard.
    """

    __slots__ = ("discard", "exit_code", "label", "rank", "save", "stop", "trigger", "why")

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
    ) -> None:
        self.trigger = trigger
        self.why = why
        self.save = save
        self.stop = stop
        self.label = label
        self.discard = discard
        self.exit_code = exit_code
        self.rank = rank

    def __repr__(self) -> str:
        wish = " and ".join(word for word in ("save", "stop") if getattr(self, word)) or "nothing"
        return f"Request({self.trigger}: {wish}, because {self.why})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.trigger, self.why, self.rank))

    def as_dict(self) -> dict[str, Any]:
        """The request as it travels between ranks: JSON types only."""
        return {name: getattr(self, name) for name in sorted(self.__slots__)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Request:
        """Read what `as_dict` gave. Raise ValueError if it is anything else: it comes from the network."""
        wanted = {"trigger": str, "why": str, "save": bool, "stop": bool, "label": str, "discard": bool}
        wanted |= {"exit_code": int, "rank": int}
        if set(fields) != set(wanted) or any(type(fields[name]) is not kind for name, kind in wanted.items()):
            raise ValueError(f"not a request: {sorted(fields)}")
        return cls(**fields)


class Decision:
    """What every rank does at the same step. Falsy when there is nothing to do.

    Attributes:
        save: whether to save now, before anything else.
        stop: whether to leave the training loop after that.
        label: what the checkpoint shall be called; empty for the training's own choice.
        reasons: sentences, one per request, for people.
        step: the step after which it holds, counted as the guard counts.
        exit_code: what to exit with when `stop` is set.
        triggers: names of the triggers that asked.
    """

    __slots__ = ("exit_code", "label", "reasons", "save", "step", "stop", "triggers")

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
    ) -> None:
        self.save = save
        self.stop = stop
        self.label = label
        self.reasons = tuple(reasons)
        self.step = step
        self.exit_code = exit_code
        self.triggers = tuple(triggers)

    def __bool__(self) -> bool:
        return self.save or self.stop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.step, self.save, self.stop, self.reasons))

    def __repr__(self) -> str:
        return f"Decision(save={self.save}, stop={self.stop}, step={self.step}, reasons={list(self.reasons)})"

    def __str__(self) -> str:
        """The decision as a sentence: `step 120: save and stop, because the kill switch was set by bob: ...`."""
        wish = " and ".join(word for word in ("save", "stop") if getattr(self, word)) or "go on"
        because = ", because " + "; ".join(self.reasons) if self.reasons else ""
        return f"step {self.step}: {wish}{because}"

    @property
    def why(self) -> str:
        """All reasons as one text."""
        return "; ".join(self.reasons)

    def as_dict(self) -> dict[str, Any]:
        """The decision in JSON types."""
        return {
            "save": self.save,
            "stop": self.stop,
            "label": self.label,
            "reasons": list(self.reasons),
            "step": self.step,
            "exit_code": self.exit_code,
            "triggers": list(self.triggers),
        }


CONTINUE = Decision()
"""Go on: the one object that `step()` returns nearly always."""


def merge(requests: Iterable[Request], step: int) -> Decision:
    """Given all requests of the moment, return the one decision for all ranks at `step`.

    Whoever wants a save gets one unless one request forbids it. An error wins over a stop on purpose, because it needs
    a person. The first label wins; labels are rare. Who wanted a save and nothing else, and does not get it, is not
    among the triggers: it hears of no success, and a save switch stays for the attempt that comes after.
    """
    asked = sorted(requests, key=lambda request: (request.rank, request.trigger, request.why))
    reasons: list[str] = []
    for request in asked:
        if request.why not in reasons:
            reasons.append(request.why)
    stops = [request.exit_code for request in asked if request.stop]
    discard = any(request.discard for request in asked)
    served = [request for request in asked if request.stop or not discard]
    return Decision(
        save=any(request.save for request in asked) and not discard,
        stop=bool(stops),
        label=next((request.label for request in asked if request.label), ""),
        reasons=reasons,
        step=step,
        exit_code=_heaviest(stops),
        triggers=list(dict.fromkeys(request.trigger for request in served)),
    )


def _heaviest(codes: Sequence[int]) -> int:
    """The exit code of several stops: an error, else on purpose, else (the run is finished already) done."""
    return next((code for code in (EXIT_ERROR, EXIT_STOPPED, EXIT_DONE) if code in codes), EXIT_STOPPED)
