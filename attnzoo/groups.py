"""The configuration groups, and what may be chosen and set in them. Completion reads this: no torch, no Hydra."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnzoo import components, options
from attnzoo.errors import RequestError, nearest, unknown, unknown_backend
from attnzoo.settings import chosen
from attnzoo.training.config import CompareConfig, RunConfig, SweepConfig

SCHEMAS: dict[str, type[RunConfig]] = {"train": RunConfig, "compare": CompareConfig, "sweep": SweepConfig}
GROUPS = ("attention", "positions", "model", "data", "task", "probe", "trainer", "measure", "logger", "experiment")


def conf_dir() -> Path:
    """The folder of the shipped configuration: inside the installed package, or in the checkout.

    Raises:
        RequestError: it is in neither place.
    """
    package = Path(__file__).resolve().parent
    places = [package / "conf", package.parent / "conf"]
    for place in places:
        if (place / "train.yaml").is_file():
            return place
    raise RequestError("the configuration folder is missing", [f"{place} has no train.yaml" for place in places])


def backend_names() -> list[str]:
    """Every backend that may be asked for: the package's own, plugins, and what this process has registered."""
    return components.names("attention")


def kind_of(group: str) -> str | None:
    """The kind of component that ``group=`` names, beside its presets; None for a group of settings."""
    kind = typing.get_type_hints(RunConfig).get(group)
    return chosen(kind).get("name")


def component_keys(cls: type[RunConfig]) -> dict[str, str]:
    """Key -> kind, of every key whose value names components: a group by its name too."""
    found = {
        "backends": "attention",
        "baseline": "attention",
        "model.attention_pattern": "attention",
        "model.projection": "projection",
    }
    found["probe.optimizer"] = "optimizer"  # trained by settings of the probe, so that its group is not open to options
    return found | _component_keys(cls, "")


def _component_keys(cls: Any, path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, kind in _fields(cls).items():
        if dataclasses.is_dataclass(kind):
            found |= {f"{path}{name}": of for key, of in chosen(kind).items() if key == "name"}
            found |= {f"{path}{name}.{key}": of for key, of in chosen(kind).items()}
            found |= _component_keys(kind, f"{path}{name}.")
    return found


def group_of(key: str) -> str | None:
    """The group that a key chooses in: ``task``, or ``task.name``, which says the same."""
    group = key.removesuffix(".name")
    return group if group in GROUPS and (group == key or kind_of(group)) else None


def presets(group: str, folders: Sequence[Path] = ()) -> list[str]:
    """The files of a group; ``folders`` are searched besides the shipped one."""
    return sorted({path.stem for folder in (conf_dir(), *folders) for path in (folder / group).glob("*.yaml")})


def choices(group: str, folders: Sequence[Path] = ()) -> list[str]:
    """What ``group=`` may be set to: its presets, and every component of its kind."""
    kind = kind_of(group)
    return sorted({*presets(group, folders), *(components.names(kind) if kind else ())})


def _fields(cls: type) -> dict[str, Any]:
    """The keys of a group and their types; a component's options, and what is filled in, are none."""
    hints = typing.get_type_hints(cls)
    left_out = ("options",) if chosen(cls) else ("code",)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.name not in left_out}


def keys(cls: type, path: str = "") -> Iterator[str]:
    """Dotted keys of a configuration, groups' inner keys among them; components' own options aside."""
    for name, kind in _fields(cls).items():
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from keys(kind, f"{path}{name}.")
        elif (path, name) != ("attention.", "name"):
            yield f"{path}{name}"


def is_key(key: str, cls: type[RunConfig]) -> bool:
    """Whether a dotted key, or a group of keys, exists."""
    return key in GROUPS or any(name == key or name.startswith(f"{key}.") for name in keys(cls))


def is_open(key: str, cls: type[RunConfig]) -> bool:
    """Whether a dotted key may be an option of a component: it stands in a group that names one."""
    return key.rpartition(".")[0] in {path.rpartition(".")[0] for path in _component_keys(cls, "")} - {""}


def hint(key: str, cls: type[RunConfig]) -> Any:
    """The type of a dotted key; of an option that of the first component of its group that has it and is known here."""
    kind: Any = cls
    *parents, last = key.split(".")
    for name in parents:
        kind = typing.get_type_hints(kind).get(name) if dataclasses.is_dataclass(kind) else None
    if not (dataclasses.is_dataclass(kind) and isinstance(kind, type)):
        return None
    hints = typing.get_type_hints(kind)
    if last in hints and not (chosen(kind) and last == "options"):
        return hints[last]
    for of in chosen(kind).values():
        for name in dict.fromkeys([*components.built_in(of), *components.registered(of)]):
            own = components.options_class(of, name)
            if last in options.names(own, of):
                return typing.get_type_hints(own)[last]
    return None


def holds_text(key: str, cls: type[RunConfig]) -> bool:
    """Whether a dotted key is a text, or a list of texts: such a value stays as it was written, whatever it looks like."""
    kind = hint(key, cls)
    kinds = tuple(each for each in typing.get_args(kind) if each is not Ellipsis) or (kind,)
    return str in kinds and {*kinds} <= {str, type(None)} and typing.get_origin(kind) is not dict


def holds_list(key: str, cls: type[RunConfig]) -> bool:
    """Whether a dotted key is a list."""
    return typing.get_origin(hint(key, cls)) in (list, tuple)


def unknown_key(key: str, cls: type[RunConfig], more: Sequence[str] = ()) -> str:
    """One line for a key that does not exist: the command that has it, or the key that was probably meant and the
    valid ones beside it, components' options ``more`` among them."""
    elsewhere = [kind for kind, other in SCHEMAS.items() if other is not cls and key in keys(other)]
    if elsewhere:
        return f"{key!r} is a setting of attnzoo {elsewhere[0]}"
    known = [*keys(cls), *more]
    parent, _, last = key.rpartition(".")
    same_last = [name for name in known if name.rpartition(".")[2] == last]
    siblings = [name for name in known if name.startswith(f"{parent}.")] if parent else []
    near = (
        ((parent and nearest(key, same_last)) or same_last[0])
        if same_last
        else nearest(key, siblings) or nearest(key, [*known, *GROUPS])
    )
    top = sorted({name.split(".")[0] for name in known} | set(GROUPS))
    hint = f" did you mean {near!r}?" if near else ""
    return f"unknown key {key!r};{hint} valid: {', '.join(siblings or top)}"


def unknown_choice(group: str, word: str, folders: Sequence[Path] = ()) -> str:
    """One line for a choice that does not exist in a group."""
    known = choices(group, folders)
    return unknown_backend(word, known) if group == "attention" else unknown(group, word, known)
