"""The supported modules and names of Triton, and their places in tilewright.

`ALIASES` are modules of tilewright under another name; `NAME_TABLES` modules made of names found elsewhere
("module:attribute"); `ABSENT_NAMES` what cannot be here, with what to use instead.
"""

from __future__ import annotations

TRITON_VERSION = "3.9.0"  # the release whose names the language has

_TUNER = "tilewright.launch.autotune"
_INFO = "tilewright.launch.kernel_info"
_JIT = "tilewright.launch.jit"
_WRAPPERS = "tilewright.launch.wrappers"
_ERRORS = "tilewright.errors"
_LANGUAGE = "tilewright.language"
_DRIVER = "tilewright.launch.driver"
_COMPILER = "tilewright.shim.compiler"
_CACHE = "tilewright.shim.cache"
_BACKENDS = "tilewright.shim.backends"

ALIASES = {
    "triton.language": "tilewright.language",
    "triton.language.core": "tilewright.language.core",
    "triton.language.math": "tilewright.language.math",
    "triton.language.random": "tilewright.language.random",
    "triton.language.standard": "tilewright.language.standard",
    "triton.language.target_info": "tilewright.language.target_info",
    "triton.language.extra": "tilewright.language.extra",
    "triton.language.extra.libdevice": "tilewright.language.extra.libdevice",
    "triton.language.extra.cuda": "tilewright.language.extra.cuda",
    "triton.language.extra.hip": "tilewright.language.extra.hip",
    "triton.language.extra.cuda.libdevice": "tilewright.language.extra.libdevice",
    "triton.language.extra.hip.libdevice": "tilewright.language.extra.libdevice",
    "triton.testing": "tilewright.testing",
    "triton.knobs": "tilewright.shim.knobs",
    "triton.profiler": "tilewright.shim.profiler",
    "triton.runtime.cache": _CACHE,
    "triton._utils": "tilewright.shim.utilities",
    "triton.tools.mxfp": "tilewright.shim.mxfp",
    "triton.tools.disasm": "tilewright.shim.disasm",
    "triton.tools.ragged_tma": "tilewright.shim.ragged_tma",
}


def _from(module: str, *names: str, **renamed: str) -> dict[str, str]:
    """Names of a module, and others under a different name there."""
    return {name: f"{module}:{found}" for name, found in {**dict(zip(names, names, strict=True)), **renamed}.items()}


_AUTOTUNER = {
    **_from(_TUNER, "Autotuner", "Config", "autotune"),
    **_from("tilewright.launch.heuristics", "Heuristics", "heuristics"),
}
_KERNELS = {
    **_from(_JIT, "JITFunction", "jit", JITCallable="JITFunction"),
    **_from("tilewright.shim.interface", "KernelInterface"),
    **_from(_INFO, "KernelParam", "JitFunctionInfo"),
    **_from(_WRAPPERS, "MockTensor", "TensorWrapper", "reinterpret"),
    **_from("tilewright.language.types", "constexpr_function", "ConstexprFunction"),
}
_RUNTIME_ERRORS = {
    **_from(_ERRORS, "AutotunerError", "OutOfResources", TritonError="TilewrightError"),
    **_from(_ERRORS, InterpreterError="ExecutionError", PTXASError="DeviceError"),
}
_COMPILER_ERRORS = _from(
    _ERRORS,
    "CompilationError",
    CompileTimeAssertionFailure="CompilationError",
    UnsupportedLanguageConstruct="CompilationError",
)
_COMPILED = {
    **_from("tilewright.shim.compiled", CompiledKernel="CompiledSource"),
    **_from("tilewright.launch.hooks", LazyDict="LaunchFacts"),
    **_from(_COMPILER, "ASTSource", "IRSource", "compile", "make_backend", "max_shared_mem"),
    **_from(_CACHE, "get_cache_key", "triton_key"),
}
_BACKGROUND = _from("tilewright.launch.background", "AsyncCompileMode", "FutureKernel")
_SIZES = _from("tilewright.launch.sizes", "cdiv", "next_power_of_2")
_ALLOCATOR = _from(_DRIVER, "set_allocator")
_TARGET = {**_from(_DRIVER, "GPUTarget"), **_from(_BACKENDS, "BaseBackend", "Language")}
_DESCRIPTOR = _from("tilewright.launch.descriptor", "TensorDescriptor")

