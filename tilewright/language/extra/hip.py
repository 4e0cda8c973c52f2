"""`libdevice` under the name that kernels written for one vendor import."""

from tilewright.language.extra import libdevice

__all__ = ["libdevice"]
