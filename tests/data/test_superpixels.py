"""Graphs of superpixels beside scikit-image's own graph of regions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage.graph import RAG
from skimage.segmentation import slic

from mpnn.data.superpixels import COMPACTNESS, SEGMENTS, superpixels


@pytest.fixture(scope="module")
def images():
    y, x = np.mgrid[:28, :28] / 27
    return np.stack([x * y, np.sin(6 * x) ** 2 * y, np.abs(x - y)])


def labels(image):
    found = slic(image, SEGMENTS, COMPACTNESS, start_label=0, channel_axis=None)
    return np.unique(found, return_inverse=True)[1].reshape(image.shape)


def test_edges_are_those_of_the_region_adjacency_graph(images):
    made = superpixels(images, np.arange(3))
    for graph, image in enumerate(images):
        a, b = made.node_ends[graph].item(), made.node_ends[graph + 1].item()
        c, d = made.edge_ends[graph].item(), made.edge_ends[graph + 1].item()
        theirs = RAG(labels(image), connectivity=1)
        assert b - a == theirs.number_of_nodes()
        ours = {tuple(pair) for pair in (made.edge_index[:, c:d] - a).T.tolist()}
        assert ours == {(u, v) for u, v in theirs.edges} | {(v, u) for u, v in theirs.edges}


def test_a_node_has_the_mean_of_its_segment_and_its_centre(images):
    made = superpixels(images[:1], np.zeros(1))
    segment = labels(images[0]) == 3
    rows, columns = np.nonzero(segment)
    wanted = [images[0][segment].mean(), rows.mean() / 27 * 2 - 1, columns.mean() / 27 * 2 - 1]
    assert made.x[3].tolist() == pytest.approx(wanted, abs=1e-6)


def test_some_graphs_are_renumbered_as_one(images):
    made = superpixels(images, np.array([4, 5, 6]))
    (x, edge_index, batch), y = made.some(torch.tensor([2, 0]))
    assert y.tolist() == [6, 4]
    ends = made.node_ends.tolist()
    assert torch.equal(x, torch.cat([made.x[ends[2] : ends[3]], made.x[: ends[1]]]))
    assert bool((batch[edge_index[0]] == batch[edge_index[1]]).all())
    last = made.edge_index[:, made.edge_ends[2] :] - ends[2]
    assert torch.equal(edge_index[:, : last.shape[1]], last)
