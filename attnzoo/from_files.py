"""Components that a file brings, without a package: ``FILE.py:NAME``, named on the command line or by the caller of the API.

A configuration keeps, beside a name, from which file it came and the file's SHA-256; reading it runs nothing. No torch here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from attnzoo import components
from attnzoo.errors import RequestError, unknown
from attnzoo.terminal import one_line

SPEC = re.compile(r"(?P<file>[^\s,=:\[\]{}'\"()]+\.py):(?P<cls>[A-Za-z_]\w*)")
"""How a component of a file is named, wherever a value names one."""

Code = dict[str, dict[str, str]]
"""'kind:name' -> file, class and sha256 of each component of a configuration that no package brings."""


def register_file(kind: str, file: str, cls: str) -> str:
    """Run the file and make its class known by the class's own name, or by the one it is registered with there.

    Raises:
        RequestError: no such file, it fails, it has no such class, or that is of another kind.
    """
    module = module_of(Path(file))
    found: Any = getattr(module, cls, None)
    if components.kind_of(found) != kind:
        known = [name for name, value in vars(module).items() if components.kind_of(value) == kind]
        word = components.KINDS[kind].word
        base = components.KINDS[kind].base.partition(":")[2]
        why = (
            unknown(f"{word} in {file}", cls, known)
            if found is None
            else f"{file}:{cls} does not extend attnzoo.{base}"
        )
        raise RequestError(why)
    there = next((name for name, other in components.registered(kind).items() if other is found), None)
    if there is None:
        components.forget_file(kind, cls, file)  # the same file, edited since
        components.register(cls)(found)
    return there or cls


def from_file(kind: str, name: str) -> str:
    """The name of a component, which may be given as FILE.py:CLASS."""
    match = SPEC.fullmatch(name)
    return register_file(kind, match["file"], match["cls"]) if match else name


class _FromSource(SourceFileLoader):
    """Compiles what stands in the file now: a cache goes by its size and second, and misses an edit of the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def module_of(path: Path) -> ModuleType:
    """The file, run once for each content; its own folder is searched for what it imports.

    Raises:
        RequestError: no such file, or whatever it raises, in one line.
    """
    path = path.expanduser().absolute()
    if not path.is_file():
        raise RequestError(f"{path}: no such file")
    place = hashlib.sha256(str(path).encode()).hexdigest()
    name = f"attnzoo_file_{place[:8]}_{sha256(path)[:8]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    made = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    assert made is not None
    assert made.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(made)  # dataclasses and pickle look it up
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        made.loader.exec_module(module)
    except Exception as error:  # whatever the code does at import is its own; it is said in one line
        del sys.modules[name]
        raise RequestError(f"{path} cannot be imported: {one_line(error)}") from error
    return module


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def code_of(used: Iterable[tuple[str, str]]) -> tuple[Code, list[str]]:
    """For (kind, name) of what a configuration uses: the files of those that no package brings, and those that another process
    could not load: classes of a notebook or a prompt."""
    code: Code = {}
    nowhere: list[str] = []
    for kind, name in used:
        cls = components.registered(kind).get(name)
        if cls is None or components.is_packaged(kind, name):
            continue
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if file is None or not Path(file).is_file() or "<locals>" in cls.__qualname__:
            nowhere.append(f"{components.KINDS[kind].word} {name!r} ({cls.__module__}.{cls.__qualname__})")
            continue
        path = Path(file).absolute()
        code[f"{kind}:{name}"] = {"file": str(path), "class": cls.__qualname__, "sha256": sha256(path)}
    return code, nowhere


def load_code(code: Mapping[str, Mapping[str, str]], *, allowed: bool, kinds: Sequence[str] = ()) -> None:
    """Run the files that a configuration names, as far as their components are not known already.

    Args:
        allowed: whether code may run; a configuration alone is no permission.
        kinds: these alone; all when empty.

    Raises:
        RequestError: it is not allowed, or a file is gone or another than the configuration's.
    """
    wanted = {key: entry for key, entry in code.items() if not kinds or key.partition(":")[0] in kinds}
    missing = {
        key: entry
        for key, entry in wanted.items()
        if key.partition(":")[2] not in components.registered(key.partition(":")[0])
    }
    if missing and not allowed:
        raise RequestError(
            "this needs code that its configuration names and that is not run by itself: --allow-code (allow_code=True) runs it",
            [f"{key}: {entry.get('file')}:{entry.get('class')}" for key, entry in missing.items()],
        )
    for key, entry in missing.items():
        kind, _, name = key.partition(":")
        path = Path(entry["file"])
        if path.is_file() and (found := sha256(path)) != entry["sha256"]:
            raise RequestError(
                f"{key}: {path} is another than the run's: its SHA-256 is {found}, there {entry['sha256']}"
            )
        registered = register_file(kind, entry["file"], entry["class"])
        if registered != name:
            raise RequestError(f"{key}: {path} registers its class {entry['class']} as {registered!r}")
