"""Reads the imports of a package from its source, and says which ones break its layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# The core, from the ground up: a part may import itself and those before it.
CORE = (
    "base",
    "plan",
    "storage",
    # Public names of storage, for stores of a program's own.
    "stores",
    "codecs",
    "sources",
    "dataset",
    "engine",
    # Public names of engine, for executors of a program's own.
    "executors",
    "demo_data",
    # Batches as tensors: below the loader, which makes them.
    "tensors",
    "loader",
    "torch",
    "testing",
    "cli",
)
# Extensions import the core. Those below have public paths of their own.
EXTENSIONS = {"extensions", "compat", "integrations"}
# The public names: who may use them.
PUBLIC = ""
USES_PUBLIC = {*EXTENSIONS, "testing", "cli", "__main__"}
# Which extension imports another one, and why.
NEIGHBOURS = {
    # Arguments of `sw.from_webdataset` and of video2dataset's loader are decoders of media.
    ("compat", "media"),
    # Streams of remote files, as WebDataset's `gopen` gives them.
    ("compat", "remote"),
    # Sets of robots are tables with videos.
    ("series", "media"),
    ("series", "tables"),
    # Nodes share what caches of remote files hold, by the frames, tokens and TLS of batch servers.
    ("share", "remote"),
    ("share", "service"),
    # Records are decoded by the group, as row groups of tables are.
    ("formats", "tables"),
    # The page of a run shows the verdict on its coverage.
    ("monitor", "certify"),
    # `explain --show` shows samples as `shardwise show` does.
    ("ask", "show"),
}
# Packages that share a folder and know nothing of each other, but for what all may use.
SHARED = {
    "sources": {"manifest", "per_process", "protocol", "samples", "shard_names"},
    "codecs": {"protocol"},
    "extensions.formats": {"records"},
    "extensions.tables": {"arrow", "row_group_cache"},
}
KNOWS_ALL = {
    "sources": {""},
    "codecs": {"", "registry"},
    "extensions.formats": {"functions"},
    "extensions.tables": {"functions"},
}
# Who may find out ranks.
USERS_OF = {
    "base.ranks": {"base", "loader", "torch", "testing", "cli", PUBLIC, *EXTENSIONS},
    "base.process_group": {"base", "loader", "storage", *EXTENSIONS},
}
IMPORTS_TORCH = {"tensors", "torch", "compat", "integrations", "device_images"}
# Who looks into the environment: to find ranks, and to hand it on to worker processes as it is.
READS_ENVIRONMENT = {
    "shardwise.base.ranks",
    "shardwise.engine.processes.start_worker",
    # Credentials where their ecosystems keep them.
    "shardwise.extensions.remote.stores.credential_discovery",
    # Where a user's caches are.
    "shardwise.storage.user_dirs",
    # UCX is told not to write on the standard output about a variable that ucxx sets.
    "shardwise.extensions.service.ucx_worker",
    # What programs written for WebDataset and wids set.
    "shardwise.compat.environment",
}


@dataclass(frozen=True)
class Import:
    """One import: what, on which line, and whether it runs when the module is imported."""

    target: str
    line: int
    at_import: bool
    for_types: bool


@dataclass(frozen=True)
class Module:
    name: str
    imports: tuple[Import, ...]
    names: frozenset[str]  # attributes such as "os.environ"


def load(root: Path) -> list[Module]:
    modules = []
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(parse(name, path.read_text(), is_package=is_package))
    return modules


def parse(name: str, text: str, *, is_package: bool = False) -> Module:
    """The imports in a module's text, relative ones made absolute."""
    package = name if is_package else name.rpartition(".")[0]
    imports: list[Import] = []
    names: set[str] = set()

    def visit(node: ast.AST, *, at_import: bool, for_types: bool) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            at_import = False
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, at_import=False, for_types=True)
            for child in node.orelse:
                visit(child, at_import=at_import, for_types=for_types)
            return
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{node.value.id}.{node.attr}")
        for target in _targets(node, package):
            imports.append(Import(target, node.lineno, at_import, for_types))
        for child in ast.iter_child_nodes(node):
            visit(child, at_import=at_import, for_types=for_types)

    visit(ast.parse(text), at_import=True, for_types=False)
    return Module(name, tuple(imports), frozenset(names))


def _targets(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([base] if base else [])])
        for alias in node.names:
            # `from package import module` and `from module import name` look alike.
            yield f"{base}.{alias.name}"


