"""`tilewright serve`: a language model behind the endpoints of OpenAI's API."""

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


@with_records
def serve(
    path: PathArgument,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on; others than this machine's need keys.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    key_file: Annotated[Path | None, typer.Option(help="A file of keys, one a line, of which a request needs one.")] = (
        None
    ),
    name: Annotated[str | None, typer.Option(help="What the model is called; by default its folder.")] = None,
    embeddings: Annotated[Path | None, typer.Option(help="An encoder of the BERT family, for /v1/embeddings.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Prompts that are read, worked on or wait; more get 429.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="A request ends after this time.")] = 600.0,
    otlp_traces_endpoint: Annotated[
        str | None, typer.Option(help="Send a span of each request there, such as http://127.0.0.1:4318/v1/traces.")
    ] = None,
    options: ModelOptions,
    lora: LoraOption = None,
) -> None:
    """Serve a language model over HTTP: OpenAI's routes under /v1, a page at /, /health, /metrics."""
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

    listener = _listener(host, port)  # before a model is opened, which takes a while
    model = AsyncLLM(path, **options.arguments(lora))
    model.llm.text_tokenizer  # noqa: B018  # raises why there is none
    if (name or path.resolve().name) in model.llm.engine.adapters:
        raise wrong_usage(f"--lora {name or path.resolve().name}: the model itself has this name")
    encoder = None if embeddings is None else TextEncoder(embeddings)
    bounds = Bounds(requests=requests, seconds=seconds)
    application = Application(model, name or path.resolve().name, keys, bounds, encoder, tracing)
    terminal(stderr=True).print(Text(f"serving {application.name} at http://{host}:{port}/v1", "dim"))
    uvicorn.Server(uvicorn.Config(application, **UVICORN_OPTIONS)).run(sockets=[listener])


def _listener(host: str, port: int) -> socket.socket:
    """A socket that has the address, on which nothing is answered yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        hint = "; another program has it, choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise InputError(f"--host {host} --port {port}: cannot be listened on ({error.strerror}){hint}") from error
    return listener


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
