// The data of the page: runs, their parts (files of episodes), and the groups of a part.

const runs = JSON.parse(document.getElementById("index").textContent);
const parts = runs.flatMap((run) => run.parts);
const loaded = new Map();

/** Returns the episodes and groups of a part, parsed when it is first shown. */
function load(part) {
  if (!loaded.has(part.id)) {
    const { texts, episodes } = JSON.parse(document.getElementById(part.id).textContent);
    const groups = new Map();
    for (const episode of episodes) {
      for (const piece of [episode.prompt, ...episode.turns]) {
        if (typeof piece.text === "number") piece.text = texts[piece.text];
      }
      episode.part = part;
      if (!groups.has(episode.group)) groups.set(episode.group, { name: episode.group, episodes: [] });
      episode.siblings = groups.get(episode.group);
      episode.siblings.episodes.push(episode);
    }
    loaded.set(part.id, { episodes, groups: [...groups.values()], named: groups });
  }
  return loaded.get(part.id);
}

const runOf = (part) => runs[part.run];
/** The reward of an episode; in an evaluation without one, the c3 recall of its answer. */
const total = (episode) => episode.rewards.total ?? episode.recall ?? null;
const scoreName = (episode) => (episode.recall === undefined ? "reward" : "c3 recall");
const totals = (group) => group.episodes.map(total).filter((value) => value !== null);
const mean = (values) => (values.length ? values.reduce((sum, each) => sum + each, 0) / values.length : null);
const spread = (group) => (totals(group).length ? Math.max(...totals(group)) - Math.min(...totals(group)) : -1);
const languages = (episodes) => [...new Set(episodes.map((each) => each.language))].sort();

const OUTCOMES = {
  answered: (e) => !e.failure && e.answer !== null,
  "no answer": (e) => !e.failure && e.answer === null,
  "context full": (e) => !e.failure && !e.finished,
  failed: (e) => Boolean(e.failure),
};
const REWARDS = {
  "above 0": (e) => total(e) > 0,
  "0 or less": (e) => total(e) !== null && total(e) <= 0,
  "best of group": (e) => total(e) !== null && total(e) === Math.max(...totals(e.siblings)),
  "worst of group": (e) => total(e) !== null && total(e) === Math.min(...totals(e.siblings)),
  "not scored": (e) => total(e) === null,
};
const ORDERS = {
  position: () => 0,
  "least reward": (a, b) => (mean(totals(a)) ?? Infinity) - (mean(totals(b)) ?? Infinity),
  "most reward": (a, b) => (mean(totals(b)) ?? -Infinity) - (mean(totals(a)) ?? -Infinity),
  "siblings differ": (a, b) => spread(b) - spread(a),
  ...(runs.length > 1 ? { "runs differ": (a, b) => difference(b) - difference(a) } : {}),
};

/** How much the mean reward of a group differs from that in the same part of another run; -1 if it is in none. */
function difference(group) {
  const { part } = group.episodes[0];
  const there = parts.filter((each) => each.run !== part.run && each.label === part.label);
  const same = there.map((each) => load(each).named.get(group.name)).find(Boolean);
  return same ? Math.abs((mean(totals(group)) ?? 0) - (mean(totals(same)) ?? 0)) : -1;
}

function outcome(episode) {
  if (episode.failure) return "failed";
  return (episode.answer === null ? "no answer" : "answered") + (episode.finished ? "" : ", context full");
}

/** Whether an episode passes the filters; an empty filter passes all. */
function passes(episode, filters) {
  return (
    (!filters.language || episode.language === filters.language) &&
    (!filters.outcome || OUTCOMES[filters.outcome](episode)) &&
    (!filters.reward || REWARDS[filters.reward](episode)) &&
    (!filters.query || holds(episode, filters.query.toLowerCase()))
  );
}

function holds(episode, query) {
  const texts = [episode.key, episode.question, episode.answer ?? "", ...episode.turns.map((turn) => turn.text)];
  return texts.some((text) => text.toLowerCase().includes(query));
}

/** Returns the groups with an episode that passes, in the chosen order. */
function chosenGroups(part, filters, order) {
  const found = load(part).groups.filter((group) => group.episodes.some((each) => passes(each, filters)));
  return found.sort(ORDERS[order] ?? ORDERS.position);
}

/** Returns the episodes of a part that were asked an episode's question: in its language, or if there is none, any. */
function askedTheSame(part, episode) {
  const found = load(part).episodes.filter((each) => each.key === episode.key);
  const same = found.filter((each) => each.language === episode.language);
  return same.length ? same : found;
}

/** Returns what an episode is compared with first: the same part of another run, after training, another part, or a sibling. */
function counterpart(episode) {
  const others = parts.filter((part) => part.id !== episode.part.id && part.questions.includes(episode.key));
  const elsewhere = others.filter((part) => part.run !== episode.part.run);
  const same = elsewhere.find((part) => part.label === episode.part.label);
  const trained = others.find((each) => each.label === episode.part.label.replace(/^before /, "after "));
  const part = same ?? elsewhere.at(-1) ?? trained ?? others.find((each) => each.step === null) ?? others.at(-1);
  if (part) return askedTheSame(part, episode)[0];
  const neighbours = episode.siblings.episodes.filter((each) => each !== episode);
  return neighbours.sort((a, b) => total(b) - total(a))[0] ?? episode;
}
