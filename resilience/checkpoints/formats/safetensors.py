"""Files of safetensors: 8 bytes, a JSON header, and tensors without gaps up to the end of the file.

Format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from resilience.checkpoints.formats import Content, Fault

MOST_HEADER_BYTES = 100_000_000
"""The limit of safetensors itself."""
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


def check(content: Content) -> Iterator[Fault]:
    """Yield the faults of files that end in `.safetensors`."""
    for path in content.sizes:
        if path.endswith(".safetensors"):
            header = read_header(content, path)
            if isinstance(header, Fault):
                yield header
            else:
                yield from _check_tensors(path, header, content.sizes[path])


def read_header(content: Content, path: str) -> dict[str, Any] | Fault:
    """Return the header of a file: its tensors by name, and its length as `""`; or the Fault. Raise OSError."""
    size = content.sizes[path]
    length = int.from_bytes(content.read(path, 8), "little") if size >= 8 else -1
    if not 0 < length <= min(MOST_HEADER_BYTES, size - 8):
        found = f"a header of {length:,} bytes in {size:,}" if size >= 8 else f"{size} bytes"
        return Fault(path, "a header of safetensors", found, "is truncated or damaged")
    try:
        header = json.loads(content.read(path, length, 8))
        if not isinstance(header, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        return Fault(path, "a header in JSON", str(error), "is damaged")
    header.pop("__metadata__", None)
    header[""] = length
    return header


def _check_tensors(path: str, header: dict[str, Any], size: int) -> Iterator[Fault]:
    last = 0
    begin = 8 + header.pop("")
    try:
        for start, end, name in sorted((*tensor["data_offsets"], name) for name, tensor in header.items()):
            if start != last or end < start:
                yield Fault(path, f"tensor {name} at byte {begin + last:,}", f"byte {begin + start:,}", "is damaged")
            wanted = math.prod(header[name]["shape"]) * _BYTES.get(header[name]["dtype"], 0)
            if wanted and wanted != end - start:
                yield Fault(path, f"{wanted:,} bytes of tensor {name}", f"{end - start:,}", "is damaged")
            last = end
    except (ValueError, TypeError, KeyError) as error:
        yield Fault(path, "offset, shape and type of each tensor", repr(error), "is damaged")
    if begin + last != size:
        what = "is truncated" if size < begin + last else "is damaged"
        yield Fault(path, f"{begin + last:,} bytes by its header", f"{size:,} bytes", what)
