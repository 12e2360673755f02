// What happened when: rounds while an answer arrives, and the jobs of the devices once it is complete.

import { element, hideTooltip, methodTitle, showTooltip } from "./conversation.js";

const lanes = document.getElementById("lanes");
const note = document.getElementById("timeline-note");
const zoomIn = document.getElementById("zoom-in");
const zoomOut = document.getElementById("zoom-out");

/** The time that a timeline shows while answers arrive, in milliseconds. */
const LIVE_WINDOW = 20_000;
/** The mean width of a job at first, in pixels. */
const JOB_WIDTH = 4;
const MOST_ZOOM = 256;
const MARKS = 6;
/** The width of a mark with its text, in pixels. */
const MARK_WIDTH = 44;

let zoom = 1;
let shown = { rows: [], start: 0, end: 1 };

zoomIn.addEventListener("click", () => changeZoom(2));
zoomOut.addEventListener("click", () => changeZoom(0.5));
lanes.addEventListener("pointerover", ({ target }) => {
  if (target.forerunJob) showTooltip(target, target.forerunJob);
});
lanes.addEventListener("pointerleave", hideTooltip);
lanes.addEventListener("scroll", hideTooltip);

/** Shows the rounds of answers in progress. */
export function showRounds(answers) {
  const now = performance.now();
  const start = Math.max(Math.min(...answers.map((answer) => answer.startedAt)), now - LIVE_WINDOW);
  const rows = answers.map((answer) => {
    let from = answer.startedAt;
    const jobs = answer.committedRounds.map((round, index) => {
      const job = {
        start: from,
        end: round.at,
        kind: "score",
        outcome: round.rejected ? "rejected" : "accepted",
        lines: [`Round ${index + 1}`, `${round.committed} tokens, ${round.accepted} of them drafted`],
      };
      from = round.at;
      return job;
    });
    return { name: `${methodTitle(answer.method)}: rounds`, jobs: jobs.filter((job) => job.end > start) };
  });
  note.textContent = "Rounds as they arrive. What each device did follows at the end of the answer.";
  zoom = 1;
  draw({ rows, start, end: Math.max(now, start + 500) });
}

/** Shows the jobs of complete answers, from the same start if they did not run at the same time. */
export function showDevices(answers) {
  const complete = answers.filter((answer) => answer.measured?.timeline);
  if (complete.length === 0) {
    note.textContent = "Rounds as they arrived. Nothing is known about the devices.";
    return;
  }
  const starts = complete.map((answer) => Math.min(...answer.measured.timeline.spans.map((span) => span.start_ns)));
  const ends = complete.map((answer) => Math.max(...answer.measured.timeline.spans.map((span) => span.end_ns)));
  const together = Math.max(...starts) < Math.min(...ends);
  const origins = together ? starts.map(() => Math.min(...starts)) : starts;
  const rows = complete.flatMap((answer, index) => {
    const { lanes: names, spans: own } = answer.measured.timeline;
    const prefix = complete.length > 1 ? `${methodTitle(answer.method)}: ` : "";
    const rowsOfAnswer = names.map((name, lane) => ({
      name: prefix + name,
      jobs: own.filter((span) => span.lane === lane).map((span) => jobOf(span, origins[index])),
    }));
    return rowsOfAnswer.filter((row) => complete.length === 1 || row.jobs.length > 0);
  });
  note.textContent = "What each device did.";
  const fitting = lanes.clientWidth / JOB_WIDTH;
  const most = Math.max(...rows.map((row) => row.jobs.length));
  zoom = Math.min(MOST_ZOOM, 2 ** Math.max(0, Math.ceil(Math.log2(most / fitting))));
  draw({ rows, start: 0, end: Math.max(...ends.map((end, index) => end - origins[index])) / 1e6 });
  lanes.scrollLeft = 0;
}

