"""Tests of resilience.base."""
