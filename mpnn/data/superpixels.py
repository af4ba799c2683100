"""Images as graphs of superpixels, by scikit-image's SLIC."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mpnn.data.errors import require
from mpnn.data.files import data_folder, replacing
from mpnn.data.load import as_made

SEGMENTS, COMPACTNESS = 50, 0.1  # the compactness goes with grey values from 0 to 1


@dataclass(frozen=True)
class Graphs:
    """Labelled graphs, one after the other.

    Shapes: x (nodes, channels) · edge_index (2, E), numbered over all nodes · y (graphs,) · ends of the graphs in the
    nodes and in the edges (graphs + 1,).
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor
    node_ends: Tensor
    edge_ends: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def some(self, which: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Some graphs as one, `(x, edge_index, batch)`, and their labels."""
        nodes, edges, counts, start = [], [], [], 0
        for graph in which.tolist():
            a, b = self.node_ends[graph : graph + 2].tolist()
            c, d = self.edge_ends[graph : graph + 2].tolist()
            nodes.append(self.x[a:b])
            edges.append(self.edge_index[:, c:d] + (start - a))
            counts.append(b - a)
            start += b - a
        batch = torch.arange(len(which)).repeat_interleave(torch.tensor(counts))
        return (torch.cat(nodes), torch.cat(edges, 1), batch), self.y[which]


def superpixels(images: np.ndarray, labels: np.ndarray) -> Graphs:
    """Grey images (S, H, W) with values from 0 to 1: a node is a segment, an edge joins two that touch, both ways.

    A node has the mean grey value of its segment and the place of its centre, from -1 to 1.

    Source: Achanta et al., 2012; superpixel graphs of MNIST: Monti et al., 2017, Dwivedi et al., 2020.
    """
    slic = require("skimage.segmentation", purpose="superpixels", install="scikit-image").slic
    size = np.array(images.shape[1:])
    places = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), -1) / (size - 1) * 2 - 1
    nodes, edges, node_ends, edge_ends = [], [], [0], [0]
    for image in images:
        found = slic(image, SEGMENTS, COMPACTNESS, start_label=0, channel_axis=None)
        _, found = np.unique(found, return_inverse=True)
        found = found.reshape(image.shape)
        count = np.bincount(found.ravel())
        values = [image, places[..., 0], places[..., 1]]
        nodes.append(np.stack([np.bincount(found.ravel(), v.ravel()) / count for v in values], 1))
        down, right = (found[:-1], found[1:]), (found[:, :-1], found[:, 1:])
        pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in (down, right)])
        pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
        both = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
        edges.append(both + node_ends[-1])
        node_ends.append(node_ends[-1] + len(count))
        edge_ends.append(edge_ends[-1] + len(both))
    return Graphs(
        torch.from_numpy(np.concatenate(nodes)).float(),
        torch.from_numpy(np.concatenate(edges).T.copy()).long(),
        torch.from_numpy(np.asarray(labels)).long(),
        torch.tensor(node_ends),
        torch.tensor(edge_ends),
    )


def superpixels_of_mnist5k(count: int, folder: Path | None = None) -> tuple[Graphs, Graphs]:
    """Training and test graphs of mnist5k, the first `count` training images and a quarter as many others; kept."""
    version = require("skimage", purpose="superpixels", install="scikit-image").__version__
    kept = (folder or data_folder()) / f"superpixels-mnist5k-{count}-{SEGMENTS}-{version}.pt"
    if not kept.exists():
        arrays = as_made("mnist5k", folder=folder)
        made = [
            superpixels(np.asarray(arrays[f"x_{part}"][:n, ..., 0]), arrays[f"y_{part}"][:n])
            for part, n in (("train", count), ("test", count // 4))
        ]
        with replacing(kept) as new:
            torch.save([vars(one) for one in made], new)
    train, test = (Graphs(**one) for one in torch.load(kept, weights_only=True))
    return train, test
