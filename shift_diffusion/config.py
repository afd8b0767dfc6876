"""The typed meaning of params.yaml: every section is one model, every key has a unit and a range.

`load_params` reads the file, checks each section and the rules between sections, and reports *all*
problems at once. Values live in params.yaml only: nothing here has a default, so what is in the file
(and hence in DVC's lock and in MLflow) is everything that determines a run.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

PROJECT_ROOT = Path(__file__).resolve().parent.parent

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class ConfigError(ValueError):
    """params.yaml (or what it points to) is not usable. `problems` holds one line per fault."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        super().__init__("\n".join(problems))


class Section(BaseModel):
    """Unknown keys are refused, numbers in quotes are refused, values can't be changed after loading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


def _tuple(item: Any) -> Any:
    """YAML has lists only: accept one where a tuple is declared, its items stay strict."""
    return Annotated[tuple[item, ...], Field(strict=False)]


class Runtime(Section):
    device: Literal["auto", "cpu", "cuda", "mps"]
    precision: Literal["auto", "float32", "bfloat16", "float16"]
    threads: NonNegative  # CPU threads of one process; 0 = all cores
    compile: bool
    channels_last: bool
    gradient_checkpointing: bool
    num_processes: Positive
    sharding: Literal["ddp", "fsdp"]


class Data(Section):
    source: str  # avatars | digits | folder | torchvision:NAME | huggingface:NAME
    path: str  # a folder that is there, also while another source is used: it is a dependency of prepare
    num_images: Positive | None  # None = all there are
    validation_fraction: Annotated[float, Field(gt=0, lt=1)]
    background: Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$")]
    min_size: Positive  # pixels, shorter side, after EXIF rotation
    max_rejected_fraction: Fraction
    empty_class: Literal["warn", "refuse"]
    workers: NonNegative  # processes; 0 = all cores


class Text(Section):
    encoder: Literal["minilm", "clip", "t5", "none"]
    name: str | None  # Hugging Face name or folder, for clip and t5
    max_tokens: Positive


class OuterLevel(Section):
    width: Positive
    patch: Literal[1, 2, 4]  # the level works on patches of that side, at a resolution so much lower
    num_blocks: Positive  # residual blocks on the way down and again on the way up


class Model(Section):
    widths: _tuple(Positive)
    attention: _tuple(bool)
    num_blocks: Positive
    outer: _tuple(OuterLevel)
    embedding_dim: Positive
    head_dim: Positive
    norm_groups: Positive
    dropout: Annotated[float, Field(ge=0, lt=1)]


class Shift(Section):
    enabled: bool
    reach: _tuple(Annotated[float, Field(gt=0, le=8)])  # pixels of the level, coarsest level first
    gate: bool
    init_scale: Annotated[float, Field(ge=0, le=1)]  # of the reach
    penalty: Weight


class Conditioning(Section):
    style: Literal["flux", "qwen", "sdxl", "none"]
    drop_probability: Fraction


class Process(Section):
    schedule: Literal["linear", "cosine", "cosine_beta", "hybrid", "flow"]
    prediction: Literal["eps", "x0", "v", "velocity"]
    num_train_timesteps: Positive
    hybrid_mix: Fraction  # the article's a: 1 = linear
    zero_terminal_snr: bool
    time_sampling: Literal["uniform", "logit_normal"]

    @property
    def family(self) -> Literal["vp", "flow"]:
        """flow: alpha + sigma = 1. `hybrid` is betas (vp), or the noise level itself when velocity is predicted."""
        return "flow" if self.schedule == "flow" or (self.schedule, self.prediction) == ("hybrid", "velocity") else "vp"


class Loss(Section):
    mse: Weight
    l1: Weight
    huber: Weight
    huber_delta: PositiveFloat
    cross_entropy: Weight
    num_bins: Annotated[int, Field(ge=2, le=256)]
    min_snr_gamma: Weight  # 0 = off
    velocity_floor: Fraction  # smallest sigma when errors are weighted as velocities; 0 = off
    perceptual: Weight
    gram: Weight
    perceptual_network: Literal["efficientnet_lite0", "vgg19"]
    perceptual_max_noise: Annotated[float, Field(gt=0, le=1)]  # sigma above which the estimate means nothing


class Optim(Section):
    name: Literal["muon", "adamw"]
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(strict=False)
    weight_decay: Weight
    grad_clip: PositiveFloat
    ema_decay: Annotated[float, Field(ge=0, lt=1)]
    max_bad_steps: Positive  # non-finite steps in a row that end the run
    spike_factor: Annotated[float, Field(gt=1)]  # loss above this many running means = spike


class Cadence(Section):
    """All in optimizer steps. They change what is written down, not what is learned."""

    log: Positive
    validate_: Positive = Field(alias="validate")
    checkpoint: Positive
    keep_checkpoints: Annotated[int, Field(ge=1)]


class Augment(Section):
    flip: bool
    hsv: Fraction  # largest relative change of hue, saturation and value
    shift: Annotated[float, Field(ge=0, le=0.5)]  # largest translation, share of the side


class Stage(Section):
    resolution: Positive
    batch_size: Positive  # images per micro-batch and process
    accumulation: Positive
    images: Positive  # seen in this stage
    lr: PositiveFloat
    warmup: NonNegative  # optimizer steps
    final_drop: bool
    timestep_shift: PositiveFloat | Literal["tokens"]
    augment: Augment
    loss: dict[str, float]  # overrides of the section `loss`

    @property
    def steps(self) -> int:
        """Optimizer steps of the stage, for one process; the last group may be smaller."""
        return math.ceil(self.images / (self.batch_size * self.accumulation))


class Train(Section):
    cadence: Cadence
    stage_1: Stage = Field(alias="stage-1")
    stage_2: Stage = Field(alias="stage-2")
    stage_3: Stage = Field(alias="stage-3")

    @property
    def stages(self) -> tuple[Stage, Stage, Stage]:
        return self.stage_1, self.stage_2, self.stage_3


class Evaluate(Section):
    num_samples: Positive  # per seed
    seeds: _tuple(NonNegative)
    sampler: Literal["ddpm", "ddim", "dpmpp_2m", "euler", "heun"]
    num_steps: Positive
    spacing: Literal["uniform", "quadratic", "log_snr"]
    guidance_scale: Weight
    features: Literal["efficientnet_lite0", "inception-v3-compat"]
    batch_size: Positive
    kid_subset_size: Positive
    sampler_steps: _tuple(Positive)  # FID against steps for every sampler; empty = leave out


class Quantize(Section):
    variants: _tuple(Literal["static_int8", "dynamic_int8", "weight_int8"])
    calibration_batches: Positive
    batch_size: Positive
    activation_bits: Literal["auto", 7, 8]  # auto = 8 with int8 units; older CPUs overflow beyond 7
    num_samples: Positive  # pictures per variant for its FID, same seeds and captions for all
    keep_float: _tuple(str)  # names of layers, glob patterns
    max_error: PositiveFloat  # relative error of the prediction
    max_fid_increase: PositiveFloat  # relative


class Benchmark(Section):
    batch_sizes: _tuple(Positive)
    repeats: Positive
    variants: _tuple(
        Literal[
            "float32",
            "bfloat16",
            "compiled",
            "dynamic_int8",
            "static_int8",
            "static_int8_uncompiled",
            "weight_int8",
        ]
    )


class Register(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    metric: str  # key of reports/evaluate/metrics.json, lower is better
    min_improvement: Fraction  # relative improvement a challenger must show
    promote: bool


class Params(Section):
    seed: NonNegative
    runtime: Runtime
    data: Data
    text: Text
    model: Model
    shift: Shift
    conditioning: Conditioning
    process: Process
    loss: Loss
    optim: Optim
    train: Train
    evaluate: Evaluate
    quantize: Quantize
    benchmark: Benchmark
    register_: Register = Field(alias="register")

    def loss_of(self, stage: Stage) -> Loss:
        """The section `loss` with this stage's overrides."""
        return Loss(**{**self.loss.model_dump(), **stage.loss})


