"""Names beyond the core of the language; `libdevice` is the one that kernels in the wild import."""

from tilewright.language.extra import cuda, hip, libdevice

__all__ = ["cuda", "hip", "libdevice"]
