"""What is read from source files is what the classes say, and reading it loads no torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from attnzoo import components, declarations

EVERY = [(kind, name) for kind in components.KINDS for name in components.built_in(kind)]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_declaration_read_is_the_class_imported(kind: str, name: str) -> None:
    module, cls = declarations.registered(components.KINDS[kind].home)[name]
    real = components.get(kind, name)
    assert (real.__module__, real.__qualname__) == (module, cls)
    read = declarations.declared(module, cls, "Options")
    assert read() is not real.Options()
    assert dataclasses.asdict(read()) == dataclasses.asdict(real.Options())
    assert [f.name for f in dataclasses.fields(read)] == [f.name for f in dataclasses.fields(real.Options)]
    assert read.__doc__ == real.Options.__doc__
    assert read.others == real.Options.others
    for attribute in ("source", *(("kernels", "projection") if kind == "attention" else ())):
        assert declarations.declared(module, cls, attribute) == getattr(real, attribute)


@pytest.mark.parametrize("kind", list(components.KINDS))
def test_reading_all_of_a_kind_imports_neither_torch_nor_numpy(kind: str) -> None:
    code = (
        "import sys; from attnzoo import components;"
        f"[components.options_class({kind!r}, name)() for name in components.built_in({kind!r})];"
        "print(*sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == ""


@pytest.mark.parametrize(
    ("kind", "name", "option", "value"),
    [
        ("attention", "sliding_window", "window", 0),
        ("attention", "kda", "dt_max", -1.0),
        ("task", "recall", "n_symbols", 1),
    ],
)
def test_values_that_make_no_sense_are_refused_as_the_class_refuses_them(kind, name, option, value) -> None:
    _, read = components.read_options(kind, name, {option: value}, "")
    module, cls = declarations.registered(components.KINDS[kind].home)[name]
    with pytest.raises(ValueError, match=option):
        declarations.declared(module, cls, "Options")(**{option: value})
    assert option in read[0]


def test_a_class_without_the_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError, match="declares no wings"):
        declarations.declared("attnzoo.tasks.recall", "RecallTask", "wings")


@pytest.mark.parametrize(
    ("written", "fits"), [("1e-3", True), ("2", True), ("abc", False), ("true", False), ("null", False)]
)
def test_every_command_says_the_same_of_a_value(written: str, fits: bool, capsys) -> None:
    """attention.temperature of gla, by the commands that take it."""
    from attnzoo.cli import main

    said = []
    for words in (
        ["train", "attention=gla", f"attention.temperature={written}", "--cfg", "job"],
        ["check", "gla", f"gla.temperature={written}", "--only", "outputs_kept", "--quick", "--device", "cpu"],
        ["show", "gla", f"gla.temperature={written}", "--tokens", "8"],
        ["show", "gla", f"attention.temperature={written}", "--tokens", "8"],
    ):
        status = main(words)
        said.append((status == 0, capsys.readouterr().err.partition("attention.temperature=")[2].strip()))
    assert set(said) == {(fits, said[0][1])}
