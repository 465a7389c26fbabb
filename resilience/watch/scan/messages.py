"""How the workers of a scan and the one who sent them talk: a length, and plain values as marshal writes them."""

from __future__ import annotations

import marshal
import os
import struct
from typing import Any

LENGTH = struct.Struct("<I")


def send(pipe: int, message: Any) -> None:
    """Write one message. Raise BrokenPipeError when nobody reads any more."""
    raw = marshal.dumps(message)
    view = memoryview(LENGTH.pack(len(raw)) + raw)
    while view:
        view = view[os.write(pipe, view) :]


def receive(pipe: int) -> Any:
    """Read one message. Raise EOFError when nobody writes any more."""
    return marshal.loads(_exactly(pipe, LENGTH.unpack(_exactly(pipe, LENGTH.size))[0]))


def _exactly(pipe: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(pipe, count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
