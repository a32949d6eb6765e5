"""The paper's figures: digit for digit as printed, and every ablation row builds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

from prota.config.experiment import Experiment
from prota.config.presets import BACKBONES, PRESETS
from prota.evaluation.paper import ABLATION, KERNELS, RESULTS, TEMPERATURE, PaperFigures, ablation_rows
from tests.processes import REPOSITORY

TABLES: list[Literal["main", "temperature", "kernels"]] = ["main", "temperature", "kernels"]
PRINTED_NAMES = {
    "global-pooling": "Global Pooling",
    "mean-max": "Mean-Max",
    "lda": "LdA",
    "lda+dot-intra": r"LdA+$G^\dagger_\text{intra}$",
    "lda+dot-intra+inter": r"LdA+$G^\dagger_\text{intra+inter}$",
    "lda+intra": r"LdA+$G_\text{intra}$",
    "dpa": r"LdA+$G_\text{intra+inter}$ (DPA)",
    "dpa-p": r"DPA$^\S$",
    "dpa-p+kl": r"DPA$^\S$+$L^\text{kl}$",
    "prota": r"DPA$^\S$+$L^\text{kl}$+AC (ProTA)",
}


def flat(figures: PaperFigures) -> list[float]:
    both = (figures.text_to_video, figures.video_to_text)
    return [value for direction in both for value in vars(direction).values() if value is not None]


@pytest.fixture(scope="module")
def tables(shared: Path) -> dict[str, dict[str, list[float]]]:
    """Caption → first cells → figures of every table of the paper's source."""
    (source,) = (shared / "paper").glob("*.tex")
    found: dict[str, dict[str, list[float]]] = {}
    for table in re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", source.read_text(encoding="utf-8"), re.DOTALL):
        caption = re.search(r"\\caption\{(.*)", table).group(1)  # type: ignore[union-attr]
        rows = {}
        for line in table.split("\\\\"):
            plain = re.sub(r"\\rowcolor\{[^}]*\}|~?\\cite\{[^}]*\}|\\hline", "", line)
            plain = re.sub(r"\\text(?:bf|it)\{([^}]*)\}", r"\1", plain)
            cells = [cell.strip() for cell in plain.split("&")]
            figures = [cell for cell in cells if re.fullmatch(r"\d+\.\d", cell)]
            names = [cell for cell in cells if cell not in figures]
            if len(figures) >= 5:
                rows[" ".join(names)] = [float(cell) for cell in figures]
        found[caption] = rows
    return found


def table(tables: dict[str, dict[str, list[float]]], caption: str) -> dict[str, list[float]]:
    (rows,) = [rows for printed, rows in tables.items() if caption in printed]
    return rows


def test_the_ablation_is_as_printed(tables: dict[str, dict[str, list[float]]]) -> None:
    printed = table(tables, "Low-dimension aggregation")
    assert {PRINTED_NAMES[preset]: flat(figures) for preset, figures in ABLATION.items()} == printed


def test_temperatures_and_kernels_are_as_printed(tables: dict[str, dict[str, list[float]]]) -> None:
    printed = table(tables, r"settings of $\lambda$")
    assert {f"{lambda_} {xi or '-'}": flat(figures) for (lambda_, xi), figures in TEMPERATURE.items()} == printed
    printed = table(tables, "numbers of Gaussian kernels")
    assert {f"R={kernels}": flat(figures) for kernels, figures in KERNELS.items()} == printed


def test_results_are_as_printed(tables: dict[str, dict[str, list[float]]]) -> None:
    nine_k = table(tables, "evaluated on 1k-A")
    assert flat(RESULTS["msrvtt-9k", "clip-vit-b32"]) == nine_k["ProTA (Ours)"]
    assert flat(RESULTS["msrvtt-9k", "clip-vit-b16"]) == nine_k["ProTA (Ours) + ViT-B/16"]
    for benchmark, name in (("lsmdc", "LSMDC"), ("didemo", "DiDeMo"), ("msrvtt-full", "MSR-VTT-full")):
        (to_video,) = [rows for caption, rows in tables.items() if caption.startswith("Text") and name in caption]
        (to_text,) = [rows for caption, rows in tables.items() if caption.startswith("Video") and name in caption]
        expected = to_video["ProTA (Ours)"] + to_text["ProTA (Ours)"]
        assert flat(RESULTS[benchmark, "clip-vit-b32"]) == expected


def test_the_paper_agrees_with_itself() -> None:
    """Why rows without ξ are LdA + intra, and why the two small tables are about points."""
    assert TEMPERATURE["100", None] == ABLATION["lda+intra"]
    assert TEMPERATURE["100", "100"] == KERNELS[5] == ABLATION["dpa"]
    main = RESULTS["msrvtt-9k", "clip-vit-b32"]
    assert flat(ABLATION["prota"]) == flat(main)[:3] + flat(main)[5:8]


@pytest.mark.parametrize("name", TABLES)
def test_every_row_builds(name: Literal["main", "temperature", "kernels"]) -> None:
    rows = ablation_rows(name)
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        Experiment.build(row.preset, "toy", row.overrides)


def test_rows_set_what_they_say() -> None:
    assert [row.name for row in ablation_rows("main")] == list(PRESETS)
    assert [row.name for row in ablation_rows("main") if row.paper is None] == ["wti", "prota-printed"]
    scores = [Experiment.build(row.preset, "toy", row.overrides).score for row in ablation_rows("temperature")]
    assert [(score.lambda_, score.xi) for score in scores[:4]] == [("max", 100), (200, 100), (100, 100), (50, 100)]
    assert [(score.lambda_, score.xi) for score in scores[4:]] == [(100, "max"), (100, 200), (100, 100), (100, 50)]
    assert [score.weights for score in scores] == ["intra"] * 4 + ["intra+inter"] * 4
    kernels = [Experiment.build(row.preset, "toy", row.overrides).score.kernels for row in ablation_rows("kernels")]
    assert kernels == [1, 3, 5, 7, 9]
    assert {backbone for _, backbone in RESULTS} <= set(BACKBONES)


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(ValueError, match="must be main, temperature or kernels"):
        ablation_rows("other")  # type: ignore[arg-type]


@pytest.mark.parametrize("side", ["text_to_video", "video_to_text"])
def test_the_page_of_runs_has_the_papers_figures(side: str) -> None:
    """docs/results/index.md: each row of the paper under the config that runs it."""
    page = (REPOSITORY / "docs" / "results" / "index.md").read_text(encoding="utf-8")
    half = page.split("\nVideo to text:\n")[side == "video_to_text"]
    printed = re.findall(r"^\| `([\w-]+)` \| paper \|(.*)\|$", half, flags=re.MULTILINE)
    expected = {}
    for (benchmark, backbone), figures in RESULTS.items():
        name = benchmark + ("-b16" if backbone.endswith("b16") else "")
        assert Experiment.load(REPOSITORY / "configs" / f"{name}.toml").data.benchmark == benchmark
        expected[name] = list(vars(getattr(figures, side)).values())
    assert {name: [float(cell) for cell in cells.split("|")] for name, cells in printed} == expected
