"""Arbitrary bytes in a log: bounded state, no exception, the same result in one chunk or in many."""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.watch.checks._log.digest import digest
from resilience.watch.checks._log.judge import findings
from resilience.watch.checks._log.lines import SHOWN, shown
from resilience.watch.checks._log.reading import LogReading, LogSettings, LogState, packed, unpacked
from resilience.watch.checks._log.tail import LogReader

PIECES = st.sampled_from(
    [
        b"step 5", b"step 6 loss\n", b"\r 45%|#### | 45/100 [00:10<00:12, 1.0it/s]", b"Epoch 3: 1%|# | 1/9 [0:1<",
        b"\0",
        b"\n", b"\r", b"\xff\xfe", b"\x1b[31m", b"\x1b]0;x", b"iteration 7/ 9 | elapsed time per iteration (s): 1e9",
        b"CUDA out of memory", b"[exiting program after", b"2026-02-30 25:61:99", b"0001-01-01 00:00:00 step 3 x",
        b"9" * 40, b"x" * 5000, b"loading checkpoint", b"{'epoch': 1.5}", b"ValueError: no", b"17it [00:01, ",
    ]
)  # fmt: skip
LOGS = st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=30).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(LOGS, min_size=1, max_size=4))
def test_any_bytes_yield_a_finding_with_printable_bounded_text(chunks: list[bytes]) -> None:
    state = LogState()
    for number, chunk in enumerate(chunks):
        state = digest(state, chunk, written=1000.0 + number)._replace(looked=1000.0 + number, size=len(chunk))
        for now in (1000.0 + number, 1e6):
            reading = LogReading(logs=(("/log", packed(state)),), lines=tuple(map(shown, chunk.split(b"\n")[-3:])))
            for finding in findings("/log", reading, LogSettings(), now):
                assert finding.summary.isprintable() and len(finding.summary) < 4 * SHOWN
                assert bool(finding.fault) == (finding.verdict.value != "OK")


NOISE = st.sampled_from([b"", b"loss 5", b"\xff\xfe \0", b"WARNING: slow", b"\x1b[31m red", b"x" * 9000])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@settings(max_examples=60, deadline=None)
@given(
    content=st.lists(st.tuples(NOISE, ENDS, ENDS), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 5000), max_size=6),
)
def test_the_last_step_is_found_wherever_ticks_split_a_log(
    content: list[tuple[bytes, bytes, bytes]], cuts: list[int]
) -> None:
    whole = b"".join(noise + one + b"step %d" % (95 + n) + two for n, (noise, one, two) in enumerate(content))
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        state: LogState | None = None
        for number, (start, end) in enumerate(pairwise(places)):
            with open(path, "ab") as file:
                file.write(whole[start:end])
            os.utime(path, (1e9 + number, 1e9 + number))
            reader = LogReader(LogSettings(), (1e9 + number, 0.0, ""))
            past = LogReading(clock=(1e9 + number - 1, 0.0, ""))
            state = unpacked(reader.log(str(path), packed(state) if state else None, past))
    assert state is not None and not state.trouble
    assert (state.step, state.fell_from, state.offset) == (94 + len(content), None, len(whole))
