"""Names beyond the core of the language, such as `libdevice`."""

from tilewright.language.extra import cuda, hip, libdevice

__all__ = ["cuda", "hip", "libdevice"]
