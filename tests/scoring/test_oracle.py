"""Every preset and every config value against the plain-loop oracle, to 1e-9, on ragged batches with NaN padding."""

from __future__ import annotations

import pytest
import torch
from pydantic.fields import FieldInfo

from prota.config import DistributionConfig, ScoreConfig
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


@pytest.mark.parametrize("seed", range(6))
def test_random_shapes_equal_the_oracle(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def lengths() -> tuple[int, ...]:
        count = int(torch.randint(1, 5, (), generator=generator))
        return tuple(torch.randint(1, 9, (count,), generator=generator).tolist())

    torch.manual_seed(seed)
    case = Case.random(
        ScoreConfig(), None, lengths(), lengths(), width=int(torch.randint(1, 12, (), generator=generator))
    )
    torch.testing.assert_close(case.scores(), case.oracle_scores(), rtol=0, atol=1e-9)


def _values(field: FieldInfo) -> set[object]:
    from typing import get_args

    return set(get_args(field.annotation)) if "Literal" in str(field.annotation) else set()


def test_the_variants_name_every_value_of_every_choice() -> None:
    for config, variants in ((ScoreConfig, SCORE_VARIANTS), (DistributionConfig, DISTRIBUTION_VARIANTS)):
        built = [config(**values) for values in variants.values()]
        for name, field in config.model_fields.items():
            missing = {v for v in _values(field) if isinstance(v, str)} - {getattr(item, name) for item in built}
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
        expected = oracle.pair_pieces(
            texts[a], videos[b], *case.oracle_heads(), head.config, case.distribution, case.bandwidth()
        )
        for name in oracle.PIECES:
            actual = getattr(explanation, name)
            if expected[name] is None:
                assert actual is None, name
                continue
            actual = torch.as_tensor(actual, dtype=torch.float64)
            torch.testing.assert_close(actual, torch.tensor(expected[name], dtype=torch.float64), rtol=0, atol=1e-9)


def test_estimated_bandwidth_equals_the_oracle() -> None:
    case = Case.random(ScoreConfig(bandwidth="estimated"))
    batches = [(case.texts[:2], case.videos[:1]), (case.texts[2:], case.videos[1:])]
    expected = oracle.mean_cross_distance(*case.items(), *case.oracle_heads(), case.head.config, case.distribution)
    assert case.head.estimate_bandwidth(batches) == pytest.approx(expected, abs=1e-9)
    assert float(case.head.bandwidth) == pytest.approx(expected, abs=1e-9)
