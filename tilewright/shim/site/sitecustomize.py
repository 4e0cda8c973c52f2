"""Read by Python processes that have this folder on PYTHONPATH: installs the shim where TILEWRIGHT_SHIM=1 asks for it.

The process's own `sitecustomize`, which this one hides, runs afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("TILEWRIGHT_SHIM") == "1":
    if importlib.util.find_spec("tilewright") is None:  # the parent found it in its working directory, say
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_here))))
    try:
        from tilewright import shim
    except ImportError:
        print("TILEWRIGHT_SHIM=1: tilewright is not on this Python's path", file=sys.stderr)
    else:
        shim.install()

for _folder in sys.path:
    _file = os.path.join(_folder, "sitecustomize.py")
    if os.path.abspath(_folder) != _here and os.path.isfile(_file):
        _spec = importlib.util.spec_from_file_location("sitecustomize", _file)
        if _spec is not None and _spec.loader is not None:
            _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
        break
