"""Which numbers of a checkpoint change, and how: an alteration drawn by its seed, or one replayed. Pure.

As in the original tool, each attempt picks a location, then an element in it, with replacement: a bias of ten numbers
is hit as often as a matrix of a million, unless `weight` is `element`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from resilience.errors import UsageError
from resilience.inject.checkpoint.bits import SHORTEST, below, changed, draws, flip_type, is_allowed, pool
from resilience.inject.checkpoint.layouts import Change, Location, Reader
from resilience.inject.checkpoint.number_types import TYPES
from resilience.inject.checkpoint.settings import MOST_ATTEMPTS, AlterationSettings, components
from resilience.messages import cut, nearest, plural


@dataclass(frozen=True, slots=True)
class Alteration:
    """One number that changes.

    Attributes:
        location: name.
        index: of the element.
        type: of the number as stored.
        flip_type: the type in which its bits change: another one with a forced precision; `shortest`.
        bits: that change, bit 0 is the leftmost; none if it is scaled.
        factor: that it is multiplied by; None: its bits change.
        before, after: the stored bits.
    """

    location: str
    index: tuple[int, ...]
    type: str
    flip_type: str
    bits: tuple[int, ...]
    factor: float | None
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What changes, before a byte is written.

    Attributes:
        seed: of the random numbers; None of a replay.
        alterations: in their order. The same number may change twice.
        attempts: how many were tried.
        missed: attempts that the probability let pass.
        unchanged: attempts whose result is stored with the same bits, because of a forced precision or a zero.
        gave_up: attempts of which each possible change gives NaN or infinity, or does not fit.
        warnings: sentences for the user.
        changes: the final bits of each changed element.
    """

    seed: int | None
    alterations: tuple[Alteration, ...]
    attempts: int
    missed: int = 0
    unchanged: int = 0
    gave_up: int = 0
    warnings: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


# ---- locations ------------------------------------------------------------------------------------------------------


def matches(name: str, wanted: str) -> bool:
    """Return whether a location is the wanted one, or below it: `conv1.weight` is below `conv1`; `conv10` is not."""
    parts, beginning = components(name), components(wanted)
    return parts[: len(beginning)] == beginning


def choose(locations: Sequence[Location], settings: AlterationSettings) -> list[Location]:
    """Return the locations to alter, each with numbers.

    Of a group, those without bits and truth values are left out; named themselves, the former are refused. Raise
    UsageError if a name matches nothing, or only what has no bits.
    """
    if not locations:
        raise UsageError("the checkpoint has no arrays", hint="is it one of a model?")
    chosen: dict[str, Location] = {}
    for wanted in settings.locations or ("",):
        found = [one for one in locations if matches(one.name, wanted)]
        if not found:
            raise _nothing(wanted, locations)
        usable = [one for one in found if one.type is not None and one.count]
        exact = [one for one in found if components(one.name) == components(wanted)]
        if bad := next((one for one in exact if one not in usable), None if usable else found[0]):
            has_none = "has no bits to change" if bad.type is None else "is empty"
            raise UsageError(f"{bad.name} {has_none}: it is {bad.type_name} of shape {list(bad.shape)}", hint=_SEE)
        numbers = [one for one in usable if one in exact or (one.type is not None and one.type.kind != "bool")]
        chosen |= {one.name: one for one in numbers or usable}
    return [chosen[name] for name in sorted(chosen)]


_SEE = "--list shows all locations"


def _nothing(wanted: str, locations: Sequence[Location]) -> UsageError:
    names = {"/".join(components(one.name)[:depth]): one.name for one in locations for depth in (1, 2, 3, 99)}
    near = nearest("/".join(components(wanted)), names, cutoff=0.6)
    shown = ", ".join(dict.fromkeys(cut(one.name, 60) for one in locations[:3]))
    return UsageError(f"no location is {wanted} or below it", hint=f"did you mean {near}?" if near else f"e.g. {shown}")


