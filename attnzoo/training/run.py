"""One run from its settings to its record: refuse or train, probe, test for leaks, measure."""

from __future__ import annotations

import errno
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnzoo import components, registry
from attnzoo.arguments import demand, instance
from attnzoo.contract import Attention
from attnzoo.data.sources import read_source
from attnzoo.errors import Refused, RequestError, Stopped
from attnzoo.files import finite
from attnzoo.from_files import load_code
from attnzoo.lock import locked
from attnzoo.measure.arithmetic import DTYPES, need_tf32, resolve_compile, tf32
from attnzoo.measure.diverged import diverged
from attnzoo.measure.environment import environment, resolve_device, resolve_precision
from attnzoo.measure.failures import failure_lines
from attnzoo.measure.outcome import outcome
from attnzoo.measure.record import Record, config_hash
from attnzoo.metrics.base import declaration
from attnzoo.metrics.build import added, asked_for, pointless
from attnzoo.model import CausalLM, build_model
from attnzoo.model.build import layer_positions
from attnzoo.model.config import AttentionConfig, attention_of_layers, positions_name
from attnzoo.model.lm import hidden_width
from attnzoo.model.weights import save_weights
from attnzoo.redact import redacted
from attnzoo.seeds import seeded
from attnzoo.tasks import Task, build_task
from attnzoo.tasks.build import reads_text
from attnzoo.terminal import say
from attnzoo.training.after import correctness, costs, decoding, decoding_differs, leaks, sample
from attnzoo.training.apart import apart
from attnzoo.training.closing import close, failed, how_it_stopped, stopped_by
from attnzoo.training.config import RunConfig, to_dict
from attnzoo.training.fit import Fitted, fit
from attnzoo.training.folder import RunFolder
from attnzoo.training.handed import Handed, handed_loggers
from attnzoo.training.init_from import identified, start_from
from attnzoo.training.kept import check_tokenizer, identity, keep_text
from attnzoo.training.loggers import JsonLines, WandbLogger
from attnzoo.training.notes import Notes, notes, precision_of, say_how_it_starts
from attnzoo.training.probe import run_probe
from attnzoo.training.stopping import Stopping
from attnzoo.training.together import CELL_PATIENCE, process_faults, refuse_within_comparison
from attnzoo.training.validation import faults, machine_faults
from attnzoo.training.wandb_run import WandbRun

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
DOING = {"probe": "the probe task", "leak": "leak tests", "cost": "conformance, then time and memory"}


@dataclass
class Run:
    """What the stages of one run share. Model, task and W&B are there once the run is known to be possible."""

    cfg: RunConfig
    folder: RunFolder
    device: str
    precision: str
    record: Record
    notes: Notes
    stop: Stopping
    compiled: bool = False
    doing: str = "while building data and model"
    protected: Record | None = None
    wandb: WandbRun | None = None
    handed: list[Handed] = field(default_factory=list)
    model: CausalLM = field(init=False)
    task: Task = field(init=False)


def train(cfg: RunConfig, *, cell: bool = False) -> Record:
    """Train one model and write its record; the run folder is ``cfg.run_dir``.

    What an earlier start left there is used: a finished run is kept, an interrupted or failed one goes on from its last
    checkpoint, one of fewer ``max_steps`` goes on to more. Standard error says so. A record that is ok stays until a better
    one is written. Ctrl-C and SIGTERM end the run between two steps, with a checkpoint.

    Args:
        cell: this is what a comparison does in one of its folders.

    Returns:
        the record, also written to ``record.json``. ``status``: ok; refused, with every reason, when the backend cannot
        compute this; oom or failed, with the reason, when it broke on the way (what was known by then is kept; ``log.txt``
        has the traceback).

    Raises:
        RequestError: a wrong setting, missing data, a folder that holds another run or is in use, a broken checkpoint, several
            processes: nothing has been started; or a disk that cannot be written.
        KeyboardInterrupt: after the record, with status interrupted, was written; `Stopped` where a signal asked for it.
    """
    demand("this run cannot be started", instance("cfg", cfg, RunConfig, "a configuration, as attnzoo.compose makes"))
    load_code(cfg.code, allowed=False)
    if wrong := faults(cfg) + machine_faults(cfg) + process_faults():
        raise RequestError("this run cannot be started", wrong)
    stop = Stopping()
    with stop.listening():
        cfg = with_text(identified(cfg))
        folder = RunFolder.inspect(cfg)
        if not cell:
            refuse_within_comparison(folder.path)
        with locked(folder.path, CELL_PATIENCE if cell else 0.2):
            folder = RunFolder.inspect(cfg)  # nobody else writes there now
            if folder.finished and folder.old is not None:
                how = folder.old["status"]
                say(f"{folder.path}: this run is finished ({how}) and kept; trainer.restart=true starts it over")
                return folder.old
            return attempt(cfg, folder, stop)


