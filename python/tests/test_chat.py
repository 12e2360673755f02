"""Conversations and tools."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from forerun import LLM, FinishedEvent, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=30)
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_a_conversation_has_an_answer(llm: LLM) -> None:
    [output] = llm.chat(MESSAGES)
    message = output.outputs[0].message
    assert message is not None and message.content == output.text and len(output.text) > 50
    assert message.tool_calls == [] and message.reasoning is None
    parts = [{"role": "user", "content": [{"type": "text", "text": "A hen?"}]}]
    both = llm.chat([MESSAGES, parts], GREEDY)
    assert [one.text for one in both] == [
        llm.chat(MESSAGES, GREEDY)[0].text,
        llm.chat([{"role": "user", "content": "A hen?"}], GREEDY)[0].text,
    ]
    longer = [*MESSAGES, message.to_dict(), {"role": "user", "content": "And then?"}]
    assert llm.chat(longer, GREEDY)[0].outputs[0].message is not None


def test_tools_that_must_be_called_are_called(llm: LLM) -> None:
    other = {"type": "function", "function": {"name": "get_time"}}
    choices: list[Any] = ["required", {"type": "function", "function": {"name": "get_weather"}}]
    for choice in choices:
        tools = [WEATHER] if choice == "required" else [other, WEATHER]
        [output] = llm.chat(
            MESSAGES,
            GREEDY.replace(max_tokens=100),
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=False,
        )
        message = output.outputs[0].message
        assert message is not None and message.content is None
        [call] = message.tool_calls
        assert call.name == "get_weather" and call.parsed()["city"] in ("Paris", "Rome")
        answered = [*MESSAGES, message.to_dict(), {"role": "tool", "content": "rain"}]
        assert "rain" in llm.render_chat(answered, tools=tools)
    free = llm.chat(MESSAGES, GREEDY, tools=[WEATHER], tool_choice="none")[0]
    assert free.text == llm.chat(MESSAGES, GREEDY)[0].text


def test_streams_and_event_loops(llm: LLM) -> None:
    expected = llm.chat(MESSAGES, GREEDY)[0].text
    *_, last = llm.stream_chat(MESSAGES, GREEDY)
    assert isinstance(last, FinishedEvent) and last.output.text == expected
    assert last.output.outputs[0].message is not None

    async def work() -> list[str]:
        texts = [output.text for output in await llm.achat([MESSAGES, MESSAGES], GREEDY)]
        async for event in llm.astream_chat(MESSAGES, GREEDY):
            if isinstance(event, FinishedEvent):
                texts.append(event.output.text)
        return texts

    assert asyncio.run(work()) == [expected] * 3


def test_templates_can_be_chosen(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ name }}:{% for message in messages %}{{ message['content'] }}{% endfor %}")
    text = llm.render_chat(MESSAGES, chat_template=str(file), chat_template_kwargs={"name": "Tim"})
    assert text.strip() == "Tim:Tell me a story about a fox."
    with LLM(chat_template="plain") as plain:
        assert "User: Tell me" in plain.render_chat(MESSAGES)


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ([], {}, "at least one message"),
        ([{"content": "a"}], {}, r"messages\[0\] has no role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "only texts"),
        (MESSAGES, {"tools": [{"type": "function"}]}, r"tools\[0\] must have"),
        (
            MESSAGES,
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "1 to 64 letters",
        ),
        (MESSAGES, {"tool_choice": "required"}, "there are no tools"),
        (MESSAGES, {"tool_choice": "maybe"}, "tool_choice is 'maybe'"),
        (MESSAGES, {"tools": [WEATHER], "tool_choice": {"function": {"name": "x"}}}, "no tool 'x'"),
        (MESSAGES, {"tool_choice": {"x": 1}}, "tool_choice must have the form"),
        (MESSAGES, {"tool_choice": {"function": "x"}}, "tool_choice must have the form"),
        ([{"role": "user", "tool_calls": [{}]}], {}, r"messages\[0\].tool_calls\[0\] must be"),
        (MESSAGES, {"chat_template": "nowhere"}, "nowhere"),
    ],
)
def test_conversations_that_cannot_be_answered(
    llm: LLM, messages: list[dict[str, Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        llm.chat(messages, GREEDY, **options)


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ("hi", {}, "`messages` must be a list of messages, not str"),
        (["hi"], {}, "`messages` must be a list of messages, not str"),
        ([MESSAGES[0], "hi"], {}, r"`messages\[1\]` must be a dictionary with role and content"),
        (3, {}, "`messages` must be a list of messages, not int"),
        (MESSAGES, {"tools": "x"}, "`tools` must be a list of tools"),
        (MESSAGES, {"tools": WEATHER}, "`tools` must be a list of tools"),
        (MESSAGES, {"tools": ["x"]}, r"`tools\[0\]` must be a dictionary"),
        (MESSAGES, {"tool_choice": 1}, "`tool_choice` must be a text or a dictionary"),
        (MESSAGES, {"parallel_tool_calls": 1}, "`parallel_tool_calls` must be True or False"),
        (MESSAGES, {"chat_template": 1}, "`chat_template` must be a text"),
        (MESSAGES, {"chat_template_kwargs": [1]}, "`chat_template_kwargs` must be a dictionary"),
    ],
)
def test_conversations_of_other_types(
    llm: LLM, messages: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        llm.chat(messages, GREEDY, **options)


def test_calls_in_messages_are_objects_for_templates(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages[0].tool_calls[0].function.arguments.city }}{{ tools }}")
    call = {
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": "Rome"})},
    }
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert (
        llm.render_chat(messages, tools=[WEATHER], chat_template=str(file))
        .strip()
        .startswith("Rome")
    )
