"""`triton.knobs`: Triton's switches, mapped to settings and hooks of tilewright.

knobs.autotuning.print = True
with knobs.runtime.scope():                      # puts everything of the group back at its end
    knobs.runtime.interpret = True

Setting a switch that has an environment variable sets that too, so that processes started later agree.  Switches of
parts that tilewright does not have can be set and read, and change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilewright.launch import hooks
from tilewright.launch.hooks import CompileTimes, HookChain
from tilewright.settings import settings
from tilewright.shim import environment
from tilewright.shim.environment import folder, is_set

propagate_env = True  # whether setting a switch sets its environment variable


class Env:
    """Assigned to a switch: what the environment says."""


env = Env()


class Knob:
    """One switch of a group. Without `write` its value is kept in the group."""

    def __init__(
        self, read: Callable[[], Any], write: Callable[[Any], None] | None = None, variable: str | None = None
    ) -> None:
        self.read, self.write, self.variable = read, write, variable

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def key(self) -> str:
        """The switch's environment variable (Triton's name); empty when it has none."""
        return self.variable or ""

    def __get__(self, group: Any, owner: type | None = None) -> Any:
        if group is None:
            return self
        if self.name in group.__dict__:
            return group.__dict__[self.name]
        return self.read()

    def __set__(self, group: Any, value: Any) -> None:
        if isinstance(value, Env):
            self.__delete__(group)
            return
        if self.write is not None:
            group._defaults.setdefault(self.name, self.read())
            self.write(value)
        else:
            group.__dict__[self.name] = value
        if self.variable is not None and propagate_env and (value is None or isinstance(value, (bool, int, str))):
            set_variable(self.variable, value)

    def __delete__(self, group: Any) -> None:
        group.__dict__.pop(self.name, None)
        if self.write is not None and self.name in group._defaults:
            self.write(group._defaults.pop(self.name))


def set_variable(variable: str, value: bool | int | str | None) -> None:
    """Set an environment variable; None unsets it."""
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = str(int(value)) if isinstance(value, bool) else str(value)


def _setting(name: str, variable: str | None = None) -> Knob:
    """A switch that is a setting."""
    return Knob(lambda: getattr(settings, name), lambda value: setattr(settings, name, value), variable)


def env_bool(variable: str, default: bool | None = False) -> Knob:
    """A switch that an environment variable turns on or off."""
    return Knob(lambda: is_set(variable) if variable in os.environ else default, None, variable)


def env_opt_bool(variable: str) -> Knob:
    """The same; None where the variable is not set."""
    return env_bool(variable, None)


def env_str(variable: str, default: str | None = None) -> Knob:
    """A text that an environment variable gives."""
    return Knob(lambda: os.environ.get(variable, default), None, variable)


env_opt_str = env_str


def env_int(variable: str, default: int = 0) -> Knob:
    """A whole number that an environment variable gives; reading it raises `RuntimeError` for other text."""

    def read() -> int:
        text = os.environ.get(variable)
        try:
            return default if text is None else int(text)
        except ValueError as error:
            raise RuntimeError(f"{variable}={text!r}: expected a whole number") from error

    return Knob(read, None, variable)


def _without_effect(default: Any, variable: str | None = None) -> Knob:
    """A switch that nothing here depends on."""
    if variable is None:
        return Knob(lambda: default)
    if isinstance(default, bool):
        return env_bool(variable, default)
    return env_int(variable, default) if isinstance(default, int) else env_str(variable, default)


def _path(name: str, variable: str) -> Knob:
    """A switch that is a setting's folder, as text."""

    def read() -> str:
        value = getattr(settings, name)
        return str(value) if value is not None else ""

    return Knob(read, lambda value: setattr(settings, name, Path(value) if value else None), variable)


def _chain(chain: HookChain) -> Knob:
    """A switch that is a chain of hooks; a function assigned to it becomes the only one."""
    return Knob(lambda: chain, chain.replace)


