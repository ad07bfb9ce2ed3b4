"""Schema of a conversation over HTTP: messages, tool calls in them, and tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from asyncgen_apps.openai_http.fields import Boolean, Integer, StrictModel, Text

MAX_TOOLS = 128
MAX_CALLS = 256
"""Most calls of one message."""


def _some(value: Any) -> Any:
    """Clients send back the answers they got, with the empty fields that came along."""
    return None if value == [] else value


class TextPart(StrictModel):
    """One text of a message."""

    type: Literal["text"] = Field(description="The kind of the part.")
    text: Text = Field(description="The text.")


class CalledFunction(StrictModel):
    """The function of a call."""

    name: Text = Field(description="Of the function.")
    arguments: Text = Field(description="A JSON object.")


class MessageCall(StrictModel):
    """A call that the model made in an earlier answer."""

    id: Text = Field(description="The message of the tool repeats it.")
    type: Literal["function"] = Field("function", description="The kind of the tool.")
    function: CalledFunction = Field(description="What is called, and with what.")
    index: Integer | None = Field(None, description="Taken, and not used.")


class ChatMessage(StrictModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="Who says it; `developer` is `system`."
    )
    content: Text | Annotated[list[TextPart], Field(fail_fast=True, min_length=1)] | None = Field(
        None, description="May be missing beside `tool_calls`."
    )
    name: Text | None = Field(None, description="Read by some chat templates.")
    tool_calls: Annotated[
        Annotated[list[MessageCall], Field(fail_fast=True, max_length=MAX_CALLS)] | None,
        BeforeValidator(_some),
    ] = Field(None, description="Of an assistant: the tools that it wanted called.")
    tool_call_id: Text | None = Field(None, description="Of a tool: the call that it answers.")
    reasoning_content: Text | None = Field(
        None, description="Of an assistant: what it thought; read by some chat templates."
    )
    reasoning: Text | None = Field(None, description="Another name of `reasoning_content`.")
    thinking: Text | None = Field(None, description="Another name of `reasoning_content`.")
    tool_call_errors: list[Text] | None = Field(None, description="Taken, and not used.")

    @classmethod
    def _is_idle(cls, name: object, value: object) -> bool:
        """Clients send back the answers they got, with the empty fields that came along."""
        empty = ("refusal", "function_call", "audio", "annotations")
        return name in empty and value in (None, [])

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        thought = (self.reasoning_content, self.reasoning, self.thinking)
        if self.content is None and not self.tool_calls and not any(thought):
            raise ValueError("`content` is missing")
        return self


class Function(StrictModel):
    """A function that the model may call."""

    name: Text = Field(description="By which the model calls it.")
    description: Text | None = Field(None, description="What it does; the model reads it.")
    parameters: dict[Text, JsonValue] | None = Field(
        None, description="JSON schema of the arguments, an object."
    )
    strict: Boolean | None = Field(
        None, description="Whether the arguments are held to the schema by a grammar."
    )


class Tool(StrictModel):
    """A tool."""

    type: Literal["function"] = Field(description="The kind of the tool.")
    function: Function = Field(description="The function.")


class NamedFunction(StrictModel):
    """The name of a function."""

    name: Text = Field(description="That of one of `tools`.")


class NamedTool(StrictModel):
    """One tool by its name."""

    type: Literal["function"] = Field(description="The kind of the tool.")
    function: NamedFunction = Field(description="The function to call.")


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)]
Choice = Literal["auto", "none", "required"]
