"""The command ``attnzoo``: find the command, parse its arguments, turn errors into one message and an exit status.

0 done; 1 it ran and something failed; 2 the request was wrong; 130 stopped from the keyboard, 143 by SIGTERM. No heavy imports.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import IO, NoReturn

import attnzoo
from attnzoo.errors import AttnzooError, RequestError, Stopped, unknown

COMMANDS = {
    "list": "the backends: what they can do, and what runs on this machine",
    "doctor": "what is installed here, and what is broken",
    "train": "train one model and record its quality, cost and leak tests",
    "compare": "train several backends on the same data and measure them side by side",
    "sweep": "train every combination of several values and measure them side by side",
    "check": "hold backends to the conformance suite",
    "leak": "test a trained model for leaks from the future",
    "show": "draw what a backend reads, or the heads of a trained model",
    "bench": "time and memory of backends over sequence lengths",
    "sample": "generate text with a trained model",
    "export": "write a trained model as safetensors and JSON, here or as a Hugging Face Llama",
    "import": "take over a Hugging Face Llama",
    "report": "write report.html and summary.csv from run records",
}
# where a full or closed disk shows; other OSErrors are bugs
STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG}


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are `RequestError`s, with the nearest option for a misspelt one."""

    @property
    def command(self) -> str:
        return self.prog.removeprefix("attnzoo").strip() or "options"

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{self.command}: {message}")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """All arguments, options and positionals in any order."""
        parsed, extra = self.parse_known_intermixed_args(argv)
        options = [word for action in self._actions for word in action.option_strings]
        if extra:
            faults = [
                unknown("option", word, options) if word.startswith("-") else f"{word!r} is too much" for word in extra
            ]
            raise RequestError(f"{self.command}: {faults[0]}", faults[1:])
        return parsed


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the process's exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    atexit.register(gc.freeze)  # what torch loaded is not looked through once more at the end, for 0.2 s
    try:
        status = run([word for word in words if word != "--debug"], debug)
        sys.stdout.flush()
        return status
    except AttnzooError as error:
        if debug:
            _print_traceback()
        return _say(str(error), error.exit_status)
    except KeyboardInterrupt as stop:
        return _say(str(stop) or "stopped from the keyboard", stop.exit_status if isinstance(stop, Stopped) else 130)
    except BrokenPipeError:  # the reader went away, as in `attnzoo list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug or error.errno not in STORAGE:
            return _unexpected(error, debug)
        return _say(f"{error.filename or 'storage'}: {error.strerror}", 2)
    except Exception as error:
        return _unexpected(error, debug)


def run(words: list[str], debug: bool = False) -> int:
    """Dispatch to a command, or answer a question about the program itself."""
    if words[:1] == ["__complete"]:
        from attnzoo.completion import complete

        print("\n".join(complete(words[1:])))
        return 0
    if words and words[0] in COMMANDS:
        module = importlib.import_module(f"attnzoo.commands.{words[0]}")
        parser = Parser(
            prog=f"attnzoo {words[0]}",
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(parser)
        parser.add_argument("--debug", action="store_true", help="keep the traceback of an error")
        arguments = parser.parse(words[1:])
        arguments.debug = debug
        return module.run(arguments)
    return _about(words)


def _about(words: list[str]) -> int:
    lines = "\n".join(f"  {name:<9} {line}" for name, line in COMMANDS.items())
    parser = Parser(
        prog="attnzoo",
        usage="attnzoo COMMAND …    (attnzoo COMMAND --help says more)",
        description=f"What an attention costs, what it buys, and whether it is correct.\n\ncommands:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"attnzoo {attnzoo.__version__}")
    parser.add_argument(
        "--completion", choices=("bash", "zsh"), help='print a completion script: eval "$(attnzoo --completion bash)"'
    )
    if words and not words[0].startswith("-"):
        raise RequestError(unknown("command", words[0], COMMANDS))
    arguments = parser.parse(words)
    if arguments.completion:
        from attnzoo.completion import script

        print(script(arguments.completion))
        return 0
    parser.print_help()
    return 0 if words else 2


def _say(message: str, status: int) -> int:
    print(f"attnzoo: {message}", file=sys.stderr)
    return status


def _unexpected(error: Exception, debug: bool) -> int:
    """A bug, or something nobody thought of: one line, and the traceback in a file."""
    if debug:
        _print_traceback()
        return 1
    import tempfile

    with tempfile.NamedTemporaryFile("w", prefix="attnzoo-", suffix=".txt", delete=False) as file:
        _print_traceback(file)
    return _say(f"unexpected {type(error).__name__}: {error}\nThe traceback is in {file.name}; --debug prints it", 1)


def _print_traceback(file: IO[str] | None = None) -> None:
    import traceback

    traceback.print_exc(file=file)
