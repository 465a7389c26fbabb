"""Tests of resilience/actions: what each module promises."""
