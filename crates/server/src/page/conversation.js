// The messages and answers, and what a token's tooltip says.

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

/** The text of an answer, token by token. Its tokens are reached by pointer, touch and arrow keys. */
class AnswerView {
  constructor(answer, title) {
    this.answer = answer;
    this.current = -1;
    this.node = element("div", "answer");
    if (title) this.node.append(element("h3", "", title));
    this.body = element("div", "tokens");
    this.body.tabIndex = 0;
    this.body.setAttribute("role", "group");
    this.body.setAttribute("aria-label", `${title ?? "Answer"}. The arrow keys move from token to token.`);
    this.body.setAttribute("aria-busy", "true");
    this.footer = element("p", "footer");
    this.node.append(this.body, this.footer);
    // Unlike pointerover, it does not come when new text appears under a pointer at rest.
    this.body.addEventListener("pointermove", (event) => this.#point(event));
    this.body.addEventListener("click", (event) => this.#point(event));
    this.body.addEventListener("pointerleave", () => this.#leave());
    this.body.addEventListener("blur", () => this.#leave());
    this.body.addEventListener("keydown", (event) => this.#key(event));
  }

  add(tokens) {
    for (const token of tokens) {
      if (token.text === "") continue;
      const node = element("span", `token ${token.origin ?? ""}`, token.text);
      node.forerunToken = token;
      this.body.append(node);
    }
  }

  finish() {
    this.body.setAttribute("aria-busy", "false");
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
    this.footer.textContent = [...parts, ...failures].join(" · ");
  }

  fail(message) {
    this.body.setAttribute("aria-busy", "false");
    const error = element("p", "error", message);
    error.setAttribute("role", "alert");
    this.node.append(error);
  }

  #point({ target }) {
    const index = [...this.body.children].indexOf(target);
    if (index >= 0 && (index !== this.current || tooltip.hidden)) this.#select(index);
  }

  #leave() {
    this.#mark(-1);
    hideTooltip();
  }

  #key(event) {
    const last = this.body.children.length - 1;
    const next = { ArrowRight: this.current + 1, ArrowLeft: this.current - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#leave();
    if (next === undefined || last < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const index = Math.min(Math.max(next, 0), last);
    const node = this.body.children[index];
    node.scrollIntoView({ block: "nearest" });
    announce(this.#select(index).join(". "));
  }

  #select(index) {
    this.#mark(index);
    const node = this.body.children[index];
    const lines = describe(node.forerunToken, this.answer);
    showTooltip(node, lines);
    return lines;
  }

  /** Marks a token and the others of its round. */
  #mark(index) {
    this.current = index;
    const chosen = this.body.children[index];
    const round = chosen?.forerunToken.round;
    for (const node of this.body.children) {
      node.classList.toggle("chosen", node === chosen);
      node.classList.toggle("same-round", round !== undefined && node.forerunToken.round === round);
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
    this.verdict = element("p", "verdict");
    this.node.append(row, this.verdict);
  }
}

export function methodTitle(name) {
  const titles = { autoregressive: "Plain", speculative: "Speculative", pearl: "PEARL", dsi: "DSI", ssd: "SSD" };
  return titles[name] ?? name;
}
