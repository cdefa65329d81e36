// One run, trial or search.

import { get, post, repeat } from "./api.js";
import { Chart, lines } from "./charts.js";
import { best } from "./list.js";
import { HIDDEN, brief, bytes, duration, el, facts, flat, moment, now, state, table } from "./dom.js";
import { searchSections } from "./search.js";

export function showRun(page, name) {
  const parts = {};
  const stops = [];
  const section = (key, title, ...tools) => {
    const body = el("div");
    const whole = el("section", { id: key, hidden: true, "aria-label": title }, el("h2", {}, title), tools.length ? el("div", { class: "tools" }, tools) : "", body);
    parts[key] = { whole, body, told: "" };
    page.append(whole);
    return body;
  };
  // Draws a part anew only when what it shows is other than before: focus and selection stay where they are.
  const fill = (key, data, draw) => {
    const part = parts[key];
    const text = JSON.stringify(data);
    const there = Array.isArray(data) ? data.length > 0 : Boolean(data && Object.keys(data).length);
    part.whole.hidden = !there;
    if (there && part.told !== text) {
      part.told = text;
      part.body.replaceChildren(...[draw(data)].flat(Infinity).filter(Boolean));
    }
  };

  const head = el("div", { class: "top" });
  const says = el("p", { role: "status" });
  page.append(head, says);
  section("facts", "Facts");
  section("failures", "What went wrong");
  const log = el("input", { type: "checkbox", id: "log-scale", onchange: () => drawCharts() });
  const charts = section("metrics", "Metrics", el("label", {}, log, " logarithmic"));
  charts.className = "charts";
  section("workers", "Workers");
  const search = searchSections(section, name, stops);
  section("attempts", "Attempts");
  section("checkpoints", "Checkpoints");
  section("config", "Configuration");
  const logs = logSection(section, name);
  section("stacks", "Stacks");

  const buttons = {
    stop: el("button", { type: "button", onclick: () => ask("stop", "It stops at its next report.") }, "Stop"),
    kill: el("button", { type: "button", class: "danger", onclick: () => confirm(`End ${name} at once? What it has committed stays.`) && ask("kill", "It is being ended.") }, "Kill"),
    stacks: el("button", { type: "button", onclick: () => ask("stacks", "Every rank is asked what it does.") }, "Stacks"),
    resume: el("button", { type: "button", onclick: resume }, "Resume"),
  };
  async function ask(what, words) {
    try { await post("ask", { name, ask: what }); stacksUntil = now() + 20; say(words); } catch (error) { say(error.message, true); }
  }
  async function resume() {
    buttons.resume.disabled = true;
    try { await post("resume", { name }); say("Its script is started once more."); } catch (error) { say(error.message, true); }
    buttons.resume.disabled = false;
  }
  function say(words, wrong = false) {
    says.textContent = words;
    says.className = wrong ? "error" : "dim";
  }
  const title = el("h1", {}, name);
  const badge = el("span");
  head.append(title, badge, el("div", { class: "actions" }, Object.values(buttons)));

  let seen = -1;
  let curves = {};
  const drawn = new Map();
  function drawCharts() {
    parts.metrics.whole.hidden = !Object.keys(curves).length;
    for (const [key, points] of Object.entries(curves)) {
      if (!drawn.has(key)) {
        const place = el("div", { class: "chart", "data-metric": key });
        charts.append(place);
        drawn.set(key, new Chart(place, `${key} by report`));
      }
      drawn.get(key).show(lines(key, { [key]: points }, { log: log.checked }));
      drawn.get(key).element.dataset.points = String(points.length);
    }
  }

  let size = null;
  let stacksUntil = Infinity;  // looked for at first, and for a while after they were asked for
  stops.push(repeat(async () => {
    let run;
    try {
      run = await get("run", { name, sized: size === null ? 1 : 0 });
    } catch (error) {
      say(error.message, true);
      throw error;
    }
    size ??= run.size;
    badge.replaceChildren(state(run.state));
    const driven = run.live;
    buttons.stop.hidden = buttons.kill.hidden = buttons.stacks.hidden = !driven || run.kind === "trial";
    buttons.resume.hidden = driven || run.state === "FINISHED" || run.kind === "trial";
    fill("facts", { ...run, workers: 0, trials: run.trials.length, at: driven ? Math.floor(now()) : 0 }, () => describe(run, size));
    fill("failures", run.failures.filter((failure) => failure.cause || !failure.text.includes("was ended by shoal")), failures);
    fill("workers", run.workers, workers);
    fill("attempts", run.attempts.length ? { attempts: run.attempts, at: driven ? Math.floor(now()) : 0 } : [], ({ attempts }) => timeline(attempts, driven, new Set(run.failures.map((failure) => failure.attempt))));
    fill("checkpoints", run.checkpoints, checkpoints);
    fill("config", run.kind === "search" ? {} : flat(run.config), (config) => facts(Object.entries(config).map(([key, value]) => [key, brief(value)])));
    logs.of(run);
    if (run.kind === "search") search.show(run);
    else await metrics();
    if (now() > stacksUntil) return;
    if (stacksUntil === Infinity) stacksUntil = 0;
    fill("stacks", await get("stacks", { name }), (kept) => kept.map((one) => el("details", {}, el("summary", {}, `${one.name}${one.at ? `, ${moment(one.at)}` : ""}`), el("pre", {}, one.text))));
  }, 1));

  async function metrics() {
    const told = await get("metrics", { name, seen });
    if (told.curves === null || told.count === seen) return;
    seen = told.count;
    curves = told.curves;
    drawCharts();
  }
  stops.push(() => logs.stop());
  return () => stops.forEach((stop) => stop());
}

