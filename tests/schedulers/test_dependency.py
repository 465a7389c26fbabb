"""A dependency is always written with its type: a bare id would mean what few people think."""

from __future__ import annotations

import pytest

from resilience.errors import UsageError
from resilience.submission import TYPES, write_dependency

WRITTEN = [
    ("12", "afterany:12"),
    (" 12 ", "afterany:12"),
    ("12_3", "afterany:12_3"),
    ("12_*", "afterany:12_*"),
    ("12,13", "afterany:12,afterany:13"),
    ("12:13", "afterany:12:13"),
    ("12?13", "afterany:12?afterany:13"),
    ("afterok:12:13,singleton", "afterok:12:13,singleton"),
    ("afterok:12, afternotok:13", "afterok:12,afternotok:13"),
    ("AfterOK:12,Singleton", "afterok:12,singleton"),
    ("afterok:12\n", "afterok:12"),
    ("after:12+5", "after:12+5"),
    ("after:12+5:13", "after:12+5:13"),
    ("aftercorr:7_2", "aftercorr:7_2"),
]


@pytest.mark.parametrize(("typed", "written"), WRITTEN)
def test_every_type_is_spelt_out(typed: str, written: str) -> None:
    assert write_dependency(typed) == written
    assert write_dependency(written) == written


REFUSED = [
    ("", "not a job id"),
    (",", "not a job id"),
    ("12,", "not a job id"),
    ("afterok:", "not a job id"),
    ("afterok:12:", "not a job id"),
    ("afterok:0", "not a job id"),
    ("0", "not a job id"),
    ("last", "not a job id"),
    ("\u0661", "not a job id"),
    ("afterok:12,13?14", "cannot be mixed"),
    ("whenever:12", "no type 'whenever'"),
    ("afterany:12+5", "only `after`"),
    ("12+5", "only `after`"),
    ("singleton:12", "no type 'singleton'"),
    ("afterok:12;rm -rf", "not a job id"),
    ("afterok:-12", "not a job id"),
]


@pytest.mark.parametrize(("typed", "why"), REFUSED)
def test_what_slurm_would_refuse_is_refused_with_the_types(typed: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        write_dependency(typed)
    assert why in caught.value.message
    assert all(kind in caught.value.hint for kind in TYPES)
