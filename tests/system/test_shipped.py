"""Where the shipped files lie."""

from __future__ import annotations

import pytest

from resilience.errors import ResilError
from resilience.system import shipped
from resilience.system.shipped import shipped_folder


@pytest.mark.parametrize("kind", ["slurm_templates", "cron"])
def test_a_clone_has_them_beside_the_package(kind: str) -> None:
    assert shipped_folder(kind).is_dir()


def test_a_wheel_has_them_below_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    from pathlib import Path

    package = Path(str(tmp_path)) / "site-packages" / "resilience"
    (package / "_shipped" / "cron").mkdir(parents=True)
    monkeypatch.setattr(shipped, "_PACKAGE", package)
    assert shipped_folder("cron") == package / "_shipped" / "cron"
    with pytest.raises(ResilError, match="lacks its slurm_templates folder"):
        shipped_folder("slurm_templates")
