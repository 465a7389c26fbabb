"""Tests of resilience/settings: what each module promises."""
