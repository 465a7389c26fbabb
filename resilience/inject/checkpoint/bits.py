"""Which bits of a number change: ranges, bursts, masks at a random offset, scaling. Pure; the seed decides.

Random numbers are made of `Random.random()` alone, whose sequence Python keeps for a seed: the same seed gives the same
bytes with each version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from resilience.inject.checkpoint.number_types import TYPES, NumberType, decode, encode, is_finite
from resilience.inject.checkpoint.settings import AlterationSettings

MOST_DRAWS = 1000
"""Bursts that are drawn for one attempt until one gives a finite number. Single bits and masks are all tried."""
SHORTEST = "shortest"
"""Instead of a type's name: bits are those of the shortest binary form of an integer's absolute value."""


def below(random: Random, count: int) -> int:
    """Return a random number from 0 to `count` - 1."""
    return min(int(random.random() * count), count - 1)


def flip_type(settings: AlterationSettings, stored: NumberType) -> str:
    """Return the name of the type in which the bits of a stored number change."""
    if stored.kind == "float" and settings.precision != "auto":
        own = stored.width == int(settings.precision)
        return stored.name if own else f"float{settings.precision}"
    if stored.kind in ("int", "uint") and settings.integers == "shortest" and settings.chosen_mode == "bit-range":
        return SHORTEST
    return stored.name


def pool(settings: AlterationSettings, kind: NumberType) -> tuple[int, ...]:
    """Return the bits of a type that may change in the mode bit-range; fewer where the type has fewer."""
    first = settings.first_bit if settings.first_bit is not None else int(kind.has_sign)
    last = settings.last_bit if settings.last_bit is not None else kind.width - 1
    bits = range(first, min(last, kind.width - 1) + 1)
    return (0, *bits) if settings.allow_sign_change and 0 not in bits and kind.has_sign else tuple(bits)


def draws(settings: AlterationSettings, stored: NumberType, bits: int, random: Random) -> Iterator[tuple[int, ...]]:
    """Yield what may change in one attempt, in random order: positions of bits; none at all with a scaling factor.

    The first is uniform over all possibilities; the next are for when the one before gives NaN. It ends: each bit of a
    range, and each offset of a mask, comes once.
    """
    mode, name = settings.chosen_mode, flip_type(settings, stored)
    if mode == "scaling-factor":
        yield ()
    elif mode == "bit-mask":
        ones = [place for place, one in enumerate(settings.bit_mask) if one == "1"]
        for offset in _shuffled(range(TYPES[name].width - len(settings.bit_mask) + 1), random):
            yield tuple(offset + place for place in ones)
    else:
        if name == SHORTEST:
            places: Sequence[int] = range(max(1, abs(int(decode(bits, stored))).bit_length()))
        else:
            places = pool(settings, TYPES[name])
        count = min(settings.burst, len(places))
        if count == 1:
            for place in _shuffled(places, random):
                yield (place,)
        else:
            for _ in range(MOST_DRAWS):
                yield tuple(sorted(_some(places, count, random)))


def _shuffled(values: Sequence[int], random: Random) -> Iterator[int]:
    left = list(values)
    while left:
        at = below(random, len(left))
        left[at], left[-1] = left[-1], left[at]
        yield left.pop()


def _some(values: Sequence[int], count: int, random: Random) -> list[int]:
    found = _shuffled(values, random)
    return [next(found) for _ in range(count)]


def changed(bits: int, stored: NumberType, flip: str, places: Sequence[int], factor: float | None) -> int | None:
    """Return the bits of a number after a change; None if its type cannot hold the result.

    Args:
        bits: as stored.
        stored: their type.
        flip: the name of the type in which they change, see `flip_type`.
        places: of bits that change; bit 0 is the leftmost.
        factor: that the number is multiplied by, instead.
    """
    if factor is not None:
        value = decode(bits, stored)
        return encode(value * (int(factor) if factor == int(factor) else factor), stored)
    if flip == SHORTEST:
        value = int(decode(bits, stored))
        length = max(1, abs(value).bit_length())
        magnitude = abs(value)
        for place in places:
            magnitude ^= 1 << (length - 1 - place)
        changed_bits = encode(-magnitude if value < 0 else magnitude, stored)
        return changed_bits if abs(int(decode(changed_bits, stored))) == magnitude else None
    kind = TYPES[flip]
    mask = sum(1 << (kind.width - 1 - place) for place in places)
    if kind == stored:
        return bits ^ mask
    return encode(decode(encode(decode(bits, stored), kind) ^ mask, kind), stored)


def is_allowed(bits: int | None, stored: NumberType, *, allow_nan: bool) -> bool:
    """Return whether a changed number may be stored."""
    return bits is not None and (allow_nan or is_finite(bits, stored))
