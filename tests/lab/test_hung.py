"""A hung file system of the tests hangs nobody for longer than its test lives."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.disks import needs_fuse
from tests.lab.waiting import until

MOUNTS = """
import sys, time
from pathlib import Path
from tests.lab.hung import hung_directory
with hung_directory(Path(sys.argv[1])):
    print("mounted", flush=True)
    time.sleep(60)
"""


@needs_fuse
def test_a_test_that_is_killed_leaves_no_directory_that_hangs(tmp_path: Path) -> None:
    hung = tmp_path / "hung"
    test = subprocess.Popen([sys.executable, "-c", MOUNTS, str(hung)], stdout=subprocess.PIPE, text=True)
    look = None
    try:
        assert test.stdout is not None
        if test.stdout.readline() != "mounted\n":
            pytest.skip("mounting is not permitted: /dev/fuse")
        look = subprocess.Popen(["ls", str(hung)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        test.kill()
        test.wait()
        until(lambda: look.poll() is not None, "a look that hung is woken")
    finally:
        test.kill()
        test.communicate()
        ctypes.CDLL(None).umount2(os.fsencode(hung), 1 | 2)
        if look is not None:
            look.kill()
            look.wait()
