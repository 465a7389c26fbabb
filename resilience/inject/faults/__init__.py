"""Faults: each file exports one as FAULT. The protocol is resilience.inject.Fault."""

from __future__ import annotations

from resilience.inject import Fault as Fault
