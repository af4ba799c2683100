"""swap: another rule of who sends in the layers of a model, with their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import nn

from mpnn.checks import instance
from mpnn.interop.attention import Attention, check_told
from mpnn.interop.drop_in import DropIn
from mpnn.message_passing import MessagePassing
from mpnn.models import ResidualBlock
from mpnn.neighbours import Neighbours

Ruled = MessagePassing | Attention
Where = str | Iterable[str] | Callable[[str, nn.Module], bool] | None


def swap(model: nn.Module, *, neighbours: Neighbours, where: Where = None) -> list[str]:
    """Change who sends in a converted model, or in a model of ours, and keep its weights; returns the names changed.

    Args:
        neighbours: the new rule, shared by all layers that it is given to.
        where: names, globs (``"encoder.*"``) or a function ``(name, layer) -> bool``; by default every layer whose
            weight is attention, without those between two sets of tokens: the cross-attention of a decoder of torch or
            Hugging Face, ``cross`` of a :class:`~mpnn.models.ResidualBlock`. What a ``nn.MultiheadAttention`` alone
            will be called with is not known before, so it is among them.

    A layer of PyG with a rule that makes its own edges is called with ``edge_index=None``.

    Raises:
        ValueError: where a name matches no layer, a layer's weight does not fit the rule, or its calls cannot tell what
            the rule is to be told (edges, a grid's size); then nothing is changed.

    Example::

        >>> import torch
        >>> from mpnn.interop import convert, swap
        >>> from mpnn.neighbours import Window
        >>> model = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True))
        >>> report = convert(model)
        >>> swap(model, neighbours=Window(3))
        ['0.layer']
    """
    instance("model", model, nn.Module, "a model")
    instance("neighbours", neighbours, Neighbours, "a rule of mpnn.neighbours")
    layers = _layers(model)
    if not layers:
        raise ValueError("expected a model with layers of mpnn, got none that has a rule; convert(model) first")
    chosen = _chosen(model, layers, where)
    kinds = {name: module.bridge.kind for name, module in model.named_modules() if isinstance(module, DropIn)}
    for name in chosen:
        try:
            for part in {"", *_ancestors(name)} & kinds.keys():  # a layer of another library brings what that knows
                check_told(neighbours, {"graph": "edges", "convolution": "grid"}.get(kinds[part]))
            _check_rule(layers[name], neighbours)
        except ValueError as error:
            raise ValueError(f"{name or 'the model'} cannot take {neighbours}: {error}") from None
    if not chosen:
        no = "no attention among them" if where is None else "where chose none of them"
        raise ValueError(
            f"expected a layer to give {neighbours} to, got {', '.join(layers)}: {no}; name some in where="
        )
    for name in chosen:
        layers[name].neighbours = neighbours
    return chosen


def _check_rule(layer: Ruled, neighbours: Neighbours) -> None:
    """Raise where the layer's weight does not fit the rule."""
    if isinstance(layer, Attention):
        layer.check_rule(neighbours)
    else:
        MessagePassing(neighbours, layer.weight)  # its door is the one of this layer


def _layers(model: nn.Module) -> dict[str, Ruled]:
    """The layers that have a rule, by their names in the model as people know it: without what converting added."""
    found: dict[str, Ruled] = {}
    added: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, DropIn):
            added.add(f"{name}.core" if name else "core")
        if isinstance(module, MessagePassing | Attention):
            parts = name.split(".")
            known = [part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in added]
            found[".".join(known)] = module
    return found


def _chosen(model: nn.Module, layers: dict[str, Ruled], where: Where) -> list[str]:
    """The names that ``where`` means; a name or glob of a parent means all layers below it."""
    if where is None:
        across = [block.cross for block in model.modules() if isinstance(block, ResidualBlock)]
        return [name for name, layer in layers.items() if _attends(layer) and not any(layer is c for c in across)]
    if callable(where):
        return [name for name, layer in layers.items() if where(name, layer)]
    if isinstance(where, bytes) or not isinstance(where, Iterable):
        raise TypeError(f"expected where to be names, globs or a function (name, layer) -> bool, got {where!r}")
    chosen: dict[str, None] = {}
    for pattern in (where,) if isinstance(where, str) else tuple(where):
        matching = [name for name in layers if any(fnmatchcase(part, pattern) for part in _ancestors(name))]
        if not matching:
            raise ValueError(
                f"expected where to name layers with a rule, got {pattern!r}; they are {', '.join(layers)}"
            )
        chosen |= dict.fromkeys(matching)
    return list(chosen)


def _attends(layer: Ruled) -> bool:
    """Whether a layer is attention among the tokens of one set, which is what a new rule is meant for."""
    if isinstance(layer, Attention):
        return not layer.between
    return layer.weight.normalise == "softmax"


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
