"""Real ranks, which the tests of one module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.guard.agreement.campaign import Pool, need_torch


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    need_torch()
    with Pool(tmp_path_factory.mktemp("ranks")) as pool:
        yield pool
