"""The command ``attnzoo``: find the command, parse its arguments, turn errors into one message and an exit status.

0 done; 1 it ran and something failed; 2 the request was wrong; 130 stopped from the keyboard, 143 by SIGTERM. No heavy imports.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any, NoReturn

import attnzoo
from attnzoo.errors import LONGEST_TRACEBACK, AttnzooError, RequestError, Stopped, both_ends, traceback_text, unknown
from attnzoo.terminal import one_line, printable

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
    "help": "what a configuration key means, takes and is by default",
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
        raise RequestError(f"{self.command}: {message}", list(dict.fromkeys(self._wrong())))

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """All arguments, options and positionals in any order; every fault at once."""
        parsed, extra = self.parse_known_intermixed_args(argv)
        options = [word for action in self._actions for word in action.option_strings]
        faults = [
            unknown("option", word.partition("=")[0], options) if word.startswith("-") else f"{word!r} is too much"
            for word in extra
        ]
        faults = list(dict.fromkeys([*self._wrong(), *faults]))
        if faults:
            raise RequestError(f"{self.command}: {faults[0]}", faults[1:])
        return parsed

    def _wrong(self) -> list[str]:
        """What is wrong with values; argparse would stop at the first."""
        return self.__dict__.setdefault("_wrong_values", [])

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
            shown = arg_string if len(arg_string) <= 80 else f"{arg_string[:80]}…"
            self._wrong().append(f"{name} {shown}: {error.message}")
            return None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            self._wrong().append(unknown(f"value of {action.option_strings[-1]}", str(value), map(str, action.choices)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the process's exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character shows its escape
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if debug:
        import logging

        logging.basicConfig(level=logging.INFO, format="%(message)s")
    atexit.register(gc.freeze)  # what torch loaded is not looked through once more at the end, for 0.2 s
    try:
        status = run([_text(word) for word in words if word != "--debug"], debug)
        sys.stdout.flush()
        return status
    except AttnzooError as error:
        if debug:
            _print_traceback(error)
        whole = "" if debug or error.whole == str(error) else f"\nThe whole message is in {_kept(error)}"
        return _say(f"{error}{whole}", error.exit_status)
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
        from attnzoo.commands import one_document

        with one_document() if getattr(arguments, "json", False) else nullcontext():
            return _carry_out(module, arguments)
    return _about(words)


def _carry_out(module: ModuleType, arguments: argparse.Namespace) -> int:
    """The command itself; code of others that ends the program is no success."""
    try:
        return module.run(arguments)
    except SystemExit as error:
        raise AttnzooError(f"some code that was run ended the program: SystemExit: {error}") from error


def _text(word: str) -> str:
    """A word of the command line. What is no text is refused before any work: records, configurations and pages are UTF-8.

    Raises:
        RequestError: bytes that are no UTF-8.
    """
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{word} is not UTF-8: names of files and values must be") from error
    return word


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
    print(f"attnzoo: {printable(message)}", file=sys.stderr)
    return status


def _unexpected(error: Exception, debug: bool) -> int:
    """A bug, or something nobody thought of: one line, and the traceback in a file."""
    if debug:
        _print_traceback(error)
        return 1
    return _say(f"unexpected {one_line(error)}\nThe traceback is in {_kept(error)}; --debug prints it", 1)


def _print_traceback(error: Exception) -> None:
    """On the terminal, of a length that can be read; where it is longer, the file that has it whole."""
    text = traceback_text(error)
    print(printable(both_ends(text, LONGEST_TRACEBACK)), file=sys.stderr)
    if len(text) > LONGEST_TRACEBACK:
        print(f"The whole traceback is in {_kept(error)}", file=sys.stderr)


def _kept(error: Exception) -> str:
    """The file that the traceback was written to, uncut."""
    import tempfile

    with tempfile.NamedTemporaryFile(
        "w", prefix="attnzoo-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(traceback_text(error))
    return file.name