def attempt(cfg: RunConfig, folder: RunFolder, stop: Stopping) -> Record:
    """One start in a folder that is ours, however it ends."""
    if cfg.trainer.threads:
        torch.set_num_threads(cfg.trainer.threads)
    device = resolve_device(cfg.trainer.device)
    precision, why = precision_of(cfg, folder, device)
    if cfg.probe.enabled:
        resolve_precision(cfg.probe.precision, device)
    need_tf32(cfg.trainer.tf32, device)
    known = notes(cfg, folder, device, precision)
    run = Run(cfg, folder, device, precision, new_record(cfg, device, precision, why), known, stop)
    run.protected = folder.old if folder.old is not None and folder.old["status"] == "ok" else None
    try:
        prepare(run)
        with tf32(cfg.trainer.tf32, device), seeded(None, device):
            stages(run)
        return close(run, "ok", [])
    except (KeyboardInterrupt, SystemExit) as ended:
        signum = stopped_by(ended)
        if signum is None:  # a backend that calls sys.exit has failed
            return failed(run, ended)
        line = how_it_stopped(run, signum)
        close(run, "interrupted", [line])
        raise Stopped(signum, f"{folder.path}: {line}") from None
    except Exception as error:  # whatever broke belongs in the record; a wrong request goes to the person too
        if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
            error = RequestError(f"cannot write in {folder.path}: {error.strerror}")
        if isinstance(error, RequestError) and not isinstance(error, Refused):
            if run.wandb is not None:  # it was started
                with suppress(RequestError):  # on a full disk the record fails like what came before it
                    close(run, *outcome(error))
            raise error
        return failed(run, error)
    finally:
        finish_loggers(run)
        if run.wandb is not None:
            run.wandb.summarise(flat_numbers(run.record))
            run.wandb.finish(run.record["status"])


def finish_loggers(run: Run) -> None:
    """Give the loggers the record, and the record what became of them."""
    for handed in run.handed:
        handed.finish(finite(redacted(run.record)))
    if problems := [line for handed in run.handed for line in handed.problems]:
        warn(run.record, problems)
        if run.protected is None or run.record["status"] == "ok":  # what stands there is this start's
            run.record.save(run.folder.record)


def prepare(run: Run) -> None:
    """Build data and model, and make the folder ready.

    Raises:
        Refused: a backend cannot compute this, with every reason.
        RequestError: data or weights to start from that do not fit.
    """
    cfg, folder, record = run.cfg, run.folder, run.record
    run.task = build_task(cfg.task, cfg.data, cfg.seed)
    if wrong := pointless(cfg.measure, run.task):
        raise RequestError("this run cannot be started", wrong)
    if more := added(cfg.measure):
        record.metrics = {name: declaration(components.get("metric", name)) for name in more}
    if text := identity(run.task):
        record.data = text
    if not cfg.trainer.restart:
        check_tokenizer(folder.path, run.task)
    run.model = build_model(cfg, run.task.vocab_size)
    if reasons := refusals(cfg, run.model, run.device, run.precision):
        raise Refused(f"{cfg.attention.name} cannot run this", reasons)
    if cfg.trainer.init_from is not None and folder.resume_from is None:
        run.notes.history.append(start_from(run.model, cfg, run.task))
    say_how_it_starts(cfg, folder, run.notes)
    if cfg.trainer.restart:
        folder.clear()
        run.protected = None
    if run.protected is None:
        folder.write_config(cfg)
    keep_text(folder.path, run.task)
    describe(record, cfg, run.model)
    run.compiled, why = resolve_compile(cfg.trainer.compile, run.device, run.model.attention_modules())
    record.environment.update(compiled=run.compiled, compiled_reason=why)
    run.wandb = open_wandb(cfg, folder)
    record.wandb = run.wandb.status()


