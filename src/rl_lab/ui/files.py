"""A file of a run as an answer: in pieces, with one range if a film player asks for one."""

import os
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rl_lab.records.files import open_to_read

PIECE = 256 * 1024  # bytes
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")


def file_answer(request: Request, path: Path, kind: str) -> Response:
    """The file, or the range of it that was asked for; several ranges at a time are refused."""
    file = open_to_read(path)
    size = os.fstat(file.fileno()).st_size
    headers = {"Accept-Ranges": "bytes"}
    asked = request.headers.get("range")
    if asked is None:
        return _pieces(file, 0, size, 200, kind, headers)
    span = wanted_range(asked, size)
    if span is None:
        file.close()
        return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
    first, last = span
    headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    return _pieces(file, first, last - first + 1, 206, kind, headers)


def wanted_range(asked: str, size: int) -> tuple[int, int] | None:
    """The first and the last byte of a header such as `bytes=0-499`; None if it is no good."""
    match = _RANGE.fullmatch(asked.strip())
    if match is None or match.groups() == ("", ""):
        return None
    if not match[1]:  # this many bytes at the end
        first, last = max(size - int(match[2]), 0), size - 1
    else:
        first, last = int(match[1]), min(int(match[2] or size), size - 1)
    return (first, last) if first <= last and first < size else None


def _pieces(
    file: BufferedReader, first: int, count: int, code: int, kind: str, headers: dict[str, str]
) -> Response:
    def read() -> Iterator[bytes]:
        left = count
        with file:
            file.seek(first)
            while left > 0 and (data := file.read(min(PIECE, left))):
                left -= len(data)
                yield data

    return StreamingResponse(
        read(), code, {**headers, "Content-Length": str(count)}, media_type=kind
    )
