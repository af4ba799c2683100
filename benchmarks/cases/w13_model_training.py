"""W13 on images and text: one training step of a small CNN and of a causal language model, beside plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks import steps
from benchmarks.case import TRAIN, Case, Entry, Work
from benchmarks.tensors import normal, seeded
from mpnn.models import CNN, Transformer
from mpnn.neighbours import AllTokens

BATCH, SIDE = 128, 28
LENGTH, WIDTH, DEPTH, HEADS, WORDS = 1024, 256, 4, 4, 1000


class Plain(nn.Module):
    """The same convolutions by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.head(x.mean((-2, -1)))


def cnn() -> Case:
    """Two layers of 32 and 64 channels, mean over cells, on 128 images of MNIST's size."""
    seeded()
    ours = CNN(1, (32, 64), 10, size=(SIDE, SIDE), stride=(1, 2), padding=1)
    own = dict(ours.named_parameters())
    rename = {
        f"blocks.{i}.layer.weight.{p}": f"{n}.{p}"
        for i, n in enumerate(("first", "second"))
        for p in ("weight", "bias")
    }
    rename |= {f"readout.linear.{p}": f"head.{p}" for p in ("weight", "bias")}
    x = normal(BATCH, SIDE * SIDE, 1).detach()
    image = x.view(BATCH, 1, SIDE, SIDE)
    labels = torch.randint(10, (BATCH,), generator=torch.Generator().manual_seed(5))
    sides = [steps.side("mpnn", own, lambda: ours(x), labels)]
    for name, layout in (("nn.Conv2d", torch.contiguous_format), ("nn.Conv2d, channels-last", torch.channels_last)):
        model = Plain().to(memory_format=layout)
        there = steps.copied(model, {rename[n]: p for n, p in own.items()})
        given = image.to(memory_format=layout)
        sides.append(steps.side(name, {n: there[rename[n]] for n in own}, lambda m=model, g=given: m(g), labels))
    case = Case(sides[0], sides[1:], Work(), Work(), ours.blocks[0].layer.plan(x).kernel)
    case.tolerance = 2e-3  # where rounding moves a cell over ReLU's kink, its whole term comes or goes
    return case


class Language(nn.Module):
    """Embedded words through a stack of causal blocks."""

    def __init__(self, body: nn.Module, **fixed: object) -> None:
        super().__init__()
        self.words, self.body, self.fixed = nn.Embedding(WORDS, WIDTH), body, fixed

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(self.words(ids), **self.fixed)


class Stack(nn.Module):
    """torch's encoder with a Linear at its end."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, DEPTH, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.layers(x, mask, is_causal=True))


# the parts of our block → those of nn.TransformerEncoderLayer
PARTS = {
    "layer.weight.output": "self_attn.out_proj",
    "mlp.0": "linear1",
    "mlp.3": "linear2",
    "norm1": "norm1",
    "norm2": "norm2",
}


def language_model() -> Case:
    """Four blocks of 256 channels and 4 heads on one text of 1,024 tokens."""
    seeded()
    body = Transformer(None, WIDTH, DEPTH, WORDS, heads=HEADS, neighbours=AllTokens(causal=True), readout="none")
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    ours, theirs = Language(body), Language(Stack(), mask=mask)
    own = dict(ours.named_parameters())
    single, whole = {"words.weight": "words.weight"}, {}
    for kind in ("weight", "bias"):
        single |= {
            f"body.readout.norm.{kind}": f"body.layers.norm.{kind}",
            f"body.readout.linear.{kind}": f"body.head.{kind}",
        }
        for i in range(DEPTH):
            mine, torchs = f"body.blocks.{i}", f"body.layers.layers.{i}"
            single |= {f"{mine}.{a}.{kind}": f"{torchs}.{b}.{kind}" for a, b in PARTS.items()}
            whole[f"{torchs}.self_attn.in_proj_{kind}"] = [
                f"{mine}.layer.weight.{part}.{kind}" for part in ("query", "key", "value")
            ]
    numbers = {there: own[mine] for mine, there in single.items()}
    numbers |= {there: torch.cat([own[m] for m in mine]) for there, mine in whole.items()}
    there = steps.copied(theirs, numbers)
    views = {name: (lambda g, m=mine: dict(zip(m, g.chunk(3), strict=True))) for name, mine in whole.items()}
    leaves = {mine: there[name] for mine, name in single.items()} | {name: there[name] for name in whole}
    generator = torch.Generator().manual_seed(6)
    ids, labels = (torch.randint(WORDS, (1, LENGTH), generator=generator) for _ in range(2))
    sides = [
        steps.side("mpnn", own, lambda: ours(ids), labels),
        steps.side("nn.TransformerEncoder", leaves, lambda: theirs(ids), labels, views),
    ]
    kernel = body.blocks[0].layer.plan(normal(1, LENGTH, WIDTH)).kernel
    return Case(sides[0], sides[1:], Work(), Work(), kernel)


def entries() -> list[Entry]:
    floors = {(TRAIN, "best"): 0.95}
    return [
        Entry("W13/cnn", f"training step, CNN on {BATCH} images of {SIDE}×{SIDE}", cnn, {"N": BATCH * SIDE**2}, floors),
        Entry(
            "W13/lm",
            f"training step, {DEPTH}-layer causal model, {LENGTH} tokens",
            language_model,
            {"N": LENGTH},
            floors,
        ),
    ]
