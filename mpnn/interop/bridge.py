"""Bridge: how one kind of layer is a configuration of message passing, and how it is called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.message_passing import MessagePassing


class Refused(ValueError):
    """A layer, an option or a core that has no counterpart, with the reason."""


class Unlike(Refused):
    """A core that another kind of layer computes: of no interest where a layer comes nearer."""


class Bridge(ABC):
    """One kind of layer beside its core, the message passing that computes the same.

    The core's parameters are views of the layer's, and :meth:`tensors` names them. Copying, sharing, giving back and
    standing in for the layer all go through these views, so nothing can be lost on one of the ways only.
    """

    # whose layers these are: another library is not imported to look at a layer of this one; None asks about all
    library: str | None = "torch"
    kind: str  # "linear", "convolution", "attention" or "graph": what ``convert(kinds=)`` chooses by
    calls_parts = True  # whether the layer calls its sub-modules, in whose place the core then stands
    watched = True  # whether a change of the layer's options after converting is an error
    followed: frozenset[str] = frozenset()  # options that :meth:`follow` takes over
    structure: tuple[str, ...] = ()  # keywords of from_layer that this bridge reads

    @abstractmethod
    def layers(self) -> tuple[type[nn.Module], ...]:
        """The classes of layers; libraries are imported here, not before."""

    def takes(self, layer: nn.Module) -> bool:
        """Whether this bridge is the layer's; a subclass may compute something else, so it is not taken."""
        return type(layer) in self.layers()

    def refuse(self, layer: Any) -> list[str]:
        """The options of this layer that have no configuration, by name and with the reason."""
        return []

    @abstractmethod
    def configure(self, layer: Any, *_: Any, **structure: Any) -> nn.Module:
        """The core with parameters of its own: a MessagePassing, or a module made of several."""

    @abstractmethod
    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        """Every parameter and persistent buffer of the core by its name, as a differentiable view of the layer's.

        A parameter of another layout than the layer's may be a copy in another order, with a sign: a map whose inverse
        is its transpose. Then it cannot be shared.
        """

    @abstractmethod
    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        """A layer of the core's numbers, and the structure with which it gives this core; raises :class:`Refused`."""

    def options(self, layer: Any) -> dict[str, Any]:
        """What the core does not tell of the layer: its calling convention, initial values and the like."""
        return {}

    def enter(self, layer: Any) -> None:
        """Change what else changes when the layer becomes a drop-in; it cannot fail."""
        return

    def leave(self, layer: Any) -> None:
        """Undo :meth:`enter`."""
        return

    @abstractmethod
    def call(self, layer: Any, core: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The layer's own call by the core, a function of tokens: same arguments, same result."""

    def follow(self, layer: Any, core: Any) -> None:
        """Take over what people change of a layer between two calls, as its dropout."""
        return


def quietly(make: Callable[[], Any]) -> Any:
    """Make modules whose parameters are filled afterwards, without a step of the global random state."""
    state = torch.get_rng_state()
    try:
        return make()
    finally:
        torch.set_rng_state(state)


def like(core: nn.Module, layer: nn.Module) -> nn.Module:
    """The core with the layer's dtype, device and train or eval state."""
    first = next((t for t in held(layer).values() if t.is_floating_point()), None)
    if first is not None:
        core.to(device=first.device, dtype=first.dtype)
    return core.train(layer.training)


def described(core: Any) -> str:
    """A core in a few words: its two rules, or its class."""
    if isinstance(core, MessagePassing):
        return f"{core.neighbours} × {type(core.weight).__name__}"
    return type(core).__name__


def held(core: nn.Module) -> dict[str, Tensor]:
    """What a core holds and a layer lends it: all parameters and persistent buffers, by name."""
    return core.state_dict(keep_vars=True)


def lent(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    """All that a module holds, by the names that it has below ``prefix``: for a core with a copy of the module."""
    return {f"{prefix}.{name}": tensor for name, tensor in held(module).items()}


def place(core: nn.Module, name: str, tensor: Tensor | None) -> None:
    """Put a tensor where the core holds a parameter or buffer, as it is."""
    owner, _, last = name.rpartition(".")
    module = core.get_submodule(owner)
    if last in module._buffers:
        module._buffers[last] = tensor
    else:
        module._parameters[last] = tensor  # type: ignore[assignment]


def settings(core: nn.Module) -> dict[str, Any]:
    """What a core computes, apart from its parameters' values: classes, plain settings and shapes of all modules."""
    plain = (int, float, str, bool, tuple, type(None))
    found: dict[str, Any] = {}
    for name, module in core.named_modules():
        dot = name and name + "."
        found[name or "class"] = f"{type(module).__module__}.{type(module).__qualname__}"
        for key, value in vars(module).items():
            if isinstance(value, plain) and not key.startswith("_") and key not in ("training", "origin", "revision"):
                found[dot + key] = value
        found |= {dot + k: p is not None and tuple(p.shape) for k, p in module._parameters.items()}
        found |= {dot + k: b is not None and (tuple(b.shape), b.dtype) for k, b in module._buffers.items()}
    return found


def differences(a: nn.Module, b: nn.Module) -> list[str]:
    """Where the settings of two cores differ, in words; none where they compute the same."""
    ours, theirs = settings(a), settings(b)
    keys = [k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k)]
    return [f"{k}={ours.get(k)!r} instead of {theirs.get(k)!r}" for k in keys]


def shortened(words: list[str], most: int, joined: str) -> str:
    """The first of some reasons, and how many more there are."""
    return joined.join([*words[:most], *([f"and {len(words) - most} more"] if len(words) > most else [])])
