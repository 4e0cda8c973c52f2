"""Names beyond the core of the language; `libdevice` is the one that kernels in the wild import."""

from tilewright.language.extra import libdevice

__all__ = ["libdevice"]
