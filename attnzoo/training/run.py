"""One run from its settings to its record: refuse or train, probe, test for leaks, measure."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from attnzoo import registry
from attnzoo.arguments import demand, instance
from attnzoo.contract import Attention
from attnzoo.errors import Refused, RequestError
from attnzoo.files import finite
from attnzoo.measure.environment import environment, now, resolve_device, resolve_precision
from attnzoo.measure.outcome import outcome
from attnzoo.measure.record import Record, config_hash
from attnzoo.model import CausalLM, build_model
from attnzoo.model.build import layer_positions
from attnzoo.model.config import AttentionConfig, attention_of_layers, positions_name
from attnzoo.model.lm import hidden_width
from attnzoo.model.weights import save_weights
from attnzoo.tasks import Task, build_task
from attnzoo.training.after import correctness, costs, decoding_differs, leaks, sample
from attnzoo.training.apart import apart
from attnzoo.training.config import RunConfig, to_dict
from attnzoo.training.fit import Fitted, fit
from attnzoo.training.folder import RunFolder
from attnzoo.training.loggers import JsonLines, WandbLogger
from attnzoo.training.probe import run_probe
from attnzoo.training.validation import faults, machine_faults
from attnzoo.training.wandb_run import WandbRun

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
DOING = {"probe": "the probe task", "leak": "leak tests", "cost": "conformance, then time and memory"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Run:
    """What the stages of one run share."""

    cfg: RunConfig
    folder: RunFolder
    device: str
    precision: str
    model: CausalLM
    task: Task
    record: Record
    wandb: WandbRun


def train(cfg: RunConfig) -> Record:
    """Train one model and write its record; the run folder is ``cfg.run_dir``.

    Returns:
        the record, also written to ``record.json``. ``status``: ok; refused, with every reason, when the backend cannot
        compute this; oom or failed, with the reason, when it broke on the way (what was known by then is kept).

    Raises:
        RequestError: a wrong setting, missing data, a folder that holds another run, a broken checkpoint: nothing has
            been started; or a disk that cannot be written.
        KeyboardInterrupt: after the record, with status interrupted, was written.
    """
    demand("this run cannot be started", instance("cfg", cfg, RunConfig, "a configuration, as attnzoo.compose makes"))
    if wrong := faults(cfg) + machine_faults(cfg):
        raise RequestError("this run cannot be started", wrong)
    folder = RunFolder.inspect(cfg)
    if cfg.trainer.threads:
        torch.set_num_threads(cfg.trainer.threads)
    device = resolve_device(cfg.trainer.device)
    precision, why = resolve_precision(cfg.trainer.precision, device)
    record, started = new_record(cfg, device, precision, why), time.monotonic()
    task = build_task(cfg.task, cfg.data, cfg.seed)
    try:
        model = build_model(cfg, task.vocab_size)
        reasons = refusals(cfg, model, device, precision)
    except Refused as refused:
        reasons = refused.reasons or [refused.message]
    if reasons:
        folder.begin(cfg)
        return close(record, folder, started, "refused", reasons)
    folder.begin(cfg)
    describe(record, cfg, model)
    wandb = open_wandb(cfg, folder)
    record.wandb = wandb.status()
    run = Run(cfg, folder, device, precision, model, task, record, wandb)
    try:
        with torch.random.fork_rng(devices=[device] if device != "cpu" else []):
            stages(run)
        return close(record, folder, started, "ok", [])
    except (KeyboardInterrupt, SystemExit) as stop:  # Ctrl-C, or a SIGTERM that Lightning turned into SystemExit
        close(record, folder, started, "interrupted", [f"stopped by {type(stop).__name__}"])
        raise
    except Exception as error:  # whatever broke belongs in the record; a wrong request goes to the person too
        if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
            error = RequestError(f"cannot write in {folder.path}: {error.strerror}")
        if isinstance(error, RequestError) and not isinstance(error, Refused):
            with suppress(RequestError):  # on a full disk the record fails like what came before it
                close(record, folder, started, *outcome(error))
            raise error
        return close(record, folder, started, *outcome(error))
    finally:
        wandb.summarise(flat_numbers(record))
        wandb.finish(ok=record.get("status") == "ok")


def stages(run: Run) -> None:
    """Everything after the refusal check, in order. The record is filled as the results come in."""
    cfg, record = run.cfg, run.record
    with stage(record, "train"):
        fitted = train_main(run)
    record.quality = quality(fitted, run.task)
    record.kernel_resolved = run.model.kernel
    warn(record, apart(run.model, run.task, cfg.trainer, record.quality, run.device, run.precision))
    save_weights(run.model, run.folder.weights, {"config_hash": record.config_hash})
    if run.task.tokenizer is not None:
        record.quality.sample = sample(run.model, run.task, seed=cfg.seed)
    if cfg.probe.enabled:
        with stage(record, "probe", aloud=cfg.trainer.progress):
            probed = run_probe(cfg, run.device)
        record.quality.update(merged_tasks(record.quality, probed))
    if cfg.measure.leak:
        with stage(record, "leak", aloud=cfg.trainer.progress):
            record.leak = leaks(run.model, run.task, cfg, run.device, run.precision)
            warn(record, decoding_differs(record.leak))
    if cfg.measure.enabled:
        with stage(record, "cost", aloud=cfg.trainer.progress):
            record.correct = correctness(cfg, run.device)
            record.cost = costs(run.model, run.task, cfg, run.device, run.precision)


def warn(record: Record, sentences: list[str]) -> None:
    """Put what a reader must see into the record's ``warnings``, each sentence once."""
    for sentence in sentences:
        if sentence not in record.setdefault("warnings", []):
            record.warnings.append(sentence)


