"""from_layer and to_layer: one layer as message passing, and back."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.checks import hint, instance
from mpnn.interop.bridge import Bridge, Refused, Unlike, described, differences, held, like, place, quietly, shortened
from mpnn.interop.bridges import BRIDGES, OUT_OF_SCOPE
from mpnn.interop.drop_in import DropIn
from mpnn.interop.watch import hidden
from mpnn.message_passing import MessagePassing


def find(layer: nn.Module, bridges: tuple[Bridge, ...] = BRIDGES) -> Bridge | None:
    """The bridge that takes a layer, or None; only that of the layer's own library is asked, which is loaded then."""
    library = type(layer).__module__.partition(".")[0]
    return next((bridge for bridge in bridges if bridge.library in (library, None) and bridge.takes(layer)), None)


def reasons(layer: nn.Module, bridges: tuple[Bridge, ...] = BRIDGES) -> list[str]:
    """Why this layer is no message passing of ours, in words; none where it is."""
    bridge = find(layer, bridges)
    if bridge is not None:
        return bridge.refuse(layer)
    name = type(layer).__name__
    if isinstance(layer, DropIn):
        return [f"{name} is converted already; revert(model) gives the layer back"]
    if name in OUT_OF_SCOPE:
        return [f"{name}: {OUT_OF_SCOPE[name]}"]
    parts = "; convert(model) converts the layers inside" if next(layer.children(), None) is not None else ""
    library = type(layer).__module__.partition(".")[0]
    return [f"{name} has no configuration here; known are {known(library)}{parts}"]


def known(library: str) -> str:
    """The layers of a library that have a bridge; for another one in a few words those of all."""
    names = [cls.__name__ for bridge in BRIDGES if bridge.library == library for cls in bridge.layers()]
    return ", ".join(names) or f"{known('torch')}, and of PyG those of docs/verify.md"


def from_layer(layer: nn.Module, *, share: bool = False, **structure: Any) -> nn.Module:
    """The message passing that computes what a layer of torch or PyG computes, with its weights.

    Train or eval state, dtype, device and ``requires_grad`` are the layer's. Tokens are (..., N, C), channels last.

    Args:
        layer: ``nn.Linear``, ``nn.Conv1d/2d/3d``, ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer``,
            ``nn.TransformerDecoderLayer`` (both as a :class:`~mpnn.models.ResidualBlock`), or a convolution of PyG.
        share: the parameters stand in the layer's memory: an update of one is seen by the other. Where the shapes agree
            it is the same ``nn.Parameter``; elsewhere each side has its own gradient.
        structure: what the layer does not know: ``size=`` of the grid of a convolution, ``units=True`` for an
            ``nn.Linear`` whose neurons are the tokens.

    Raises:
        ValueError: for a layer or an option without a counterpart, by name and with the reason; nothing is dropped.

    Example::

        >>> import torch
        >>> from mpnn.interop import from_layer
        >>> conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        >>> layer, image = from_layer(conv, size=(5, 7)), torch.randn(2, 3, 5, 7)
        >>> y = layer(image.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(2, 8, 5, 7)
        >>> torch.allclose(y, conv(image), atol=1e-6)
        True
    """
    instance("layer", layer, nn.Module, "a layer, as nn.Conv2d(3, 8, 3)")
    why = reasons(layer)
    if why:
        raise Refused(shortened(why, 3, "; "))
    bridge = find(layer)
    assert bridge is not None
    why = hidden(layer, bridge)
    dtypes = {str(t.dtype).removeprefix("torch."): n for n, t in held(layer).items() if t.is_floating_point()}
    if len(dtypes) > 1:
        some = ", ".join(f"{name} of {dtype}" for dtype, name in dtypes.items())
        why.append(f"expected parameters of one dtype, got {some}; cast the layer with .to(dtype)")
    if layer._forward_hooks or layer._forward_pre_hooks:
        why.append("it has forward hooks, as those of weight_norm, which would not run")
    if why:
        raise Refused(f"{type(layer).__name__}: {'; '.join(why)}")
    unread = [name for name in structure if name not in bridge.structure]
    if unread:
        known_here = ", ".join(bridge.structure) or "none"
        raise TypeError(
            f"from_layer got an unexpected argument {unread[0]!r}{hint(unread[0], bridge.structure)}; "
            f"{type(layer).__name__} takes {known_here}"
        )
    core: Any = like(quietly(lambda: bridge.configure(layer, **structure)), layer)
    views, own = bridge.tensors(layer, core), held(core)
    assert views.keys() == own.keys(), (type(layer).__name__, sorted(views.keys() ^ own.keys()))
    for one, other in combinations(views, 2):
        if views[one].data_ptr() == views[other].data_ptr() != 0:  # 0: of nothing, or without memory
            raise Refused(
                f"{type(layer).__name__}: expected parameters of their own, got one tensor for {one} and {other}, of "
                "which training would make two; untie them, or convert(model), which keeps the layer's parameters"
            )
    memory = {t.untyped_storage().data_ptr() for t in held(layer).values()}
    for name, view in views.items():
        parameter = isinstance(own[name], nn.Parameter)
        if share and view.numel() and view.untyped_storage().data_ptr() not in memory:
            raise Refused(f"share=True: {name} has another layout than the parameter of {type(layer).__name__}")
        if share:
            same = isinstance(view, nn.Parameter) or not parameter
            place(core, name, view if same else nn.Parameter(view.detach(), view.requires_grad))
        else:
            own[name].data.copy_(view.detach())
            own[name].requires_grad_(parameter and view.requires_grad)
    core.origin = (type(layer), bridge.options(layer))
    return core


