"""Take over a Hugging Face Llama or Qwen3: read its folder, write it in attnzoo's layout.

attnzoo import my-llama --out my-model
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from attnzoo.commands import flags
from attnzoo.errors import RequestError
from attnzoo.files import check_new_folder


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=flags.place, metavar="DIR", help="a folder with config.json and model.safetensors"
    )
    parser.add_argument("--out", type=flags.place, metavar="DIR", required=True, help="a new folder")
    parser.add_argument("--attention", default="sdpa", metavar="NAME", help="what computes the softmax (sdpa)")


def run(arguments: Namespace) -> int:
    if not Path(arguments.folder).is_dir():
        raise RequestError(f"{arguments.folder} is no folder")
    check_new_folder(arguments.out)
    from attnzoo.model.export import export
    from attnzoo.model.llama import from_llama

    folder = export(from_llama(arguments.folder, arguments.attention), arguments.out)
    print(f"{folder}: attnzoo.load({str(folder)!r}) reads it")
    return 0
