"""A Bayesian classifier of watermarked text, that is trained on g-values of texts.

Dathathri et al. 2024, Nature 634, 818-823, supplementary section "Bayesian score". It knows
nothing of text: g-values and masks come from `SynthIDTextWatermarkLogitsProcessor`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from asyncgen.checkpoints.checkpoint import DTYPES, open_checkpoint
from asyncgen.checkpoints.hub import checked_folder, read_json, resolve
from asyncgen.checkpoints.packed.raw_tensors import read_raw
from asyncgen.checkpoints.saved_folder import SavedFolder
from asyncgen.errors import InvalidRequestError, ModelLoadError, shorten
from asyncgen.generation.logits.base import check_count
from asyncgen.generation.outputs import ModelOutput

if TYPE_CHECKING:
    import os


_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "model.safetensors"
_LEAST_LIKELIHOOD = 1e-30
_LEAST_PRIOR = 1e-5


class BayesianDetectorConfig:
    """The shape of a `BayesianDetectorModel`, and what text it is for.

    Attributes:
        watermarking_depth: Layers of the tournament; the number of keys.
        base_rate: Prior probability that a text is watermarked.
        model_name: The model whose texts it was trained on, or None.
        watermarking_config: Arguments of the processor that it belongs to, or None.
    """

    def __init__(
        self, watermarking_depth: int | None = None, base_rate: float = 0.5, **kwargs: Any
    ) -> None:
        """Take the values.

        Args:
            watermarking_depth: Layers of the tournament.
            base_rate: Prior probability that a text is watermarked, strictly between 0 and 1.
            kwargs: Further attributes, saved with the others.

        Raises:
            InvalidRequestError: The rate or the depth is out of range.
        """
        if not 0 < base_rate < 1:
            raise InvalidRequestError("base_rate", base_rate, "must be above 0 and below 1")
        depth = watermarking_depth
        if depth is not None:
            check_count("watermarking_depth", depth)
        self.watermarking_depth = watermarking_depth
        self.base_rate = base_rate
        self.model_name: str | None = None
        self.watermarking_config: dict[str, Any] | None = None
        for name, value in kwargs.items():
            setattr(self, name, value)

    def set_detector_information(
        self, model_name: str, watermarking_config: dict[str, Any]
    ) -> None:
        """Note what text the detector is for.

        Args:
            model_name: The model that wrote it.
            watermarking_config: Arguments of the processor, ``device`` aside.
        """
        self.model_name = model_name
        self.watermarking_config = watermarking_config

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as a new dict."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Build from a dict; ``kwargs`` win over it."""
        return cls(**{**config_dict, **kwargs})

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Write ``config.json`` to a folder, made where it does not exist."""
        with SavedFolder(checked_folder(save_directory)) as folder:
            folder.add(_CONFIG_FILE, self.to_json_string())

    def to_json_string(self) -> str:
        """Render what is saved."""
        values = {"architectures": ["BayesianDetectorModel"], **self.to_dict()}
        return json.dumps(values, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike[str], **kwargs: Any) -> Self:
        """Load from a folder or the hub.

        Args:
            source: A folder, or a repository id.
            kwargs: Of the hub: ``revision``, ``token``, ``cache_dir``, ``local_files_only``.

        Raises:
            ModelLoadError: There is no such configuration.
        """
        return cls.from_dict(read_json(resolve(source, weights=False, **kwargs) / _CONFIG_FILE))


@dataclass(eq=False)
class BayesianWatermarkDetectorModelOutput(ModelOutput):
    """Output of a `BayesianDetectorModel`.

    Attributes:
        loss: A scalar, when labels were given.
        posterior_probabilities: That each text is watermarked, [B].
    """

    loss: Tensor | None = None
    posterior_probabilities: Tensor | None = None


class BayesianDetectorWatermarkedLikelihood(nn.Module):
    """Likelihood of g-values in a watermarked text.

    In a layer with two different candidates the winner has g = 1 three times out of four, in one
    with twice the same token every second time. Which of the two happened is a logistic
    regression on the g-values of the layers before.
    """

    def __init__(self, watermarking_depth: int) -> None:
        """Draw the weights near a low probability of two candidates.

        Args:
            watermarking_depth: Layers of the tournament.
        """
        super().__init__()
        depth = watermarking_depth
        self.watermarking_depth = depth
        self.beta = nn.Parameter(-2.5 + 0.001 * torch.randn(1, 1, depth))
        self.delta = nn.Parameter(0.001 * torch.randn(1, 1, depth, depth))

    def forward(self, g_values: Tensor) -> Tensor:
        """Return P(g | watermarked).

        Args:
            g_values: 0 or 1, [B, T, depth].

        Returns:
            float32 [B, T, depth].
        """
        values = g_values.to(self.beta.dtype)
        # Row i of delta looks at the layers before i.
        logits = values @ self.delta[0, 0].tril(-1).T + self.beta
        two = logits.sigmoid()
        return 0.5 * ((values + 0.5) * two + (1 - two))


class BayesianDetectorModel(nn.Module):
    """Tells how probable it is that a text is watermarked; train it like any torch module."""

    def __init__(self, config: BayesianDetectorConfig) -> None:
        """Make an untrained classifier.

        Args:
            config: Its shape.

        Raises:
            InvalidRequestError: The configuration has no depth.
        """
        super().__init__()
        if config.watermarking_depth is None:
            allowed = "must be the number of layers of the watermark, its number of keys"
            raise InvalidRequestError("watermarking_depth", None, allowed)
        self.config = config
        self.watermarking_depth = config.watermarking_depth
        self.base_rate = config.base_rate
        self.likelihood_model_watermarked = BayesianDetectorWatermarkedLikelihood(
            config.watermarking_depth
        )
        self.prior = nn.Parameter(torch.tensor([float(config.base_rate)]))

    def forward(
        self,
        g_values: Tensor,
        mask: Tensor,
        labels: Tensor | None = None,
        loss_batch_weight: float = 1,
        return_dict: bool = False,
    ) -> BayesianWatermarkDetectorModelOutput | tuple[Tensor, ...]:
        """Return P(watermarked | g).

        Args:
            g_values: 0 or 1, [B, T, depth].
            mask: 0 or 1, [B, T]; where it is 0 the g-values do not count.
            labels: 1.0 for watermarked texts, 0.0 for others, float [B].
            loss_batch_weight: Share of the data that this batch is; weighs the regularisation.
            return_dict: Whether to return an object in place of a tuple.

        Returns:
            ``posterior_probabilities`` [B]; with labels also ``loss``, the cross entropy and the
            sum of squares of delta. The tuple has the probabilities first.
        """
        watermarked = self.likelihood_model_watermarked(g_values)
        out = self._posterior(watermarked, mask)
        loss = None
        if labels is not None:
            bounded = out.clamp(_LEAST_PRIOR, 1 - _LEAST_PRIOR)
            size = (self.likelihood_model_watermarked.delta**2).sum()
            loss = nn.functional.binary_cross_entropy(bounded, labels) + size * loss_batch_weight
        if return_dict:
            return BayesianWatermarkDetectorModelOutput(loss, out)
        return (out,) if loss is None else (out, loss)

    def _posterior(self, watermarked: Tensor, mask: Tensor) -> Tensor:
        """Bayes' rule over all g-values that count; an unwatermarked one is a fair coin."""
        unwatermarked = torch.full_like(watermarked, 0.5)
        surprise = watermarked.clamp(min=_LEAST_LIKELIHOOD).log() - unwatermarked.log()
        evidence = (surprise * mask[..., None]).sum(dim=(1, 2))
        prior = self.prior.clamp(_LEAST_PRIOR, 1 - _LEAST_PRIOR)
        return torch.sigmoid(evidence + prior.log() - (1 - prior).log())

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Write ``config.json`` and ``model.safetensors`` to a folder."""
        from safetensors.torch import save

        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        with SavedFolder(checked_folder(save_directory)) as folder:
            folder.add(_CONFIG_FILE, self.config.to_json_string())
            folder.add(_WEIGHTS_FILE, save(tensors, metadata={"format": "pt"}))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        config: BayesianDetectorConfig | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load from a folder or the hub, in evaluation mode.

        Args:
            pretrained_model_name_or_path: A folder, or a repository id.
            config: In place of the one that was saved.
            kwargs: Of the hub: ``revision``, ``token``, ``cache_dir``, ``local_files_only``.

        Raises:
            ModelLoadError: There is no such detector, or its tensors do not fit.
        """
        folder = resolve(pretrained_model_name_or_path, **kwargs)
        if config is None:
            config = BayesianDetectorConfig.from_dict(read_json(folder / _CONFIG_FILE))
        stored = open_checkpoint(folder).tensors
        depth = config.watermarking_depth
        shapes = {name: tensor.shape for name, tensor in stored.items()}
        wanted = {
            "prior": (1,),
            "likelihood_model_watermarked.beta": (1, 1, depth),
            "likelihood_model_watermarked.delta": (1, 1, depth, depth),
        }
        if shapes != wanted or any(tensor.kind not in DTYPES for tensor in stored.values()):
            raise ModelLoadError(
                f"{folder}: its weights do not fit a BayesianDetectorModel of depth"
                f" {shorten(depth)}: wanted are {wanted}, and stored are"
                f" {shorten(shapes)}"
            )
        model = cls(config)
        model.load_state_dict({name: read_raw(tensor) for name, tensor in stored.items()})
        return model.eval()
