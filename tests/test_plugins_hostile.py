"""Plug-ins that are wrong in every way their code can be: each is named with its reason, all else goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnzoo.plugins import name_faults

ATTENTION = '''
from dataclasses import dataclass, field
from attnzoo import Attention, Capabilities, Options, register

class Mine(Attention):
    """Everything, by softmax."""
    source = "a test"
    capabilities = Capabilities()
    def attend(self, q, k, v, mask, bias, x):
        return self.define(q, k, v, mask, bias, x)[0].to(q.dtype)
'''
CHANGED = {  # what a class says of itself, of wrong kinds: the line after the class, and the reason
    "doc": ("Mine.__doc__ = 3", "it has no docstring"),
    "source": ("Mine.source = ['a']", "it names no source"),
    "capable": ("Mine.capabilities = 3", "it declares no capabilities"),
    "masked": ("Mine.capabilities = Capabilities(masks=['window'])", "masks=['window']: must be a frozenset"),
    "timed": ("Mine.capabilities = Capabilities(time='T')", "time='T': must be a number"),
    "typed": ("Mine.capabilities = Capabilities(dtypes=('float32',))", "dtypes=('float32',): must be a tuple of torch"),
    "kernel": ("Mine.kernels = 'auto'", "kernels='auto': must be a tuple of names"),
    "optional": ("Mine.Options = 3", "not a dataclass that extends"),
    "needing": (
        "@dataclass(frozen=True)\nclass Needs(Options):\n    n: int = field(kw_only=True)\nMine.Options = Needs",
        "its Options cannot be made from its defaults: TypeError",
    ),
    "mistyped": (
        "@dataclass(frozen=True)\nclass Odd(Options):\n    n: int = 'three'\nMine.Options = Odd",
        "a default of its Options: Options.n='three': must be a whole number",
    ),
}  # fmt: skip
PACKAGES = {  # entry point -> (module text, attribute, the reason it is shown with)
    "leaver": ("raise SystemExit(0)", "Mine", "SystemExit: 0"),
    "presser": ("raise KeyboardInterrupt", "Mine", "KeyboardInterrupt"),
    "painter": ("raise ValueError('\\x1b[2J\\x1b]0;mine\\x07' + 'x' * 10 ** 6)", "Mine", "\\u001b[2J"),
    "../x": (ATTENTION, "Mine", "must be a letter or _"),
    "two words": (ATTENTION, "Mine", "must be a letter or _"),
    "a,b": (ATTENTION, "Mine", "must be a letter or _"),
    "3xgla+sdpa": (ATTENTION, "Mine", "must be a letter or _"),
    "n" * 65: (ATTENTION, "Mine", "at most 64"),
    "SDPA": (ATTENTION, "Mine", "the name 'sdpa' is taken by attnzoo.backends.sdpa.SDPA"),
    "sdpa": (ATTENTION, "Mine", "the name 'sdpa' is taken"),
    "peers": (ATTENTION, "Mine", "a meaning of its own"),
    "function": ("def Mine(): pass", "Mine", "its entry point=function: must be a class"),
    "taker": (ATTENTION + "\nregister('before')(Mine)\nregister('exact')(Mine)", "Mine", "the name 'exact' is taken"),
    "other": (ATTENTION + "\nregister('elsewhere')(Mine)", "Mine", "registered as 'elsewhere'"),
    **{name: (f"{ATTENTION}\n{line}", "Mine", reason) for name, (line, reason) in CHANGED.items()},
}
PRINTING = """def attend(self, *given):
        print('working')
        return self.go(*given)

    def go("""
OBJECTING = """
    @classmethod
    def refusals(cls, request):
        raise ZeroDivisionError('\\x1b[0mno')
"""
HELLO = "import ctypes, os\nprint('hello')\nos.write(1, b'hello\\n')\nctypes.CDLL(None).puts(b'hello')\n"
GOOD = {
    "chatty": HELLO + ATTENTION.replace("def attend(", PRINTING),
    "escapes": ATTENTION.replace("a test", "a \\x1b[31mtest").replace("Everything", "\\x1b[31mEverything"),
    "objector": ATTENTION + OBJECTING,
}


def install(site: Path, number: int, name: str, text: str, attribute: str = "Mine") -> None:
    """A package as an installer leaves it."""
    package = f"package_{number}"
    (site / f"{package}.py").write_text(text)
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[attnzoo.backends]\n{name} = {package}:{attribute}\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for number, (name, (text, attribute, _)) in enumerate(PACKAGES.items()):
        install(folder, number, name, text, attribute)
    for number, (name, text) in enumerate(GOOD.items(), len(PACKAGES)):
        install(folder, number, name, text)
    install(folder, 99, "chatty", ATTENTION)  # a second package of the same name
    return folder


def run(site: Path, *words: str, **how) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command(site), *words], cwd=site, capture_output=True, text=True, **how)


def command(site: Path) -> list[str]:
    root = Path(__file__).resolve().parents[1]
    start = f"import sys; sys.path[:0] = [{str(site)!r}, {str(root)!r}]"
    start += "; import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in the background
    code = f"{start}\nfrom attnzoo.cli import main\nsys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", code]


def test_list_shows_each_with_its_reason_and_prints_one_document(site: Path) -> None:
    before = {path.name for path in site.parent.iterdir()}
    done = run(site, "list", "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("hello") == 3
    listed = json.loads(done.stdout)
    broken = {row["name"]: row["error"] for row in listed["broken"]}
    for name, (_, _, reason) in PACKAGES.items():
        assert reason in broken[name], name
    assert max(map(len, broken.values())) < 2200
    assert "ZeroDivisionError" in broken["objector"]
    assert "the name 'chatty' is taken" in broken["chatty"]
    names = {row["name"] for row in listed["backends"]}
    assert {"chatty", "escapes", "sdpa", "mla"} <= names
    assert not names & {"before", "elsewhere", "SDPA"}  # nothing is left of what failed half-way
    assert {path.name for path in site.parent.iterdir()} <= before  # nothing was written beside it


@pytest.mark.parametrize("words", [["list", "--device", "cpu"], ["doctor"], ["show", "escapes", "--tokens", "4"]])
def test_no_escape_reaches_the_terminal(site: Path, words: list[str]) -> None:
    done = run(site, *words)
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == {"list": 0, "doctor": 1, "show": 0}[words[0]]


def test_a_check_that_prints_is_one_document(site: Path) -> None:
    done = run(site, "check", "chatty", "--quick", "--only", "worked_numbers", "--json")
    assert [report["subject"] for report in json.loads(done.stdout)] == ["chatty"]
    assert "working" in done.stderr


def test_a_configuration_printed_by_a_chatty_plugin_is_only_that(site: Path) -> None:
    done = run(site, "train", "attention=chatty", "--cfg", "job")
    assert done.stdout.startswith("attention:\n  name: chatty\n")


def test_a_name_that_cannot_be_is_no_choice(site: Path) -> None:
    done = run(site, "train", "attention=../x", "run_dir=auto")
    assert done.returncode == 2
    assert not (site / "runs").exists()


def test_ctrl_c_during_an_import_stops_and_says_where(tmp_path: Path) -> None:
    install(tmp_path, 0, "slow", "import time\nopen('begun', 'w').close()\ntime.sleep(60)")
    process = subprocess.Popen([*command(tmp_path), "list"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert (process.returncode, said) == (130, "attnzoo: stopped from the keyboard while plugin slow was imported\n")


def test_an_import_that_hangs_is_given_up_and_one_that_kills_is_named(tmp_path: Path) -> None:
    install(tmp_path, 0, "slow", "import time\ntime.sleep(60)")
    install(tmp_path, 1, "zkiller", "import os\nos._exit(7)")
    words = command(tmp_path)
    words[2] = words[2].replace("\nfrom", "\nimport attnzoo.plugins\nattnzoo.plugins.SECONDS = 0.2\nfrom", 1)
    code = "\nfrom attnzoo.components import broken_plugins\nprint([p.error for p in broken_plugins()])"
    (tmp_path / "package_1-1.0.dist-info" / "entry_points.txt").rename(tmp_path / "kept")
    hung = subprocess.run(
        [*words[:2], words[2].rpartition("\n")[0] + code], cwd=tmp_path, capture_output=True, text=True
    )
    assert hung.stdout == "['TimeoutError: its import took more than 0.2 s']\n"
    (tmp_path / "kept").rename(tmp_path / "package_1-1.0.dist-info" / "entry_points.txt")
    killed = subprocess.run([*words, "list", "--debug"], cwd=tmp_path, capture_output=True, text=True)
    assert killed.returncode == 7  # nothing can catch it; --debug says whose import was the last
    assert killed.stderr.endswith("importing plugin zkiller = package_1:Mine\n")


@pytest.mark.parametrize("name", ["relu_power", "a", "_b", "Mine", "gla-2", "n" * 64])
def test_names_that_can_be(name: str) -> None:
    assert name_faults(name) == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a.b", "a:b", "a=b", "a b", "a+b", "a\n", "λ", "2x", "null", "True", 3, None]
)
def test_names_that_cannot_be(name: object) -> None:
    assert name_faults(name)
