"""Log-probabilities of given texts, and lm-eval."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import PROMPT
from forerun import LLM, SamplingParams


def test_scores_are_the_log_probabilities_of_answers(llm: LLM) -> None:
    params = SamplingParams(temperature=0.9, seed=4, max_tokens=50, logprobs=2, ignore_eos=True)
    [output] = llm.generate(PROMPT, params)
    answer = output.outputs[0]
    assert llm.score(output.prompt_token_ids, answer.token_ids, top=2) == answer.logprobs
    scores = llm.score("Once upon", " a time")
    assert sum(next(iter(one.values())).logprob for one in scores) < 0
    with pytest.raises(ValueError, match="prompt is empty"):
        llm.score("", "a")
    with pytest.raises(ValueError, match="context"):
        llm.score([1], [1] * (llm.max_model_len + 1))
    with pytest.raises(ValueError, match="vocabulary"):
        llm.score([1], [llm.vocab_size])
    with pytest.raises(ValueError, match="logprobs"):
        llm.score([1], [1], top=21)
    assert llm.score([1], []) == []


STORIES = [
    "Once upon a time, there was a little girl named Lily. She liked to play in the park.",
    "Tom had a red ball. He threw the ball to his dog.",
    "One day, a bird saw a big tree. The bird was happy and sang a song.",
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks on local data: a choice, perplexity and generation."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "stories.json").write_text(
        "\n".join(json.dumps({"text": text, "end": "dog"}) for text in STORIES)
    )
    data = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/stories.json}}}}
test_split: test
"""
    (folder / "choice.yaml").write_text(
        f"task: story_choice\noutput_type: multiple_choice{data}"
        "doc_to_text: 'Once upon a time there was a little'\n"
        "doc_to_choice: [' girl', ' xylophone']\ndoc_to_target: 0\nmetric_list: [{metric: acc}]\n"
    )
    (folder / "perplexity.yaml").write_text(
        f"task: story_perplexity\noutput_type: loglikelihood_rolling{data}"
        "doc_to_text: ''\ndoc_to_target: '{{text}}'\nmetric_list: [{metric: word_perplexity}]\n"
    )
    (folder / "generation.yaml").write_text(
        f"task: story_generation\noutput_type: generate_until{data}"
        "doc_to_text: 'Once upon a time'\ndoc_to_target: '{{end}}'\n"
        "generation_kwargs: {until: ['.'], max_gen_toks: 40, do_sample: false}\n"
        "metric_list: [{metric: exact_match}]\n"
    )
    return folder


def test_lm_eval_runs_tasks(llm: LLM, tasks: Path) -> None:
    lm_eval = pytest.importorskip("lm_eval")
    from forerun.lm_eval import ForerunLM
    from lm_eval.api.registry import get_model
    from lm_eval.tasks import TaskManager

    assert get_model("forerun") is ForerunLM
    model = ForerunLM(llm)
    names = ["story_choice", "story_perplexity", "story_generation"]
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    results: dict[str, Any] = lm_eval.simple_evaluate(
        model, tasks=names, task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    scores = results["results"]
    assert scores["story_choice"]["acc,none"] == 1.0
    # A model of stories predicts stories: far better than chance, and it is not certain.
    assert 2 < scores["story_perplexity"]["word_perplexity,none"] < 200
    answers = [sample["resps"][0][0] for sample in results["samples"]["story_generation"]]
    expected = llm.generate(
        "Once upon a time", SamplingParams(temperature=0, stop=["."], max_tokens=40)
    )[0].text
    assert answers == [expected] * 3


def test_lm_evals_log_likelihoods(llm: LLM) -> None:
    pytest.importorskip("lm_eval")
    from forerun.lm_eval import ForerunLM
    from lm_eval.api.instance import Instance

    model = ForerunLM(llm, max_length=32)

    def instance(kind: Any, *arguments: Any) -> Instance:
        return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)

    [greedy] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=8))
    [(total, is_greedy)] = model.loglikelihood([instance("loglikelihood", PROMPT, greedy.text)])
    scores = llm.score(PROMPT, greedy.text)
    assert is_greedy and total == pytest.approx(
        sum(next(iter(one.values())).logprob for one in scores)
    )
    [(unlikely, is_greedy)] = model.loglikelihood([instance("loglikelihood", PROMPT, " xylophone")])
    assert not is_greedy and unlikely < total

    # Windows cover a text that is longer than the context; each token is predicted once.
    text = " ".join(STORIES)
    [rolling] = model.loglikelihood_rolling([instance("loglikelihood_rolling", text)])
    [whole] = ForerunLM(llm).loglikelihood_rolling([instance("loglikelihood_rolling", text)])
    tokens = model.tok_encode(text, add_special_tokens=False)
    scores = llm.score([model.prefix_token_id], tokens)
    assert len(tokens) > 32 and whole == pytest.approx(
        sum(next(iter(one.values())).logprob for one in scores)
    )
    # Less context changes little of a simple text.
    assert rolling == pytest.approx(whole, rel=0.2) and rolling != whole

    requests = [
        instance("generate_until", PROMPT, {"until": ["."], "max_gen_toks": 10, "temperature": 0})
    ]
    assert len(model.generate_until(requests)) == 1
    with pytest.raises(ValueError, match="magic"):
        model.generate_until([instance("generate_until", PROMPT, {"magic": 1})])
    assert "fox" in model.apply_chat_template([{"role": "user", "content": "a fox"}])


def test_without_lm_eval(tmp_path: Path) -> None:
    # A package that cannot be imported, in place of lm-eval.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['lm_eval'] = None\n")
    line = [sys.executable, "-m", "forerun.lm_eval", "run"]
    ended = subprocess.run(line, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    assert ended.returncode == 1
    assert ended.stderr.strip() == 'lm-eval is not installed: pip install "forerun[lm-eval]"'
