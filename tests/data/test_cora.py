"""Cora from files in the form of its publication, made here, and downloads that fail in every way."""

from __future__ import annotations

import hashlib
import http.server
import pickle
import threading
import time

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mpnn.data import UsageError, cora, download_cora, has_cora
from mpnn.data.cora import SUMS, raw_folder
from mpnn.experiments.claims import nodes
from mpnn.experiments.claims.base import Size

NODES, TRAIN, TESTED, CLASSES = 560, 12, 40, 3  # the public split has 500 nodes for validation


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A chain of citations whose classes stand in its features, in the format of Yang et al. (2016)."""
    made = tmp_path_factory.mktemp("data")
    raw = raw_folder(made)
    raw.mkdir(parents=True)
    y = np.arange(NODES) % CLASSES
    x = np.zeros((NODES, 6), dtype=np.float32)
    x[np.arange(NODES), y] = x[np.arange(NODES), 3 + y] = 1
    labels = np.eye(CLASSES, dtype=np.int32)[y]
    seen = NODES - TESTED
    order = np.random.default_rng(0).permutation(np.arange(seen, NODES))  # the tested ones are stored in another order
    parts = {"x": csr_matrix(x[:TRAIN]), "allx": csr_matrix(x[:seen]), "tx": csr_matrix(x[order])}
    parts |= {"y": labels[:TRAIN], "ally": labels[:seen], "ty": labels[order]}
    parts["graph"] = {node: [other for other in (node - 3, node + 3) if 0 <= other < NODES] for node in range(NODES)}
    for name, part in parts.items():
        (raw / f"ind.cora.{name}").write_bytes(pickle.dumps(part, protocol=2))
    (raw / "ind.cora.test.index").write_text("".join(f"{node}\n" for node in order))
    return made


def test_it_is_read_as_it_was_published(folder):
    data = cora(folder)
    assert torch.equal(data.y, torch.arange(NODES) % CLASSES)
    assert torch.equal(data.x.argmax(-1), data.y)  # also of the tested ones, which are stored in another order
    torch.testing.assert_close(data.x.sum(-1), torch.ones(NODES))
    assert data.train.tolist() == list(range(TRAIN)) and data.test.tolist() == list(range(NODES - TESTED, NODES))
    assert data.edge_index.shape == (2, 2 * (NODES - 3))
    assert torch.equal((data.edge_index[0] - data.edge_index[1]).abs(), torch.full((2 * (NODES - 3),), 3))


def test_what_is_not_there_is_said_with_the_way_to_get_it(tmp_path):
    assert not has_cora(tmp_path)
    with pytest.raises(UsageError, match=r"Cora is not in .*raw; put the files ind\.cora\.\*"):
        cora(tmp_path)


def test_a_damaged_file_is_named(folder, tmp_path):
    raw = raw_folder(tmp_path)
    raw.mkdir(parents=True)
    for file in raw_folder(folder).iterdir():
        (raw / file.name).write_bytes(file.read_bytes()[:20])
    with pytest.raises(UsageError, match="cannot read the files in"):
        cora(tmp_path)


@pytest.fixture
def server(folder):
    """A place to download from, on this machine; `slow` answers late, `lies` with a page of its own."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            _, kind, name = self.path.split("/")
            if kind == "slow":
                time.sleep(3)
            body = b"<html>log in</html>" if kind == "lies" else (raw_folder(folder) / name).read_bytes()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def test_what_is_downloaded_is_checked_and_kept(server, folder, tmp_path, monkeypatch):
    for name in SUMS:
        content = (raw_folder(folder) / f"ind.cora.{name}").read_bytes()
        monkeypatch.setitem(SUMS, name, hashlib.sha256(content).hexdigest())
    download_cora(tmp_path, address=f"{server}/good")
    assert has_cora(tmp_path) and torch.equal(cora(tmp_path).x, cora(folder).x)


@pytest.mark.parametrize("kind", ["good", "lies"])
def test_another_content_is_refused_and_not_kept(kind, server, tmp_path):
    with pytest.raises(UsageError, match=r"ind\.cora\.x is not the published file"):  # the made one is not either
        download_cora(tmp_path, address=f"{server}/{kind}")
    assert not list(raw_folder(tmp_path).glob("*"))


def test_it_does_not_wait_for_long(server, tmp_path):
    started = time.monotonic()
    with pytest.raises(UsageError, match="Cora could not be downloaded"):
        download_cora(tmp_path, address=f"{server}/slow", seconds=0.3)
    assert time.monotonic() - started < 2


def test_without_a_network_the_experiment_goes_on_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("MPNN_DATA", str(tmp_path))
    asked = []
    monkeypatch.setattr(nodes, "download_cora", lambda: (asked.append(1), download_cora(address="http://127.0.0.1:9")))
    nodes.prepare(Size(1, 1))
    nodes.prepare(Size(1, 1, quick=True))
    assert asked == [1] and {part["graph"] for part in nodes.parts(Size(1, 1))} == {"made"}
    said = nodes.note([{"graph": "made"}])
    assert "Cora" in said and "\n" not in said and "planetoid/Cora/raw in the data folder" in said


def test_with_it_the_same_networks_are_trained_on_it(folder, monkeypatch):
    monkeypatch.setenv("MPNN_DATA", str(folder))
    nodes.citations.cache_clear()
    size = Size(1, 20)
    settings = [part for part in nodes.parts(size) if part["graph"] == "Cora"]
    assert [part["cell"] for part in settings] == list(nodes.CELLS)
    records = [part | nodes.run(part, size, lambda *_: None) for part in settings[:2]]
    assert all(record["accuracy"] > 0.9 for record in records)  # the features tell the class
    monkeypatch.setattr(nodes, "CELLS", {name: nodes.CELLS[name] for name in list(nodes.CELLS)[:2]})
    made = nodes.table(records)
    assert made.head[-1] == "Cora, published" and [row[-1] for row in made.rows] == ["55.1 %", "81.5 %"]
    assert nodes.note(records) == "" and nodes.charts(records)[0].marks["Graph × SharedKernel (GCN)"] == 81.5
    nodes.citations.cache_clear()
