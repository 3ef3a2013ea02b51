"""The architecture, read from the source: who may import whom, and one owner per side effect.

The table is that of the design; what is not listed is forbidden.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from jupyter_hyperpod.core.extras import EXTRAS

TREE = Path(__file__).resolve().parents[1]
NAME = "jupyter_hyperpod"
ROOT = TREE / NAME

MAY_IMPORT = {
    "core": "",
    "system": "core",
    "policy": "core",
    "storage": "core system",
    "mounts": "core system storage",
    "backends": "core system storage",
    "planner": "core policy",
    "recipes": "core policy",
    "loader": "core system policy storage mounts",
    "health": "core system policy storage mounts",
    "runtime": "core system policy storage mounts loader health recipes",
    "integrations": "core runtime",
    "serving": "core system policy storage mounts loader recipes",
    "control": "core system policy storage mounts health backends",
    "supervisor": "core system policy storage mounts health backends control",
    "server": "core system storage mounts control planner loader",
    "notebook": "core system storage mounts control planner loader recipes",
    "bench": "core system policy storage mounts backends planner loader health recipes runtime control supervisor cli",
    "cli": "core system policy storage mounts backends planner loader health runtime control supervisor bench recipes",
    # outside the wheel
    "support": "core system storage control",
    "benchmarks": "core system policy storage backends planner loader health recipes runtime control bench support cli",
}
# all that a worker may import
ON_NODES = ("core", "system", "policy", "storage", "mounts", "loader", "health", "recipes", "runtime", "integrations")
# Other people's packages, layer by layer; where a layer is not listed, the standard library is all it may use.
THIRD_PARTY = {
    "system": {"cryptography"},
    "mounts": {"fsspec"},
    "storage": {"numpy", "torch", "pandas"},  # values that are pushed and pulled, imported on use
    "loader": {"torch", "fsspec", "numpy", "botocore", "xxhash", "huggingface_hub"},
    "backends": {"yaml"},  # kubeconfigs
    "recipes": {"torch"},  # the decoder only; the data and what is rendered from it need none
    "runtime": {"torch", "numpy", "matplotlib"},  # matplotlib's own backend, which only matplotlib imports
    "integrations": {"torch", "transformers", "lightning", "accelerate"},
    "serving": {"torch", "tornado"},
    # jupyter_core: the doctor asks where Jupyter looks; boto3, botocore and yaml: `control/aws`, imported on use
    "control": {
        *("traitlets", "prometheus_client", "jupyter_core", "optuna", "cronsim"),
        *("boto3", "botocore", "yaml"),
    },
    "server": {
        "jupyter_server",
        "jupyter_events",
        "jupyter_core",
        "jupyter_scheduler",  # notebook_jobs, which only its own server imports
        "jsonschema",
        "nbformat",
        "tornado",
        "traitlets",
        "yaml",
    },
    "notebook": {"IPython", "ipykernel", "ipywidgets", "traitlets"},
    "bench": {"torch"},
    "support": {"botocore", "trustme"},
    "benchmarks": {
        *("torch", "numpy", "matplotlib", "PIL", "botocore", "nbclient", "nbformat"),
        *("tornado", "jupyter_server"),
    },
}
# The systems we are compared with: imported only by their own scripts, in environments that the benchmark makes.
PEERS = {
    "torchft",
    "nvidia_resiliency_ext",
    "boto3",
    "safetensors",
    "runai_model_streamer",
    "s3torchconnector",
    "tensorizer",
    "fastsafetensors",
    "obstore",
    "awscrt",
}
# Decisions take time, seeds and readings as arguments.
EFFECTS = {
    "time",
    "datetime",
    "random",
    "secrets",
    "os",
    "io",
    "socket",
    "subprocess",
    "threading",
    "pathlib",
    "asyncio",
}
LONGEST_MODULE_LINES = 400
MOST_MODULES = 20  # per folder
DEEPEST_INHERITANCE = 2
# File names that stand in several packages, and why.
TWIN = "policy decides, the other package of that name does it"
FACES = "each face of the product has its own"
PROCESS = "each process, package or protocol has its own; the folder says which"
REPEATED_FILES = {
    **dict.fromkeys(("allocation", "guard", "healing", "logwatch", "preflight", "recovery", "scripts"), TWIN),
    **dict.fromkeys(
        ("incidents", "rules", "faults", "errors"), "core names the nouns, the other package works on them"
    ),
    **dict.fromkeys(("model", "output", "plan", "report", "serve", "source", "stream", "verbs"), FACES),
    **dict.fromkeys(("base", "commands", "connection", "context", "host", "main", "progress", "protocol"), PROCESS),
    **dict.fromkeys(("replica", "store", "writer", "nodes", "backend", "runner", "remedies"), PROCESS),
}
LONGEST_FUNCTION_LINES = 80

MODULES = sorted(ROOT.rglob("*.py"))
OUTSIDE = sorted([*(TREE / "benchmarks").rglob("*.py"), *(TREE / "tests" / "support").rglob("*.py")])


def layer(path: Path) -> str:
    """The package a file belongs to; "" for the root module."""
    return layer_of(path.relative_to(TREE).parts[:-1])


def layer_of(module: Sequence[str]) -> str:
    """The layer of a module of this tree, given as the parts of its name."""
    top, *inner = module
    if top == "benchmarks":
        return top
    return inner[0] if inner else ""


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module a file imports, at any depth of nesting, as an absolute name."""
    return tuple(found_imports(path))