class _Loader(yaml.SafeLoader):
    """YAML 1.2 numbers, as DVC reads them: `1e-4` is a float, with or without a dot."""


_Loader.yaml_implicit_resolvers = {
    key: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:float"]
    for key, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def _unique_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict:
    keys = [key.value for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError([f"line {node.start_mark.line + 1}: key '{key}' stands twice"])
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(path: str | Path) -> dict:
    """Reads one YAML mapping; raises ConfigError naming file and line when it isn't one."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    try:
        content = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: not valid YAML: {' '.join(str(error).split())}"]) from error
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from error
    if not isinstance(content, dict):
        raise ConfigError([f"{path}: expected a mapping of sections, found {type(content).__name__}"])
    return content


def load_params(path: str | Path = "params.yaml") -> Params:
    """Reads and validates the whole of params.yaml.

    Raises:
        ConfigError: with one line per problem, naming key, value and what is allowed.
    """
    return parse_params(read_yaml(path), source=str(path))


def parse_params(content: dict, source: str = "params.yaml") -> Params:
    try:
        params = Params.model_validate(content)
    except ValidationError as error:
        raise ConfigError([f"{source}: {_explain(item)}" for item in error.errors()]) from error
    from shift_diffusion.config_rules import cross_field_problems  # it needs the models above

    problems = cross_field_problems(params)
    if problems:
        raise ConfigError([f"{source}: {problem}" for problem in problems])
    return params


def _fields_at(location: tuple) -> list[str]:
    """The valid keys of the section that `location` (without its last part) points to."""
    model: Any = Params
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        if field is None:
            return []
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        candidates += [a for c in candidates for a in getattr(c, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if model is None:
            return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The full name of every key of params.yaml, sections included, in order."""
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        yield key
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _all_keys(field.annotation, f"{key}.")


def _meant(name: str, valid: list[str]) -> str | None:
    """What an unknown key was meant to be: the same name in another section, else the nearest here, else anywhere."""
    elsewhere: dict[str, str] = {}
    for key in _all_keys(Params):
        elsewhere.setdefault(key.rpartition(".")[2], key)
    if name in elsewhere:
        return elsewhere[name]
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    near += [elsewhere[other] for other in difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.75)]
    return near[0] if near else None


def _explain(item: dict) -> str:
    location = tuple(part for part in item["loc"] if not (isinstance(part, str) and "[" in part))
    key = ".".join(str(part) for part in location)
    value = item.get("input")
    if item["type"] == "extra_forbidden":
        valid = _fields_at(location)
        near = _meant(str(location[-1]), valid)
        hint = f"did you mean '{near}'? " if near else ""
        return f"{key}: unknown key; {hint}allowed: {', '.join(valid)}"
    if item["type"] == "missing":
        return f"{key}: missing; every key must be given"
    return f"{key}: {value!r} is not allowed: {item['msg'][0].lower()}{item['msg'][1:]}"
