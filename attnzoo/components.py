"""Everything that a person can choose, by kind and name: the package's own, those of other packages and of files.

A component is one class in one file, with its `Options` beside it, known by ``@register("NAME")``. Other packages bring theirs
through the entry point group of the kind. No torch here: names and options are read from source files (`attnzoo.declarations`),
and a class is imported when it is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from attnzoo import declarations, options
from attnzoo.arguments import demand, fault, text
from attnzoo.errors import RequestError, unknown
from attnzoo.options import Options
from attnzoo.plugins import BrokenPlugin, Unusable, entry_points, load_point, name_faults
from attnzoo.settings import read

Registered = TypeVar("Registered", bound=type)


@dataclass(frozen=True)
class Kind:
    """What can be chosen in one place.

    Args:
        name: what code calls it; ``word``: what messages do.
        home: the package that holds the built-in ones, one file each; the entry point group has the same name.
        base: module and class that all of them extend.
    """

    name: str
    word: str
    home: str
    base: str


KINDS = {
    kind.name: kind
    for kind in (
        Kind("attention", "backend", "attnzoo.backends", "attnzoo.contract:Attention"),
        Kind("positions", "position scheme", "attnzoo.positions", "attnzoo.positions.base:Positions"),
        Kind("projection", "projection", "attnzoo.projections", "attnzoo.model.projection:Projection"),
        Kind("task", "task", "attnzoo.tasks", "attnzoo.tasks.base:Task"),
        Kind("metric", "metric", "attnzoo.metrics", "attnzoo.metrics.base:Metric"),
        Kind("optimizer", "optimizer", "attnzoo.optimizers", "attnzoo.optimizers.base:Optimizer"),
        Kind("corpus", "corpus", "attnzoo.corpora", "attnzoo.corpora.base:Corpus"),
        Kind("tokenizer", "tokenizer", "attnzoo.tokenizers", "attnzoo.tokenizers.base:Tokenizer"),
        Kind("schedule", "schedule", "attnzoo.schedules", "attnzoo.schedules.base:Schedule"),
        Kind("logger", "logger", "attnzoo.loggers", "attnzoo.loggers.base:Logger"),
    )
}


class Component:
    """What the class of every kind of component has: a docstring that begins with a title line, ``source`` and ``Options``.

    ``needs``: packages that it imports -> the extra of attnzoo that brings them, '' where there is none.
    """

    kind: ClassVar[str]
    name: ClassVar[str] = "unregistered"
    source: ClassVar[str]
    Options: ClassVar[type[Options]] = Options
    needs: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def definition_faults(cls) -> list[str]:
        """What the class lacks to be listed, asked and built."""
        faults, doc, source = [], vars(cls).get("__doc__"), getattr(cls, "source", None)
        if not isinstance(doc, str) or not doc.strip():
            faults.append("it has no docstring")
        if not isinstance(source, str) or not source.strip():
            faults.append("it names no source (a paper or a document)")
        return [*faults, *options.definition_faults(cls.Options)]

    @classmethod
    def naming_faults(cls, name: str) -> list[str]:
        """Why the class cannot go by this name, which is free otherwise."""
        return []


_classes: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
_broken: dict[str, list[BrokenPlugin]] = {kind: [] for kind in KINDS}
_origin: dict[tuple[str, str], str] = {}
_loaded: set[str] = set()


def register(name: str) -> Callable[[Registered], Registered]:
    """Class decorator that makes a component known as ``name``; its base class says of which kind it is.

    Raises:
        RequestError: the name is taken or cannot be one, or the class is no component or lacks a docstring, a source or what else
            its kind needs.
    """

    wrong = name_faults(name)
    if wrong and not (isinstance(name, str) and any(name in built_in(kind) for kind in KINDS)):
        raise RequestError("this cannot be registered", wrong)

    def add(cls: Registered) -> Registered:
        kind = kind_of(cls)
        if kind is None:
            bases = ", ".join(f"attnzoo.{each.base.partition(':')[2]}" for each in KINDS.values())
            raise RequestError(
                f"this cannot be registered as {name!r}",
                fault(
                    "cls",
                    cls,
                    f"a class that extends {bases.replace(', ', ' or ') if bases.count(',') == 1 else bases}",
                ),
            )
        reserved = [] if name in built_in(kind) else wrong  # none is a position scheme, and nobody else's name
        faults = [*reserved, *_taken(kind, name, cls), *cls.naming_faults(name), *cls.definition_faults()]  # type: ignore[attr-defined]
        if faults:
            raise RequestError(f"{cls.__qualname__} cannot be registered as {name!r}", faults)
        cls.name = name  # type: ignore[attr-defined]
        _classes[kind][name] = cls
        _origin.setdefault((kind, name), cls.__module__.split(".")[0])
        return cls

    return add


def kind_of(cls: Any) -> str | None:
    """The kind whose base the class extends; None for what is no component."""
    if not inspect.isclass(cls):
        return None
    bases = {f"{each.__module__}:{each.__qualname__}" for each in cls.__mro__[1:]}
    return next((kind.name for kind in KINDS.values() if kind.base in bases), None)


def list_components(kind: str) -> list[str]:
    """The names of a kind, plug-ins included, sorted; each can be imported.

    Raises:
        RequestError: no such kind.
    """
    if kind not in KINDS:
        raise RequestError(unknown("kind", kind, KINDS))
    load(kind)
    return sorted(_classes[kind])


def names(kind: str) -> list[str]:
    """What may be asked for: the package's own, plug-ins by their metadata, and what this process has registered. Nothing is
    imported for it."""
    here = {name for name in _classes[kind] if (kind, name) in _origin}
    return sorted({*declarations.registered(KINDS[kind].home), *_plugin_names(kind), *here})


def built_in(kind: str) -> list[str]:
    """The names of the package's own."""
    return sorted(declarations.registered(KINDS[kind].home))


