"""What a configuration key means, what it takes, and what it is by default.

attnzoo help trainer.max_steps
attnzoo help attention.window                               (an option: of each component that has it)
attnzoo help measure                                        (all keys of a group)
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from attnzoo.commands import add_json, print_json
from attnzoo.errors import RequestError
from attnzoo.reference import Key, component_options, describe, settings
from attnzoo.terminal import printable


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("keys", nargs="*", metavar="KEY", help="a key, such as trainer.max_steps, or a group of keys")
    add_json(parser)


def run(arguments: Namespace) -> int:
    found, faults = [], []
    for word in arguments.keys:
        try:
            found.append(describe(word))
        except RequestError as error:
            faults.append(error.message)
    if faults:
        raise RequestError(faults[0], faults[1:])
    if arguments.json:
        print_json([asdict(key) for keys in found or [[*settings(), *component_options()]] for key in keys])
    elif not found:
        tops = dict.fromkeys(key.name.partition(".")[0] for key in settings())
        print(f"attnzoo help KEY; keys and groups of keys: {', '.join(tops)}")
    else:
        print(printable("\n\n".join(text(key) for keys in found for key in keys)))
    return 0


def text(key: Key) -> str:
    """A key in a few lines."""
    head = f"{key.name} ({key.of})" if key.of else key.name
    default = "must be given" if key.default is None else f"default {key.default}"
    lines = [f"{head}: {key.takes}; {default}", key.meaning, "; ".join(key.bounds)]
    lines += [f"valid: {', '.join(key.choices)}"] if key.choices else []
    lines += [f"of attnzoo {' and '.join(key.commands)} alone"] if key.commands else []
    return "\n  ".join(line for line in lines if line)
