"""An adapter for lm-eval, the evaluation harness of EleutherAI, so that quality can be judged by the field's own tasks.

Importing this module registers the model ``forerun``. As a command::

    python -m forerun.lm_eval run --model forerun --model_args model=path/or/hub-id --tasks hellaswag

All options of :class:`forerun.LLM` are model arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ModuleNotFoundError as error:
    _MISSING = 'lm-eval is not installed: pip install "forerun[lm-eval]"'
    if error.name is None or error.name.partition(".")[0] != "lm_eval":
        raise
    if __name__ == "__main__":
        raise SystemExit(_MISSING) from None
    raise ModuleNotFoundError(_MISSING, name=error.name) from None

from .llm import LLM
from .params import SamplingParams

#: The names that lm-eval's tasks use for the most tokens of an answer, in the order in which they count.
_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")

#: The options of generation that tasks may set besides.
_SAMPLING = ("top_p", "top_k", "min_p", "repetition_penalty", "seed")


@register_model("forerun")
class ForerunLM(TemplateLM):  # type: ignore[misc, unused-ignore]
    """A model for lm-eval.

    Args:
        model: The target, as for :class:`forerun.LLM`; also ``pretrained``, as other models of lm-eval call it.
        max_length: The most tokens that the model sees; by default its context.
        max_gen_toks: The most tokens of an answer whose task sets no limit.
        add_bos_token: Whether contexts begin with BOS; by default as the tokenizer does it.
        batch_size: The most answers at the same time.
        options: The options of :class:`forerun.LLM`.
    """

    def __init__(
        self,
        model: str | LLM | None = None,
        *,
        pretrained: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if device not in (None, "cpu"):
            raise ValueError(f"device is {device!r}, but forerun computes on the cpu")
        if batch_size not in (None, "auto"):
            options.setdefault("max_num_seqs", int(batch_size))
        self.llm = model if isinstance(model, LLM) else LLM(model or pretrained, **options)
        self.max_length = min(max_length or self.llm.max_model_len, self.llm.max_model_len)
        self.max_gen_toks = max_gen_toks
        self.add_bos_token = add_bos_token
        self._workers = int(options.get("max_num_seqs", 8))

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.llm.eos_token_ids[0] if self.llm.eos_token_ids else 0

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context: BOS if there is one."""
        bos = self.llm.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """The name of the tokenizer, for caches of requests."""
        return self.llm.model.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_options: Any
    ) -> list[int]:
        """Return the tokens of a text."""
        if not string:
            return []
        tokens, bos = self.llm.encode(string), self.llm.bos_token_id
        rest = tokens
        while bos is not None and rest[:1] == [bos]:
            rest = rest[1:]
        adds_bos = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if adds_bos is None:
            adds_bos = len(rest) < len(tokens)
        return [bos, *rest] if adds_bos and bos is not None else rest

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation up to the beginning of an answer."""
        if not add_generation_prompt:
            raise ValueError("forerun cannot continue an answer that has begun")
        return self.llm.render_chat(chat_history)

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood of whole texts, each token given as many tokens before it as the model sees."""
        totals = []
        for request in requests:
            (text,) = request.args
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [make_disjoint_window(window) for window in windows]
            scores = self._loglikelihood_tokens([(("", ""), *pair) for pair in pairs])
            totals.append(sum(score for score, _ in scores))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
        return totals

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **_options: Any,
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of continuations, and whether greedy decoding would write them."""

        def score(request: tuple[tuple[str, str], list[int], list[int]]) -> tuple[float, bool]:
            texts, context, continuation = request
            # The last token is only predicted.
            whole = (context + continuation)[-(self.max_length + 1) :]
            start = max(len(whole) - len(continuation), 1)
            tokens = self.llm.score(whole[:start], whole[start:], top=1)
            chosen = [next(iter(entries.values())) for entries in tokens]
            result = (sum(one.logprob for one in chosen), all(one.rank == 1 for one in chosen))
            if texts != ("", ""):
                self.cache_hook.add_partial("loglikelihood", texts, result)
            return result

        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(score, requests))

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return answers up to a stop string."""
        prompts: list[list[int]] = []
        params: list[SamplingParams] = []
        for request in requests:
            context, options = request.args
            own = self._sampling_params(dict(options))
            limit = min(own.max_tokens or self.max_gen_toks, self.max_length - 1)
            params.append(own.replace(max_tokens=limit))
            tokens = self.tok_encode(context) or [self.prefix_token_id]
            prompts.append(tokens[-(self.max_length - limit) :])
        texts = [output.text for output in self.llm.generate(prompts, params)]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _sampling_params(self, options: dict[str, Any]) -> SamplingParams:
        until = options.pop("until", None) or []
        limits = [options.pop(name, None) for name in _LIMITS]
        limit = next((one for one in limits if one is not None), self.max_gen_toks)
        temperature = float(options.pop("temperature", 0.0) or 0.0)
        if options.pop("do_sample", temperature > 0.0) is False:
            temperature = 0.0
        sampling = {name: options.pop(name) for name in _SAMPLING if name in options}
        if options:
            raise ValueError(f"forerun does not know the generation options {sorted(options)}")
        stop = [until] if isinstance(until, str) else [text for text in until if text]
        return SamplingParams(temperature=temperature, max_tokens=int(limit), stop=stop, **sampling)


def main() -> None:
    """Run lm-eval's command with the model ``forerun``."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