class KnobGroup:
    """Switches that belong together."""

    def __init__(self) -> None:
        self._defaults: dict[str, Any] = {}

    @property
    def knob_descriptors(self) -> dict[str, Knob]:
        """The switches by name."""
        return {name: entry for name, entry in vars(type(self)).items() if isinstance(entry, Knob)}

    @property
    def knobs(self) -> dict[str, Any]:
        """Their values by name."""
        return {name: getattr(self, name) for name in self.knob_descriptors}

    def copy(self) -> KnobGroup:
        """A group with the same values; those that are settings are shared."""
        other = type(self)()
        other.__dict__.update({name: value for name, value in self.__dict__.items() if name != "_defaults"})
        return other

    def reset(self) -> KnobGroup:
        """Every switch back to what it was at first."""
        for entry in self.knob_descriptors.values():
            entry.__delete__(self)
        return self

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Put every switch, and its variable, back at the end of a `with` block."""
        saved, defaults = dict(self.__dict__), dict(self._defaults)
        written = {name: entry.read() for name, entry in self.knob_descriptors.items() if entry.write is not None}
        chains = {name: list(value.calls) for name, value in written.items() if isinstance(value, HookChain)}
        variables = {entry.variable for entry in self.knob_descriptors.values() if entry.variable is not None}
        environment = {variable: os.environ.get(variable) for variable in variables}
        try:
            yield
        finally:
            for name, value in written.items():
                if name in chains:
                    value.calls[:] = chains[name]
                else:
                    self.knob_descriptors[name].write(value)  # type: ignore[misc]
            self.__dict__.clear()
            self.__dict__.update(saved)
            self._defaults = defaults
            for variable, text in environment.items():
                set_variable(variable, text)


base_knobs = KnobGroup  # Triton's name


class CacheKnobs(KnobGroup):
    home_dir = Knob(lambda: os.environ.get("TRITON_HOME") or str(Path.home()), None, "TRITON_HOME")
    dir = _path("cache_directory", "TRITON_CACHE_DIR")
    dump_dir = Knob(lambda: str(folder("TRITON_DUMP_DIR", "dump")), None, "TRITON_DUMP_DIR")
    override_dir = Knob(lambda: str(folder("TRITON_OVERRIDE_DIR", "override")), None, "TRITON_OVERRIDE_DIR")
    manager_class = _without_effect(None)
    remote_manager_class = _without_effect(None)

    def get_triton_dir(self, name: str) -> str:
        """A folder of Triton's."""
        return os.path.join(self.home_dir, ".triton", name)


def _dump(value: bool) -> None:
    settings.dump_directory = Path(cache.dump_dir) if value else None


class CompilationKnobs(KnobGroup):
    override = _without_effect(False, "TRITON_KERNEL_OVERRIDE")
    dump_ir = Knob(lambda: settings.dump_directory is not None, _dump, "TRITON_KERNEL_DUMP")
    store_binary_only = _without_effect(False, "TRITON_STORE_BINARY_ONLY")
    always_compile = _setting("always_compile", "TRITON_ALWAYS_COMPILE")
    use_ir_loc = _without_effect(None, "USE_IR_LOC")
    enable_asan = _without_effect(False, "TRITON_ENABLE_ASAN")
    disable_line_info = _without_effect(False, "TRITON_DISABLE_LINE_INFO")
    front_end_debugging = _without_effect(False, "TRITON_FRONT_END_DEBUGGING")
    allow_non_constexpr_globals = _without_effect(True, "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS")
    instrumentation_mode = _without_effect("", "TRITON_INSTRUMENTATION_MODE")
    enable_experimental_consan = _without_effect(False, "TRITON_ENABLE_EXPERIMENTAL_CONSAN")
    fpsan_homomorphic_casts = _without_effect(False, "TRITON_FPSAN_HOMOMORPHIC_CASTS")
    dump_ir_extract_di_local_variables = _without_effect(False, "LLVM_EXTRACT_DI_LOCAL_VARIABLES")
    listener = Knob(lambda: hooks.compilation.listener, lambda value: setattr(hooks.compilation, "listener", value))


class AutotuningKnobs(KnobGroup):
    cache = _without_effect(True, "TRITON_CACHE_AUTOTUNING")
    print = _setting("print_autotuning", "TRITON_PRINT_AUTOTUNING")
    listener = Knob(lambda: hooks.tuning.listener, lambda value: setattr(hooks.tuning, "listener", value))


