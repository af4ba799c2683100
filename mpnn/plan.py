"""The plan: which kernel runs a call and why no other, as data and as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch

from mpnn import limits
from mpnn.checks import one_of, positive
from mpnn.kernels import KERNELS, Kernel, Spec, merge

NAMES = tuple(k.name for k in KERNELS)
BY_NAME: dict[str, Kernel] = {k.name: k for k in KERNELS}
DENSE = ("linear", "conv", "native_fft", "fft", "sdpa", "flex", "tiles", "merge", "pairwise")  # they list no edges
# What use_kernels allows, empty for all: a plain global, which torch.compile reads and guards on; a ContextVar it
# does not.
allowed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a call runs, as a database explains a query.

    ``kernel`` its name · ``reasons`` kernel name → why not, for every kernel before it (and every later one that
    cannot) · ``edges`` pairs that meet, per batch entry · ``flops``, ``bytes`` an estimate for one forward of the whole
    batch · ``supports`` what this call can do: "backward", "double backward", "vmap", "grad", "jvp" · ``spec`` the call
    in values · ``parts`` the plans of a union's disjoint parts.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import AllTokens
        >>> from mpnn.weights import QKSoftmax
        >>> MessagePassing(AllTokens(), QKSoftmax(16, heads=2)).plan(torch.ones(4, 8, 16)).kernel
        'sdpa'
    """

    kernel: str
    reasons: dict[str, list[str]]
    edges: int
    flops: int
    bytes: int
    supports: tuple[str, ...]
    spec: Spec
    parts: tuple[Plan, ...] = ()

    def __rich__(self) -> object:
        from rich.text import Text

        return Text(str(self))  # rich would print every field, and read brackets as colours

    def __str__(self) -> str:
        s = self.spec
        part = "groups" if s.family == "groups" else "heads"
        rule = s.neighbours if s.expression is None else f"{s.expression} (its pairs are those of {s.neighbours})"
        call = f"{rule} × {s.weight}  batch {s.batch}, {s.targets} targets × {s.sources} sources"
        call += f", {self.edges:,} edges"
        width = f"{s.channels} → {s.out_channels} channels, {s.parts} {part}, {s.dtype} on {s.device}"
        lines = [
            call,
            width,
            f"→ {self.kernel}   {self.flops:,} FLOPs, {self.bytes:,} bytes; {', '.join(self.supports)}",
        ]
        for p in self.parts:
            lines.append(f"    {p.spec.neighbours}, {p.edges:,} edges → {p.kernel}   {p.flops:,} FLOPs")
        lines += [f"  not {name}: {'; '.join(why)}" for name, why in self.reasons.items()]
        return "\n".join(lines)


@contextmanager
def use_kernels(*names: str, block: int | None = None) -> Iterator[None]:
    """Let every layer inside choose among these kernels only; one that can use none of them raises with the reasons.

    Args:
        names: of kernels; none allows all.
        block: how many numbers the kernels that work in blocks hold at once (by default 2²², 16 MiB of float32).

    Raises:
        ValueError: for an unknown name, listing the known ones, and for a block below 1.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing, use_kernels
        >>> from mpnn.neighbours import Full
        >>> from mpnn.weights import Static
        >>> layer = MessagePassing(Full(3), Static())
        >>> with use_kernels("reference"):
        ...     layer.plan(torch.ones(3, 1)).kernel
        'reference'
    """
    for name in names:
        one_of("kernel", name, NAMES)
    global allowed
    before, held = allowed, limits.block
    allowed = tuple(names)
    limits.block = held if block is None else positive("block", block)
    try:
        yield
    finally:
        allowed, limits.block = before, held


def forced(own: str | None) -> tuple[str, ...]:
    """The kernels allowed here: the layer's own, else those of :func:`use_kernels`; empty for all."""
    return (own,) if own is not None else allowed


def choose(spec: Spec, allowed: tuple[str, ...] = ()) -> tuple[str, dict[str, list[str]]]:
    """The first kernel without a reason against the call, and every reason; a pure function.

    Raises:
        ValueError: where ``allowed`` names kernels and none of them can run the call.
    """
    if torch.compiler.is_compiling():
        for kernel in KERNELS:
            named = kernel.name in allowed
            if (not allowed or named) and not _against(kernel, spec, named):
                return kernel.name, {}
        return _refuse(spec, allowed)
    return _choose(spec, allowed)


@lru_cache(maxsize=4096)
def _choose(spec: Spec, allowed: tuple[str, ...]) -> tuple[str, dict[str, list[str]]]:
    reasons = {k.name: why for k in KERNELS if (why := _against(k, spec, k.name in allowed))}
    able = [n for n in NAMES if n not in reasons and (not allowed or n in allowed)]
    if not able:
        return _refuse(spec, allowed)
    reasons |= {
        n: [f"only {', '.join(allowed)} may run here"]
        for n in NAMES
        if allowed and n not in allowed and n not in reasons
    }
    return able[0], reasons


def _against(kernel: Kernel, spec: Spec, named: bool) -> list[str]:
    """Why a kernel does not run a call: what it cannot do, or that a later one is faster, which a name overrules."""
    why = kernel.unsupported(spec)
    slower: Callable[[Spec], list[str]] | None = getattr(kernel, "slower", None)
    return why if why or named or slower is None else slower(spec)


def _refuse(spec: Spec, allowed: tuple[str, ...]) -> tuple[str, dict[str, list[str]]]:
    why = "; ".join(f"{n}: {', '.join(BY_NAME[n].unsupported(spec))}" for n in allowed)
    able = ", ".join(k.name for k in KERNELS if not k.unsupported(spec))
    raise ValueError(
        f"expected a kernel that can run {spec.neighbours} × {spec.weight}, got {' or '.join(allowed)} ({why}); "
        f"{able} can"
    )


def explain(spec: Spec, allowed: tuple[str, ...], edges: int, parameters: int, parts: Sequence[int] = ()) -> Plan:
    """The plan of a call with so many edges and parameters; ``parts``: the edges of each part of a union."""
    kernel, reasons = choose(spec, allowed)
    joined = []
    for part, count in zip(spec.union, parts, strict=False) if kernel == merge.name else ():
        chosen = merge.which(part)
        assert chosen is not None
        joined.append(_plan(part, chosen.name, {}, count, 0))
    return _plan(spec, kernel, reasons, edges, parameters, tuple(joined))


def _plan(
    spec: Spec, kernel: str, reasons: dict[str, list[str]], edges: int, parameters: int, parts: tuple[Plan, ...] = ()
) -> Plan:
    size = {"float64": 8, "float16": 2, "bfloat16": 2}.get(spec.dtype, 4)
    if spec.family == "groups":
        flops = 2 * edges * spec.batch * spec.channels * spec.out_channels // spec.parts
    else:
        flops = 2 * edges * spec.batch * (spec.out_channels + spec.parts * spec.score_channels)
    tokens = spec.batch * (spec.sources * spec.channels + spec.targets * spec.out_channels)
    listed = 0 if kernel in DENSE else 16 * edges
    able = [
        t
        for t in ("vmap", "grad", "jvp")
        if not BY_NAME[kernel].unsupported(dataclasses.replace(spec, transforms=(t,)))
    ]
    supports = ("backward", "double backward", *able)
    return Plan(kernel, reasons, edges, flops, (tokens + parameters) * size + listed, supports, spec, parts)
