"""A driver of cron as a plugin file: available, does nothing, and answers as told."""

from __future__ import annotations

DRIVER = """
from resilience.cron.drivers import Availability, DriverState
from resilience.job import Liveness
class Fake:
    summary = "for tests"
    rank = 1
    def availability(self, context): return Availability(True, "it is a fake")
    def plan(self, installation, settings, context): return ()
    def install(self, installation, settings, context): return ()
    def uninstall(self, installation, settings, context): return ()
    def state(self, installation, settings, context):
        {state}
DRIVER = Fake()
"""


def fake_driver(state: str) -> str:
    """Return the text of the plugin; `state` is the body of its method of that name."""
    return DRIVER.format(state=state)
