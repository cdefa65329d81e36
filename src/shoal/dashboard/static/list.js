// All runs and searches.

import { get, repeat } from "./api.js";
import { HIDDEN, brief, duration, el, now, runLink, state, table } from "./dom.js";

export function best(run) {
  if (run.best !== null) return `${run.metric} ${brief(run.best)}`;
  const first = Object.entries(run.metrics).find(([key, value]) => !HIDDEN.has(key) && typeof value === "number");
  return first ? `${first[0]} ${brief(first[1])}` : "";
}

export function showList(page) {
  const filter = el("input", { type: "search", placeholder: "Filter by name or state ( / )", "aria-label": "Filter runs", oninput: () => fill() });
  const place = el("div");
  const root = el("p", { class: "dim" });
  const sort = { column: -1, down: false };
  let runs = [];
  page.append(el("div", { class: "top" }, el("h1", {}, "Runs and searches"), el("div", { class: "actions" }, filter)), el("section", {}, place), root);

  function fill() {
    const words = filter.value.toLowerCase();
    const rows = runs.filter((run) => `${run.name} ${run.state} ${run.kind}`.toLowerCase().includes(words));
    if (!rows.length) {
      place.replaceChildren(el("p", { class: "empty" }, runs.length ? "Nothing has these words." : "There are no runs here yet. A script that calls fit() makes the first."));
      return;
    }
    const at = now();
    const had = place.contains(document.activeElement) ? document.activeElement.textContent : null;
    place.replaceChildren(table([
      { title: "Name", value: (run) => run.name, cell: (run) => runLink(run.name) },
      { title: "Kind", value: (run) => run.kind },
      { title: "State", value: (run) => run.state, cell: (run) => state(run.state) },
      { title: "Age", value: (run) => at - run.started_at, cell: (run) => duration(at - run.started_at), number: true },
      { title: "Took", value: (run) => (run.ended_at ?? at) - run.started_at, cell: (run) => (run.state === "DIED" ? "" : duration((run.ended_at ?? at) - run.started_at)), number: true },
      { title: "Progress", value: (run) => run.progress },
      { title: "Best", value: (run) => best(run) },
    ], rows, { sort }));
    if (had) [...place.querySelectorAll("a, button")].find((one) => one.textContent === had)?.focus();
  }

  return repeat(async () => {
    const told = await get("runs");
    const text = JSON.stringify(told.runs);
    root.textContent = `${told.root} · shoal ${told.version}`;
    if (text !== place.dataset.told) {
      place.dataset.told = text;
      runs = told.runs;
      fill();
    } else if (runs.some((run) => run.state === "RUNNING")) fill();
  }, 2);
}
