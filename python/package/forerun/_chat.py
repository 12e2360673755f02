"""Conversations: messages and tools in the form of OpenAI's API."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from . import _check
from ._fields import ConversationFields

#: A message: a dictionary with ``role``, ``content``, and what else the model's template reads.
Message: TypeAlias = Mapping[str, Any]

#: A tool: a dictionary with ``type`` and ``function``.
Tool: TypeAlias = Mapping[str, Any]

#: Whether the model must call a tool: ``none``, ``auto``, ``required``, or a dictionary that names one.
ToolChoice: TypeAlias = str | Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that the model asks for.

    Attributes:
        name: The name of the tool.
        arguments: The arguments as JSON, as in OpenAI's API.
    """

    name: str
    arguments: str

    def parsed(self) -> Any:
        """Return the arguments as a dictionary."""
        return json.loads(self.arguments)


@dataclass(frozen=True)
class ChatMessage:
    """The parts of an answer in a conversation.

    Attributes:
        content: The text for the user; None if there are only calls.
        reasoning: What the model thought before it answered, if it did.
        tool_calls: The calls that it asks for.
    """

    content: str | None
    reasoning: str | None
    tool_calls: list[ToolCall]

    def to_dict(self) -> dict[str, Any]:
        """Return the message for the next turn of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            calls = [{"name": call.name, "arguments": call.arguments} for call in self.tool_calls]
            message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        return message


def conversation_fields(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    tool_choice: ToolChoice,
    parallel_tool_calls: bool,
    chat_template: str | None,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> ConversationFields:
    """Return what the engine needs of a conversation."""
    messages = _check.items("messages", messages, "a list of messages")
    if not messages:
        raise ValueError("a conversation has at least one message")
    given = _check.items("tools", () if tools is None else tools, "a list of tools")
    known = [_tool(index, tool) for index, tool in enumerate(given)]
    _check.boolean("parallel_tool_calls", parallel_tool_calls)
    _check.optional_text("chat_template", chat_template)
    variables = {} if chat_template_kwargs is None else chat_template_kwargs
    if not isinstance(variables, Mapping):
        raise _check.wrong_type("chat_template_kwargs", variables, "a dictionary")
    requires_call = False
    if isinstance(tool_choice, Mapping):
        function = tool_choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            raise ValueError(
                f'tool_choice must have the form {{"type": "function", "function": {{"name": "..."}}}}, but it is {tool_choice!r}'
            )
        known = [tool for tool in known if tool["name"] == name]
        if not known:
            raise ValueError(f"tool_choice: there is no tool {name!r}")
        requires_call, parallel_tool_calls = True, False
    elif tool_choice == "none":
        known = []
    elif tool_choice == "required":
        requires_call = True
    elif not isinstance(tool_choice, str):
        raise _check.wrong_type("tool_choice", tool_choice, "a text or a dictionary")
    elif tool_choice != "auto":
        raise ValueError(
            f"tool_choice is {tool_choice!r}, but it must be none, auto, required or name a function"
        )
    if requires_call and not known:
        raise ValueError("tool_choice requires a tool, but there are no tools")
    return {
        "messages": json.dumps(
            [_message(index, message) for index, message in enumerate(messages)]
        ),
        "tools": json.dumps(known),
        "requires_call": requires_call,
        "parallel_calls": parallel_tool_calls,
        "variables": json.dumps(dict(variables)),
        "chat_template": chat_template,
    }


def chat_message(parts: Sequence[tuple[str, str]]) -> ChatMessage:
    """Return a message from its parts."""
    content: str | None = None
    reasoning: str | None = None
    calls: list[ToolCall] = []
    for kind, text in parts:
        if kind == "text":
            content = (content or "") + text
        elif kind == "reasoning":
            reasoning = (reasoning or "") + text
        elif kind == "call":
            calls.append(ToolCall(text, ""))
        else:
            calls[-1] = ToolCall(calls[-1].name, calls[-1].arguments + text)
    if content is None and not calls:
        content = ""
    return ChatMessage(content, reasoning, calls)


def _message(index: int, message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _check.wrong_type(f"messages[{index}]", message, "a dictionary with role and content")
    fields = dict(message)
    role, content = fields.pop("role", None), fields.pop("content", None)
    if not isinstance(role, str):
        raise ValueError(f"messages[{index}] has no role")
    if "tool_calls" in fields:
        name = f"messages[{index}].tool_calls"
        calls = _check.items(name, fields["tool_calls"] or (), "a list of calls")
        fields["tool_calls"] = [_call(f"{name}[{at}]", call) for at, call in enumerate(calls)]
        if not fields["tool_calls"]:
            del fields["tool_calls"]
    # Templates know the role by its older name.
    role = "system" if role == "developer" else role
    return {"role": role, "content": _text(index, content), "fields": fields}


def _text(index: int, content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Sequence) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in content
    ):
        return "".join(
            _check.text(f"messages[{index}].content[{at}].text", part.get("text"))
            for at, part in enumerate(content)
        )
    raise ValueError(
        f"messages[{index}].content: only texts and parts of the type text are supported"
    )


def _call(name: str, call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call whose arguments are an object, which templates write as JSON."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise ValueError(f"{name} must be a dictionary with a function")
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments)
        except json.JSONDecodeError:
            pass
    return {**call, "type": "function", "function": function}


def _tool(index: int, tool: Tool) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise _check.wrong_type(f"tools[{index}]", tool, "a dictionary with a function")
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise ValueError(f'tools[{index}] must have the type "function" and a function')
    name = function.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise ValueError(
            f"tools[{index}].function.name is {name!r}, but it must have 1 to 64 letters, digits, dots, dashes and underscores"
        )
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"tools[{index}].function.parameters must be a JSON schema")
    return {"name": name, "description": function.get("description"), "parameters": parameters}
