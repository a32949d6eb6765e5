"""Printed figures of the ProTA paper, and the rows of its ablation tables as experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ABLATION",
    "KERNELS",
    "RESULTS",
    "TEMPERATURE",
    "AblationRow",
    "DirectionFigures",
    "PaperFigures",
    "ablation_rows",
]


@dataclass(frozen=True)
class DirectionFigures:
    """Printed figures of one direction; None for a metric that the table does not have."""

    r1: float
    r5: float
    r10: float
    median_rank: float | None = None
    mean_rank: float | None = None


@dataclass(frozen=True)
class PaperFigures:
    """Printed figures of both directions."""

    text_to_video: DirectionFigures
    video_to_text: DirectionFigures


@dataclass(frozen=True)
class AblationRow:
    """One row of a table: the settings of its experiment and the paper's figures."""

    name: str
    preset: str
    overrides: tuple[str, ...]
    paper: PaperFigures | None


_Recalls = tuple[float, float, float]
_Full = tuple[float, float, float, float, float]


def _figures(text_to_video: _Recalls | _Full, video_to_text: _Recalls | _Full) -> PaperFigures:
    return PaperFigures(DirectionFigures(*text_to_video), DirectionFigures(*video_to_text))


# The first table: MSR-VTT-9k, 1k-A, ViT-B/32; by preset.
ABLATION: dict[str, PaperFigures] = {
    "global-pooling": _figures((44.5, 71.4, 81.6), (42.7, 70.9, 80.6)),
    "mean-max": _figures((46.3, 73.7, 83.2), (44.0, 73.5, 82.1)),
    "lda": _figures((46.5, 74.0, 83.4), (44.2, 74.1, 82.6)),
    "lda+dot-intra": _figures((46.2, 74.2, 83.3), (44.0, 73.9, 83.0)),
    "lda+dot-intra+inter": _figures((46.7, 74.3, 83.7), (44.3, 74.1, 83.3)),
    "lda+intra": _figures((46.8, 74.5, 83.9), (44.2, 74.4, 83.6)),
    "dpa": _figures((47.0, 75.0, 84.1), (44.6, 74.6, 84.0)),
    "dpa-p": _figures((46.7, 74.4, 83.2), (43.9, 73.4, 83.8)),
    "dpa-p+kl": _figures((47.7, 75.1, 83.8), (45.4, 74.8, 84.0)),
    "prota": _figures((48.1, 75.4, 84.3), (45.9, 75.5, 84.6)),
}

# λ and ξ, None where the table prints "-"; MSR-VTT-9k, points, no probabilistic alignment.
TEMPERATURE: dict[tuple[str, str | None], PaperFigures] = {
    ("max", None): _figures((46.3, 74.0, 83.4), (44.0, 74.0, 82.8)),
    ("200", None): _figures((46.5, 74.2, 83.5), (44.0, 74.1, 83.2)),
    ("100", None): _figures((46.8, 74.5, 83.9), (44.2, 74.4, 83.6)),
    ("50", None): _figures((46.7, 74.2, 82.7), (43.8, 73.7, 82.9)),
    ("100", "max"): _figures((46.8, 74.8, 83.8), (44.3, 74.5, 83.7)),
    ("100", "200"): _figures((47.1, 75.4, 83.7), (44.3, 74.3, 83.8)),
    ("100", "100"): _figures((47.0, 75.0, 84.1), (44.6, 74.6, 84.0)),
    ("100", "50"): _figures((46.5, 74.8, 83.7), (44.0, 74.0, 83.5)),
}

# R, the number of Gaussian kernels; MSR-VTT-9k.
KERNELS: dict[int, PaperFigures] = {
    1: _figures((46.7, 74.6, 83.9), (44.2, 74.2, 83.5)),
    3: _figures((46.8, 74.9, 84.0), (44.4, 74.4, 83.8)),
    5: _figures((47.0, 75.0, 84.1), (44.6, 74.6, 84.0)),
    7: _figures((47.0, 75.1, 84.3), (43.6, 74.7, 83.6)),
    9: _figures((46.9, 74.7, 83.7), (43.4, 74.2, 83.2)),
}

# ProTA's own rows of the comparisons, by benchmark and backbone.
RESULTS: dict[tuple[str, str], PaperFigures] = {
    ("msrvtt-9k", "clip-vit-b32"): _figures((48.1, 75.4, 84.3, 2.0, 12.5), (45.9, 75.5, 84.6, 2.0, 9.0)),
    ("msrvtt-9k", "clip-vit-b16"): _figures((50.9, 77.0, 85.4, 1.0, 11.1), (48.5, 77.0, 87.0, 2.0, 7.9)),
    ("msrvtt-full", "clip-vit-b32"): _figures((31.1, 56.4, 67.4, 4.0, 44.7), (55.3, 83.2, 91.3, 1.0, 4.8)),
    ("lsmdc", "clip-vit-b32"): _figures((25.8, 47.3, 57.7, 7.0, 45.3), (24.5, 46.8, 56.6, 7.0, 41.7)),
    ("didemo", "clip-vit-b32"): _figures((47.2, 74.6, 83.0, 2.0, 11.6), (46.2, 73.2, 83.4, 2.0, 9.6)),
}


def ablation_rows(table: Literal["main", "temperature", "kernels"]) -> list[AblationRow]:
    """The rows of a table in the paper's order; ``main`` ends with two rows of ours."""
    if table == "main":
        rows = [AblationRow(preset, preset, (), figures) for preset, figures in ABLATION.items()]
        return rows + [AblationRow(preset, preset, (), None) for preset in ("wti", "prota-printed")]
    if table == "temperature":
        return [_temperature_row(lambda_, xi, figures) for (lambda_, xi), figures in TEMPERATURE.items()]
    if table == "kernels":
        # R = 5 prints the figures of DPA: tokens are points here too.
        return [AblationRow(f"R={r}", "dpa", (f"score.kernels={r}",), figures) for r, figures in KERNELS.items()]
    raise ValueError(f"table must be main, temperature or kernels, got {table!r}")


def _temperature_row(lambda_: str, xi: str | None, figures: PaperFigures) -> AblationRow:
    if xi is None:
        # Without ξ there is no inter-modality aggregation; λ = 100 prints the figures of LdA + G_intra to the digit.
        return AblationRow(f"lambda={lambda_},xi=-", "lda+intra", (f"score.lambda_={lambda_}",), figures)
    # With both temperatures at 100 the figures are those of DPA.
    return AblationRow(f"lambda={lambda_},xi={xi}", "dpa", (f"score.lambda_={lambda_}", f"score.xi={xi}"), figures)
