// Elements that several views share. Data becomes text nodes only; no markup is ever parsed.

/** Makes an element; properties that begin with "on" are listeners, others are set; texts among the children are made visible. */
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  node.append(...shown.map((child) => (child instanceof Node ? child : visible(String(child)))));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Shows what has no glyph: control characters as their pictures, overrides of direction and lone surrogates as �. */
function visible(text) {
  return text
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\u007f/g, "␡")
    .replace(/[\u202d\u202e]/g, "\ufffd")
    .replace(/\p{Surrogate}/gu, "\ufffd");
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const plain = Number.isInteger(value) || (size >= 1e-3 && size < 1e5);
  return (plain ? String(Number(value.toPrecision(size < 1e4 ? digits : 9))) : value.toExponential(1)).replace("-", "−");
}

const signed = (value) => (value > 0 ? "+" : "") + number(value);
const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const sideOf = (value) => (value > 0 ? "up" : value < 0 ? "down" : "none");

/** A text of an episode in its language; each line takes its direction from its own letters. */
function words(text, language, properties = {}) {
  return el("div", { className: "text", dir: "auto", lang: language, ...properties }, text);
}

const SHADES = [0.1, 0.5, 1, 2, 4]; // nats; a token of less is not shaded

/** The policy's text, a span for each token that wrote something; `data-token` finds what the tip shows. */
function tokenSpans(turn) {
  const text = visible(turn.text);
  let start = 0;
  return turn.lengths.map((length, place) => {
    const end = start + length;
    const shade = SHADES.filter((least) => -turn.scores[place] > least).length;
    const span = length ? el("span", { className: `s${shade}`, dataset: { token: place } }, text.slice(start, end)) : "";
    start = end;
    return span;
  });
}

function policyTurn(turn, episode, options) {
  const body = words(options.tokens && turn.lengths ? tokenSpans(turn) : turn.text, episode.language);
  return el("div", { className: "piece policy" }, el("div", { className: "who" }, "policy"), body);
}

/** A text of the environment: folded to its first line unless it is short. */
function foldedPiece(name, piece, episode, options) {
  const text = piece.text.trim();
  const lines = text.split("\n").length;
  const size = piece.count ? `${piece.count} tokens` : `${text.length} characters`;
  if (lines === 1 && text.length < 120) {
    return el("div", { className: `piece ${name}` }, el("div", { className: "who" }, name), words(text, episode.language));
  }
  const preview = text.replace(/^<[^>]{1,40}>\s*|<\/[^>]{1,40}>$/g, "").replace(/\s+/g, " ").slice(0, 160);
  const summary = el(
    "summary",
    {},
    el("span", { className: "who" }, name, el("small", {}, ` ${lines > 1 ? `${lines} lines, ` : ""}${size}`)),
    el("span", { className: "preview", dir: "auto", lang: episode.language }, preview),
  );
  return el("details", { className: `piece ${name}`, open: options.unfold }, summary, words(text, episode.language));
}

/** Prompt and turns of an episode, in the order in which they stood in the context. */
function transcript(episode, options) {
  const pieces = [foldedPiece("prompt", episode.prompt, episode, options)];
  for (const turn of episode.turns) {
    pieces.push(turn.by === "policy" ? policyTurn(turn, episode, options) : foldedPiece("environment", turn, episode, options));
  }
  const all = [episode.prompt, ...episode.turns];
  pieces.forEach((node, place) => Object.assign(node, { turn: place - 1, piece: all[place], episode }));
  return el("div", { className: "transcript" }, pieces);
}

/** What the tip says of a token, or of a whole piece where it has no tokens of its own. */
function tipRows(node, token) {
  const { piece, episode, turn } = node;
  const mine = piece.by === "policy";
  const rows = [["written by", mine ? "the policy" : turn < 0 ? "the environment (prompt)" : "the environment"]];
  if (token !== undefined) {
    const place = Number(token);
    const score = piece.scores[place];
    rows.push(["log-probability", number(score)], ["probability", score === null ? "–" : number(Math.exp(score))]);
    rows.push(["token", `${piece.ids[place]}, ${place + 1} of ${piece.ids.length}`]);
  } else if (piece.count) rows.push(["tokens", piece.count]);
  rows.push(["mask", mine ? "1" : "0, never learned from"]);
  if (mine) rows.push(["policy version", episode.version]);
  rows.push(["turn", turn < 0 ? "prompt" : turn]);
  return rows;
}

/** A bar on an axis through zero. */
function bar(value, most) {
  const share = most ? Math.min(1, Math.abs(value ?? 0) / most) : 0;
  const fill = el("i", { className: sideOf(value) });
  fill.style.width = `${50 * share}%`;
  fill.style.left = `${value < 0 ? 50 - 50 * share : 50}%`;
  return el("span", { className: "bar" }, fill);
}

/** What an episode waited for, as a time line; a hidden wait is part of the next one. */
function timeLine(waits) {
  if (!waits.length) return null;
  const first = Math.min(...waits.map((wait) => wait.start));
  const last = Math.max(...waits.map((wait) => wait.end));
  const line = el("div", { className: "timeline", role: "img" });
  const sums = {};
  for (const wait of waits) {
    const length = wait.end - wait.start;
    sums[wait.for] = (sums[wait.for] ?? 0) + length;
    const said = `${wait.for} for turn ${wait.turn}: ${number(length)} s, from ${number(wait.start)} s on`;
    const piece = el("i", { className: wait.for, title: said });
    piece.style.left = `${(100 * (wait.start - first)) / (last - first || 1)}%`;
    piece.style.width = `${(100 * length) / (last - first || 1)}%`;
    line.append(piece);
  }
  const said = Object.entries(sums).map(([name, sum]) => el("span", { className: `key ${name}` }, `${name} ${number(sum)} s`));
  line.setAttribute("aria-label", said.map((each) => each.textContent).join(", "));
  return el("div", { className: "times" }, line, el("p", {}, `${number(last - first)} s: `, ...said));
}

/** A point for each episode's reward, between the least and the largest of the part. */
function rewardPoints(group, least, most) {
  const points = group.episodes.filter((each) => total(each) !== null).map((each) => {
    const place = most > least ? (total(each) - least) / (most - least) : 0.5;
    return svg("circle", { cx: 4 + 72 * place, cy: 6, r: 3, class: sideOf(each.advantage) });
  });
  return svg("svg", { class: "points", width: 80, height: 12, "aria-hidden": true }, svg("path", { d: "M2 6H78" }), ...points);
}
