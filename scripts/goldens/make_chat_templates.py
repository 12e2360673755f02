"""Create golden texts of chat templates, rendered by Hugging Face `transformers`.

Every template in `crates/text/tests/chat_templates/` renders the conversations below with and
without the beginning of an answer, by `apply_chat_template` of a real tokenizer object. If a
template rejects a conversation, its error message is recorded. See README.md.
"""

import argparse
import datetime
import json
import pathlib
import sys

import jinja2
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

# Llama 3.2's template writes the date.
TODAY = datetime.datetime(2024, 7, 26, 9, 5)

# BOS and EOS of the families, as in their tokenizer_config.json. None means no such token.
TOKENS = {
    "chatml": ("<s>", "<|im_end|>"),
    "deepseek-coder-33b-instruct": ("<｜begin▁of▁sentence｜>", "<|EOT|>"),
    "llama-2": ("<s>", "</s>"),
    "llama-3": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama-3.1-8b-instruct": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama-3.2-3b-instruct": ("<|begin_of_text|>", "<|eot_id|>"),
    "mistral-7b-instruct-v0.2": ("<s>", "</s>"),
    "mistral-7b-instruct-v0.2-system": ("<s>", "</s>"),
    "mistral-nemo-instruct-2407": ("<s>", "</s>"),
    "qwen2.5-7b-instruct": (None, "<|im_end|>"),
    "qwen3-0.6b": (None, "<|im_end|>"),
    "vicuna-13b-v1.1": ("<s>", "</s>"),
}


def chat(*contents, system=None):
    """Return alternating messages of user and assistant, after the system message if there is one."""
    roles = ["user", "assistant"]
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
    return ([] if system is None else [{"role": "system", "content": system}]) + turns


CONVERSATIONS = {
    "system and user": chat("Who wrote Faust?", system="You answer in one sentence."),
    "several turns": chat(
        "Hello!",
        "Hi, how can I help?",
        "What is 2 + 2?",
        "4",
        "And twice that?",
    ),
    "spaces, scripts, quotes and control tokens": chat(
        "  \n<b>\"Größe\" & 'Länge'</b> \\n {{ 1 }} {% if %} 日本語 😀\u00a0\n",
        "\n\t </s> <|eot_id|><|im_end|> [/INST] it's \r\n fine \n ",
        " \t",
        system=" \n ",
    ),
    "system, several turns": chat("a", "b", "c", "d", "e", system="s"),
    "empty system message": chat("x", system=""),
    "empty messages": chat("", "", ""),
    "thoughts": chat(
        "Why?", "<think>\nBecause I\nwonder.\n</think>\n\nSo it is.", "Really?", "<think>hm</think>yes"
    ),
    "an answer without a question": [{"role": "assistant", "content": "Yes."}],
    "two questions in a row": chat("a") + chat("b"),
    "two system messages": chat("a", "b", system="s") + chat("c", system="t"),
    "an unknown role": [{"role": "narrator", "content": "Night falls."}],
    "tools": chat("What is the weather in Zürich?", system="Use tools."),
    "calls and their results": [
        *chat("Weather and time in \"Paris\"?"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call00001",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}},
                }
            ],
        },
        {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "Rain & 9 °C"},
        {"role": "assistant", "content": "It rains."},
        *chat("Thanks."),
    ],
}

# The tools of conversations that have any.
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Returns the weather of a <city>.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Größe"},
                "days": {"type": "integer", "minimum": 1},
            },
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {"name": "get_time", "description": "The time", "parameters": {"type": "object", "properties": {}}},
}
TOOLS = {"tools": [WEATHER], "calls and their results": [WEATHER, TIME]}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return TODAY


def tokenizer(template, bos, eos):
    inner = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    names = {"bos_token": bos, "eos_token": eos, "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        chat_template=template,
        **{name: token for name, token in names.items() if token is not None},
    )


def render(tokenizer, messages, tools, answer):
    """Return the text, or the template's own error message, or another error."""
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=answer
        )
        return {"text": text}
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return {"refused": str(error)}
        return {"failed": f"{type(error).__name__}: {error}"}
    except (IndexError, TypeError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    chat_template_utils.datetime = Clock
    records = []
    files = sorted(arguments.templates.glob("*.jinja"))
    if {file.stem for file in files} != set(TOKENS):
        sys.exit(
            "the templates do not match TOKENS: add or remove entries in TOKENS in this script"
        )
    for file in files:
        bos, eos = TOKENS[file.stem]
        # Read as bytes, so that line ends are not converted.
        template = file.read_bytes().decode()
        peer = tokenizer(template, bos, eos)
        for name, messages in CONVERSATIONS.items():
            for answer in [True, False]:
                record = {"template": file.stem, "conversation": name, "answer": answer}
                records.append(record | render(peer, messages, TOOLS.get(name), answer))
    header = {
        "peer": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}",
        "today": TODAY.isoformat(),
        "tokens": {
            name: {"bos_token": bos, "eos_token": eos, "unk_token": "<unk>"}
            for name, (bos, eos) in TOKENS.items()
        },
        "conversations": CONVERSATIONS,
        "tools": TOOLS,
    }
    with arguments.out.open("w", encoding="utf-8") as out:
        out.write('{"header": ' + json.dumps(header, ensure_ascii=False) + ',\n"records": [\n')
        lines = (json.dumps(record, ensure_ascii=False) for record in records)
        out.write(",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
