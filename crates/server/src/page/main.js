// The page: settings, messages, and the answers to them.

import { properties, RequestError, streamAnswer } from "./api.js";
import { Answer } from "./answer.js";
import { announce, element, hideTooltip, methodTitle, Turn } from "./conversation.js";
import { showAcceptance, showSpeeds } from "./measurements.js";
import { showDevices, showRounds, showRoundTable } from "./timeline.js";

const part = (id) => document.getElementById(id);

/** The fewest tokens whose speed is a measurement. */
const MEASURABLE_TOKENS = 8;
/** How often measurements are shown while an answer arrives, in milliseconds. */
const REFRESH = 120;
const MAX_TOKENS = 256;
const LARGEST_SEED = 2 ** 31;

/** The fields of a request, and the inputs that they come from. */
const PARAMETERS = {
  temperature: "temperature",
  top_p: "top-p",
  top_k: "top-k",
  min_p: "min-p",
  repetition_penalty: "repetition-penalty",
  max_completion_tokens: "max-tokens",
};

let server = null;
let key = "";
let messages = [];
/** The last message, and the messages before it. */
let asked = null;
let plainSpeed = null;
/** The request that was answered last, and its answer. */
let lastRequest = null;
let lastAnswer = null;
/** Stops the answers in progress. */
let stopper = null;

