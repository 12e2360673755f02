"""Threads, event loops, cancellation, signals and memory."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import PROMPT
from forerun import LLM, FinishedEvent, ForerunError, SamplingParams, TextEvent, TokenEvent

PROMPTS = [PROMPT, "The fox", "A girl named Lily", "One day", "Tom and his dog", "In the garden"]
SHORT = SamplingParams(temperature=0.7, seed=5, max_tokens=12)
#: Long enough that it does not end before it is stopped.
LONG = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


def test_threads_get_the_texts_of_one_thread(llm: LLM) -> None:
    expected = [output.text for output in llm.generate(PROMPTS, SHORT)]

    def work(number: int) -> bool:
        index = number % len(PROMPTS)
        if number % 3 == 0:
            return "".join(llm.stream(PROMPTS[index], SHORT).texts()) == expected[index]
        return llm.generate(PROMPTS[index], SHORT)[0].text == expected[index]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(200)))


def test_event_loops_get_the_texts_of_one_thread(llm: LLM) -> None:
    expected = [output.text for output in llm.generate(PROMPTS, SHORT)]

    async def stream(index: int) -> str:
        text = ""
        async for event in llm.astream(PROMPTS[index], SHORT):
            if isinstance(event, TextEvent):
                text += event.text
        return text

    async def generate(index: int) -> str:
        [output] = await llm.agenerate(PROMPTS[index], SHORT)
        return output.text

    async def hammer() -> list[str]:
        works = [
            stream(number % len(PROMPTS)) if number % 2 else generate(number % len(PROMPTS))
            for number in range(200)
        ]
        return await asyncio.gather(*works)

    texts = asyncio.run(hammer())
    assert texts == [expected[number % len(PROMPTS)] for number in range(200)]


def test_the_event_loop_goes_on_while_the_engine_computes(llm: LLM) -> None:
    async def count() -> tuple[int, bool]:
        ticks = 0
        answer = asyncio.ensure_future(llm.agenerate(PROMPT, LONG.replace(max_tokens=200)))
        while not answer.done():
            await asyncio.sleep(0)
            ticks += 1
        return ticks, len(answer.result()[0].outputs[0].token_ids) == 200

    ticks, is_whole = asyncio.run(count())
    assert is_whole and ticks > 10


def test_other_threads_run_while_the_engine_computes(llm: LLM) -> None:
    answer = threading.Thread(target=lambda: llm.generate(PROMPT, LONG.replace(max_tokens=200)))
    answer.start()
    counted = 0
    while answer.is_alive():
        counted += 1
    assert counted > 100


def test_streams_can_be_cancelled(llm: LLM) -> None:
    reasons = set()
    for _ in range(20):
        stream = llm.stream(PROMPT, LONG)
        assert isinstance(next(stream), TokenEvent)
        stream.cancel()
        *_, last = stream
        assert isinstance(last, FinishedEvent)
        reasons.add(last.output.outputs[0].finish_reason)
    # The answer runs ahead, and may have ended before.
    assert "abort" in reasons and reasons <= {"abort", "length"}
    # Answers that nobody wants free their places.
    for _ in range(20):
        next(llm.stream(PROMPT, LONG))
    assert llm.generate(PROMPT, SHORT)[0].outputs[0].finish_reason == "length"


def test_tasks_can_be_cancelled(llm: LLM) -> None:
    async def cancel() -> None:
        for _ in range(10):
            task = asyncio.ensure_future(llm.agenerate([PROMPT] * 12, LONG))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async for _event in llm.astream(PROMPT, LONG):
                break
        [output] = await llm.agenerate(PROMPT, SHORT)
        assert output.outputs[0].finish_reason == "length"

    asyncio.run(cancel())


def test_closing_ends_answers_in_other_threads() -> None:
    for _ in range(3):
        llm = LLM(max_num_seqs=2)
        results: list[str] = []

        def work(llm: LLM = llm, results: list[str] = results) -> None:
            try:
                results.append(str(llm.generate(PROMPT, LONG)[0].outputs[0].finish_reason))
            except ForerunError as error:
                results.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        llm.close()
        for thread in threads:
            thread.join()
        assert len(results) == 6 and all(
            one in ("abort", "length") or "closed" in one for one in results
        )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(
    "work",
    [
        "llm.generate('Once', params)",
        "llm.generate(['Once'] * 30, params)",
        "list(llm.stream('Once', params))",
        "asyncio.run(llm.agenerate('Once', params))",
    ],
)
def test_ctrl_c_stops_the_computation(work: str) -> None:
    # A job in the background ignores Ctrl-C, and so do the processes that it starts.
    script = f"""
import asyncio, forerun, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
llm = forerun.LLM()
params = forerun.SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
try:
    print("ready", flush=True)
    while True:
        {work}
except KeyboardInterrupt:
    assert llm.generate("Once")[0].text
    print("stopped", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_ctrl_c_stops_an_answer_whose_tokens_come_without_a_pause(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = LONG.replace(max_tokens=400)
    tokens = llm.encode(PROMPT)
    events = 0

    def on_event() -> None:
        nonlocal events
        events += 1
        # Between events there is less time than a thread waits before it looks for signals.
        time.sleep(0.005)
        if events == 3:
            os.kill(os.getpid(), signal.SIGINT)

    def start(*_arguments: object) -> Any:
        return llm._engine.start(tokens, params, on_event, True)

    monkeypatch.setattr(llm, "_start", start)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPT, params)
    finally:
        signal.signal(signal.SIGINT, before)
    assert 3 <= events < 400


def test_python_ends_while_answers_run() -> None:
    script = """
import asyncio, threading, forerun
llm = forerun.LLM()
params = forerun.SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
streams = [llm.stream("Once", params) for _ in range(12)]
next(streams[0])
async def leave():
    asyncio.ensure_future(llm.agenerate("Once", params))
    await asyncio.sleep(0.01)
asyncio.run(leave())
threading.Thread(target=lambda: llm.generate("Once", params), daemon=True).start()
print("end")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def resident_kib() -> int:
    """Return the memory of this process that is in use."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not say")
def test_a_thousand_answers_need_no_more_memory(llm: LLM) -> None:
    def answers(count: int) -> None:
        for number in range(count):
            llm.generate(PROMPTS[number % len(PROMPTS)], SamplingParams(max_tokens=4, seed=number))

    answers(200)
    gc.collect()
    before = resident_kib()
    answers(1000)
    gc.collect()
    grown = resident_kib() - before
    assert grown < 4096, f"{grown} KiB more"
