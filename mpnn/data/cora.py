"""Cora, a graph of citations: read where it lies, or downloaded."""

from __future__ import annotations

import hashlib
import pickle
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from mpnn.data.errors import UsageError, require
from mpnn.data.files import data_folder, replacing

# Where the files were published (Yang et al., 2016, arXiv:1603.08861), in the form that PyG's Planetoid keeps them in.
ADDRESS = "https://github.com/kimiyoung/planetoid/raw/master/data"
SUMS = {
    "x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
}
HOW = (
    "put the files ind.cora.* of github.com/kimiyoung/planetoid into planetoid/Cora/raw in the data folder "
    "($MPNN_DATA, else ~/.cache/mpnn)"
)


@dataclass(frozen=True)
class Nodes:
    """A graph whose nodes are to be told apart: which are trained and which are tested on.

    Shapes: x (N, C) · y (N,) · edge_index (2, E) · train, test (some of N,)
    """

    x: Tensor
    y: Tensor
    edge_index: Tensor
    train: Tensor
    test: Tensor


def raw_folder(folder: str | Path | None = None) -> Path:
    """Where the files lie: below the `root` of PyG's `Planetoid`, so that either reads what the other has brought."""
    return (Path(folder) if folder is not None else data_folder()) / "planetoid" / "Cora" / "raw"


def has_cora(folder: str | Path | None = None) -> bool:
    """Whether all files are there."""
    return all((raw_folder(folder) / f"ind.cora.{name}").exists() for name in SUMS)


def cora(folder: str | Path | None = None) -> Nodes:
    """Cora with its public split, the words of a text as parts of one: 2,708 texts, 140 of them to learn from.

    Args:
        folder: of the data; by default `$MPNN_DATA`, else the user's cache folder. Nothing is downloaded here.

    Raises:
        UsageError: a file that is missing or cannot be read, or PyG is not installed.
    """
    require("torch_geometric", purpose="reading Cora")
    from torch_geometric.io import read_planetoid_data

    raw = raw_folder(folder)
    if not has_cora(folder):
        raise UsageError(f"Cora is not in {raw}; {HOW}")
    try:
        with warnings.catch_warnings():  # of scipy and numpy: the files were pickled by versions of long ago
            warnings.simplefilter("ignore")
            graph = read_planetoid_data(str(raw), "cora")
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError) as error:
        raise UsageError(f"cannot read the files in {raw} ({error}); delete them, and {HOW}") from error
    x = graph.x / graph.x.sum(-1, keepdim=True).clamp(min=1)
    train, test = (mask.nonzero().squeeze(-1) for mask in (graph.train_mask, graph.test_mask))
    return Nodes(x, graph.y, graph.edge_index, train, test)


def download_cora(folder: str | Path | None = None, *, seconds: float = 20, address: str = ADDRESS) -> None:
    """Download the files (0.6 MB), each checked against its published content before it is kept.

    Args:
        seconds: after these, a download that is not finished is given up, whatever it waits for.

    Raises:
        UsageError: no network, another content, or too slow.
    """
    import http.client  # with its certificates: only where there is something to download
    import urllib.request

    raw, failed = raw_folder(folder), []

    def bring() -> None:
        try:
            for name, known in SUMS.items():
                with urllib.request.urlopen(f"{address}/ind.cora.{name}", timeout=seconds) as answer:
                    content = answer.read()
                if hashlib.sha256(content).hexdigest() != known:
                    raise OSError(f"ind.cora.{name} is not the published file")
                with replacing(raw / f"ind.cora.{name}") as new:
                    new.write_bytes(content)
        except (OSError, http.client.HTTPException) as error:
            failed.append(str(error))

    # A name that is looked up has no time limit of its own; a thread is left behind where it waits.
    thread = threading.Thread(target=bring, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        failed.append(f"nothing came within {seconds:g} seconds")
    elif not (failed or has_cora(folder)):
        failed.append("the files did not come")
    if failed:
        raise UsageError(f"Cora could not be downloaded ({failed[0]}); {HOW}")
