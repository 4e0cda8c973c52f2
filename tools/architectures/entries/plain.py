"""Architectures written in plain PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.architectures.entry import Entry, Inputs, images, tokens


def of(name: str, make: Any, inputs: Inputs, **more: Any) -> Entry:
    return Entry(name, "torch", lambda: (make(), inputs), **more)


def rows(*shape: int) -> Inputs:
    return lambda batch: {"x": torch.randn(batch, *shape)}


def layered(*parts: nn.Module) -> nn.Module:
    """A sequence whose input is called x."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Sequential(*parts)

        def forward(self, x: Tensor) -> Any:
            return self.parts(x)

    return Layers()


class Recurrent(nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 16)
        self.recurrent = getattr(nn, kind)(16, 24, batch_first=True, **options)
        width = 48 if options.get("bidirectional") else options.get("proj_size", 24)
        self.head = nn.Linear(width, 5)

    def forward(self, ids: Tensor) -> Any:
        states, last = self.recurrent(self.embedding(ids))
        return self.head(states), last


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(8, 16), nn.GRUCell(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 16)
        g = x.new_zeros(x.shape[0], 12)
        for step in range(x.shape[1]):
            h, c = self.lstm(x[:, step], (h, c))
            g = self.gru(h, g)
        return g


class Translator(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(60, 32), nn.Embedding(60, 32)
        self.body = nn.Transformer(32, 4, 2, 2, 48, batch_first=True, **options)
        self.head = nn.Linear(32, 60)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.body(self.source(source), self.target(target), tgt_mask=mask))


class Graph(nn.Module):
    """Two layers of messages along edges, summed by scatter_add or index_add."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 4)])

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        for layer in self.layers:
            messages = layer(nodes)[source]
            zeros = messages.new_zeros(nodes.shape[0], messages.shape[1])
            if self.kind == "scatter_add":
                nodes = zeros.scatter_add(0, target[:, None].expand_as(messages), messages)
            elif self.kind == "index_add":
                nodes = zeros.index_add(0, target, messages)
            elif self.kind == "index_put":
                nodes = zeros.index_put((target,), messages, accumulate=True)
            else:
                index = target[:, None].expand_as(messages)
                nodes = zeros.scatter_reduce(0, index, messages, self.kind, include_self=False)
            nodes = nodes.relu()
        return nodes


class AttentionGraph(nn.Module):
    """Softmax over the edges into each node, by scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.score = nn.Linear(8, 16), nn.Linear(32, 1)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        hidden = self.project(nodes)
        scores = F.leaky_relu(self.score(torch.cat([hidden[source], hidden[target]], 1)), 0.2).squeeze(1)
        largest = scores.new_full((nodes.shape[0],), -torch.inf).scatter_reduce(0, target, scores, "amax")
        weights = (scores - largest[target]).exp()
        total = scores.new_zeros(nodes.shape[0]).scatter_add(0, target, weights)
        share = (weights / total[target]).unsqueeze(1)
        return torch.zeros_like(hidden).index_add(0, target, share * hidden[source])


def graph(batch: int) -> dict[str, Tensor]:
    return {"nodes": torch.randn(6, 8), "edges": torch.randint(0, 6, (2, 4 * batch))}