def broken_rules(modules: list[Module]) -> list[str]:
    """What breaks the layers, one line each; empty where they hold."""
    known = {module.name for module in modules}
    found = []
    for module in modules:
        for imported in module.imports:
            target = _module_of(imported.target, known)
            if target is None:
                if imported.target.split(".")[0] == "torch":
                    found += _torch_rule(module, imported)
            else:
                reason = _reason(module.name, target, imported)
                if reason:
                    found.append(f"{module.name}:{imported.line} imports {target}: {reason}")
        reads = {"os.environ", "os.environb", "os.getenv", "os.getenvb"} & module.names
        imports_it = any(i.target in ("os.environ", "os.getenv") for i in module.imports)
        if (reads or imports_it) and module.name not in READS_ENVIRONMENT:
            found.append(
                f"{module.name} reads environment variables: only shardwise.base.ranks does"
            )
    return found


def _torch_rule(module: Module, imported: Import) -> list[str]:
    # The compat packages' classes derive from torch's, so they can't wait; integrations are only
    # imported by those who have the framework.
    if imported.at_import and _owner(module.name) not in IMPORTS_TORCH:
        return [f"{module.name}:{imported.line} imports torch when it is imported"]
    return []


def _module_of(target: str, known: set[str]) -> str | None:
    """The module of this package that an import names, itself or by a name in it."""
    if target in known:
        return target
    parent = target.rpartition(".")[0]
    return parent if parent in known else None


def _part(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def _extension(name: str) -> str:
    """The extension that a module belongs to; "" for one of the core."""
    parts = [*name.split(".")[1:], ""]
    return parts[1] if parts[0] == "extensions" else parts[0] if parts[0] in EXTENSIONS else ""


def _owner(name: str) -> str:
    """The extension, or the part of the core, that a module belongs to."""
    return _extension(name) or _part(name)


def _reason(importer: str, target: str, imported: Import) -> str | None:
    mine, theirs = _part(importer), _part(target)
    for part in (mine, theirs):
        if part not in {*CORE, *EXTENSIONS, PUBLIC, "__main__"}:
            return f"{part!r} has no layer: give it one in tests/support/layers.py"
    if mine == PUBLIC:
        return None
    if theirs == PUBLIC:
        return None if mine in USES_PUBLIC else "only those above the core may"
    for module, users in USERS_OF.items():
        if target.startswith(f"shardwise.{module}") and mine not in users:
            return f"only {', '.join(sorted(map(repr, users)))} may"
    if theirs == "tensors" and imported.at_import and _owner(importer) not in IMPORTS_TORCH:
        return "only inside a function: it imports torch"
    if theirs in EXTENSIONS:
        return _between_extensions(importer, target)
    if mine == theirs:
        return _sideways(importer, target, mine) if mine in SHARED else None
    if mine == "engine" and (
        theirs == "codecs"
        or (theirs == "sources" and target.rpartition(".")[2] not in SHARED[theirs])
    ):
        return "the engine sees sources and decoders as protocols only"
    if mine in CORE and CORE.index(theirs) > CORE.index(mine):
        return f"{theirs!r} does not lie under {mine!r}"
    return None


def _between_extensions(importer: str, target: str) -> str | None:
    if _part(importer) not in EXTENSIONS:
        return "the core finds extensions through shardwise.base.plugins"
    mine, theirs = _extension(importer), _extension(target)
    if mine == theirs:
        package = f"extensions.{mine}"
        return _sideways(importer, target, package) if package in SHARED else None
    if theirs and (mine, theirs) not in NEIGHBOURS:
        return f"the extension {mine!r} knows nothing of {theirs!r}"
    return None


def _sideways(importer: str, target: str, package: str) -> str | None:
    """Two formats, or two families of codecs, know nothing of each other."""
    mine, theirs = _below(importer, package), _below(target, package)
    shared = theirs in SHARED[package] or _family(mine) == _family(theirs)
    if shared or mine in KNOWS_ALL[package]:
        return None
    return f"nothing goes sideways between two of {package}"


def _below(name: str, package: str) -> str:
    """The format or the family that a module belongs to."""
    return [*name.removeprefix(f"shardwise.{package}").split("."), ""][1]


def _family(name: str) -> str:
    """`images` and `image_headers` are one family."""
    return name.partition("_")[0].removesuffix("s")


def cycles(modules: list[Module]) -> list[str]:
    """A ring of modules that import each other, also late or for types; empty without one."""
    known = {module.name for module in modules}
    graph = {
        module.name: {_module_of(imported.target, known) for imported in module.imports}
        - {module.name, None}
        for module in modules
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(reversed(error.args[1]))]
    return []
