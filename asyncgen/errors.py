"""Every exception that asyncgen raises on purpose.

    AsyncgenError
    ├── InvalidRequestError (also ValueError)    a parameter or prompt that cannot be served
    │   ├── ContextLengthError                   prompt and new tokens exceed the context
    │   ├── CacheFullError (also IndexError)     a cache of fixed shape has no room left
    │   └── UnknownOptionError (also TypeError)  an option that a constructor does not have
    ├── MissingRequirementsError                 packages that a custom decoding method needs
    │                (also ImportError, ValueError)
    ├── UnsupportedFrameworkError (also ImportError)    a name of TensorFlow or JAX
    ├── OverloadedError                          the queue is full, or threads hang; try again later
    ├── EngineClosedError                        closed, or it belongs to another process
    ├── EngineDiedError                          the decode thread stopped unexpectedly
    ├── ModelLoadError                           a checkpoint that cannot be read
    │   └── UnsupportedModelError                a ``model_type`` without an implementation
    ├── InvalidScoresError (also FloatingPointError)    no token can be picked from the scores
    └── ChatTemplateError                        messages that the chat template refuses

An exception raised by user code inside a request (a logits processor, a stopping criterion) is
not wrapped: the reader gets the exception it was. What is a ``BaseException`` only (``SystemExit``,
a panic of Rust code) becomes a ``RuntimeError`` with the original as its cause. Messages name the
value, the limit and the remedy. A ``DefaultLengthWarning`` is only warned of.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "AsyncgenError",
    "CacheFullError",
    "ChatTemplateError",
    "ContextLengthError",
    "EngineClosedError",
    "EngineDiedError",
    "InvalidRequestError",
    "MissingRequirementsError",
    "InvalidScoresError",
    "ModelLoadError",
    "OverloadedError",
    "UnsupportedFrameworkError",
    "UnsupportedModelError",
]

MOST_NAME = 120
"""Most characters of the name of a parameter in an error: it may be what a client made up."""

MOST_OF_FILES = 4000
"""Most characters of an error over the files of a model."""

MOST_SAID = 2000
"""Most characters of what a chat template says."""


class AsyncgenError(Exception):
    """Base of every exception that asyncgen raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it cross to another process with its message, its attributes and its notes."""
        return _restored, (type(self), self.args), vars(self)


class InvalidRequestError(AsyncgenError, ValueError):
    """A parameter or a prompt that cannot be served, found before any work started.

    Attributes:
        parameter: Name of the offending parameter.
        value: The value that was given.
        allowed: What would have been accepted, in words.
    """

    def __init__(self, parameter: str, value: object, allowed: str) -> None:
        """Compose the message from its three parts.

        Args:
            parameter: Name of the offending parameter; clipped if it is very long.
            value: The value that was given.
            allowed: What would have been accepted, in words; a remedy where one helps.
        """
        parameter = printable(clip(parameter, MOST_NAME))
        super().__init__(f"`{parameter}` is {shorten(value)}: {allowed}")
        self.parameter = parameter
        self.value = value
        self.allowed = allowed


class ContextLengthError(InvalidRequestError):
    """The prompt and the tokens asked for do not fit the model's context."""


class CacheFullError(InvalidRequestError, IndexError):
    """A position beyond those that a cache of fixed shape was made for."""


class UnknownOptionError(InvalidRequestError, TypeError):
    """An option that a constructor does not have; a ``TypeError`` until the next release."""


class MissingRequirementsError(AsyncgenError, ImportError, ValueError):
    """A custom decoding method needs packages that are not installed; the message lists them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it cross to another process, as an ``ImportError`` that was raised there."""
        return type(self), self.args, vars(self)


class UnsupportedFrameworkError(AsyncgenError, ImportError):
    """A documented name for models of TensorFlow or JAX; the message says what to use instead.

    An ``ImportError``, so that the message is shown by ``from asyncgen import …``, too.

    Attributes:
        unsupported: The name that was asked for.
        replacement: What to use instead, dotted as it is imported.
    """

    def __init__(self, unsupported: str, replacement: str) -> None:
        """Compose the message.

        Args:
            unsupported: The name that was asked for; it begins with "TF" or "Flax".
            replacement: What to use instead, dotted as it is imported.
        """
        framework = "JAX" if unsupported.startswith("Flax") else "TensorFlow"
        super().__init__(
            f"`{unsupported}` is for models of {framework}; models compute with torch here: "
            f"use `{replacement}`"
        )
        self.unsupported = unsupported
        self.replacement = replacement

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it cross to another process."""
        return type(self), (self.unsupported, self.replacement), vars(self)


class OverloadedError(AsyncgenError):
    """The queue is full and the request was refused before any work.

    Attributes:
        retry_after: Seconds after which a new attempt is likely to be accepted.
        is_degraded: Whether it is not the queue: threads hang over texts that take for ever, and
            long texts are refused meanwhile.
    """

    def __init__(self, message: str, retry_after: float, is_degraded: bool = False) -> None:
        """Build the error.

        Args:
            message: What is full, and how full.
            retry_after: Seconds after which a new attempt is likely to be accepted.
            is_degraded: Whether threads hang.
        """
        super().__init__(message)
        self.retry_after = retry_after
        self.is_degraded = is_degraded


class EngineClosedError(AsyncgenError):
    """The engine was closed before or during the call, or belongs to another process."""


class EngineReentryError(AsyncgenError, RuntimeError):
    """Code that an engine is computing with asks the same engine, which would wait for itself.

    Also raised to code of one of several engines that would wait for each other in a ring.
    """


class EngineDiedError(AsyncgenError):
    """The decode thread ended unexpectedly; the cause is chained."""


class ModelLoadError(AsyncgenError):
    """A checkpoint, tokenizer or configuration that cannot be read."""

    def __init__(self, message: str) -> None:
        """Compose the message.

        Args:
            message: What is wrong, which may repeat what a file says; clipped if it does, and
                without signs that would control a terminal or begin a line of a log.
        """
        super().__init__(clip(printable(clip(message, MOST_OF_FILES)), MOST_OF_FILES))


class UnsupportedModelError(ModelLoadError):
    """The checkpoint's ``model_type`` has no implementation here."""


