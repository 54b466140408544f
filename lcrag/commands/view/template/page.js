// State, controls and keys. Every change goes through `show`.

const byId = (id) => document.getElementById(id);
const state = {
  part: null,
  episode: null,
  right: null,
  view: "overview",
  filters: { language: "", outcome: "", reward: "", query: "" },
  order: "position",
  tokens: true,
  unfold: false,
};
let groups = [];

/** Changes the state and redraws what depends on it. */
function show(changes) {
  const before = { ...state };
  Object.assign(state, changes);
  if (changes.episode && changes.episode.part !== state.part) state.part = changes.episode.part;
  if (state.part !== before.part) {
    fillPart();
    const same = state.episode && state.part.questions.includes(state.episode.key) && askedTheSame(state.part, state.episode)[0];
    if (!changes.episode) state.episode = same || null;
  }
  if (state.part !== before.part || changes.filters || changes.order) drawList();
  draw();
  markCurrent();
  history.replaceState(null, "", `#${new URLSearchParams(address())}`);
}

function address() {
  const { part, episode, view } = state;
  const place = episode ? load(part).episodes.indexOf(episode) : -1;
  return { part: part.id, view, ...(place < 0 ? {} : { episode: place }), ...(state.tokens ? {} : { tokens: 0 }), ...(state.unfold ? { unfold: 1 } : {}) };
}

function drawList() {
  groups = chosenGroups(state.part, state.filters, state.order);
  const scores = load(state.part).episodes.map(total).filter((value) => value !== null);
  const [least, most] = [Math.min(...scores), Math.max(...scores)];
  const shown = groups.flatMap((group) => group.episodes.filter((each) => passes(each, state.filters)));
  if (!shown.includes(state.episode)) state.episode = shown[0] ?? null;
  byId("groups").replaceChildren(...groups.map((group) => listed(group, least, most)));
  const all = load(state.part);
  const some = shown.length < all.episodes.length ? `${shown.length} of ` : "";
  const cut = state.part.groups < state.part.all_groups ? `; the page holds ${state.part.groups} of ${state.part.all_groups}` : "";
  byId("count").textContent = `${some}${counted(all.episodes.length, "episode")}, ${counted(groups.length, "group")}${cut}`;
}

function listed(group, least, most) {
  const first = group.episodes.find((each) => passes(each, state.filters));
  const codes = languages(group.episodes);
  const more = codes.length > 6 ? `${codes.slice(0, 6).join(" ")} …` : codes.join(" ");
  const choose = () => show({ episode: first, view: state.view === "overview" ? "siblings" : state.view });
  const meta = el("span", { className: "meta" }, `${group.episodes.length} × ${more}`, el("b", {}, number(mean(totals(group)))));
  meta.append(rewardPoints(group, least, most));
  const node = el("button", { onclick: choose }, el("span", { className: "question", dir: "auto", lang: first.language }, first.question), meta);
  return Object.assign(el("li", {}, node), { group });
}

function draw() {
  const usable = (name) => name === "overview" || state.episode;
  if (!usable(state.view)) state.view = "overview";
  const tabs = Object.keys(VIEWS).map((name, place) =>
    el("button", { role: "tab", disabled: !usable(name), ariaSelected: String(name === state.view), onclick: () => show({ view: name }), title: `Key ${place + 1}` }, name),
  );
  byId("tabs").replaceChildren(...tabs);
  byId("view").replaceChildren(...VIEWS[state.view](state).flat().filter(Boolean));
  byId("tip").hidden = true;
  byId("tokens").ariaPressed = String(state.tokens);
  byId("unfold").ariaPressed = String(state.unfold);
}

function markCurrent() {
  for (const item of byId("groups").children) {
    const current = item.group === state.episode?.siblings;
    item.ariaCurrent = String(current);
    if (current) item.scrollIntoView({ block: "nearest" });
  }
  const column = document.querySelector(".columns article[aria-current=true]");
  if (column) column.parentElement.scrollLeft = column.offsetLeft - column.parentElement.offsetLeft - 40;
}

const fill = (id, options, value) =>
  byId(id).replaceChildren(...options.map(([text, own]) => el("option", { value: own, selected: own === value }, text)));

function fillPart() {
  const run = runOf(state.part);
  fill("run", runs.map((each, place) => [`${each.name} · ${each.method}`, String(place)]), String(state.part.run));
  const named = (part) => [part.label + (part.extremes ? ", extremes" : ""), part.id];
  fill("part", run.parts.map(named), state.part.id);
  const codes = languages(load(state.part).episodes);
  if (!codes.includes(state.filters.language)) state.filters.language = "";
  fill("language", [["all", ""], ...codes.map((code) => [code, code])], state.filters.language);
}

