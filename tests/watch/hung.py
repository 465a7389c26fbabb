"""A file system that never responds, by the name that tests of commands use."""

from tests.lab.hung import hung_directory as hung_disk

__all__ = ["hung_disk"]
