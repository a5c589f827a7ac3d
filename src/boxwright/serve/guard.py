"""Who may use the server: the token, and the Host and Origin that a browser sends."""

import hmac
import ipaddress
from collections.abc import Mapping

from boxwright.serve.config import ServeConfig
from boxwright.serve.replies import Refusal

_OPEN = ("/healthz/live", "/healthz/ready", "/v2/health/live", "/v2/health/ready")


class Guard:
    """Refuses requests that are not allowed.

    A page of another site can make a visitor's browser send requests here. The browser then names that site in Origin,
    or, if the site's name was pointed to this machine (DNS rebinding), in Host. A token makes Host unimportant: a page
    of another name does not know it.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._token = None if config.token is None else config.token.encode()
        self._hosts = {"localhost", config.host.lower(), *(name.lower() for name in config.allow_host)}
        self._any_host = "*" in config.allow_host or self._token is not None

    def check(self, path: str, headers: Mapping[bytes, bytes], *, is_page: bool = False) -> None:
        """Check a request; the page itself and the probes need no token.

        Raises:
            Refusal: it is not allowed.
        """
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._any_host and path not in _OPEN and not self._is_known(host):
            raise Refusal(
                421, f"The server does not know the name {host!r}. Use its address, or start it with --allow-host NAME."
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2].lower() != host.lower():
            raise Refusal(403, "Requests from pages of other sites are not allowed.")
        if self._token is not None and path not in _OPEN and not is_page:
            self.check_token(headers)

    def check_admin(self, headers: Mapping[bytes, bytes]) -> None:
        """Check a request that changes the server; raises as `check` does."""
        if self._token is None:
            raise Refusal(
                403, "Without a token nobody may change the models. Start the server with --token, or use SIGHUP."
            )
        self.check_token(headers)

    def check_token(self, headers: Mapping[bytes, bytes]) -> None:
        """Check the token; raises as `check` does."""
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token or b""):
            raise Refusal(
                401, "This server needs its token: Authorization: Bearer TOKEN.", [(b"www-authenticate", b"Bearer")]
            )

    def _is_known(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)  # a name may have been rebound; an address can't be
        except ValueError:
            return False
        return True
