"""Fetching one file over HTTP: it resumes, it follows only safe redirects, and it never grows without end."""

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from boxwright import __version__
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.files import naming, write_whole
from boxwright.core.log import get_logger
from boxwright.tasks.weights.store import Progress

_log = get_logger(__name__)
_CHUNK = 1 << 16
_MOST_BYTES = 4 << 30  # the largest official file has 0.8 GB
_MOST_TRIES = 5  # connections of one call


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects from http to http or https, and from https to https alone."""

    inf_msg = "a circle of redirects: "

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request for the new address."""
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old == "https" and new == "http"):
            raise urllib.error.HTTPError(req.full_url, code, f"a redirect to {newurl!r} is not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_url(url: str) -> str:
    """Return an address that can be fetched.

    Raises:
        UsageError: it is not one of http or https.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # such as "http://["
        parts = urlsplit("")
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise UsageError(
            f"{url!r} is not an http:// or https:// address. For a folder or an archive of this machine run: "
            "boxwright weights add PATH"
        )
    return url


def fetch(
    url: str,
    part: Path,
    *,
    size_bytes: int | None = None,
    timeout_s: float = 30.0,
    progress: Progress | None = None,
) -> None:
    """Write what is at a URL to `part`; bytes that are there from an earlier try are not fetched again.

    Proxies are those of the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY).

    Args:
        url: the address of the file.
        part: where to; it stays when the fetching fails, and the next call resumes. The caller holds its lock.
        size_bytes: the size that the file must have, if known.
        timeout_s: how long to wait for the next bytes.
        progress: called with the number of bytes.

    Raises:
        CheckpointError: the server can't be reached, refuses, sends a file of another size, or stops sending.
        OSError: the file can't be written.
    """
    for _ in range(_MOST_TRIES):
        total, reason = None, "the connection was closed"
        try:
            total = _receive(url, part, size_bytes, timeout_s, progress)
        except urllib.error.HTTPError as error:
            error.close()
            raise CheckpointError(
                f"{url!r} was not fetched: the server answered {error.code} {error.reason}. Check the address, or name "
                "a mirror with --url."
            ) from error
        except urllib.error.URLError as error:
            raise CheckpointError(f"{url!r} can't be reached: {error.reason}. {_advice(url, part)}") from error
        except TimeoutError as error:
            raise CheckpointError(f"{url!r} sent nothing for {timeout_s:g} s. {_advice(url, part)}") from error
        except (http.client.HTTPException, ConnectionError, ssl.SSLError) as error:
            reason = repr(error)
        if total is not None and _size(part) == total:
            return
        _log.info("Cut off after %d bytes: %s.", _size(part), reason)
    raise CheckpointError(
        f"{url!r} was cut off {_MOST_TRIES} times, at last after {_size(part):,} bytes: {reason}. {_advice(url, part)}"
    )


def _receive(url: str, part: Path, size_bytes: int | None, timeout_s: float, progress: Progress | None) -> int:
    """Write to the file what the server sends, and return the number of bytes that the whole file has."""
    have, validator = _size(part), _read_validator(url, part)
    headers = {"User-Agent": f"boxwright/{__version__}", "Accept-Encoding": "identity"}
    if have and validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    opener = urllib.request.build_opener(_SafeRedirects)
    try:
        reply = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout_s)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        error.close()
        part.unlink()  # as long as the whole file, or longer: not the beginning of it
        return _receive(url, part, size_bytes, timeout_s, progress)
    with reply:
        resumed = reply.status == http.HTTPStatus.PARTIAL_CONTENT and _starts_at(reply, have)
        if reply.status == http.HTTPStatus.PARTIAL_CONTENT and not resumed:
            part.unlink(missing_ok=True)
            raise ConnectionError("the server sent another part of the file than the one asked for")
        length = reply.headers.get("Content-Length")
        total = None if length is None or not length.isdecimal() else int(length) + (have if resumed else 0)
        limit = size_bytes or _MOST_BYTES
        if total is not None and (total > limit or (size_bytes is not None and total != size_bytes)):
            raise CheckpointError(_wrong_size(url, f"{total:,}", size_bytes))
        if not resumed:
            _write_validator(url, part, reply)
        done = have if resumed else 0
        with naming(part), part.open("ab" if resumed else "wb") as file:
            while chunk := reply.read1(_CHUNK):
                done += len(chunk)
                if done > limit:
                    file.truncate(0)
                    raise CheckpointError(_wrong_size(url, f"more than {limit:,}", size_bytes))
                file.write(chunk)
                if progress is not None:
                    progress(f"Fetching {url.rpartition('/')[2]}", done, total or size_bytes or 0)
        return total if total is not None else size_bytes or done


def _wrong_size(url: str, found: str, expected: int | None) -> str:
    wanted = f"the file has {expected:,}" if expected else "no file of weights is that large"
    return f"{url!r} was not fetched: it has {found} bytes, and {wanted}. Name another mirror with --url."


def _starts_at(reply: Any, have: int) -> bool:
    return str(reply.headers.get("Content-Range", "")).startswith(f"bytes {have}-")


def _validator_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _read_validator(url: str, part: Path) -> str:
    """Return what says that the server's file is still the one that the part is from; "" starts again."""
    with suppress(OSError, ValueError, AttributeError):
        stored = json.loads(_validator_path(part).read_text("utf-8"))
        if stored.get("url") == url:
            return str(stored.get("validator") or "")
    return ""


def _write_validator(url: str, part: Path, reply: Any) -> None:
    etag = reply.headers.get("ETag", "")
    # A weak tag stays when bytes change.
    validator = etag if etag and not etag.startswith("W/") else reply.headers.get("Last-Modified", "")
    write_whole(_validator_path(part), json.dumps({"url": url, "validator": validator}))


def forget(part: Path) -> None:
    """Delete a part and what is known about it."""
    part.unlink(missing_ok=True)
    _validator_path(part).unlink(missing_ok=True)


def _size(part: Path) -> int:
    return os.stat(part).st_size if part.exists() else 0


def _advice(url: str, part: Path) -> str:
    have = _size(part) if _read_validator(url, part) else 0
    resumes = f"The same command resumes after {have:,} bytes. " if have else ""
    return (
        f"{resumes}Check the network and the proxy (HTTPS_PROXY), name a mirror with --url, or bring the file and run: "
        "boxwright weights add PATH"
    )
