"""The short form: `for batch in guard.steps(loader, save=save_checkpoint): ...`."""

from __future__ import annotations

import inspect

from resilience.guard.saves import handles_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeVar

    from resilience.guard.training_guard import TrainingGuard

    Batch = TypeVar("Batch")


def iterate(guard: TrainingGuard, loader: Iterable[Batch], save: Callable[..., Any] | None) -> Iterator[Batch]:
    """Yield batches, with one step after each; save when asked to, and end when asked to stop.

    Nothing is yielded once a stop was decided, so that an outer loop over epochs ends by itself.
    """
    takes_label = save is not None and _takes_label(save)
    if guard.should_stop_early():
        return
    for batch in loader:
        yield batch
        decision = guard.step()
        if decision.save and save is None:
            guard.pass_over_save(decision)
        elif decision.save and save is not None:
            with guard.saving() as saving:
                returned = save(label=decision.label) if takes_label else save()
                saving.until(*handles_in(returned))
        if decision.stop:
            guard._drain()
            return


def _takes_label(save: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(save).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return False
    return any(parameter.name == "label" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
