// The Markdown of answers, as parts of the text: blocks and spans without their markers.
//
// A part is a range of the text, [start, end], or an object with a tag and further parts. Links and
// HTML are text like any other.

const BLANK = /^\s*$/;
const FENCE = /^ *(`{3,}|~{3,})[^`]*$/;
const HEADING = /^ {0,3}(#{1,6}) +(?=\S)/;
const RULE = /^ {0,3}([-*_]) *(\1 *){2,}$/;
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)]) +(?=\S)/;

/** Spans between equal markers. A name is the tag, perhaps with a number. */
const SPAN = new RegExp([
  "(?<!`)(?<ticks>`+)(?!`)(?<code>[^]{0,4000}?[^`])\\k<ticks>(?!`)",
  "(?<!\\\\)\\*\\*(?=\\S)(?<strong>[^]{0,4000}?\\S)\\*\\*(?!\\*)",
  "(?<![\\\\\\w])__(?=\\S)(?<strong_2>[^]{0,4000}?\\S)__(?!\\w)",
  "(?<![\\\\*])\\*(?=[^\\s*])(?<em>[^]{0,4000}?[^\\s*])\\*(?!\\*)",
  "(?<![\\\\\\w])_(?=[^\\s_])(?<em_2>[^]{0,4000}?[^\\s_])_(?!\\w)",
].join("|"), "g");

/** The blocks of a text from a place on. Each knows where it starts. */
export function blocksOf(text, from = 0) {
  const lines = [];
  for (let start = from; start <= text.length;) {
    const at = text.indexOf("\n", start);
    lines.push([start, at < 0 ? text.length : at]);
    start = lines.at(-1)[1] + 1;
  }
  return blocks(text, lines);
}

/** The blocks of lines, which are ranges without line breaks. */
function blocks(text, lines) {
  const found = [];
  const line = (index) => text.slice(...lines[index]);
  for (let index = 0; index < lines.length;) {
    const first = line(index);
    const [start, end] = lines[index];
    const fence = FENCE.exec(first)?.[1];
    const heading = HEADING.exec(first);
    let next = index + 1;
    if (fence) {
      while (next < lines.length && !isFenceEnd(line(next), fence)) next += 1;
      const indent = indentOf(first);
      const code = lines.slice(index + 1, next).map((range) => unindented(text, range, indent));
      found.push({ tag: "pre", start, parts: rangesOf(code) });
      next += 1;
    } else if (heading) {
      // The page has headings of its own.
      const tag = `h${Math.min(heading[1].length + 2, 6)}`;
      found.push({ tag, start, parts: spans(text, [[start + heading[0].length, end]]) });
    } else if (RULE.test(first)) {
      found.push({ tag: "hr", start, parts: [] });
    } else if (ITEM.test(first)) {
      const list = listOf(text, lines.slice(index));
      found.push({ ...list.block, start });
      next = index + list.count;
    } else if (!BLANK.test(first)) {
      while (next < lines.length && !begins(line(next))) next += 1;
      found.push({ tag: "p", start, parts: spans(text, lines.slice(index, next)) });
    }
    index = next;
  }
  return found;
}

/** The list that lines begin with, and the number of its lines. */
function listOf(text, lines) {
  const line = (index) => text.slice(...lines[index]);
  const number = ITEM.exec(line(0))[2];
  const block = { tag: number === undefined ? "ul" : "ol", first: Number(number ?? 1), parts: [] };
  const textFrom = (index) => {
    while (index < lines.length && BLANK.test(line(index))) index += 1;
    return index;
  };
  let count = 0;
  for (let index = 0; index < lines.length; index = textFrom(count)) {
    const marker = ITEM.exec(line(index));
    if (!marker || (marker[2] === undefined) !== (number === undefined)) break;
    const [indent, width] = [marker[1].length, marker[0].length];
    const own = [[lines[index][0] + width, lines[index][1]]];
    // What is indented belongs to the item, and so does a paragraph that goes on.
    for (count = index + 1; count < lines.length; count += 1) {
      const next = textFrom(count);
      if (next === lines.length) break;
      const goesOn = next === count && !begins(line(next));
      if (indentOf(line(next)) <= indent && !goesOn) break;
      own.push(unindented(text, lines[count], width));
    }
    block.parts.push({ tag: "li", parts: blocks(text, own) });
  }
  return { block, count };
}

/** Whether a line begins a block, or is between blocks. */
function begins(line) {
  return [BLANK, FENCE, HEADING, RULE, ITEM].some((pattern) => pattern.test(line));
}

function isFenceEnd(line, fence) {
  const marks = line.trim();
  return marks.length >= fence.length && marks === fence[0].repeat(marks.length);
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function unindented(text, [start, end], most) {
  return [start + Math.min(indentOf(text.slice(start, end)), most), end];
}

/** Lines with the line breaks between them. */
function rangesOf(lines) {
  return lines.map(([start, end], index) => [start, index < lines.length - 1 ? end + 1 : end]);
}

/** The spans of a paragraph. */
function spans(text, lines) {
  const ranges = rangesOf(lines);
  return spansIn(ranges.map((range) => text.slice(...range)).join(""), 0, ranges);
}

/** The spans of a text whose first character has the number `offset` in the ranges. */
function spansIn(text, offset, ranges) {
  const parts = [];
  let done = 0;
  for (const match of text.matchAll(SPAN)) {
    const { ticks, ...inner } = match.groups;
    const [name, content] = Object.entries(inner).find(([, value]) => value !== undefined);
    const start = match.index + (match[0].length - content.length) / 2;
    parts.push(...cut(ranges, offset + done, offset + match.index));
    const tag = name.split("_")[0];
    parts.push({
      tag,
      parts: tag === "code"
        ? cut(ranges, offset + start, offset + start + content.length)
        : spansIn(content, offset + start, ranges),
    });
    done = match.index + match[0].length;
  }
  return [...parts, ...cut(ranges, offset + done, offset + text.length)];
}

/** The ranges of the characters from one number to another. */
function cut(ranges, from, to) {
  const parts = [];
  let before = 0;
  for (const [start, end] of ranges) {
    const [first, last] = [Math.max(from - before, 0), Math.min(to - before, end - start)];
    if (first < last) parts.push([start + first, start + last]);
    before += end - start;
  }
  return parts;
}
