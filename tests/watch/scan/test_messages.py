"""What workers tell arrives whole."""

from __future__ import annotations

import os

import pytest

from resilience.watch.scan.worker import receive, send


def test_messages_longer_than_a_pipe_arrive_whole() -> None:
    reading, writing = os.pipe()
    message = ("found", [b"x" * 300_000, 5])
    pid = os.fork()
    if pid == 0:
        send(writing, message)
        os._exit(0)
    os.close(writing)
    assert receive(reading) == message
    os.waitpid(pid, 0)
    with pytest.raises(EOFError):
        receive(reading)
    os.close(reading)
