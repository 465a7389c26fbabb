"""Records travel as plain values."""

from __future__ import annotations

import marshal

from resilience.watch.scan.tree import READ, Hot, Record, joined


def test_a_record_comes_out_of_a_pipe_as_it_went_in() -> None:
    record = Record(b"a/b\xff", READ, 2**64 - 1, 5, 6, 7, 8, 9, 10, 11, 0, ((1, 2),), (Hot(b"x", 1, 2),), (b"c",))
    assert Record.from_plain(marshal.loads(marshal.dumps(record.plain()))) == record
    assert Record.from_plain(marshal.loads(marshal.dumps(Record(b"").plain()))) == Record(b"")


def test_what_lies_in_the_root_has_no_slash_before_it() -> None:
    assert (joined(b"", b"a"), joined(b"a", b"b")) == (b"a", b"a/b")
