"""Modules of papers, in plain PyTorch, written as their authors do: masks, loops over steps, writes in place."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.architectures.entries.plain import of, rows
from tools.architectures.entry import Entry


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold network: B-splines of degree 3 by the recursion of Cox and de Boor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", (torch.arange(-3, 9) * 0.4 - 1).expand(4, -1).contiguous())
        self.base, self.spline = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6, 32))

    def forward(self, x: Tensor) -> Tensor:
        grid, place = self.grid, x.unsqueeze(-1)
        found = ((place >= grid[:, :-1]) & (place < grid[:, 1:])).to(x.dtype)
        for k in range(1, 4):
            left = (place - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * found[:, :, :-1]
            right = (grid[:, k + 1 :] - place) / (grid[:, k + 1 :] - grid[:, 1:-k]) * found[:, :, 1:]
            found = left + right
        return F.linear(F.silu(x), self.base) + F.linear(found.flatten(1), self.spline)


class Diagonal(nn.Module):
    """A diagonal state space (S4D): its kernel from complex powers, applied by Fourier transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(6, 4, 2))
        self.step, self.decay = nn.Parameter(torch.rand(6) - 3), nn.Parameter(torch.zeros(6, 4))
        self.register_buffer("turns", math.pi * torch.arange(4).expand(6, -1).float())

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        pole = -self.decay.exp() + 1j * self.turns
        moved = pole * self.step.exp().unsqueeze(-1)
        weights = torch.view_as_complex(self.mix) * (moved.exp() - 1.0) / pole
        kernel = 2 * torch.einsum("hn,hnl->hl", weights, (moved.unsqueeze(-1) * torch.arange(length)).exp()).real
        spectrum = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        return F.gelu(torch.fft.irfft(spectrum, n=2 * length)[..., :length] + x)


class Hashed(nn.Module):
    """A grid of many resolutions whose corners are found by a hash (Instant-NGP)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(256, 2) for _ in range(3)])
        corners = [[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)]
        self.register_buffer("corners", torch.tensor([corners]))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for level, table in enumerate(self.tables):
            place = x.sigmoid() * math.floor(4 * 1.7**level)
            low = place.floor().int()
            corners = low.unsqueeze(1) + self.corners
            key = torch.zeros_like(corners)[..., 0]
            for axis, prime in enumerate((1, 2654435761, 805459861)):
                key ^= corners[..., axis] * prime
            share = torch.where(self.corners == 1, (place - low).unsqueeze(1), 1 - (place - low).unsqueeze(1))
            found.append((table(key & 255) * share.prod(-1, keepdim=True)).sum(1))
        return torch.cat(found, -1)


class SelfLooped(nn.Module):
    """Graph attention that takes out loops and adds one for each node."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 12, bias=False)
        self.source, self.target = nn.Parameter(torch.randn(1, 3, 4)), nn.Parameter(torch.randn(1, 3, 4))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        count = nodes.size(0)
        edges = edges[:, edges[0] != edges[1]]
        source, target = torch.cat([edges, torch.arange(count).unsqueeze(0).repeat(2, 1)], dim=1)
        hidden = self.layer(nodes).view(-1, 3, 4)
        scores = F.leaky_relu((hidden * self.source).sum(-1)[source] + (hidden * self.target).sum(-1)[target], 0.2)
        index = target.view(-1, 1).expand_as(scores)
        most = torch.zeros(count, 3).scatter_reduce_(0, index, scores, "amax", include_self=False)
        shares = (scores - most[target]).exp()
        shares = shares / (torch.zeros(count, 3).scatter_add_(0, index, shares)[target] + 1e-16)
        result = torch.zeros(count, 3, 4)
        result.index_add_(0, target, hidden[source] * shares.unsqueeze(-1))
        return result.flatten(1)


class Counted(nn.Module):
    """Means over the graphs of a batch, whose number follows from the numbers of the graphs."""

    def forward(self, nodes: Tensor, graphs: Tensor) -> Tensor:
        count = int(graphs.max()) + 1
        sums = nodes.new_zeros(count, nodes.shape[1]).index_add(0, graphs, nodes)
        sizes = nodes.new_zeros(count).index_add(0, graphs, torch.ones_like(graphs, dtype=nodes.dtype))
        return sums / sizes.clamp(min=1)[:, None]


def graphs(batch: int) -> dict[str, Tensor]:
    return {"nodes": torch.randn(3 * batch, 5), "graphs": torch.arange(batch).repeat_interleave(3)}


