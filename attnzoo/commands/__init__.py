"""One file a command: ``add_arguments(parser)`` and ``run(arguments)``, its exit status. Heavy imports stay in it."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from attnzoo.commands.flags import device
from attnzoo.errors import RequestError
from attnzoo.files import finite
from attnzoo.lazy import uncollected
from attnzoo.redact import redacted
from attnzoo.settings import plain
from attnzoo.terminal import printable, stdout_apart
from attnzoo.training.config import RunConfig, is_export, load_config, to_yaml

# a refused run was a wrong request; a refused cell of a comparison is a result
EXIT = {"ok": 0, "refused": 2, "interrupted": 130}


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_device(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        type=device,
        default="auto",
        metavar="auto|cpu|cuda",
        help="where it runs (auto: CUDA if there is one)",
    )


def add_allow_code(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="run the files that its attention, positions or tokenizer came from, where they did",
    )


def check_saved(folder: str) -> None:
    """What is neither a run folder nor an exported model is said at once, before torch is imported."""
    path = Path(folder)
    if path.is_dir() and not any((path / name).exists() for name in ("config.yaml", "config.json")):
        raise RequestError(f"{folder} is no run folder (config.yaml) and no exported model (config.json)")
    if not is_export(path):
        load_config(path)


def add_overrides(parser: ArgumentParser) -> None:
    """What every command takes that runs a configuration."""
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="model.n_layers=4, attention=linear, attention.chunk=64 …"
    )
    parser.add_argument("--cfg", choices=("job",), help="print the composed configuration and stop")
    parser.add_argument(
        "--config-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder with more choices, as DIR/experiment/mine.yaml",
    )


def composed(kind: str, arguments: Namespace) -> RunConfig | None:
    """The configuration that was asked for; None when it was only to be shown, which is done then."""
    from attnzoo.config import compose

    show = arguments.cfg is not None
    with uncollected():
        cfg = compose(kind, arguments.overrides, folders=arguments.config_dir)
    if show:
        print(to_yaml(cfg), end="")
    return None if show else cfg


def names_and_options(words: Iterable[str]) -> tuple[list[str], dict[str, dict[str, Any]], list[str]]:
    """Names, NAME.OPTION=VALUE as name -> option -> value, and what is neither."""
    names: list[str] = []
    options: dict[str, dict[str, Any]] = {}
    faults: list[str] = []
    for word in words:
        place, equals, value = word.partition("=")
        name, dot, option = place.rpartition(".") if ":" in place else place.partition(".")
        if not equals:
            names.append(word)
        elif dot and name and option:
            value = plain_value(option, value, faults)
            if option in options.setdefault(name, {}) and options[name][option] != value:
                faults.append(f"{place} is given twice")
            options[name][option] = value
        else:
            faults.append(f"{word!r} is neither a name nor NAME.OPTION=VALUE")
    return names, options, faults


def plain_value(key: str, text: str, faults: list[str]) -> Any:
    """The value of KEY=VALUE, read as the commands read it that run a configuration."""
    from attnzoo.composition import parse_overrides

    before = len(faults)
    for override in parse_overrides([f"{key}={text}"], faults):
        if not override.is_sweep_override() and override.package is None:
            return plain(override.value())
    if len(faults) == before:
        faults.append(f"{key}={text} names several values, or none")
    return None


def print_json(value: Any) -> None:
    """One document on the real stdout (`cli.run` has put what else is printed elsewhere)."""
    stream = sys.stdout if _document is None else _document
    unicode = (stream.encoding or "utf-8").lower().replace("-", "") == "utf8"
    written = json.dumps(redacted(finite(value)), indent=2, ensure_ascii=not unicode)
    stream.write(printable(written) + "\n")
    stream.flush()


_document: TextIO | None = None


@contextmanager
def one_document() -> Iterator[None]:
    """Meanwhile stdout holds what `print_json` writes and nothing else, whatever other code prints."""
    global _document
    with stdout_apart() as _document:
        try:
            yield
        finally:
            _document = None


def failed(record: dict[str, Any]) -> bool:
    """Whether a run that was done shows something wrong: it broke, it leaks, decodes differently, or computes something else."""
    verdicts = [record.get(part, {}).get("passed") for part in ("leak", "correct", "decoding")]
    leak = record.get("leak", {}).get("tests", [])
    verdicts += [test["passed"] for test in leak if test["name"] == "decoding" and not test["skipped"]]
    return record["status"] not in ("ok", "refused") or False in verdicts
