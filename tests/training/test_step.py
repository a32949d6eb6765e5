"""Micro-batches and ranks give the gradients of the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from prota import Config, ProTA
from prota.encoders.text import TextBatch
from prota.runtime import ALONE, World
from prota.training.distributed import average_gradients
from prota.training.locality import locality_loss, replace_words
from prota.training.step import StepInput, backward_step, seed_for
from tests.processes import in_processes

COLOURS = ["red", "green", "blue", "white", "black", "grey", "pink", "dim"]
TEXTS = [f"a {colour} thing that is number {n}" for n, colour in enumerate(COLOURS)]
PRESETS = ["global-pooling", "wti", "dpa", "prota"]


def toy(preset: str, *overrides: str) -> ProTA:
    torch.manual_seed(7)
    model = ProTA.from_config(Config.build(preset, "toy", ["loss.eta=0.3"][: preset == "prota"] + list(overrides)))
    return model.double().train()


def whole_batch(model: ProTA) -> StepInput:
    generator = torch.Generator().manual_seed(1)
    frames = torch.randint(0, 256, (8, 3, 3, 32, 32), dtype=torch.uint8, generator=generator)
    mask = torch.tensor([[True, True, True], [True, False, False]] * 4)
    return StepInput(model.text_encoder.tokenize(TEXTS), frames, mask)


def three_captions(model: ProTA) -> StepInput:
    """The same videos with three captions each, and how alike these are."""
    batch = whole_batch(model)
    texts = model.text_encoder.tokenize([f"{text} {ending}" for text in TEXTS for ending in ("", "one", "two there")])
    similar = torch.rand(8, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return StepInput(texts, batch.frames, batch.mask, similar)


def replaced(model: ProTA) -> StepInput:
    """Three captions a video, each once more with another word in it."""
    batch = three_captions(model)
    draws = torch.rand(24, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    donors = model.text_encoder.tokenize(TEXTS[::-1] * 3)
    return StepInput(batch.text, batch.frames, batch.mask, batch.similar, replace_words(batch.text, donors, draws))


def gradients(model: ProTA) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 8, 20])
@pytest.mark.parametrize("preset", PRESETS)
def test_micro_batches_give_the_gradients_of_the_batch(preset: str, micro_batch: int) -> None:
    model = toy(preset)
    twin = copy.deepcopy(model)
    expected = backward_step(model, whole_batch(model), ALONE)
    actual = backward_step(twin, whole_batch(model), ALONE, micro_batch=micro_batch)
    assert actual.floats() == pytest.approx(expected.floats(), abs=1e-12)
    assert_same(gradients(twin), gradients(model))


SOFT = ["loss.soft_targets=0.4"]


@pytest.mark.parametrize("preset", PRESETS)
def test_several_captions_give_the_mean_of_the_losses_with_one_of_them_each(preset: str) -> None:
    model = toy(preset, *SOFT)
    twin = copy.deepcopy(model)
    whole = three_captions(model)
    backward_step(model, whole, ALONE)
    for nth in range(3):
        text = TextBatch(whole.text.ids[nth::3], whole.text.mask[nth::3])
        backward_step(twin, StepInput(text, whole.frames, whole.mask, whole.similar[:, nth : nth + 1]), ALONE)
    expected = {name: value / 3 for name, value in gradients(twin).items()}
    assert_same(gradients(model), expected)


LOCAL = [*SOFT, "encoder.text_tokens=content", "loss.locality=0.7"]


@pytest.mark.parametrize("micro_batch", [1, 3, 8])
@pytest.mark.parametrize(("make", "settings"), [(three_captions, SOFT), (replaced, LOCAL)])
def test_micro_batches_of_several_captions_give_the_gradients_of_the_batch(
    make: Callable[[ProTA], StepInput], settings: list[str], micro_batch: int
) -> None:
    model = toy("prota", *settings)
    twin = copy.deepcopy(model)
    expected = backward_step(model, make(model), ALONE)
    actual = backward_step(twin, make(model), ALONE, micro_batch=micro_batch)
    assert actual.floats() == pytest.approx(expected.floats(), abs=1e-12)
    assert_same(gradients(twin), gradients(model))


def test_micro_batches_repeat_their_dropout() -> None:
    """With dropout in the encoders the two passes over a micro-batch still see the same tokens."""
    model = toy("dpa")
    model.text_encoder.tower.model.encoder.layers[0].mlp.fc1 = torch.nn.Sequential(
        model.text_encoder.tower.model.encoder.layers[0].mlp.fc1, torch.nn.Dropout(0.5)
    )
    seen: list[torch.Tensor] = []
    model.text_encoder.tower.projection.register_forward_hook(lambda _m, _i, output: seen.append(output.detach()))
    backward_step(model, whole_batch(model), ALONE, micro_batch=4, seed=3)
    first, second = seen[:2], seen[2:]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    backward_step(model, whole_batch(model), ALONE, micro_batch=4, seed=4)
    assert not torch.equal(seen[4], first[0])


CASES = {
    "prota": ("prota", [], 0),
    "smoothed-micro": ("prota", ["loss.label_smoothing=0.1"], 2),
    "points": ("dpa", [], 0),
    "pooling-micro": ("global-pooling", [], 3),
    "captions": ("prota", SOFT, 0),
    "captions-micro": ("dpa", SOFT, 2),
    "sigmoid": ("prota", ["loss.contrast=sigmoid"], 0),
    "sigmoid-micro": ("dpa", ["loss.contrast=sigmoid"], 2),
    "replaced": ("prota", LOCAL, 0),
    "replaced-micro": ("dpa", LOCAL, 2),
}


def batch_of(name: str, model: ProTA) -> StepInput:
    if name.startswith("replaced"):
        return replaced(model)
    return three_captions(model) if name.startswith("captions") else whole_batch(model)


def _work(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    world = World(rank, size, torch.device("cpu"))
    for name, (preset, overrides, micro_batch) in CASES.items():
        model = toy(preset, *overrides)
        terms = backward_step(model, batch_of(name, model).part(world.share(8)), world, micro_batch=micro_batch)
        average_gradients(model.parameters(), world)
        result = {"gradients": gradients(model), "total": world.mean(terms.total)}
        torch.save(result, f"{folder}/{name}-{rank}.pt")
    world.close()


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes found for every case."""
    folder = tmp_path_factory.mktemp("ranks")
    in_processes(_work, 2, 2, str(folder))
    return folder