function describe(run, size) {
  const at = now();
  const driver = run.driver ? `process ${run.driver.pid} on ${run.driver.host}` : "";
  const reason = run.state === "DIED" ? "its driver is gone without a word; Resume goes on with it" : run.reason;
  const metrics = Object.entries(flat(run.metrics)).filter(([key]) => !HIDDEN.has(key)).map(([key, value]) => `${key} ${brief(value)}`);
  return facts([
    ["reason", reason],
    ["progress", run.progress],
    ["best", best(run)],
    ["last report", run.kind === "search" ? "" : metrics.join(", ")],
    ["started", run.started_at ? `${moment(run.started_at)} (${duration(at - run.started_at)} ago)` : ""],
    ["took", run.ended_at ? duration(run.ended_at - run.started_at) : ""],
    ["function", run.function],
    ["driver", driver],
    ["directory", `${run.path}${size ? ` (${bytes(size)})` : ""}`],
  ]);
}

function failures(found) {
  return found.slice(-20).reverse().map((failure) => el("div", {},
    el("p", { class: failure.cause ? "error" : "dim" }, `attempt ${failure.attempt}, ${failure.cause ? "" : "followed: "}${failure.text}`),
    failure.cause && failure.traceback ? el("pre", { class: "cause" }, failure.traceback.trimEnd()) : ""));
}

function workers(all) {
  const nodes = new Map();
  for (const worker of all) nodes.set(worker.host, [...(nodes.get(worker.host) ?? []), worker]);
  return [...nodes].flatMap(([host, those]) => [
    el("p", { class: "dim" }, `${host}: ${those.length} worker${those.length === 1 ? "" : "s"}`),
    el("div", { class: "node" }, those.slice(0, 256).map((worker) => el("div", { class: "worker" },
      el("b", {}, `rank ${worker.rank}`), worker.phase, worker.trial ? [el("br"), worker.trial] : "",
      el("div", { class: "dim" }, [
        `report ${worker.report}`,
        worker.silent === null ? "" : `${worker.silent.toFixed(1)} s ago`,
        worker.cpu === undefined ? "" : `${worker.cpu.toFixed(1)} CPUs`,
        worker.memory ? bytes(worker.memory) : "",
        worker.gpu_memory ? `GPU ${bytes(worker.gpu_memory)}` : "",
        worker.pid ? `pid ${worker.pid}` : "",
      ].filter(Boolean).join(" · "))))),
    those.length > 256 ? el("p", { class: "dim" }, `and ${those.length - 256} more`) : "",
  ]);
}

