"""Reads the imports of a package from its source, and says which ones break its layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# Each part may import parts of a lower level and itself, nothing else.
LEVELS = {
    # What messages show of a URL (the errors stand on it), and what arguments may be.
    "shown": -1,
    "version": -1,
    "arguments": -1,
    "cores": -1,
    "errors": 0,
    # The seam to extensions, which it imports by name only.
    "plugins": 0.5,
    "framework_guards": 1.5,
    "parallel": 0.5,
    "foreign_bytes": 0.5,
    "hints": 0,
    "markup": 0,
    "progress_bar": 0,
    "columns": 0,
    "stages": 0,
    "pillow_import": 1,
    "torch_import": 1,
    # Frames and sound out of files; the layer under the codecs.
    "media_files": 1.5,
    "plan": 1,
    # What torch says of this process.
    "process_group": 0,
    "ranks": 1,
    "storage": 2,
    # Public names of storage, for stores of a program's own.
    "stores": 2.5,
    "codecs": 2,
    "collate": 2,
    "epoch_sampler": 2,
    # What a dataset is to the loader.
    "samples": 2,
    "sources": 3,
    "dataset": 4,
    "formats": 5,
    # The doors to tables, and to what other loaders wrote.
    "foreign_formats": 6,
    "engine": 6,
    # Batches made by servers: an executor of the engine's kind, and the other end.
    "serving": 7,
    # Batches as tensors: below the loader, which makes them.
    "tensors": 7,
    "loader": 8,
    "torch": 9,
    "building": 10,
    "compat": 10,
    "integrations": 10,
    "testing": 10,
    "cli": 11,
    "__main__": 12,
    "": 13,  # shardwise/__init__.py, the public names
}
# Who may find out ranks, and who may use the public names.
USERS_OF = {
    "ranks": {"loader", "torch", "compat", "testing", "cli", ""},
    "process_group": {"ranks", "loader", "serving"},
    "": {"compat", "testing", "cli", "__main__"},
}
# What the parts of one format or one family of codecs share, and who may know them all.
SHARED = {
    "sources": {
        "shard_names",
        "tables.arrow",
        "manifest",
        "per_process",
        "protocol",
        "records",
        "row_group_cache",
    },
    "codecs": {"part_decoder", "protocol", "rows"},
}
KNOWS_ALL = {"sources": {""}, "codecs": {"", "registry"}}
IMPORTS_TORCH = {"tensors", "torch", "compat", "integrations"}
# Who looks into the environment: to find ranks, and to hand it on to worker processes as it is.
READS_ENVIRONMENT = {
    "shardwise.base.ranks",
    "shardwise.engine.processes.start_worker",
    # Credentials where their ecosystems keep them.
    "shardwise.storage.stores.credential_discovery",
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
    if imported.at_import and _part(module.name) not in IMPORTS_TORCH:
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


def _reason(importer: str, target: str, imported: Import) -> str | None:
    mine, theirs = _part(importer), _part(target)
    for part in (mine, theirs):
        if part not in LEVELS:
            return f"{part!r} has no layer: give it one in tests/support/layers.py"
    if mine == theirs:
        return _sideways(importer, target) if mine in SHARED else None
    if theirs in USERS_OF and mine not in USERS_OF[theirs]:
        return f"only {', '.join(sorted(map(repr, USERS_OF[theirs])))} may"
    if theirs == "tensors" and imported.at_import and mine not in IMPORTS_TORCH:
        return "only inside a function: it imports torch"
    if mine == "engine" and (
        theirs == "codecs"
        or (theirs == "sources" and target.rpartition(".")[2] not in SHARED[theirs])
    ):
        return "the engine sees sources and decoders as protocols only"
    if theirs and LEVELS[theirs] >= LEVELS[mine]:
        return f"{theirs!r} does not lie under {mine!r}"
    return None


def _sideways(importer: str, target: str) -> str | None:
    """Two formats, or two families of codecs, know nothing of each other."""
    mine, theirs = _format(importer), _format(target)
    part = _part(importer)
    if mine in KNOWS_ALL[part] or theirs in SHARED[part] or _family(mine) == _family(theirs):
        return None
    return f"nothing goes sideways between two of {part}"


def _format(name: str) -> str:
    """The format or the family that a module belongs to; of tables each is one."""
    names = [*name.split(".")[2:], ""]
    return ".".join(names[:2]) if names[0] == "tables" else names[0]


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