class RuntimeKnobs(KnobGroup):
    interpret = _setting("interpret", "TRITON_INTERPRET")
    debug = _setting("debug", "TRITON_DEBUG")
    override_arch = _without_effect(None, "TRITON_OVERRIDE_ARCH")
    launch_enter_hook = _chain(hooks.launch_enter)
    launch_exit_hook = _chain(hooks.launch_exit)
    kernel_load_start_hook = _chain(hooks.load_start)
    kernel_load_end_hook = _chain(hooks.load_end)
    kernel_unload_hook = _without_effect(HookChain())
    jit_cache_hook = Knob(lambda: hooks.compilation.before, lambda value: setattr(hooks.compilation, "before", value))
    jit_post_compile_hook = Knob(
        lambda: hooks.compilation.after, lambda value: setattr(hooks.compilation, "after", value)
    )
    add_stages_inspection_hook = _without_effect(None)


class LanguageKnobs(KnobGroup):
    fp32_default = _without_effect(None, "TRITON_F32_DEFAULT")
    default_fp_fusion = _without_effect(True, "TRITON_DEFAULT_FP_FUSION")
    force_disable_fp_fusion = _without_effect(False, "TRITON_FORCE_DISABLE_FP_FUSION")


class BuildKnobs(KnobGroup):
    cc = _without_effect(None, "CC")
    cudacrt_path = _without_effect(None, "TRITON_CUDACRT_PATH")
    cudart_path = _without_effect(None, "TRITON_CUDART_PATH")
    impl = _without_effect(None)
    backend_dirs: set[str] = set()


class NvidiaKnobs(KnobGroup):
    dump_nvptx = _without_effect(False, "NVPTX_ENABLE_DUMP")
    disable_ptxas_opt = _without_effect(False, "DISABLE_PTXAS_OPT")
    ptxas_options = _without_effect(None, "PTXAS_OPTIONS")
    mock_ptx_version = _without_effect(None, "TRITON_MOCK_PTX_VERSION")
    dump_ptxas_log = _without_effect(False, "TRITON_DUMP_PTXAS_LOG")
    libdevice_path = _without_effect(None, "TRITON_LIBDEVICE_PATH")
    libcuda_path = _without_effect(None, "TRITON_LIBCUDA_PATH")


class AmdKnobs(KnobGroup):
    use_buffer_ops = _without_effect(True, "AMDGCN_USE_BUFFER_OPS")
    use_buffer_atomics = _without_effect(True, "AMDGCN_USE_BUFFER_ATOMICS")
    dump_amdgcn = _without_effect(False, "AMDGCN_ENABLE_DUMP")
    use_block_pingpong = env_opt_bool("TRITON_HIP_USE_BLOCK_PINGPONG")
    use_in_thread_transpose = env_opt_bool("TRITON_HIP_USE_IN_THREAD_TRANSPOSE")
    use_async_copy = env_opt_bool("TRITON_HIP_USE_ASYNC_COPY")
    scalarize_packed_fops = _without_effect(False, "AMDGCN_SCALARIZE_PACKED_FOPS")
    libhip_path = _without_effect(None, "TRITON_LIBHIP_PATH")


class ProtonKnobs(KnobGroup):
    disable = _without_effect(True, "TRITON_PROTON_DISABLE")


class RedisKnobs(KnobGroup):
    key_format = _without_effect("triton:{key}:{filename}", "TRITON_REDIS_KEY_FORMAT")
    host = _without_effect("localhost", "TRITON_REDIS_HOST")
    port = _without_effect(6379, "TRITON_REDIS_PORT")


build = BuildKnobs()
redis = RedisKnobs()
cache = CacheKnobs()
compilation = CompilationKnobs()
autotuning = AutotuningKnobs()
runtime = RuntimeKnobs()
language = LanguageKnobs()
nvidia = NvidiaKnobs()
amd = AmdKnobs()
proton = ProtonKnobs()


def refresh_knobs() -> None:
    """Read the environment again, for variables that were changed since."""
    environment.restore()
    environment.apply()


__all__ = [
    "CompileTimes", "Env", "KnobGroup", "HookChain", "amd", "autotuning", "base_knobs", "build", "cache", "compilation",
    "env", "language", "nvidia", "propagate_env", "proton", "redis", "refresh_knobs", "runtime", "set_variable",
]  # fmt: skip
