// The parts of the page that a search has: trials, and what they tell of its parameters.

import { get, repeat } from "./api.js";
import { bars, Chart, history, lines, parallel } from "./charts.js";
import { brief, duration, el, flat, now, runLink, state, table } from "./dom.js";

export function searchSections(section, name, stops) {
  const picture = (key, title) => {
    const place = el("div", { class: "chart tall" });
    const body = section(key, title);
    body.append(place);
    return { place, body, chart: null };
  };
  const pictures = { history: picture("history", "History"), curves: picture("curves", "Curves of the best trials"), parallel: picture("parallel", "Parallel coordinates"), importance: picture("importance", "Importance of parameters") };
  const note = el("p", { class: "dim" });
  pictures.importance.body.append(note);
  const filter = el("input", { type: "search", placeholder: "Filter trials ( / )", "aria-label": "Filter trials", oninput: () => trials() });
  const body = section("trials", "Trials", filter);
  let sort = null;
  let run = null;
  let told = "";
  let asked = null;

  function draw(key, label, option) {
    const one = pictures[key];
    one.body.parentElement.hidden = false;
    one.chart ??= new Chart(one.place, label);
    one.chart.show(option);
  }

  function trials() {
    const words = filter.value.toLowerCase();
    const names = varying(run.trials);
    const rows = run.trials.filter((trial) => `${trial.directory} ${trial.status} ${trial.error} ${JSON.stringify(trial.config)}`.toLowerCase().includes(words));
    body.parentElement.hidden = false;
    body.replaceChildren(table([
      { title: "Trial", value: (t) => t.directory || t.trial_id, cell: (t) => (t.directory ? runLink(`${name}/${t.directory}`, t.directory.split("_")[0]) : t.trial_id) },
      { title: "Status", value: (t) => t.status, cell: (t) => state(t.status) },
      { title: "Reports", value: (t) => t.reports, number: true },
      { title: `Best ${run.metric ?? ""}`, value: (t) => t.best, number: true },
      ...names.map((key) => ({ title: key, value: (t) => t.flat[key], number: run.trials.every((t) => typeof t.flat[key] === "number") })),
      { title: "Took", value: (t) => (t.ended_at ?? now()) - t.started_at, cell: (t) => (t.started_at ? duration((t.ended_at ?? now()) - t.started_at) : ""), number: true },
      { title: "Error", value: (t) => t.error, cell: (t) => el("span", { class: "error" }, t.error) },
    ], rows, { sort, caption: rows.length > 1000 ? "the first 1000" : "" }));
  }

  function show(search) {
    run = search;
    const text = JSON.stringify(run.trials);
    if (text === told) return;
    told = text;
    for (const trial of run.trials) trial.flat = flat(trial.config);
    sort ??= { column: 3, down: run.mode === "max" };
    trials();
    const scored = run.trials.filter((trial) => trial.best !== null);
    if (!scored.length) return;
    draw("history", `${run.metric} by trial`, history(run.trials, run.metric, run.mode));
    const names = varying(run.trials);
    if (names.length) draw("parallel", "Parameters and results of all trials", parallel(run.trials, names, run.metric, run.mode));
    if (!asked) {
      asked = repeat(more, 10);
      stops.push(asked);
    }
  }

  async function more() {
    const curves = await get("curves", { name, metric: run.metric });
    if (Object.values(curves).some((points) => points.length > 1)) draw("curves", `${run.metric} by report, of the best trials`, lines("", curves));
    try {
      draw("importance", "Importance of parameters", bars(await get("importance", { name })));
      note.textContent = "of each parameter for the metric, by fANOVA";
      pictures.importance.place.hidden = false;
    } catch (error) {
      pictures.importance.body.parentElement.hidden = false;
      pictures.importance.place.hidden = true;
      note.textContent = error.message;
    }
  }
  return { show };
}

function varying(trials) {
  const keys = [...new Set(trials.flatMap((trial) => Object.keys(trial.flat)))];
  return keys.filter((key) => new Set(trials.map((trial) => JSON.stringify(trial.flat[key]))).size > 1);
}
