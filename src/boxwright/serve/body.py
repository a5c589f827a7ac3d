"""The body of a request: whole or in parts, never larger than allowed, never later than the deadline."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from boxwright.core.text import printable
from boxwright.serve.replies import ClientLeft, Receive, Refusal

_MOST_HEADERS = 8
_MOST_HEADER_BYTES = 4096


@dataclass(slots=True)
class Held:
    """The bytes of all requests that are being received or answered, and how many they may be."""

    most: int
    now: int = 0
    rejected: int = field(default=0)

    def add(self, size: int) -> None:
        """Count more bytes.

        Raises:
            Refusal: they are too many.
        """
        if self.now + size > self.most:
            self.rejected += 1
            raise Refusal(429, "The server holds as much as it can. Try again later.", [(b"retry-after", b"1")])
        self.now += size


class Body:
    """Receives the body of one request; `release` it when the answer is there."""

    def __init__(self, receive: Receive, headers: Mapping[bytes, bytes], held: Held, most: int) -> None:
        """Look at the headers.

        Raises:
            Refusal: the body is too large or encoded.
        """
        self._receive, self._held, self._most = receive, held, most
        self._counted = 0
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refusal(415, "Compressed bodies are not taken. Send the bytes as they are, without Content-Encoding.")
        length = headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > most:
            raise self._too_large()

    async def read(self, deadline: float) -> bytes:
        """Return the whole body.

        Raises:
            Refusal: it is too large or too slow.
            ClientLeft: the client has closed the connection.
        """
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft("The client has left.")
                    piece = message.get("body", b"")
                    if self._counted + len(piece) > self._most:
                        raise self._too_large()
                    self._held.add(len(piece))
                    self._counted += len(piece)
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError:
            raise Refusal(408, "The request took too long to arrive.", [(b"connection", b"close")]) from None

    def release(self) -> None:
        """Forget the body; calling it twice is allowed."""
        self._held.now -= self._counted
        self._counted = 0

    def _too_large(self) -> Refusal:
        # The rest of the body would have to be read to keep the connection.
        return Refusal(
            413,
            f"The request is larger than {self._most:,} bytes (--max-body). Send less.",
            [(b"connection", b"close")],
        )


@dataclass(slots=True)
class Part:
    """One picture of a form."""

    name: str
    data: bytearray


def split_form(body: bytes, content_type: bytes, most: int) -> list[Part]:
    """Return the pictures of a multipart form: every part is one.

    Raises:
        Refusal: it is not such a form, has no picture or too many.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise Refusal(400, "The Content-Type of a multipart form must name its boundary.")
    parts: list[Part] = []
    headers: list[tuple[bytes, bytes]] = []
    field_name, value = bytearray(), bytearray()
    ended = False

    def begin() -> None:
        if len(parts) >= most:
            raise Refusal(413, f"A request may have {most} pictures. Send them in several requests.")
        parts.append(Part(f"picture {len(parts) + 1}", bytearray()))
        headers.clear()

    def grow(into: bytearray, piece: bytes) -> None:
        into += piece
        if len(into) > _MOST_HEADER_BYTES:
            raise Refusal(400, "A header of the multipart form is too long.")

    def end_header() -> None:
        headers.append((bytes(field_name).lower(), bytes(value)))
        field_name.clear()
        value.clear()
        if len(headers) > _MOST_HEADERS:
            raise Refusal(400, "A part of the multipart form has too many headers.")

    def end_headers() -> None:
        disposition = parse_options_header(dict(headers).get(b"content-disposition", b""))[1]
        given = disposition.get(b"filename") or disposition.get(b"name")
        if given:
            parts[-1].name = printable(given.decode("utf-8", "replace"), lines=False)[:255]

    def finish() -> None:
        nonlocal ended
        ended = True

    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": begin,
            "on_part_data": lambda data, start, end: parts[-1].data.extend(memoryview(data)[start:end]),
            "on_header_field": lambda data, start, end: grow(field_name, data[start:end]),
            "on_header_value": lambda data, start, end: grow(value, data[start:end]),
            "on_header_end": end_header,
            "on_headers_finished": end_headers,
            "on_end": finish,
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Refusal(400, f"The multipart form can't be read: {error}") from error
    if not ended:
        raise Refusal(400, "The multipart form is cut off: its last boundary is missing.")
    if not parts:
        raise Refusal(400, "The multipart form has no picture.")
    return parts
