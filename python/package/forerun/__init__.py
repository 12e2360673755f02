"""forerun: LLM inference by parallel speculative decoding, on CPU cores.

A small drafter proposes tokens and the large target verifies them. The text has the same tokens as the target's own at
temperature 0 or with a seed, and otherwise the same distribution.

>>> import forerun
>>> llm = forerun.LLM()  # the demonstration pair, which writes stories
>>> print(llm.generate("Once upon a time")[0].text)  # doctest: +SKIP
"""

from ._chat import ChatMessage, ToolCall
from ._forerun import VERSION as __version__
from ._forerun import ForerunError
from .llm import LLM
from .outputs import (
    CompletionOutput,
    Event,
    FinishedEvent,
    Logprob,
    RequestOutput,
    Statistics,
    TextEvent,
    Timings,
    TokenEvent,
)
from .params import SamplingParams, StructuredOutputsParams
from .stream import AnswerStream
from .transformers import CausalLM, from_transformers

__all__ = [
    "LLM",
    "AnswerStream",
    "CausalLM",
    "ChatMessage",
    "CompletionOutput",
    "Event",
    "FinishedEvent",
    "ForerunError",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "Statistics",
    "StructuredOutputsParams",
    "TextEvent",
    "Timings",
    "TokenEvent",
    "ToolCall",
    "__version__",
    "from_transformers",
]
