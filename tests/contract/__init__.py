"""Tests; a package, so that tests can share by import."""
