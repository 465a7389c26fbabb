"""What is missed when a source of figures gives no answer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from resilience.watch.checks._filesystem.amount import BYTES, Amount
from resilience.watch.checks._filesystem.reading import FileSystemReading, unanswered

STATVFS = Amount(kind=BYTES, source="statvfs", scope="file system", used=1.0, limit=10.0)
QUOTA = Amount(kind=BYTES, source="lfs quota", scope="group lab", used=9.7, limit=10.0)
BEFORE = FileSystemReading(path="/s", history={STATVFS.key: ((0.0, 1.0),), QUOTA.key: ((0.0, 9.7),)})
HANGS = {"lfs quota": "it did not end"}


@pytest.mark.parametrize(
    ("before", "told", "failed", "missed"),
    [
        (BEFORE, (STATVFS,), HANGS, ("the limit of group lab (lfs quota): lfs quota: it did not end",)),
        (BEFORE, (QUOTA, STATVFS), HANGS, ()),  # somebody else has told it
        (BEFORE, (STATVFS,), {}, ()),  # it answered: there is no limit any more
        (None, (STATVFS,), HANGS, ()),  # nothing was ever told
        (FileSystemReading(path="/s", history={STATVFS.key: ((0.0, 1.0),)}), (STATVFS,), HANGS, ()),
    ],
)
def test_a_limit_that_was_known_is_missed_when_its_tool_is_silent(
    before: FileSystemReading | None, told: tuple[Amount, ...], failed: Mapping[str, str], missed: tuple[str, ...]
) -> None:
    assert unanswered(before, told, failed, ()) == missed


def test_who_is_wanted_is_missed_at_once() -> None:
    assert unanswered(None, (STATVFS,), {"`q`": "it ended with 3"}, ("`q`",)) == ("`q`: it ended with 3",)
