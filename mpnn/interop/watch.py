"""What a layer is when its core is made, and whether it still is: a core follows parameters, not other parts."""

from __future__ import annotations

from typing import Any

from torch import nn

from mpnn.interop.bridge import Bridge

TAKEN = ("core", "bridge", "original", "slots", "seen")  # names that a drop-in puts into its layer
APART = (*TAKEN, "training")
PLAIN = (int, float, str, bool, tuple, type(None))
Seen = list[tuple[nn.Module, type, dict[str, Any], dict[str, Any], int]]


def hidden(layer: nn.Module, bridge: Bridge) -> list[str]:
    """What of a layer its core would pass by without a word, as reasons to leave it."""
    why = [f"it has a {name!r} of its own, the name of what converting adds" for name in TAKEN if hasattr(layer, name)]
    if "forward" in layer.__dict__:
        why.append("its forward was replaced on this object")
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


def look(layer: nn.Module, bridge: Bridge) -> Seen:
    """What is to stay: of the layer its plain attributes and parts, of the parts that are called also their classes."""
    if not bridge.watched:
        return []
    parts = [m for n, m in layer.named_modules() if n != "core" and not n.startswith("core.")]
    return [(m, *_now(m, bridge, m is layer)) for m in (parts if bridge.calls_parts else parts[:1])]


def check(layer: nn.Module, bridge: Bridge, seen: Seen) -> None:
    """Raise a RuntimeError where the layer was changed in a way that its core does not follow."""
    for module, kind, children, plain, hooks in seen:
        now_kind, now_children, now_plain, now_hooks = _now(module, bridge, module is layer)
        what = [name for name, value in plain.items() if name in now_plain and now_plain[name] != value]
        same = all(now_children.get(name) is part for name, part in children.items())  # a part more changes nothing
        if not what and same and (kind, hooks) == (now_kind, now_hooks):
            continue
        what = what or ["part, class or hook"]
        whose = type(layer).__name__ if module is layer else f"{type(layer).__name__}, in its {kind.__name__}"
        raise RuntimeError(
            f"expected {whose} as it was when it was converted, got another {', '.join(what)}; "
            "call revert(model), change it, and convert(model) again"
        )


def _now(module: nn.Module, bridge: Bridge, itself: bool) -> tuple[type, dict[str, Any], dict[str, Any], int]:
    plain = {
        k: v
        for k, v in module.__dict__.items()
        if isinstance(v, PLAIN) and k[0] != "_" and k not in APART and k not in bridge.followed
    }
    plain |= {k: p is None for k, p in module._parameters.items()}
    children = {name: part for name, part in module._modules.items() if not (itself and name == "core")}
    # A hook or a parametrisation of the layer itself runs around its forward, as ever.
    return (type(None), children, plain, 0) if itself else (type(module), children, plain, _hooks(module))


def _hooks(module: nn.Module) -> int:
    return len(module._forward_hooks) + len(module._forward_pre_hooks)
