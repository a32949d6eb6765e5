"""t-SNE descends the divergence it should, keeps clusters, and is the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from prota.figures.tsne import _conditional, _gradient, _joint, _squared_distances, tsne


def clusters(count: int = 20, width: int = 16) -> np.ndarray:
    generator = np.random.default_rng(0)
    centres = generator.normal(0, 3, (3, width))
    return np.concatenate([centre + generator.normal(0, 0.5, (count, width)) for centre in centres])


def divergence(places: np.ndarray, wanted: np.ndarray) -> float:
    closeness = 1 / (1 + ((places[:, None] - places[None]) ** 2).sum(-1))
    np.fill_diagonal(closeness, 0)
    found = closeness / closeness.sum()
    off = ~np.eye(len(places), dtype=bool)
    return float((wanted[off] * np.log(wanted[off] / found[off])).sum())


def test_the_gradient_is_that_of_the_divergence() -> None:
    generator = np.random.default_rng(1)
    wanted = _joint(_squared_distances(generator.normal(size=(8, 5))), 4.0)
    np.fill_diagonal(wanted, 0)
    wanted /= wanted.sum()
    places = generator.normal(size=(8, 2))
    slope = _gradient(places, wanted)
    for index in np.ndindex(places.shape):
        moved = places.copy()
        moved[index] += 1e-5
        moved_back = places.copy()
        moved_back[index] -= 1e-5
        numeric = (divergence(moved, wanted) - divergence(moved_back, wanted)) / 2e-5
        assert slope[index] == pytest.approx(numeric, abs=1e-6)


def test_every_point_has_the_perplexity_asked_for() -> None:
    distances = _squared_distances(clusters())
    joint = _joint(distances, 10.0)
    assert joint.sum() == pytest.approx(1, abs=1e-6)
    assert np.allclose(joint, joint.T)
    low, high = np.full(60, 1e-6), np.full(60, 1e6)
    for _ in range(80):
        middle = np.sqrt(low * high)
        wide = _conditional(distances, middle)[1] > np.log(10.0)
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    rows = _conditional(distances, low)[0]
    assert np.allclose(joint, np.maximum((rows + rows.T) / 120, 1e-12), atol=1e-9)


def test_clusters_stay_together_and_apart() -> None:
    places = tsne(clusters(), perplexity=10)
    assert places.shape == (60, 2)
    distances = ((places[:, None] - places[None]) ** 2).sum(-1)
    np.fill_diagonal(distances, np.inf)
    owner = np.arange(60) // 20
    assert (owner[distances.argmin(axis=1)] == owner).all()
    assert np.array_equal(places, tsne(clusters(), perplexity=10))
    assert np.allclose(places.mean(axis=0), 0)


@pytest.mark.parametrize("count", [5, 12, 60])
def test_the_last_digit_does_not_decide(count: int) -> None:
    """Encoders on another number of threads give slightly other tokens; the figure is to stay the same."""
    points = clusters(count)
    moved = points + 1e-7 * np.random.default_rng(1).normal(size=points.shape)
    places = tsne(points, perplexity=2 * count)
    assert np.abs(places - tsne(moved, perplexity=2 * count)).max() < 1e-3 * places.std()


@pytest.mark.parametrize(
    "points",
    [
        clusters(2, 3),
        np.zeros((5, 3)),
        np.repeat(np.eye(3), 4, axis=0),
        np.arange(6.0)[:, None],
        1e6 * clusters(3),
    ],
    ids=["few", "equal", "doubled", "on a line", "far apart"],
)
def test_odd_points_give_finite_places(points: np.ndarray) -> None:
    assert np.isfinite(tsne(points)).all()


def test_other_shapes_are_refused() -> None:
    for points in (np.zeros(5), np.zeros((3, 2)), np.zeros((2001, 1))):
        with pytest.raises(ValueError, match="t-SNE takes 4 to 2000 points"):
            tsne(points)
