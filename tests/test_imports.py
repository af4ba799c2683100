"""Imports go one way: every module of mpnn may import what stands before it in ORDER, and nothing after it.

Imports inside functions count too: they put off the cost of an import, not what the module depends on.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ORDER = (
    "lazy",
    "checks",
    "slips",
    "limits",
    "memo",
    "cover",
    "edges",
    "edge_index",
    "added_loops",
    "functions",
    "pairs",
    "dense_pairs",
    "scores",
    "segments",
    "recompute",
    "reads",
    "remade",
    "partial",
    "correlation",
    "sparse",
    "native",
    "tokens",
    "positions",
    "slots",
    "listing",
    "lattice",
    "nearness",
    "neighbours",
    "call",
    "normalise",
    "cuda",
    "weights",
    "tiles",
    "fused",
    "spec",
    "reasons",
    "kernels",
    "plan",
    "places",
    "edge_data",
    "readers",
    "token_sets",
    "binding",
    "returned",
    "remembered",
    "message_passing",
    "attend",
    "models",
    "interop",
    "data",
    "training",
    "experiments",
    "report",
    "commands",
    "cli",
    "__main__",
)
# In these folders every file is one idea: a sibling may be deleted or added without a look at the others.
ONE_IDEA_A_FILE = ("neighbours", "weights", "kernels")


def modules(folder: Path, package: str = "mpnn") -> dict[str, str]:
    """The dotted name of every module below a folder, with its text."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = (package, *path.relative_to(folder).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def imported(name: str, text: str, texts: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """What a module imports, with the line: `from a import b` is a.b where that is a module of ours."""
    is_package = any(other.startswith(name + ".") for other in texts)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = name.split(".")[: None if is_package and node.level == 1 else (is_package - node.level)]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in texts else base


def violations(texts: Mapping[str, str]) -> list[str]:
    """Every import against the order, as a sentence."""
    found = []
    root = next(iter(sorted(texts, key=len)))

    def layer(module: str) -> str:
        return module.split(".")[1] if "." in module else root

    rank = {name: place for place, name in enumerate(ORDER)}
    for module in texts:
        if layer(module) not in rank and module != root:
            found.append(f"{module} is in no place of ORDER in tests/test_imports.py")
            rank[layer(module)] = len(ORDER)
    edges = [
        (module, line, target)
        for module, text in texts.items()
        for line, target in imported(module, text, texts)
        if target == root or target.startswith(root + ".")
    ]
    # `import mpnn` runs __init__: it stands just after the last module that it imports.
    rank[root] = max((rank.get(layer(target), 0) + 0.5 for module, _, target in edges if module == root), default=-0.5)
    for module, line, target in edges:
        here, there = layer(module), layer(target)
        if module == root or there not in rank:
            continue
        if rank[there] > rank[here]:
            found.append(f"{module}:{line} imports {target}, which stands after it")
        elif (
            here == there in ONE_IDEA_A_FILE and module.count(".") > 1 and not target.startswith(f"{root}.{here}.base")
        ):
            found.append(f"{module}:{line} imports {target}; of its own folder it may import only base")
    return list(dict.fromkeys(found))


def test_every_import_goes_one_way() -> None:
    texts = modules(ROOT / "mpnn")
    assert "mpnn" in texts
    assert len(texts) > 10
    assert violations(texts) == []


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        ("mpnn.checks", "import mpnn.plan", "mpnn.checks:1 imports mpnn.plan, which stands after it"),
        (
            "mpnn.checks",
            "def f():\n    from mpnn import plan",
            "mpnn.checks:2 imports mpnn.plan, which stands after it",
        ),
        ("mpnn.checks", "from . import plan", "mpnn.checks:1 imports mpnn.plan, which stands after it"),
        ("mpnn.checks", "from .plan import Plan", "mpnn.checks:1 imports mpnn.plan, which stands after it"),
        ("mpnn.plan", "from mpnn import Plan", "mpnn.plan:1 imports mpnn, which stands after it"),
        (
            "mpnn.kernels.conv",
            "from ..plan import Plan",
            "mpnn.kernels.conv:1 imports mpnn.plan, which stands after it",
        ),
        ("mpnn.kernels", "from ..plan import Plan", "mpnn.kernels:1 imports mpnn.plan, which stands after it"),
        (
            "mpnn.kernels.conv",
            "from mpnn.kernels.linear import f",
            "mpnn.kernels.conv:1 imports mpnn.kernels.linear; of its own folder it may import only base",
        ),
        (
            "mpnn.kernels.conv",
            "from . import base, linear",
            "mpnn.kernels.conv:1 imports mpnn.kernels.linear; of its own folder it may import only base",
        ),
        (
            "mpnn.kernels.conv",
            "from mpnn.kernels import KERNELS",
            "mpnn.kernels.conv:1 imports mpnn.kernels; of its own folder it may import only base",
        ),
        ("mpnn.helpers", "", "mpnn.helpers is in no place of ORDER in tests/test_imports.py"),
        ("mpnn.plan", "from mpnn.kernels import conv\nfrom mpnn.checks import f\nimport torch", None),
        ("mpnn.kernels", "from mpnn.kernels import base, conv, linear\nfrom .linear import f", None),
        (
            "mpnn.kernels.conv",
            "from mpnn.kernels.base import Kernel\nfrom .base import Spec\nfrom ..checks import f",
            None,
        ),
        ("mpnn.cli", "import mpnn", None),
    ],
)
def test_the_checker_catches_a_violation(module: str, text: str, expected: str | None) -> None:
    names = ("checks", "kernels", "kernels.base", "kernels.conv", "kernels.linear", "plan", "cli")
    texts = {"mpnn": "from mpnn.plan import Plan"} | {f"mpnn.{name}": "" for name in names}
    assert violations(texts | {module: text}) == ([] if expected is None else [expected])


def test_import_loads_only_torch_and_numpy() -> None:
    """`import mpnn` and its folders of public names load nothing beyond torch, numpy and the standard library."""
    program = """
import json, sys
import numpy, torch
before = set(sys.modules)
import mpnn, mpnn.neighbours, mpnn.weights, mpnn.positions, mpnn.tokens, mpnn.models
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = json.loads(run.stdout)
    assert "mpnn" in loaded
    foreign = [
        name for name in loaded if name.split(".")[0] not in {"mpnn", "torch", "numpy", *sys.stdlib_module_names}
    ]
    assert foreign == []
    assert [name for name in loaded if name.startswith(("torch._dynamo", "torch._inductor"))] == []