class Farthest(nn.Module):
    """Set abstraction of PointNet++: farthest points one after the other, the balls around them, maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 1))

    def forward(self, x: Tensor) -> Tensor:
        batch, count, _ = x.shape
        row = torch.arange(batch)
        chosen = torch.zeros(batch, 6, dtype=torch.long)
        distance, last = torch.full((batch, count), 1e10), torch.zeros(batch, dtype=torch.long)
        for step in range(6):
            chosen[:, step] = last
            gap = (x - x[row, last].unsqueeze(1)).square().sum(-1)
            nearer = gap < distance
            distance[nearer] = gap[nearer]
            last = distance.max(-1)[1]
        centres = x[row[:, None], chosen]
        near = torch.arange(count).repeat(batch, 6, 1)
        near[torch.cdist(centres, x) > 0.8] = count
        near = near.sort(-1)[0][:, :, :4]
        outside = near == count
        near[outside] = near[:, :, :1].expand_as(near)[outside]
        return self.layers((x[row[:, None, None], near] - centres.unsqueeze(2)).permute(0, 3, 2, 1)).amax(2)


class Aligned(nn.Module):
    """The rotation between two clouds of points, by singular values (Kabsch)."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
        u, _, vh = torch.linalg.svd(x.mT @ y)
        sign = torch.linalg.det(vh.mT @ u.mT).sign()
        last = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1)
        return vh.mT @ torch.diag_embed(last) @ u.mT


class Whitened(nn.Module):
    """Rows without correlations, by the eigenvalues of their covariance."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x - x.mean(1, keepdim=True)
        values, vectors = torch.linalg.eigh(x.mT @ x / x.shape[1])
        return x @ vectors @ torch.diag_embed(values.clamp(min=1e-3).rsqrt()) @ vectors.mT, values


class Inverted(nn.Module):
    """A masked autoregressive flow, inverted one dimension after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 16), nn.Linear(16, 8)
        hidden = torch.arange(16) % 3
        self.register_buffer("before", (hidden[:, None] >= torch.arange(4)).float())
        self.register_buffer("after", (torch.arange(4)[:, None] > hidden).float().repeat(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for place in range(4):
            hidden = F.linear(result, self.first.weight * self.before, self.first.bias).tanh()
            shift, scale = F.linear(hidden, self.second.weight * self.after, self.second.bias).chunk(2, -1)
            result[:, place] = x[:, place] * scale[:, place].exp() + shift[:, place]
        return result


class Filtered(nn.Module):
    """What generation does to scores: a penalty for repetition, the best k, and those that make up a share."""

    def forward(self, scores: Tensor, ids: Tensor) -> Tensor:
        found = scores.gather(1, ids)
        scores = scores.scatter(1, ids, torch.where(found < 0, found * 1.2, found / 1.2)) / 0.8
        scores = scores.masked_fill(scores < scores.topk(10)[0][..., -1, None], -math.inf)
        ordered, place = scores.sort(descending=False)
        removed = ordered.softmax(-1).cumsum(-1) <= 0.1
        removed[..., -1:] = False
        return scores.masked_fill(removed.scatter(1, place, removed), -math.inf).softmax(-1)


def clouds(batch: int) -> dict[str, Any]:
    return {"x": torch.randn(batch, 7, 3), "y": torch.randn(batch, 7, 3)}


ENTRIES: list[Entry] = [
    of("Kolmogorov-Arnold network", Splines, lambda batch: {"x": torch.rand(batch, 4) * 2 - 1}),
    of("diagonal state space", Diagonal, rows(6, 16)),
    of("hash grid", Hashed, rows(3)),
    of("graph attention with loops", SelfLooped, lambda batch: {
        "nodes": torch.randn(6, 8), "edges": torch.randint(0, 6, (2, 5 * batch))},
       axes={"edges": {1: ("edges", 2, 64)}}),
    of("means of graphs", Counted, graphs, axes={"nodes": {0: ("nodes", 2, 64)}, "graphs": {0: ("nodes", 2, 64)}}),
    of("farthest points and balls", Farthest, lambda batch: {"x": torch.randn(batch, 12, 3) * 0.5}),
    of("rotation between clouds", Aligned, clouds),
    of("whitening", Whitened, rows(20, 4)),
    of("autoregressive flow, inverted", Inverted, rows(4)),
    of("filters of generation", Filtered, lambda batch: {
        "scores": torch.randn(batch, 30), "ids": torch.randint(0, 30, (batch, 5))}),
]  # fmt: skip
