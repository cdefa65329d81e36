// Elements, numbers and times. Text from runs is only ever set as text, so nothing in a run is taken for markup.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== "") made.append(child);
  }
  return made;
}

export function brief(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") {
    return Number.isInteger(value) && Math.abs(value) < 1e12 ? String(value) : String(Number(value.toPrecision(4)));
  }
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function bytes(count) {
  let amount = count;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (amount < 1024) return `${unit === "B" ? amount : amount.toFixed(1)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} TiB`;
}

export function duration(seconds) {
  if (seconds < 0 || !Number.isFinite(seconds)) return "";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds / 60) % 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds / 3600) % 24)} h`;
}

// What shoal adds to a report, and people need not be shown.
export const HIDDEN = new Set(["training_iteration", "timestamp", "time_total_s", "attempt", "data_wait_share"]);

export const moment = (at) => (at ? new Date(at * 1000).toLocaleString() : "");
export const now = () => Date.now() / 1000;
export const state = (name) => el("span", { class: `state ${name}` }, name);
export const runLink = (name, text = name) => el("a", { href: `#/run/${encodeURIComponent(name)}` }, text);

export function flat(value, prefix = "") {
  const found = {};
  for (const [key, inner] of Object.entries(value ?? {})) {
    if (inner && typeof inner === "object" && !Array.isArray(inner) && Object.keys(inner).length) {
      Object.assign(found, flat(inner, `${prefix}${key}/`));
    } else found[prefix + key] = inner;
  }
  return found;
}

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return el("dl", { class: "facts" }, shown.map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]));
}

// A table that is sorted by its headings, which are buttons. `columns`: {title, value(row), cell(row), number}.
export function table(columns, rows, { sort = null, caption = "" } = {}) {
  const order = sort ?? { column: -1, down: false };
  const body = el("tbody");
  const heads = columns.map((column, number) =>
    el("th", { scope: "col", class: column.number ? "number" : "" },
      column.value ? el("button", { type: "button", onclick: () => turn(number) }, column.title) : column.title));
  function turn(number) {
    order.down = order.column === number ? !order.down : false;
    order.column = number;
    fill();
  }
  function fill() {
    let ordered = [...rows];
    const by = columns[order.column];
    if (by?.value) {
      ordered.sort((a, b) => compare(by.value(a), by.value(b)) * (order.down ? -1 : 1));
    }
    heads.forEach((head, number) => {
      head.setAttribute("aria-sort", number !== order.column ? "none" : order.down ? "descending" : "ascending");
    });
    body.replaceChildren(...ordered.slice(0, 1000).map((row) => el("tr", {},
      columns.map((column) => el("td", { class: column.number ? "number" : "" }, column.cell ? column.cell(row) : brief(column.value(row)))))));
  }
  fill();
  return el("div", { class: "scroll" }, el("table", {}, caption ? el("caption", { class: "dim" }, caption) : "", el("thead", {}, el("tr", {}, heads)), body));
}

function compare(a, b) {
  const missing = (value) => value === null || value === undefined || value === "";
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
