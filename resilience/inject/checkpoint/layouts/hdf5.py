"""Files of HDF5, such as those of Keras and of the original alteration tool. Needs the package h5py.

A dataset may be chunked, compressed, compact, or never written; the library knows how to alter each. Datasets whose
data is in other files (external, virtual) have no bits here: to alter those would change files that nobody copied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resilience.errors import UsageError
from resilience.inject.checkpoint.layouts import (
    Change,
    Layout,
    Location,
    Reader,
    damaged,
    from_bytes,
    to_bytes,
    unique,
)
from resilience.inject.checkpoint.number_types import TYPES
from resilience.messages import quoted

_MAGIC = b"\x89HDF\r\n\x1a\n"
_INSTALL = f"{quoted(sys.executable)} -m pip install h5py"
_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "float"}


def _recognizes(path: Path, head: bytes) -> bool:
    """The signature is at byte 0, or after a user block of 512 bytes, 1,024, 2,048 and so on."""
    return any(head[at : at + 8] == _MAGIC for at in (0, 512, 1024, 2048))


def _h5py() -> Any:
    try:
        import h5py
    except ModuleNotFoundError:
        raise UsageError("files of HDF5 need the package h5py", hint=_INSTALL) from None
    return h5py


def _open(path: Path, mode: str) -> Any:
    try:
        return _h5py().File(path, mode, locking=False)  # ours alone, or only read
    except OSError as error:
        if error.errno is not None and mode == "r+":
            raise
        raise damaged(path, error) from None


def _locations(path: Path) -> list[Location]:
    h5py = _h5py()
    found: list[Location] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(_location(name, item, h5py))

    with _open(path, "r") as file:
        try:
            file.visititems(visit)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise damaged(path, error) from None
    return unique(found)


def _location(name: str, dataset: Any, h5py: Any) -> Location:
    dtype, shape = dataset.dtype, dataset.shape
    if shape is None or dataset.is_virtual or dataset.external:
        why = "empty" if shape is None else "data in another file"
        return Location(name, None, why, shape or ())
    kind = None
    if dtype.kind in _KINDS and dtype.subdtype is None and h5py.check_enum_dtype(dtype) is None:
        width = dtype.itemsize * 8 // (2 if dtype.kind == "c" else 1)
        kind = TYPES.get("bool" if dtype.kind == "b" else f"{_KINDS[dtype.kind]}{width}")
    if kind is None:
        return Location(name, None, str(dtype), shape)
    if dtype.kind == "c":
        shape = (*shape, 2)
    return Location(name, kind, kind.name, shape, (), dtype.str.startswith(">"))


def _element(dataset: Any, location: Location, index: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the index of the element in the dataset, and the offset in it: of the parts of a complex number."""
    assert location.type is not None
    is_complex = dataset.dtype.kind == "c"
    return (tuple(index[:-1]), index[-1] * location.type.size) if is_complex else (tuple(index), 0)


@contextmanager
def _reading(path: Path) -> Iterator[Reader]:
    import numpy

    with _open(path, "r") as file:

        def read(location: Location, index: Sequence[int]) -> int:
            assert location.type is not None
            dataset = file[location.name]
            element, offset = _element(dataset, location, index)
            try:
                raw = numpy.asarray(dataset[element], dataset.dtype).tobytes()
            except OSError as error:  # a chunk that cannot be unpacked
                raise damaged(path, f"{location.name}: {error}") from None
            return from_bytes(raw[offset : offset + location.type.size], location)

        yield read


def _store(path: Path, changes: Sequence[Change]) -> None:
    import numpy

    with _open(path, "r+") as file:
        for change in changes:
            location = change.location
            dataset = file[location.name]
            element, offset = _element(dataset, location, change.index)
            raw = bytearray(numpy.asarray(dataset[element], dataset.dtype).tobytes())
            new = to_bytes(change.bits, location)
            raw[offset : offset + len(new)] = new
            dataset[element] = numpy.frombuffer(bytes(raw), dataset.dtype).reshape(())


LAYOUT = Layout("hdf5", _recognizes, _locations, _reading, _store)
