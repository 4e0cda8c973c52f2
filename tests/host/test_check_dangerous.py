"""The check of `make check` that finds data run as code."""

from __future__ import annotations

import pytest

from tools.check_dangerous import ALLOWED, uses


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pickle", "pickle"),
        ("import pickle as p\np.loads(b'')", "pickle"),
        ("from pickle import loads", "pickle"),
        ("from _pickle import *", "_pickle"),
        ("import marshal, os", "marshal"),
        ("import dill.session", "dill"),
        ("import importlib\nimportlib.import_module('cloudpickle')", "cloudpickle"),
        ("from importlib import import_module as get\nget('shelve')", "shelve"),
        ("import importlib\nimportlib.import_module(name)", "import_module of a name"),
        ("eval('1')", "eval"),
        ("run = exec", "exec"),
        ("list(map(eval, texts))", "eval"),
        ("import builtins\nbuiltins.exec('1')", "exec"),
        ("compile(source, 'a', 'exec')", "compile"),
        ("__import__('os')", "__import__"),
        ("import torch\ntorch.load(path)", "torch.load"),
        ("import torch as t\nt.load(path, weights_only=True)", "torch.load"),
        ("from torch import load as read\nread(path)", "torch.load"),
        ("import torch\ntorch.jit.load(path)", "torch.jit.load"),
        ("from torch import export\nexport.load(path)", "torch.export.load"),
        ("from yaml import unsafe_load", "yaml.unsafe_load"),
        ("import yaml\nyaml.load(text)", "yaml.load"),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", "allow_pickle="),
        ("import numpy as np\nnp.load(path, allow_pickle=trusted)", "allow_pickle="),
        ("import subprocess\nsubprocess.run(text, shell=True)", "shell="),
        ("Popen(text, shell=flag)", "shell="),
        ("from subprocess import getoutput", "subprocess.getoutput"),
        ("from os import system as run\nrun('ls')", "os.system"),
        ("import os\nos.popen('ls')", "os.popen"),
        ("import runpy\nrunpy.run_path(path)", "runpy.run_path"),
        (
            "from importlib import util\nutil.spec_from_file_location('a', path)",
            "importlib.util.spec_from_file_location",
        ),
        ("from types import FunctionType\nFunctionType(code, {})", "types.FunctionType"),
        ("import tempfile\ntempfile.mktemp()", "tempfile.mktemp"),
        ("__builtins__['eval']('1')", "__builtins__"),
        ("import builtins\ngetattr(builtins, 'ev' + 'al')('1')", "getattr of builtins"),
        ("import builtins\nvars(builtins)['eval']", "getattr of builtins"),
        ("import os\ngetattr(os, 'system')('x')", "os.system"),
        ("from os import *\nsystem('x')", "* of os"),
        ("import os\nsame = os\nsame.system('x')", "os.system"),
        ("import torch\nt = torch\nt.load(path)", "torch.load"),
        ("self.torch.load(path)", "torch.load"),
        ("import torch\nformat = torch.serialization\nformat.load(path)", "torch.serialization.load"),
        ("import torch\ntorch.serialization.pickle.loads(data)", "pickle"),
        ("import numpy as np\nnp.load(path, **options)", "allow_pickle="),
        ("import torch\ntorch.hub.load_state_dict_from_url(place)", "torch.hub.load_state_dict_from_url"),
        ("import torch\ntorch._inductor.aoti_load_package(path)", "torch._inductor.aoti_load_package"),
        ("options.register_custom_ops_library(path)", "register_custom_ops_library"),
        ("from multiprocessing.connection import Client", "multiprocessing.connection"),
        ("import sys\nsys.modules['torch'].load(path)", "torch.load"),
        ("import sys\nsys.modules['pickle'].loads(b'')", "pickle"),
        ("from torch.serialization import load", "torch.serialization.load"),
        ("import torch\ntorch.load(path)", "torch.load without weights_only=True"),
        ("import torch\ntorch.load(path, weights_only=flag)", "torch.load without weights_only=True"),
        ("import numpy as np\nnp.load(path, None, True)", "allow_pickle="),
        ("import numpy as np\nnp.load(path, **{'allow_pickle': True})", "allow_pickle="),
        ("import subprocess\nsubprocess.run('x', **{'shell': True})", "shell="),
        ("import importlib\nget = importlib.import_module\nget('pickle')", "pickle"),
        ("from multiprocessing import connection", "multiprocessing.connection"),
        ("import sympy\nsympy.sympify(text)", "sympy.sympify"),
        ("Model.from_pretrained('x', trust_remote_code=True)", "trust_remote_code="),
    ],
)
def test_uses_are_found(text: str, found: str) -> None:
    assert found in [name for _, name in uses(text)]


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "import re\nre.compile('a')",
        "kernel.compile(signature)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "from types import FunctionType\nisinstance(x, FunctionType)",
        "import json\njson.load(file)",
        "import yaml\nyaml.safe_load(text)",
        "import importlib\nimportlib.import_module('torch')",
        "'import pickle'",
        "from .pickle import x",
    ],
)
def test_other_code_is_not(text: str) -> None:
    assert list(uses(text)) == []


def test_entries_have_reasons() -> None:
    assert all(len(why.split()) > 3 for reasons in ALLOWED.values() for why in reasons.values())
