"""Primitives for files, processes, mounts, threads and switches, shared by the guard and all other packages.

Standard library only, with a light import: every rank of a training imports parts of this package from a shared file
system. Functions raise OSError; system/ converts that into messages for users.
"""
