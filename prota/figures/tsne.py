"""t-SNE in a page of numpy: exact, deterministic, for the few hundred points of a figure.

The one in scikit-learn would add that library, and SciPy with it, to what a figure needs; it is made for thousands of
points, and its tree codes and random starts buy nothing here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["tsne"]

Array = np.ndarray[Any, np.dtype[np.float64]]

# Attraction is exaggerated while clusters form. These and the rate are gentler than is usual for thousands of points,
# and there are no adaptive gains: few points would be thrown about, and the last digit would decide where they land.
_EXAGGERATION, _EXAGGERATED, _RATE, _START = 4.0, 100, 1 / 12, 0.1
_LARGEST = 2000


def tsne(points: Array, perplexity: float = 30.0, steps: int = 1500) -> Array:
    """Places [n, 2] of points [n, D], near for near; starts from the two principal components, so nothing is random.

    A perplexity that so few points cannot have is lowered to ⅔ (n − 1).
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or not 4 <= len(points) <= _LARGEST:
        raise ValueError(f"t-SNE takes 4 to {_LARGEST} points [n, D]; got {list(points.shape)}")
    wanted = _joint(_squared_distances(points), min(perplexity, 2 / 3 * (len(points) - 1)))
    places = _principal(points)
    velocity = np.zeros_like(places)
    for step in range(steps):
        early = step < _EXAGGERATED
        slope = _gradient(places, wanted * (_EXAGGERATION if early else 1.0))
        velocity = (0.5 if early else 0.8) * velocity - _RATE * len(points) * slope
        places = places + velocity
        places -= places.mean(axis=0)
    return places


def _squared_distances(points: Array) -> Array:
    centred = points - points.mean(axis=0)
    norms = (centred**2).sum(axis=1)
    distances: Array = np.maximum(norms[:, None] + norms[None] - 2 * centred @ centred.T, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def _joint(distances: Array, perplexity: float) -> Array:
    """Symmetric affinities that sum to 1; each row's bandwidth is bisected until it has the perplexity."""
    count = len(distances)
    target = np.log(perplexity)
    low, high = np.zeros(count), np.full(count, np.inf)
    precision = 1.0 / np.maximum(distances.mean(axis=1), 1e-12)
    for _ in range(60):
        rows, entropy = _conditional(distances, precision)
        wide = entropy > target
        low, high = np.where(wide, precision, low), np.where(wide, high, precision)
        precision = np.where(np.isinf(high), 2 * precision, (low + high) / 2)
    rows, _ = _conditional(distances, precision)
    joint: Array = np.maximum((rows + rows.T) / (2 * count), 1e-12)
    return joint


def _conditional(distances: Array, precision: Array) -> tuple[Array, Array]:
    """Affinities of each row to the others, [n, n], and their entropies, [n]."""
    logits = -distances * precision[:, None]
    np.fill_diagonal(logits, -np.inf)
    logits -= logits.max(axis=1, keepdims=True)
    rows = np.exp(logits)
    rows /= rows.sum(axis=1, keepdims=True)
    entropy = -(rows * np.log(np.maximum(rows, 1e-300))).sum(axis=1)
    return rows, entropy


def _principal(points: Array) -> Array:
    """The first two principal components, small; a component's sign is that of its largest entry."""
    left, sizes, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    places: Array = np.zeros((len(points), 2))
    known = min(2, len(sizes))
    places[:, :known] = left[:, :known] * sizes[:known]
    signs = np.sign(places[np.abs(places).argmax(axis=0), [0, 1]])
    scale = max(float(places[:, 0].std()), 1e-12)
    return places * np.where(signs == 0, 1, signs) / scale * _START


def _gradient(places: Array, wanted: Array) -> Array:
    closeness = 1.0 / (1.0 + _squared_distances(places))
    np.fill_diagonal(closeness, 0.0)
    found = np.maximum(closeness / closeness.sum(), 1e-12)
    pull = (wanted - found) * closeness
    slope: Array = 4 * (pull.sum(axis=1)[:, None] * places - pull @ places)
    return slope
