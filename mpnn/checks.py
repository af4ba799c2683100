"""Errors at the door: what was expected, what came, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums over neighbours accumulate: float32 for the half-precision dtypes."""
    return torch.float32 if dtype in HALF else dtype


def compiling() -> bool:
    """True while torch.compile traces."""
    return torch.compiler.is_compiling()


def autocasting(device: str) -> bool:
    """Whether autocast acts on this kind of device; torch raises for the meta device, which has none."""
    return device != "meta" and torch.is_autocast_enabled(device)


def dense(argument: str, x: Tensor, legend: str) -> None:
    """Refuse tokens that are no plain tensor of numbers: nested, sparse and the like."""
    if x.is_nested:
        raise TypeError(
            f"expected {argument} to be a dense tensor {legend}, got a nested tensor; pad it, "
            "torch.nested.to_padded_tensor, and pass mask=, or join its samples and pass batch="
        )
    if x.layout is not torch.strided:
        raise TypeError(f"expected {argument} to be a dense tensor {legend}, got one of layout {x.layout}")


def transforms() -> tuple[str, ...]:
    """The active functional transforms, outermost first: "grad", "vmap", "jvp"; "jvp" too inside a dual level."""
    if torch.compiler.is_compiling():
        return ()
    names: tuple[str, ...] = ()
    if torch._C._functorch.peek_interpreter_stack() is not None:
        stack = torch._C._functorch.get_interpreter_stack() or []
        names = tuple(i.key().name.lower() for i in stack)
    if torch.autograd.forward_ad._current_level >= 0 and "jvp" not in names:
        names += ("jvp",)
    return names


def exactly(device: str) -> AbstractContextManager:
    """Without autocast: sums in the dtype that they are given."""
    return torch.autocast(device, enabled=False) if autocasting(device) else nullcontext()


def readable(tensor: Tensor) -> bool:
    """Whether a tensor's values may be looked at: eager, not wrapped by a transform, not on the meta device."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or tensor.device.type == "meta"
    )


def memoryless(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are not what stands at an address of its own: a wrapper of other tensors, which says
    itself what each operation does, a fake one, or one that is negated when it is read."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    own = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return own or tensor.is_neg() or tensor._is_zerotensor() or torch._is_functional_tensor(tensor)


def hint(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` where a known name is close."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_of(argument: str, value: object, known: Iterable[object]) -> None:
    """Refuse a value that is none of the known ones."""
    known = list(known)
    if value not in known:
        names = ", ".join(repr(k) for k in known)
        close = hint(value, [k for k in known if isinstance(k, str)]) if isinstance(value, str) else ""
        raise ValueError(f"expected {argument} to be one of {names}, got {value!r}{close}")


def positive(argument: str, value: object, least: int = 1) -> int:
    """Refuse what is no integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected {argument} to be an int, got {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"expected {argument} ≥ {least}, got {value}")
    return value


def divides(name: str, part: int, of: str, whole: int) -> None:
    """Refuse heads or groups that do not split the channels evenly."""
    if whole % part:
        raise ValueError(f"expected {of} to be a multiple of {name}={part}, got {whole}; change one of the two")


def tensor(argument: str, value: object, legend: str) -> None:
    """Refuse what is neither a tensor nor None."""
    if value is not None and not isinstance(value, Tensor):
        raise TypeError(f"expected {argument} to be a tensor {legend}, got {type(value).__name__}")


def share(argument: str, value: object) -> float:
    """Refuse a probability outside [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ValueError(f"expected {argument} in [0, 1], got {value!r}")
    return float(value)


def instance(argument: str, value: object, kind: type, legend: str) -> None:
    """Refuse what is no instance of a kind, and say so where the class itself came."""
    if not isinstance(value, kind):
        if isinstance(value, type) and issubclass(value, kind):
            raise TypeError(
                f"expected {argument} to be {legend}, got the class {value.__name__}; write {value.__name__}(…)"
            )
        raise TypeError(f"expected {argument} to be {legend}, got {type(value).__name__}")


def heads_or_groups(heads: int | None, groups: int) -> int | None:
    """``groups``, or None where ``heads`` chooses the other family; both at once are refused."""
    if heads is not None and groups != 1:
        raise ValueError(f"expected one of heads= and groups=, got heads={heads} and groups={groups}")
    return None if heads is not None else groups


def bool_mask(argument: str, mask: Tensor | None) -> None:
    """Refuse a mask that is not bool: floats and integers are ambiguous between libraries."""
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        raise TypeError(f"expected {argument} to be a bool tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(
            f"expected {argument} of dtype bool (True = takes part), got {mask.dtype}; "
            "pass a bool mask, or add floats to the scores with score_bias="
        )


def broadcastable(argument: str, shape: torch.Size, to: tuple, legend: str) -> None:
    """Refuse a shape that does not broadcast to the call's."""
    fits = len(shape) <= len(to) and all(a == b or a == 1 for a, b in zip(reversed(shape), reversed(to), strict=False))
    if not fits:
        raise ValueError(
            f"expected {argument} to broadcast to {legend} = {tuple(int(n) for n in to)}, got {tuple(shape)}"
        )


def integers(argument: str, tensor: Tensor) -> None:
    """Refuse an index tensor that is neither int32 nor int64."""
    if tensor.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"expected {argument} of dtype int64 or int32, got {tensor.dtype}")


def same_device(argument: str, tensor: Tensor, device: torch.device) -> None:
    """Refuse tensors of one call on different devices."""
    if tensor.device != device:
        raise ValueError(
            f"expected {argument} on {device}, as the tokens, got {tensor.device}; move it with .to({str(device)!r})"
        )


def same_dtype(argument: str, got: torch.dtype, parameters: torch.dtype) -> None:
    """Refuse tokens and parameters of different dtypes (autocast apart)."""
    if got != parameters:
        raise TypeError(
            f"expected {argument} of dtype {parameters}, as the layer's parameters, got {got}; "
            f"cast one of them, or run under torch.autocast"
        )


def values(condition: Tensor, error: type[Exception], text: str, came: Tensor | None = None) -> None:
    """Raise where a bool tensor is not all True: with what came in eager mode, as an async assertion under compile."""
    if torch.compiler.is_compiling():
        torch._assert_async(condition.all(), text)
    elif readable(condition) and not bool(condition.all()):
        seen = "" if came is None else f", got {came[~condition].flatten()[0].item():g}"
        raise error(text + seen)
