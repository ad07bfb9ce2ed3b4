"""Methods of a tokenizer that turn answers into messages, as the reference has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.text.response_template.response_parser import ResponseParser, parse_response
from asyncgen.types import NEVER_IDS

if TYPE_CHECKING:
    import torch

    from asyncgen.text.response_template.template import ResponseTemplate

Texts: TypeAlias = "str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] | torch.Tensor"
"""A text, its token ids, or several of either."""

_NO_TEMPLATE = (
    "this tokenizer has none; give one, or set `tokenizer.response_template` to the declaration of"
    " the model"
)


class ResponseMethods:
    """Methods of `Tokenizer` about answers; they need its ``decode`` and ``init_kwargs``."""

    init_kwargs: dict[str, Any]

    def decode(self, token_ids: Any) -> str:
        """Turn token ids into text."""
        raise NotImplementedError

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        """Declaration of how the model writes a message; saved in ``tokenizer_config.json``."""
        template: Mapping[str, Any] | None = self.init_kwargs.get("response_template")
        return template

    @response_template.setter
    def response_template(self, template: Mapping[str, Any] | None) -> None:
        if template is None:
            self.init_kwargs.pop("response_template", None)
        else:
            self.init_kwargs["response_template"] = template

    def parse_response(
        self,
        response: Texts,
        schema: Mapping[str, Any] | ResponseTemplate | None = None,
        *,
        prefix: Texts | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Turn answers into messages.

        Args:
            response: An answer, as text or as token ids, or a list of answers.
            schema: A response template; ``None``: that of the tokenizer.
            prefix: The prompt, or one for each answer; an empty text or list where the answer is
                the whole message.
            tools: JSON schemas of the functions that the model may call. Texts among the arguments
                of calls get the types that they declare.

        Returns:
            The message, or a list of messages.

        Raises:
            InvalidRequestError: There is no template, it is malformed, or an answer does not fit.
        """
        template = self._template(schema)
        answers, is_single = self._texts(response, "response")
        prefixes: list[str | None] = [None]
        is_for_all = prefix is None
        if prefix is not None:
            given, is_one = self._texts(prefix, "prefix")
            prefixes, is_for_all = list(given) or [""], is_one or not given
        if is_for_all:
            prefixes *= len(answers)
        if len(prefixes) != len(answers):
            allowed = f"give one, or one for each of the {len(answers)} answers"
            raise InvalidRequestError("prefix", InWords(f"{len(prefixes)} prompts"), allowed)
        messages = [
            parse_response(answer, template, prefix=before, tools=tools)
            for answer, before in zip(answers, prefixes, strict=True)
        ]
        return messages[0] if is_single else messages

    def get_response_parser(
        self,
        response_template: Mapping[str, Any] | ResponseTemplate | None = None,
        *,
        prefix: Texts | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ResponseParser:
        """Make a parser of one answer that is still growing.

        Args:
            response_template: A response template; ``None``: that of the tokenizer.
            prefix: The prompt, as text or as token ids; ``""`` where the answer is the whole
                message.
            tools: As for `parse_response`.

        Raises:
            InvalidRequestError: There is no template, it is malformed, or ``prefix`` is missing.
        """
        template = self._template(response_template)
        if prefix is None:
            return ResponseParser(template, None, tools=tools)
        texts, is_single = self._texts(prefix, "prefix")
        if not is_single and texts:
            raise InvalidRequestError("prefix", prefix, "give one prompt")
        return ResponseParser(template, "".join(texts), tools=tools)

    def _template(
        self, given: Mapping[str, Any] | ResponseTemplate | None
    ) -> Mapping[str, Any] | ResponseTemplate:
        template = self.response_template if given is None else given
        if template is None:
            raise InvalidRequestError("response_template", None, _NO_TEMPLATE)
        return template

    def _texts(self, given: Any, parameter: str) -> tuple[list[str], bool]:
        """Return one or several texts, decoded, and whether there is one alone."""
        if isinstance(given, str):
            return [given], True
        is_listed = hasattr(given, "tolist") and not isinstance(given, NEVER_IDS)
        rows = given.tolist() if is_listed else given
        if isinstance(rows, Sequence) and not isinstance(rows, NEVER_IDS):
            kinds = {type(each) for each in rows}
            if kinds <= {int}:
                return ([self.decode(rows)], True) if rows else ([], False)
            if kinds == {str}:
                return list(rows), False
            if all(isinstance(each, list | tuple) or hasattr(each, "tolist") for each in rows):
                return [self.decode(each) for each in rows], False
        raise InvalidRequestError(parameter, given, "give a text, token ids, or a list of either")
