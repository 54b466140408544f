// The views of the right side: overview, siblings, one episode, and two episodes of one question.

/** A table from rows of cells; the first row is the head. */
function table(rows, className = "") {
  const [head, ...body] = rows;
  const cells = (row, tag) => el("tr", {}, row.map((cell) => el(tag, {}, cell)));
  return el("table", { className }, el("thead", {}, cells(head, "th")), el("tbody", {}, body.map((row) => cells(row, "td"))));
}

function facts(entries) {
  const shown = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { className: "facts" }, shown.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function overview(state) {
  const part = state.part;
  const abouts = runs.map((run, place) =>
    el(
      "div",
      { className: "about" },
      el("h2", {}, el("span", { className: `key r${place % 4}` }, run.name), el("small", {}, ` ${run.method}`)),
      facts([["folder", run.folder], ...Object.entries(run.about), ["shown", run.shown + (run.cut ? " (the page is cut: see --steps, --megabytes)" : "")]]),
      run.divided ? null : el("p", { className: "note" }, "The policy's tokenizer is not here: its texts are not divided into tokens."),
    ),
  );
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].filter((name) => name !== "step");
  return [
    ...abouts,
    names.length ? el("h3", {}, "By step") : null,
    el("div", { className: "curves" }, names.map((name) => curve(name, state))),
    el("h3", {}, `${part.label}, by language${part.extremes ? " (of the best and the worst episode of each group only)" : ""}`),
    byLanguage(load(part).episodes),
  ];
}

function byLanguage(episodes) {
  const row = (name, own) => [
    el("span", { lang: "en" }, name),
    own.length,
    number(mean(own.map(total).filter((value) => value !== null))),
    `${Math.round((100 * own.filter(OUTCOMES.answered).length) / own.length)} %`,
    number(mean(own.map((each) => each.counts.searches ?? 0))),
    number(mean(own.map((each) => each.counts.policy_tokens ?? 0))),
  ];
  const head = ["language", "episodes", `mean ${scoreName(episodes[0])}`, "answered", "searches", "policy tokens"];
  const rows = languages(episodes).map((code) => row(code, episodes.filter((each) => each.language === code)));
  return table([head, ...rows, ...(rows.length > 1 ? [row("all", episodes)] : [])], "numbers");
}

/** One metric of all runs over the steps; a click shows the episodes of the nearest step. */
function curve(name, state) {
  const own = runs.filter((run) => run.curves[name]);
  const points = own.map((run) => run.curves[name].map((value, place) => [run.curves.step[place], value]).filter((p) => p[1] !== null));
  const all = points.flat();
  const [steps, values] = [all.map((p) => p[0]), all.map((p) => p[1])];
  const [last, least, most] = [Math.max(...steps, 1), Math.min(...values), Math.max(...values)];
  const x = (step) => 3 + (194 * step) / last;
  const y = (value) => 45 - (most > least ? (42 * (value - least)) / (most - least) : 21);
  const lines = points.map((line, place) =>
    svg("polyline", { class: `r${runs.indexOf(own[place]) % 4}`, points: line.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }),
  );
  const here = state.part.step === null ? [] : [svg("path", { class: "here", d: `M${x(state.part.step)} 0V48` })];
  const picture = svg("svg", { viewBox: "0 0 200 48", preserveAspectRatio: "none", "aria-hidden": true }, ...here, ...lines);
  const choose = (event) => {
    const box = picture.getBoundingClientRect();
    goToStep((last * (event.clientX - box.left)) / box.width);
  };
  const ends = points.map((line) => number(line.at(-1)?.[1] ?? null)).join(" / ");
  return el("figure", { onclick: choose }, el("figcaption", {}, name, el("b", {}, ends)), picture);
}

/** Question and golds of a group in the language of an episode. */
function asked(episode) {
  const golds = episode.golds?.length ? ["gold: ", el("bdi", { lang: episode.language }, episode.golds.slice(0, 8).join(" · "))] : null;
  return el(
    "div",
    { className: "asked" },
    el("h2", { dir: "auto", lang: episode.language }, episode.question),
    el("p", {}, episode.key, " · ", episode.language, golds && " · ", golds),
  );
}

/** What an episode came to: answer, reward and advantage. */
function result(episode, most) {
  const answer = episode.answer === null ? el("em", {}, outcome(episode)) : el("bdi", { lang: episode.language }, episode.answer);
  return el(
    "div",
    { className: "result" },
    el("p", { className: "answer" }, answer),
    el("p", {}, scoreName(episode), " ", el("b", {}, number(total(episode))), el("small", {}, `${episode.counts.searches ?? 0} × search`)),
    episode.advantage !== null &&
      el("p", {}, "advantage ", el("b", { className: sideOf(episode.advantage) }, signed(episode.advantage)), bar(episode.advantage, most)),
  );
}

