"""Write a trained model as JSON and safetensors: in attnzoo's own layout, or in Hugging Face's.

attnzoo export runs/sdpa-seed0 --out my-model                   (attnzoo.load reads it)
attnzoo export runs/sdpa-seed0 --out my-llama --format llama    (transformers' from_pretrained reads it)
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from attnzoo.training.config import load_config

READ_BY = {"safetensors": "attnzoo.load", "llama": "transformers.AutoModelForCausalLM.from_pretrained"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder")
    parser.add_argument("--format", choices=tuple(READ_BY), default="safetensors", help="whose layout (safetensors)")


def run(arguments: Namespace) -> int:
    load_config(arguments.run)  # a wrong folder is said at once, before torch is imported
    from attnzoo.model.export import export
    from attnzoo.model.llama import export_llama
    from attnzoo.training import load_run

    _, model, task = load_run(arguments.run)
    write = export_llama if arguments.format == "llama" else export
    folder = write(model, arguments.out, task.tokenizer)
    print(f"{folder}: {READ_BY[arguments.format]}({str(folder)!r}) reads it")
    return 0