def to_layer(core: nn.Module, kind: type[nn.Module] | None = None) -> nn.Module:
    """The layer of torch or PyG that computes what a message passing computes, with its weights.

    The inverse of :func:`from_layer`, bit for bit; it also takes a ``MessagePassing`` that never was a layer.

    Args:
        kind: the class of layer to make; by default that of :func:`from_layer`, else the first that fits.

    Raises:
        ValueError: where no layer computes that, with the reason of each.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.interop import to_layer
        >>> from mpnn.neighbours import AllTokens
        >>> from mpnn.weights import QKSoftmax
        >>> to_layer(MessagePassing(AllTokens(), QKSoftmax(8, heads=2))).embed_dim
        8
    """
    instance("core", core, nn.Module, "a MessagePassing, or what from_layer returned")
    first, options = getattr(core, "origin", (None, {}))
    wanted = kind or first
    # where layers of this kind differ, whose options do not go, and what is of another kind: the nearest are told
    apart: list[tuple[int, str]] = []
    why: list[str] = []
    unlike: list[str] = []
    for bridge in BRIDGES:
        if wanted is not None and wanted not in bridge.layers():
            continue
        try:
            layer, structure = quietly(partial(bridge.restore, core, options if wanted is first else {}))
            like(layer, core)
            again = like(quietly(partial(bridge.configure, layer, **structure)), layer)
        except Refused as refusal:
            (unlike if isinstance(refusal, Unlike) else why).append(str(refusal))
            continue
        found = differences(again, core)
        if found:
            apart.append((len(found), f"{type(layer).__name__} has {shortened(found, 7, ', ')}"))
            continue
        with torch.enable_grad():
            _fill(layer, bridge.tensors(layer, core), core)
        return layer
    head = f"no layer computes this, got {described(core)}: "
    if wanted is not None and not (apart or why or unlike):
        library = getattr(wanted, "__module__", "").partition(".")[0]
        raise Refused(f"{head}{getattr(wanted, '__name__', wanted)} is unknown; known are {known(library)}")
    if isinstance(core, MessagePassing):  # of the others those with the same weight
        unlike = [reason for reason in unlike if f"× {type(core.weight).__name__}" in reason] or unlike
    elif wanted is None:
        unlike = ["to_layer takes one MessagePassing, or what from_layer returned"]
    near = [text for _, text in sorted(apart)] or why or unlike
    more = "" if len(near) <= 3 or wanted is not None else "; to_layer(core, kind) says why of one kind"
    raise Refused(head + shortened(near, 3, "; ") + more)


def _fill(layer: nn.Module, views: dict[str, Tensor], core: nn.Module) -> None:
    """Write what the core holds into the layer's tensors, through their views, and what of them is trained."""
    mine = held(core)
    owners = {t.untyped_storage().data_ptr(): t for t in held(layer).values()}
    trained: dict[int, bool] = {}
    for name, view in views.items():
        value = mine[name].detach()
        owner = owners.get(view.untyped_storage().data_ptr())
        if owner is not None:
            view.detach().copy_(value)
        else:  # a copy in another order: the transpose of that map is its inverse
            owner = next(p for p in layer.parameters() if _depends(view, p))
            owner.data.copy_(torch.autograd.grad(view, owner, value, retain_graph=True)[0])
        trained[id(owner)] = trained.get(id(owner), False) or mine[name].requires_grad
    for parameter in layer.parameters():
        parameter.requires_grad_(trained.get(id(parameter), True))


def _depends(view: Tensor, parameter: nn.Parameter) -> bool:
    ones = torch.ones_like(view)
    return torch.autograd.grad(view, parameter, ones, retain_graph=True, allow_unused=True)[0] is not None
