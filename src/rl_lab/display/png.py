"""Pictures as PNG without a library: bytes in color or gray, and back for those written here."""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.core.errors import UserError

Array = NDArray[Any]  # not from core.batch: a page that shows one needs no torch

_HEAD = b"\x89PNG\r\n\x1a\n"
_COLOR = {1: 0, 3: 2}  # channels -> PNG's color type
_LEVEL = 1  # of compression: fast; drawn frames have few colors
MOST_BYTES = 1 << 26  # of a picture that is decoded: its file may come from anywhere


def encode_png(picture: Array) -> bytes:
    """[H, W, 3] or [H, W, 1], bytes."""
    height, width, channels = picture.shape
    rows = np.empty((height, 1 + width * channels), np.uint8)
    rows[:, 0] = 0  # the row is stored as it is
    rows[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR[channels], 0, 0, 0)
    body = zlib.compress(rows.tobytes(), _LEVEL)
    return _HEAD + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def decode_png(data: bytes) -> Array:
    """What `encode_png` was given; `UserError` for any other PNG."""
    try:
        if data[:8] != _HEAD or data[12:16] != b"IHDR":
            raise ValueError("it does not begin as one")
        width, height, _, kind = struct.unpack(">IIBB", data[16:26])
        channels = {value: key for key, value in _COLOR.items()}[kind]
        (length,) = struct.unpack(">I", data[33:37])
        size = height * (1 + width * channels)
        if size > MOST_BYTES:
            raise ValueError("it is too large")
        raw = zlib.decompressobj().decompress(data[41 : 41 + length], size + 1)
        rows = np.frombuffer(raw, np.uint8).reshape(height, 1 + width * channels)
    except (ValueError, KeyError, struct.error, zlib.error) as error:
        raise UserError(f"a frame is not a PNG of a recording: {error}") from error
    return rows[:, 1:].reshape(height, width, channels)


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(data, zlib.crc32(name))
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)
