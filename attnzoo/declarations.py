"""What a class of this package declares, read from its source without running its file: so that ``--cfg``, completion and help
know every option, with its type, default and bounds, while torch stays unloaded.

Only what a declaration needs is run: classes of options, the constants and functions that they name.
"""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
_REGISTERED = re.compile(r'^@(?:\w+\.)?register\("([^"]+)"\)\s*\n(?:@.*\n)*class (\w+)', re.MULTILINE)


@cache
def registered(home: str) -> dict[str, tuple[str, str]]:
    """Name -> (module, class) of what the files of a package register with ``@register("NAME")``."""
    files = sorted((PACKAGE.parent / home.replace(".", "/")).glob("*.py"))
    return {
        name: (f"{home}.{file.stem}", cls)
        for file in files
        for name, cls in _REGISTERED.findall(file.read_text(encoding="utf-8"))
    }


def declared(module: str, cls: str, attribute: str) -> Any:
    """The value of a class's attribute, inherited ones too.

    Raises:
        AttributeError: neither the class nor what it extends has it.
    """
    return _source(module).attribute(cls, attribute)


@cache
def _source(module: str) -> _Source:
    return _Source(module)


class _Source:
    """One module of this package: its top-level statements, by the names that they bind, evaluated when asked for."""

    def __init__(self, module: str) -> None:
        path = PACKAGE.parent / module.replace(".", "/")
        self.file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.namespace = _Names(self, __name__=module)
        self.statements: dict[str, ast.stmt] = {}
        self.imported: list[str] = []
        for node in ast.parse(self.file.read_text(encoding="utf-8")).body:
            for name in _bound(node):
                self.statements[name] = node
            self.imported += _modules(node)

    def attribute(self, cls: str, name: str) -> Any:
        node = self.statements.get(cls)
        if isinstance(node, ast.ImportFrom):
            return _source(str(node.module)).attribute(cls, name)
        if not isinstance(node, ast.ClassDef):
            raise AttributeError(f"{self.file}: {cls} is no class")
        for statement in node.body:
            if isinstance(statement, ast.ClassDef) and statement.name == name:
                return self.run(statement, _Names(self, __name__=self.namespace["__name__"]))[name]
            value = getattr(statement, "value", None)
            if name in _bound(statement) and isinstance(value, ast.expr):
                return self.evaluate(value)
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.statements:
                try:
                    return self.attribute(base.id, name)
                except AttributeError:
                    continue
        raise AttributeError(f"{cls} declares no {name}")

    def evaluate(self, node: ast.expr) -> Any:
        self._resolve(node)
        return eval(compile(ast.Expression(node), str(self.file), "eval"), self.namespace)

    def value(self, name: str) -> Any:
        """What a top-level name stands for."""
        if name not in self.namespace:
            node = self.statements[name]
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.namespace[name] = _import(node, name)
            else:
                self.run(node, self.namespace)
        return self.namespace[name]

    def run(self, node: ast.stmt, namespace: dict[str, Any]) -> dict[str, Any]:
        """Run one statement; annotations of functions are left out, and what their bodies name is found when they run."""
        for function in (each for each in ast.walk(node) if isinstance(each, (ast.FunctionDef, ast.Lambda))):
            if isinstance(function, ast.FunctionDef):
                function.returns = None
            arguments = function.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                argument.annotation = None
        self._resolve(node)
        exec(compile(ast.Module([node], []), str(self.file), "exec", dont_inherit=True), namespace)
        return namespace

    def _resolve(self, node: ast.AST) -> None:
        """Find what a statement names when it is run: a class body looks into the dictionary alone."""
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.id in self.statements:
                self.namespace[each.id]
            if not isinstance(node, (ast.FunctionDef, ast.Lambda)) or isinstance(each, ast.arguments):
                self._resolve(each)


class _Names(dict):
    """The globals of what is run: a name that is missing is found in its module."""

    def __init__(self, source: _Source, **known: Any) -> None:
        super().__init__(known)
        self.source = source

    def __missing__(self, name: str) -> Any:
        if name not in self.source.statements:
            raise KeyError(name)
        self[name] = self.source.value(name)
        return self[name]


def _import(node: ast.Import | ast.ImportFrom, name: str) -> Any:
    """What an import binds. A module of this package that would load torch is read as this one is, not run."""
    if isinstance(node, ast.Import):
        return importlib.import_module(name)
    module, original = str(node.module), next(a.name for a in node.names if (a.asname or a.name) == name)
    if module.startswith("attnzoo") and not _light(module):
        return _source(module).value(original)
    if module == "attnzoo" and original in ("Options", "register"):
        return getattr(
            importlib.import_module("attnzoo.options" if original == "Options" else "attnzoo.components"), original
        )
    imported = importlib.import_module(module)
    return (
        getattr(imported, original) if hasattr(imported, original) else importlib.import_module(f"{module}.{original}")
    )


@cache
def _light(module: str) -> bool:
    """Whether importing this module of the package loads neither torch nor numpy."""
    return not any(
        each.partition(".")[0] in ("torch", "numpy")
        or (each.startswith("attnzoo.") and each != module and not _light(each))
        for each in _source(module).imported
    )


def _modules(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [str(node.module)] if isinstance(node, ast.ImportFrom) and node.module != "__future__" else []


def _bound(node: ast.AST) -> list[str]:
    """The names that a statement binds."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
