"""Methods of a tokenizer that render conversations, and encode what they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard
from weakref import WeakKeyDictionary

from asyncgen.errors import ChatTemplateError, InvalidRequestError
from asyncgen.text.chat_template import (
    MOST_SOURCE,
    check_messages,
    render_chat,
    select_template,
    template_literals,
)
from asyncgen.text.content_guard import (
    ContentGuard,
    check_plain,
    check_special_tokens_in_content,
    control_texts,
    is_masked,
    unused_character,
)
from asyncgen.text.control_tokens import ControlTokens
from asyncgen.text.tokenizer_work import check_runs

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from asyncgen.text.batch_encoding import BatchEncoding, Padding
    from asyncgen.text.content_guard import SpecialTokensInContent
    from asyncgen.types import Message

Key: TypeAlias = tuple[int, str, tuple[str, ...]]
Render: TypeAlias = Callable[[Mapping[str, Any]], str]

_MOST_GUARDS = 16

_guards: WeakKeyDictionary[Backend, dict[Key, ContentGuard]] = WeakKeyDictionary()
"""By tokenizer, by the size of its vocabulary, the template and the named tokens."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation.

    Attributes:
        text: The prompt.
        encode_apart: Encodes it with what was said as text; returns ``None`` where that is the same
            as to encode the prompt. ``None`` where control tokens in what was said are ones.
    """

    text: str
    encode_apart: Callable[[], list[int] | None] | None = None


class ChatMethods:
    """Methods of `Tokenizer` about conversations."""

    backend_tokenizer: Backend
    chat_template: str | Mapping[str, str] | None
    trust_template: bool
    truncation_side: Literal["left", "right"]
    special_tokens_map: dict[str, str]
    _squares: Any
    _packed: Callable[..., BatchEncoding]
    encode_ids: Callable[..., list[int]]

    @property
    def special_tokens_in_content(self) -> SpecialTokensInContent:
        """What becomes of the text of a control token in a message."""
        return self._special_tokens_in_content

    @special_tokens_in_content.setter
    def special_tokens_in_content(self, value: SpecialTokensInContent) -> None:
        self._special_tokens_in_content = check_special_tokens_in_content(value)

    def apply_chat_template(
        self,
        conversation: Sequence[Message] | Sequence[Sequence[Message]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: Padding = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: Literal["pt"] | None = None,
        return_dict: bool = False,
        trust_template: bool | None = None,
        special_tokens_in_content: SpecialTokensInContent | None = None,
        **template_variables: Any,
    ) -> Any:
        """Render chat messages to the prompt that the model was trained on.

        Args:
            conversation: Messages, each a mapping with ``role`` and ``content``; or a list of
                such conversations.
            tools: JSON schemas of the functions that the model may call.
            documents: Documents that the model may quote.
            chat_template: Jinja text, or the name of one of the tokenizer's templates.
            add_generation_prompt: Open the assistant's turn at the end.
            continue_final_message: End right after the last message, so that the model continues
                it.
            tokenize: Return token ids; ``False`` for text.
            padding: As in a call; needs ``tokenize``.
            truncation: As in a call; needs ``tokenize``.
            max_length: As in a call; needs ``tokenize``.
            return_tensors: ``"pt"`` for tensors ``[B, S]``; needs ``tokenize``.
            return_dict: Return the :class:`BatchEncoding` instead of the ids alone.
            trust_template: The template is one's own: it may call whatever jinja's sandbox allows,
                without limits; ``None``: as the tokenizer was loaded.
            special_tokens_in_content: ``"text"`` keeps what the conversation says as text, also
                where it spells a control token; with ``"allow"`` it becomes that token; ``None``:
                as the tokenizer was loaded. Text that is returned keeps nothing apart.
            **template_variables: More names for the template, such as ``enable_thinking=False``.

        Returns:
            Text, ids or a :class:`BatchEncoding`; a list of texts or of lists of ids for several
            conversations.

        Raises:
            InvalidRequestError: The messages or a parameter are malformed, or with ``"text"`` the
                template cannot keep a control token as text.
            ChatTemplateError: The template is missing or broken, or it refused the messages.
        """
        several = _is_batch(conversation)
        conversations: Any = conversation if several else [conversation]
        prompts = []
        for index, messages in enumerate(conversations):
            check_messages(messages, f"conversation[{index}]" if several else "messages")
            prompts.append(
                self.render_conversation(
                    messages,
                    tools=tools,
                    documents=documents,
                    chat_template=chat_template,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    trust_template=trust_template,
                    special_tokens_in_content=special_tokens_in_content,
                    **template_variables,
                )
            )
        options: dict[str, Any] = {
            "padding": padding,
            "truncation": truncation,
            "max_length": max_length,
            "return_tensors": return_tensors,
        }
        if not tokenize:
            for name, value in {**options, "return_dict": return_dict}.items():
                if value:
                    raise InvalidRequestError(name, value, "it needs `tokenize=True`")
            texts = [prompt.text for prompt in prompts]
            return texts if several else texts[0]
        encoded = self._packed(partial(self._prompt_rows, prompts), not several, **options)
        return encoded if return_dict else encoded["input_ids"]

    def render_conversation(
        self,
        messages: Sequence[Message],
        /,
        *,
        chat_template: str | None = None,
        trust_template: bool | None = None,
        special_tokens_in_content: SpecialTokensInContent | None = None,
        **said: Any,
    ) -> ChatPrompt:
        """Render one conversation, for :meth:`encode_chat`.

        Args:
            messages: As ``conversation`` of :meth:`apply_chat_template`, as are the others.
            chat_template: Jinja text, or the name of one of the tokenizer's templates.
            trust_template: The template is one's own.
            special_tokens_in_content: Whether control tokens in what is said are kept as text.
            **said: Tools, documents, options of :func:`render_chat` and more names for the
                template.

        Raises:
            InvalidRequestError: As for :meth:`apply_chat_template`.
            ChatTemplateError: The template is missing or broken, or it refused the messages.
        """
        check_messages(messages)
        choice = special_tokens_in_content
        if choice is None:
            choice = self.special_tokens_in_content
        has_tools = said.get("tools") is not None
        template = select_template(self.chat_template, chat_template, has_tools=has_tools)
        trusted = self.trust_template if trust_template is None else trust_template
        options = {name: said.pop(name) for name in _OPTIONS if name in said}

        def render(said: Mapping[str, Any]) -> str:
            heard = {name: value for name, value in said.items() if name not in _SAID}
            return render_chat(
                template,
                said["messages"],
                tools=said.get("tools"),
                documents=said.get("documents"),
                variables={**self.special_tokens_map, **heard},
                trust_template=trusted,
                **options,
            )

        said["messages"] = messages
        text = render(said)
        if check_special_tokens_in_content(choice) == "allow":
            return ChatPrompt(text)
        return ChatPrompt(text, partial(self._encode_apart, template, text, said, render))

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        """Encode a rendered conversation.

        Args:
            prompt: Result of :meth:`render_conversation`.

        Raises:
            InvalidRequestError: It cannot be tokenized, or the template cannot keep a control token
                in it as text.
        """
        ids = None if prompt.encode_apart is None else prompt.encode_apart()
        return self.encode_ids(prompt.text, add_special_tokens=False) if ids is None else ids

    def _encode_apart(
        self, template: str, text: str, said: Mapping[str, Any], render: Render
    ) -> list[int] | None:
        """Encode a conversation with what was said as text; see :class:`ChatPrompt`."""
        guard = self.content_guard(template)
        tokens = guard.tokens
        try:
            for name in _SAID:
                check_plain(name, said.get(name))
            own = _own_of_template(guard, text, said, render) if guard.suspects(said) else text
        except RecursionError as error:
            raise InvalidRequestError("messages", text, "lists and mappings, less deep") from error
        if own is text and not tokens.are_words:
            return None
        controls = tokens.find(own)
        if controls == tokens.find(text) and not tokens.are_words:
            return None
        check_runs([text], self._squares)
        return tokens.encode(text, controls)

    def warm_guards(self) -> None:
        """Make the guards of the tokenizer's own templates now, before requests wait for them.

        Raises:
            InvalidRequestError: The tokenizer cannot tell control tokens from text.
        """
        templates = self.chat_template or {}
        for template in [templates] if isinstance(templates, str) else templates.values():
            if len(template) <= MOST_SOURCE:
                with suppress(ChatTemplateError):  # rendering says so
                    self.content_guard(template)

    def content_guard(self, template: str) -> ContentGuard:
        """Return what tells the control tokens of a template from those in contents.

        Args:
            template: Jinja text. The first call for one takes as long as to list the vocabulary.

        Raises:
            InvalidRequestError: The tokenizer cannot tell control tokens from text.
        """
        backend = self.backend_tokenizer
        known, named = _guards.setdefault(backend, {}), tuple(self.special_tokens_map.values())
        key = backend.get_vocab_size(), template, named
        guard = known.get(key)
        if guard is None:
            texts = control_texts(backend, template, named)
            made = (each.tokens for each in [*known.values()])
            tokens = next((each for each in made if each.texts == texts), None)
            tokens = tokens or ControlTokens(backend, texts)
            if len(known) >= _MOST_GUARDS:
                known.clear()
            guard = known[key] = ContentGuard(tokens, template_literals(template))
        return guard

    def _prompt_rows(self, prompts: Sequence[ChatPrompt], limit: int | None) -> list[list[int]]:
        """Encode prompts, and cut each to so many tokens."""
        rows = [self.encode_chat(prompt) for prompt in prompts]
        if limit is None:
            return rows
        if self.truncation_side == "right":
            return [row[:limit] for row in rows]
        return [row[max(len(row) - limit, 0) :] for row in rows]


_OPTIONS = ("add_generation_prompt", "continue_final_message")
_SAID = ("messages", "tools", "documents")


def _own_of_template(
    guard: ContentGuard, text: str, said: Mapping[str, Any], render: Render
) -> str:
    """Return a rendered conversation with no control tokens but those of the template.

    Args:
        guard: Of the template.
        text: The conversation, rendered.
        said: Everything that the template was given by others.
        render: Renders the same with other texts.

    Raises:
        InvalidRequestError: The template changes or tests what could be a control token.
    """
    mark = unused_character(text)
    try:
        masked = render(guard.mask(said, mark))
    except ChatTemplateError:
        masked = ""
    if not is_masked(text, masked, mark):
        place, sign = guard.culprit(said)
        allowed = (
            "the chat template of this model changes or tests it, so that it cannot be kept as "
            'text, as `special_tokens_in_content="text"` asks; leave it out, or give reasoning and '
            "calls in their own fields"
        )
        raise InvalidRequestError(place, sign, allowed)
    return masked


def _is_batch(conversation: object) -> bool:
    return _is_list(conversation) and len(conversation) > 0 and _is_list(conversation[0])


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
