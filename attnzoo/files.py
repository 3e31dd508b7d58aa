"""Reading and writing whole files. A file is there complete or not at all; JSON never holds NaN or Infinity."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError

LARGEST = 100_000_000
"""Bytes of a JSON or YAML file that is read; the largest there are, tokenizers and records, have a few million."""
DEEPEST = 64
"""Levels of such a file; a record has ten."""


def write_bytes_atomic(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write ``data`` to a temporary neighbour and move it over ``path``; parent folders are made.

    Raises:
        RequestError: the folder is a file, the disk is full, permission is missing; nothing is left behind.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes it private
        os.replace(temporary, path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(FileNotFoundError):  # it has been moved
                os.unlink(temporary)
    return path


def check_writable(path: str | os.PathLike[str]) -> None:
    """Make the parent folders of ``path`` and see that a file can be written there, before work whose result it will hold.

    Raises:
        RequestError: it cannot.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.is_dir():
            raise IsADirectoryError(None, "Is a directory")
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from error


def check_new_folder(path: str | os.PathLike[str]) -> None:
    """See that a new folder can be made there, before the work that fills it; nothing is made.

    Raises:
        RequestError: it cannot, or something is there already that is no empty folder.
    """
    path = Path(path)
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RequestError(f"{path} is there already: choose a new folder")
        above = next(parent for parent in path.absolute().parents if parent.exists())
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from error
    if not above.is_dir():
        raise RequestError(f"cannot write {path}: {above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise RequestError(f"cannot write {path}: no permission to write in {above}")


def write_folder_atomic(path: str | os.PathLike[str], files: Mapping[str, bytes]) -> Path:
    """A new folder with these files, whole or not at all.

    Raises:
        RequestError: something is there already that is no empty folder, or it cannot be written.
    """
    path = Path(path)
    check_new_folder(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as temporary:
            whole = Path(temporary) / path.name
            for name, data in files.items():
                write_bytes_atomic(whole / name, data)
            os.replace(whole, path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def write_text_atomic(path: str | os.PathLike[str], text: str) -> Path:
    """`write_bytes_atomic` for UTF-8 text; what is none (of a file's name, of others' code) is written as an escape."""
    return write_bytes_atomic(path, text.encode(errors="backslashreplace"))


def write_json_atomic(path: str | os.PathLike[str], obj: Any) -> Path:
    """`write_text_atomic` for JSON; NaN and infinities become null."""
    return write_text_atomic(path, json_text(obj))


def json_text(obj: Any) -> str:
    """What `write_json_atomic` writes."""
    return json.dumps(finite(obj), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects with a ``step`` of a JSON-lines file, [] where there is none; a line cut short by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file from anywhere, of at most `LARGEST` bytes and `DEEPEST` levels.

    Raises:
        RequestError: the file cannot be read, is no JSON, or is larger or deeper than that.
    """
    try:
        found = json.loads(_read_text(path))
    except ValueError as error:  # also text that is no UTF-8
        raise RequestError(f"{path} is not JSON: {error}") from error
    except RecursionError:
        raise RequestError(_too_deep(path)) from None
    if _deeper(found):
        raise RequestError(_too_deep(path))
    return found


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """The content of a YAML file from anywhere, within the limits of `read_json`. Aliases, by which a few bytes stand for
    gigabytes, are refused: nothing here writes them. A number that is not spelt as one is written here (0x10, 1_000, 1:30)
    stays a text: it may be a name, and where a number is asked for it is refused or read as Python reads it.

    Raises:
        FileNotFoundError: there is none.
        RequestError: the file cannot be read, is no YAML, has aliases, or is larger or deeper than that.
    """
    import yaml

    try:
        text = _read_text(path, missing_ok=True)
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise RequestError(f"{path} cannot be read: aliases (*{event.anchor}) are not allowed")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise RequestError(_too_deep(path))
        return yaml.load(text, Loader=_yaml_loader())
    except (ValueError, yaml.YAMLError) as error:  # also a date that is none, and text that is no UTF-8
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise RequestError(_too_deep(path)) from None


@cache
def _yaml_loader() -> Any:
    """PyYAML's safe loader; numbers in another spelling than `yaml.safe_dump`'s stay as they are written."""
    import yaml

    class Loader(yaml.SafeLoader):
        def number(self, node: yaml.ScalarNode) -> int | float | str:
            kind = node.tag.rpartition(":")[2]
            value = self.construct_yaml_int(node) if kind == "int" else self.construct_yaml_float(node)
            spelt = {str(value), str(value).replace("e", ".0e")}
            return value if node.value in spelt or node.value.lower().lstrip("+-") in (".inf", ".nan") else node.value

    for kind in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.number)
    return Loader


def _read_text(path: str | os.PathLike[str], missing_ok: bool = False) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
    except FileNotFoundError:
        if missing_ok:
            raise
        raise RequestError(f"cannot read {path}: No such file or directory") from None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error
    if len(raw) > LARGEST:
        raise RequestError(f"cannot read {path}: it has more than {LARGEST} bytes")
    return raw.decode()


def _deeper(found: Any) -> bool:
    """Whether lists and mappings are nested deeper than `DEEPEST`."""
    level = [found]
    for _ in range(DEEPEST):
        level = [item for held in level for item in _items(held)]
        if not level:
            return False
    return any(isinstance(held, (list, dict)) for held in level)


def _items(held: Any) -> list[Any]:
    return list(held.values()) if isinstance(held, dict) else held if isinstance(held, list) else []


def _too_deep(path: str | os.PathLike[str]) -> str:
    return f"cannot read {path}: it is nested more than {DEEPEST} levels deep"


def finite(obj: Any) -> Any:
    """``obj`` with every NaN and infinity replaced by None, tuples by lists, and numpy-like scalars by Python's."""
    if isinstance(obj, Mapping):
        return {str(key): finite(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple, set, frozenset)):
        return [finite(value) for value in (sorted(obj) if isinstance(obj, (set, frozenset)) else obj)]
    if isinstance(obj, (str, bool, int)) or obj is None:
        return obj
    if hasattr(obj, "item"):
        obj = obj.item()
    if isinstance(obj, float):
        return obj if math.isfinite(obj) else None
    return obj if isinstance(obj, (str, bool, int)) else str(obj)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