def check_widths(chosen: Sequence[Location], settings: AlterationSettings) -> None:
    """Raise UsageError if a mask, a range or a burst does not fit a type of the chosen locations."""
    for one in chosen:
        assert one.type is not None
        name = flip_type(settings, one.type)
        if name == SHORTEST or settings.chosen_mode == "scaling-factor":
            continue
        kind, what = TYPES[name], f"{one.name} has numbers of {plural(TYPES[name].width, 'bit')} ({name})"
        bits = pool(settings, kind)
        highest = max(settings.first_bit or 0, settings.last_bit or 0)
        if len(settings.bit_mask) > kind.width:
            raise UsageError(
                f"the mask {settings.bit_mask} has {len(settings.bit_mask)} bits, and {what}",
                hint="a shorter mask, or other locations",
            )
        if settings.chosen_mode == "bit-range" and highest >= kind.width:
            raise UsageError(f"there is no bit {highest}: {what}", hint="bit 0 is the sign; or choose other locations")
        if settings.chosen_mode == "bit-range" and settings.burst > len(bits):
            raise UsageError(
                f"a burst of {settings.burst} bits is more than the {len(bits)} of the range: {what}",
                hint=f"burst = {len(bits)}",
            )


def _warnings(forced: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return a warning of each type, and the one in which its bits change, that differ."""
    lossy = sorted({(own, other) for own, other in forced if other not in (own, SHORTEST)})
    return tuple(f"numbers of {own} change as {other} and are converted back, which loses bits" for own, other in lossy)


# ---- drawing --------------------------------------------------------------------------------------------------------


class _Altered:
    """The numbers as they are after the alterations so far."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._changes: dict[object, Change] = {}
        self._before: dict[object, int] = {}
        self.alterations: list[Alteration] = []

    def bits(self, location: Location, index: tuple[int, ...]) -> int:
        change = self._changes.get(_key(location, index))
        return change.bits if change is not None else self._read(location, index)

    def add(
        self, location: Location, index: tuple[int, ...], flip: str, bits: tuple[int, ...], factor: float | None,
        before: int, after: int,
    ) -> None:  # fmt: skip
        assert location.type is not None
        key = _key(location, index)
        self._before.setdefault(key, before)
        self._changes[key] = Change(location, index, after)
        self.alterations.append(Alteration(location.name, index, location.type.name, flip, bits, factor, before, after))

    def changes(self) -> tuple[Change, ...]:
        return tuple(one for key, one in self._changes.items() if one.bits != self._before[key])


def _key(location: Location, index: tuple[int, ...]) -> object:
    """Return what is the same for two names of the same bytes: weights that are tied."""
    if not location.pieces:
        return location.name, index
    piece, offset = location.place(index)
    return piece.file, offset


def plan(locations: Sequence[Location], settings: AlterationSettings, read: Reader, seed: int) -> Plan:
    """Draw an alteration. Raise UsageError for settings that do not fit the checkpoint; CheckpointError, OSError of
    reading."""
    chosen = choose(locations, settings)
    check_widths(chosen, settings)
    attempts, random = _attempts(settings, sum(one.count for one in chosen)), Random(seed)
    pick = _picker(chosen, settings, random)
    altered = _Altered(read)
    missed = unchanged = gave_up = 0
    for _ in range(attempts):
        if random.random() >= settings.probability:
            missed += 1
            continue
        location, index = pick()
        assert location.type is not None
        before, flip = altered.bits(location, index), flip_type(settings, location.type)
        factor = settings.scaling_factor if settings.chosen_mode == "scaling-factor" else None
        for bits in draws(settings, location.type, before, random):
            after = changed(before, location.type, flip, bits, factor)
            if after is None or not is_allowed(after, location.type, allow_nan=settings.allow_nan):
                continue
            if after == before:
                unchanged += 1
            else:
                altered.add(location, index, flip, bits, factor, before, after)
            break
        else:
            gave_up += 1
    warnings = _warnings((one.type.name, flip_type(settings, one.type)) for one in chosen if one.type is not None)
    alterations, changes = tuple(altered.alterations), altered.changes()
    return Plan(seed, alterations, attempts, missed, unchanged, gave_up, warnings, changes)


def _attempts(settings: AlterationSettings, entries: int) -> int:
    if settings.type == "count":
        return int(settings.attempts)
    attempts = round(settings.attempts / 100 * entries)
    if not 1 <= attempts <= MOST_ATTEMPTS:
        raise UsageError(
            f"{settings.attempts:g} % of {entries:,} numbers are {plural(attempts, 'attempt')}",
            hint=f"from 1 to {MOST_ATTEMPTS:,} are possible: another percentage, or type = count",
        )
    return attempts


def _picker(
    chosen: Sequence[Location], settings: AlterationSettings, random: Random
) -> Callable[[], tuple[Location, tuple[int, ...]]]:
    ends = list(accumulate(one.count for one in chosen))

    def pick() -> tuple[Location, tuple[int, ...]]:
        if settings.weight == "element":
            number = below(random, ends[-1])
            place = bisect_right(ends, number)
            return chosen[place], chosen[place].index_of(number - (ends[place] - chosen[place].count))
        one = chosen[below(random, len(chosen))]
        return one, one.index_of(below(random, one.count))

    return pick


# ---- replaying ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mapping:
    """How a layout calls what another one calls differently.

    Attributes:
        old, new: names, or beginnings of names in whole components; empty: nothing is before the rest.
        axes: which dimension of the old array each dimension of the new one is; empty: the same.
    """

    old: str
    new: str
    axes: tuple[int, ...] = ()


def parse_mapping(text: str) -> Mapping:
    """Return the mapping in a text: `conv1/kernel=conv1.weight:3,2,0,1`. Raise UsageError if it is none."""
    old, equals, rest = text.partition("=")
    new, colon, axes = rest.rpartition(":")
    if not colon or not axes.replace(",", "").isdigit():
        new, axes = rest, ""
    numbers = tuple(int(one) for one in axes.split(",")) if axes else ()
    if not equals or not (components(old) or components(new)) or sorted(numbers) != list(range(len(numbers))):
        raise UsageError(f"{text!r} maps no location", hint="--map conv1/kernel=conv1.weight:3,2,0,1")
    return Mapping(old, new, numbers)


def mapped(name: str, index: Sequence[int], mappings: Iterable[Mapping]) -> tuple[str, tuple[int, ...]]:
    """Return name and index elsewhere of a recorded alteration. The first mapping that matches counts."""
    for one in mappings:
        if matches(name, one.old):
            rest = components(name)[len(components(one.old)) :]
            if one.axes and len(one.axes) != len(index):
                raise UsageError(
                    f"{name} has {plural(len(index), 'dimension')}, and the mapping of {one.old} {len(one.axes)}",
                    hint=f"--map {one.old}={one.new}",
                )
            return "/".join((*components(one.new), *rest)), tuple(index[i] for i in one.axes) or tuple(index)
    return name, tuple(index)


def replay(
    locations: Sequence[Location], recorded: Sequence[Alteration], mappings: Sequence[Mapping], read: Reader,
    *, allow_nan: bool,
) -> Plan:  # fmt: skip
    """Plan the same alterations in another checkpoint: the same elements, the same bits.

    Raise UsageError if it lacks one of them; CheckpointError, OSError of reading.
    """
    known = {components(one.name): one for one in locations}
    altered = _Altered(read)
    unchanged = gave_up = 0
    forced = set()
    for one in recorded:
        name, index = mapped(one.location, one.index, mappings)
        location = known.get(components(name))
        if location is None:
            error = _nothing(name, locations)
            raise UsageError(error.message, hint=f"map it: --map {one.location}=NAME ({error.hint})")
        if location.type is None:
            raise UsageError(f"{location.name} has no bits to change: it is {location.type_name}", hint=_SEE)
        if len(index) != len(location.shape) or any(i >= n for i, n in zip(index, location.shape, strict=True)):
            raise UsageError(
                f"{location.name} has the shape {list(location.shape)}, and the sequence changes {list(index)}",
                hint=f"if dimensions are in another order: --map {one.location}={location.name}:1,0",
            )
        if (one.flip_type == SHORTEST or TYPES[one.flip_type].kind != "float") and location.type.name != one.type:
            raise UsageError(
                f"{location.name} is {location.type.name}, and the sequence changes {one.type}", hint="map another one"
            )
        if one.factor is None:
            forced.add((location.type.name, one.flip_type))
        before = altered.bits(location, index)
        after = changed(before, location.type, one.flip_type, one.bits, one.factor)
        if not is_allowed(after, location.type, allow_nan=allow_nan) or after is None:
            gave_up += 1
        elif after == before:
            unchanged += 1
        else:
            altered.add(location, index, one.flip_type, one.bits, one.factor, before, after)
    alterations, changes = tuple(altered.alterations), altered.changes()
    return Plan(None, alterations, len(recorded), 0, unchanged, gave_up, _warnings(forced), changes)
