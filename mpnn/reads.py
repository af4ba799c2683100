"""Reads: the tensors that a function reads besides those that it is given, and others lent in their place.

A person's network may hold parameters, or be a function that closes over tensors which want a gradient. Whoever makes
its result again in a backward has to know all of them: :class:`Reading` sees them as torch's functions get them, and
:func:`leaves_of` walks the graph of a result, to tell whether anything was read unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Function = Callable[[list[Tensor]], Tensor]


class Reading(TorchFunctionMode):
    """While active, torch's functions get the tensors of ``lent`` in the place of others.

    ``lent``: tensor's id → (the tensor, what stands for it). With ``since``, a number of autograd's sequence, every
    tensor that wants a gradient and is older than that, or a leaf that is none of ``own``, is lent as a new leaf.
    """

    def __init__(
        self, lent: dict[int, tuple[Tensor, Tensor]], since: int | None = None, own: Iterable[Tensor] = ()
    ) -> None:
        super().__init__()
        self.lent, self.since, self.own = lent, since, {id(t) for t in own}
        self.met: set[int] = set()  # those of lent that were read

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        given = {} if kwargs is None else {k: self._swapped(v) for k, v in kwargs.items()}
        return func(*(self._swapped(a) for a in args), **given)

    def _swapped(self, given: Any) -> Any:
        if isinstance(given, Tensor):
            found = self.lent.get(id(given))
            if found is None and self.since is not None and self._foreign(given, self.since):
                found = self.lent[id(given)] = (given, given.detach().requires_grad_())
            if found is None:
                return given
            self.met.add(id(given))
            return found[1]
        if type(given) in (tuple, list):
            return type(given)(self._swapped(part) for part in given)
        if type(given) is dict:
            return {k: self._swapped(part) for k, part in given.items()}
        return given

    def _foreign(self, tensor: Tensor, since: int) -> bool:
        if not tensor.requires_grad or id(tensor) in self.own:
            return False
        function = tensor.grad_fn
        if function is not None:
            return function._sequence_nr() < since
        return all(tensor is not leaf for _, leaf in self.lent.values())


def leaves_of(result: Tensor, stops: Iterable[Tensor] = ()) -> list[Tensor]:
    """The leaves that the graph of a result leads to, not through ``stops`` and none of these."""
    stops = list(stops)
    known = {id(t) for t in stops}
    done = {t.grad_fn for t in stops if t.grad_fn is not None}
    ahead, found = [result.grad_fn], []
    while ahead:
        function = ahead.pop()
        if function is None or function in done:
            continue
        done.add(function)
        if hasattr(function, "variable") and id(function.variable) not in known:
            found.append(function.variable)
        ahead += [before for before, _ in function.next_functions]
    return found


def read_besides(function: Function, given: list[Tensor]) -> list[Tensor] | None:
    """The tensors that want a gradient and that function(given) reads besides those given; None where they are not all
    seen, or are others at every call."""
    lent: dict[int, tuple[Tensor, Tensor]] = {}
    devices = sorted({t.device.index for t in given if t.device.type == "cuda"})
    # parameters as they are: lending a module others, if only for a moment, would be seen by other threads
    leaves = [t if isinstance(t, nn.Parameter) else t.detach().requires_grad_(t.requires_grad) for t in given]
    for again in (False, True):
        with torch.enable_grad(), torch.random.fork_rng(devices):
            seen = dict(lent)
            with Reading(seen, torch._C._autograd._get_sequence_nr(), leaves):
                result = function(leaves)
        if again and seen.keys() != lent.keys():
            return None
        lent = seen
        if not lent:
            break
    known = {id(t) for t in leaves} | {id(t) for _, t in lent.values()}
    return [t for t, _ in lent.values()] if all(id(t) in known for t in leaves_of(result)) else None