async function connect() {
  for (;;) {
    try {
      const response = await fetch("health");
      if (response.ok) break;
      part("state").textContent = "The model is being loaded …";
    } catch {
      part("state").textContent = "The server does not answer. Trying again …";
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  await readProperties();
}

async function readProperties() {
  try {
    server = await properties(key);
  } catch (error) {
    if (error instanceof RequestError && error.status === 401) askForKey();
    else part("state").textContent = error.message;
    return;
  }
  part("key-form").hidden = true;
  part("state").textContent = "";
  part("model").textContent = server.model;
  document.title = `${server.model} – forerun`;
  showMethods();
  restoreDefaults();
  part("send").disabled = false;
  part("message").focus({ preventScroll: true });
}

function askForKey() {
  part("state").textContent = "";
  part("key-form").hidden = false;
  part("key-error").textContent = key ? "The server does not accept this key." : "";
  part("send").disabled = true;
  part("key").focus();
}

function showMethods() {
  const options = server.methods.map((method) => {
    const option = element("option", "", methodTitle(method.name));
    option.value = method.name;
    option.disabled = !method.available;
    return option;
  });
  part("method").replaceChildren(...options);
}

function restoreDefaults() {
  const plain = "autoregressive";
  part("method").value = server.method;
  const drafting = server.methods.find((method) => method.available && method.name !== plain);
  for (const node of document.querySelectorAll(".with-drafts")) node.hidden = !drafting;
  for (const node of document.querySelectorAll(".without-drafts")) node.hidden = Boolean(drafting);
  for (const [field, id] of Object.entries(PARAMETERS)) {
    part(id).value = server.default_sampling[field] ?? "";
  }
  part("max-tokens").value = Math.min(MAX_TOKENS, Math.floor(server.context_length / 2));
  part("seed").value = "";
  part("system").value = "";
  showMethodHelp();
}

function showMethodHelp() {
  const method = server.methods.find(({ name }) => name === part("method").value);
  const unavailable = server.methods.filter(({ available }) => !available);
  const lines = [method?.help ?? ""];
  if (unavailable.length > 0) {
    const names = unavailable.map(({ name }) => methodTitle(name)).join(", ");
    lines.push(`Not available: ${names} (${unavailable[0].reason}).`);
  }
  part("method-help").textContent = lines.join(" ");
  part("order-field").hidden = !part("side-by-side").checked;
}

function requestBody(history) {
  const body = {
    stream: true,
    truncation: "auto",
    stream_options: { include_usage: true },
    model: server.model,
    token_details: true,
    logprobs: true,
    top_logprobs: 3,
    seed: part("seed").value === "" ? Math.floor(Math.random() * LARGEST_SEED) : Number(part("seed").value),
  };
  for (const [field, id] of Object.entries(PARAMETERS)) {
    if (part(id).value !== "") body[field] = Number(part(id).value);
  }
  const system = part("system").value.trim();
  body.messages = system ? [{ role: "system", content: system }, ...history] : history;
  return body;
}

function withMethod(body, method) {
  return { ...body, speculation: method === "autoregressive" ? "off" : { method } };
}

/** The methods of the next message, plain decoding first. */
function chosenMethods() {
  const plain = "autoregressive";
  const chosen = part("method").value;
  if (!part("side-by-side").checked) return [chosen];
  const drafting = server.methods.find(({ available, name }) => available && name !== plain);
  return [plain, chosen === plain ? drafting.name : chosen];
}

/** Reads an answer. `onTokens` gets its tokens as they arrive. */
async function receive(body, answer, signal, onTokens) {
  answer.startedAt = performance.now();
  for await (const chunk of streamAnswer(withMethod(body, answer.method), key, signal)) {
    onTokens(answer.add(chunk));
  }
}

/** Keeps the speed of a plain answer that shared the devices with no other answer of this page. */
function keepPlainSpeed(answer) {
  if (answer.isPlain && answer.measured && answer.tokens.length >= MEASURABLE_TOKENS) plainSpeed = answer.speed;
}

async function send(message) {
  if (!server || stopper || message.trim() === "") return;
  part("introduction").hidden = true;
  part("message").value = "";
  const history = [...messages, { role: "user", content: message }];
  asked = { message, before: messages };
  const body = requestBody(history);
  lastRequest = body;
  const answers = chosenMethods().map((method) => new Answer(method));
  const turn = new Turn(message, answers);
  part("turns").append(turn.node);
  turn.node.scrollIntoView({ block: "end" });
  hideTooltip();
  setBusy(new AbortController());
  const timer = setInterval(() => showProgress(answers), REFRESH);
  const run = (answer, index) => runAnswer(body, answer, turn.views[index]);
  if (part("order").value === "in-turn") {
    for (const [index, answer] of answers.entries()) await run(answer, index);
  } else {
    await Promise.all(answers.map(run));
  }
  if (answers.length === 1 || part("order").value === "in-turn") answers.forEach(keepPlainSpeed);
  clearInterval(timer);
  setBusy(null);
  const kept = answers.at(-1);
  if (kept.text !== "") messages = [...history, { role: "assistant", content: kept.text }];
  showEnd(answers, turn);
}

/** Answers the last message again. */
function retry() {
  if (stopper || !asked) return;
  messages = asked.before;
  part("turns").lastElementChild.remove();
  send(asked.message);
}

async function runAnswer(body, answer, view) {
  try {
    await receive(body, answer, stopper.signal, (tokens) => view.add(tokens));
    view.finish();
  } catch (error) {
    if (error.name === "AbortError") view.finish();
    else view.fail(error.message);
    if (error.status === 401) askForKey();
  }
}

function showProgress(answers) {
  const started = answers.filter((answer) => answer.tokens.length > 0);
  const latest = started.at(-1) ?? answers.at(-1);
  showSpeeds(latest, plainSpeedBeside(answers));
  showAcceptance(latest);
  showRounds(started.length > 0 ? started : answers);
}

/** The speed of the plain answer beside the shown one, or else that of an earlier one. */
function plainSpeedBeside(answers) {
  const plain = answers.length > 1 ? answers[0] : null;
  return plain && plain.tokens.length >= MEASURABLE_TOKENS ? plain.speed : plainSpeed;
}

function showEnd(answers, turn) {
  const latest = answers.at(-1);
  lastAnswer = latest;
  showSpeeds(latest, plainSpeedBeside(answers));
  showAcceptance(latest);
  showDevices(answers);
  showRoundTable(latest);
  part("measure-plain").disabled = false;
  const complete = answers.every((answer) => answer.measured);
  if (answers.length > 1 && complete) turn.verdict.textContent = comparison(answers);
  if (turn.views.at(-1).isFollowed) turn.verdict.scrollIntoView({ block: "nearest" });
  const verdict = turn.verdict.textContent;
  announce(complete ? `Answer: ${latest.text} ${verdict}` : "The answer has ended.");
}

function comparison([plain, drafted]) {
  const ratio = drafted.speed / plain.speed;
  const equal = plain.text === drafted.text
    ? "The texts are equal."
    : "The texts differ. With rejection sampling only their distribution is the same.";
  const order = part("order").value === "in-turn" ? "" : " Both shared the devices.";
  return `${equal} ${methodTitle(drafted.method)} was ${ratio.toFixed(2)} times as fast as plain decoding.${order}`;
}

/** Answers the last message once more without drafts, for its speed. */
async function measurePlain() {
  if (!lastRequest || stopper) return;
  setBusy(new AbortController());
  part("speed-note").textContent = "Plain decoding is being measured …";
  const answer = new Answer("autoregressive");
  try {
    await receive(lastRequest, answer, stopper.signal, () => {
      part("plain-speed").textContent = answer.speed.toFixed(1);
    });
    keepPlainSpeed(answer);
    announce(`Plain decoding: ${answer.speed.toFixed(1)} tokens per second.`);
  } catch (error) {
    announce(error.message);
  }
  setBusy(null);
  showSpeeds(lastAnswer, plainSpeed);
}

function setBusy(controller) {
  stopper = controller;
  const busy = controller !== null;
  const hadFocus = [part("send"), part("stop")].includes(document.activeElement);
  part("send").hidden = busy;
  part("stop").hidden = !busy;
  part("measure-plain").disabled = busy || !lastRequest;
  part("new-chat").disabled = busy;
  if (hadFocus) (busy ? part("stop") : part("message")).focus({ preventScroll: true });
}

function startNewChat() {
  [messages, asked] = [[], null];
  part("turns").replaceChildren();
  part("introduction").hidden = false;
  part("message").focus();
}

part("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(part("message").value);
});
part("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send(part("message").value);
});
part("examples").addEventListener("click", ({ target }) => {
  if (target.matches("button")) send(target.textContent);
});
part("turns").addEventListener("click", ({ target }) => {
  if (target.matches(".retry")) retry();
});
part("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = part("key").value.trim();
  readProperties();
});
part("settings").addEventListener("submit", (event) => event.preventDefault());
part("method").addEventListener("change", showMethodHelp);
part("side-by-side").addEventListener("change", showMethodHelp);
part("defaults").addEventListener("click", restoreDefaults);
part("stop").addEventListener("click", () => stopper?.abort());
part("measure-plain").addEventListener("click", measurePlain);
part("new-chat").addEventListener("click", startNewChat);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTooltip();
});
document.addEventListener("scroll", () => {
  // The arrow keys scroll to a token, and show its tooltip.
  if (!document.activeElement.matches(".tokens")) hideTooltip();
}, { passive: true });

part("send").disabled = true;
connect();
