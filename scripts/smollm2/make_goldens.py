#!/usr/bin/env python3
"""Makes the golden greedy tokens of SmolLM2 with Hugging Face transformers.

transformers dequantises the GGUF file and computes in float32, on one thread. For each prompt, the output has 200 greedy
tokens, and the steps at which the two largest logits are nearly equal. The packages are those of
scripts/goldens/requirements.txt, and accelerate.

usage: make_goldens.py MODEL.gguf OUT.json
"""

import importlib.util
import json
import pathlib
import sys

import torch
import transformers
from tokenizers import pre_tokenizers

GOLDENS = pathlib.Path(__file__).parent.parent / "goldens/make_goldens.py"
specification = importlib.util.spec_from_file_location("make_goldens_of_checkpoints", GOLDENS)
goldens = importlib.util.module_from_spec(specification)
specification.loader.exec_module(goldens)

# User messages, put into the chat template.
MESSAGES = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain in simple words why the sky is blue.",
    "Write a Python function that reverses a list without using slices.",
    "A train travels 120 km in 1.5 hours. What is its average speed? Show your work.",
    "Give me three tips for sleeping better.",
    "Translate into French: The weather is nice today, so let us go to the beach.",
    "Summarize the story of Cinderella in three sentences.",
    "List the planets of the solar system in order, as a numbered list.",
    "Write an email to my landlord about a broken window.",
    "Who are you?",
    "What is 17 * 23?",
    "Continue this story: \"The old clock had not moved for years. Then, one night, it struck thirteen.\"",
    "Was ist der Unterschied zwischen einem Hund und einer Katze?",
]
# Texts to continue without a template.
TEXTS = [
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived",
    "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n",
    "The three laws of thermodynamics are:\n\n1.",
    "{\"name\": \"Alice\", \"age\": 30, \"languages\": [",
    " ".join(f"On day {day}, the gardener planted {day * 3 % 7 + 1} roses." for day in range(1, 41)) + " Altogether,",
]


def record(model, prompt_ids, prompt):
    """Returns the golden record of one prompt."""
    generated_ids, logits = goldens.greedy(model, prompt_ids)
    largest = torch.topk(logits, 2, dim=-1)
    margins = largest.values[:, 0] - largest.values[:, 1]
    near_ties = [
        {"step": step, "runner_up_id": int(largest.indices[step, 1]), "margin": goldens.significant(margin)}
        for step, margin in enumerate(margins)
        if margin < goldens.NEAR_TIE
    ]
    top = torch.topk(logits[0], goldens.FIRST_STEP_TOP)
    return {
        **prompt,
        "prompt_ids": prompt_ids,
        "generated_ids": generated_ids,
        "min_margin": goldens.significant(margins.min()),
        "near_ties": near_ties,
        "first_step_top_ids": top.indices.tolist(),
        "first_step_top_logits": [goldens.significant(value) for value in top.values],
    }


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    path, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    # The model's own tokenizer first splits numbers into digits. transformers ignores the rule's name in GGUF files.
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompts = []
    for message in MESSAGES:
        messages = [{"role": "user", "content": message}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        prompts.append((ids, {"message": message}))
    prompts += [(tokenizer.encode(text), {"text": text}) for text in TEXTS]
    records = []
    for ids, prompt in prompts:
        records.append(record(model, ids, prompt))
        print(f"{prompt}: smallest margin {records[-1]['min_margin']}, {len(records[-1]['near_ties'])} near ties", flush=True)
    header = {
        "checkpoint": path.name,
        "peer": "transformers",
        "peer_version": transformers.__version__,
        "torch_version": torch.__version__.split("+")[0],
        "script": "scripts/smollm2/make_goldens.py",
        "weights_sha256": goldens.sha256_of_file(path),
        "dtype": "float32, from the dequantised weights",
        "decoding": "greedy, no stop at end-of-text tokens",
        "new_tokens": goldens.NEW_TOKENS,
        "near_tie_margin": goldens.NEAR_TIE,
    }
    out.write_text(goldens.to_json({"header": header, "prompts": records, "encodings": []}))


if __name__ == "__main__":
    main()
