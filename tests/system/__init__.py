"""Tests of the doors to the machine, and what they share."""
