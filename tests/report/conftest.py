"""A comparison as it could have been: nine backends, three seeds, two refused, one cell failed, one never started."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

NASTY = "<script>alert('x')</script> & \"quoted\" ]]> \x00\x1b[31m"
CUDA = "flex: training needs a CUDA device (FlexAttention has no backward on CPU)"

# name: loss in nats, recall, step ms, peak MiB, decode ms, growth of a step when the length doubles, kernel
SHAPES = {
    "exact": (1.738, 0.998, 148.2, 412.0, 1.94, 3.6, "torch/softmax"),
    "sdpa": (1.737, 0.999, 92.4, 118.0, 1.61, 2.5, "sdpa/flash"),
    "gqa": (1.746, 0.994, 88.1, 109.0, 1.52, 2.45, "sdpa/flash"),
    "mqa": (1.752, 0.971, 86.9, 104.0, 1.49, 2.4, "sdpa/flash"),
    "sliding_window": (1.622, 0.031, 95.3, 126.0, 1.66, 2.02, "torch/blocks"),
    "block_sparse": (1.701, 0.642, 121.7, 171.0, 2.31, 2.05, "torch/gather"),
    "linear": (1.803, 0.514, 104.9, 133.0, 1.22, 2.0, "torch/chunked"),
}


def timing(middle: float, rng: random.Random, base: float) -> dict:
    low, high = middle * (1 - rng.uniform(0.01, 0.03)), middle * (1 + rng.uniform(0.01, 0.03))
    near = middle / base
    ratio = {"to": "sdpa", "median": near, "low": near * 0.995, "high": near * 1.006} if near != 1 else None
    return {"median": middle, "low": low, "high": high, "rounds": 15, "ratio": ratio}


def suite(names: list[str], failed: str | None = None, skipped: str | None = None) -> list[dict]:
    return [
        {
            "name": name,
            "passed": None if name == skipped else name != failed,
            "max_change": 0.25 if name == failed else 0.0,
            "first_leaking_position": 63 if name == failed else None,
            "detail": f"{NASTY} position 63 saw token 64" if name == failed else "",
        }
        for name in names
    ]


def environment(seed: int) -> dict:
    return {
        "python": "3.12.4", "torch": "2.13.0+cpu", "lightning": "2.6.6", "device": "cpu", "precision": "fp32",
        "cpu": "Example CPU @ 2.60GHz", "precision_reason": "auto: bf16 matmul is slower here", "threads": 2,
        "git_commit": "0123456789abcdef0123456789abcdef01234567", "git_dirty": False, "seconds": 41.2 + seed,
        "command": "attnzoo compare 'backends=[exact,sdpa]' 'seeds=[0,1,2]'",
        "start": f"2026-03-01T10:0{seed}:00+00:00", "end": f"2026-03-01T10:0{seed}:41+00:00",
    }  # fmt: skip


def make_record(name: str, seed: int = 0) -> dict:
    loss, recall, step, peak, decode, growth, kernel = SHAPES[name]
    rng = random.Random(f"{name} {seed}")
    loss += rng.gauss(0, 0.006)
    recall = min(1.0, max(0.0, recall + rng.gauss(0, 0.004)))
    points = [k * 102_400 for k in range(1, 7)]
    curve = [[t, loss + 3.8 * math.exp(-t / 1.1e5) + 0.002 * rng.gauss(0, 1)] for t in points]
    curve[-1][1] = loss
    recalls = [[t, recall / (1 + math.exp(6 - t / 40_000))] for t in points]
    lengths = [256 * 2**k for k in range(6)]
    sweep = [
        {"n_tokens": n, "train_step_ms": step * growth**k / 4, "peak_memory_bytes": int(peak * 2**20 * growth**k / 4)}
        for k, n in enumerate(lengths)
    ]
    return {
        "schema": 1, "status": "ok", "reasons": [], "attention": name, "options": {}, "seed": seed,
        "kernel_requested": "auto", "kernel_resolved": kernel, "positions": "rope", "n_heads": 4, "n_kv_heads": 4,
        "config_hash": f"{abs(hash((name, seed))):012x}"[:12],
        "quality": {
            "val_loss_nats": loss, "val_bits_per_byte": loss / math.log(2), "val_perplexity": math.exp(loss),
            "train_loss_nats": loss - 0.05, "tokens_seen": 614_400, "curve": curve,
            "sample": f"Call me {name}. Some years ago--never mind how long precisely--{NASTY}\nhaving little money",
            "task_accuracy": {"recall": recall}, "task_chance": {"recall": 1 / 64}, "task_curve": {"recall": recalls},
        },
        "cost": {
            "parameters": 1_049_600, "train_flops": 2.6e10, "train_step_ms": timing(step, rng, 92.4),
            "train_tokens_per_s": 2048 / step * 1e3, "train_peak_memory_bytes": int(peak * 2**20),
            "train_peak_memory_method": "profiler", "prefill_ms": timing(step / 9, rng, 92.4 / 9),
            "decode_ms_per_token": timing(decode, rng, 1.61), "cache_bytes": 294_912, "cache_bytes_formula": 294_912,
            "shape": {"batch_size": 8, "n_tokens": 256}, "length_sweep": sweep, "timing_id": "rounds-1",
        },
        "leak": {"passed": True, "tests": suite(["suffix", "gradient", "truncation", "decoding", "entropy"])},
        "correct": {"passed": True, "tests": suite(["definition", "gradient", "empty rows", "extend"])},
        "environment": environment(seed),
    }  # fmt: skip


def refused(name: str, seed: int = 0) -> dict:
    reasons = {"flex": [CUDA], "xformers": ["xformers: no CUDA device", "xformers: no operator runs fp32 on cpu"]}[name]
    return {"schema": 1, "status": "refused", "reasons": reasons, "attention": name, "options": {}, "seed": seed,
            "kernel_requested": "auto", "positions": "rope", "n_heads": 4, "n_kv_heads": 4,
            "environment": environment(seed)}  # fmt: skip


@pytest.fixture
def records() -> list[dict]:
    """Everything that can happen to a cell, in the order of a plan."""
    found = [make_record(name, seed) for name in SHAPES for seed in (0, 1, 2)]
    found += [refused(name, seed) for name in ("xformers", "flex") for seed in (0, 1, 2)]
    failed = next(r for r in found if r["attention"] == "mqa" and r["seed"] == 2)
    for part in ("quality", "cost", "leak", "correct"):
        del failed[part]
    failed.update(status="failed", reasons=[f"NumericalError in blocks.1: {NASTY}"])
    for record in found:
        if record["attention"] == "block_sparse":
            record["leak"] = {"passed": False, "tests": suite(["suffix", "gradient", "truncation"], "suffix")}
        if record["attention"] == "linear":
            record["correct"] = {"passed": False, "tests": suite(["definition", "extend"], "extend", "definition")}
    return found


@pytest.fixture
def folder(tmp_path, records):
    """The records as a comparison leaves them, with one planned cell that has none."""
    runs = [{"run": f"{r['attention']}-s{r['seed']}", "attention": r["attention"], "seed": r["seed"]} for r in records]
    for run, record in zip(runs, records, strict=True):
        path = tmp_path / "comparison" / run["run"] / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
    lost = {"run": "gqa-s3", "attention": "gqa", "seed": 3, "options": {}, "kernel_requested": "auto",
            "positions": "rope", "n_heads": 4, "n_kv_heads": 4}  # fmt: skip
    plan = {"command": "attnzoo compare 'backends=[exact,sdpa,<b>]' 'seeds=[0,1,2]'", "cells": [*runs, lost]}
    (tmp_path / "comparison" / "comparison.json").write_text(json.dumps(plan))
    return tmp_path / "comparison"


FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip


class Page(HTMLParser):
    """Tags with their attributes, table cells, and all text outside of script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.stack.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.stack):
            self.words.append(data)
            if {"td", "th"} & set(self.stack):
                self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return "".join(self.words)


@pytest.fixture
def parse():
    """Text to `Page`."""
    return Page


@pytest.fixture
def browse(tmp_path_factory):
    """Open a file in headless Chromium with the given flags; skips where there is none."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine: the page is not opened in a browser")

    def opened(page: Path, *more: str) -> subprocess.CompletedProcess[str]:
        profile = tmp_path_factory.mktemp("profile")
        command = [chromium, *FLAGS, f"--user-data-dir={profile}", "--enable-logging=stderr", *more, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    return opened