function goToStep(step) {
  const steps = runOf(state.part).parts.filter((part) => part.step !== null);
  const distance = (part) => Math.abs(part.step - step);
  if (steps.length) show({ part: steps.reduce((best, part) => (distance(part) < distance(best) ? part : best)) });
}

function moveOn(list, current, by, change) {
  const place = list.indexOf(current) + by;
  if (place >= 0 && place < list.length) show(change(list[place]));
}

const movePart = (by) => moveOn(runOf(state.part).parts, state.part, by, (part) => ({ part }));
const moveEpisode = (by) => state.episode && moveOn(state.episode.siblings.episodes, state.episode, by, (episode) => ({ episode }));
const moveGroup = (by) =>
  moveOn(groups, state.episode?.siblings, by, (group) => ({ episode: group.episodes.find((each) => passes(each, state.filters)), right: null }));

function changeTheme() {
  const root = document.documentElement;
  const dark = root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.style.colorScheme = dark === "dark" ? "light" : "dark";
}

const KEYS = {
  j: ["next group", () => moveGroup(1)],
  k: ["previous group", () => moveGroup(-1)],
  l: ["next sibling (also →)", () => moveEpisode(1)],
  h: ["previous sibling (also ←)", () => moveEpisode(-1)],
  Enter: ["show the episode", () => state.episode && show({ view: "episode" })],
  Escape: ["back to its siblings", () => state.episode && show({ view: "siblings" })],
  "1": ["overview, and 2, 3, 4: siblings, episode, compare", () => show({ view: "overview" })],
  "[": ["earlier step or evaluation", () => movePart(-1)],
  "]": ["later step or evaluation", () => movePart(1)],
  t: ["shade tokens by probability", () => show({ tokens: !state.tokens })],
  p: ["open prompts and passages", () => show({ unfold: !state.unfold })],
  d: ["light or dark", changeTheme],
  "/": ["search", () => byId("query").focus()],
  "?": ["these keys", () => byId("keys").showModal()],
};
const ALSO = { ArrowRight: "l", ArrowLeft: "h" };

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const typing = event.target.closest("input, select");
  if (typing) return event.key === "Escape" && event.target.blur();
  const view = Object.keys(VIEWS)[event.key - 1];
  const key = KEYS[ALSO[event.key] ?? event.key];
  if (!(view || key) || (event.key === "Enter" && event.target.closest("button, summary"))) return;
  event.preventDefault();
  if (view) show({ view });
  else key[1]();
}

/** Shows what is known of the token or piece below the pointer. */
function pointed(event) {
  const tip = byId("tip");
  const node = event.target.closest?.(".piece");
  tip.hidden = !node?.piece || Boolean(event.target.closest("aside"));
  if (tip.hidden) return;
  const rows = tipRows(node, event.target.dataset?.token);
  tip.replaceChildren(...rows.map(([name, value]) => el("div", {}, el("span", {}, name), el("b", {}, value))));
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
}

function listen() {
  const filter = (name) => (event) => show({ filters: Object.assign(state.filters, { [name]: event.target.value }) });
  for (const name of ["language", "outcome", "reward"]) byId(name).addEventListener("change", filter(name));
  byId("query").addEventListener("input", filter("query"));
  byId("order").addEventListener("change", (event) => show({ order: event.target.value }));
  byId("run").addEventListener("change", (event) => {
    const own = runs[event.target.value].parts;
    show({ part: own.find((part) => part.label === state.part.label) ?? own[0] });
  });
  byId("part").addEventListener("change", (event) => show({ part: parts.find((part) => part.id === event.target.value) }));
  const clicks = { earlier: () => movePart(-1), later: () => movePart(1), tokens: KEYS.t[1], unfold: KEYS.p[1], theme: changeTheme, help: KEYS["?"][1] };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
  document.addEventListener("keydown", pressed);
  byId("view").addEventListener("pointerover", pointed);
  byId("view").addEventListener("pointerleave", () => (byId("tip").hidden = true));
}

function begin() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const all = (choices) => [["all", ""], ...Object.keys(choices).map((name) => [name, name])];
  fill("outcome", all(OUTCOMES), "");
  fill("reward", all(REWARDS), "");
  fill("order", Object.keys(ORDERS).map((name) => [name, name]), "position");
  byId("keys").querySelector("dl").append(...Object.entries(KEYS).flatMap(([key, [said]]) => [el("dt", {}, key), el("dd", {}, said)]));
  listen();
  const part = parts.find((each) => each.id === wanted.get("part")) ?? runs[0].parts[0];
  const episode = load(part).episodes[wanted.get("episode") ?? -1];
  const view = wanted.get("view") in VIEWS ? wanted.get("view") : "overview";
  show({ part, view, tokens: wanted.get("tokens") !== "0", unfold: wanted.get("unfold") === "1", ...(episode ? { episode } : {}) });
}

begin();
