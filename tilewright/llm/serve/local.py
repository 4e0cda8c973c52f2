"""The rules of a server without keys: only requests from programs on this machine, none from another site's page.

A browser sends to any address what a page wants: by a name that leads here (DNS rebinding), or as a form.  The first
shows in `Host`, the second in `Origin` and in a body that is not declared as JSON.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from tilewright.llm.serve.protocol import Refused


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_local(method: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises `Refused` for headers of a request that only a server with keys takes."""
    found = {name.lower().decode("latin-1"): value.decode("latin-1").strip() for name, value in headers}
    host, origin = found.get("host"), found.get("origin")
    if host is not None and not is_loopback(_name(host)):
        raise Refused(403, "a server without keys answers to localhost, 127.0.0.1 and ::1 only")
    if origin is not None and origin.lower() not in {f"{scheme}://{host}".lower() for scheme in ("http", "https")}:
        raise Refused(403, "a server without keys takes nothing from pages of others")
    if method == "POST" and found.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the body is JSON: content-type is application/json")


def _name(host: str) -> str:
    """A host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
