"""Secrets are kept out of everything that is written: by the name of the key, and by the look of a value. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HIDDEN = "***"

_ANYWHERE = re.compile(
    r"secret|passw|pwd|passphrase|credential|bearer|(api|access|private|auth|signing|encryption)_?keys?(?![a-z])"
)
_LAST = re.compile(
    r"(?<![a-z])(key|token|auth|cookie)[_\d]*$|(api|hf|hub|wandb|auth|access|refresh|session|bearer)_?tokens?$"
)
_COUNTED = re.compile(r"(per|pad|bos|eos|unk|sep|cls|mask|next|last|first|sort|max|min|num|n|each|by)_(token|key)$")
_VALUE = re.compile(
    r"\b(?:hf|gh[pousr]|github_pat|glpat|sk|pk|rk|wandb|pypi|xox[abprs])[_-][A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
)
_HEX = re.compile(r"\b[0-9a-f]{40,}\b")  # on a command line; in a record it is a commit or a checksum
_USER = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+(?=@)")
# a name is looked for where a word begins: within one of a million letters, that would be a million times
_PAIR = re.compile(r"(?<![\w.+-])([\w.+-]+)(\s*=\s*)(\"[^\"]*\"|'[^']*'|[^\s,;}\])]+)")
_ITEM = re.compile(r"([\"']?)(?<![\w.-])([\w.-]+)\1(\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|\[[^\]]*\]|[^,{}\]]+)")


def names_secret(key: str) -> bool:
    """Whether a key, or any part of a dotted one, names a secret.

    >>> [names_secret(key) for key in ("hub.api_key", "hf_token", "clientSecret", "secrets.first")]
    [True, True, True, True]
    >>> [names_secret(key) for key in ("n_tokens", "tokenizer", "key_padding", "monkey", "decode_ms_per_token", "eos_token")]
    [False, False, False, False, False, False]
    """
    return any(_part_names_secret(part) for part in str(key).split("."))


def redacted(value: Any) -> Any:
    """Plain values with `HIDDEN` in the place of what a key names a secret, at any depth; texts by `redacted_text`.

    >>> redacted({"n_tokens": 64, "hub": [{"api_key": "abc", "name": "x"}], "command": "train hf_token=abc"})
    {'n_tokens': 64, 'hub': [{'api_key': '***', 'name': 'x'}], 'command': 'train hf_token=***'}
    """
    if isinstance(value, Mapping):
        return {key: _hidden(item) if names_secret(key) else redacted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (
            type(value)(redacted(item) for item in value) if type(value) in (list, tuple) else [*map(redacted, value)]
        )
    return redacted_text(value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    """A text without the values of KEY=VALUE whose key names a secret, without what looks like one, without passwords in URLs.

    >>> redacted_text("options.mine.api_key=abc: must be short; see https://me:pw@host")
    'options.mine.api_key=***: must be short; see https://me:***@host'
    """
    text = _USER.sub(rf"\1:{HIDDEN}", _VALUE.sub(HIDDEN, text))
    text = _PAIR.sub(_hide_pair, text) if "=" in text else text
    return _ITEM.sub(_hide_item, text) if "{" in text else text


def redacted_command(argv: Sequence[str]) -> str:
    """The command as typed, without the path of the program and without secrets.

    >>> redacted_command(["/usr/bin/attnzoo", "train", "logger.api_key=a b", "--token", "abc", "task.n_tokens=64"])
    'attnzoo train logger.api_key=*** --token *** task.n_tokens=64'
    """
    shown, hide_next = [], False
    for word in [Path(argv[0]).name, *argv[1:]]:
        key, equals, value = word.partition("=")
        if hide_next:
            word = HIDDEN
        elif equals and names_secret(key.lstrip("+~-")):
            word = f"{key}={HIDDEN}"
        elif equals:
            word = f"{key}={redacted_text(value)}"
        hide_next = word.startswith("-") and not equals and names_secret(word.lstrip("-"))
        shown.append(redacted_text(_HEX.sub(HIDDEN, word)))
    return " ".join(shown)


def _part_names_secret(part: str) -> bool:
    part = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", part)  # apiKey
    part = re.sub(r"[^a-z0-9]+", "_", part.lower()).strip("_")
    return bool(_ANYWHERE.search(part) or (_LAST.search(part) and not _COUNTED.search(part)))


def _hidden(value: Any) -> Any:
    """Nothing of a value is left but its shape; that nothing was given is no secret."""
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(item) for item in value]
    return value if value is None or isinstance(value, bool) else HIDDEN


def _hide_pair(found: re.Match[str]) -> str:
    key, equals, value = found.groups()
    rest = ":" if value.endswith(":") else ""  # of the sentence
    return f"{key}{equals}{HIDDEN}{rest}" if names_secret(key.lstrip("+-")) else found[0]


def _hide_item(found: re.Match[str]) -> str:
    quote, key, colon, _ = found.groups()
    return f"{quote}{key}{quote}{colon}{HIDDEN}" if names_secret(key) else found[0]
