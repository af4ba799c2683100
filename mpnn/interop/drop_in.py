"""DropIn: a layer whose forward runs as message passing, in place, with its own signature and parameter names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.func import functional_call

from mpnn.interop.bridge import Bridge, like, quietly


class DropIn:
    """What a converted layer has besides its own class: the core that computes, and the bridge that reads parameters.

    The parameters stay the layer's, under their names, so checkpoints load both ways; the core holds none and is lent
    views of them at every call. It is still an instance of its class, so what asks ``isinstance`` goes on.
    """

    core: nn.Module
    bridge: Bridge
    training: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.bridge.follow(self, self.core)
        return self.bridge.call(self, self.run, *args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The core on tokens, with the layer's parameters as they are now."""
        return functional_call(self.core, self.bridge.tensors(self, self.core), args, kwargs)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return _empty, (self.original,), self.__dict__

    original: type[nn.Module]


_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _class(original: type[nn.Module]) -> type[nn.Module]:
    """The class of the drop-ins of a class of layers, made once."""
    if original not in _classes:
        members = {"original": original, "__module__": original.__module__}
        _classes[original] = type(original.__name__, (DropIn, original), members)
    return _classes[original]


def _empty(original: type[nn.Module]) -> nn.Module:
    cls = _class(original)
    return cls.__new__(cls)


def prepare(layer: nn.Module, bridge: Bridge) -> Callable[[], None]:
    """Make the core; the function that is returned turns the layer into a drop-in, and cannot fail."""
    core = like(quietly(lambda: bridge.configure(layer)), layer)
    expected, own = bridge.tensors(layer, core).keys(), dict(core.named_parameters()).keys()
    assert expected == own, (type(layer).__name__, sorted(expected ^ own))
    for module in core.modules():
        module._parameters.update(dict.fromkeys(module._parameters))

    def become() -> None:
        original = type(layer)
        layer.__class__ = _class(original)
        layer.core, layer.bridge = core, bridge  # type: ignore[assignment]
        bridge.enter(layer)

    return become


def revert(layer: nn.Module) -> None:
    """The layer of its own class again, with the parameters that it has now."""
    layer.bridge.leave(layer)  # type: ignore[union-attr, operator]
    layer.__class__ = layer.original  # type: ignore[assignment]
    del layer.core, layer.bridge
