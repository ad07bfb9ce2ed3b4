"""Pad rows of token ids and pack them into the result of a tokenizer call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


Side: TypeAlias = Literal["left", "right"]

Padding: TypeAlias = bool | Literal["longest", "max_length", "do_not_pad"]


class BatchEncoding(dict[str, Any]):
    """Result of a tokenizer call: a dict whose entries are attributes too.

    Attributes:
        input_ids: Token ids: lists of ints, or an int64 tensor ``[B, S]``.
        attention_mask: Same layout; 1 for text, 0 for padding.
    """

    def __getattr__(self, name: str) -> Any:
        """Return the entry called ``name``."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no entry is called {name!r}; there are {sorted(self)}") from None

    @property
    def data(self) -> Self:
        """The entries: this object."""
        return self

    def to(self, device: str | torch.device | int) -> Self:
        """Move every tensor to ``device``, in place.

        Args:
            device: Target, for example ``model.device``.

        Returns:
            This object.
        """
        for name, value in self.items():
            if hasattr(value, "to"):
                self[name] = value.to(device)
        return self


def check_side(parameter: str, side: str) -> Side:
    """Return ``side`` if it is valid.

    Raises:
        InvalidRequestError: It is neither ``"left"`` nor ``"right"``; names ``parameter``.
    """
    if side in ("left", "right"):
        return side  # type: ignore[return-value]
    raise InvalidRequestError(parameter, side, "use 'left' or 'right'")


def pad_rows(
    rows: list[list[int]], masks: list[list[int]], *, width: int, pad_id: int, side: Side
) -> None:
    """Pad rows of ids, and their masks with 0, in place.

    Args:
        rows: Token ids of each text.
        masks: Mask of each row, of the same length.
        width: Tokens to pad to; a longer row stays as it is.
        pad_id: Id of the padding.
        side: Side of the padding.
    """
    for row, mask in zip(rows, masks, strict=True):
        missing = max(0, width - len(row))
        at = 0 if side == "left" else len(row)
        row[at:at] = [pad_id] * missing
        mask[at:at] = [0] * missing


def rounded_up(width: int, multiple: int | None) -> int:
    """Round a number of tokens up to a multiple; ``None`` does not round.

    Raises:
        InvalidRequestError: The multiple is no positive number.
    """
    if multiple is None:
        return width
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
        raise InvalidRequestError("pad_to_multiple_of", multiple, "give a number of tokens")
    return -(-width // multiple) * multiple


def collate(
    encoded: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[dict[str, list[list[int]]], bool]:
    """Split the results of tokenizer calls into rows, which may then be padded.

    Args:
        encoded: One result, or several for a text each; of lists or of tensors.

    Returns:
        ``input_ids`` and ``attention_mask`` (ones if there was none), and True if the result is
        that of one text.

    Raises:
        InvalidRequestError: ``input_ids`` are missing, there are other entries, or a mask has
            another length.
    """
    each = [encoded] if isinstance(encoded, Mapping) else list(encoded)
    for one in each:
        if "input_ids" not in one or not one.keys() <= {"input_ids", "attention_mask"}:
            allowed = "give what the tokenizer returned: `input_ids` and `attention_mask`"
            raise InvalidRequestError("encoded_inputs", sorted(one), allowed)
    ids = [_listed(one["input_ids"]) for one in each]
    masks = [_listed(one.get("attention_mask", ())) for one in each]
    single = isinstance(encoded, Mapping) and not any(isinstance(row, list) for row in ids[0])
    if isinstance(encoded, Mapping) and not single:
        ids, masks = ids[0], masks[0]
    masks = [
        mask or [1] * len(row) for row, mask in zip(ids, masks or [[]] * len(ids), strict=True)
    ]
    if [len(mask) for mask in masks] != [len(row) for row in ids]:
        raise InvalidRequestError("attention_mask", masks, "as long as `input_ids`")
    return {"input_ids": ids, "attention_mask": masks}, single


def _listed(values: Any) -> list[Any]:
    """Turn a tensor, an array or nested lists of these into lists; rows are copied."""
    if hasattr(values, "tolist"):
        return list(values.tolist())
    return [one if isinstance(one, int) else _listed(one) for one in values]


def pack_rows(
    data: dict[str, list[list[int]]], *, single: bool, return_tensors: Literal["pt"] | None
) -> BatchEncoding:
    """Build the result of a call.

    Args:
        data: Rows by entry name.
        single: One text was given rather than a list; its lists come back flat.
        return_tensors: ``"pt"`` for int64 tensors ``[B, S]``.

    Raises:
        InvalidRequestError: Tensors of rows with different lengths, or of no rows.
    """
    if return_tensors is None:
        return BatchEncoding({name: rows[0] if single else rows for name, rows in data.items()})
    import torch

    if len({len(row) for row in data["input_ids"]}) != 1:
        raise InvalidRequestError(
            "return_tensors",
            return_tensors,
            "give at least one text, and `padding=True` where they differ in length",
        )
    return BatchEncoding(
        {name: torch.tensor(rows, dtype=torch.long, device="cpu") for name, rows in data.items()}
    )
