"""The Bayesian detector, against transformers: numbers, gradients, files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.generation.watermarking.bayes import (
    BayesianDetectorConfig,
    BayesianDetectorModel,
    BayesianWatermarkDetectorModelOutput,
)
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

DEPTH = 5


def models(seed: int) -> tuple[BayesianDetectorModel, Any]:
    """The same random weights here and in transformers."""
    torch.manual_seed(seed)
    theirs = transformers.BayesianDetectorModel(
        transformers.BayesianDetectorConfig(watermarking_depth=DEPTH)
    )
    with torch.no_grad():
        for parameter in theirs.likelihood_model_watermarked.parameters():
            parameter.copy_(torch.randn_like(parameter))
        theirs.prior.copy_(torch.rand(1))
    ours = BayesianDetectorModel(BayesianDetectorConfig(DEPTH))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@for_each("seed", range(5))
def test_posterior_loss_and_gradients(seed: int) -> None:
    ours, theirs = models(seed)
    g_values, mask = torch.randint(0, 2, (4, 9, DEPTH)), torch.randint(0, 2, (4, 9))
    labels = torch.tensor([1.0, 0.0, 1.0, 1.0])
    (found,), (expected,) = ours(g_values, mask), theirs(g_values, mask)
    assert torch.allclose(found, expected, atol=1e-6)
    found, loss = ours(g_values, mask, labels, 0.3)
    expected, expected_loss = theirs(g_values, mask, labels, 0.3)
    assert torch.allclose(loss, expected_loss, atol=1e-6)
    output = ours(g_values, mask, labels, return_dict=True)
    assert isinstance(output, BayesianWatermarkDetectorModelOutput)
    assert torch.equal(output.posterior_probabilities, found)  # type: ignore[arg-type]
    assert ours(g_values, mask, return_dict=True).loss is None
    loss.backward()
    expected_loss.backward()
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert torch.allclose(parameter.grad, wanted[name].grad, atol=1e-5), name  # type: ignore[arg-type]


@pytest.mark.parametrize("prior", [0.0, 1e-9, 1.0])
def test_a_certain_prior_stays_finite(prior: float) -> None:
    ours, theirs = models(0)
    for model in (ours, theirs):
        model.prior.data.fill_(prior)
    g_values, mask = torch.ones(1, 2, DEPTH, dtype=torch.int64), torch.ones(1, 2)
    assert torch.allclose(ours(g_values, mask)[0], theirs(g_values, mask)[0], atol=1e-6)


def test_files_go_both_ways(tmp_path: Path) -> None:
    ours, theirs = models(3)
    ours.config.set_detector_information("tiny", {"ngram_len": 5, "keys": [1, 2]})
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    inputs = torch.randint(0, 2, (3, 6, DEPTH)), torch.ones(3, 6)
    loaded = transformers.BayesianDetectorModel.from_pretrained(tmp_path / "ours")
    assert torch.allclose(loaded(*inputs)[0], ours(*inputs)[0], atol=1e-6)
    assert loaded.config.model_name == "tiny"
    assert loaded.config.watermarking_config == {"ngram_len": 5, "keys": [1, 2]}
    back = BayesianDetectorModel.from_pretrained(tmp_path / "theirs")
    assert not back.training
    assert torch.allclose(back(*inputs)[0], ours(*inputs)[0], atol=1e-6)
    again = BayesianDetectorModel.from_pretrained(tmp_path / "ours")
    assert again.config.watermarking_config == {"ngram_len": 5, "keys": [1, 2]}
    assert torch.equal(again(*inputs)[0], ours(*inputs)[0])
    config = BayesianDetectorConfig.from_pretrained(
        tmp_path / "theirs",
    )
    assert config.watermarking_depth == DEPTH


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    models(0)[0].save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"watermarking_depth": 3}))
    with pytest.raises(ModelLoadError, match="depth 3"):
        BayesianDetectorModel.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        BayesianDetectorModel.from_pretrained(tmp_path)


def test_bad_values() -> None:
    for arguments in ((0,), ("a",), (3, 0.0), (3, 1.0)):
        with pytest.raises(InvalidRequestError):
            BayesianDetectorConfig(*arguments)
    with pytest.raises(InvalidRequestError, match="watermarking_depth"):
        BayesianDetectorModel(BayesianDetectorConfig())
    assert BayesianDetectorConfig(2, other=3).to_dict()["other"] == 3