function timeline(attempts, live, failed) {
  const begin = attempts[0].started_at;
  const last = attempts[attempts.length - 1];
  const end = Math.max(last.ended_at ?? (live ? now() : last.started_at), begin + 0.001);
  const at = (time) => `${(((time - begin) / (end - begin)) * 100).toFixed(3)}%`;
  const track = el("div", { class: "track", "aria-hidden": "true" });
  for (const attempt of attempts) {
    const finished = attempt.ended_at ?? end;
    const bar = el("span", { class: failed.has(attempt.number) ? "failed" : attempt.ended_at ? "ended" : "", title: attempt.reason || "in progress" }, String(attempt.number));
    bar.style.left = at(attempt.started_at);
    bar.style.width = `calc(${at(begin + finished - attempt.started_at)})`;
    track.append(bar);
  }
  return [track, table([
    { title: "", value: (a) => a.number, number: true },
    { title: "Workers", value: (a) => a.world_size, number: true },
    { title: "Hosts", value: (a) => a.hosts.slice(0, 4).join(", ") + (a.hosts.length > 4 ? " …" : "") },
    { title: "Started", value: (a) => a.started_at, cell: (a) => moment(a.started_at) },
    { title: "Took", value: (a) => (a.ended_at ?? end) - a.started_at, cell: (a) => duration((a.ended_at ?? end) - a.started_at), number: true },
    { title: "From", value: (a) => a.checkpoint, cell: (a) => (a.checkpoint ? `the checkpoint of report ${a.checkpoint}` : "the beginning") },
    { title: "Ended", value: (a) => a.reason || (live ? "in progress" : "its driver died") },
  ], attempts)];
}

function checkpoints(kept) {
  return table([
    { title: "Name", value: (c) => c.name },
    { title: "Report", value: (c) => c.n, number: true },
    { title: "Status", value: (c) => c.status.toLowerCase().replaceAll("_", " ") + (c.best ? ", the best" : "") },
    { title: "Metrics", value: (c) => Object.entries(flat(c.metrics)).filter(([key]) => !HIDDEN.has(key)).map(([key, value]) => `${key} ${brief(value)}`).join(", ") },
  ], [...kept].reverse());
}

function logSection(section, name) {
  const rank = el("select", { "aria-label": "Rank", onchange: () => load() });
  const search = el("input", { type: "search", placeholder: "Search the log ( / )", "aria-label": "Search the log", oninput: () => load() });
  const follow = el("input", { type: "checkbox", checked: true });
  const body = section("logs", "Output", rank, search, el("label", {}, follow, " follow"));
  const text = el("pre", { tabindex: "0", "aria-label": "Output of the rank" });
  const note = el("p", { class: "dim" });
  body.append(note, text);
  let ranks = "";
  let stop = () => {};
  async function load() {
    const told = await get("log", { name, rank: rank.value, search: search.value });
    note.textContent = told.total > told.lines.length ? `the last ${told.lines.length} of ${told.total} lines` : `${told.total} line${told.total === 1 ? "" : "s"}`;
    const joined = told.lines.join("\n");
    if (joined !== text.textContent) {
      text.textContent = joined;
      if (follow.checked) text.scrollTop = text.scrollHeight;
    }
  }
  return {
    of(run) {
      const told = JSON.stringify(run.ranks);
      if (told !== ranks) {
        ranks = told;
        const chosen = rank.value;
        rank.replaceChildren(...run.ranks.map((one) => el("option", { value: one }, `rank ${one}`)));
        if (chosen) rank.value = chosen;
        body.parentElement.hidden = !run.ranks.length;
        stop();
        if (run.ranks.length) stop = repeat(load, 1.5);
      }
    },
    stop: () => stop(),
  };
}
