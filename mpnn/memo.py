"""Weak caches: what was derived from tensors, as long as these live and are not written to."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary


class Revised(nn.Module):
    """A module that counts its assignments, so that what is remembered of it can tell when it has changed."""

    revision = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._revise()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._revise()

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        super().register_parameter(name, param)
        self._revise()

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        super().register_buffer(name, tensor, persistent)
        self._revise()

    def add_module(self, name: str, module: nn.Module | None) -> None:
        super().add_module(name, module)
        self._revise()

    def _revise(self) -> None:
        self.__dict__["revision"] = self.revision + 1


_store: WeakIdKeyDictionary = WeakIdKeyDictionary()


@contextmanager
def outside() -> Iterator[None]:
    """Outside inference mode and all functional transforms: what is kept must serve other calls than this one."""
    if torch.compiler.is_compiling():
        yield
    elif torch._C._functorch.peek_interpreter_stack() is None:
        with torch.inference_mode(False):
            yield
    else:
        from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

        with torch.inference_mode(False), temporarily_clear_interpreter_stack():
            yield


def lasting(tensor: Tensor) -> bool:
    """Whether a tensor may be kept for other calls: no inference tensor, none of a functional transform."""
    if torch.compiler.is_compiling():
        return True  # nothing outlives the trace
    return not (tensor.is_inference() or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def derived(make: Callable[[], Any], key: Hashable, first: Tensor, *others: Tensor | None) -> Any:
    """``make()``, remembered for these very tensors (identity and version) and this key.

    Nothing is kept for tensors without a version (inference tensors), inside functional transforms or under
    torch.compile.
    """
    if torch.compiler.is_compiling():
        return make()
    tensors = [t for t in (first, *others) if t is not None]
    if not all(lasting(t) for t in tensors):
        return make()
    full_key = (key, *(None if t is None else (id(t), t._version) for t in (first, *others)))
    entries = _store.setdefault(first, {})
    found = entries.get(full_key)
    if found is not None and all(ref() is t for ref, t in zip(found[0], tensors[1:], strict=True)):
        return found[1]
    version = first._version
    for stale, held in list(entries.items()):  # at once, since another thread may add one
        if stale[1][1] != version or any(ref() is None for ref in held[0]):
            entries.pop(stale, None)
    with outside():
        value = make()
    entries[full_key] = ([weakref.ref(t) for t in tensors[1:]], value)
    return value
