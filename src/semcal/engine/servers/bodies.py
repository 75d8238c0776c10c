"""The body of a reply: read and unpacked in pieces, and never more of it than a limit.

Some megabytes of gzip may unpack to gigabytes. Between pieces the event loop goes on: a time-out holds.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, Iterator
from typing import Any

#: What requests say that they accept, and bytes that are unpacked at a time.
ENCODINGS, PIECE = "gzip, deflate", 2**18


class BodyError(Exception):
    """A body that cannot be read; not `passing` where it would come again: too large, or packed otherwise."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


def check_size(size: int, limit: int) -> None:
    """Raise BodyError if a body has more bytes than the limit."""
    if size > limit:
        reason = f"the reply is larger than {limit / 1e6:g} MB, sent or unpacked, and is not asked for again"
        raise BodyError(f"{reason}; semcal.load_server(..., max_reply_bytes=N) takes more")


async def read_body(chunks: AsyncIterable[bytes], encoding: str, limit: int) -> bytes:
    """Return the body that raw chunks make, unpacked: `limit` bytes at most, before and after.

    Takes up to twice that memory. BodyError if it is larger, damaged, or packed otherwise than as ENCODINGS.
    """
    name = encoding.strip().lower()
    packed = name not in ("", "identity")
    if packed and name not in ("gzip", "x-gzip", "deflate"):
        raise BodyError(f"the reply is packed as {encoding:.60}, and requests accept {ENCODINGS} alone")
    pieces, read, size, unpacking = [], 0, 0, None
    async for chunk in chunks:
        read += len(chunk)
        check_size(read, limit)
        if packed and chunk and unpacking is None:  # by its first byte gzip, zlib's format or raw deflate
            known = chunk[0] == 0x1F or chunk[0] & 15 == 8
            unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32 if known else -zlib.MAX_WBITS)
        for piece in (chunk,) if unpacking is None else _unpacked(chunk, unpacking):
            size += len(piece)
            check_size(size, limit)
            pieces.append(piece)
            if packed:
                await asyncio.sleep(0)
    if unpacking is not None and not unpacking.eof:
        raise BodyError(f"the reply is damaged: its {encoding} ends too early", passing=True)
    return b"".join(pieces)


def _unpacked(chunk: bytes, unpacking: Any) -> Iterator[bytes]:
    """What a chunk unpacks to, `PIECE` bytes at a time."""
    for start in range(0, len(chunk), PIECE):  # what is not consumed is copied for each piece
        packed, piece = chunk[start : start + PIECE], b""
        while packed or len(piece) == PIECE:
            try:
                piece = unpacking.decompress(packed, PIECE)
            except zlib.error as error:
                raise BodyError(f"the reply is damaged: {error}", passing=True) from None
            if unpacking.unused_data:
                raise BodyError("the reply is damaged: more follows what is packed", passing=True)
            packed = unpacking.unconsumed_tail
            yield piece
