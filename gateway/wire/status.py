"""google.rpc.Status: an error as gRPC clients read it from the trailer `grpc-status-details-bin`.

Three small messages are encoded here by hand; a protobuf library and the
package of Google's definitions would be two dependencies for three lines:

    Status     {1: int32 code, 2: string message, 3: repeated Any details}
    Any        {1: string type_url, 2: bytes value}
    ErrorInfo  {1: string reason, 2: string domain}
"""

from __future__ import annotations

TRAILER = "grpc-status-details-bin"
DOMAIN = "deltaport"
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


def encode_status(code: int, message: str, reason: str) -> bytes:
    """A Status with one ErrorInfo. Clients refuse it unless `code` is the call's own; `reason` may say more."""
    info = _text(1, reason) + _text(2, DOMAIN)
    details = _text(1, _ERROR_INFO) + _bytes(2, info)
    return _varint(1 << 3) + _varint(code) + _text(2, message) + _bytes(3, details)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode("utf-8", "replace"))


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
