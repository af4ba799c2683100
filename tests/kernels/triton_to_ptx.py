"""Compile every Triton pass for an H100 (sm_90), which needs no GPU: test_triton.py runs this in a process of its own.

The interpreter lets pass what the compiler refuses, such as a loop whose variables change their type.
"""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mpnn.cuda import passes, pieces

# (dtype, a bias, index type, tile, numbers that Triton would know when it compiles since they are 1)
CASES = (
    ("fp32", False, "i32", {"SPLIT": False, "D": 16, "DV": 32, "EDGES": 64}, ()),
    (
        "bf16",
        True,
        "i64",
        {"SPLIT": True, "D": 64, "DV": 64, "EDGES": 8},
        ("heads", "targets", "width", "value_width", "k_n"),
    ),
)
FLOATS = ("lse", "delta", "side", "side_lse", "key_side", "value_side")
INDICES = ("start", "stop", "column")
NUMBERS = ("lines", "pieces", "longs", "targets", "heads", "width", "value_width")
LINES = ("owner", "slot", "place", "long", "first_piece")


def kinds(pass_, known: dict[str, object], dtype: str, index: str) -> dict[str, str]:  # type: ignore[no-untyped-def]
    """The type of each argument, as Triton writes them."""
    found = {}
    for name in pass_.arg_names:
        if name in known:
            found[name] = "constexpr"
        elif name == "scale":
            found[name] = "fp32"
        elif name == "bias":
            found[name] = "*fp32" if known["BIASED"] else f"*{dtype}"
        elif name in FLOATS:
            found[name] = "*fp32"
        elif name in INDICES:
            found[name] = f"*{index}"
        elif name in LINES:
            found[name] = "*i64"
        elif name in NUMBERS or name[-2:] in ("_b", "_h", "_n"):
            found[name] = "i32"
        else:
            found[name] = f"*{dtype}"
    return found


for pass_ in (passes.forward, passes.rows, passes.columns, pieces.join, pieces.add):
    for dtype, biased, index, tile, ones in CASES:
        known = {"BIASED": biased, **tile} | dict.fromkeys(ones, 1)
        known = {name: value for name, value in known.items() if name in pass_.arg_names}
        made = triton.compile(
            ASTSource(pass_, kinds(pass_, known, dtype, index), known), target=GPUTarget("cuda", 90, 32)
        )
        assert "atom." not in made.asm["ptx"] and "red.global" not in made.asm["ptx"], "an atomic operation"
        print(pass_.__name__, dtype, len(made.asm["ptx"]))
