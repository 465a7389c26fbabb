"""Batch scripts: rendered from templates, and linted. Pure, except for reading the templates."""
