"""Primitives of files, processes, mounts, threads and switches that the guard and everything else share.

Standard library and words only, and light: every rank of a training imports parts of this package from a shared file
system. Errors are the system's own (OSError); system/ turns those into sentences for people.
"""
