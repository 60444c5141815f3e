// Elements and requests. Text from runs only ever becomes text nodes: nothing is parsed as HTML.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

async function answer(response) {
  const data = response.headers.get("content-type")?.startsWith("application/json") ? await response.json() : null;
  if (!response.ok) throw new Error(data?.error ?? `the server answered ${response.status}`);
  return data;
}

export function address(parts, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const path = parts.map((part) => encodeURIComponent(part)).join("/");
  return `/${path}${query.size ? `?${query}` : ""}`;
}

export async function get(parts, parameters = {}) {
  return answer(await fetch(address(["api", ...parts], parameters)));
}

export async function post(parts, body) {
  return answer(await fetch(address(["api", ...parts]), {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  }));
}

export function notice(text) {
  const place = document.getElementById("notice");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(notice.timer);
  notice.timer = setTimeout(() => place.classList.remove("shown"), 5000);
}

// ------------------------------------------------------------------------------------ numbers

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${trim((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${trim((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return trim(value.toPrecision(size >= 1000 ? 4 : 3));
}

const trim = (text) => (text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text);

export const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

export function number(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  return Math.abs(value) >= 1e7 ? short(value) : value.toLocaleString("en", { maximumFractionDigits: digits });
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const all = Math.round(seconds), pad = (each) => String(each).padStart(2, "0");
  const hours = Math.floor(all / 3600), minutes = Math.floor(all / 60) % 60;
  return hours ? `${hours}:${pad(minutes)}:${pad(all % 60)}` : `${minutes}:${pad(all % 60)}`;
}

// When a run was made, `20261115-222429` (UTC), as local time.
export function when(stamp) {
  const match = /^(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)$/.exec(stamp ?? "");
  if (!match) return stamp ?? "–";
  const [, year, month, day, hour, minute, second] = match.map(Number);
  return new Date(Date.UTC(year, month - 1, day, hour, minute, second)).toLocaleString("sv").slice(0, 16);
}

export const color = (index) => `var(--c${index % 8})`;

// ----------------------------------------------------------------------------------- elements

export function empty(title, text, command) {
  return h("div", { class: "empty" }, h("h2", {}, title), text && h("p", {}, text), command && h("pre", {}, command));
}

export function failed(error) {
  return h("div", { class: "empty bad" }, h("h2", {}, "That did not work"), h("p", {}, error.message));
}

// What a run is called: its name, or its folder's name without the time.
export function called(run) {
  const match = run.name === run.path ? /^(.+)-\d{8}-\d{6}-[0-9a-f]{6}$/.exec(run.path) : null;
  return match ? match[1] : run.name ?? run.path;
}

export const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

export function pill(status) {
  return h("span", { class: `pill ${/^[a-z]+$/.test(status ?? "") ? status : ""}` }, status ?? "unknown");
}

export function table(heads, rows, name = "") {
  const row = (cells, tag) => h("tr", {}, cells.map((cell, index) =>
    h(tag, { class: typeof cell === "number" || heads[index]?.right ? "number" : null }, cell instanceof Node || Array.isArray(cell) ? cell : String(cell ?? "–"))));
  return h("div", { class: "scroll" }, h("table", { class: name }, h("thead", {}, row(heads.map((each) => each.text ?? each), "th")), h("tbody", {}, rows.map((each) => row(each, "td")))));
}

export function sparkline(values, width = 96, height = 26) {
  const picture = svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  if (values && values.length > 1) {
    const low = Math.min(...values), high = Math.max(...values);
    const points = values.map((value, index) => `${((index / (values.length - 1)) * (width - 4) + 2).toFixed(1)},${(height - 3 - (high > low ? (value - low) / (high - low) : 0.5) * (height - 6)).toFixed(1)}`);
    picture.append(svg("polyline", { points: points.join(" ") }));
  }
  return picture;
}
