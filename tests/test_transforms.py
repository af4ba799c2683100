"""Derivatives of any order and functional transforms, for every pair of rules, on every kernel that runs them.

Where a kernel cannot run under a transform, its plan says so in words, and without force another one runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

from helpers.calls import Trial, kernels, product, trial
from helpers.compare import agree
from helpers.over import over
from mpnn import use_kernels

MAIN = product("main")
main = over(MAIN)


def function(call: Trial) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """The call as a function of all its leaves, with these."""
    leaves = call.leaves

    def run(*tensors: Tensor) -> Tensor:
        given = dict(zip(leaves, tensors, strict=True))
        parameters = {k.removeprefix("parameter "): t for k, t in given.items() if k.startswith("parameter ")}
        own = {k: t for k, t in given.items() if not k.startswith("parameter ")}
        x, arguments = dataclasses.replace(call, tensors=call.tensors | own).bound()
        return functional_call(call.layer, parameters, (x,), arguments)

    return run, tuple(leaves.values())


def of_tokens(call: Trial) -> Callable[[Tensor], Tensor]:
    """The call as a function of its source tokens."""
    return lambda x: dataclasses.replace(call, tensors=call.tensors | {"source": x})()


@main
def test_gradcheck(place: str, rule: str) -> None:
    """Case 28: first and second derivatives of everything, against finite differences."""
    call = trial(place, rule, lead=())
    for kernel in kernels(call):
        f, leaves = function(call)
        assert torch.autograd.gradcheck(f, leaves, fast_mode=True), kernel
        assert torch.autograd.gradgradcheck(f, leaves, fast_mode=True), kernel


def by_hand(f: Callable[[Tensor], Tensor], x: Tensor, up: Tensor, along: Tensor) -> dict[str, Tensor]:
    """What the transforms should give, by plain reverse-mode autograd of the reference."""
    with use_kernels("reference"):
        x = x.detach().requires_grad_()
        y = f(x)
        (first,) = torch.autograd.grad(y, x, up, create_graph=True)
        second = torch.zeros_like(first)
        if first.requires_grad:
            (second,) = torch.autograd.grad(first, x, along, materialize_grads=True)
        jacobian = torch.autograd.functional.jacobian(f, x)
        pushed = (jacobian * along).sum(tuple(range(y.ndim, jacobian.ndim)))
    return {"output": y, "gradient": first, "second": second, "jacobian": jacobian, "pushed": pushed}


def transformed(f: Callable[[Tensor], Tensor], up: Tensor, along: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Each transform, as a function of the tokens, by the name of what it should give."""
    projected = lambda x: (f(x) * up).sum()  # noqa: E731
    return {
        "gradient, grad": grad(projected),
        "gradient, vjp": lambda x: vjp(f, x)[1](up)[0],
        "second, grad of grad": grad(lambda x: (grad(projected)(x) * along).sum()),
        "second, jvp of grad": lambda x: jvp(grad(projected), (x,), (along,))[1],
        "jacobian, jacrev": jacrev(f),
        "jacobian, jacfwd": jacfwd(f),
        "pushed, jvp": lambda x: jvp(f, (x,), (along,))[1],
        "output, vmap": lambda x: vmap(f)(x[None])[0],
        "gradient, vmap of grad": lambda x: vmap(grad(projected))(x[None])[0],
        "gradient, grad of vmap": grad(lambda x: (vmap(f)(torch.stack([x, x + 1]))[0] * up).sum()),
    }


@main
def test_transforms(place: str, rule: str) -> None:
    call = trial(place, rule, lead=(), mask="one")
    f, x = of_tokens(call), call.tensors["source"].detach()
    up, along = torch.randn_like(f(x)).detach(), torch.randn_like(x)
    expected, able = by_hand(f, x, up, along), call.able()
    for name, transform in transformed(f, up, along).items():
        kind, refused = name.split(",")[0], False
        for kernel in able:
            with use_kernels(kernel):
                try:
                    found = transform(x)
                except ValueError as error:
                    if not refuses(kernel, str(error)):
                        raise
                    refused = True
                    continue
            agree({"output": found}, {"output": expected[kind]}, torch.float64, f"{name}, {kernel}")
        if refused or not able:  # then another kernel runs, unforced
            agree({"output": transform(x)}, {"output": expected[kind]}, torch.float64, f"{name}, unforced")


def refuses(kernel: str, text: str) -> bool:
    """Whether an error says in words that a forced kernel cannot run under a transform."""
    said = "forward-mode" in text or "transform" in text
    return said and f"{kernel}: " in text and "expected a kernel that can run" in text


@main
def test_vmap_over_everything_is_a_loop(place: str, rule: str) -> None:
    """Tokens, edge data, coordinates and parameters, each with its own numbers."""
    call = trial(place, rule, lead=(), edge_weight="one")
    f, leaves = function(call)
    stacked = tuple(torch.stack([t.detach(), 0.5 * t.detach() + 0.1]) for t in leaves)
    first = tuple(range(len(leaves)))
    for kernel in kernels(call):
        if "vmap" not in call.plan().supports:
            continue
        looped = torch.stack([f(*(t[i] for t in stacked)) for i in range(2)])
        agree({"output": vmap(f)(*stacked)}, {"output": looped}, torch.float64, kernel)
        total = lambda *t: f(*t).square().sum()  # noqa: E731
        mapped = vmap(grad(total, first))(*stacked)
        each = [grad(total, first)(*(t[i] for t in stacked)) for i in range(2)]
        expected = {f"gradient {k}": torch.stack([e[k] for e in each]) for k in first}
        agree({f"gradient {k}": mapped[k] for k in first}, expected, torch.float64, kernel)


@over([(p, r) for p, r in MAIN if p in ("AllTokens", "Graph built", "Grid 2-D")])
def test_hessian(place: str, rule: str) -> None:
    call = trial(place, rule, lead=())
    f, x = of_tokens(call), call.tensors["source"].detach()
    total = lambda x: f(x).square().sum()  # noqa: E731
    with use_kernels("reference"):
        expected = torch.autograd.functional.hessian(total, x)
    agree({"output": hessian(total)(x)}, {"output": expected}, torch.float64)


def test_ensemble_of_layers() -> None:
    """One call of many layers, by stacked parameters."""
    calls = [trial("Graph at call", "attention", lead=()) for _ in range(3)]
    parameters, buffers = stack_module_state([c.layer for c in calls])
    x, arguments = calls[0].bound()
    y = vmap(lambda p, b: functional_call(calls[0].layer, (p, b), (x,), arguments))(parameters, buffers)
    expected = torch.stack([c.layer(x, **arguments) for c in calls])
    torch.testing.assert_close(y, expected)


@main
def test_the_plan_says_what_it_supports(place: str, rule: str) -> None:
    call = trial(place, rule, lead=())
    f, x = of_tokens(call), call.tensors["source"].detach()
    transforms = {
        "grad": lambda: grad(lambda x: f(x).sum())(x),
        "vmap": lambda: vmap(f)(x[None]),
        "jvp": lambda: jvp(f, (x,), (x,)),
    }
    for kernel in kernels(call):
        supports = call.plan().supports
        assert {"backward", "double backward"} <= set(supports)
        for name, transform in transforms.items():
            assert (name in supports) == runs(transform), f"{kernel}, {name}: {supports}"


def runs(transform: Callable[[], object]) -> bool:
    try:
        transform()
    except ValueError as error:
        if "expected a kernel that can run" not in str(error):
            raise
        return False
    return True
