"""Tests of who is told what, when, and what they share."""
