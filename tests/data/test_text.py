"""Text: the embedded MiniLM for real, CLIP and T5 through the same code on tiny local models."""

import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from shift_diffusion.config import ConfigError, Text
from shift_diffusion.data.embed import write_text
from shift_diffusion.data.prepare import prepare_data, summary
from shift_diffusion.data.text import TextEncoder, load_text_encoder
from shift_diffusion.data.text_store import TextStore
from tests.data import files

CAPTIONS = [
    "a woman with red hair",
    "a man with a black beard and glasses",
    "a woman with red hair and sunglasses",
    "a dog",
]


def section(**changes) -> Text:
    return Text(**{"encoder": "minilm", "name": None, "max_tokens": 40, **changes})


@pytest.fixture(scope="module")
def minilm() -> TextEncoder:
    return load_text_encoder(section())


def test_shapes_mask_and_scale(minilm):
    found = minilm.encode(CAPTIONS)
    assert minilm.dim == 384
    assert found.tokens.shape == (4, found.mask.sum(1).max(), 384)
    assert found.mask.sum(1).tolist() == [7, 10, 9, 4]  # words, start and end mark
    lengths = found.tokens[found.mask].norm(dim=-1)
    assert torch.allclose(lengths, torch.full_like(lengths, math.sqrt(384)), rtol=1e-3)
    assert not found.tokens[~found.mask].any()
    assert abs(found.pooled.std() - 1) < 0.05


def test_pooled_is_the_sentence_embedding(minilm):
    """Independent of our batching: mean over tokens of the model's own output, normalized."""
    tokens = minilm.tokenizer(CAPTIONS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = minilm.model(**tokens).last_hidden_state
    weights = tokens["attention_mask"][..., None]
    mean = (states * weights).sum(1) / weights.sum(1)
    expected = torch.nn.functional.normalize(mean, dim=-1) * math.sqrt(384)
    assert torch.allclose(minilm.encode(CAPTIONS).pooled, expected, atol=1e-4)


def test_like_captions_are_near(minilm):
    similarity = torch.corrcoef(minilm.encode(CAPTIONS).pooled)
    assert similarity[0, 2] > 0.7 > similarity[0, 3]


def test_an_embedding_does_not_depend_on_its_company(minilm):
    alone = [minilm.encode([caption]) for caption in CAPTIONS]
    others = [f"{word} {caption}" for word in ("the", "one", "some", "any", "big") for caption in CAPTIONS]
    together = minilm.encode([*others, *CAPTIONS])
    for row, single in enumerate(alone, start=len(others)):
        length = int(single.mask.sum())
        assert (together.tokens[row, :length] == single.tokens[0]).all()
        assert (together.pooled[row] == single.pooled[0]).all()


def test_empty_captions_have_no_tokens(minilm):
    found = minilm.encode(["", "a dog", "  "])
    assert found.mask.sum(1).tolist() == [0, 4, 0]
    assert not found.pooled[[0, 2]].any()
    assert minilm.encode([""]).tokens.shape == (1, 1, 384)
    assert len(minilm.encode([]).tokens) == 0


def test_long_captions_are_cut_and_counted():
    encoder = load_text_encoder(section(max_tokens=8))
    found = encoder.encode(["word " * 30, "short"])
    assert found.mask.sum(1).tolist() == [8, 3]
    assert encoder.num_truncated == 1


def test_the_log_says_how_many_captions_were_cut(tmp_path):
    """Case 9: ten different captions of five tokens and more."""
    report = prepare_data(files.data_section(num_images=20), section(max_tokens=4), (8,), tmp_path / "out")
    assert "10 different captions are longer than text.max_tokens (4) and were cut" in summary(report)


def test_unique_captions_are_encoded_once_and_cached(tmp_path):
    captions = ["a cat", "a dog", "a cat", "", "a cat", "word " * 60]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    report, encoded = write_text(tmp_path / "one", section(), lambda: captions, tmp_path / "cache")
    assert (report["unique_captions"], report["truncated_captions"], encoded) == (4, 1, 4)
    assert report["encoder"] == {"name": "minilm", "model": None, "max_tokens": 40, "dim": 384}
    again, encoded = write_text(tmp_path / "two", section(), lambda: [*captions, "new"], tmp_path / "cache")
    assert (again["unique_captions"], again["truncated_captions"], encoded) == (5, 1, 1)
    store = TextStore(tmp_path / "one" / "text.safetensors")
    assert store.rows(np.arange(6)).mask.sum(1).tolist() == [4, 4, 4, 0, 4, 40]
    cached, fresh = tmp_path / "cached", tmp_path / "fresh"
    for folder, cache in ((cached, tmp_path / "cache"), (fresh, None)):
        folder.mkdir()
        write_text(folder, section(), lambda: [*captions, "new"], cache)
    assert (cached / "text.safetensors").read_bytes() == (fresh / "text.safetensors").read_bytes()


def tiny_tokenizer(folder):
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(CAPTIONS, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    return tokenizer.get_vocab_size()


@pytest.fixture(scope="module", params=["clip", "t5"])
def tiny(request, tmp_path_factory):
    import transformers

    folder = tmp_path_factory.mktemp(request.param)
    size = tiny_tokenizer(folder)
    torch.manual_seed(0)
    if request.param == "clip":
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.CLIPTextConfig(
            vocab_size=size, max_position_embeddings=12, bos_token_id=2, eos_token_id=3, pad_token_id=0, **sizes
        )
        transformers.CLIPTextModel(config).save_pretrained(folder)
    else:
        config = transformers.T5Config(vocab_size=size, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
        transformers.T5EncoderModel(config).save_pretrained(folder)
    return request.param, folder


def test_clip_and_t5_from_a_folder(tiny):
    kind, folder = tiny
    encoder = load_text_encoder(section(encoder=kind, name=str(folder), max_tokens=12))
    found = encoder.encode(CAPTIONS)
    assert encoder.dim == 16
    assert found.mask.sum(1).tolist() == [7, 10, 9, 4]
    assert torch.allclose(found.pooled.norm(dim=1), torch.full((4,), 4.0), atol=1e-3)
    alone = encoder.encode(CAPTIONS[2:3])
    assert torch.allclose(alone.pooled[0], found.pooled[2], atol=1e-5)
    if kind == "clip":  # pooled = the end mark's state
        assert torch.allclose(alone.pooled[0], alone.tokens[0, 8], atol=1e-2)


def test_more_tokens_than_clip_takes_are_refused(tiny):
    kind, folder = tiny
    if kind == "clip":
        with pytest.raises(ConfigError, match="at most 12"):
            load_text_encoder(section(encoder=kind, name=str(folder), max_tokens=13))


def test_a_missing_model_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="clip can't be loaded"):
        load_text_encoder(section(encoder="clip", name=str(tmp_path)))


def test_none_is_none(tmp_path):
    assert load_text_encoder(section(encoder="none")) is None
    assert write_text(tmp_path, section(encoder="none"), lambda: ["a"], None) == ({"encoder": {"name": "none"}}, 0)
    assert not list(tmp_path.iterdir())
