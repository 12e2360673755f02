"""Hugging Face transformers as a peer of `forerun bench run` (crates/bench/src/peers.rs documents the protocol).

Usage: transformers_peer.py TARGET [--drafter DRAFTER] [--dtype float32|bfloat16] [--threads N]

`generate` of transformers does all decoding: plain, assisted (draft-model) and prompt-lookup. Decoding is
greedy, with a fixed number of draft tokens. Models stay loaded. Every answer starts with empty caches.
"""

import argparse
import json
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class CommitTimes(BaseStreamer):
    """Records when tokens are generated. `generate` first passes the prompt, then each step's tokens."""

    def __init__(self):
        self.started = time.perf_counter_ns()
        self.commits = []
        self.has_prompt = False

    def put(self, value):
        if not self.has_prompt:
            self.has_prompt = True
            return
        self.commits.append((time.perf_counter_ns() - self.started, value.numel()))

    def end(self):
        pass


def load(path, dtype):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    model.eval()
    return model


def peak_memory_bytes():
    """Return the process's peak memory since the last call, or None if the system does not report it."""
    try:
        with open("/proc/self/status") as status:
            lines = [line for line in status if line.startswith("VmHWM:")]
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
        return int(lines[0].split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return None


def commits_of(streamed, count):
    """Return the commits of the first `count` tokens. The last step may have generated more tokens."""
    commits, left = [], count
    for at_ns, tokens in streamed:
        tokens = min(tokens, left)
        if tokens > 0:
            commits.append((at_ns, tokens))
        left -= tokens
    return commits


class Peer:
    def __init__(self, arguments):
        torch.set_num_threads(arguments.threads)
        torch.set_grad_enabled(False)
        dtype = getattr(torch, arguments.dtype)
        self.target = load(arguments.target, dtype)
        self.drafter = load(arguments.drafter, dtype) if arguments.drafter else None
        self.eos = self.target.generation_config.eos_token_id
        for model in filter(None, [self.target, self.drafter]):
            # Without a pad token, transformers prints a warning for every answer.
            model.generation_config.pad_token_id = 0

    def hello(self, arguments):
        return {
            "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "threads": torch.get_num_threads(),
            "weights": arguments.dtype,
        }

    def options(self, request):
        kind, count = request["drafter"], request["draft_tokens"]
        if kind == "none":
            return {}
        if kind == "prompt-lookup":
            return {"prompt_lookup_num_tokens": count, "max_matching_ngram_size": 3}
        if kind != "model":
            raise ValueError(f"unknown drafter {kind!r}: use none, model or prompt-lookup")
        if self.drafter is None:
            raise ValueError("there is no draft model: give one with --drafter")
        # The assistant's settings: a constant number of tokens, independent of its confidence.
        config = self.drafter.generation_config
        config.num_assistant_tokens = count
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        return {"assistant_model": self.drafter}

    def answer(self, request):
        prompt, options = request["prompt"], self.options(request)
        eos = None if request["ignore_eos"] else self.eos
        for model in filter(None, [self.target, self.drafter]):
            model.generation_config.eos_token_id = eos
        ids = torch.tensor([prompt])
        peak_memory_bytes()
        times = CommitTimes()
        output = self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=request["max_tokens"],
            streamer=times,
            **options,
        )
        total_ns = time.perf_counter_ns() - times.started
        tokens = output[0, len(prompt) :].tolist()
        commits = commits_of(times.commits, len(tokens))
        rounds = []
        if request["drafter"] == "model":
            # A step commits its accepted tokens and one more. transformers does not report how many
            # tokens it drafted; near the end there are fewer than requested.
            left = len(tokens)
            for _, count in commits:
                drafted = min(request["draft_tokens"], left - 1)
                rounds.append((max(drafted, count - 1), count - 1))
                left -= count
        return {
            "tokens": tokens,
            "total_ns": total_ns,
            "commits": commits,
            "rounds": rounds,
            "peak_memory_bytes": peak_memory_bytes(),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--drafter")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # Standard output is reserved for the protocol.
    out, sys.stdout = sys.stdout, sys.stderr
    peer = Peer(arguments)
    print(json.dumps(peer.hello(arguments)), file=out, flush=True)
    for line in sys.stdin:
        try:
            reply = peer.answer(json.loads(line))
        except Exception as error:  # All errors are reported to the other side.
            reply = {"tokens": [], "total_ns": 0, "commits": [], "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
