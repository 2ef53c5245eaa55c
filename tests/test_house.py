"""Rules of the house: floors, light imports, no hidden state."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import plait

ROOT = Path(plait.__file__).parent
FILES = tuple(sorted(ROOT.rglob("*.py")))

# The first part of a dotted path below `plait` -> its floor. The package's own __init__ and __main__ are the roof.
FLOORS = {
    "errors": 0,
    "units": 0,
    "dtypes": 0,
    "blueprint": 1,
    "account": 2,
    "compare": 2,
    "draw": 2,
    "explore": 2,
    "cache": 2,
    "runtime": 3,
    "engine": 4,
    "server": 5,
    "cli": 5,
    "": 6,
    "__main__": 6,
}
HEAVY = ("torch", "numpy", "transformers", "safetensors", "tokenizers", "gguf", "starlette", "uvicorn", "pydantic")


def module_of(path: Path) -> str:
    """`blueprint.read.gguf`; the package's __init__ is the empty string."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module: str) -> int:
    return FLOORS[module.split(".")[0]]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of a file, inside functions too; `import_module("...")` counts."""
    package = ["plait", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            if module == "plait":
                yield from ((node.lineno, f"plait.{name.name}") for name in node.names if name.name != "__version__")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            if called == "import_module" and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_imports_go_down(path: Path) -> None:
    floor = floor_of(module_of(path))
    for line, module in imports(path):
        if module.split(".")[0] == "plait" and module != "plait":
            target = floor_of(module.removeprefix("plait."))
            assert target <= floor, f"{named(path)}:{line} imports {module}, which is above"


@pytest.mark.parametrize("path", [p for p in FILES if floor_of(module_of(p)) <= 2], ids=named)
def test_lower_floors_import_nothing_heavy(path: Path) -> None:
    for line, module in imports(path):
        assert module.split(".")[0] not in HEAVY, f"{named(path)}:{line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), named(path)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_getattr_with_a_default(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            assert len(node.args) < 3, f"{named(path)}:{node.lineno} hides a missing attribute"


def _mutable(node: ast.expr | None) -> bool:
    if isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return called in ("list", "dict", "set", "bytearray", "defaultdict", "Counter", "deque")


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_mutable_state_of_modules(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign | ast.AugAssign)
            else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and target.id != "__all__":
                assert not _mutable(node.value), f"{named(path)}:{node.lineno} {target.id} can be changed"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f"{named(path)}:{node.lineno} changes a module's name"


@pytest.mark.parametrize(
    "code",
    [
        "import " + ", ".join(
            ".".join(["plait", module_of(p)]).rstrip(".") for p in FILES if floor_of(module_of(p)) <= 2
        ),
        "import plait; plait.blueprint('gemma-3-270m')",
        "from plait.cli.main import _status; _status(['--help'])",
        "from plait.cli.main import _status; _status(['inspect', 'spark-x2.5-4b'])",
        "from plait.cli.main import _status; _status(['params', 'spark-x2.5-4b'])",
        "from plait.cli.main import _status; _status(['memory', 'spark-x2.5-4b', '--context', '1m'])",
    ],
    ids=["floors 0-2", "blueprint", "help", "inspect", "params", "memory"],
)
def test_what_needs_no_weights_loads_nothing_heavy(code: str) -> None:
    probe = f"{code}\nimport sys\nprint('loaded', sorted(set(sys.modules) & {set(HEAVY)!r}))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.splitlines()[-1] == "loaded []"


def test_help_imports_no_command() -> None:
    probe = (
        "from plait.cli.main import COMMANDS, _status\n_status(['--help'])\nimport sys\n"
        "print('loaded', [m for m, _ in COMMANDS.values() if m in sys.modules], 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.splitlines()[-1] == "loaded [] False"