@contextmanager
def stage(record: Record, name: str, aloud: bool = False) -> Iterator[None]:
    """Note in the record's environment how many seconds this took; ``aloud`` also says on standard error what begins."""
    started = time.monotonic()
    if aloud:
        print(f"{record.attention}: {DOING[name]}", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        record.environment.setdefault("stage_seconds", {})[name] = round(time.monotonic() - started, 3)


def train_main(run: Run) -> Fitted:
    """Train on the main task, with every logger."""
    cfg, folder = run.cfg, run.folder
    table = folder.path / "metrics.csv" if cfg.logger.csv else None
    return fit(
        run.model, run.task, cfg.trainer, seed=cfg.seed, device=run.device, precision=run.precision,
        loggers=[JsonLines(folder.metrics, folder.resume_step, table), WandbLogger(run.wandb)],
        checkpoint=folder.checkpoint, resume_from=folder.resume_from, title=f"{cfg.attention.name} · {run.task.name}",
    )  # fmt: skip


def refusals(cfg: RunConfig, model: CausalLM, device: str, precision: str) -> list[str]:
    """Every reason why a backend of the model cannot train it, or decode then: its layout, bias, dropout, dtype, device."""
    found: list[str] = []
    bias = model.positions.bias()
    alibi = bias is not None and bias.alibi_slopes is not None
    learned = model.positions.needs_bias and any(p.requires_grad for p in model.positions.parameters())
    for (choice, attention), block in zip(members(cfg, model), model.layers, strict=False):

        def why_not(attention: Attention, choice: AttentionConfig = choice, **how: Any) -> list[str]:
            return registry.why_not(
                choice.name, device=device, dtype=DTYPES[precision], n_heads=attention.n_heads,
                n_kv_heads=attention.n_kv_heads, head_dim=attention.head_dim, bias=bias is not None,
                alibi=alibi,
                **how, **choice.options,
            )  # fmt: skip

        decoder = block.attention.projection.decoder(attention)
        found += why_not(attention, dropout=cfg.model.attention_dropout, bias_gradient=learned)
        found += why_not(decoder, training=False)
    return list(dict.fromkeys(found))


def members(cfg: RunConfig, model: CausalLM) -> list[tuple[AttentionConfig, Attention]]:
    """Each place of the pattern with the attention of the first layer that has it; one where all layers are alike."""
    return list(zip(attention_of_layers(cfg.model, cfg.attention), model.attention_modules(), strict=False))


def new_record(cfg: RunConfig, device: str, precision: str, why: str) -> Record:
    """A record of what was asked for and where; the backend's own choices are put in by `describe`."""
    kernels = [c.options.get("kernel", "auto") for c in attention_of_layers(cfg.model, cfg.attention)]
    return Record(
        status="failed",
        reasons=["it did not end"],
        attention=cfg.attention.name,
        options=dict(cfg.model.attention_options or cfg.attention.options),
        kernel_requested=", ".join(dict.fromkeys(kernels)),
        kernel_resolved=None,
        positions=positions_name(layer_positions(cfg.model, cfg.attention, cfg.positions)),
        n_heads=cfg.model.n_heads,
        n_kv_heads=cfg.model.n_kv_heads,
        seed=cfg.seed,
        config_hash=config_hash(to_dict(cfg)),
        environment=environment(device, precision, why),
    )


def describe(record: Record, cfg: RunConfig, model: CausalLM) -> None:
    """Fill in what the backends chose: all their options (of a hybrid by entry of its pattern), their key/value heads."""
    found = [attention for _, attention in members(cfg, model)]
    kv_heads = [attention.n_kv_heads for attention in found]
    record.update(options=found[0].settings(), n_kv_heads=kv_heads[0] if len(set(kv_heads)) == 1 else kv_heads)
    if pattern := cfg.model.attention_pattern:
        record.options = {entry: {"name": a.name, **a.settings()} for entry, a in zip(pattern, found, strict=True)}
        record.layers = [attention.name for attention in model.attention_modules()]
    record.model = {"mlp_width": hidden_width(model.cfg), "match_parameters": cfg.model.match_parameters}
    record.cost = {"parameters": model.parameter_count()}


def quality(fitted: Fitted, task: Task) -> dict[str, Any]:
    """The record's quality from the validation curve; its last point is the result."""
    last = fitted.curve[-1]
    found: dict[str, Any] = {
        key: last.get(key) for key in ("val_loss_nats", "val_bits_per_byte", "val_perplexity", "val_tokens")
    }
    found |= {"train_loss_nats": fitted.latest.get("train_loss_nats"), "tokens_seen": fitted.tokens_seen}
    found["curve"] = [[point["tokens"], point["val_loss_nats"]] for point in fitted.curve]
    found["data"] = task.provenance
    if task.chance is not None:
        found["task_accuracy"], found["task_chance"] = {task.name: last["val_accuracy"]}, {task.name: task.chance}
        found["task_curve"] = {task.name: [[point["tokens"], point["val_accuracy"]] for point in fitted.curve]}
    return found


def merged_tasks(quality: dict[str, Any], probe: dict[str, Any]) -> dict[str, Any]:
    """The probe's tasks beside a main task that is one too."""
    return {
        key: {**quality.get(key, {}), **value} if isinstance(value, dict) else value for key, value in probe.items()
    }


def close(record: Record, folder: RunFolder, started: float, status: str, reasons: list[str]) -> Record:
    """Put in how it ended, and write the record."""
    record.update(status=status, reasons=reasons)
    record.environment.update(end=now(), seconds=round(time.monotonic() - started, 3))
    record.save(folder.record)
    return record


def open_wandb(cfg: RunConfig, folder: RunFolder) -> WandbRun:
    """The W&B run beside this one."""
    log = cfg.logger
    name = log.name or f"{cfg.attention.name}-seed{cfg.seed}"
    return WandbRun(
        folder.path, mode=log.wandb, project=log.project, group=log.group, name=name, job_type="train",
        config=to_dict(cfg), resume=folder.resume_from is not None,
    )  # fmt: skip


def flat_numbers(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """'quality/val_loss_nats': 1.8, … : the record's numbers, verdicts and short texts, for a summary."""
    out: dict[str, Any] = {}
    for key, value in finite(values).items():
        if isinstance(value, dict):
            out |= flat_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < 200):
            out[prefix + key] = value
    return out