@pytest.mark.process
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_the_gradients_of_one(name: str, of_two_ranks: Path) -> None:
    preset, overrides, _ = CASES[name]
    model = toy(preset, *overrides)
    expected = backward_step(model, batch_of(name, model), ALONE)
    for rank in range(2):
        result = torch.load(of_two_ranks / f"{name}-{rank}.pt", weights_only=True)
        torch.testing.assert_close(result["total"], expected.total.detach(), rtol=0, atol=1e-12)
        assert_same(result["gradients"], gradients(model))


def test_seeds_depend_on_all_numbers() -> None:
    assert seed_for(1, 2) == seed_for(1, 2)
    assert len({seed_for(a, b) for a in range(20) for b in range(20)}) == 400


def test_one_word_of_each_text_is_replaced_by_one_of_its_donor() -> None:
    model = toy("prota", "encoder.text_tokens=content")
    texts, donors = ["the red dog", "a cat", "the"], ["a green bird", "the tree", "cat"]
    text, other = model.text_encoder.tokenize(texts), model.text_encoder.tokenize(donors)
    seen = set()
    for first in (0.0, 0.6, 0.999):
        for second in (0.0, 0.999):
            changed = replace_words(text, other, torch.tensor([[first, second]] * 3))
            different = (changed.text.ids != text.ids).nonzero().tolist()
            assert len(different) == 3
            rows = torch.arange(3)
            assert text.scored is not None
            assert [place for _, place in different] == text.scored[rows, changed.place].tolist()
            seen.add((different[0][1], int(changed.text.ids[0, different[0][1]])))
    # Both content words of the first text, by both of its donor.
    assert len(seen) == 4


def test_locality_is_how_far_the_other_words_move() -> None:
    model = toy("prota", "encoder.text_tokens=content").eval()
    text = model.text_encoder.tokenize(["the red dog runs", "a cat"])
    changed = replace_words(text, model.text_encoder.tokenize(["a bird", "green"]), torch.tensor([[0.5, 0.0]] * 2))
    with torch.no_grad():
        before, after = model.encode_text(text), model.encode_text(changed.text)
    cosines = torch.cosine_similarity(before.direction[0], after.direction[0], dim=-1)
    weights = (before.weight[0] - after.weight[0]).abs()
    # The second of three words is another one; a text of one word has no others.
    expected = 0.5 * (1 - 0.5 * (cosines[0] + cosines[2]) + 0.5 * (weights[0] + weights[2]))
    assert float(expected) > 0
    assert float(weights[0]) > 0
    torch.testing.assert_close(locality_loss(before, after, changed.place), expected)
