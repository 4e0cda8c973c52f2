"""Launches of explicit kernels on arrays: what a kernel is given, once, for the launcher and for the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, Union

from tilewright.launch.descriptor import TensorDescriptor
from tilewright.launch.jit import JITFunction
from tilewright.library.hopper import Parameters
from tilewright.measure import timers
from tilewright.ops.arrays import ArrayView
from tilewright.ops.calls import bound
from tilewright.settings import settings


class TiledView(NamedTuple):
    """An array that a kernel moves in tiles, whose size is the property `block` of its config; `rounded`: float32
    elements become tf32 on their way."""

    found: ArrayView
    block: str
    rounded: bool = False


Argument = Union[ArrayView, TiledView, int, float]  # arrays that are no tiles are pointers to their first element


def tiled_views(parameters: Parameters, *found: ArrayView, rounded: Container[str] = ()) -> list[TiledView]:
    """The arrays that a kernel's first parameters move in tiles; those `rounded`, by name, become tf32 on their way."""
    tiled = zip(found, parameters.tiled.items(), strict=True)
    return [TiledView(each, block, name in rounded) for each, (name, (block, _)) in tiled]


def pointer_types(arguments: Sequence[Argument]) -> tuple[str, ...]:
    """The types of an epilogue's operands."""
    return tuple(map(_type, arguments))


def _type(argument: Argument) -> str:
    if isinstance(argument, float):
        return "f32"
    return f"*k {argument.element}" if isinstance(argument, ArrayView) else "i32"


def slots(arguments: Sequence[Argument]) -> list[Any]:
    """What a launcher takes (`runtime.cuda.launch`)."""
    return [
        (argument[0].address, argument[0].shape, argument[0].strides, argument[2])
        if type(argument) is TiledView
        else argument.address
        if type(argument) is ArrayView
        else argument
        for argument in arguments
    ]


def launch_on_any_stream(
    start: Callable[..., None], grid: tuple[int, int, int], arguments: Sequence[Argument], owner: object
) -> timers.Launch:
    """A launch that is given its stream, as trials take it; it keeps `owner`, which has the arrays, alive."""
    given = slots(arguments)

    def launch(stream: int) -> None:
        start(*grid, stream, *given)

    launch.operands = owner  # type: ignore[attr-defined]
    return launch


def bound_launch(
    kernel: JITFunction, config: Any, start: Callable[[], Callable[..., None]], grid: tuple[int, int, int],
    arguments: Sequence[Argument], views: Sequence[ArrayView], stored: Sequence[ArrayView],
    before: Callable[[int], None] | None = None,
) -> Callable[[], Any]:  # fmt: skip
    """A launch of a kernel with a `CONFIG` on arrays, all of `views`, of which it stores to those of `stored`; `start`
    gives the compiled one's on their GPU, and `before` is called with the stream."""
    if settings.interpret:
        given = [_interpreted(argument, config) for argument in arguments]
        return lambda: kernel[grid](*given, CONFIG=config)
    return bound(start(), grid, slots(arguments), views, [found.base for found in stored], before)


def _interpreted(argument: Argument, config: Any) -> Any:
    if isinstance(argument, TiledView):
        found, block, rounded = argument
        tile = getattr(config, block)
        return TensorDescriptor(found.base, found.shape, found.strides, tile, round_f32_to_tf32=rounded)
    return argument.base if isinstance(argument, ArrayView) else argument
