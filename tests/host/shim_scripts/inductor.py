"""TorchInductor with Triton as the backend of the CPU: results against eager mode, compiled in this process, then in
workers, where the first argument is "workers"."""

import sys

import torch
import torch._inductor.config as config
import torch.nn.functional as F
from torch._inductor.async_compile import AsyncCompile

config.cpu_backend = "triton"
config.compile_threads = 1


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + y * 2


def in_place(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


FUNCTIONS = {
    "pointwise": (pointwise, [(1000,), (1000,)]),
    "sum": (lambda x: x.sum(-1), [(33, 700)]),
    "softmax": (lambda x: torch.softmax(x, -1), [(33, 200)]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (300,), w, b), [(33, 300), (300,), (300,)]),
    "in place": (in_place, [(999,)]),
    "linear": (lambda x, w: F.gelu(x @ w), [(65, 70), (70, 33)]),
}


def compare(name: str, compiled, function, arguments: list[torch.Tensor]) -> None:
    # Float32 with sums of at most 700 values: assert_close's tolerance for that dtype.
    expected = function(*[argument.clone() for argument in arguments])
    torch.testing.assert_close(compiled(*arguments), expected, msg=lambda text: f"{name}: {text}")


def run(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    torch._dynamo.reset()
    compiled = torch.compile(function)
    compare(name, compiled, function, [torch.randn(shape) for shape in shapes])
    if name == "pointwise":  # compiled for aligned arrays, called with others
        compare(name, compiled, function, [torch.randn(1001)[1:], torch.randn(1000)])


torch.manual_seed(0)
workers = sys.argv[1:] == ["workers"]
names = list(FUNCTIONS)
if workers:
    config.compile_threads = 2
    AsyncCompile.wait_pool_ready(timeout=500)  # until then this process compiles
    names = ["pointwise", "softmax"]
for name in names:
    run(name)
assert AsyncCompile.use_process_pool() == workers
print("inductor agrees")
