"""What tests of channels share: a system, and a certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.system.ports import System
from tests.alerts.channels.servers import HAS_OPENSSL, NO_OPENSSL, Certificate, make_certificate
from tests.lab.fakes import make_system


@pytest.fixture
def system(tmp_path: Path, canary: str) -> System:
    """A system whose environment holds the planted secret."""
    return make_system(tmp_path, {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "RESIL_CANARY": canary})


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A self-signed certificate for localhost."""
    if not HAS_OPENSSL:
        pytest.skip(NO_OPENSSL)
    return make_certificate(tmp_path_factory.mktemp("certificate"))
