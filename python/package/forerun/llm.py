"""The engine: loaded models that answer prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import count
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from . import _check, _progress
from ._chat import ChatMessage, Message, Tool, ToolChoice, chat_message, conversation_fields
from ._fields import AnswerFields, TokenFields
from ._forerun import Conversation, Engine, Stream
from ._requests import Chat, Prompt, Request, as_list, cancel_all, only, read_params, read_prompt
from .outputs import (
    CompletionOutput,
    Event,
    FinishedEvent,
    Logprob,
    RequestOutput,
    TextEvent,
    by_token,
    completion_output,
    token_event,
)
from .params import SamplingParams
from .stream import AnswerStream

if TYPE_CHECKING:
    from .transformers import Tokenizer

#: Options of vLLM without a counterpart.
_UNSUPPORTED = frozenset(
    """
    allowed_local_media_path compilation_config cpu_offload_gb data_parallel_size disable_custom_all_reduce
    disable_log_stats enable_chunked_prefill enable_lora enable_prefix_caching enforce_eager
    gpu_memory_utilization hf_overrides hf_token kv_cache_dtype_skip_layers limit_mm_per_prompt load_format
    max_logprobs max_lora_rank max_model_len max_num_batched_tokens mm_processor_kwargs override_pooler_config
    pipeline_parallel_size quantization revision runner seed skip_tokenizer_init speculative_config swap_space
    task tensor_parallel_size tokenizer tokenizer_mode tokenizer_revision trust_remote_code
    """.split()
)

#: The types of weights by the names of torch.
_TORCH_TYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "float32": "f32",
    "float": "f32",
}

#: The most tokens of an answer if no options are given, as in the command ``forerun generate``.
_DEFAULT_MAX_TOKENS = 200


class LLM:
    """Loaded models that answer prompts.

    All methods may be called from several threads. Answers that run at the same time share forward passes, and the
    text of one does not depend on the others. The global interpreter lock is free while the engine computes, and
    Ctrl-C stops an answer.

    >>> with LLM() as llm:  # doctest: +SKIP
    ...     print(llm.generate("Once upon a time")[0].text)

    Args:
        model: The target: a Hugging Face directory, a GGUF file or a hub id. Without it, the demonstration pair:
            small models that write stories.
        adapters: LoRA adapters of the target by names that `SamplingParams.adapter` chooses: folders of PEFT, or
            GGUF files.
        draft_model: The drafter: a smaller model, or a drafter trained for the target.
        method: When to draft and when to verify: autoregressive, speculative, pearl, dsi or ssd. ``auto`` measures
            them while decoding and uses the fastest. By default speculative with a drafter.
        drafter: What proposes tokens: model, easyspec, prompt-lookup, lookahead, eagle and others. By default what the
            draft model is.
        also_draft: Additional drafters. The methods speculative, pearl and auto use the fastest, dsi uses all.
        lookup: Guess tokens from earlier text in the rounds where that is expected to be better than the drafter:
            ``suffix``, or ``none``.
        draft_tokens: The tokens of a draft: a number from 1 to 64, ``auto`` or ``assisted``.
        tree: Draft a tree of candidates, such as ``top:4x5``.
        pearl: The variant of the method pearl.
        layers: The layers at a time of the drafter easyspec: a number, or groups such as ``0,1-3,4``.
        calibration: When the drafter easyspec makes its cache exact.
        dtype: The type of weights in memory, such as ``bf16``, ``int8`` or ``q4_k_m``; ``auto`` is the checkpoint's.
            The names of torch, such as ``bfloat16``, are known as well.
        kv_cache_dtype: The type of cached keys and values: auto, f32, f16, bf16 or q8.
        kv_cache_memory_bytes: The memory of each model's cache.
        cache_dir: A folder for the keys and values of prompts and answers, which later processes read.
        cache_dir_size: The bytes of its files. By default 10 GiB.
        threads: The number of threads.
        placement: The cores of each role, such as ``drafter=cpu:0,target=cpu:1-3``.
        gpu_layers: The number of the target's first layers on a GPU. The cores have the others.
        cpu_moe: How many of these leave their experts on the cores.
        pin: Whether each thread stays on its core.
        offline: Whether hub models come from the cache only.
        max_num_seqs: The most answers at the same time. The others wait.
        chat_template: The template of conversations: a Jinja file, the name of one of the checkpoint's, or ``plain``.
        progress: Whether a line on standard error shows what is downloaded and loaded, at a terminal or in a notebook.

    Raises:
        TypeError: If an option has the wrong type.
        ValueError: If the options do not fit together.
        ForerunError: If the models cannot be loaded.
    """

    if not TYPE_CHECKING:

        def __new__(cls, *_values: Any, **options: Any) -> LLM:
            _check.supported("LLM", options, _UNSUPPORTED)
            return super().__new__(cls)

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        adapters: Mapping[str, str | PathLike[str]] | None = None,
        draft_model: str | PathLike[str] | None = None,
        method: str | None = None,
        drafter: str | None = None,
        also_draft: Sequence[str] = (),
        lookup: str = "none",
        draft_tokens: int | str = "auto",
        tree: str | None = None,
        pearl: str | None = None,
        layers: int | str | None = None,
        calibration: str | None = None,
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        kv_cache_memory_bytes: int | None = None,
        cache_dir: str | PathLike[str] | None = None,
        cache_dir_size: int | None = None,
        threads: int | None = None,
        placement: str | None = None,
        gpu_layers: int | None = None,
        cpu_moe: int | None = None,
        pin: bool = False,
        offline: bool = False,
        max_num_seqs: int = 8,
        chat_template: str | PathLike[str] | None = None,
        progress: bool = True,
    ) -> None:
        reporter = _progress.reporter(_check.boolean("progress", progress))
        options = {
            "model": _path("model", model),
            "adapters": _adapters(adapters),
            "draft_model": _path("draft_model", draft_model),
            "method": _check.optional_text("method", method),
            "drafter": _check.optional_text("drafter", drafter),
            "also_draft": _check.texts("also_draft", also_draft),
            "lookup": _check.text("lookup", lookup),
            "draft_tokens": _text_or_integer("draft_tokens", draft_tokens),
            "tree": _check.optional_text("tree", tree),
            "pearl": _check.optional_text("pearl", pearl),
            "layers": None if layers is None else _text_or_integer("layers", layers),
            "calibration": _check.optional_text("calibration", calibration),
            "dtype": _dtype(dtype),
            "kv_cache_dtype": _check.text("kv_cache_dtype", kv_cache_dtype),
            "kv_cache_memory_bytes": _check.optional_integer(
                "kv_cache_memory_bytes", kv_cache_memory_bytes, 1
            ),
            "cache_dir": _path("cache_dir", cache_dir),
            "cache_dir_size": _check.optional_integer("cache_dir_size", cache_dir_size, 1),
            "threads": _check.optional_integer("threads", threads, 1),
            "placement": _check.optional_text("placement", placement),
            "gpu_layers": _check.optional_integer("gpu_layers", gpu_layers, 1),
            "cpu_moe": _check.optional_integer("cpu_moe", cpu_moe, 1),
            "pin": _check.boolean("pin", pin),
            "offline": _check.boolean("offline", offline),
            "max_num_seqs": _check.integer("max_num_seqs", max_num_seqs, 1),
            "on_progress": reporter,
        }
        self._chat_template = _path("chat_template", chat_template)
        try:
            self._engine = Engine(options)
        finally:
            if reporter is not None:
                reporter.clear()
        self._description = self._engine.description()
        self._numbers = count()

    @property
    def model(self) -> str:
        """The target, as it was named."""
        return self._description["model"]

    @property
    def method(self) -> str:
        """The decoding method."""
        return self._description["method"]

    @property
    def drafter(self) -> str:
        """The kind of drafter."""
        return self._description["drafter"]

    @property
    def placement(self) -> str:
        """The cores of each role."""
        return self._description["placement"]

    @property
    def max_model_len(self) -> int:
        """The length of the model's context, in tokens."""
        return self._description["max_model_len"]

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the model's vocabulary."""
        return self._description["vocab_size"]

    @property
    def eos_token_ids(self) -> list[int]:
        """The tokens that end a text."""
        return self._description["eos_token_ids"]

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if there is one."""
        return self._description["bos_token_id"]

    @property
    def closed(self) -> bool:
        """Whether the engine is closed."""
        return self._engine.is_closed()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with BOS if the tokenizer adds it."""
        return self._engine.encode(_check.text("text", text))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens."""
        tokens = _check.tokens("token_ids", token_ids)
        return self._engine.decode(
            tokens, _check.boolean("skip_special_tokens", skip_special_tokens)
        )

    def get_tokenizer(self) -> Tokenizer:
        """Return the checkpoint's tokenizer, with the methods that users of transformers know."""
        from .transformers import Tokenizer

        return Tokenizer(self)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the options of answers without options, as those of ``forerun generate``: greedy, up to 200 tokens."""
        return SamplingParams(temperature=0.0, max_tokens=_DEFAULT_MAX_TOKENS)

    def get_suggested_sampling_params(self) -> SamplingParams:
        """Return greedy decoding, or the sampling that the checkpoint's ``generation_config.json`` suggests."""
        suggested = self._engine.suggested_sampling()
        greedy = SamplingParams(temperature=0.0, max_tokens=_DEFAULT_MAX_TOKENS)
        return greedy if suggested is None else greedy.replace(**suggested)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: object = None,
    ) -> list[RequestOutput]:
        """Continue prompts, and return their answers in the same order.

        Args:
            prompts: A prompt or several: texts, lists of tokens, or dictionaries with ``prompt`` or
                ``prompt_token_ids``.
            sampling_params: The options of all answers, or those of each prompt.
            use_tqdm: Ignored: answers have no progress bar.

        Raises:
            TypeError: If a prompt or an option has the wrong type.
            ValueError: If a prompt is empty or too long, or an option is out of range.
            ForerunError: If decoding fails.
            KeyboardInterrupt: If Ctrl-C stops the computation.
        """
        return self._collect(self._read(prompts, sampling_params))

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> AnswerStream:
        """Continue a prompt, as an iterator of events: tokens, text, and in the end the whole answer.

        >>> for text in llm.stream("Once upon a time").texts():  # doctest: +SKIP
        ...     print(text, end="")
        """
        request = self._read_one(prompt, sampling_params)
        return AnswerStream(self, request, self._start(request, 0))

    async def agenerate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts as :meth:`generate` does, without blocking the event loop.

        Cancelling the task cancels the answers.
        """
        return await self._acollect(self._read(prompts, sampling_params))

    async def astream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> AsyncIterator[Event]:
        """Continue a prompt as :meth:`stream` does, as an asynchronous iterator. Leaving it cancels the answer."""
        request = self._read_one(prompt, sampling_params)
        async for event in self._aevents(request):
            yield event

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: object = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several.

        The ``message`` of an answer has its parts: text, reasoning, and calls of tools.

        Args:
            messages: A conversation, or several: dictionaries with ``role`` and ``content``, as in OpenAI's API.
            sampling_params: The options of all answers, or those of each conversation.
            tools: The tools that the model may call, as in OpenAI's API.
            tool_choice: ``auto``, ``none``, ``required``, or a dictionary that names the function to call.
            parallel_tool_calls: Whether the model may call several tools.
            chat_template: Another template than the engine's.
            chat_template_kwargs: Further variables of the template.
            use_tqdm: Ignored: answers have no progress bar.

        Raises:
            TypeError: If a message or an option has the wrong type.
            ValueError: If the template refuses the messages, or an option is out of range.
        """
        chat = Chat(tools, tool_choice, parallel_tool_calls, chat_template, chat_template_kwargs)
        return self._collect(self._read_chats(messages, sampling_params, chat))

    async def achat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations as :meth:`chat` does, without blocking the event loop."""
        chat = Chat(tools, tool_choice, parallel_tool_calls, chat_template, chat_template_kwargs)
        return await self._acollect(self._read_chats(messages, sampling_params, chat))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AnswerStream:
        """Answer a conversation, as an iterator of events like those of :meth:`stream`.

        The texts are as the model writes them. The last event has the parts of the answer.
        """
        chat = Chat(tools, tool_choice, parallel_tool_calls, chat_template, chat_template_kwargs)
        request = only(self._read_chats(messages, sampling_params, chat))
        return AnswerStream(self, request, self._start(request, 0))

    async def astream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Event]:
        """Answer a conversation as :meth:`stream_chat` does, as an asynchronous iterator."""
        chat = Chat(tools, tool_choice, parallel_tool_calls, chat_template, chat_template_kwargs)
        request = only(self._read_chats(messages, sampling_params, chat))
        async for event in self._aevents(request):
            yield event

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation up to the beginning of an answer, as the model's template writes it."""
        chat = Chat(tools, "auto", True, chat_template, chat_template_kwargs)
        request = self._encode_chat(messages, SamplingParams(), chat)
        return self.decode(request.tokens, skip_special_tokens=False)

    def score(
        self, prompt: str | Sequence[int], continuation: str | Sequence[int], top: int = 0
    ) -> list[dict[int, Logprob]]:
        """Return the target's log-probability of each token of a continuation, given the tokens before it.

        The entries are those of ``logprobs`` for generated tokens: by token, first the token itself, then the
        ``top`` most probable ones. A continuation that is a text is encoded together with the prompt.

        Raises:
            ValueError: If the prompt is empty, or the text is longer than the context.
        """
        if isinstance(prompt, str):
            before = self._engine.encode_prompt(prompt)
        else:
            before = _check.tokens("prompt", prompt)
        if isinstance(continuation, str):
            if not isinstance(prompt, str):
                raise ValueError("a continuation as text needs a prompt as text")
            continuation = self._engine.encode_prompt(prompt + continuation)[len(before) :]
        after = _check.tokens("continuation", continuation)
        scores = self._engine.score(before, after, _check.integer("top", top, 0))
        return [by_token(score) for score in scores]

    def embed(self, texts: str | Sequence[str]) -> list[list[float]]:
        """Return the embeddings of texts, with a model for embeddings: vectors of length 1.

        The product of two of them is the similarity of their texts.

        Raises:
            ValueError: If the model generates text, or a text is longer than its context.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"texts[{index}] is {text!r}, but it must be a str")
        return self._engine.embed(texts)

    def close(self) -> None:
        """End all answers and free the models. Answers in progress end with the finish reason ``abort``."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"LLM({self.model!r}, method={self.method!r}, drafter={self.drafter!r}{state})"

    def _read(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Request]:
        """Encode prompts, and give each its options."""
        several = as_list(prompts)
        params = self._params(len(several), sampling_params)
        return [self._encode(prompt, one) for prompt, one in zip(several, params, strict=True)]

    def _params(
        self, number: int, sampling_params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        """Return the options of each prompt."""
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        return read_params(number, sampling_params)

    def _read_one(self, prompt: Prompt, sampling_params: SamplingParams | None) -> Request:
        return only(self._read(prompt, sampling_params))

    def _read_chats(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        chat: Chat,
    ) -> list[Request]:
        """Encode conversations, and give each its options."""
        given = _check.items("messages", messages, "a list of messages")
        if not given or isinstance(given[0], Mapping):
            given = [given]
        several = cast(Sequence[Sequence[Message]], given)
        params = self._params(len(several), sampling_params)
        return [self._encode_chat(one, own, chat) for one, own in zip(several, params, strict=True)]

    def _encode_chat(
        self, messages: Sequence[Message], params: SamplingParams, chat: Chat
    ) -> Request:
        conversation = self._engine.conversation(
            conversation_fields(
                messages,
                chat.tools,
                chat.tool_choice,
                chat.parallel_tool_calls,
                chat.chat_template or self._chat_template,
                chat.chat_template_kwargs,
            )
        )
        return self._request(None, conversation.tokens, params, conversation)

    def _encode(self, prompt: Prompt, params: SamplingParams) -> Request:
        read = read_prompt(prompt)
        if isinstance(read, str):
            return self._request(read, self._engine.encode_prompt(read), params)
        return self._request(None, read, params)

    def _request(
        self,
        text: str | None,
        tokens: list[int],
        params: SamplingParams,
        conversation: Conversation | None = None,
    ) -> Request:
        return Request(next(self._numbers), text, tokens, params, conversation)

    def _start(
        self,
        request: Request,
        index: int,
        on_event: Callable[[], object] | None = None,
        every: bool = False,
    ) -> Stream:
        params = request.params._for_answer(index)
        return self._engine.start(request.tokens, params, on_event, every, request.conversation)

    def _collect(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Generate the answers to all requests."""
        streams: list[list[Stream]] = []
        try:
            for request in requests:
                streams.append([self._start(request, index) for index in range(request.params.n)])
            return [
                self._output(request, [stream.result() for stream in own])
                for request, own in zip(requests, streams, strict=True)
            ]
        finally:
            cancel_all(streams)

    async def _acollect(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Generate the answers to all requests without blocking the event loop."""
        loop = asyncio.get_running_loop()
        streams: list[list[Stream]] = []
        ended: list[asyncio.Event] = []

        def start(request: Request, index: int) -> Stream:
            flag = asyncio.Event()
            ended.append(flag)
            return self._start(request, index, lambda: loop.call_soon_threadsafe(flag.set))

        try:
            for request in requests:
                streams.append([start(request, index) for index in range(request.params.n)])
            for flag in ended:
                await flag.wait()
            return [
                self._output(request, [stream.result() for stream in own])
                for request, own in zip(requests, streams, strict=True)
            ]
        finally:
            cancel_all(streams)

    async def _aevents(self, request: Request) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        flag = asyncio.Event()
        stream = self._start(request, 0, lambda: loop.call_soon_threadsafe(flag.set), every=True)
        try:
            while True:
                flag.clear()
                event = stream.next_now()
                if event is None:
                    await flag.wait()
                    continue
                read = self._event(request, event)
                yield read
                if isinstance(read, FinishedEvent):
                    return
        finally:
            stream.cancel()

    def _event(self, request: Request, event: TokenFields | str | AnswerFields) -> Event:
        if isinstance(event, str):
            return TextEvent(event)
        if "piece" in event:
            return token_event(event)
        return FinishedEvent(self._output(request, [event]))

    def _output(self, request: Request, answers: Sequence[AnswerFields]) -> RequestOutput:
        return RequestOutput(
            request_id=str(request.number),
            prompt=request.text,
            prompt_token_ids=request.tokens,
            outputs=[
                self._completion(index, answer, request) for index, answer in enumerate(answers)
            ],
            num_cached_tokens=min(answer["cached_prompt_tokens"] for answer in answers),
        )

    def _completion(self, index: int, answer: AnswerFields, request: Request) -> CompletionOutput:
        params, conversation = request.params, request.conversation
        message: ChatMessage | None = None
        if conversation is not None:
            is_structured = params.structured_outputs is not None
            text = answer["text"]
            is_cut = answer["finish"] != "eos"
            whole = [("text", text)]
            message = chat_message(whole if is_structured else conversation.parts(text, is_cut))
        return completion_output(index, answer, self._stop_reason(answer, params), message)

    def _stop_reason(self, answer: AnswerFields, params: SamplingParams) -> int | str | None:
        """Return the stop string or the stop token that ended an answer."""
        if answer["finish"] == "eos":
            last = answer["token_ids"][-1]
            return last if last in (params.stop_token_ids or ()) else None
        if answer["finish"] != "stop":
            return None
        # The tokens of the stop string are part of the answer. A tokenizer may drop a space at the beginning.
        rest = self.decode(answer["token_ids"])[max(len(answer["text"]) - 1, 0) :]
        found = [(rest.find(stop) + len(stop), stop) for stop in params.stop or () if stop in rest]
        return min(found)[1] if found else None


def _path(name: str, value: object) -> str | None:
    """Return a path or a name as text, if there is one."""
    return None if value is None else _required_path(name, value)


def _required_path(name: str, value: object) -> str:
    """Return a path or a name as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, PathLike):
        return str(value)
    raise _check.wrong_type(name, value, "a text or a path")


def _adapters(given: object) -> list[tuple[str, str]]:
    """Return the names and paths of adapters."""
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise _check.wrong_type("adapters", given, "a dictionary of names and paths")
    named = [(_check.text("adapters", name), path) for name, path in given.items()]
    return [(name, _required_path(f"adapters[{name!r}]", path)) for name, path in named]


def _text_or_integer(name: str, value: object) -> str:
    return value if isinstance(value, str) else str(_check.integer(name, value))


def _dtype(value: object) -> str:
    """Return the type of weights by the engine's name."""
    name = _check.text("dtype", value)
    return _TORCH_TYPES.get(name, name)
