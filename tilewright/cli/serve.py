"""`tilewright serve`: serve a language model with the endpoints of OpenAI's API."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.text import Text

from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.llm_options import LoraOption, ModelOptions, PathArgument, with_records
from tilewright.errors import InputError, MissingDependencyError

UVICORN_OPTIONS: dict[str, Any] = {
    "http": "h11", "ws": "none", "server_header": False, "timeout_keep_alive": 5,
    "h11_max_incomplete_event_size": 16 << 10,  # bytes of headers
    "log_level": "warning",
}  # fmt: skip

_WAITING = 2048  # connections that nobody has accepted yet
_ABSENT = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


@with_records
def serve(
    path: PathArgument,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on; other than loopback needs --key-file.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    key_file: Annotated[Path | None, typer.Option(help="A file of keys, one per line; each request must give one.")] = (
        None
    ),
    name: Annotated[str | None, typer.Option(help="Name of the model; by default the name of its folder.")] = None,
    embeddings: Annotated[Path | None, typer.Option(help="A BERT-like encoder for /v1/embeddings.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Most prompts running or waiting; further ones get 429.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="Most seconds for a request.")] = 600.0,
    otlp_traces_endpoint: Annotated[
        str | None, typer.Option(help="Send a span for each request to this URL, e.g. http://127.0.0.1:4318/v1/traces.")
    ] = None,
    options: ModelOptions,
    lora: LoraOption = None,
) -> None:
    """Serve a language model over HTTP: OpenAI's routes under /v1, a chat page at /, /health, /metrics."""
    from tilewright.llm.serve.keys import read_keys

    keys = read_keys(key_file)
    if not keys and not _is_own(host):
        raise wrong_usage(f"--host {host} can be reached from other machines: give --key-file, or keep to 127.0.0.1")
    if otlp_traces_endpoint is not None and not _is_address(otlp_traces_endpoint):
        raise wrong_usage(
            f"--otlp-traces-endpoint {otlp_traces_endpoint}: expected http:// or https://, a host and a path, such as "
            "http://127.0.0.1:4318/v1/traces"
        )
    try:
        import uvicorn
    except ImportError as error:
        raise MissingDependencyError("serving needs the package uvicorn: pip install 'tilewright[serve]'") from error
    from tilewright.llm.asynchronous import AsyncLLM
    from tilewright.llm.encoder import TextEncoder
    from tilewright.llm.serve.application import Application, Bounds
    from tilewright.llm.serve.tracing import OpenTelemetryTracing

    tracing = None if otlp_traces_endpoint is None else OpenTelemetryTracing.to(otlp_traces_endpoint)

    listeners = listen(host, port)  # before a model is opened, which takes a while
    model = AsyncLLM(path, **options.arguments(lora))
    model.llm.text_tokenizer  # noqa: B018  # raises why there is none
    if (name or path.resolve().name) in model.llm.engine.adapters:
        raise wrong_usage(f"--lora {name or path.resolve().name}: the model itself has this name")
    encoder = None if embeddings is None else TextEncoder(embeddings)
    bounds = Bounds(requests=requests, seconds=seconds)
    application = Application(model, name or path.resolve().name, keys, bounds, encoder, tracing)
    terminal(stderr=True).print(Text(f"serving {application.name} at http://{_in_url(host)}:{port}/v1", "dim"))
    uvicorn.Server(uvicorn.Config(application, **UVICORN_OPTIONS)).run(sockets=listeners)


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of a host; who connects waits until something answers.

    Raises `InputError` where the host has no address, or one of them is taken.
    """
    listeners: list[socket.socket] = []
    try:
        found = dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))
        for number, (family, kind, protocol, _, address) in enumerate(found, 1):
            try:
                listeners.append(_listener(family, kind, protocol, address))
            except OSError as error:  # a name may have an address of IPv6 on a machine without it
                if error.errno not in _ABSENT or (number == len(found) and not listeners):
                    raise
    except (OSError, UnicodeError) as error:
        for listener in listeners:
            listener.close()
        why = error.strerror if isinstance(error, OSError) else "not the name of a host"
        hint = "; another program has it, choose another --port" if _will_be_computed(error) else ""
        raise InputError(f"--host {host} --port {port}: cannot be listened on ({why}){hint}") from error
    return listeners


def _listener(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # the addresses of IPv4 have their own
        listener.bind(address)
        listener.listen(_WAITING)  # with SO_REUSEADDR, a port is taken from here on only
    except OSError:
        listener.close()
        raise
    return listener


def _will_be_computed(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_address(text: str) -> bool:
    """Whether a text is a URL over HTTP with a host, and a port that there can be."""
    try:
        found = urlsplit(text)
        return found.scheme in ("http", "https") and bool(found.hostname) and (found.port is None or found.port > 0)
    except ValueError:
        return False


def _is_own(host: str) -> bool:
    """Whether only this machine can reach an address."""
    from tilewright.llm.serve.local import is_loopback

    return is_loopback(host)
