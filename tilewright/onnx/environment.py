"""Functions of ONNX Runtime's Python interface about the process and the library, not about a session."""

from __future__ import annotations

from tilewright import __version__
from tilewright.runtime.session import check_threads
from tilewright.settings import settings

_PROVIDERS = "providers are 'cpu' and 'cuda', and there are no plug-ins: name one in InferenceSession(providers=...)"
_ADAPTERS = "give the adapter's tensors as inputs of the run, or merge them into the weights"
_EPCONTEXT = "tilewright writes its own files of compiled models: session.engine.save(path)"
_ALLOCATORS = "tilewright allocates memory itself; outputs go to given memory by IOBinding"
# Why there is no counterpart of a name of ONNX Runtime's, and what to use instead.
ABSENT_FEATURES = {
    "AdapterFormat": _ADAPTERS,
    "LoraAdapter": _ADAPTERS,
    "ModelCompiler": _EPCONTEXT,
    "ModelPackage": _EPCONTEXT,
    "ModelPackageComponentContext": _EPCONTEXT,
    "ModelPackageContext": _EPCONTEXT,
    "ModelPackageOptions": _EPCONTEXT,
    "ModelPackageWriteMode": _EPCONTEXT,
    "OrtCompileApiFlags": _EPCONTEXT,
    "OrtEpContextData": _EPCONTEXT,
    "OrtEpContextDataBuffer": _EPCONTEXT,
    "OrtExternalInitializerInfo": _EPCONTEXT,
    "OrtArenaCfg": _ALLOCATORS,
    "create_and_register_allocator": _ALLOCATORS,
    "create_and_register_allocator_v2": _ALLOCATORS,
    "OrtEpAssignedNode": "one provider runs the whole model",
    "OrtEpAssignedSubgraph": "one provider runs the whole model",
    "OrtEpDevice": _PROVIDERS,
    "OrtDeviceVendorId": _PROVIDERS,
    "OrtExecutionProviderDevicePolicy": _PROVIDERS,
    "OrtHardwareDevice": _PROVIDERS,
    "OrtHardwareDeviceType": _PROVIDERS,
    "get_ep_devices": _PROVIDERS,
    "register_execution_provider_library": _PROVIDERS,
    "unregister_execution_provider_library": _PROVIDERS,
    "OrtSparseFormat": "sparse tensors are not taken as inputs: give dense arrays",
    "OrtSyncStream": "a run uses the current stream of the tensors that it is given",
    "SessionIOBinding": "use InferenceSession.io_binding()",
    "import_capi_exception": "there is no compiled module that could fail to load",
    "package_name": "the package is tilewright",
    "version": "use tilewright.onnx.get_version_string()",
    "cuda_version": "the CUDA driver alone is used: tilewright.onnx.get_device() says whether there is one",
    "print_debug_info": "run `tilewright doctor`",
    "set_default_logger_callback": "messages go to the logger 'tilewright' of Python's logging: add a handler to it",
}


def set_default_logger_verbosity(verbosity: int) -> None:
    """Does nothing: the severity alone decides what is logged."""


def get_version_string() -> str:
    """The version of tilewright."""
    return __version__


def get_build_info() -> str:
    """The library's name and version."""
    return f"tilewright {__version__}"


def enable_telemetry_events() -> None:
    """Does nothing: tilewright never sends anything."""


def disable_telemetry_events() -> None:
    """Does nothing: tilewright never sends anything."""


def has_collective_ops() -> bool:
    """False: no operation spans several processes."""
    return False


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Does nothing: the driver's library is loaded when a GPU is first used, and no others are."""


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """The threads of the process's runs whose session does not say how many: `tilewright.settings.threads`."""
    if intra_op_num_threads:
        settings.threads = check_threads(intra_op_num_threads)