const advantageOf = (episode) => Math.abs(episode.advantage ?? 0);

function siblings(state) {
  const all = state.episode.siblings.episodes;
  const most = Math.max(...all.map(advantageOf));
  const sampled = all.flatMap((each) => each.turns).reduce((sum, turn) => sum + (turn.scores?.length ?? 0), 0);
  const options = { unfold: state.unfold, tokens: state.tokens && sampled <= 5000 }; // more spans would be slow
  const columns = all.map((episode) => {
    const open = () => show({ episode, view: "episode" });
    const title = el("button", { onclick: open, title: "Show this episode (Enter)" }, `${episode.language} · #${episode.number}`);
    return el(
      "article",
      {
        className: passes(episode, state.filters) ? "" : "out",
        ariaCurrent: episode === state.episode ? "true" : "false",
        onclick: (event) => event.target.closest("summary, button") || show({ episode }),
      },
      el("h3", {}, title, episode.answer !== null && outcome(episode) !== "answered" && el("small", {}, outcome(episode))),
      result(episode, most),
      transcript(episode, options),
    );
  });
  return [asked(state.episode), el("div", { className: "columns" }, columns)];
}

/** Rewards by term, the counts and what else is known of an episode. */
function account(episode) {
  const terms = Object.entries(episode.rewards);
  const most = Math.max(...terms.map(([, value]) => Math.abs(value ?? 0)));
  const scores = episode.turns.flatMap((turn) => turn.scores ?? []).filter((score) => score !== null);
  return el(
    "aside",
    {},
    result(episode, Math.max(...episode.siblings.episodes.map(advantageOf))),
    terms.length > 0 && el("h3", {}, "Rewards"),
    el("table", {}, terms.map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, number(value)), el("td", {}, bar(value, most))))),
    el("h3", {}, "Episode"),
    facts([
      ["outcome", outcome(episode)],
      ["policy version", episode.version],
      ["mean log-prob.", scores.length ? number(mean(scores)) : null],
      ...Object.entries(episode.counts).map(([name, count]) => [name.replaceAll("_", " "), count]),
    ]),
    episode.waits.length ? el("h3", {}, "Time") : null,
    timeLine(episode.waits),
  );
}

function completion(each, episode) {
  const title = el("summary", {}, el("span", { className: "who" }, `completion by ${each.model ?? "the policy"}, outside the context`));
  return el("details", { className: "piece side" }, title, words(each.prompt, episode.language), words(each.text, episode.language, { className: "text answer" }));
}

function oneEpisode(state) {
  const { episode } = state;
  const legend = SHADES.map((least, place) => el("span", { className: `s${place + 1}` }, number(Math.exp(-least), 2)));
  const divided = episode.turns.some((turn) => turn.lengths);
  return [
    asked(episode),
    el(
      "div",
      { className: "episode" },
      el(
        "div",
        {},
        state.tokens && divided ? el("p", { className: "legend" }, "probability of a token below ", legend) : null,
        episode.failure && el("p", { className: "note" }, `Failed: ${episode.failure}`),
        transcript(episode, state),
        episode.completions.map((each) => completion(each, episode)),
      ),
      account(episode),
    ),
  ];
}

function compare(state) {
  const left = state.episode;
  const right = state.right?.key === left.key ? state.right : counterpart(left);
  const most = Math.max(advantageOf(left), advantageOf(right));
  const column = (episode, choose) => {
    const there = parts.filter((part) => part.questions.includes(episode.key));
    const options = there.map((part) => el("option", { value: part.id, selected: part === episode.part }, runs.length > 1 ? `${runOf(part).name} · ${part.label}` : part.label));
    const same = askedTheSame(episode.part, episode);
    const numbers = same.map((each, place) => el("option", { value: place, selected: each === episode }, `#${each.number}, ${scoreName(each)} ${number(total(each))}`));
    const part = (event) => choose(askedTheSame(parts.find((each) => each.id === event.target.value), episode)[0]);
    return el(
      "article",
      {},
      el("h3", {}, el("select", { onchange: part, ariaLabel: "Run and step" }, options), el("select", { onchange: (event) => choose(same[event.target.value]), ariaLabel: "Sibling" }, numbers)),
      result(episode, most),
      transcript(episode, state),
    );
  };
  return [
    asked(left),
    el("div", { className: "columns two" }, column(left, (episode) => show({ episode, right })), column(right, (episode) => show({ right: episode }))),
  ];
}

const VIEWS = { overview, siblings, episode: oneEpisode, compare };
