"""Prometheus remote-write 1.0: one protobuf message, framed as snappy.

The message has four field kinds and the snappy block format allows literals only, so that forty lines replace two
compiled packages on every runner; tests hold them against both packages. A push of 200 series is about 60 KiB.
https://prometheus.io/docs/specs/prw/remote_write_spec/
https://github.com/google/snappy/blob/main/format_description.txt
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from regress.delivery.series import Point

HEADERS = {"Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"}
CONTENT_TYPE = "application/x-protobuf"
_LONGEST_LITERAL = 1 << 16


def write_request(points: Iterable[Point]) -> bytes:
    """The WriteRequest message: a TimeSeries with one Sample for each point, labels sorted, the name among them."""
    return b"".join(_field(1, _time_series(point)) for point in points)


def snappy(content: bytes) -> bytes:
    """The block format with literals only: the length, then pieces of at most 64 KiB."""
    parts = [_varint(len(content))]
    for start in range(0, len(content), _LONGEST_LITERAL):
        piece = content[start:start + _LONGEST_LITERAL]
        if len(piece) <= 60:
            # The length minus one in the tag itself. Some readers look four bytes ahead in the longer form.
            parts += [bytes([len(piece) - 1 << 2]), piece]
        else:
            # Tag 61 << 2: the length minus one follows in two bytes, little end first.
            parts += [b"\xf4", struct.pack("<H", len(piece) - 1), piece]
    return b"".join(parts)


def _time_series(point: Point) -> bytes:
    labels = sorted([("__name__", point.name), *point.labels])
    named = b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in labels)
    # Sample: field 1 a double (wire type 1), field 2 a varint.
    sample = b"\x09" + struct.pack("<d", point.value) + b"\x10" + _varint(point.time_ms & (1 << 64) - 1)
    return named + _field(2, sample)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
