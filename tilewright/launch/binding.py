"""Generates the Python function that launches one kernel.

`kernel[grid](...)` binds arguments, finds what each is specialised on, looks the signature up and runs it.
A loop over the parameters would cost more than many kernels run; so the steps are written out for the kernel's
own parameters, and Python's call binds them.  For ``def scale(x, n, BLOCK: tl.constexpr)``, in short:

    def scale(_grid, /, x=_missing, n=_missing, BLOCK=_missing, *_rest, **_options):
        try:
            _type = type(x)                            # the class and the slot value of each run-time argument
            if _type is int: ...
            elif _type in _tensors and x.is_cpu: ...
            elif _type is _array and ...
            else: _c0, _s0 = _classify(x)              # whatever is rarer
            ...
            _type = type(BLOCK)                        # the key of each compile-time argument
            _c2 = BLOCK if _type in _plain else (bool, BLOCK) if _type is bool else _constant_key(BLOCK)
        except Exception as error:
            raise _owner._argument_error((x, n, BLOCK), _options, _rest, error) from None
        _mode = _settings.interpret or (_settings.check_bounds and 'check_bounds')
        _key = (_options_key(_options, _rest) if _options or _rest else _default, _mode, _c0, _c1, _c2)
        _launch = _launches.get(_key)
        if _launch is None or (_watched and _changed()):
            _launch = _owner._prepare(_key, (x, n, BLOCK), _options)
        return _launch.run(_grid, (x, n, BLOCK), (_s0, _s1, None))

All of it stands in a ``try`` that takes tilewright's own frames off the errors that tell what users did wrong.
Every name but the kernel's parameters begins with ``_tw_``, so that parameters may be called `type` or `id`.
"""

from __future__ import annotations

import ctypes
import linecache
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.language.function import ParameterInfo
from tilewright.launch import arguments
from tilewright.runtime.memory import ADDRESS_OFFSET
from tilewright.settings import settings


def mode_now() -> bool | str:
    """How kernels run, as the settings say and keys of launches have it: another mode is another signature."""
    return settings.interpret or (settings.check_bounds and "check_bounds")


class MissingArgument:
    """The value of a parameter that was given none."""

    def __repr__(self) -> str:
        return "no value"


MISSING = MissingArgument()
PLAIN_CLASSES = frozenset((int, str))  # constants that are their own key: no other key is equal to them

_RUN_TIME = """\
        _tw_t = _tw_type({value})
        if _tw_t is _tw_int:
            _tw_c{i} = _tw_int32[{value} & 15] if {value} != 1 and -2147483648 <= {value} <= 2147483647 \
else _tw_wide({value})[0]
            _tw_s{i} = {value}
        elif _tw_t in _tw_tensors and {value}.is_cpu and (_tw_s{i} := {value}.data_ptr()):
            _tw_c{i} = _tw_torch_classes[{value}.dtype][_tw_s{i} & 15 != 0]
        elif _tw_t in _tw_tensors and {value}.is_cuda and (_tw_s{i} := {value}.data_ptr()):
            _tw_c{i} = _tw_cuda_classes[{value}.get_device()][{value}.dtype][_tw_s{i} & 15 != 0]
        elif _tw_t is _tw_array and (_tw_s{i} := {address}) and not _tw_s{i} & 15:
            _tw_c{i} = _tw_array_classes({value}.dtype)[0]
        else:
            _tw_c{i}, _tw_s{i} = _tw_classify({value})
"""
_REST = """\
        _tw_c{i}, _tw_s{i} = _tw_classify({value}) if {value} else _tw_nothing
"""
_CONSTANT = """\
        _tw_t = _tw_type({value})
        _tw_c{i} = {value} if _tw_t in _tw_plain else (_tw_bool, {value}) if _tw_t is _tw_bool \
else _tw_constant_key({value})
"""
_RULE = """\
        _tw_c{i} = _tw_rule{i}(_tw_c{i}, {value})
"""
_END = """\
    except _tw_Exception as _tw_error:
        raise _tw_owner._argument_error(({values}), _tw_options, _tw_rest, _tw_error) from None
    _tw_key = (_tw_options_key(_tw_options, _tw_rest) if _tw_options or _tw_rest else _tw_default_options, \
_tw_settings.interpret or (_tw_settings.check_bounds and 'check_bounds'), {classes})
    _tw_launch = _tw_launches.get(_tw_key)
    if _tw_launch is None or (_tw_watched and _tw_changed()):
        _tw_launch = _tw_owner._prepare(_tw_key, ({values}), _tw_options)
    if _tw_type(_tw_grid) is not _tw_tuple and _tw_callable(_tw_grid):
        _tw_grid = _tw_grid({{{named}}})
    return _tw_launch.run(_tw_grid, ({values}), ({slots}))
"""
_LAST = """\
    except _tw_Error as _tw_error:
        _tw_error.__traceback__ = None
        raise
"""