def found_imports(path: Path) -> Iterator[str]:
    package = path.relative_to(TREE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            if isinstance(node.args[0], ast.Constant):
                yield node.args[0].value


def test_layers() -> None:
    assert [fault for path in [*MODULES, *OUTSIDE] for fault in forbidden_imports(path)] == []


def forbidden_imports(path: Path) -> Iterator[str]:
    """What a module imports although its layer must not, as sentences."""
    here, name = layer(path), path.relative_to(TREE)
    allowed = {here, *MAY_IMPORT.get(here, "").split()}
    if path.name == "__main__.py" and not here:
        allowed = {"cli"}
    for module in imports(path):
        top = module.split(".")[0]
        if top in (NAME, "benchmarks", "tests"):
            target = layer_of(module.split("."))
            if target in MAY_IMPORT and target not in allowed and here + path.name != "__init__.py":
                yield f"{name} imports {module}: its layer must not"
        elif not module.startswith("."):
            if not (top in sys.stdlib_module_names or top in THIRD_PARTY.get(here, ()) or is_peer(path, top)):
                yield f"{name} imports {module}, which is neither standard library nor allowed there"


def test_every_layer_is_in_the_table() -> None:
    found = {layer(path) for path in [*MODULES, *OUTSIDE]} - {""}
    assert found <= MAY_IMPORT.keys()
    assert {"core", "policy", "storage", "runtime", "control"} <= found


@pytest.mark.parametrize("package", ["core", "policy"])
def test_pure_layers_have_no_clock_no_io_no_randomness(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        tops = {module.split(".")[0] for module in imports(path)}
        assert not tops & EFFECTS, f"{path.name} imports {sorted(tops & EFFECTS)}"
        calls = {
            ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)
        }
        assert not calls & {"open", "print", "input", "eval", "exec"}


def test_every_import_is_declared() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    names = {normal(re.split(r"[<>=!\[; ]", requirement)[0]) for requirement in declared}
    owners = packages_distributions()
    for path in [*MODULES, *OUTSIDE]:
        for module in imports(path):
            top = module.split(".")[0]
            if top and top not in {NAME, "benchmarks", "tests", *sys.stdlib_module_names} and not is_peer(path, top):
                assert {normal(owner) for owner in owners.get(top, [top])} & names, f"{path.name} imports {top}"


def is_peer(path: Path, top: str) -> bool:
    return top in PEERS and path.parent in (TREE / "benchmarks" / "rivals", TREE / "benchmarks" / "loading" / "loaders")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_pickle_and_no_shell() -> None:
    for path in [*MODULES, *OUTSIDE]:
        name = path.relative_to(TREE)
        tops = {module.split(".")[0] for module in imports(path)}
        assert not tops & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}, name
        source = path.read_text()
        for unsafe in ("shell=True", "allow_pickle=True", "weights_only=False"):
            assert unsafe not in source, f"{name} has {unsafe}"


