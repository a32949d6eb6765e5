"""What a tower's weights are called: in files as on the hub, in memory as this version of transformers has it.

transformers renames the modules of its models from time to time, and reads checkpoints of the hub under either name. A
model folder keeps the hub's, so that it can be read by versions other than the one that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

__all__ = ["names_in_files", "names_in_memory", "quiet"]


def names_in_files(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's weights with those of every encoder in it under the names that its checkpoints have on the hub."""
    renamed = dict(weights)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        # A version that has only one name for everything.
        return renamed
    for prefix, encoder in _encoders(model):
        own = _take(renamed, prefix)
        renamed |= {prefix + name: value for name, value in revert_weight_conversion(encoder, own).items()}
    return renamed


def names_in_memory(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The reverse, whichever names a file has; what no encoder takes is left as it is."""
    renamed, expected = dict(weights), model.state_dict()
    for prefix, encoder in _encoders(model):
        wanted = {name for name in expected if name.startswith(prefix)}
        given = {name for name in renamed if name.startswith(prefix)}
        if wanted == given:
            continue
        own = _take(renamed, prefix)
        # transformers' own reading of a checkpoint does the renaming; what is missing there would be made up.
        with quiet():
            read, report = type(encoder).from_pretrained(
                None, config=encoder.config, state_dict=own, dtype="float32", output_loading_info=True
            )
        known = read.state_dict()
        made_up = set(report["missing_keys"])
        renamed |= {prefix + name: known[name] for name in known if name not in made_up}
        renamed |= {prefix + name: own[name] for name in report["unexpected_keys"] if name in own}
    return renamed


@contextmanager
def quiet() -> Iterator[None]:
    """No bar of transformers' own over what takes a moment, and no warnings about settings that files leave out."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _encoders(model: nn.Module) -> list[tuple[str, Any]]:
    """(where, which) of the outermost transformers models inside a model."""
    from transformers import PreTrainedModel

    found: list[tuple[str, Any]] = []
    for path, part in model.named_modules():
        if isinstance(part, PreTrainedModel) and not any(path.startswith(prefix) for prefix, _ in found):
            found.append((f"{path}.", part))
    return found


def _take(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Remove what lies under a prefix, and return it without."""
    return {name.removeprefix(prefix): weights.pop(name) for name in list(weights) if name.startswith(prefix)}