def _address_source() -> str:
    """Source of an array's address, as `runtime.memory.array_address` finds it."""
    if ADDRESS_OFFSET is None:
        return '{value}.__array_interface__["data"][0]'
    return f"(_tw_from_address(_tw_id({{value}}) + {ADDRESS_OFFSET}).value or 0)"


_ADDRESS = _address_source()
_COMMON: dict[str, Any] = {
    "missing": MISSING,
    "plain": PLAIN_CLASSES,
    "type": type,
    "int": int,
    "bool": bool,
    "id": id,
    "tuple": tuple,
    "callable": callable,
    "Exception": Exception,
    "Error": TilewrightError,
    "rest": (),  # of a kernel that takes all of them
    "array": np.ndarray,
    "from_address": ctypes.c_void_p.from_address,
    "settings": settings,
    "classify": arguments.classify,
    "nothing": arguments.classify(()),
    "int32": arguments.INT32,
    "wide": arguments.classify_int,
    "tensors": arguments.TENSOR_TYPES,
    "torch_classes": arguments.TORCH_CLASSES,
    "cuda_classes": arguments.CUDA_CLASSES,
    "array_classes": arguments.pointer_classes,
}


def generate(owner: Any, names: Mapping[str, Any]) -> Callable[..., Any]:
    """The launch function of a kernel (a `JITFunction`): its first argument is the grid, then come the kernel's,
    and options of the launch by keyword.  `names` are what the source refers to besides `_COMMON`.
    """
    parameters: tuple[ParameterInfo, ...] = owner.parameters
    bound = {**_COMMON, **names, "owner": owner}
    function = owner.name if owner.name.isidentifier() else "launch"
    lines = ["    try:\n        pass\n"]
    for index, (parameter, rule) in enumerate(zip(parameters, owner.rules, strict=True)):
        value = parameter.name
        if parameter.has_default:
            bound[f"default{index}"] = parameter.default
        if parameter.constexpr:
            lines.append(_CONSTANT.format(i=index, value=value))
            continue
        if parameter.kind == "variadic":
            lines.append(_REST.format(i=index, value=value))
        else:
            lines.append(_RUN_TIME.format(i=index, value=value, address=_ADDRESS.format(value=value)))
        if rule is not None:
            lines.append(_RULE.format(i=index, value=value))
            bound[f"rule{index}"] = rule
    pieces = {
        "values": "".join(f"{entry.name}, " for entry in parameters),
        "classes": "".join(f"_tw_c{index}, " for index in range(len(parameters))),
        "slots": "".join("None, " if entry.constexpr else f"_tw_s{index}, " for index, entry in enumerate(parameters)),
        "named": ", ".join(f"{entry.name!r}: {entry.name}" for entry in parameters),
    }
    lines.append(_END.format(**pieces))
    file = f"<launch {owner.__module__}.{owner.__qualname__} {id(owner):x}>"
    head = f"def {function}({_parameter_list(parameters)}):\n    try:\n"
    source = head + textwrap.indent("".join(lines), "    ") + _LAST
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space = {f"_tw_{name}": value for name, value in bound.items()}
    exec(compile(source, file, "exec"), space)
    generated: Callable[..., Any] = space[function]
    return generated


def _parameter_list(parameters: tuple[ParameterInfo, ...]) -> str:
    """Every parameter may be left out, so that the kernel itself says what is missing."""
    plain, rest = ["_tw_grid", "/"], "*_tw_rest"
    keyword: list[str] = []
    for index, parameter in enumerate(parameters):
        if parameter.kind == "variadic":
            rest = f"*{parameter.name}"
            continue
        default = f"_tw_default{index}" if parameter.has_default else "_tw_missing"
        (plain if parameter.kind == "plain" else keyword).append(f"{parameter.name}={default}")
    return ", ".join([*plain, rest, *keyword, "**_tw_options"])
