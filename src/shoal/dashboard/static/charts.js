// Charts, by Apache ECharts, in the colors of the page.

const shown = new Set();
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function base() {
  const axis = { axisLine: { lineStyle: { color: color("--dim") } }, axisLabel: { color: color("--dim") }, splitLine: { lineStyle: { color: color("--line") } } };
  return { axis, text: { color: color("--text") }, tip: { backgroundColor: color("--card"), borderColor: color("--line"), textStyle: { color: color("--text") } } };
}

// An option is a function, so that it can be made anew in other colors.
export class Chart {
  constructor(element, label) {
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", label);
    this.element = element;
    this.made = echarts.init(element, null, { renderer: "canvas" });
    this.option = null;
    this.watching = new ResizeObserver(() => this.made.resize());
    this.watching.observe(element);
    shown.add(this);
  }
  show(option) {
    this.option = option;
    this.draw();
  }
  draw() {
    if (this.option) this.made.setOption({ animation: false, ...this.option(base()) }, true);
  }
  close() {
    this.watching.disconnect();
    this.made.dispose();
    shown.delete(this);
  }
}

export function closeAll() { for (const chart of [...shown]) chart.close(); }
export function redrawAll() { for (const chart of shown) chart.draw(); }

export function lines(title, curves, { log = false, x = "report" } = {}) {
  return ({ axis, text, tip }) => ({
    title: title ? { text: title, textStyle: { ...text, fontSize: 14, fontWeight: 600 }, left: 0 } : undefined,
    grid: { left: 8, right: 20, top: title ? 36 : 12, bottom: 28, containLabel: true },
    tooltip: { trigger: "axis", ...tip, confine: true, valueFormatter: (value) => Number(value.toPrecision(6)) },
    legend: Object.keys(curves).length > 1 && Object.keys(curves).length <= 8 ? { type: "scroll", right: 0, top: 4, textStyle: text } : undefined,
    dataZoom: [{ type: "inside", filterMode: "none" }],
    xAxis: { type: "value", name: x, nameLocation: "middle", nameGap: 24, min: "dataMin", max: "dataMax", ...axis, nameTextStyle: { color: color("--dim") } },
    yAxis: { type: log ? "log" : "value", scale: true, ...axis },
    series: Object.entries(curves).map(([name, points]) => ({
      name, type: "line", showSymbol: points.length < 40, symbolSize: 4, lineStyle: { width: 1.6 }, sampling: "lttb",
      data: log ? points.filter(([, y]) => y > 0) : points,
    })),
  });
}

export function bars(values) {
  const names = Object.keys(values).reverse();
  return ({ axis, text, tip }) => ({
    grid: { left: 8, right: 60, top: 8, bottom: 8, containLabel: true },
    tooltip: { ...tip },
    xAxis: { type: "value", max: 1, ...axis },
    yAxis: { type: "category", data: names, ...axis },
    series: [{ type: "bar", data: names.map((name) => values[name]), itemStyle: { color: color("--accent") },
      label: { show: true, position: "right", ...text, formatter: ({ value }) => `${(value * 100).toFixed(0)} %` } }],
  });
}

export function history(trials, metric, mode) {
  const points = trials.filter((trial) => trial.best !== null).map((trial, number) => [number, trial.best, trial.directory || trial.trial_id]);
  let best = null;
  const leading = points.map(([number, value]) => {
    best = best === null ? value : mode === "max" ? Math.max(best, value) : Math.min(best, value);
    return [number, best];
  });
  return ({ axis, tip }) => ({
    grid: { left: 8, right: 20, top: 12, bottom: 28, containLabel: true },
    tooltip: { ...tip, confine: true, formatter: (at) => echarts.format.encodeHTML(at.seriesType === "scatter" ? `${at.value[2]}: ${at.value[1]}` : `best so far: ${at.value[1]}`) },
    xAxis: { type: "value", name: "trial", nameLocation: "middle", nameGap: 24, ...axis },
    yAxis: { type: "value", scale: true, name: metric, ...axis },
    series: [
      { type: "scatter", data: points, symbolSize: 7, itemStyle: { color: color("--accent"), opacity: 0.7 } },
      { type: "line", step: "end", data: leading, showSymbol: false, lineStyle: { color: color("--bad"), width: 1.5 } },
    ],
  });
}

export function parallel(trials, names, metric, mode) {
  const numeric = (name) => trials.every((trial) => typeof trial.flat[name] === "number");
  const axes = names.map((name, dim) => numeric(name)
    ? { dim, name, type: "value", scale: true }
    : { dim, name, type: "category", data: [...new Set(trials.map((trial) => String(trial.flat[name])))] });
  axes.push({ dim: names.length, name: metric, type: "value", scale: true });
  const scored = trials.filter((trial) => trial.best !== null);
  const values = scored.map((trial) => trial.best);
  const data = scored.map((trial) => [...names.map((name, dim) => (axes[dim].type === "value" ? trial.flat[name] : String(trial.flat[name]))), trial.best]);
  return ({ axis, text, tip }) => ({
    tooltip: { ...tip },
    parallel: { left: 40, right: 120, top: 40, bottom: 20, parallelAxisDefault: { nameTextStyle: text, nameLocation: "end", ...axis, splitLine: { show: false } } },
    parallelAxis: axes,
    visualMap: { dimension: names.length, min: Math.min(...values), max: Math.max(...values), right: 0, top: "center", calculable: true, textStyle: text,
      inRange: { color: mode === "max" ? ["#c9d6da", "#5cc4d8", "#0b6d80"] : ["#0b6d80", "#5cc4d8", "#c9d6da"] } },
    series: [{ type: "parallel", data, lineStyle: { width: 1.5, opacity: 0.7 } }],
  });
}