def with_text(cfg: RunConfig) -> RunConfig:
    """The configuration that names its text by content, as it is read now; a text that it names already is that or refused."""
    if not reads_text(cfg.task):
        return cfg
    return replace(cfg, data=replace(cfg.data, sha256=read_source(cfg.data)[1]["sha256"]))


def stages(run: Run) -> None:
    """Everything after the refusal check, in order. The record is filled as the results come in; what an earlier start has
    already found out about the trained model is taken from its record."""
    cfg, record = run.cfg, run.record
    done = take_over(run)
    run.doing = "while training"
    with stage(record, "train"):
        fitted = train_main(run)
    run.notes.kernel = fitted.kernel or run.notes.kernel
    record.quality = {**record.get("quality", {}), **quality(fitted, run.task, added(cfg.measure))}
    if "skipped_steps" in fitted.latest:
        record.fp16 = {key: fitted.latest[key] for key in ("loss_scale", "skipped_steps")}
    warn(record, [line for line in [diverged(record)] if line])
    warn(record, apart(run.model, run.task, cfg.trainer, record.quality, run.device, run.precision))
    run.doing = "after training"
    if run.protected is None:
        save_weights(run.model, run.folder.weights, {"config_hash": record.config_hash})
    finish_stage(run, "train")
    look_at_decoding(run)
    if run.task.tokenizer is not None:
        record.quality.sample = sample(run.model, run.task, seed=cfg.seed)
    if cfg.probe.enabled and "probe" not in done:
        with next_stage(run, "probe"):
            probed = run_probe(cfg, run.device, run.stop)
        record.quality.update(merged_tasks(record.quality, probed))
        finish_stage(run, "probe")
    if cfg.measure.leak and "leak" not in done:
        with next_stage(run, "leak"):
            record.leak = leaks(run.model, run.task, cfg, run.device, run.precision)
            warn(record, decoding_differs(record.leak))
        finish_stage(run, "leak")
    if cfg.measure.enabled:
        with next_stage(run, "cost"):
            record.correct = correctness(cfg, run.device, run.model, run.task, run.precision)
            record.cost = costs(run.model, run.task, cfg, run.device, run.precision, run.compiled)
            warn(record, failure_lines(record.cost))
        finish_stage(run, "cost")


def take_over(run: Run) -> list[str]:
    """The stages that an earlier start of this very run had finished on the model as it is; their results are put in."""
    old, done = run.folder.old, []
    if old is not None and old.get("config_hash") == run.record.config_hash and run.protected is None:
        trained = run.folder.resume_step == run.cfg.trainer.max_steps and run.folder.weights.exists()
        done = list(old.get("stages_done", [])) if trained else []
    if old is not None and "train" in done:
        run.record.update(quality=dict(old["quality"]), stages_done=done)
        run.record.update({key: old[key] for key in ("leak", "warnings") if key in old})
        run.record.environment.stage_seconds = dict(old["environment"].get("stage_seconds", {}))
    return done


def finish_stage(run: Run, name: str) -> None:
    """It is over and its results are in the record; a stop that came meanwhile ends the run here."""
    run.record.setdefault("stages_done", [])
    run.record.stages_done = list(dict.fromkeys([*run.record.stages_done, name]))
    run.stop.check()


@contextmanager
def next_stage(run: Run, name: str) -> Iterator[None]:
    """`stage`, said aloud where progress is shown."""
    run.doing = f"in {DOING[name]}"
    with stage(run.record, name, aloud=run.cfg.trainer.progress):
        yield


