"""Tests of the alerts, and their shared helpers."""
