"""ONNX: the four architectures and a converted model, with sizes left open, run by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mpnn.interop import convert
from mpnn.models import CNN, GNN, MLP, Transformer

runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'mpnn[onnx]'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'mpnn[onnx]'")

pytestmark = pytest.mark.filterwarnings(
    "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning",  # torch: its exporter still asks so
)


class Padded(nn.Module):
    """A network whose mask is an argument by place, since the exporter names inputs by theirs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.network(x, mask=mask)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    convert(net)
    return net


def images(count: int) -> tuple[Tensor, ...]:
    return (torch.randn(count, 48, 1),)


def graph(nodes: int, edges: int) -> tuple[Tensor, ...]:
    return torch.randn(nodes, 3), torch.randint(nodes, (2, edges))


def tokens(batch: int, count: int, channels: int = 4) -> tuple[Tensor, ...]:
    return (torch.randn(batch, count, channels),)


def padded(batch: int, count: int) -> tuple[Tensor, ...]:
    return *tokens(batch, count), torch.rand(batch, count) < 0.7


SEQUENCES = (0, 1)
# Of each: how it is made, calls of two sizes, and the axes of its inputs that stay open.
CASES: dict[str, tuple[Callable[[], nn.Module], list[tuple[Tensor, ...]], tuple[tuple[int, ...], ...]]] = {
    "MLP": (lambda: MLP((6, 8, 3)), [(torch.randn(n, 6),) for n in (4, 7)], ((0,),)),
    "CNN": (lambda: CNN(1, (4,), 3, size=(8, 6), stride=2, padding=1), [images(2), images(5)], ((0,),)),
    "GNN": (lambda: GNN(3, (8,), 2), [graph(4, 9), graph(7, 5)], ((0,), (1,))),
    "Transformer": (
        lambda: Padded(Transformer(4, 8, 1, 3, heads=2)),
        [padded(2, 6), padded(3, 9)],
        (SEQUENCES, SEQUENCES),
    ),
    "converted encoder": (encoder, [tokens(2, 6, 8), tokens(3, 9, 8)], (SEQUENCES,)),
}


def opened(axes: tuple[tuple[int, ...], ...]) -> tuple[dict, ...]:
    return tuple(dict.fromkeys(of_one, torch.export.Dim.DYNAMIC) for of_one in axes)


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_computes_the_same(name: str, tmp_path: Path) -> None:
    make, calls, axes = CASES[name]
    net, file = make().eval(), str(tmp_path / "model.onnx")
    program = torch.onnx.export(net, calls[0], dynamo=True, dynamic_shapes=opened(axes), verbose=False)
    assert program is not None
    program.save(file)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for call in calls:
        given = {i.name: t.numpy() for i, t in zip(session.get_inputs(), call, strict=True)}
        found = torch.from_numpy(session.run(None, given)[0])
        torch.testing.assert_close(found, net(*call).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["GNN", "Transformer"])
def test_an_exported_program_takes_other_sizes(name: str) -> None:
    make, calls, axes = CASES[name]
    net = make().eval()
    program = torch.export.export(net, calls[0], dynamic_shapes=opened(axes), strict=False).module()
    for call in calls:
        torch.testing.assert_close(program(*call), net(*call))
