"""Tables of results over seeds, beside the paper's figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.evaluation.passport import Passport
from prota.figures.ablation import Ablation, RowResult, collect, draw, is_far_off
from prota.figures.drawing import FigureError, render


def write_result(folder: Path, row: str, seed: int, r1: float, split_hash: str = "a") -> None:
    metrics = {"r1": r1, "r5": 50.0, "r10": 60.0, "median_rank": 5.0, "mean_rank": 30.0}
    passport = Passport(
        metrics={"text_to_video": metrics, "video_to_text": metrics | {"r1": r1 + 1}},
        intervals={},
        split="folder test",
        split_hash=split_hash,
        queries=10,
        videos=10,
        missing=(),
        normalisation=None,
        candidates="captions",
        checkpoint=None,
        config={},
        seed=seed,
        environment={},
    )
    passport.write(folder / row / f"seed-{seed}" / "result.json")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for seed, r1 in ((0, 10.0), (1, 14.0), (10, 12.0)):
        write_result(tmp_path / "abl", "prota", seed, r1)
    write_result(tmp_path / "abl", "lda", 0, 9.0)
    write_result(tmp_path / "abl", "wti", 0, 8.0)
    write_result(tmp_path / "abl", "R=3", 0, 7.0)
    return tmp_path / "abl"


def test_rows_keep_the_papers_order(results: Path) -> None:
    numbers = collect(results)
    assert [row.row for row in numbers.text_to_video] == ["lda", "prota", "wti"]
    lda, prota, wti = numbers.text_to_video
    assert prota.seeds == (10.0, 14.0, 12.0)
    assert (prota.mean, prota.deviation, prota.paper) == (12.0, 2.0, 48.1)
    assert (lda.mean, lda.deviation, lda.paper) == (9.0, None, 46.5)
    assert wti.paper is None
    assert numbers.video_to_text[1].mean == 13.0
    assert numbers.video_to_text[1].paper == 45.9
    kernels = collect(results, "kernels", "r5")
    assert [(row.row, row.mean, row.paper) for row in kernels.text_to_video] == [("R=3", 50.0, 74.9)]
    assert [row.paper for row in collect(results, metric="mean_rank").text_to_video] == [None] * 3


def test_ours_and_the_papers_have_one_scale(results: Path, tmp_path: Path) -> None:
    numbers = collect(results)
    figure = draw(numbers)
    assert len(figure.axes) == 4
    spans = [axes.get_xlim()[1] - axes.get_xlim()[0] for axes in figure.axes]
    assert spans == pytest.approx([spans[0]] * 4)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["lda", "prota", "wti"]
    # The first row is at the top.
    assert figure.axes[0].get_ylim()[0] > figure.axes[0].get_ylim()[1]
    assert [line.get_xdata()[0] for line in figure.axes[1].get_lines()] == [46.5, 48.1]  # type: ignore[index]
    assert "1 to 3 seeds" in figure.get_supxlabel()
    render(lambda: draw(numbers), tmp_path / "a.png")
    assert 5_000 < (tmp_path / "a.png").stat().st_size < 200_000


def test_without_the_papers_figures_there_are_two_panels(results: Path) -> None:
    figure = draw(collect(results, metric="mean_rank"))
    assert len(figure.axes) == 2
    assert "paper" not in figure.get_supxlabel()


def test_what_does_not_compare_is_refused(results: Path, tmp_path: Path) -> None:
    with pytest.raises(FigureError, match=r"has no result of the table temperature"):
        collect(results, "temperature")
    with pytest.raises(FigureError, match="run `prota ablate"):
        collect(tmp_path / "gone")
    write_result(results, "dpa", 0, 9.0, split_hash="b")
    with pytest.raises(FigureError, match="are of different splits"):
        collect(results)


def test_a_row_that_did_not_learn_does_not_hide_the_others() -> None:
    def row(name: str, mean: float) -> RowResult:
        return RowResult(name, (mean - 0.1, mean + 0.1), mean, 0.1, None)

    rows = tuple(row(f"row {number}", value) for number, value in enumerate((30.0, 30.5, 31.0, 31.5, 0.2)))
    assert [is_far_off(each, rows) for each in rows] == [False] * 4 + [True]
    assert not any(is_far_off(each, rows[:1]) for each in rows[:1])
    figure = draw(Ablation("main", "r1", "test", rows, rows))
    panel = figure.axes[0]
    low, high = panel.get_xlim()
    assert 29 < low < 29.9
    assert 31.6 < high < 32.5
    assert [text.get_text() for text in panel.texts] == ["← 0.2"]
