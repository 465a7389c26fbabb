"""What clocks that were set, and machines that slept, do to what is remembered. Pure.

A laptop that wakes up, a virtual machine that was moved, an NTP step: suddenly every remembered time is hours old, and
every training would seem to hang. CLOCK_MONOTONIC (clock_gettime(2)) neither jumps nor counts suspension, so by how
much the wall clock went further between two looks on one boot is no time in which a training could have shown anything.
"""

from __future__ import annotations

from dataclasses import replace

from resilience.watch.checks._log.words import LogReading, Moment, packed, unpacked

JUMP_S = 30.0
"""Less is the usual slewing and stepping of NTP."""
_TIMES = ("first_seen", "born", "looked", "advanced", "talked", "errored", "troubled")
_BEAT_TIMES = ("advanced", "written")


def jump_s(before: Moment, now: Moment) -> float:
    """By how much the wall clock went further than time did between two looks; 0 where that cannot be told."""
    if not before[2] or before[2] != now[2] or now[1] < before[1]:
        return 0.0
    jump = (now[0] - before[0]) - (now[1] - before[1])
    return jump if abs(jump) > JUMP_S else 0.0


def shifted(reading: LogReading, seconds: float) -> LogReading:
    """A remembered reading, its times moved along with the clock: what was a minute ago is a minute ago again."""
    if not seconds:
        return reading

    def moved(text: str) -> str:
        known = unpacked(text)
        return packed(known._replace(**{name: at + seconds for name in _TIMES if (at := getattr(known, name))}))

    beat = None
    if reading.beat:
        beat = reading.beat | {name: reading.beat[name] + seconds for name in _BEAT_TIMES if reading.beat.get(name)}
        beat["stamps"] = [(name, value, since + seconds) for name, value, since in beat.get("stamps", ())]
    clock = (reading.clock[0] + seconds, reading.clock[1], reading.clock[2])
    return replace(reading, clock=clock, logs=tuple((path, moved(text)) for path, text in reading.logs), beat=beat)
