"""Write a trained model as JSON and safetensors: in attnzoo's own layout, or in Hugging Face's.

attnzoo export runs/sdpa-seed0 --out my-model                   (attnzoo.load reads it)
attnzoo export runs/sdpa-seed0 --out my-llama --format llama    (transformers' from_pretrained reads it)
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from attnzoo.commands import add_allow_code, check_saved, flags
from attnzoo.files import check_new_folder

READ_BY = {"safetensors": "attnzoo.load", "llama": "transformers.AutoModelForCausalLM.from_pretrained"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=flags.place, metavar="RUN|DIR", help="a run folder, or an exported model")
    parser.add_argument("--out", type=flags.place, metavar="DIR", required=True, help="a new folder")
    parser.add_argument("--format", choices=tuple(READ_BY), default="safetensors", help="whose layout (safetensors)")
    add_allow_code(parser)


def run(arguments: Namespace) -> int:
    check_saved(arguments.run)
    check_new_folder(arguments.out)
    from attnzoo.model.export import export
    from attnzoo.model.llama import export_llama
    from attnzoo.training.saved import load_saved

    saved = load_saved(arguments.run, allow_code=arguments.allow_code)
    write = export_llama if arguments.format == "llama" else export
    if saved.no_text:
        print(f"the folder gets no tokenizer: {arguments.run} {saved.no_text}", file=sys.stderr)
    folder = write(saved.model, arguments.out, saved.tokenizer)
    print(f"{folder}: {READ_BY[arguments.format]}({str(folder)!r}) reads it")
    return 0
