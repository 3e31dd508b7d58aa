"""The run record: one JSON file a run, units in the names. No torch here: reports read records and nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import finite, read_json, write_json_atomic
from attnzoo.redact import redacted

SCHEMA = 1
STATUSES = ("ok", "refused", "oom", "failed", "interrupted")

NOT_IDENTITY = (
    "run_dir",
    "logger",
    "trainer.progress",
    "trainer.resume",
    "trainer.restart",
    "trainer.init_from",  # its content is part of it, not its place
    "data.sha256",  # it stands beside the hash
)
NOT_IDENTITY_CODE = "logger:"
"""Of ``code``, the files of components: those of loggers change no result either."""
BY_CONTENT = "data.paths"
"""Names what is told apart by its content, which stands in a record's ``data.sha256``, beside the hash of the settings."""

WRITTEN_BEFORE: dict[str, dict[str, Any]] = {
    "data": {
        "dataset": "", "subset": None, "split": "train", "text_field": "text", "max_bytes": 50_000_000, "bpe_vocab": 2048,
        "paths": [],
    },
    "trainer": {"muon_lr": 0.01, "decay_fraction": 0.4},
}  # fmt: skip
"""Options that earlier versions wrote whatever was chosen, at their defaults. They stay part of every hash, so that folders of
before are found again."""


class Record(dict):
    """A nested dict whose keys are attributes too: ``record.quality.val_loss_nats``.

    >>> record = Record(status="ok", quality={"val_loss_nats": 1.5})
    >>> record.quality.val_loss_nats
    1.5
    >>> record.quality.tokens_seen = 64
    >>> record["quality"]["tokens_seen"]
    64
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.update(*args, **kwargs)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _nested(value))

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the record has no {name!r}; it has {', '.join(self) or 'nothing'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self):  # the attribute access above would otherwise confuse pickle and copy
        return (type(self), (dict(self),))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the record as JSON, complete or not at all; NaN and infinities become null, secrets are hidden."""
        return write_json_atomic(path, redacted({"schema": SCHEMA, **self}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """Read a record.

        Raises:
            RequestError: no such file, no JSON, or not a record this version reads.
        """
        read = read_json(path)
        reasons = []
        if not isinstance(read, dict):
            raise RequestError(f"{path} is not a run record", ["it holds no JSON object"])
        if read.get("schema") != SCHEMA:
            reasons.append(f"schema {read.get('schema')!r}; this version reads {SCHEMA}")
        if read.get("status") not in STATUSES:
            reasons.append(f"status {read.get('status')!r}; valid: {', '.join(STATUSES)}")
        if reasons:
            raise RequestError(f"{path} is not a run record", reasons)
        return cls(redacted(read))  # one of an earlier version may hold them still


def config_hash(config: Any) -> str:
    """12 hex digits that name a configuration: equal exactly when every setting that can change the result is equal.

    What was read is no setting. A text stands beside this hash, by the SHA-256 of its content (``data.sha256`` of the
    record), so that a file that was moved is the same and one that was edited is another.

    Args:
        config: a dict or dataclass. Left out: what `NOT_IDENTITY` names, the paths of text files, and the values of secrets,
            which no file keeps.
    """
    plain = dataclasses.asdict(config) if dataclasses.is_dataclass(config) and not isinstance(config, type) else config
    plain = redacted(finite(plain))
    for path in NOT_IDENTITY:
        *parents, last = path.split(".")
        holder = plain
        for parent in parents:
            holder = holder.get(parent, {}) if isinstance(holder, dict) else {}
        if isinstance(holder, dict):
            holder.pop(last, None)
    for group, before in WRITTEN_BEFORE.items():
        if isinstance(plain.get(group), dict) and {"tokenizer", "optimizer"} & {*plain[group]}:  # a whole group
            plain[group] = {**before, **plain[group]}
    if isinstance(plain.get("data"), dict) and "paths" in plain["data"]:
        plain["data"]["paths"] = []
    if isinstance(plain.get("code"), dict):
        kept = {key: entry for key, entry in plain["code"].items() if not key.startswith(NOT_IDENTITY_CODE)}
        plain = {**plain, "code": kept} if kept else {key: value for key, value in plain.items() if key != "code"}
    for entry in plain.get("code", {}).values() if isinstance(plain.get("code"), dict) else ():
        entry.pop("file", None)  # a file that was moved is the same: its SHA-256 stands beside it
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _nested(value: Any) -> Any:
    if isinstance(value, Record):
        return value
    if isinstance(value, Mapping):
        return Record(value)
    if isinstance(value, (list, tuple)):
        return [_nested(item) for item in value]
    return value