function jobOf(span, origin) {
  const [start, end] = [(span.start_ns - origin) / 1e6, (span.end_ns - origin) / 1e6];
  // A pass over one row verifies nothing.
  const isPlain = span.kind !== "draft" && span.rows === 1;
  const name = span.kind === "draft" ? "Draft" : isPlain ? "Pass" : "Verify";
  const verdict = {
    accepted: `${span.accepted} accepted`,
    rejected: `${span.accepted} accepted, then one rejected`,
    wasted: "cancelled",
    open: "no verdict",
  }[span.outcome];
  const rows = `${span.rows} ${span.kind === "draft" ? "token" : "row"}${span.rows === 1 ? "" : "s"}`;
  const lines = [`${name}: ${rows}${isPlain ? "" : `, ${verdict}`}`, `${(end - start).toFixed(2)} ms, after ${start.toFixed(1)} ms`];
  return { start, end, kind: span.kind, outcome: span.outcome, lines };
}

function changeZoom(factor) {
  const middle = (lanes.scrollLeft + lanes.clientWidth / 2) / lanes.scrollWidth;
  zoom = Math.min(MOST_ZOOM, Math.max(1, zoom * factor));
  draw(shown);
  lanes.scrollLeft = middle * lanes.scrollWidth - lanes.clientWidth / 2;
}

function draw({ rows, start, end }) {
  shown = { rows, start, end };
  const length = Math.max(end - start, 1e-6);
  const place = (node, from, to) => {
    node.style.left = `${((Math.max(from, start) - start) / length) * 100}%`;
    // A gap separates jobs that follow one another immediately.
    node.style.width = `max(1px, calc(${((to - Math.max(from, start)) / length) * 100}% - 0.5px))`;
    return node;
  };
  const track = element("div", "track");
  track.style.width = `${zoom * 100}%`;
  for (const { name, jobs } of rows) {
    const lane = element("div", "lane");
    lane.append(
      ...jobs.map((job) => {
        const node = place(element("span", `job ${job.kind} ${job.outcome}`), job.start, job.end);
        node.forerunJob = job.lines;
        return node;
      }),
    );
    track.append(element("p", "lane-name", name), lane);
  }
  track.append(axis(length));
  lanes.replaceChildren(track);
  zoomIn.disabled = rows.length === 0 || zoom >= MOST_ZOOM;
  zoomOut.disabled = zoom <= 1;
}

function axis(length) {
  const scale = element("div", "axis");
  const wanted = length / zoom / MARKS;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= wanted);
  const inSeconds = length / zoom >= 2000;
  const digits = Math.max(0, -Math.floor(Math.log10(inSeconds ? step / 1000 : step) + 1e-9));
  const last = length * (1 - MARK_WIDTH / Math.max(lanes.clientWidth * zoom, 2 * MARK_WIDTH));
  for (let time = 0; time <= last; time += step) {
    const mark = element("span", "mark", `${(inSeconds ? time / 1000 : time).toFixed(digits)}${time === 0 ? (inSeconds ? " s" : " ms") : ""}`);
    mark.style.left = `${(time / length) * 100}%`;
    scale.append(mark);
  }
  return scale;
}

/** Fills the table of the rounds of an answer. */
export function showRoundTable(answer) {
  const place = document.getElementById("rounds-table");
  const rounds = answer.measured?.rounds ?? [];
  if (rounds.length === 0) {
    place.replaceChildren(element("p", "help", "There are no rounds yet."));
    return;
  }
  const table = element("table");
  const head = element("tr");
  for (const title of ["Round", "Time (ms)", "Tested", "Accepted", "Committed", "Rejected"]) {
    const cell = element("th", "", title);
    cell.scope = "col";
    head.append(cell);
  }
  const rows = rounds.map((round, index) => {
    const row = element("tr");
    const values = [index + 1, (round.at_ns / 1e6).toFixed(1), round.tested, round.accepted, round.committed];
    row.append(...values.map((value) => element("td", "", value)));
    row.append(element("td", "text", round.rejected.map((text) => JSON.stringify(text)).join(" ")));
    return row;
  });
  table.append(element("thead"), element("tbody"));
  table.tHead.append(head);
  table.tBodies[0].append(...rows);
  place.replaceChildren(table);
}
