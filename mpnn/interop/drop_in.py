"""DropIn: a layer whose forward runs as message passing, in place, with its own signature and parameter names."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.func import functional_call

from mpnn.interop import watch
from mpnn.interop.bridge import Bridge, held, like, place, quietly


class DropIn:
    """What a converted layer has besides its own class: the core that computes, and the bridge that reads parameters.

    The parameters stay the layer's, under their names, so checkpoints load both ways; the core holds none and is lent
    views of them at every call. It is still an instance of its class, so what asks ``isinstance`` goes on.
    """

    core: nn.Module
    bridge: Bridge
    seen: list[watch.Part]
    training: bool
    _modules: dict[str, nn.Module | None]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.bridge.follow(self, self.core)
        if torch.compiler.is_compiling():
            return self.bridge.call(self, self.run, *args, **kwargs)
        watch.check(self, self.seen)  # type: ignore[arg-type]
        with _lock(self):  # one core, lent to one call at a time: threads that serve a model wait for each other
            return self.bridge.call(self, self.run, *args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The core on tokens, with the layer's parameters as they are now."""
        tensors = self.bridge.tensors(self, self.core)
        if torch.compiler.is_compiling():
            return functional_call(self.core, tensors, args, kwargs)
        core, slots = self.__dict__.get("slots", (None, None))
        slots = slots if core is self.core else self._find_slots(tensors)
        try:
            for slot, name, key in slots:  # as functional_call does, which takes 50 µs to find the places each time
                slot[name] = tensors[key]
            return self.core(*args, **kwargs)
        finally:
            for slot, name, _ in slots:
                slot[name] = None

    def _find_slots(self, tensors: dict[str, Any]) -> list[tuple[dict[str, Any], str, str]]:
        """Where the core holds each of these: the dict of its module and the name there."""
        slots: list[tuple[dict[str, Any], str, str]] = []
        for key in tensors:
            owner, _, name = key.rpartition(".")
            module = self.core.get_submodule(owner)
            slots.append((module._buffers if name in module._buffers else module._parameters, name, key))
        self.__dict__["slots"] = self.core, slots  # a replica of the layer has another core
        return slots

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own: the core holds nothing, and modules inside it may not bear to be asked."""
        original: Any = self.original
        core = self._modules.pop("core")
        try:
            return original.state_dict(self, *args, **kwargs)
        finally:
            self._modules["core"] = core

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        original: Any = self.original
        self.__dict__["_core_prefix"] = prefix + "core."
        original._load_from_state_dict(self, state_dict, prefix, *args)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return _empty, (self.original,), {k: v for k, v in self.__dict__.items() if k != "slots"}

    original: type[nn.Module]


def _without_core(layer: Any, keys: Any) -> None:
    """After loading: a batch norm inside the core misses its counter, adds it, and finds that nobody wants it."""
    keys.unexpected_keys[:] = [key for key in keys.unexpected_keys if not key.startswith(layer._core_prefix)]


_classes: dict[type[nn.Module], type[nn.Module]] = {}
_locks: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _lock(layer: Any) -> Any:
    """The lock of a layer, which neither copies nor pickles."""
    return _locks.get(layer) or _locks.setdefault(layer, RLock())


def _class(original: type[nn.Module]) -> type[nn.Module]:
    """The class of the drop-ins of a class of layers, made once."""
    if original not in _classes:

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            return DropIn.forward(self, *args, **kwargs)

        members: dict[str, Any] = {"original": original, "__module__": original.__module__}
        members["forward"] = wraps(original.forward)(forward)  # its signature and its words
        _classes[original] = type(original.__name__, (DropIn, original), members)
    return _classes[original]


def _empty(original: type[nn.Module]) -> nn.Module:
    cls = _class(original)
    return cls.__new__(cls)


def prepare(layer: nn.Module, bridge: Bridge) -> Callable[[], None]:
    """Make the core; the function that is returned turns the layer into a drop-in, and cannot fail."""
    core = like(quietly(lambda: bridge.configure(layer)), layer)
    expected, own = bridge.tensors(layer, core).keys(), held(core).keys()
    assert expected == own, (type(layer).__name__, sorted(expected ^ own))
    for name in list(own):
        place(core, name, None)

    def become() -> None:
        original = type(layer)
        layer.__class__ = _class(original)
        layer.core, layer.bridge = core, bridge  # type: ignore[assignment]
        bridge.enter(layer)
        layer.seen = watch.look(layer, bridge)  # type: ignore[assignment]
        layer.register_load_state_dict_post_hook(_without_core)

    return become


def revert(layer: nn.Module) -> None:
    """The layer of its own class again, with the parameters that it has now."""
    if type(layer) is not _class(layer.original):  # type: ignore[arg-type]
        raise ValueError(
            f"expected a {type(layer).__name__} of the class that convert gave it, got {type(layer)}; something else "
            "changed it since, as a parametrisation does: remove that first"
        )
    layer.bridge.leave(layer)  # type: ignore[union-attr, operator]
    layer.__class__ = layer.original  # type: ignore[assignment]
    hooks: Any = layer._load_state_dict_post_hooks
    for key in [key for key, hook in hooks.items() if hook is _without_core]:
        del hooks[key]
    layer.__dict__.pop("_core_prefix", None)
    del layer.core, layer.bridge, layer.seen
    layer.__dict__.pop("slots", None)
