"""The probability that a result is relevant, fitted without captions: from a library alone."""

from __future__ import annotations

from prota.errors import UsageError
from prota.evaluation.calibration import Calibration, Queries, calibrate, everyday_queries, facts_of
from prota.evaluation.scoring import score_texts
from prota.library.library import Library
from prota.library.storage.location import Folder, Where
from prota.library.tokens import one_segment_each, stored_tokens
from prota.model.relevance import Relevance

__all__ = ["calibrate_library"]

# With fewer, nearly any of them is some query's best by chance.
LEAST_VIDEOS, MOST_VIDEOS = 32, 1024


def calibrate_library(location: Where, device: str = "auto") -> Calibration:
    """Fit on everyday queries, and store the result in the library's folder."""
    library = Library(location, device=device, existing=True)
    view, model = library.view, library.model
    if not isinstance(library.location, Folder):
        raise UsageError(f"{library.location} is an object store; calibrate a library in a folder")
    if model.relevance is not None:
        raise UsageError(f"{library.name} is calibrated with captions, which is better; nothing to do")
    rows = one_segment_each(view.snapshot, MOST_VIDEOS)
    if len(rows) < LEAST_VIDEOS:
        raise UsageError(f"{location} has {len(rows)} videos and pictures; at least {LEAST_VIDEOS} are needed")
    videos, texts = stored_tokens(view.snapshot.tokens(rows), model.logit_scale.device), everyday_queries()
    result = calibrate(Queries.everyday(score_texts(model, texts, videos), facts_of(model, texts)))
    Relevance(result.fit, videos[result.background]).save(library.location.path)
    return result
