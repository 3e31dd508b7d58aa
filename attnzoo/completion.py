"""Tab completion: the candidates for a half-typed command line, and the scripts that ask for them. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module

from attnzoo import components, composition, groups
from attnzoo.cli import COMMANDS, Parser
from attnzoo.model.config import AUTO
from attnzoo.open_groups import option_names
from attnzoo.settings import dotted

# the shell hands over the whole line; bash splits words at "=", so what stands before the last one is cut off again
BASH = r"""_attnzoo() {
    local words cur=${COMP_LINE:0:COMP_POINT}
    read -r -a words <<< "$cur"
    [[ $cur == *" " ]] && words+=("")
    local last=${words[-1]}
    mapfile -t COMPREPLY < <(attnzoo __complete "${words[@]:1}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 0 ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$last")
    elif [[ $COMP_WORDBREAKS == *=* && $last == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${last%"${last##*=}"}"}")
    fi
    [[ ${COMPREPLY[0]} == *[=,.] ]] && compopt -o nospace 2>/dev/null
}
complete -F _attnzoo attnzoo"""

ZSH = r"""_attnzoo() {
    local -a found
    found=("${(@f)$(attnzoo __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -z "$found" ]]; then _files; else compadd -S '' -- $found; fi
}
compdef _attnzoo attnzoo"""


def script(shell: str) -> str:
    """The completion script of bash or zsh."""
    return {"bash": BASH, "zsh": ZSH}[shell]


def complete(words: Sequence[str]) -> list[str]:
    """Candidates for the last of the words after ``attnzoo``; [] leaves it to the shell's file names.

    >>> complete(["train", "attention=li"])
    ['attention=linear']
    """
    words = list(words) or [""]
    last = words[-1]
    if len(words) == 1:
        return _starting(last, [*COMMANDS, "--help", "--version", "--completion"])
    command = words[0]
    if command not in COMMANDS:
        return []
    if last.startswith("-"):
        return _starting(last, _options(command))
    if command == "help":
        from attnzoo.reference import component_options, settings

        return _starting(
            last, [*groups.GROUPS, *(key.name for each in (settings(), component_options()) for key in each)]
        )
    if command in groups.SCHEMAS:
        return _override(command, last, words[:-1])
    if command == "check":
        return _starting(last, [name for kind in components.KINDS for name in components.names(kind)])
    if command == "list":
        return _starting(last, components.KINDS)
    if command in ("bench", "show"):
        return _starting(last, groups.backend_names())
    return []


def _options(command: str) -> list[str]:
    parser = Parser(prog=command)
    import_module(f"attnzoo.commands.{command}").add_arguments(parser)
    return [word for action in parser._actions for word in action.option_strings if word.startswith("--")]


def _override(command: str, last: str, before: Sequence[str]) -> list[str]:
    """Keys before the "=", choices behind it; in a list, or in several values, the piece after the last comma."""
    cls = groups.SCHEMAS[command]
    key, equals, value = last.partition("=")
    if not equals:
        keys = [f"{name}=" for name in (*groups.GROUPS, *groups.keys(cls), *_option_keys(command, before))]
        return _starting(last, keys)
    cut = max(value.rfind(","), value.rfind("[")) + 1
    kind = groups.component_keys(cls).get(key)
    known = groups.choices(key) if key in groups.GROUPS else components.names(kind) if kind else []
    return [f"{key}={value[:cut]}{found}" for found in _starting(value[cut:], known)]


def _option_keys(command: str, before: Sequence[str]) -> Iterator[str]:
    """Options of the components chosen earlier on the line, or by default; those of a file are not known without running it."""
    chosen = dict(word.split("=", 1) for word in before if "=" in word)
    default = dotted(composition.defaults(command))
    for key, kind in groups.component_keys(groups.SCHEMAS[command]).items():
        path, _, field = key.rpartition(".")
        if path and not path.startswith("model"):
            name = chosen.get(path if field == "name" else key, default.get(key))
            for each in [name] if isinstance(name, str) and "[" not in name else str(name or "").strip("[]").split(","):
                known = "rope" if (kind, each) == ("positions", AUTO) else each
                if known in components.names(kind):
                    yield from (f"{path}.{option}" for option in option_names(kind, known))


def _starting(text: str, candidates: Iterable[str]) -> list[str]:
    return sorted({candidate for candidate in candidates if candidate.startswith(text)})
