"""Of a stream, the beginning and the end are kept, in bounded memory, and no secret stands in either."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.cron.table.bounded import Bounded, Secrets, last_line

LINES = 20_000
SECRET = "s3cr3t-Tok3n"


def keep(
    chunks: list[bytes], limit_bytes: int, secrets: tuple[str, ...] = (SECRET,), *, supervise: bool = False
) -> bytes:
    """What is kept of a stream; `supervise`: taken while it comes."""
    words = Bounded(limit_bytes, Secrets(secrets))
    found = b""
    for chunk in chunks:
        words.add(chunk)
        if supervise:
            found += words.take_head()
    return found + words.finish()


def in_pieces(raw: bytes, size: int) -> list[bytes]:
    """Cut bytes into pieces."""
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def test_short_output_is_kept_completely() -> None:
    raw = b"a\0b\xff\xfe\r10%\r20%\rdone\nno line end"
    assert keep([raw], 1000) == raw
    assert keep(in_pieces(raw, 1), 1000, supervise=True) == raw
    assert keep([], 1000) == b""


@pytest.mark.parametrize("size", [1, 7, 4096, 10**6])
def test_of_many_lines_the_first_and_the_last_are_kept_and_the_others_counted(size: int) -> None:
    raw = b"".join(b"line %d\n" % number for number in range(LINES))
    kept = keep(in_pieces(raw, size), 10_000, supervise=True)
    assert len(kept) < 10_100
    head, gap, tail = re.split(rb"(\.\.\. .* left out \.\.\.\n)", kept)
    assert raw.startswith(head) and head.endswith(b"\n")
    assert raw.endswith(tail) and tail.startswith(b"line ")
    lines = int(gap.split()[1].replace(b",", b""))
    assert lines + head.count(b"\n") + tail.count(b"\n") == LINES
    assert b" KiB) left out" in gap


def test_one_huge_line_is_cut_and_its_size_shown() -> None:
    kept = keep([b"x" * 10_000_000], 10_000)
    assert re.fullmatch(rb"x{5000}\n\.\.\. 9\.5 MiB left out \.\.\.\nx{5000}", kept)


def test_memory_does_not_grow_however_the_stream_comes() -> None:
    words = Bounded(100_000, Secrets())
    piece = b"0123456789" * 1000
    tracemalloc.start()
    try:
        for _ in range(20_000):  # 200 MB
            words.add(piece)
        for _ in range(50_000):
            words.add(b"y")
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()
    assert words.total_bytes == 200_050_000


@pytest.mark.parametrize("size", [1, 2, 5, 11, 12, 13, 1000])
def test_a_secret_in_pieces_is_found(size: int) -> None:
    raw = f"token is {SECRET}, I say\n".encode() * 20
    for supervise in (False, True):
        kept = keep(in_pieces(raw, size), 100_000, supervise=supervise)
        assert kept == b"token is REDACTED, I say\n" * 20


def test_a_secret_across_the_cuts_is_found_wherever_they_fall() -> None:
    for shift in range(60):
        for fill in (b"x", b"x\n"):
            raw = (fill * shift)[:shift] + (SECRET.encode() + (b"\n" if len(fill) > 1 else b"")) * 500
            for supervise in (False, True):
                kept = keep(in_pieces(raw, 17), 400, supervise=supervise)
                rest = kept.replace(b"REDACTED", b"")
                assert not re.search(rb"[s3crTokn-]{3}", re.sub(rb"\.\.\. .* left out \.\.\.", b"", rest)), kept


def test_a_password_in_an_address_is_found_at_a_cut() -> None:
    for shift in range(40):
        raw = b"y" * shift + b"https://me:hunter2secret@host/" * 200
        kept = keep(in_pieces(raw, 13), 300, ())
        assert b"hunter2" not in kept and b"unter2secret@" not in kept and b"secret@" not in kept


def test_a_secret_of_several_lines_is_not_shown_half_while_it_comes() -> None:
    key = "-----BEGIN KEY-----\nMIIBabcdefgh\nqrstuvwxyz12\n-----END KEY-----"
    raw = f"one\ntwo\n{key}\nthree\n".encode()
    for size in range(1, 40):
        kept = keep(in_pieces(raw, size), 10_000, (key,), supervise=True)
        assert kept == b"one\ntwo\nREDACTED\nthree\n"


def test_a_secret_that_is_longer_than_what_is_left_out_is_not_shown_from_its_middle() -> None:
    key = "".join(f"{number:04d}" for number in range(500))
    for size in (7, 10_000):
        kept = keep(in_pieces(b"x" * 400 + key.encode() + b"y" * 300, size), 1000, (key,))
        assert b"x" * 400 + b"REDACTED" in kept and b"y" * 300 in kept
        assert not re.search(rb"\d{4}", kept)


def test_output_is_visible_during_the_run() -> None:
    words = Bounded(1000, Secrets())
    words.add(b"step 1\nstep")
    assert words.has_head
    assert words.take_head() == b"step 1\n"
    assert words.take_head() == b""
    words.add(b" 2\n10%\r20%")
    assert words.take_head() == b"step 2\n10%\r"
    assert words.finish() == b"20%"


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"bb\n", b"\0\xff", b"top", b"secret", b"topsecret1", b"x" * 90])),
    st.integers(2, 3000),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
    st.sampled_from([("topsecret1",), ("secretx", "secret"), ("top\nsecret",), ()]),
    st.booleans(),
    st.integers(1, 60),
)
def test_whatever_comes_no_secret_is_kept_and_what_fits_is_whole(
    words: list[bytes], limit: int, sizes: list[int], secrets: tuple[str, ...], supervise: bool, times: int
) -> None:
    raw, chunks, at, turn = b"".join(words) * times, [], 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        chunks.append(raw[at : at + size])
        at, turn = at + size, turn + 1
    kept = keep(chunks, limit, secrets, supervise=supervise)
    for secret in secrets:
        assert secret.encode() not in kept
    if len(raw) <= 2 * (limit // 2):
        assert kept == Secrets(secrets).redact(raw)
    elif not secrets:
        head, gap, tail = [*re.split(rb"(\n?\.\.\. .* left out \.\.\.\n)", kept), b"", b""][:3]
        assert raw.startswith(head) and raw.endswith(tail)
        assert gap or kept == raw


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"one\ntwo\n\n", "two"),
        (b"10%\r20%\rdone: 3 files", "done: 3 files"),
        (b"\x1b[31mred\x1b[0m\n", "red"),
        (b"a\0b\xff\n", "a b\N{REPLACEMENT CHARACTER}"),
        (b"x" * 500, "x" * 199 + "…"),
    ],
)
def test_the_last_line_is_printable(text: bytes, line: str) -> None:
    assert last_line(text) == line


KEY = (
    b"-----BEGIN RSA PRIVATE KEY-----\n"
    + b"x9Yb+/Zq" * 8
    + b"\n"
    + b"q7Lm/Zq9" * 8
    + b"\n-----END RSA PRIVATE KEY-----\n"
)
FORMS = (KEY, b"hf_" + b"AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh\n", b"password=hunter2x7\n", b"https://me:hunter2x7@host\n")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 7, 64, 10**6])
def test_a_secret_of_a_common_form_is_found_in_pieces_and_across_every_cut(form: bytes, size: int) -> None:
    for before in range(1900, 2100, 13):
        raw = b"-" * (before - 1) + b"\n" + form + b"line\n" * 3000 + form + b"." * before
        kept = keep(in_pieces(raw, size) if size > 1 or before % 5 == 0 else [raw], 4000, (), supervise=True)
        for piece in (b"x9Yb+/Zq", b"q7Lm/Zq9", b"AbCdEfGh", b"hunter2x7"):
            assert piece not in kept, before
