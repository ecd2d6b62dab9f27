"""Where the daemon is, and who asks.

Promises: the environment (TOLLGATE_ADMIN, TOLLGATE_ADMIN_TOKEN) is read once, when a client is made.
Never: shows the token.
"""

from __future__ import annotations

import os
import ssl
from typing import Dict, Optional
from urllib.parse import urlsplit

from ._wire import common_head
from .errors import BadRequest

DEFAULT_ADMIN = "127.0.0.1:4291"
#: The decision service on the gateway's address, for callers with a token.
GATEWAY_PREFIX = "/-"


class Address:
    """Host, port, prefix of paths, and the headers of every request."""

    def __init__(self, url: Optional[str], token: Optional[str]):
        text = url or os.environ.get("TOLLGATE_ADMIN") or DEFAULT_ADMIN
        try:
            if not isinstance(text, str):
                raise ValueError
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        prefix = parts.path.rstrip("/")
        is_known = parts.scheme in ("http", "https") and not parts.query and not parts.username
        if not host or not is_known or prefix not in ("", GATEWAY_PREFIX):
            raise BadRequest(
                "the address of Tollgate is not valid",
                hint="write http://127.0.0.1:4291 (admin address) or http://127.0.0.1:4290/- "
                "(gateway, with a caller's token)",
            )
        self.host: str = host
        self.is_gateway = prefix == GATEWAY_PREFIX
        if token is None and not self.is_gateway:  # the operator's token is not for the gateway
            token = os.environ.get("TOLLGATE_ADMIN_TOKEN")
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.port: int = port or (443 if self.tls else 4290 if self.is_gateway else 4291)
        self.prefix = prefix
        shown = f"[{host}]" if ":" in host else host
        #: for messages: without the token
        self.shown = f"{parts.scheme}://{shown}:{self.port}{prefix}"
        headers: Dict[str, str] = {"User-Agent": "tollgate-python"}
        if not self.is_gateway:
            headers["X-Tollgate-Admin"] = "1"
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            if not isinstance(token, (str, type(None))):
                raise ValueError
            self.head = common_head(f"{shown}:{self.port}", headers)
        except ValueError:
            raise BadRequest(
                "the token is not a text that can be sent", hint="is there a line break in it?"
            ) from None

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"
