"""The same settings again: what a later start of a run may change, and which folder holds what it goes on with. No torch here."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnzoo.errors import AttnzooError
from attnzoo.files import read_yaml
from attnzoo.measure.record import BY_CONTENT, NOT_IDENTITY, NOT_IDENTITY_CODE, WRITTEN_BEFORE, config_hash
from attnzoo.redact import redacted
from attnzoo.training.config import RunConfig, load_config, to_dict

LENGTH = "trainer.max_steps"
"""A later start may raise it."""
SPLIT = ("trainer.batch_size", "trainer.accumulate")
"""A later start may change these while their product, the sequences of a step, stays: the rows are the same in the same order."""


def flat(values: Mapping[str, Any], *, leave_out: Iterable[str] = (), prefix: str = "") -> dict[str, Any]:
    """{'trainer.max_steps': 300, …}, without the top-level keys ``leave_out``, what does not tell configurations apart, and
    secrets."""
    found: dict[str, Any] = {}
    for key, value in (redacted(values) if not prefix else values).items():
        name = prefix + key
        if name.startswith(f"code.{NOT_IDENTITY_CODE}"):
            continue
        moved = name.startswith("code.") and key == "file"  # its SHA-256 stands beside it
        if moved or key in leave_out or name in (*NOT_IDENTITY, BY_CONTENT):
            continue
        found |= flat(value, prefix=f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def in_the_way(there: Mapping[str, Any], asked: Mapping[str, Any], *, split: bool = True) -> list[str]:
    """'model.d_model: there 64, asked for 32' of each flat setting that differs; [] where what is there may go on under them.

    Args:
        split: `SPLIT` may change.
    """
    before = {f"{group}.{key}" for group, keys in WRITTEN_BEFORE.items() for key in keys}
    keys = [key for key in dict.fromkeys([*there, *asked]) if key in asked or key not in before]
    differ = [key for key in keys if there.get(key) != asked.get(key)]
    may = {LENGTH} if (there.get(LENGTH) or 0) < (asked.get(LENGTH) or 0) else set()
    may |= {*SPLIT} if split and same_rows(there, asked) else set()
    lines = [f"{key}: there {there.get(key)}, asked for {asked.get(key)}" for key in differ]
    return lines if set(differ) - may else []


def same_rows(there: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Whether a step takes as many sequences."""
    one, other = ([values.get(key) or 1 for key in SPLIT] for values in (there, asked))
    return one[0] * one[1] == other[0] * other[1]


def auto_folder(
    name: str, settings: Callable[[Path], Mapping[str, Any]], asked: Mapping[str, Any], *, split: bool, whole: bool
) -> str:
    """The folder of ``run_dir=auto``: ``name``; where there is none, the one beside it that holds the same run of fewer
    steps, which these settings go on with. Of several that with the most steps.

    Args:
        name: of the folder, ``runs/<stem>-<hash of the settings>``; a run that was trained on keeps its first name.
        settings: what the run in a folder was asked for, flat; empty where there is none.
        split: `SPLIT` may have changed.
        whole: only the very same settings, as for a run that is to start over.
    """
    if Path(name).exists():
        return name
    found = []
    for folder in sorted(Path(name).parent.glob(f"{glob.escape(Path(name).name.rpartition('-')[0])}-*")):
        with suppress(AttnzooError, OSError):  # what cannot be read is none of these
            there = settings(folder)
            if there and not in_the_way(there, asked, split=split) and (not whole or there == asked):
                found.append((there.get(LENGTH) or 0, str(folder)))
    return max(found)[1] if found else name


def run_settings(folder: Path, text: str = "") -> dict[str, Any]:
    """What the run in a folder was asked for, flat; empty where there is none, or where it read another text.

    Args:
        text: the SHA-256 of the text that is asked for, where it is known.
    """
    if not (folder / "config.yaml").is_file():
        return {}
    cfg = load_config(folder)
    return {} if text and cfg.data.sha256 not in ("", text) else flat_settings(cfg)


def flat_settings(cfg: RunConfig) -> dict[str, Any]:
    """The settings of a run that tell it from others."""
    return flat(to_dict(cfg))


def hash_as_written(folder: Path) -> str:
    """The hash of a run's settings as they stand in its folder: that of its record, where a version with fewer settings wrote
    both, for which today's defaults stand."""
    return config_hash(read_yaml(folder / "config.yaml"))
