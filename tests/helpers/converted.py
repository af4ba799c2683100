"""A model of many layers to be converted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ALL = ("attention", "convolution", "graph", "linear")


class Model(nn.Module):
    """An image as patches, a Transformer on them, a classifier; one convolution stands twice."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 8, 2, stride=2)
        self.mix = nn.Conv2d(8, 8, 3, padding=1)
        self.twice = nn.ModuleList([self.mix, self.mix])
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.pool = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image)
        for layer in self.twice:
            x = x + layer(x).relu()
        x = self.encoder(x.flatten(2).transpose(1, 2))
        return self.head(self.pool(x[:, :1], x, x)[0].squeeze(1))


def model() -> Model:
    return Model().double()


def image() -> Tensor:
    return torch.randn(2, 1, 8, 6, dtype=torch.float64)


NAMES = ["patch", "mix", "encoder.layers.0", "encoder.layers.1", "pool"]
