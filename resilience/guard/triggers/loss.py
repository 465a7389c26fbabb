"""The loss, and the norm of the gradients: NaN, infinite, or far above the recent level; a loss without a new best.

Spikes are detected by the median and the median absolute deviation (MAD) of a window of recent losses, because a few
outliers hardly move either, unlike mean and standard deviation (F. R. Hampel, J. Am. Stat. Assoc. 69, 383, 1974;
C. Leys et al., J. Exp. Soc. Psychol. 49, 764, 2013). A loss is high when it is above

    median + loss_spike_mads x max(MAD, 0.001 x |median|, 1e-6)

and `loss_spike_in_a_row` consecutive high losses are a spike. The default of 10 MADs is 6.7 standard deviations of
Gaussian noise (MAD = 0.6745 sigma): early training is noisy, and users disable an alarm with false positives. The floor
is for windows of mostly equal values, whose MAD is zero. Only high losses count; a falling loss is no fault.

High losses are kept out of the window while they last, and added afterwards: more than half of the window must be high
to make that normal. If they last for a whole window, the loss has a new level: they fill the window, the guard reports
the new level, and further losses are compared with it.

The norm of the gradients is judged alike, but a few in a row that are not finite are normal in mixed precision: a loss
scaler finds its scale by skipping steps, 16 from torch's 2^16 down to 1 and 34 from Megatron's 2^32 with its
hysteresis. More than that, 40, and the training does not learn any more, whatever its loss.

A plateau, no new best median in `loss_plateau_steps`, is only reported: medians, because the least of many noisy losses
says little. It is judged on rank 0 alone.

The threshold is computed after a quarter of a window, and then every half, so that a step costs one comparison: the
window is sorted only then. A slightly old threshold is harmless: while the loss falls, it is too lenient for a while.
"""

from __future__ import annotations

import collections
import math

from resilience.guard.decision import EXIT_ERROR, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

LEAST_MAD_SHARE = 1e-3
LEAST_MAD = 1e-6
LEAST_VALUES = 20
"""Detect no spike with fewer values: the MAD of eight is often so small by chance that ordinary noise looks high."""
MOST_WARNINGS = 10
"""Warn of this many episodes; further ones are only in the journal."""
NONFINITE_LABEL = "nonfinite-loss"
"""Label of a checkpoint saved because the loss is NaN, so that users do not resume from it by mistake."""
PLATEAU_SHARE = 1e-4
"""A median is a new best if it is lower by this share of the best one: rounding is no progress."""