def look_at_decoding(run: Run) -> None:
    """Put in the kernels of training, prefill and decoding, and how far decoding is from the parallel pass."""
    record, kernels = run.record, {"training": run.notes.kernel, "prefill": None, "decoding": None}
    if run.notes.kernel is None:
        warn(record, ["the kernel of training is not known: an earlier start trained this and did not record it"])
    try:
        found = decoding(run.model, run.task, run.device, run.precision)
        kernels |= found.pop("kernels")
        record.decoding = found
        if not found["passed"]:
            warn(record, [
                f"decoding differs from the parallel pass by up to {found['max_difference']:.2g} "
                f"(bound {found['bound']:.2g})"
            ])  # fmt: skip
    except Exception as error:  # a model that cannot decode is trained all the same; the reader is told
        record.decoding = {"max_difference": None, "bound": None, "passed": None}
        warn(record, [f"decoding was not compared with the parallel pass: {'; '.join(outcome(error)[1])}"])
    record.update(kernels=kernels, kernel_resolved=run.notes.kernel)


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
    assert run.wandb is not None
    lines = JsonLines(folder.metrics, folder.resume_step)
    run.handed = handed_loggers(cfg, folder.path, folder.resume_step)
    return fit(
        run.model, run.task, cfg.trainer, seed=cfg.seed, device=run.device, precision=run.precision, compiled=run.compiled,
        loggers=[lines, WandbLogger(run.wandb), *run.handed],
        checkpoint=folder.checkpoint, resume_from=folder.resume_from, title=f"{cfg.attention.name} · {run.task.name}",
        stop=run.stop, note=run.notes.at, metrics=asked_for(cfg.measure),
    )  # fmt: skip


def refusals(cfg: RunConfig, model: CausalLM, device: str, precision: str) -> list[str]:
    """Every reason why a backend of the model cannot train it, or decode then: its layout, bias, dropout, dtype, device."""
    found: list[str] = []
    choices = attention_of_layers(cfg.model, cfg.attention)
    for layer, block in enumerate(model.layers):
        choice, attention = choices[layer % len(choices)], block.attention.attention
        scheme = model.schemes[model.scheme_of[layer]]
        bias = scheme.bias()
        alibi = bias is not None and bias.alibi_slopes is not None
        learned = bias is not None and any(p.requires_grad for p in bias.parameters())

        def why_not(
            attention: Attention, choice: AttentionConfig = choice, bias: Any = bias, alibi: bool = alibi, **how: Any
        ) -> list[str]:
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
        environment=environment(device, precision, why) | {"tf32": cfg.trainer.tf32},
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


def quality(fitted: Fitted, task: Task, more: Sequence[str] = ()) -> dict[str, Any]:
    """The record's quality from the validation curve; its last point is the result.

    Args:
        more: metrics beside those of every run, whose curves are kept too.
    """
    last = fitted.curve[-1]
    found: dict[str, Any] = {key: last.get(key) for key in ("val_loss_nats", "val_bits_per_byte", "val_perplexity")}
    found |= {key: value for key, value in last.items() if key not in ("step", "tokens")}
    found["uniform_loss_nats"] = math.log(task.vocab_size)
    found |= {"train_loss_nats": fitted.latest.get("train_loss_nats"), "tokens_seen": fitted.tokens_seen}
    found["curve"] = curve(fitted, "val_loss_nats")
    if more:
        found["curves"] = {name: curve(fitted, name) for name in more}
    found["data"] = task.provenance
    if task.chance is not None:
        found["task_accuracy"], found["task_chance"] = {task.name: last["val_accuracy"]}, {task.name: task.chance}
        found["task_curve"] = {task.name: curve(fitted, "val_accuracy")}
    return found


def curve(fitted: Fitted, name: str) -> list[list[float]]:
    """[[tokens, value], …] of a metric."""
    return [[point["tokens"], point[name]] for point in fitted.curve if name in point]


def merged_tasks(quality: dict[str, Any], probe: dict[str, Any]) -> dict[str, Any]:
    """The probe's tasks beside a main task that is one too."""
    return {
        key: {**quality.get(key, {}), **value} if isinstance(value, dict) else value for key, value in probe.items()
    }


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
