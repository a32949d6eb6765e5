"""A ProTA model among those of sentence-transformers: the same names, matrices of tokens, and its evaluators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorInformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from prota import Config, ProTA
from prota.config.presets import PRESETS
from prota.errors import UsageError

TEXTS = {"q1": "a red square", "q2": "the blue circle moves", "q3": "green"}


def toy(preset: str = "prota") -> ProTA:
    return ProTA.from_config(Config.build(preset, "toy", ["encoder.frames=3"])).eval()


def videos(model: ProTA) -> torch.Tensor:
    size = model.config.encoder.image_size
    return torch.randint(0, 256, (4, 3, 3, size, size), dtype=torch.uint8)


@pytest.mark.parametrize("preset", PRESETS)
def test_similarity_of_matrices_is_the_score(preset: str) -> None:
    model, texts = toy(preset), list(TEXTS.values())
    frames = videos(model)
    queries, documents = model.encode_query(texts), model.encode_document(list(frames))
    assert [len(query) for query in queries] == model.encode_text(texts).mask.sum(dim=1).tolist()
    with torch.no_grad():
        expected = model.score(model.encode_text(texts), model.encode_video(frames))
    for left, right in (
        (queries, documents),
        (torch.nn.utils.rnn.pad_sequence(queries, batch_first=True), documents),
        (model.encode_query(texts, convert_to_numpy=True), model.encode_document(list(frames), convert_to_numpy=True)),
    ):
        torch.testing.assert_close(model.similarity(left, right), expected, rtol=0, atol=1e-6)
    alone = model.similarity(model.encode_query(texts[0]), model.encode_document(frames[0]))
    torch.testing.assert_close(alone, expected[:1, :1], rtol=0, atol=1e-6)


def test_documents_of_every_form_are_the_same(tmp_path: Path) -> None:
    model = toy()
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    picture.save(tmp_path / "picture.png")
    array = np.asarray(picture)
    forms = [picture, array, array[None], array.transpose(2, 0, 1)[None], {"image": picture}, {"video": [array]}]
    expected = model.encode_document(picture)
    for form in forms[1:]:
        torch.testing.assert_close(model.encode_document(form), expected)
    with pytest.raises(UsageError):
        model.encode_document({"audio": array})
    with pytest.raises(UsageError):
        model.encode_document(array.astype(np.float32))
    with pytest.raises(UsageError):
        model.similarity(torch.zeros(2, 7), expected)


@pytest.mark.process
def test_documents_are_files_too(tmp_path: Path) -> None:
    model = toy()
    picture = Image.new("RGB", (50, 40), "red")
    picture.save(tmp_path / "red.png")
    first, second = model.encode_document([str(tmp_path / "red.png"), picture])
    torch.testing.assert_close(first, second)


def test_what_it_supports() -> None:
    model = toy()
    supported = [name for name in ("text", "image", "video", "audio", ("text", "video")) if model.supports(name)]
    assert supported == ["text", "image", "video"] == model.modalities


def test_evaluators_of_sentence_transformers_run_on_it() -> None:
    """Those of one vector and of several, which pad queries with zeros: ranks are those of our scores."""
    model = toy()
    frames = videos(model)
    corpus = {f"d{number}": {"video": video} for number, video in enumerate(frames)}
    with torch.no_grad():
        scores = model.score(model.encode_text(list(TEXTS.values())), model.encode_video(frames))
    relevant = {name: {f"d{int(row.argmax())}"} for name, row in zip(TEXTS, scores, strict=True)}
    options = {"accuracy_at_k": [1], "precision_recall_at_k": [1], "mrr_at_k": [4], "ndcg_at_k": [4], "map_at_k": [4]}
    for kind, more in (
        (InformationRetrievalEvaluator, {}),
        (MultiVectorInformationRetrievalEvaluator, {"score_functions": {"prota": model.similarity}}),
    ):
        evaluator = kind(TEXTS, corpus, relevant, write_csv=False, **options, **more)
        found = evaluator(model)
        assert found["prota_accuracy@1"] == 1.0
