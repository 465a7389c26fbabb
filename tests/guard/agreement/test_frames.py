from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilience.guard.agreement import frames
from resilience.guard.agreement.frames import BadFrame, Decoder

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=3), max_size=4), st.integers(1, 50))
def test_messages_arrive_whole_however_they_were_cut(messages: list[dict[str, Any]], size: int) -> None:
    stream = b"".join(map(frames.encode, messages))
    decoder, got = Decoder(), []
    for begin in range(0, len(stream), size):
        got += decoder.feed(stream[begin : begin + size])
    assert got == messages


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for_and_never_anything_else(garbage: bytes) -> None:
    decoder = Decoder()
    try:
        for message in decoder.feed(garbage):
            assert isinstance(message, dict)
    except BadFrame:
        return


@pytest.mark.parametrize(
    "raw",
    [b"no JSON", b"[1, 2]", b'"text"', b"17", b"", b"\xff\xfe", b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"],
    ids=["words", "list", "text", "number", "empty", "no UTF-8", "deep", "a number of 5,000 digits"],
)
def test_a_frame_that_is_no_table_of_json_ends_the_connection(raw: bytes) -> None:
    with pytest.raises(BadFrame):
        Decoder().feed(struct.pack(">I", len(raw)) + raw)


@pytest.mark.parametrize("length", [frames.LARGEST_FRAME + 1, 2**31, 2**32 - 1, int.from_bytes(b"GET ", "big")])
def test_a_frame_that_says_it_is_too_large_is_refused_before_it_arrives(length: int) -> None:
    with pytest.raises(BadFrame, match=str(length)):
        Decoder().feed(struct.pack(">I", length))


def test_strangers_may_say_less_at_once_than_ranks() -> None:
    frame = frames.encode({"word": "x" * frames.LARGEST_GREETING})
    assert Decoder().feed(frame)
    with pytest.raises(BadFrame):
        Decoder(frames.LARGEST_GREETING).feed(frame)


def test_a_frame_that_no_peer_would_read_is_not_sent() -> None:
    with pytest.raises(ValueError, match="bytes"):
        frames.encode({"text": "x" * frames.LARGEST_FRAME})


def test_a_proof_is_good_for_one_token_one_side_and_these_two_words() -> None:
    good = frames.proof("token", "member 3", "theirs", "mine")
    assert frames.is_proof(good, "token", "member 3", "theirs", "mine")
    for other in (
        ("other", "member 3", "theirs", "mine"),
        ("token", "member 4", "theirs", "mine"),
        ("token", "coordinator", "theirs", "mine"),
        ("token", "member 3", "mine", "theirs"),
        ("token", "member 3", "theirs", "else"),
    ):
        assert not frames.is_proof(good, *other)
    for nonsense in (None, 17, "", good.upper() + "x", [good], "\u00e9"):
        assert not frames.is_proof(nonsense, "token", "member 3", "theirs", "mine")


def test_random_words_do_not_repeat() -> None:
    words = {frames.random_word() for _ in range(1000)}
    assert len(words) == 1000
    assert json.dumps(sorted(words)[0])
