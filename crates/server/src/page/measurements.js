// Speed and acceptance of the latest answer.

import { element, percent } from "./conversation.js";

const part = (id) => document.getElementById(id);
const tokensPerSecond = (speed) => (speed > 0 ? speed.toFixed(1) : "–");

/** Shows the speed of an answer and that of plain decoding, or null if it is unknown. */
export function showSpeeds(answer, plainSpeed) {
  const speed = answer?.speed ?? 0;
  const largest = Math.max(speed, plainSpeed ?? 0, 1e-9);
  part("now-label").textContent = answer?.measured ? "Last answer" : "Now";
  part("now-speed").textContent = tokensPerSecond(speed);
  part("plain-speed").textContent = tokensPerSecond(plainSpeed ?? 0);
  part("now-bar").style.width = `${(speed / largest) * 100}%`;
  part("plain-bar").style.width = `${((plainSpeed ?? 0) / largest) * 100}%`;
  part("speed-note").textContent = speedNote(answer, speed, plainSpeed);
}

function speedNote(answer, speed, plainSpeed) {
  if (!answer || answer.isPlain || speed === 0) return "Tokens per second.";
  if (!plainSpeed) return "Tokens per second. Plain decoding has not been measured yet.";
  return `Tokens per second: ${(speed / plainSpeed).toFixed(2)} times plain decoding.`;
}

export function showAcceptance(answer) {
  const { positions } = answer;
  const accepted = positions.reduce((sum, position) => sum + position.accepted, 0);
  const tested = positions.reduce((sum, position) => sum + position.tested, 0);
  part("mat").textContent = answer.roundCount > 0 ? answer.meanAcceptedTokens.toFixed(2) : "–";
  part("accepted").textContent = tested > 0 ? percent(accepted / tested) : "–";
  part("round-count").textContent = answer.roundCount > 0 ? answer.roundCount : "–";
  part("no-positions").hidden = positions.length > 0;
  part("no-positions").textContent = answer.isPlain
    ? "Plain decoding drafts nothing."
    : "Nothing has been drafted. Drafting pauses when it does not pay.";
  part("positions").replaceChildren(...positions.map(positionRow));
}

function positionRow({ accepted, tested }, index) {
  const row = element("li");
  const bar = element("span", "bar");
  const fill = element("span", "fill draft");
  fill.style.width = `${(accepted / tested) * 100}%`;
  bar.append(fill);
  row.append(
    element("span", "position", index + 1),
    bar,
    element("span", "share", percent(accepted / tested)),
    element("span", "count", `${accepted} of ${tested}`),
  );
  return row;
}