def registered(kind: str) -> dict[str, Any]:
    """Name -> class of what this process has of a kind so far."""
    return dict(_classes[kind])


def is_packaged(kind: str, name: str) -> bool:
    """Whether every process has it: it is the package's own, or a plug-in's."""
    return name in declarations.registered(KINDS[kind].home) or name in _plugin_names(kind)


def forget_file(kind: str, name: str, file: str) -> None:
    """Take a class away that an earlier content of the same file brought, so that the present one can have its name."""
    cls = _classes[kind].get(name)
    if cls is not None and cls.__module__.startswith("attnzoo_file_"):
        there = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if there is not None and Path(there) == Path(file).expanduser().absolute():
            del _classes[kind][name], _origin[kind, name]


def broken_plugins(kind: str = "attention") -> list[BrokenPlugin]:
    """Plugins that cannot be used, with their errors."""
    load(kind)
    return sorted(_broken[kind], key=lambda plugin: (plugin.name, plugin.distribution))


def origin(kind: str, name: str) -> str:
    """The package that brought it."""
    load(kind)
    return _origin.get((kind, name), "attnzoo")


def get(kind: str, name: str) -> Any:
    """The class known as ``name``.

    Raises:
        RequestError: no such component (with the nearest name), or its plugin failed to import (with its error).
    """
    word = KINDS[kind].word
    demand(f"no such {word}", text("name", name))
    if name not in _classes[kind] and (own := declarations.registered(KINDS[kind].home).get(name)):
        importlib.import_module(own[0])  # of the package's own this one alone
    if name in _classes[kind]:
        return _classes[kind][name]
    load(kind)
    if name in _classes[kind]:
        return _classes[kind][name]
    for plugin in _broken[kind]:
        if plugin.name == name:
            raise RequestError(f"{word} {name!r} of {plugin.distribution} failed to import: {plugin.error}")
    raise RequestError(unknown_component(kind, name, _classes[kind]))


def unknown_component(kind: str, name: str, known: Any = None) -> str:
    """One line for a name that there is not."""
    return unknown(KINDS[kind].word, name, names(kind) if known is None else known)


def options_class(kind: str, name: str) -> type[Options]:
    """The class of a component's options. For the package's own nothing is imported.

    Raises:
        RequestError: as `get`.
    """
    return declared(kind, name, "Options")


def declared(kind: str, name: str, attribute: str) -> Any:
    """What the class says of itself in a class attribute. For the package's own nothing is imported."""
    own = declarations.registered(KINDS[kind].home).get(name)
    if own is None or name in _classes[kind]:
        return getattr(get(kind, name), attribute)
    return declarations.declared(*own, attribute)


def read_options(kind: str, name: str, given: Mapping[str, Any], path: str) -> tuple[Options | None, list[str]]:
    """The options of a component from plain values, checked by name, type and sense, and every fault; ``path``
    (``attention.``) stands before names in the faults."""
    kernels = declared(kind, name, "kernels") if kind == "attention" else ()
    return read_class(options_class(kind, name), kind, name, given, path, kernels)


