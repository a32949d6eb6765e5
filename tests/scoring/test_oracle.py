"""Every preset and every config value against the plain-loop oracle, to 1e-9, on ragged batches with NaN padding."""

from __future__ import annotations

import pytest
import torch
from pydantic.fields import FieldInfo

from prota.config.model import Config, DistributionConfig, ScoreConfig
from prota.config.presets import PRESETS
from prota.losses import prota_loss
from prota.types import Tokens
from tests import oracle
from tests.cases import DISTRIBUTION_VARIANTS, SCORE_VARIANTS, Case


@pytest.mark.parametrize("variant", SCORE_VARIANTS)
def test_scores_equal_the_oracle(variant: str) -> None:
    case = Case.random(ScoreConfig(**SCORE_VARIANTS[variant]))
    torch.testing.assert_close(case.scores(), case.oracle_scores(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("variant", DISTRIBUTION_VARIANTS)
@pytest.mark.parametrize("similarity", ["squared", "offset", "printed"])
def test_distributions_equal_the_oracle(variant: str, similarity: str) -> None:
    case = Case.random(ScoreConfig(similarity=similarity), DistributionConfig(**DISTRIBUTION_VARIANTS[variant]))
    torch.testing.assert_close(case.scores(), case.oracle_scores(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", range(3))
def test_whole_presets_equal_the_oracle_on_random_shapes(preset: str, seed: int) -> None:
    """With their own distributions and losses, any lengths and width, and real tokens anywhere in a row."""
    config = Config.build(preset)
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 4, (), generator=generator))
    lengths = [tuple(torch.randint(1, 8, (count,), generator=generator).tolist()) for _ in range(2)]
    torch.manual_seed(seed)
    width = int(torch.randint(1, 10, (), generator=generator))
    case = Case.random(config.score, config.distribution, *lengths, width=width)
    case.texts, case.videos = scattered(case.texts), scattered(case.videos)
    torch.testing.assert_close(case.scores(), case.oracle_scores(), rtol=0, atol=1e-9)
    texts, videos = case.head.prepare_texts(case.texts), case.head.prepare_videos(case.videos)
    scale = torch.tensor(2.0, dtype=torch.float64)
    terms = prota_loss(case.head.score(texts, videos), texts, videos, logit_scale=scale, config=config.loss).floats()
    expected = oracle.loss_terms(*case.items(), *case.oracle_heads(), config.score, case.distribution, config.loss, 2.0)
    assert terms == pytest.approx(expected, abs=1e-9, rel=1e-9)


def scattered(tokens: Tokens) -> Tokens:
    """The same tokens in their order, with padding before, between and behind them."""
    length = tokens.mask.shape[1] + 3
    embeddings = torch.full((len(tokens.mask), length, tokens.embeddings.shape[2]), torch.nan, dtype=torch.float64)
    mask = torch.zeros(len(tokens.mask), length, dtype=torch.bool)
    for row, real in enumerate(tokens.mask):
        places = torch.randperm(length)[: int(real.sum())].sort().values
        embeddings[row, places], mask[row, places] = tokens.embeddings[row][real], True
    return Tokens(embeddings, mask)


def _values(field: FieldInfo) -> set[object]:
    from typing import get_args

    return {value for value in get_args(field.annotation) if isinstance(value, str)}


def test_the_variants_name_every_value_of_every_choice() -> None:
    for config, variants in ((ScoreConfig, SCORE_VARIANTS), (DistributionConfig, DISTRIBUTION_VARIANTS)):
        built = [config(**values) for values in variants.values()]
        for name, field in config.model_fields.items():
            used = {getattr(item, name) for item in built}
            missing = _values(field) - used
            if name in ("lambda_", "xi"):
                missing |= {"max"} - used
                assert len(used - {"max"}) > 1, f"{name}: only one number is tried"
            assert not missing, f"{name}: no variant has {missing}"


@pytest.mark.parametrize("variant", [v for v in SCORE_VARIANTS if "pool" not in v])
def test_explanations_equal_the_oracle(variant: str) -> None:
    case = Case.random(ScoreConfig(**SCORE_VARIANTS[variant]))
    head = case.head
    texts, videos = case.items()
    for a, b in ((0, 1), (2, 0)):
        explanation = head.explain(
            head.prepare_texts(case.texts[a : a + 1]), head.prepare_videos(case.videos[b : b + 1])
        )
        expected = oracle.pair_pieces(texts[a], videos[b], *case.oracle_heads(), head.config, case.distribution)
        for name in oracle.PIECES:
            actual = getattr(explanation, name)
            if expected[name] is None:
                assert actual is None, name
                continue
            actual = torch.as_tensor(actual, dtype=torch.float64)
            torch.testing.assert_close(actual, torch.tensor(expected[name], dtype=torch.float64), rtol=0, atol=1e-9)