def test_modules_and_functions_stay_small_and_say_what_they_are() -> None:
    assert [fault for path in [*MODULES, *OUTSIDE] for fault in too_large(path)] == []


def too_large(path: Path) -> Iterator[str]:
    """What makes a module hard to read, as sentences."""
    name, source = path.relative_to(TREE), path.read_text()
    tree = ast.parse(source)
    if not ast.get_docstring(tree):
        yield f"{name} has no docstring"
    if len(source.splitlines()) > LONGEST_MODULE_LINES:
        yield f"{name} has {len(source.splitlines())} lines, {LONGEST_MODULE_LINES} are allowed"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > LONGEST_FUNCTION_LINES:
                yield f"{node.name} in {name} has {length} lines, {LONGEST_FUNCTION_LINES} are allowed"


def test_folders_stay_small() -> None:
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in {p.parent for p in MODULES}}
    assert {name: count for name, count in counts.items() if count > MOST_MODULES + 1} == {}  # beside __init__.py


@cache
def circles() -> list[list[str]]:
    """Groups of modules that import each other, whatever the imports are for and wherever they stand."""
    names = {".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
    graph = {
        name: {part for module in imports(path) for part in (module, module.rpartition(".")[0]) if part in names}
        - {name, name.rpartition(".")[0]}
        for name, path in names.items()
    }
    reached = {name: reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What `start` imports, directly or not; with itself only where it is in a circle."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        waiting += graph[waiting.pop()] - found
        found.update(waiting)
    return found


def test_no_modules_import_in_a_circle() -> None:
    assert circles() == []


def test_no_modules_outside_the_coordinator_import_in_a_circle() -> None:
    assert [group for group in circles() if not all(".coordinator." in name for name in group)] == []


@cache
def classes() -> tuple[tuple[str, Path, tuple[str, ...]], ...]:
    """Name, file and bases of every class at the top of a module."""
    return tuple(
        (node.name, path, tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases))
        for path in MODULES
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef)
    )


def depth(name: str, bases: dict[str, tuple[str, ...]]) -> int:
    """How many classes of this tree a class is derived from, one above the other."""
    return max((1 + depth(base, bases) for base in bases[name] if base in bases and base != name), default=0)


def test_inheritance_is_shallow() -> None:
    bases = {name: found for name, _, found in classes()}
    assert [name for name in bases if depth(name, bases) > DEEPEST_INHERITANCE] == []


def test_no_two_public_classes_share_a_name() -> None:
    """A class of an integration has the name of the class that it replaces, a widget that of what it shows."""
    found: dict[str, list[str]] = {}
    for name, path, _ in classes():
        if not name.startswith("_") and path.parent.name != "integrations" and path.name != "widgets.py":
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_file_names_repeat_for_a_reason() -> None:
    stems = Counter(path.stem for path in MODULES if path.stem not in ("__init__", "__main__"))
    assert {stem for stem, count in stems.items() if count > 1} - REPEATED_FILES.keys() == set()


def test_one_door_to_locks_and_process_facts() -> None:
    """`mounts.inspection` tries the locks of a mount, and is not a user of them."""
    own = {ROOT / "system" / "locks.py", ROOT / "system" / "processes.py", ROOT / "mounts" / "inspection.py"}
    known = re.compile(r"fcntl\.(flock|lockf)\(|PDEATHSIG|prctl\(|/stat\"")
    found = [str(path.relative_to(ROOT)) for path in MODULES if path not in own and known.search(path.read_text())]
    assert found == []


def test_one_door_to_journals() -> None:
    for path in MODULES:
        if path != ROOT / "storage" / "segments.py":
            assert ".jsonl" not in path.read_text(), f"{path.relative_to(TREE)} knows how journals are stored"


