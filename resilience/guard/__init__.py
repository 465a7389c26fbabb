"""The object a training asks once per step. A tower of its own: standard library only, importable alone."""