class Recommender(nn.Module):
    """Bags of features, pairwise products, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(30, 8, mode="sum") for _ in range(3)])
        self.dense, self.top = nn.Linear(5, 8), nn.Linear(14, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        bottom = self.dense(dense).relu()
        parts = [bottom, *(table(sparse[:, number]) for number, table in enumerate(self.tables))]
        stacked = torch.stack(parts, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        row, column = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([bottom, products[:, row, column]], 1)).sigmoid()


class Spectral(nn.Module):
    """Fourier mixing, as in FNet, global filters and Fourier neural operators."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.randn(8, 8, 9, 2) * 0.1)
        self.filter = nn.Parameter(torch.randn(16, 9, 8, 2) * 0.1)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "fnet":  # [B, S, C]
            return self.linear(torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        if self.kind == "operator":
            spectrum = torch.fft.rfft(x, dim=1)
            mixed = torch.einsum("bfi,iof->bfo", spectrum, torch.view_as_complex(self.weight))
            return torch.fft.irfft(mixed, n=x.shape[1], dim=1)
        spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho") * torch.view_as_complex(self.filter)
        return torch.fft.irfft2(spectrum, s=x.shape[1:3], dim=(1, 2), norm="ortho")


class Spectrogram(nn.Module):
    """A short-time Fourier transform, its power in bands, and its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.register_buffer("bands", torch.rand(17, 8))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.stft(x, 32, 16, window=self.window, return_complex=True)
        return (spectrum.abs().square().transpose(1, 2) @ self.bands + 1e-6).log()


class Rotary(nn.Module):
    """Rotary positions by complex numbers, as in the first Llama."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(12).float(), 10000 ** (-torch.arange(0, 8, 2).float() / 8))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns).flatten(-2)


class Gaussian(nn.Module):
    """The posterior of a Gaussian process at a few points."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.values = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def kernel(a: Tensor, b: Tensor) -> Tensor:
            return (-0.5 * torch.cdist(a, b).square()).exp()

        factor = torch.linalg.cholesky(kernel(self.points, self.points) + 0.1 * torch.eye(6))
        weights = torch.cholesky_solve(self.values[:, None], factor)
        cross = kernel(x, self.points)
        half = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        return (cross @ weights).squeeze(1), 1 - half.square().sum(0)


class Kalman(nn.Module):
    """Steps of a Kalman filter with inverses and determinants of 3x3 matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.observe = nn.Parameter(torch.randn(3, 3) * 0.3), nn.Parameter(torch.randn(2, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state = x.new_zeros(x.shape[0], 3)
        spread = torch.eye(3).expand(x.shape[0], 3, 3)
        likelihood = x.new_zeros(x.shape[0])
        for number in range(x.shape[1]):
            state = state @ self.step.T
            spread = self.step @ spread @ self.step.T + 0.1 * torch.eye(3)
            seen = self.observe @ spread @ self.observe.T + 0.2 * torch.eye(2)
            gain = spread @ self.observe.T @ torch.linalg.inv(seen)
            rest = x[:, number] - state @ self.observe.T
            state = state + (gain @ rest[:, :, None]).squeeze(2)
            spread = spread - gain @ self.observe @ spread
            likelihood = likelihood - torch.linalg.slogdet(seen)[1]
        return state, likelihood


class Flow(nn.Module):
    """Affine couplings and a triangular product, with the log-determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList([nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 6)) for _ in range(2)])
        self.mix = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.linalg.slogdet(self.mix)[1].expand(x.shape[0])
        x = x @ self.mix
        for number, net in enumerate(self.nets):
            left, right = x.chunk(2, 1)
            if number:
                left, right = right, left
            scale, shift = net(left).chunk(2, 1)
            right = right * scale.tanh().exp() + shift
            total = total + scale.tanh().sum(1)
            x = torch.cat([left, right], 1)
        return x, total


class Experts(nn.Module):
    """The two best of four experts for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        return torch.einsum("bk,bki->bi", weights, torch.einsum("bi,bkij->bkj", x, self.experts[chosen]))


class Points(nn.Module):
    """Features of the nearest neighbours of points in space, by topk of distances."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 16)

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x, x).topk(4, largest=False).indices
        found = torch.gather(x[:, None].expand(-1, x.shape[1], -1, -1), 2, near[..., None].expand(-1, -1, -1, 3))
        parts = torch.cat([found - x[:, :, None], x[:, :, None].expand_as(found)], -1)
        return self.layer(parts).relu().amax(2).amax(1)


class Spatial(nn.Module):
    """A spatial transformer: an affine grid from a network, and sampling."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Linear(3 * 16 * 16, 6)

    def forward(self, x: Tensor) -> Tensor:
        angles = self.place(x.flatten(1)).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(angles, list(x.shape), align_corners=False), align_corners=False)


class Viterbi(nn.Module):
    """The best path of tags by maximum products."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        score, back = x[:, 0], []
        for number in range(1, x.shape[1]):
            best, place = (score[:, :, None] + self.steps).max(1)
            score = best + x[:, number]
            back.append(place)
        value, tag = score.max(1)
        path = [tag]
        for place in reversed(back):
            tag = place.gather(1, tag[:, None]).squeeze(1)
            path.append(tag)
        return value, torch.stack(path[::-1], 1)


class Sparsemax(nn.Module):
    """A projection to the simplex by sorting."""

    def forward(self, x: Tensor) -> Tensor:
        ordered = x.sort(-1, descending=True).values
        place = torch.arange(1, x.shape[-1] + 1)
        total = ordered.cumsum(-1)
        count = (1 + place * ordered > total).sum(-1, keepdim=True)
        return (x - (total.gather(-1, count - 1) - 1) / count).clamp(min=0)


class Quantiles(nn.Module):
    """Which bin each value is in, and how many there are below: searchsorted, bucketize, one_hot, cumulative sums."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, 9))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        bins = torch.bucketize(x, self.edges)
        found = torch.searchsorted(x.sort(-1).values, torch.zeros(x.shape[0], 1))
        median = x.median(-1)
        return F.one_hot(bins, 10).cumsum(1), found, median.values, x.cummax(-1).indices, x.quantile(0.3, dim=-1)


class Bits(nn.Module):
    """A hash of words by integer operations, and a table of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 8)

    def forward(self, ids: Tensor) -> Tensor:
        mixed = (ids ^ (ids << 7)) & 0x7FFFFFFF
        mixed = mixed ^ (mixed >> 9)
        return self.table((mixed * 31 + 7) % 64)


class Special(nn.Module):
    """Log densities: lgamma, digamma and erfinv."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.abs() + 0.5
        return y.lgamma() + y.digamma() + (x.tanh() * 0.9).erfinv()


class Rare(nn.Module):
    """Bessel functions and the inverse of the normal distribution."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.i0e(x) + torch.special.ndtri(x.sigmoid())


class Cached(nn.Module):
    """A step of a decoder with a static cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(16, 48), nn.Linear(16, 60)
        self.embedding = nn.Embedding(60, 16)

    def forward(self, ids: Tensor, cache: dict[str, Tensor], place: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        query, key, value = self.project(self.embedding(ids)).view(ids.shape[0], 1, 4, 12).transpose(1, 2).chunk(3, -1)
        keys = cache["keys"].index_copy(2, place, key)
        values = cache["values"].index_copy(2, place, value)
        seen = torch.arange(keys.shape[2]) <= place
        result = F.scaled_dot_product_attention(query, keys, values, seen.view(1, 1, 1, -1))
        return self.head(result.transpose(1, 2).flatten(1)), {"keys": keys, "values": values}


def step(batch: int) -> dict[str, Any]:
    cache = {"keys": torch.randn(batch, 4, 8, 4), "values": torch.randn(batch, 4, 8, 4)}
    return {"ids": tokens(batch, 1), "cache": cache, "place": torch.tensor([3])}


class Branch(nn.Module):
    """torch.cond between two networks."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.left(x), lambda x: self.right(x).relu(), (x,))


class Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 12, 4, 8, 6) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("bni,xnjoi->bnjo", x, self.weight)
        logits = torch.zeros_like(votes[..., :1])
        for _ in range(3):
            total = (logits.softmax(2) * votes).sum(1, keepdim=True)
            size = total.square().sum(-1, keepdim=True)
            total = total * size / (1 + size) / (size + 1e-8).sqrt()
            logits = logits + (votes * total).sum(-1, keepdim=True)
        return total.squeeze(1).norm(dim=-1)


class Solver(nn.Module):
    """A neural differential equation in four Runge-Kutta steps."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            a = self.field(x)
            b = self.field(x + 0.125 * a)
            c = self.field(x + 0.125 * b)
            d = self.field(x + 0.25 * c)
            x = x + 0.25 / 6 * (a + 2 * b + 2 * c + d)
        return x


class Noisy(nn.Module):
    """A variational autoencoder that draws its code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(scale) * (0.5 * scale).exp()
        return self.decoder(code), mean


class Folded(nn.Module):
    """Overlapping patches taken apart, changed and joined: unfold and fold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(27, 27)

    def forward(self, x: Tensor) -> Tensor:
        parts = F.unfold(x, 3, padding=1, stride=2)
        return F.fold(self.layer(parts.transpose(1, 2)).transpose(1, 2), x.shape[2:], 3, padding=1, stride=2)


class Windows(nn.Module):
    """Windows of a signal as views by strides."""

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous().as_strided((x.shape[0], 7, 8), (32, 4, 1)).mean(-1)


class Relative(nn.Module):
    """Distances, angles and directions of joints."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x[:, :-1], x[:, 1:]
        turn = torch.linalg.cross(left, right)
        angle = torch.atan2(turn.norm(dim=-1), (left * right).sum(-1))
        return torch.cat([angle, F.cosine_similarity(left, right, dim=-1), turn.flatten(1)], 1)


class Padded(nn.Module):
    """A sequence of other length in each row, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(8, 12, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.recurrent(packed)[1][0]


class Selected(nn.Module):
    """The rows whose score is positive: a result of unknown size."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[self.score(x).squeeze(1) > 0])


class Sines(nn.Module):
    """Positions as sines and cosines, added to a projection."""

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], dtype=torch.float32)[:, None]
        rate = torch.exp(torch.arange(0, x.shape[2], 2) * (-math.log(10000.0) / x.shape[2]))
        table = torch.zeros(x.shape[1], x.shape[2])
        table[:, 0::2] = torch.sin(place * rate)
        table[:, 1::2] = torch.cos(place * rate)
        return x + table


def unet() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.low = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
            self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.ConvTranspose2d(16, 3, 4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            first = self.down(x).relu()
            return self.out(torch.cat([first, self.up(self.low(first).relu())], 1))

    return Net()


def quantized(kind: str) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    module = layered(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)) if kind == "linear" else Recurrent("LSTM")
    return quantize_dynamic(module.eval(), {nn.Linear, nn.LSTM}, dtype=torch.qint8)


def weighted() -> nn.Module:
    from torch.nn.utils.parametrizations import spectral_norm, weight_norm

    return layered(weight_norm(nn.Conv1d(4, 8, 3, dilation=2)), nn.ELU(), spectral_norm(nn.Conv1d(8, 4, 3)))


def words(batch: int) -> dict[str, Tensor]:
    return {"ids": tokens(batch)}


ENTRIES = [
    of("perceptron", lambda: layered(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)), rows(16)),
    of("convolutions", lambda: layered(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                                       nn.Conv2d(8, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
       lambda batch: {"x": images(batch, 16)}),
    of("U-Net", unet, lambda batch: {"x": images(batch, 16)}),
    *(of(kind, lambda kind=kind: Recurrent(kind), words) for kind in ("LSTM", "GRU", "RNN")),
    of("LSTM, both ways, two layers", lambda: Recurrent("LSTM", bidirectional=True, num_layers=2), words),
    of("LSTM with projection", lambda: Recurrent("LSTM", proj_size=10), words),
    of("recurrent cells", Cells, rows(5, 8)),
    of("packed GRU", Padded, lambda batch: {"x": torch.randn(batch, 6, 8), "lengths": torch.randint(1, 7, (batch,))}),
    of("nn.Transformer", Translator, lambda batch: {"source": tokens(batch), "target": tokens(batch, 7)}),
    of("nn.Transformer, norm first", lambda: Translator(norm_first=True, activation="gelu"),
       lambda batch: {"source": tokens(batch), "target": tokens(batch, 7)}),
    of("nn.TransformerEncoder", lambda: layered(nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2)), rows(6, 32)),
    *(of(f"messages by {kind}", lambda kind=kind: Graph(kind), graph, axes={"edges": {1: ("edges", 2, 64)}})
      for kind in ("scatter_add", "index_add", "index_put", "mean", "amax")),
    of("graph attention", AttentionGraph, graph, axes={"edges": {1: ("edges", 2, 64)}}),
    of("recommender", Recommender, lambda batch: {"dense": torch.randn(batch, 5),
                                                  "sparse": torch.randint(0, 30, (batch, 3, 2))}),
    of("Fourier mixing", lambda: Spectral("fnet"), rows(16, 8)),
    of("Fourier operator", lambda: Spectral("operator"), rows(16, 8)),
    of("global filter", lambda: Spectral("filter"), rows(16, 16, 8)),
    of("log-mel spectrogram", Spectrogram, rows(256)),
    of("complex rotary positions", Rotary, rows(3, 12, 8)),
    of("Gaussian process", Gaussian, rows(2)),
    of("Kalman filter", Kalman, rows(4, 2)),
    of("normalizing flow", Flow, rows(6)),
    of("mixture of experts", Experts, rows(8)),
    of("points and neighbours", Points, rows(10, 3)),
    of("spatial transformer", Spatial, lambda batch: {"x": images(batch, 16)}),
    of("Viterbi", Viterbi, rows(6, 5)),
    of("sparsemax", Sparsemax, rows(7)),
    of("quantiles", Quantiles, rows(9)),
    of("hash embedding", Bits, words),
    of("special functions", Special, rows(7)),
    of("rare special functions", Rare, rows(7)),
    of("decoder step with cache", Cached, step, axes={
        "ids": {0: ("batch", 1, 8)}, "cache_keys": {0: ("batch", 1, 8)}, "cache_values": {0: ("batch", 1, 8)}}),
    of("torch.cond", Branch, rows(8)),
    of("capsules", Capsules, rows(12, 6)),
    of("Runge-Kutta", Solver, rows(4)),
    of("variational autoencoder", Noisy, rows(8)),
    of("unfold and fold", Folded, lambda batch: {"x": images(batch, 8)}),
    of("windows by strides", Windows, rows(32)),
    of("angles of joints", Relative, rows(5, 3)),
    of("rows by a mask", Selected, rows(8)),
    of("dynamic-quantized perceptron", lambda: quantized("linear"), rows(16)),
    of("dynamic-quantized LSTM", lambda: quantized("lstm"), words),
    of("weight and spectral norms", weighted, rows(4, 20)),
    of("super resolution", lambda: layered(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2), nn.Upsample(
        scale_factor=2, mode="bilinear"), nn.Upsample(scale_factor=2, mode="bicubic")),
       lambda batch: {"x": images(batch, 8)}),
    of("temporal convolutions", lambda: layered(nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(4, 8, 3, dilation=2),
                                                nn.SiLU(), nn.ReflectionPad1d(2), nn.Conv1d(8, 4, 5),
                                                nn.AdaptiveMaxPool1d(3)),
       rows(4, 20)),
    of("volumes", lambda: layered(nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4), nn.LeakyReLU(), nn.MaxPool3d(2),
                                  nn.ConvTranspose3d(4, 2, 2, 2)), rows(1, 6, 6, 6)),
    of("positions in sines", Sines, rows(6, 8)),
]  # fmt: skip
