"""What a layer is when its core is made, and whether it still is: a core follows parameters, not other parts."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from mpnn.interop.bridge import Bridge

TAKEN = ("core", "bridge", "original", "slots", "seen")  # names that a drop-in puts into its layer
APART = (*TAKEN, "training")
PLAIN = (int, float, str, bool, tuple, type(None))


class Part(NamedTuple):
    """What one module was: tuples, which are compared without making anything, since that happens at every call."""

    module: nn.Module
    kind: type | None  # None for the layer itself, whose hooks and parametrisations run around its forward, as ever
    children: tuple[tuple[str, Any], ...]
    plain: tuple[tuple[str, Any], ...]
    missing: tuple[tuple[str, bool], ...]  # which parameters were None
    hooks: int


def taken(layer: nn.Module) -> list[str]:
    """What of a layer stands in the way of a drop-in, as reasons to leave it."""
    return [f"it has a {name!r} of its own, the name of what converting adds" for name in TAKEN if hasattr(layer, name)]


def hidden(layer: nn.Module, bridge: Bridge) -> list[str]:
    """What of a layer its core would pass by without a word, as reasons to leave it."""
    why = ["its forward was replaced on this object"] if "forward" in layer.__dict__ else []
    if not bridge.calls_parts:
        return why
    for name, part in layer.named_modules():
        if name and (_hooks(part) or "forward" in part.__dict__ or hasattr(part, "parametrizations")):
            why.append(f"{name} has hooks, a parametrisation or another forward, which its core would not run")
        elif name and part.training != layer.training:
            why.append(f"{name} is in another mode, training={part.training}; set one mode for all of the layer")
    for name, part in layer.named_children():
        linear = isinstance(part, nn.Linear) and type(part) is not nn.Linear
        if linear or isinstance(getattr(type(part), "weight", None), property):
            why.append(f"{name} is a {type(part).__name__}, whose own forward its core would not run")
    return why


def look(layer: nn.Module, bridge: Bridge) -> list[Part]:
    """What is to stay: of the layer its plain attributes and parts, of the parts that are called also their classes."""
    if not bridge.watched:
        return []
    own = [m for name, m in layer.named_modules() if name != "core" and not name.startswith("core.")]
    return [_part(m, bridge, m is layer) for m in (own if bridge.calls_parts else own[:1])]


def _part(module: nn.Module, bridge: Bridge, itself: bool) -> Part:
    plain = [
        (name, value)
        for name, value in module.__dict__.items()
        if isinstance(value, PLAIN) and name[0] != "_" and name not in APART and name not in bridge.followed
    ]
    children = [(name, part) for name, part in module._modules.items() if not (itself and name == "core")]
    missing = [(name, parameter is None) for name, parameter in module._parameters.items()]
    kind = None if itself else type(module)
    return Part(module, kind, tuple(children), tuple(plain), tuple(missing), 0 if itself else _hooks(module))


def check(layer: nn.Module, seen: list[Part]) -> None:
    """Raise a RuntimeError where the layer was changed in a way that its core does not follow."""
    for module, kind, children, plain, missing, hooks in seen:
        now, parts, parameters = module.__dict__, module._modules, module._parameters
        what = [name for name, value in plain if (other := now.get(name, value)) is not value and _differ(other, value)]
        what += [name for name, part in children if parts.get(name) is not part]
        what += [name for name, none in missing if name in parameters and (parameters[name] is None) != none]
        if kind is not None and (type(module) is not kind or _hooks(module) != hooks):
            what.append("class or hook")
        if what:
            whose = type(layer).__name__ if kind is None else f"{type(layer).__name__}, in its {kind.__name__}"
            raise RuntimeError(
                f"expected {whose} as it was when it was converted, got another {', '.join(what)}; "
                "call revert(model), change it, and convert(model) again"
            )


def _differ(other: Any, value: Any) -> bool:
    """Whether an option has another value; a tensor in its place is something that the layer keeps for itself."""
    return isinstance(other, PLAIN) and other != value


def _hooks(module: nn.Module) -> int:
    return len(module._forward_hooks) + len(module._forward_pre_hooks)
