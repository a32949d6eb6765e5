"""Configs: presets, TOML, overrides, and sentences for what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.config.model import (
    TEMPORAL_HEADS,
    Config,
    ConfigError,
    DistributionConfig,
    EncoderConfig,
    LossConfig,
    ScoreConfig,
)
from prota.config.presets import BACKBONES, PRESETS

PAPER_ROWS = [
    "global-pooling",
    "mean-max",
    "lda",
    "lda+dot-intra",
    "lda+dot-intra+inter",
    "lda+intra",
    "dpa",
    "dpa-p",
    "dpa-p+kl",
    "prota",
]


def test_the_table_has_the_papers_rows_in_its_order() -> None:
    assert list(PRESETS) == [*PAPER_ROWS, "wti", "prota-printed"]


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_survives_toml(preset: str, backbone: str) -> None:
    config = Config.build(preset, backbone)
    assert Config.from_toml(config.to_toml()) == config


def test_presets_differ_from_each_other() -> None:
    configs = [Config.build(preset).to_toml() for preset in PRESETS]
    assert len(set(configs)) == len(PRESETS)


def test_defaults_are_the_papers() -> None:
    config = Config()
    assert config == Config.build("prota", "clip-vit-b32")
    assert (config.score.kernels, config.score.lambda_, config.score.xi) == (5, 100.0, 100.0)
    assert (config.loss.eta, config.loss.beta) == (5e-4, 5e-4)
    assert (config.encoder.text_length, config.encoder.frames, config.encoder.width) == (32, 12, 512)
    assert (config.encoder.temporal_layers, TEMPORAL_HEADS) == (4, 8)


def test_a_file_names_rows_and_overrides_win(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('preset = "dpa"\nbackbone = "toy"\n[score]\nlambda_ = 50\nxi = "max"\n', encoding="utf-8")
    config = Config.load(path, ["score.lambda_=25", "score.gram = dot", "loss.label_smoothing=0.25"])
    assert config.score.similarity == "cosine"
    assert config.encoder.kind == "toy"
    assert (config.score.lambda_, config.score.xi, config.score.gram) == (25.0, "max", "dot")
    assert config.loss.label_smoothing == 0.25


def test_building_leaves_the_tables_alone() -> None:
    before = repr((PRESETS, BACKBONES))
    Config.build("dpa", "toy", ["score.kernels=3", "encoder.frames=4"])
    assert repr((PRESETS, BACKBONES)) == before


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda: ScoreConfig(similarity="euclidean"),
            "similarity must be one of cosine, squared, offset, printed; got 'euclidean'",
        ),
        (
            lambda: Config(score={"similarity": "euclidean"}),
            "score.similarity must be one of cosine, squared, offset, printed; got 'euclidean'",
        ),
        (
            lambda: Config.build(overrides=["score.lambda_=hot"]),
            "score.lambda_ must be a positive",
        ),
        (
            lambda: ScoreConfig(lambda_=-1),
            "or 'max' for the hard maximum, got -1",
        ),
        (lambda: ScoreConfig(xi=True), "xi must be"),
        (lambda: ScoreConfig(lambda_=1e39), ", got 1e+39"),
        (lambda: ScoreConfig(kernels=True), "kernels must be a number, got True"),
        (lambda: Config(loss={"eta": True}), "loss.eta must be a number, got True"),
        (lambda: DistributionConfig(log_var_max=4), "log_var_max was removed: delete it; it is 4.0"),
        (lambda: ScoreConfig(lambda_=float("nan")), ", got nan"),
        (lambda: ScoreConfig(kernels=0), "kernels must be greater than or equal to 1, got 0"),
        (lambda: Config.build(overrides=["score.lamda_=3"]), "score.lamda_ is not a setting; did you mean 'lambda_'?"),
        (lambda: Config.build(overrides=["scores.xi=3"]), "scores is not a setting; did you mean 'score'?"),
        (lambda: Config.build(overrides=["score.lambda_"]), "'score.lambda_': must have the form section.field=value"),
        (lambda: Config.build(overrides=["score=3"]), "score must be"),
        (lambda: Config.build("dpa2"), "preset must be one of global-pooling, mean-max, lda"),
        (lambda: Config.build(backbone="vgg"), "backbone must be one of clip-vit-b32"),
        (lambda: Config.from_toml("score = ["), "invalid TOML"),
        (lambda: ScoreConfig(weights="intra+inter", gram="none"), "weights='intra+inter' needs a Gram matrix; allowed"),
        (lambda: ScoreConfig(similarity="cosine", distance="deviation"), "distance='deviation' needs token Gaussians"),
        (lambda: ScoreConfig(weighting="normalised", intra="none"), "weighting='normalised' could divide by zero"),
        (lambda: ScoreConfig(weighting="normalised", gram="dot"), "weighting='normalised' could divide by zero"),
        (
            lambda: ScoreConfig(weighting="normalised", bandwidth_value=0.006),
            "bandwidth_value=0.006 is too small: normalised weights would divide by zero; "
            "allowed with weighting='normalised': at least 0.00625",
        ),
        (lambda: ScoreConfig(aggregation="pooling"), "aggregation='pooling' needs similarity='cosine'"),
        (lambda: Config.build("dpa", overrides=["loss.beta=0.1"]), "loss.beta=0.1 needs token Gaussians"),
        (lambda: Config.build("dpa", overrides=["loss.eta=0.1"]), "loss.eta=0.1 needs token Gaussians"),
        (lambda: Config(encoder={"width": 30}), "encoder.width=30 must be a multiple of the 8 attention heads"),
        (lambda: EncoderConfig(frames=100), "frames must be less than or equal to 77, got 100"),
        (
            lambda: EncoderConfig(kind="pair", temporal_init="clip"),
            "temporal_init was removed: delete it; encoder.kind decides",
        ),
        (lambda: DistributionConfig(log_var_init=9), "log_var_init must be less than or equal to"),
        (lambda: LossConfig(margin="max"), "margin must be one of additive, literal; got 'max'"),
        (lambda: LossConfig(eta=float("inf")), ", got inf"),
        (
            lambda: Config(score={"kernels": 0, "gram": "x"}, loss={"margin": "no"}),
            "gaussian, dot, none; got 'x'; score.kernels must be greater than or equal to 1, got 0; loss.margin must",
        ),
        (lambda: Config.load("nowhere.toml"), "cannot read the config file nowhere.toml"),
    ],
)
def test_what_is_refused_gets_a_sentence(build: object, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()  # type: ignore[operator]
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_refused_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[loss]\neta = -1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.toml: loss\.eta must be greater than or equal"):
        Config.load(path)


def test_configs_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().score.lambda_ = 3.0  # type: ignore[misc]
    assert ScoreConfig().replace(lambda_="max").lambda_ == "max"
    with pytest.raises(ConfigError, match="kernels must be less than or equal to 16, got 99"):
        ScoreConfig().replace(kernels=99)
