"""Reads resil.toml, the environment and the command line into dataclasses."""
