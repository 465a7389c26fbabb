"""Stands in for srun: starts the program once per host of --nodelist on this machine, sends its input to all, and
joins what they print. `plant` runs in the task of a host before the program: a fault of that node."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import IO, Any


def main(argv: list[str]) -> int:
    options = [word for word in argv if word.startswith("--")]
    program = argv[len(options) :]
    hosts = next(word for word in options if word.startswith("--nodelist=")).partition("=")[2].split(",")
    lock, tasks = threading.Lock(), []
    for host in hosts:
        planted = os.environ.get(f"PLANT_{host}", "")
        if planted == "silent":
            continue
        task = ["/bin/sh", "-c", f'{planted}\nexec "$@"', "sh", *program]
        environ = {**os.environ, "SLURMD_NODENAME": host}
        tasks.append(subprocess.Popen(task, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    def copy(output: IO[bytes]) -> None:
        for line in output:
            with lock:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()

    copies = [threading.Thread(target=copy, args=[child.stdout]) for child in tasks]
    for one in copies:
        one.start()
    for line in sys.stdin.buffer:
        for child in tasks:
            _write(child.stdin, line)
    for child in tasks:
        _write(child.stdin, None)
    for one in copies:
        one.join()
    return max(child.wait() for child in tasks)


def _write(file: Any, line: bytes | None) -> None:
    try:
        if line is None:
            file.close()
        else:
            file.write(line)
            file.flush()
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
