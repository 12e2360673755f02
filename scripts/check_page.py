"""Drives the page of `forerun serve` in headless Chromium, and saves screenshots.

Usage: check_page.py SERVER_BINARY AXE_JS SCREENSHOTS      (pip install playwright; npm pack axe-core)

The server runs the demonstration pair. `CHROMIUM` names the browser (default /usr/bin/chromium).
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

from playwright.sync_api import expect, sync_playwright

BINARY, AXE, SCREENSHOTS = sys.argv[1], pathlib.Path(sys.argv[2]).read_text(), pathlib.Path(sys.argv[3])
SCREENSHOTS.mkdir(parents=True, exist_ok=True)
SIZES = {1280: 860, 400: 800}
# Longer than any answer here takes on a busy machine.
PATIENCE = 120_000


@contextlib.contextmanager
def server(*options):
    """Runs a server, and returns its URL."""
    # By default, drafting pauses when it does not pay, which depends on how busy the machine is.
    command = [BINARY, "serve", "--port", "0", "--log-level", "warn", "--draft-tokens", "4", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"http://\S+", process.stdout.readline()).group()
    finally:
        process.terminate()
        process.wait(60)


class Visit:
    """A page, with what it asked for and complained about."""

    def __init__(self, browser, url, width=1280, scheme="light"):
        self.url = url
        self.context = browser.new_context(
            viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme, has_touch=width < 500
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.errors, self.requests, self.bodies = [], [], []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type != "log" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self.keep)
        self.page.goto(url)

    def keep(self, request):
        self.requests.append(request.url)
        if request.url.endswith("/chat/completions"):
            self.bodies.append(request.post_data_json)

    def ready(self):
        expect(self.page.locator("#send")).to_be_enabled(timeout=PATIENCE)

    def limit_speed(self, kilobytes_per_second):
        """Slows the connection down, so that an answer is still in progress when it is looked at."""
        throughput = kilobytes_per_second * 1000
        conditions = {"offline": False, "latency": 0, "downloadThroughput": throughput, "uploadThroughput": -1}
        self.context.new_cdp_session(self.page).send("Network.emulateNetworkConditions", conditions)

    def ask(self, message):
        self.page.fill("#message", message)
        self.page.press("#message", "Enter")
        self.wait_for_answer()

    def wait_for_answer(self):
        turn = self.page.locator(".turn").last
        expect(turn.locator(".footer").last).not_to_be_empty(timeout=PATIENCE)
        expect(self.page.locator("#send")).to_be_visible(timeout=PATIENCE)

    def text(self, selector):
        return self.page.locator(selector).text_content()

    def check_accessibility(self, where):
        self.page.evaluate("delete window.axe")
        # The policy of the page forbids scripts from elsewhere, but not those of the browser's own tools.
        self.page.evaluate(AXE)
        result = self.page.evaluate("axe.run(document)")
        wrong = [f for f in result["violations"] if f["impact"] in ("serious", "critical")]
        minor = [f["id"] for f in result["violations"] if f not in wrong]
        for finding in wrong:
            print(where, finding["id"], finding["impact"], [node["target"] for node in finding["nodes"]][:5])
        assert not wrong, where
        print(f"axe: {len(result['passes'])} rules passed {where}; lesser findings: {minor}")

    def check_width(self, where):
        wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{where}: the page is {wide} pixels too wide"

    def close(self):
        elsewhere = [url for url in self.requests if not url.startswith(self.url)]
        assert not elsewhere, elsewhere
        assert not self.errors, self.errors
        self.context.close()


def color(locator):
    return locator.evaluate("node => getComputedStyle(node).backgroundColor")


def check_answer(browser, url):
    visit = Visit(browser, url)
    page = visit.page
    visit.ready()
    page.click("#settings summary")
    page.fill("#temperature", "0.8")
    page.fill("#seed", "7")
    page.fill("#max-tokens", "160")
    visit.limit_speed(60)
    page.fill("#message", "Once upon a time")
    page.press("#message", "Enter")
    # It streams: there are tokens and rounds before the answer is complete.
    expect(page.locator(".tokens .token").nth(5)).to_be_visible(timeout=PATIENCE)
    expect(page.locator("#stop")).to_be_visible()
    expect(page.locator("#lanes .job").first).to_be_attached()
    assert "as they arrive" in visit.text("#timeline-note")
    visit.wait_for_answer()
    tokens = page.locator(".tokens .token")
    origins = ["draft", "correction", "bonus", "plain"]
    colors = {origin: color(page.locator(f".tokens .{origin}").first) for origin in origins[:3]}
    colors["legend"] = color(page.locator(".legend .plain"))
    assert len(set(colors.values())) == 4, colors
    drafted = page.locator(".tokens .draft").count()
    print(f"answer: {tokens.count()} tokens, {drafted} of them drafted; {visit.text('.footer')}")
    # The server's device trace replaces the rounds.
    assert "What each device did" in visit.text("#timeline-note")
    names = page.locator(".lane-name").all_text_contents()
    assert any("target" in name for name in names), names
    assert page.locator("#lanes .job.score").count() > 0 and page.locator("#lanes .job.draft").count() > 0
    assert float(visit.text("#mat")) > 1
    assert page.locator("#positions li").count() > 0
    # A token says its probability and round.
    page.locator(".tokens .correction").first.hover()
    said = visit.text("#tooltip")
    assert re.search(r"Correction.*Probability [\d.]+ %, round \d+.*The draft was", said), said
    # Drafts take little time.
    for _ in range(4):
        page.click("#zoom-in")
    page.locator("#lanes .job.draft").nth(2).hover()
    assert re.search(r"Draft: .*ms", visit.text("#tooltip")), visit.text("#tooltip")
    page.click("#rounds summary")
    rows = page.locator("#rounds-table tbody tr").count()
    assert rows == int(visit.text("#round-count")), (rows, visit.text("#round-count"))
    # Plain decoding is measured on request.
    page.click("#measure-plain")
    expect(page.locator("#speed-note")).to_contain_text("times plain decoding", timeout=PATIENCE)
    assert visit.bodies[-1]["speculation"] == "off" and visit.bodies[-1]["seed"] == 7
    print("timeline:", names, "|", visit.text("#speed-note"))
    visit.close()


def check_switches(browser, url):
    visit = Visit(browser, url)
    page = visit.page
    visit.ready()
    page.click("#settings summary")
    page.fill("#max-tokens", "24")
    methods = page.locator("#method option:not([disabled])").evaluate_all("all => all.map(one => one.value)")
    assert methods == ["autoregressive", "speculative", "pearl", "dsi", "ssd", "auto"], methods
    for method in methods:
        page.click("#new-chat")
        page.select_option("#method", method)
        visit.ask("The old man")
        body = visit.bodies[-1]
        assert body["speculation"] == ("off" if method == "autoregressive" else {"method": method}), body
        assert body["max_completion_tokens"] == 24 and len(body["messages"]) == 1
        if method == "autoregressive":
            assert page.locator(".tokens .token:not(.plain)").count() == 0
    page.fill("#system", "Be brief.")
    page.fill("#top-p", "0.5")
    visit.ask("And then?")
    body = visit.bodies[-1]
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"], body
    assert body["top_p"] == 0.5
    # An answer that is stopped stays.
    page.click("#new-chat")
    page.fill("#max-tokens", "400")
    visit.limit_speed(60)
    page.fill("#message", "Once")
    page.press("#message", "Enter")
    expect(page.locator(".tokens .token").nth(3)).to_be_visible(timeout=PATIENCE)
    page.click("#stop")
    expect(page.locator(".footer").last).to_have_text("Stopped.", timeout=PATIENCE)
    # Texts of the model and the user are never markup.
    page.fill("#max-tokens", "4")
    visit.ask("<img src=x onerror=alert(1)>")
    assert page.locator(".turn img").count() == 0
    visit.close()
    print("switches: all methods, parameters and Stop")


def check_markdown(browser, url):
    """An answer with everything that is rendered, whose tokens are cut anywhere."""
    text = (
        "Some **bold _and italic_** text, `a*b*` and <b>none</b> [link](x).\n\n## Steps\n\n"
        "1. One\n   * nested\n2. Two\n\n```js\nlet a = '**';\n\n  b();\n```\n---\nThe end"
    )
    pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
    tokens = [{"id": 1, "text": piece, "origin": "plain", "round": at} for at, piece in enumerate(pieces)]
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": token["text"]}, "forerun": {"tokens": [token]}}]}
        for token in tokens
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    visit = Visit(browser, url)
    page = visit.page
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    visit.ready()
    visit.ask("Show it")
    blocks = page.locator(".tokens > *").evaluate_all("all => all.map((node) => node.tagName)")
    assert blocks == ["P", "H4", "OL", "DIV", "HR", "P"], blocks
    for selector, expected in [
        ("strong", "bold and italic"), ("em", "and italic"), ("p > code", "a*b*"), ("li li", "nested"),
        ("ol > li:last-child", "Two"), ("pre", "let a = '**';\n\n  b();"),
    ]:
        shown = page.locator(f".tokens {selector}").all_text_contents()
        assert shown == [expected], (selector, shown)
    assert "<b>none</b> [link](x)." in visit.text(".tokens > p:first-child")
    assert page.locator(".tokens :is(b, a)").count() == 0
    for button, copied in [(".code .copy", "let a = '**';\n\n  b();"), (".actions .copy", text)]:
        page.click(button)
        expect(page.locator(button)).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == copied
    # The last answer can be had again, in its place.
    visit.ask("Again")
    assert page.locator(".retry").count() == 2 and page.locator(".retry:visible").count() == 1
    page.click(".retry:visible")
    visit.wait_for_answer()
    assert page.locator(".turn").count() == 2
    assert [len(body["messages"]) for body in visit.bodies] == [1, 3, 3]
    assert visit.bodies[-1]["messages"] == visit.bodies[-2]["messages"]
    visit.check_accessibility("with Markdown")
    page.screenshot(path=SCREENSHOTS / "markdown.png")
    visit.close()
    print("markdown: blocks, spans, copies and another try")


def check_side_by_side(browser, url):
    visit = Visit(browser, url)
    page = visit.page
    visit.ready()
    page.click("#settings summary")
    page.fill("#max-tokens", "120")
    page.get_by_label("Side by side").check()
    for order in ["together", "in-turn"]:
        page.click("#new-chat")
        page.select_option("#order", order)
        visit.ask("Once upon a time")
        plain, drafted = visit.bodies[-2:]
        assert (plain["speculation"], drafted["speculation"]) == ("off", {"method": "speculative"})
        assert plain["seed"] == drafted["seed"]
        texts = page.locator(".tokens").all_text_contents()
        assert texts[0] == texts[1] and texts[0], texts
        verdict = visit.text(".verdict")
        assert "The texts are equal." in verdict and re.search(r"[\d.]+ times as fast", verdict), verdict
        names = page.locator(".lane-name").all_text_contents()
        assert any(name.startswith("Plain") for name in names) and len(names) >= 2, names
        print("side by side:", order, "|", verdict)
    visit.close()


def check_keyboard(browser, url):
    visit = Visit(browser, url)
    page = visit.page
    visit.ready()

    def focused():
        return page.evaluate("document.activeElement.id || document.activeElement.className")

    # The page begins in the message field.
    assert focused() == "message", focused()
    page.keyboard.type("Once upon a time")
    page.keyboard.press("Enter")
    visit.wait_for_answer()
    assert focused() == "message", focused()
    for part in ["retry", "copy", "tokens"]:
        page.keyboard.press("Shift+Tab")
        assert focused() == part, focused()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    announced = visit.text("#announcement")
    assert "round" in announced and page.locator(".token.chosen").count() == 1, announced
    expect(page.locator("#tooltip")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#tooltip")).to_be_hidden()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(focused())
        if focused() == "method":
            page.keyboard.press("End")
            page.keyboard.press("ArrowUp")
        if focused() == "side-by-side":
            page.keyboard.press("Space")
            page.keyboard.press("Space")
    assert page.locator("#method").input_value() == "ssd", page.locator("#method").input_value()
    for part in ["message", "send", "method", "side-by-side", "measure-plain", "lanes", "zoom-in", "new-chat"]:
        assert part in reached, (part, reached)
    # The first stop is a link past the header.
    page.evaluate("document.activeElement.blur()")
    visit.close()
    print("keyboard: message, answer, tokens and settings without a pointer")


def check_key(browser):
    with server("--api-key", "secret") as url:
        visit = Visit(browser, url)
        page = visit.page
        expect(page.locator("#key-form")).to_be_visible(timeout=PATIENCE)
        visit.check_accessibility("with the form for a key")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-error")).not_to_be_empty(timeout=PATIENCE)
        page.fill("#key", "secret")
        page.keyboard.press("Enter")
        visit.ready()
        page.click("#settings summary")
        page.fill("#max-tokens", "8")
        visit.ask("Once")
        # Browsers report the refused requests themselves.
        assert all("401" in error for error in visit.errors), visit.errors
        visit.errors.clear()
        visit.close()
    print("key: asked for, refused, accepted")


def take_screenshots(browser, url):
    for width in SIZES:
        for scheme in ["light", "dark"]:
            name = f"{width}-{scheme}"
            visit = Visit(browser, url, width, scheme)
            page = visit.page
            visit.ready()

            def shoot(part):
                visit.check_width(f"{name} {part}")
                page.screenshot(path=SCREENSHOTS / f"{name}-{part}.png")

            shoot("start")
            visit.check_accessibility(f"at the start, {name}")
            page.click("#settings summary")
            page.fill("#seed", "3")
            page.fill("#max-tokens", "200")
            page.fill("#temperature", "0.7")
            shoot("parameters")
            page.click("#settings summary")
            visit.limit_speed(60)
            page.fill("#message", "The old man looked at the sea")
            page.press("#message", "Enter")
            expect(page.locator(".tokens .token").nth(90)).to_be_visible(timeout=PATIENCE)
            shoot("streaming")
            visit.wait_for_answer()
            token = page.locator(".tokens .correction").nth(3)
            # Scrolling hides the tooltip.
            token.scroll_into_view_if_needed()
            page.wait_for_timeout(200)
            token.tap() if width < 500 else token.hover()
            shoot("answer")
            page.click("#rounds summary")
            visit.check_accessibility(f"after an answer, {name}")
            page.click("#rounds summary")
            page.get_by_label("Side by side").check()
            page.select_option("#order", "in-turn")
            page.click("#new-chat")
            visit.ask("Once upon a time")
            expect(page.locator(".verdict")).to_be_in_viewport()
            page.mouse.move(5, 5)
            shoot("side-by-side")
            page.screenshot(path=SCREENSHOTS / f"{name}-whole.png", full_page=True)
            visit.check_accessibility(f"side by side, {name}")
            visit.close()


with sync_playwright() as playwright, server() as url:
    executable = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
    check_answer(browser, url)
    check_switches(browser, url)
    check_markdown(browser, url)
    check_side_by_side(browser, url)
    check_keyboard(browser, url)
    check_key(browser)
    take_screenshots(browser, url)
    browser.close()
    print(f"the page works; its screenshots are in {SCREENSHOTS}")