def read_class(
    cls: type[Options], kind: str, name: str, given: Mapping[str, Any], path: str, kernels: Sequence[str] = ()
) -> tuple[Options | None, list[str]]:
    """`read_options` of a class of options that need not be registered; ``kernels`` are those that a backend has."""
    known = options.names(cls, kind)
    faults = [unknown(f"option of {name}", key, known) for key in given if key not in known]
    values, wrong = read(cls, {key: value for key, value in given.items() if key in known}, path)
    if kernels and values.get("kernel", "auto") not in ("auto", *kernels):
        wrong.append(unknown(f"kernel of {name}", values["kernel"], kernels))
    if faults or wrong:
        return None, faults + wrong
    made, senseless = options.made(cls, values)
    return made, [f"{path}{each}" if each.partition("=")[0] in known else each for each in senseless]


def lacking(kind: str, name: str, key: str) -> list[str]:
    """What must be installed before it can be used, as a fault of ``key``; nothing is imported for it."""
    absent = {package: extra for package, extra in declared(kind, name, "needs").items() if not installed(package)}
    return [
        f"{key}={name} needs the package {package}: pip install " + (f"'attnzoo[{extra}]'" if extra else package)
        for package, extra in absent.items()
    ]


def installed(package: str) -> bool:
    """Whether it can be found, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it is imported and has no spec of its own
        return True


def make(kind: str, name: str, given: Mapping[str, Any], path: str) -> Any:
    """A component with those of a group's options that it has; the others are of what else the group names."""
    known = options.names(options_class(kind, name), kind)
    return get(kind, name)(parse(kind, name, {key: given[key] for key in known if key in given}, path))


def parse(kind: str, name: str, given: Mapping[str, Any], path: str = "") -> Options:
    """The options as an instance of the class's own ``Options``, ready to build with. ``path`` (``trainer.``) stands before names
    in the faults; by default it is the kind's.

    Raises:
        RequestError: every fault at once.
    """
    cls = get(kind, name)
    parsed, faults = read_options(kind, name, given, path or f"{kind}.")
    if parsed is None:
        raise RequestError(f"{name} cannot take these options", faults)
    return cls.Options(**vars(parsed))


def load(kind: str) -> None:
    """Import the package's own components of a kind, then each plugin; a plugin that fails is kept with its error."""
    if kind in _loaded:
        return
    _loaded.add(kind)
    home = KINDS[kind].home
    for module in sorted({module for module, _ in declarations.registered(home).values()}):
        importlib.import_module(module)
    for point in entry_points(home):
        distribution = point.dist.name if point.dist else "an unknown package"
        before = dict(_classes[kind])
        try:
            demand("it cannot be used", name_faults(point.name))
            _take(kind, point.name, load_point(point))
        except (Unusable, RequestError) as error:
            # a broken plugin must not take the others down; it is shown wherever components are listed
            for name in set(_classes[kind]) - set(before):  # what it had registered before it failed
                del _classes[kind][name], _origin[kind, name]
            said = str(error) if isinstance(error, Unusable) else "; ".join([error.message, *error.reasons])
            _broken[kind].append(BrokenPlugin(point.name, distribution, said, getattr(error, "trace", "")))
        _origin.update({(kind, name): distribution for name in set(_classes[kind]) - set(before)})


def _plugin_names(kind: str) -> list[str]:
    return sorted({point.name for point in entry_points(KINDS[kind].home) if not name_faults(point.name)})


def _take(kind: str, name: str, loaded: Any) -> None:
    """Register what an entry point gave, unless its own code has done so."""
    if isinstance(loaded, ModuleType) and name in _classes[kind]:
        return
    if kind_of(loaded) != kind:
        base = KINDS[kind].base.partition(":")[2]
        raise RequestError(
            "it cannot be used", fault("its entry point", loaded, f"a class that extends attnzoo.{base}")
        )
    other = next((known for known, cls in _classes[kind].items() if cls is loaded), name)
    if other != name:
        raise RequestError(
            f"its class is registered as {other!r} and its entry point is called {name!r}: give both one name"
        )
    register(name)(loaded)


def _taken(kind: str, name: str, cls: type) -> list[str]:
    """Whose the name is already; names that differ only in case would share a folder on many systems."""
    same = [known for known, other in _classes[kind].items() if known.lower() == name.lower() and other is not cls]
    return [
        f"the name {known!r} is taken by {_classes[kind][known].__module__}.{_classes[kind][known].__qualname__}"
        for known in same
    ]
