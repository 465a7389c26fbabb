"""Framing of messages on a TCP connection (a length, then JSON), and mutual authentication by the run's token.

Any host that can reach the port may connect; only processes that can read the run directory know the token, which is
never sent: each end sends a random word and proves that it can compute HMAC-SHA256 (RFC 2104) of both words. Frames
that are too large or not JSON end the connection.
"""

from __future__ import annotations

import hmac
import json
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGEST_FRAME = 262_144
LARGEST_GREETING = 1024
"""Largest frame of an unauthenticated peer, which must not be able to exhaust memory."""
_LENGTH = struct.Struct(">I")


class BadFrame(Exception):
    """The received bytes are not a valid frame."""


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as bytes: its length (four bytes, big endian), then JSON. Raise ValueError if too large."""
    raw = json.dumps(message, separators=(",", ":")).encode()
    if len(raw) > LARGEST_FRAME:
        raise ValueError(f"a message of {len(raw)} bytes")
    return _LENGTH.pack(len(raw)) + raw


class Decoder:
    """Decodes a stream of bytes into messages.

    Attributes:
        largest: size limit of a frame, in bytes.
    """

    def __init__(self, largest: int = LARGEST_FRAME) -> None:
        self.largest = largest
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Given the next bytes, return the complete messages. Raise BadFrame if they are invalid."""
        self._rest += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> dict[str, Any] | None:
        if len(self._rest) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._rest)
        if length > self.largest:
            raise BadFrame(f"a frame of {length} bytes")
        if len(self._rest) < _LENGTH.size + length:
            return None
        raw = bytes(self._rest[_LENGTH.size : _LENGTH.size + length])
        del self._rest[: _LENGTH.size + length]
        try:
            message = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise BadFrame("no JSON") from error
        if not isinstance(message, dict):
            raise BadFrame("not a table")
        return message


def random_word() -> str:
    """Return 128 random bits as hexadecimal digits."""
    return os.urandom(16).hex()


def proof(token: str, side: str, server_word: str, client_word: str) -> str:
    """Return the answer of `side` ("coordinator" or "member") to the other's word, given the run's token."""
    return hmac.digest(token.encode(), f"{side}:{server_word}:{client_word}".encode(), "sha256").hex()


def is_proof(given: object, token: str, side: str, server_word: str, client_word: str) -> bool:
    """Return whether the proof is valid, in constant time."""
    expected = proof(token, side, server_word, client_word)
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
