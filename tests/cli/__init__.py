"""Tests of resilience/cli: what each module promises."""