class Loss:
    """Checks each loss that the training passes. The training thread calls `check` in every step."""

    name = "loss"
    shown = "the loss"
    passed_by = "step(loss=...)"

    def __init__(self, place: RankInfo, settings: GuardSettings, recorder: Recorder) -> None:
        self._settings = settings
        self._recorder = recorder
        self._where = f"rank {place.rank}: " if place.world > 1 else ""
        self._on_nonfinite: str = getattr(settings, f"{self.name}_nonfinite")
        self._on_spike: str = getattr(settings, f"{self.name}_spike")
        self._most_nonfinite: int = getattr(settings, f"{self.name}_nonfinite_in_a_row")
        self._plateau_steps = settings.loss_plateau_steps if self.name == "loss" and place.is_first else 0
        self._is_off = self._on_nonfinite == self._on_spike == "off" and not self._plateau_steps
        self._watches_spikes = self._on_spike != "off"
        size = settings.loss_window
        self._values: collections.deque[float] = collections.deque(maxlen=size)
        self._every = max(LEAST_VALUES, size // 2)
        self._until_update = max(LEAST_VALUES, size // 4)
        self._limit = math.inf  # losses from here on are abnormal; infinite until the window has enough values
        self._median = self._mad = 0.0
        self._high: list[float] = []  # consecutive high losses up to now, kept out of the window
        self._finite_step = 0  # the last step with a finite value; 0: none yet
        self._nonfinite = 0  # how many in a row up to now
        self._nonfinite_step = 0  # the first of them
        self._best: tuple[float, int] | None = None  # the lowest median, and its step
        self._is_plateau = False
        self._has_reported_spike = self._has_reported_nonfinite = False  # in this row
        self._episodes = {"spike": 0, "nonfinite": 0}
        self._pending: set[str] = set()  # the kinds of requests without an outcome yet
        self._has_warned_of_type = False

    def check(self, loss: Any, step: int) -> Request | None:
        """Check one loss. Cheap while it is normal: a comparison, and the window is sorted occasionally."""
        if type(loss) is not float:
            number = None if self._is_off else self._number(loss)
            if number is None:
                return None
            loss = number
        if -math.inf < loss < self._limit:
            if self._high or self._nonfinite:
                self._end_spike(step)
            self._finite_step = step
            self._values.append(loss)
            self._until_update -= 1
            if not self._until_update:
                self._update_threshold()
            return None
        if self._is_off:
            return None
        return self._abnormal(loss, step)

    def on_outcome(self, triggers: Iterable[str]) -> None:
        """A decision requested by these triggers was carried out: if the loss is among them, it may request again."""
        if self.name in triggers:
            self._pending.clear()

    def window(self) -> list[float]:
        """Return the losses that the threshold is computed from, oldest first. For the training thread."""
        return [float(f"{value:.6g}") for value in self._values]

    @property
    def best(self) -> tuple[float, int] | None:
        """Return the lowest median and its step, if plateaus are watched and there is one. For the training thread."""
        return self._best

    def restore(self, values: Iterable[float], best: tuple[float, int] | None = None) -> None:
        """Start with the window of an earlier process, unless there are losses already. For the training thread."""
        if not self._values:
            self._best = best
            self._values.extend(values)
            self._update_threshold()

    # ---- abnormal losses ----------------------------------------------------------------------------------------

    def _abnormal(self, loss: float, step: int) -> Request | None:
        if math.isfinite(loss):
            if self._nonfinite:
                self._end_nonfinite(step)
            self._finite_step = step
            return self._high_loss(loss, step)
        if self._on_nonfinite == "off":
            return None
        if not self._nonfinite:
            self._nonfinite_step = step
        self._nonfinite += 1
        if self._nonfinite < self._most_nonfinite or self._has_reported_nonfinite:
            return None
        self._has_reported_nonfinite = True
        row = f" for {self._nonfinite} steps in a row" if self._nonfinite > 1 else ""
        why = f"{self._where}{self.shown} is {_word(loss)}{row}, at step {step}"
        value = {self.name: _word(loss)}
        self._recorder.event(f"{self.name}_nonfinite", step=step, **value, in_a_row=self._nonfinite)
        return self._request(self._on_nonfinite, why, "nonfinite")

    def _high_loss(self, loss: float, step: int) -> Request | None:
        settings = self._settings
        high = self._high
        high.append(loss)
        if len(high) >= settings.loss_window:
            self._accept_level(step)
            return None
        if len(high) < settings.loss_spike_in_a_row or self._has_reported_spike:
            return None
        self._has_reported_spike = True
        value = {self.name: loss}
        self._recorder.event(
            f"{self.name}_spike", step=step, **value, in_a_row=len(high), median=self._median, mad=self._mad,
            threshold=self._limit,
        )  # fmt: skip
        row = f" for {len(high)} steps in a row" if len(high) > 1 else ""
        why = (
            f"{self._where}{self.shown} is above {self._limit:.4g}{row}, {loss:.4g} at step {step}: the median of the "
            f"last {len(self._values)} is {self._median:.4g}, the median deviation {self._mad:.2g}"
        )
        return self._request(self._on_spike, why, "spike")

    def _request(self, action: str, why: str, kind: str) -> Request | None:
        """Return the request for a configured action, or None after a warning if no decision will report the loss."""
        self._episodes[kind] += 1
        if action == "report" or kind in self._pending:
            if self._episodes[kind] <= MOST_WARNINGS:
                last = "; further ones are in the journal only" if self._episodes[kind] == MOST_WARNINGS else ""
                self._recorder.warn(why + last)
            return None
        self._pending.add(kind)
        step, since = self._nonfinite_step, self._finite_step
        if action == "stop":
            return Request(self.name, why, save=False, discard=True, exit_code=EXIT_ERROR, step=step, since=since)
        label = NONFINITE_LABEL if kind == "nonfinite" else ""
        if action == "save_and_stop":
            return Request(self.name, why, label=label, exit_code=EXIT_ERROR, step=step, since=since)
        return Request(self.name, why, stop=False, label=label)

    # ---- normal losses ------------------------------------------------------------------------------------------

    def _end_spike(self, step: int) -> None:
        """The loss is normal again: add the high ones to the window, whose median moves only if half of it is high."""
        if self._nonfinite:
            self._end_nonfinite(step)
        if self._has_reported_spike:
            self._recorder.event(f"{self.name}_normal", step=step, after=len(self._high))
        self._values.extend(self._high)
        self._high.clear()
        self._has_reported_spike = False

    def _end_nonfinite(self, step: int) -> None:
        if self._has_reported_nonfinite:
            self._recorder.event(f"{self.name}_finite", step=step, after=self._nonfinite)
        self._nonfinite = 0
        self._has_reported_nonfinite = False

    def _accept_level(self, step: int) -> None:
        """Accept a new level after a whole window of high losses."""
        before = self._median
        self._values.extend(self._high)
        self._high.clear()
        self._has_reported_spike = False
        self._update_threshold()
        text = (
            f"{self.shown} stays at {self._median:.4g} (before: {before:.4g}): the new normal level from step {step} on"
        )
        self._recorder.event(f"{self.name}_level", step=step, median=self._median, before=before)
        if self._episodes["spike"] <= MOST_WARNINGS:
            self._recorder.say(self._where + text)

    def _update_threshold(self) -> None:
        """Compute the threshold from the window."""
        self._until_update = self._every
        if len(self._values) < LEAST_VALUES or not (self._watches_spikes or self._plateau_steps):
            return
        self._median, self._mad, limit = threshold(self._values, self._settings.loss_spike_mads)
        if self._watches_spikes:
            self._limit = limit
        if self._plateau_steps and self._finite_step:
            self._check_plateau(self._finite_step)

    def _check_plateau(self, step: int) -> None:
        """Record in the journal that there is no new best any more, and when there is one again."""
        if self._best is None or self._median < self._best[0] - PLATEAU_SHARE * abs(self._best[0]):
            if self._is_plateau and self._best is not None:
                self._recorder.event("loss_improved", step=step, median=self._median, before=self._best[0])
            self._best, self._is_plateau = (self._median, step), False
        elif not self._is_plateau and step - self._best[1] >= self._plateau_steps:
            self._is_plateau = True
            self._recorder.event(
                "loss_plateau", step=step, median=self._median, best=self._best[0], best_step=self._best[1]
            )

    # ---- types of losses ----------------------------------------------------------------------------------------

    def _number(self, loss: Any) -> float | None:
        """Return the loss as a number, or None after one warning. Reading a tensor on a device would wait."""
        try:
            if isinstance(loss, int | float):
                return float(loss)
            if is_on_device(loss):
                self._warn_of_type(
                    "a tensor that is not in CPU memory, which the guard does not read because that would wait for the "
                    "device in every step"
                )
                return None
            value = loss.item() if hasattr(loss, "item") else float(loss.__float__())  # a Decimal; not a text
            if isinstance(value, int | float):
                return float(value)
        except OverflowError:  # an integer too large for a float
            return math.inf
        except Exception:  # an unknown class, a tensor of several values, one without memory
            value = None
        self._warn_of_type(f"{_kind(loss)}, which is not a number")
        return None

    def _warn_of_type(self, what: str) -> None:
        if not self._has_warned_of_type:
            self._has_warned_of_type = True
            self._recorder.warn(
                f"{self._where}{self.passed_by} got {what}. {self.shown.capitalize()} is not watched. Pass a float: "
                f"for instance {self.name}.item() in the steps in which you log it, and None in the others"
            )


class GradNorm(Loss):
    """Checks each norm of the gradients that the training passes to `guard.observe`."""

    name = "grad_norm"
    shown = "the gradient norm"
    passed_by = "observe(grad_norm=...)"


def threshold(values: Iterable[float], mads: float) -> tuple[float, float, float]:
    """Given losses, return their median, their median absolute deviation, and the threshold of a high loss. Pure.

    The median of an even number of values is the upper of the two in the middle. With huge losses the threshold is
    infinite, not an OverflowError.
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle]
    # Two ascending runs, which sorted() merges in linear time.
    mad = sorted(
        [median - value for value in ordered[middle::-1]] + [value - median for value in ordered[middle + 1 :]]
    )[middle]
    return median, mad, median + mads * max(mad, LEAST_MAD_SHARE * abs(median), LEAST_MAD)


def is_on_device(loss: Any) -> bool:
    """Return whether reading this value would or might wait for a device or another rank. Reads no value. Pure.

    torch has `device.type`, JAX `device.platform`, numpy 2 the text cpu, TensorFlow a path that ends in CPU:0. A
    DTensor has a `device_mesh`: its parts are on other ranks.
    """
    if getattr(loss, "is_cuda", False) is True or getattr(loss, "device_mesh", None) is not None:
        return True
    device = getattr(loss, "device", None)
    if device is None:
        return False
    kind = getattr(device, "type", None) or getattr(device, "platform", None) or device
    return not (isinstance(kind, str) and (kind == "cpu" or kind.endswith("device:CPU:0")))


def _word(loss: float) -> str:
    return "NaN" if math.isnan(loss) else "infinite" if loss > 0 else "minus infinite"


def _kind(loss: Any) -> str:
    """Return the type of a value as text, with its shape if it has one."""
    try:
        shape = getattr(loss, "shape", None)
        return f"a {type(loss).__name__} of shape {tuple(shape)}" if shape else f"a {type(loss).__name__}"
    except Exception:
        return f"a {type(loss).__name__}"