NAME_TABLES: dict[str, dict[str, str]] = {
    "triton": {
        **_AUTOTUNER, **_KERNELS, **_COMPILER_ERRORS, **_RUNTIME_ERRORS, **_SIZES, **_ALLOCATOR, **_BACKGROUND,
        **_from(_COMPILER, "compile"),
        **_from("tilewright.language.aggregate", "aggregate"),
        **_from("tilewright.language.function", "must_use_result"),
    },
    "triton.errors": _from(_ERRORS, TritonError="TilewrightError"),
    "triton.runtime": {
        **_AUTOTUNER, **_RUNTIME_ERRORS,
        **{name: place for name, place in _KERNELS.items() if name != "jit"},  # the module has this name
        **_from(_DRIVER, "driver"),
        **_from(_CACHE, "RemoteCacheBackend", "RedisRemoteCacheBackend"),
    },
    "triton.runtime.autotuner": {**_AUTOTUNER, **_RUNTIME_ERRORS},
    "triton.runtime.jit": {
        **_KERNELS,
        **_from("tilewright.shim.utilities", "type_canonicalisation_dict", "canonicalize_dtype"),
        **_from(
            "tilewright.shim.sources", "DependenciesFinder", "T", "convert_to_tuple_if_list", "get_full_name",
            "get_jit_fn_file_line",
        ),
        **_from(_COMPILER, "mangle_type"),
        **_DESCRIPTOR,
    },
    "triton.runtime.errors": _RUNTIME_ERRORS,
    "triton.runtime.driver": _from(_DRIVER, "driver", "DriverConfig"),
    "triton.runtime.interpreter": {
        **_from(_JIT, InterpretedFunction="JITFunction"),
        **_from(_ERRORS, InterpreterError="ExecutionError"),
    },
    "triton.runtime._allocation": _from(
        _DRIVER, "set_allocator", "NullAllocator", "Allocator", Buffer="AllocatedMemory"
    ),
    "triton.runtime._async_compile": {**_BACKGROUND, **_from("tilewright.launch.background", "active_mode")},
    "triton.compiler": {**_COMPILED, **_COMPILER_ERRORS},
    "triton.compiler.compiler": {**_COMPILED, **_COMPILER_ERRORS, **_TARGET, **_RUNTIME_ERRORS},
    "triton.compiler.errors": _COMPILER_ERRORS,
    "triton.backends": _from(_BACKENDS, "backends", "BaseBackend", "DriverBase", Backend="CompilerAndDriver"),
    "triton.backends.compiler": _TARGET,
    "triton.backends.driver": _from(_BACKENDS, "DriverBase", "Benchmarker", GPUDriver="DriverBase"),
    "triton.tools": {},
    "triton.tools.tensor_descriptor": _DESCRIPTOR,
    "triton.tools.experimental_descriptor": _DESCRIPTOR,
}  # fmt: skip

_GLUON = "Gluon's layouts are not here; write the kernel in triton.language, or in tilewright.language.explicit"
ABSENT_NAMES = {
    "triton._C": "tilewright is Python and has no compiled library; texts of a kernel are in compiled.asm",
    "triton.experimental": _GLUON,
    "triton.language.semantic": "rules of the language are in tilewright.language.semantic",
    "triton.ops": "Triton itself has removed it; tilewright.library has matrix products, attention and more",
    "triton.compiler.code_generator": "kernels are read by tilewright.frontend.tracer; JITFunction.trace gives the IR",
    "triton.compiler.make_launcher": "nothing is compiled to launch a kernel",
    "triton.runtime.jit.create_specialize_impl": "kernel.trace and kernel.warmup tell what a call specialises on",
    "triton.runtime.build": "no C compiler is used; tilewright.launch.ahead writes objects with a C header",
    "triton.backends.nvidia": "the target is tilewright.targets.nvidia; GPUTarget('cuda', 90, 32) compiles for it",
    "triton.backends.amd": "there is no AMD target yet",
    "triton.tools.compile": "tilewright compile writes an object file with a C header",
    "triton.tools.link": "one object holds each kernel; call the functions that its header declares",
    "triton.tools.build_extern": "tilewright.language.extra.libdevice has the functions for every target",
    "triton.tools.gsan": "TILEWRIGHT_INTERPRET=check finds races, and more",
    "triton.tools.triton_to_gluon_translator": _GLUON,
    "triton._internal_testing": "it belongs to Triton's tests; run those from a checkout",
    "triton._filecheck": "it belongs to Triton's tests; run those from a checkout",
}