def test_one_door_to_the_server() -> None:
    requests = re.compile(r"\bfetch\(|makeRequest\(|new WebSocket\(|XMLHttpRequest|EventSource\(|\baxios\b")
    sources = [path for path in sorted((TREE / "src").rglob("*.ts*")) if "__tests__" not in path.parts]
    assert sources
    for path in sources:
        found = requests.search(path.read_text())
        assert path.name == "api.ts" or found is None, f"{path.relative_to(TREE)} makes a request: {found}"
    assert requests.search((TREE / "src" / "api.ts").read_text())


def test_no_style_is_looked_up_for_every_element() -> None:
    """With such a rule a browser styles the neighbours of whatever changes again, in all of JupyterLab."""
    sheets = sorted((TREE / "labextension" / "style").glob("*.css"))
    assert sheets
    for path in sheets:
        found = re.search(r"^.*[+~] *(?:\*|:|\[).*[,{]$", path.read_text(), re.M)
        assert found is None, f"{path.relative_to(TREE)}: {found.group() if found else None}"


HEAVY = ("torch", "numpy", "IPython", "tornado", "traitlets", "jupyter_server", "fsspec", "asyncio", "boto3")


def run_python(code: str, *, path: Path | None = None, cwd: Path | None = None) -> str:
    """Run `code` in an interpreter of its own and return what it prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    with tempfile.TemporaryDirectory() as home:  # a library may write to it
        environment = {"PYTHONPATH": str(path or TREE), "PATH": "", "HOME": home}
        done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module", [NAME, f"{NAME}.control.jobs", f"{NAME}.control.cluster", f"{NAME}.cli.verbs", f"{NAME}.recipes.render"]
)
def test_importing_what_people_wait_for_is_light(module: str) -> None:
    code = f"import {module}, sys; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    assert run_python(code).split() == []


def test_public_names_resolve() -> None:
    code = "import jupyter_hyperpod as hp; print(hp.Session.__name__, hp.TokenDataset.__name__, callable(hp.submit))"
    assert run_python(code).split() == ["Session", "TokenDataset", "True"]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        import jupyter_hyperpod

        jupyter_hyperpod.nonsense  # noqa: B018


@pytest.mark.parametrize("package", EXTRAS)
def test_every_optional_package_is_named_with_its_extra(package: str) -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    installs = project["optional-dependencies"][EXTRAS[package]]
    assert any(re.match(rf"{package}\b", requirement) for requirement in installs)


def test_a_missing_package_is_a_sentence() -> None:
    block = "import sys; sys.modules['torch'] = None\n"
    use = "import jupyter_hyperpod as hp\ntry: hp.load_model\nexcept ImportError as error: print(error)"
    assert "torch is not installed: pip install 'jupyter_hyperpod[train]'" in run_python(block + use)


def test_the_runtime_needs_nothing_of_jupyter_and_no_other_layer(tmp_path: Path) -> None:
    """A tree that holds these layers alone imports every module of them."""
    alone = tmp_path / NAME
    alone.mkdir()
    shutil.copy(ROOT / "__init__.py", alone)
    for package in ON_NODES:
        shutil.copytree(ROOT / package, alone / package, ignore=shutil.ignore_patterns("__pycache__"))
    names = [
        ".".join(path.relative_to(TREE).with_suffix("").parts)
        for path in MODULES
        if layer(path) in ON_NODES and path.name != "__init__.py"
    ]
    jupyter = ("IPython", "ipykernel", "tornado", "traitlets", "zmq", "jupyter_core", "jupyter_server", "jupyterlab")
    code = "\n".join(
        [
            "import importlib, sys",
            f"for name in {names!r}:",
            f"    assert importlib.import_module(name).__file__.startswith({str(alone)!r}), name",
            f"print(*(name for name in {jupyter!r} if name in sys.modules))",
        ]
    )
    assert run_python(code, path=tmp_path, cwd=tmp_path).split() == []
