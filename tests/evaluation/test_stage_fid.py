"""FID against images seen: pictures of every stage are judged at the final resolution."""

import csv

import pytest
import torch

from shift_diffusion.evaluation.stage_fid import enlarged, save_fid_against_images


def test_enlarging_keeps_flat_pictures_flat_and_types():
    flat = torch.full((2, 3, 8, 8), 77, dtype=torch.uint8)
    assert torch.equal(enlarged(flat, 32), torch.full((2, 3, 32, 32), 77, dtype=torch.uint8))
    assert enlarged(flat, 8) is flat


def test_enlarging_never_wraps_round():
    edges = torch.tensor([0, 255], dtype=torch.uint8).repeat(1, 3, 2, 1)
    found = enlarged(edges, 8)
    assert found.min() == 0
    assert found.max() == 255
    assert (found.float().diff(dim=-1) >= 0).all()  # a rising edge only rises


def test_rows_become_a_table_and_a_picture(tmp_path):
    rows = [{"stage": k, "resolution": 8 * 2**k, "images": 100 * k, "fid": 50.0 / k, "num_samples": 4} for k in (1, 2)]
    save_fid_against_images(rows, 3.0, "efficientnet_lite0", tmp_path)
    with (tmp_path / "fid_vs_images.csv").open() as file:
        assert [float(row["fid"]) for row in csv.DictReader(file)] == pytest.approx([50.0, 25.0])
    assert (tmp_path / "fid_vs_images.png").stat().st_size > 1000