class InvalidScoresError(AsyncgenError, FloatingPointError):
    """No token can be picked: the scores have a wrong shape, hold NaN, or ban everything.

    Or a text has no embedding: its hidden states hold NaN.

    Attributes:
        processor: Name of the logits processor that is to blame; None where it is the model, or
            several processors together.
    """

    def __init__(self, processor: str | None, message: str) -> None:
        """Build the error.

        Args:
            processor: Name of the logits processor that is to blame, if it is one.
            message: What is wrong, and what to do.
        """
        super().__init__(message)
        self.processor = processor


class ChatTemplateError(AsyncgenError):
    """The chat template is missing, broken, or refused the messages."""

    def __init__(self, message: str) -> None:
        """Build the error.

        Args:
            message: What the template says, which may repeat the messages; clipped if it does, and
                without signs that would control a terminal.
        """
        super().__init__(clip(printable(clip(message, MOST_SAID), but="\n"), MOST_SAID))


class DefaultLengthWarning(UserWarning):
    """`model.generate` was not told a length and ends after 20 new tokens, as documented."""


def _restored(kind: type[AsyncgenError], args: tuple[Any, ...]) -> AsyncgenError:
    """An error as it was; its message is not composed again, which might say something else."""
    return kind.__new__(kind, *args)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is closest to a wrong one; empty if none is close."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


_NAME, _MODULE = (vars(type)[name].__get__ for name in ("__name__", "__module__"))


def class_name(value: object) -> str:
    """Return the name of a value's class without asking its metaclass, which may be a user's."""
    return str(_NAME(type(value)))


def class_module(value: object) -> str:
    """Return the module of a value's class in the same way; empty if that is no plain text."""
    module = _MODULE(type(value))
    return module if type(module) is str else ""


class InWords(str):
    """What an error says of a value in place of the value; a message shows it without quotes."""

    __slots__ = ()


def shorten(value: object, limit: int = 120) -> str:
    """Render ``value`` for a message without flooding it, and no more of it than is shown."""
    text = ""
    try:
        for piece in _rendered(value, limit):
            text += piece
            if len(text) > limit:
                break
    except RecursionError:
        text = f"a {class_name(value)} that is nested very deep"
    except ValueError:  # Python does not write out integers of thousands of digits
        text = f"a {class_name(value)} with a number of thousands of digits"
    return clip(text, limit)


def render_by(function: Callable[[object], str]) -> None:
    """Let a function call the ``repr`` of objects of users from now on, which is code of theirs."""
    _rendering.append(function)


_rendering: list[Callable[[object], str]] = [repr]


def _rendered(value: object, limit: int) -> Iterator[str]:
    """Yield ``repr(value)`` in pieces, of a long text its beginning: one call would hold the
    interpreter for as long as a value of megabytes takes, and no other thread could run.
    """
    kind = type(value)
    if isinstance(value, InWords):
        yield str(value)
    elif isinstance(value, list | tuple) and kind in (list, tuple):
        yield "[" if kind is list else "("
        for number, entry in enumerate(value):
            yield ", " if number else ""
            yield from _rendered(entry, limit)
        yield "]" if kind is list else ",)" if len(value) == 1 else ")"
    elif isinstance(value, dict) and kind is dict:
        yield "{"
        for number, (key, entry) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _rendered(key, limit)
            yield ": "
            yield from _rendered(entry, limit)
        yield "}"
    elif isinstance(value, str) and kind is str and len(value) > limit:
        # What stands behind the beginning also decides which quotes are around it.
        quotes = "'" * ("'" in value) + '"' * ('"' in value)
        yield repr(value[:limit] + quotes)[: limit + 1]
    elif class_module(value) == "builtins":
        yield repr(value)
    else:  # code of a user, perhaps on the thread of all requests
        yield _rendering[-1](value)


def printable(text: str, but: str = "") -> str:
    """Write out characters that are not printed, as `repr` does.

    Args:
        text: The text.
        but: Characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in but else repr(each)[1:-1] for each in text)


def clip(text: str, limit: int) -> str:
    """Cut a text at its end to so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
