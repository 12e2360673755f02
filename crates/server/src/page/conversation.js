// The messages and answers, and what a token's tooltip says.

import { blocksOf } from "./markdown.js";

/** How long tokens wait to be shown together, in milliseconds. */
const REFRESH = 60;

const ORIGINS = {
  draft: "Accepted draft",
  correction: "Correction",
  bonus: "Bonus token",
  plain: "Plain",
};

const tooltip = document.getElementById("tooltip");
const announcement = document.getElementById("announcement");

export function announce(text) {
  announcement.textContent = text;
}

export function element(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function percent(share) {
  const value = share * 100;
  return `${value >= 9.95 || value === 0 ? value.toFixed(0) : value.toPrecision(2)} %`;
}

function quoted(text) {
  return `“${text.replaceAll("\n", "↵")}”`;
}

/** Shows lines of text next to a part of the page. */
export function showTooltip(beside, lines) {
  tooltip.replaceChildren(...lines.map((line, index) => element("p", index === 0 ? "first" : "", line)));
  tooltip.hidden = false;
  const area = beside.getClientRects()[0] ?? beside.getBoundingClientRect();
  const { width, height } = tooltip.getBoundingClientRect();
  const left = Math.min(Math.max(8, area.left), document.documentElement.clientWidth - width - 8);
  const above = area.top - height - 6;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${above >= 8 ? above : area.bottom + 6}px`;
}

export function hideTooltip() {
  tooltip.hidden = true;
}

/** The lines about a token. The last one lists what else was probable. */
function describe(token, answer) {
  const lines = [`${quoted(token.text)}: ${ORIGINS[token.origin] ?? "text"}`];
  if (token.round === undefined) return lines;
  const probability = token.logprob === undefined ? "" : `Probability ${percent(Math.exp(token.logprob))}, round `;
  lines.push(`${probability || "Round "}${token.round + 1}`);
  const rejected = answer.measured?.rounds?.[token.round]?.rejected ?? [];
  if (token.origin === "correction" && rejected.length > 0) {
    lines.push(`The draft was ${rejected.map(quoted).join(" or ")}`);
  }
  const others = token.alternatives.filter((other) => other.token !== token.text).slice(0, 2);
  if (others.length > 0) {
    lines.push(`Else ${others.map((other) => `${quoted(other.token)} ${percent(Math.exp(other.logprob))}`).join(", ")}`);
  }
  return lines;
}

/** A button that copies what `text` returns when it is pressed. */
function copyButton(text) {
  const button = element("button", "copy", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    return await navigator.clipboard.writeText(text);
  } catch {
    // Only pages from this machine or over TLS have a clipboard.
  }
  const field = element("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

/**
 * An answer's Markdown, made of its tokens, which are reached by pointer, touch and arrow keys. A
 * token that is cut by a marker has several nodes, and one of markers alone has none.
 */
class AnswerView {
  constructor(answer, title) {
    this.answer = answer;
    /** The token that is pointed at. */
    this.current = null;
    /** The text of all tokens, also of the reasoning, and where each token starts in it. */
    this.text = "";
    this.starts = [];
    /** The blocks that are shown: where each starts, and its node. */
    this.blocks = [];
    this.node = element("div", "answer");
    if (title) this.node.append(element("h3", "", title));
    this.body = element("div", "tokens");
    this.body.tabIndex = 0;
    this.body.setAttribute("role", "group");
    this.body.setAttribute("aria-label", `${title ?? "Answer"}. The arrow keys move from token to token.`);
    this.body.setAttribute("aria-busy", "true");
    this.footer = element("p", "footer");
    this.actions = element("div", "actions");
    this.actions.append(copyButton(() => answer.text));
    this.actions.hidden = true;
    this.node.append(this.body, this.footer, this.actions);
    // Unlike pointerover, it does not come when new text appears under a pointer at rest.
    this.body.addEventListener("pointermove", (event) => this.#point(event));
    this.body.addEventListener("click", (event) => this.#point(event));
    this.body.addEventListener("pointerleave", () => this.#leave());
    this.body.addEventListener("blur", () => this.#leave());
    this.body.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Whether nobody has scrolled up from the end of the answer, so that the view follows it. */
  get isFollowed() {
    return this.footer.getBoundingClientRect().bottom < window.innerHeight;
  }

  add(tokens) {
    for (const token of tokens) {
      this.starts.push(this.text.length);
      this.text += token.text;
    }
    this.timer ??= setTimeout(() => this.#show(this.blocks.at(-1)?.start ?? 0), REFRESH);
  }

  /** Shows the text from the start of a block on. */
  #show(from) {
    clearTimeout(this.timer);
    this.timer = undefined;
    const follows = this.isFollowed;
    while (this.blocks.length > 0 && this.blocks.at(-1).start >= from) this.blocks.pop().node.remove();
    for (const block of blocksOf(this.text, from)) {
      const node = this.#build(block);
      this.body.append(node);
      this.blocks.push({ start: block.start, node });
    }
    this.#mark(this.current);
    if (follows) this.footer.scrollIntoView({ block: "nearest" });
  }

  /** Builds the node of a part that has a tag. */
  #build({ tag, parts, first }) {
    const node = element(tag);
    if (first > 1) node.start = first;
    for (const part of parts) {
      node.append(...(Array.isArray(part) ? this.#tokens(...part) : [this.#build(part)]));
    }
    if (tag !== "pre") return node;
    const box = element("div", "code");
    box.append(copyButton(() => node.textContent), node);
    return box;
  }

  /** The nodes of the tokens in a range of the text. */
  #tokens(start, end) {
    const nodes = [];
    let index = this.starts.findLastIndex((at) => at <= start);
    for (; index < this.starts.length && this.starts[index] < end; index += 1) {
      const token = this.answer.tokens[index];
      const at = this.starts[index];
      const text = token.text.slice(Math.max(start - at, 0), end - at);
      if (text === "") continue;
      const node = element("span", `token ${token.origin ?? ""}`, text);
      node.forerunToken = token;
      nodes.push(node);
    }
    return nodes;
  }

  #end() {
    this.#show(0);
    this.body.setAttribute("aria-busy", "false");
    this.actions.hidden = false;
  }

  finish() {
    this.#end();
    const { answer } = this;
    if (!answer.measured) {
      this.footer.textContent = "Stopped.";
      return;
    }
    const { tokens_per_second: speed, total_ms: total, mean_accepted_tokens: mat, failures } = answer.measured;
    const parts = [
      `${answer.usage?.completion_tokens ?? answer.tokens.length} tokens in ${(total / 1000).toFixed(2)} s`,
      `${speed.toFixed(1)} tokens/s`,
    ];
    if (!answer.isPlain) parts.push(`MAT ${mat.toFixed(2)}`);
    if (answer.finishReason === "length") parts.push("ended by a limit");
    if (answer.leftOut > 0) parts.push(`the oldest ${answer.leftOut} messages left out`);
    this.footer.textContent = [...parts, ...failures].join(" · ");
  }

  fail(message) {
    this.#end();
    const error = element("p", "error", message);
    error.setAttribute("role", "alert");
    this.node.append(error);
  }

  /** All nodes of tokens. */
  get #nodes() {
    return [...this.body.querySelectorAll(".token")];
  }

  #point({ target }) {
    const token = target.forerunToken;
    if (token && (token !== this.current || tooltip.hidden)) this.#select(target);
  }

  #leave() {
    this.#mark(null);
    hideTooltip();
  }

  #key(event) {
    const nodes = this.#nodes;
    const isCurrent = (node) => node.forerunToken === this.current;
    const next = {
      ArrowRight: nodes.findLastIndex(isCurrent) + 1,
      ArrowLeft: nodes.findIndex(isCurrent) - 1,
      Home: 0,
      End: nodes.length - 1,
    }[event.key];
    if (event.key === "Escape") this.#leave();
    if (next === undefined || nodes.length === 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const node = nodes[Math.min(Math.max(next, 0), nodes.length - 1)];
    node.scrollIntoView({ block: "nearest" });
    announce(this.#select(node).join(". "));
  }

  #select(node) {
    this.#mark(node.forerunToken);
    const lines = describe(node.forerunToken, this.answer);
    showTooltip(node, lines);
    return lines;
  }

  /** Marks a token and the others of its round. */
  #mark(token) {
    if (token === this.current && token === null) return;
    this.current = token;
    for (const node of this.#nodes) {
      const { forerunToken: other } = node;
      node.classList.toggle("chosen", other === token);
      node.classList.toggle("same-round", token?.round !== undefined && other.round === token.round);
    }
  }
}

/** A message and the answers to it. */
export class Turn {
  constructor(message, answers) {
    this.node = element("article", "turn");
    this.node.setAttribute("aria-label", "Message and answer");
    this.node.append(element("p", "message", message));
    const both = answers.length > 1;
    this.views = answers.map((answer) => {
      const title = both ? (answer.isPlain ? "Plain" : methodTitle(answer.method)) : undefined;
      return new AnswerView(answer, title);
    });
    const row = element("div", both ? "answers both" : "answers");
    row.append(...this.views.map((view) => view.node));
    const retry = element("button", "retry", "Retry");
    retry.type = "button";
    this.views.at(-1).actions.append(retry);
    this.verdict = element("p", "verdict");
    this.node.append(row, this.verdict);
  }
}

export function methodTitle(name) {
  const titles = { autoregressive: "Plain", speculative: "Speculative", pearl: "PEARL", dsi: "DSI", ssd: "SSD" };
  return titles[name] ?? name;
}
