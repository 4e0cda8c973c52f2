"""Liger-Kernel: losses, norms, gated activations and rotary embeddings."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.programs.case import Place, Program, case


@case("Liger cross-entropy", cpu=[(512, 32000)], cuda=[(8192, 32000), (2048, 128256)])
def cross_entropy(place: Place, rows: int, columns: int) -> Program:
    """The loss and the gradient of the logits, which takes their place."""
    from liger_kernel.ops import cross_entropy as module

    logits, target = place.normal(rows, columns), place.integers(0, columns, rows)
    own = logits.clone().requires_grad_()

    def on_cpu():
        loss, _, _, _, gradient = module.cross_entropy_forward(own, target, None, -100, 0.0, 0.0, "mean", None, False)
        return loss, gradient.detach()

    losses = torch.zeros(rows, device=place.device, dtype=place.dtype)

    def on_gpu():  # the host code reads sums back, which a CUDA graph cannot
        module.liger_cross_entropy_kernel[(rows,)](
            X_ptr=own, X_stride=columns, Y_ptr=target, Y_stride=1, weight_ptr=None, loss_ptr=losses, z_loss_ptr=None,
            loss_stride=1, token_accuracy_ptr=None, token_accuracy_stride=0, predicted_tokens_ptr=None,
            predicted_tokens_stride=0, n_cols=columns, n_non_ignore=rows, sum_non_ignore_weight=rows,
            ignore_index=-100, weight_sum=0.0, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean",
            softcap=None, RETURN_Z_LOSS=False, RETURN_TOKEN_ACCURACY=False, RETURN_PREDICTED_TOKENS=False,
            BLOCK_SIZE=min(module.MAX_FUSED_SIZE, 1 << (columns - 1).bit_length()), HAS_WEIGHT=False,
            HAS_SOFTCAPPING=False, HAS_GRADIENTS=True, num_warps=32,
        )  # fmt: skip
        return losses.double().sum(), own.detach()

    call = on_cpu if place.on_cpu else on_gpu
    return Program(call, F.cross_entropy, (logits, target), with_gradients=True, restored=(own,))


@case("Liger RoPE", cpu=[(2048, 32, 8, 128)], cuda=[(16384, 32, 8, 128)], multiples=(1, 0, 0, 0))
def rope(place: Place, length: int, heads: int, pairs: int, size: int) -> Program:
    from liger_kernel.ops.rope import rope_forward

    q, k = (place.normal(1, length, count, size) for count in (heads, pairs))
    angles = torch.outer(
        torch.arange(length, device=place.device), 1e4 ** -(torch.arange(0, size, 2, device=place.device) / size)
    )
    angles = torch.cat((angles, angles), -1)[None]
    cos, sin = angles.cos().to(place.dtype), angles.sin().to(place.dtype)
    own = [x.clone().transpose(1, 2) for x in (q, k)]

    def turned(x, cos, sin):
        left, right = x.chunk(2, -1)
        return x * cos[:, :, None] + torch.cat((-right, left), -1) * sin[:, :, None]

    def call():
        return [x.transpose(1, 2) for x in rope_forward(*own, cos, sin)[:2]]

    def function(q, k, cos, sin):
        return turned(q, cos, sin), turned(k, cos, sin)

    return Program(call, function, (q, k, cos, sin), restored=tuple(own))


@case("Liger SwiGLU", cpu=[(1024, 5632)], cuda=[(8192, 11008), (4096, 14336)])
def swiglu(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.swiglu import swiglu_forward

    a, b = (place.normal(rows, columns) for _ in range(2))
    return Program(lambda: swiglu_forward(a, b)[2], lambda a, b: F.silu(a) * b, (a, b))


@case("Liger SwiGLU backward", cpu=[(1024, 5632)], cuda=[(8192, 11008)])
def swiglu_gradient(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.swiglu import swiglu_backward

    a, b, gradient = (place.normal(rows, columns) for _ in range(3))
    own = a.clone(), b.clone()
    call = lambda: swiglu_backward(*own, gradient)  # noqa: E731
    return Program(call, lambda a, b: F.silu(a) * b, (a, b), gradients=(gradient,), restored=own)


def _geglu(a, b):
    return F.gelu(a, approximate="tanh") * b


@case("Liger GEGLU", cpu=[(1024, 5632)], cuda=[(8192, 11008)])
def geglu(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.geglu import geglu_forward

    a, b = (place.normal(rows, columns) for _ in range(2))
    return Program(lambda: geglu_forward(a, b)[2], _geglu, (a, b))


@case("Liger GEGLU backward", cpu=[(1024, 5632)], cuda=[(8192, 11008)])
def geglu_gradient(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.geglu import geglu_backward

    a, b, gradient = (place.normal(rows, columns) for _ in range(3))
    own = a.clone(), b.clone()
    return Program(lambda: geglu_backward(*own, gradient), _geglu, (a, b), gradients=(gradient,), restored=own)


def _rms(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


@case("Liger RMS norm", cpu=[(2048, 4096)], cuda=[(16384, 4096), (16384, 5120)])
def rms_norm(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.rms_norm import rms_norm_forward

    x, weight = place.normal(rows, columns), place.normal(columns)
    return Program(lambda: rms_norm_forward(x, weight, 1e-6, 0.0, "llama", None)[0], _rms, (x, weight), tolerance=None)


# On CPUs the package's backward passes of norms launch a single program: no case of two threads.
@case("Liger RMS norm backward", cuda=[(16384, 4096)])
def rms_norm_gradient(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward

    x, weight, gradient = place.normal(rows, columns), place.normal(columns), place.normal(rows, columns)
    _, _, scales, block, warps, mode = rms_norm_forward(x, weight, 1e-6, 0.0, "llama", None)
    call = lambda: rms_norm_backward(gradient, x, weight, scales, 0.0, mode, block, warps, False, None)  # noqa: E731
    return Program(call, _rms, (x, weight), gradients=(gradient,))


def _layer(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


@case("Liger layer norm", cpu=[(2048, 4096)], cuda=[(16384, 4096)])
def layer_norm(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.layer_norm import layer_norm_forward

    x, weight, bias = place.normal(rows, columns), place.normal(columns), place.normal(columns)
    return Program(lambda: layer_norm_forward(x, weight, bias, 1e-5)[0], _layer, (x, weight, bias))


@case("Liger layer norm backward", cuda=[(16384, 4096)])
def layer_norm_gradient(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward

    x, weight, bias = place.normal(rows, columns), place.normal(columns), place.normal(columns)
    gradient = place.normal(rows, columns)
    _, _, means, scales, *_ = layer_norm_forward(x, weight, bias, 1e-5)
    call = lambda: layer_norm_backward(gradient, x, weight, bias, means, scales)  # noqa: E731
    return Program(call, _layer, (x, weight, bias), gradients=(gradient,))


@case("Liger group norm", cpu=[(4, 256, 32, 32)], cuda=[(16, 320, 32, 32)], multiples=(1, 32, 1, 1))
def group_norm(place: Place, images: int, channels: int, height: int, width: int) -> Program:
    from liger_kernel.ops.group_norm import group_norm_forward

    dtype = torch.float32
    x = place.normal(images, channels, height, width, dtype=dtype)
    weight, bias = (place.normal(channels, dtype=dtype) for _ in range(2))
    call = lambda: group_norm_forward(x, channels, 32, weight, bias, 1e-5)[0]  # noqa: E731
    return Program(call, lambda x, weight, bias: F.group_norm(x, 32, weight, bias, 1e-5), (x, weight, bias))


@case("Liger softmax", cpu=[(4096, 2048)], cuda=[(16384, 4096)])
def softmax(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.softmax import _softmax_forward

    x = place.normal(rows, columns)
    return Program(lambda: _softmax_forward(x)[0], lambda x: torch.softmax(x, -1), (x,))


@case("Liger softmax backward", cpu=[(4096, 2048)], cuda=[(16384, 4096)])
def softmax_gradient(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.softmax import _softmax_backward, _softmax_forward

    x, gradient = place.normal(rows, columns), place.normal(rows, columns)
    y, *settings = _softmax_forward(x)
    call = lambda: _softmax_backward(gradient, y, *settings)  # noqa: E731
    return Program(call, lambda x: torch.softmax(x, -1), (x,), gradients=(gradient,))


@case("Liger KL divergence", cpu=[(512, 32000)], cuda=[(4096, 32000)])
def kl_divergence(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.kl_div import kldiv_forward_triton

    predicted = place.normal(rows, columns, dtype=torch.float32).log_softmax(-1)
    target = place.normal(rows, columns, dtype=torch.float32).softmax(-1)
    call = lambda: kldiv_forward_triton(predicted, target, False, "batchmean", 1e-10)  # noqa: E731
    return Program(call, lambda p, t: F.kl_div(p, t, reduction="batchmean"), (predicted, target))


@case("Liger JSD", cpu=[(512, 32000)], cuda=[(4096, 32000)])
def jensen_shannon(place: Place, rows: int, columns: int) -> Program:
    """The divergence and the gradient of the first operand."""
    from liger_kernel.ops.jsd import jsd_forward

    x, y = (place.normal(rows, columns, dtype=torch.float32).log_softmax(-1) for _ in range(2))

    def function(x, y=y):
        y = y.to(x.dtype)
        mean = torch.logsumexp(torch.stack((x, y)), 0) - 0.6931471805599453
        return (y.exp() * (y - mean) + x.exp() * (x - mean)).sum() / (2 * rows)

    def call():
        return jsd_forward(x, y, None, 0.5, -100, False)

    return Program(call, function, (x,), with_gradients=True)


@case("Liger total variation", cpu=[(512, 32000)], cuda=[(4096, 32000)])
def total_variation(place: Place, rows: int, columns: int) -> Program:
    """The distance and the gradient of the first operand."""
    from liger_kernel.ops.tvd import tv_distance_forward_triton

    p, q = (place.normal(rows, columns, dtype=torch.float32).softmax(-1) for _ in range(2))
    call = lambda: tv_distance_forward_triton(p, q, None, "batchmean", -100, False)  # noqa: E731
    return Program(call, lambda p, q=q: 0.5 * (p - q).abs().sum() / rows, (p,), with_gradients=True)


@case("Liger add + RMS norm", cpu=[(2048, 4096)], cuda=[(16384, 4096)])
def add_rms_norm(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward

    x, residual, weight = place.normal(rows, columns), place.normal(rows, columns), place.normal(columns)

    def function(x, residual, weight):
        total = x + residual
        return _rms(total, weight), total

    call = lambda: fused_add_rms_norm_forward(x, residual, weight, 1e-6, 0.0, "llama")[:2]  # noqa: E731
    return Program(call, function, (x, residual, weight))


@case("Liger dynamic tanh", cpu=[(2048, 4096)], cuda=[(16384, 4096)])
def dynamic_tanh(place: Place, rows: int, columns: int) -> Program:
    from liger_kernel.ops.dyt import liger_dyt_fwd

    x, alpha, gamma, beta = place.normal(rows, columns), place.normal(1), place.normal(columns), place.normal(columns)
    function = lambda x, alpha, gamma, beta: torch.tanh(alpha * x) * gamma + beta  # noqa: E731
    return Program(lambda: liger_dyt_fwd(x, alpha, gamma, beta), function, (x, alpha, gamma, beta))
