"""Every rule speaks up when its fault is provoked for real, and all are silent about a healthy run."""

import json

import pytest
import torch
from torch.nn import functional as F

from shift_diffusion.data.images import to_float
from shift_diffusion.evaluation.appearance import appearance
from shift_diffusion.evaluation.diagnose import diagnose, main, write_diagnosis
from shift_diffusion.evaluation.finding import Evidence, StageRecord, read_history
from shift_diffusion.evaluation.spectrum import high_frequency_ratio, power_spectrum
from shift_diffusion.evaluation.training_rules import out_of_memory
from shift_diffusion.files import write_json
from shift_diffusion.models.unet import build_network
from shift_diffusion.process.forward import add_noise
from shift_diffusion.process.schedules import make_schedule
from shift_diffusion.training.ema import Ema

STEPS, BATCH, SIDE, ROW = 80, 16, 8, 5
UNCONDITIONAL = {"text": {"encoder": "none"}, "conditioning": {"style": "none"}}


def faces(count, side=SIDE, seed=0):
    """uint8 (N, 3, side, side): a colored disc with two dark dots on white, of random place, size and color."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")
    cx, cy = ((torch.rand(count, generator=rng) - 0.5) * 0.5 for _ in range(2))
    radius = 0.5 + 0.3 * torch.rand(count, generator=rng)
    color = torch.rand(count, 3, generator=rng)
    inside = ((x - cx[:, None, None]) ** 2 + (y - cy[:, None, None]) ** 2) < radius[:, None, None] ** 2
    eyes = ((x.abs() - 0.25).abs() < 0.13) & ((y + 0.1).abs() < 0.13)
    images = torch.where(inside[:, None], color[:, :, None, None], 1.0) * torch.where(eyes, 0.2, 1.0)
    return (images * 255).round().to(torch.uint8)


def train(params, *, lr=2e-3, scale=1.0, use_ema=True):
    """A short, real training; gives the record its curves would leave."""
    torch.manual_seed(0)
    network = build_network(params, 1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
    ema, schedule, pictures = Ema(network, 0.9), make_schedule("flow"), to_float(faces(64)) * scale
    held_out, rng, rows, losses = to_float(faces(32, seed=1)) * scale, torch.Generator().manual_seed(0), [], []

    def loss_of(x_0, seed=None):
        source = rng if seed is None else torch.Generator().manual_seed(seed)
        t = torch.rand(len(x_0), generator=source, dtype=torch.float64).clamp(0.02, 0.98)
        eps = torch.randn(x_0.shape, generator=source)
        x_t = add_noise(x_0, eps, schedule.alpha(t), schedule.sigma(t))
        return F.mse_loss(network(x_t, schedule.log_snr(t).float()), eps - x_0)

    for step in range(1, STEPS + 1):
        loss = loss_of(pictures[torch.randint(64, (BATCH,), generator=rng)])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, step / 10)
        optimizer.step()
        if use_ema:
            ema.update()
        if step % ROW == 0:
            rows.append({"step": step, "loss": sum(losses[-ROW:]) / ROW, "grad_norm": norm.item()})
        if step % (STEPS // 2) == 0:
            with ema.applied(), torch.no_grad():
                rows[-1]["validation_loss"] = loss_of(held_out, seed=7).item()
    return StageRecord(rows, {f"shift_{k}": v for k, v in network.shift_report().items()})


def symptoms(record=None, measured=None, params=None):
    stages = {} if record is None else {1: record}
    return [finding.symptom for finding in diagnose(Evidence(stages, measured or {}, params))]


@pytest.mark.slow
def test_silent_on_a_healthy_training(tiny_params):
    record = train(tiny_params(UNCONDITIONAL))
    assert record.rows[-1]["loss"] < record.rows[0]["loss"]
    assert symptoms(record) == []


@pytest.mark.slow
def test_learning_rate_times_a_hundred(tiny_params):
    found = symptoms(train(tiny_params(UNCONDITIONAL), lr=0.5))
    assert {"loss explodes", "loss is flat", "gradient norm explodes", "loss is NaN or infinite"} & set(found)


@pytest.mark.slow
def test_images_in_0_to_255(tiny_params):
    assert "range of the images is wrong" in symptoms(train(tiny_params(UNCONDITIONAL), scale=127.5))


@pytest.mark.slow
def test_ema_that_is_never_updated(tiny_params):
    assert "averaged weights (EMA) lag behind" in symptoms(train(tiny_params(UNCONDITIONAL), use_ema=False))


def test_offsets_at_the_bound(tiny_params):
    network = build_network(tiny_params(UNCONDITIONAL), 1)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith(".raw"):
                parameter.fill_(5.0)
    report = {f"shift_{level}": value for level, value in network.shift_report().items()}
    assert max(report.values()) > 0.99
    assert symptoms(StageRecord([], report)) == ["structure is distorted: shift offsets at their bound"]


def measure(generated, real):
    """As Evaluation.measure and .floor do."""
    looks, really = appearance(generated), appearance(real)
    names = ("saturation", "hue_spread", "variety")
    return {
        **{name: looks[name] for name in names},
        **{f"{name}_real": really[name] for name in names},
        "high_frequency_ratio": high_frequency_ratio(power_spectrum(generated), power_spectrum(real)),
    }


def blurred(images):
    return F.avg_pool2d(F.pad(images.float(), (2, 2, 2, 2), mode="replicate"), 5, 1).round().to(torch.uint8)


@pytest.mark.parametrize(
    ("fault", "symptom"),
    [
        (lambda x: x[:1].expand_as(x), "mode collapse"),
        (blurred, "texture is over-smooth"),
        (lambda x: x.float().mean(1, keepdim=True).round().to(torch.uint8).expand_as(x), "color is dull"),
        (lambda x: (x.float() + 120 * torch.randn(x.shape)).clamp(0, 255).to(torch.uint8), "noise is left over"),
        (lambda x: x, None),
    ],
)
def test_faults_of_pictures(fault, symptom):
    torch.manual_seed(0)
    found = symptoms(measured=measure(fault(faces(200, 32, seed=2)), faces(200, 32)))
    assert symptom in found if symptom else found == []


def test_gray_data_are_not_called_dull():
    gray = faces(100, 32)[:, :1].expand(-1, 3, -1, -1)
    assert symptoms(measured=measure(gray, gray)) == []


@pytest.mark.parametrize(
    ("measured", "symptom"),
    [
        ({"fid_x": 100.0, "fid_x_std": 20.0}, "quality of the samples fluctuates"),
        ({"memorized_share": 0.6}, "draws training pictures from memory"),
        ({"caption_match": 0.11}, "captions have little effect"),
        (
            {"recall_x": 0.02, "recall_floor_x": 0.6, "precision_x": 0.9, "precision_floor_x": 0.8},
            "mode collapse",
        ),
    ],
)
def test_faults_of_scores(measured, symptom, params):
    assert symptoms(measured=measured, params=params) == [symptom]
    assert symptoms(measured=measured) == [symptom]


def test_scores_of_a_good_model_are_not_complained_about():
    good = {"fid_x": 100.0, "fid_x_std": 2.0, "memorized_share": 0.02, "caption_match": 0.8}
    good |= {"recall_x": 0.4, "recall_floor_x": 0.6, "precision_x": 0.7, "precision_floor_x": 0.8}
    assert symptoms(measured=good) == []


def test_skipped_steps_rollbacks_and_overfitting(params):
    rows = [{"step": s, "loss": 1 / s + 0.2, "grad_norm": 1.0} for s in range(1, 21)]
    assert symptoms(StageRecord(rows, {"skipped_steps": 3}), params=params) == ["loss is NaN or infinite"]
    assert symptoms(StageRecord(rows, {"rollbacks": 1})) == ["loss explodes"]
    rows[5]["validation_loss"], rows[-1]["validation_loss"] = 0.3, 0.5
    assert symptoms(StageRecord(rows)) == ["learns the training pictures by heart"]


def test_out_of_memory_names_the_way_out(params):
    error = "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
    assert symptoms(StageRecord([], {}, error)) == ["out of memory"]
    change = out_of_memory("train.stage-3", error, params.train.stage_3).change
    now = params.train.stage_3
    halved = f"train.stage-3.batch_size: {now.batch_size // 2}, train.stage-3.accumulation: {2 * now.accumulation}"
    assert halved in change
    assert "runtime.gradient_checkpointing: true" in change


def test_changes_name_real_keys_with_present_values(params):
    rows = [{"step": s, "loss": 0.1 * s, "grad_norm": 1.0} for s in range(1, 21)]
    finding = diagnose(Evidence({1: StageRecord(rows)}, {}, params))[0]
    assert f"train.stage-1.lr: {params.train.stage_1.lr * 0.1:.2g}" in finding.change


def test_reads_a_finished_and_a_dead_run_and_writes_both_forms(tmp_path, capsys):
    reports = tmp_path / "reports"
    (reports / "stage-1").mkdir(parents=True)
    lines = ["step,images,loss,validation_loss"] + [f"{s},{s * 16},{0.01 * s}," for s in range(1, 21)]
    (reports / "stage-1" / "history.csv").write_text("\n".join(lines) + "\n")
    assert "validation_loss" not in read_history(reports / "stage-1" / "history.csv")[0]
    state = {"history": {"rows": []}, "guard": {"skipped_steps": 4, "rollbacks": 0}}
    write_json(tmp_path / ".checkpoints" / "stage-2-abc" / "step-00000010" / "state.json", {"state": state})
    write_json(reports / "evaluate" / "metrics.json", {"caption_match": 0.1})
    found = write_diagnosis(reports, reports / "evaluate")
    assert [f.symptom for f in found] == ["loss explodes", "loss is NaN or infinite", "captions have little effect"]
    assert json.loads((reports / "evaluate" / "diagnosis.json").read_text())[0]["symptom"] == "loss explodes"
    assert "4 steps left out" in (reports / "evaluate" / "diagnosis.txt").read_text()
    assert main(tmp_path) == 0
    assert main(reports) == 0
    assert "3 findings" in capsys.readouterr().out


def test_nothing_to_diagnose_is_said(tmp_path, capsys):
    assert main(tmp_path) == 2
    assert "no reports" in capsys.readouterr().err
