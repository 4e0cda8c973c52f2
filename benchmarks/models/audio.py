"""Models of sound and of sequences with random weights, from plain PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.small import Encoder


class LogMel(nn.Module):
    """An audio front end: windows of 25 ms every 10 ms, 80 mel bands, logarithm, normalised over time."""

    def __init__(self, bands: int = 80, size: int = 512) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(400))
        edges = torch.linspace(0, 2595 * torch.log10(torch.tensor(1 + 8000 / 700)), bands + 2)
        edges = 700 * (10 ** (edges / 2595) - 1)
        frequencies = torch.linspace(0, 8000, size // 2 + 1)[:, None]
        rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
        falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
        self.register_buffer("bank", torch.minimum(rising, falling).clamp(min=0))

    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        """float32 [batch, samples] at 16 kHz -> [batch, frames, bands]."""
        x = torch.cat([waveform[:, :1], waveform[:, 1:] - 0.97 * waveform[:, :-1]], 1)
        spectrum = torch.stft(x, self.size, 160, 400, self.window, pad_mode="constant", return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1)
        mel = torch.log(power.transpose(1, 2) @ self.bank + 2.0**-24)
        return (mel - mel.mean(1, keepdim=True)) / (mel.std(1, keepdim=True) + 1e-5)


class SpeechEncoder(nn.Module):
    """Whisper-tiny's encoder: two convolutions over time, positions, four layers of width 384."""

    def __init__(self, bands: int = 80, width: int = 384, frames: int = 1000) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(bands, width, 3, 1, 1), nn.Conv1d(width, width, 3, 2, 1)
        self.positions = nn.Parameter(torch.randn(frames // 2, width) * 0.1)
        self.encoder = Encoder(width, 6, 4)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """float32 [batch, bands, frames] -> [batch, frames / 2, width]."""
        x = functional.gelu(self.second(functional.gelu(self.first(mel))))
        return self.encoder(x.transpose(1, 2) + self.positions)


class WideLSTM(nn.Module):
    """Two LSTM layers of 1024 and a linear layer over every step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(512, 1024, 2, batch_first=True), nn.Linear(1024, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])
