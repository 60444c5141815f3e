// Curves over steps on a canvas: zoom, readout, legend, smoothing, log scale, bands, marks.
// It knows nothing of the page: new Chart(element, options), then chart.show(lines).
//   line: {name, steps, values, low?, high?, color: 0…7, hidden?}      mark: {step, text}

const LEFT = 54, RIGHT = 12, TOP = 8, BOTTOM = 34;

export class Chart {
  constructor(place, { title = "", unit = "", label = "step", log = false, smooth = 0, height = 190, onzoom = null, onhover = null, actions = [] } = {}) {
    Object.assign(this, { title, unit, label, log, smooth, onzoom, onhover });
    this.lines = [];
    this.marks = [];
    this.range = null; // steps that are shown; null: all
    this.hover = null; // the step under the pointer
    this.drag = null;
    this.cursor = null; // a step that is marked for good
    this.readout = make("output", "readout");
    this.legend = make("div", "legend");
    this.canvas = make("canvas", "curve");
    this.canvas.style.height = `${height}px`;
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    const head = make("div", "chart-head");
    const name = make("h3", "", title);
    if (unit) name.append(make("small", "", ` ${unit}`));
    head.append(name, this.readout, ...actions);
    this.element = make("figure", "chart");
    this.element.append(head, this.canvas, this.legend);
    place.append(this.element);
    this.listen();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.canvas);
  }

  show(lines, marks = []) {
    const hidden = new Set(this.lines.filter((line) => line.hidden).map((line) => line.name));
    this.lines = lines.map((line) => ({ ...line, hidden: line.hidden || hidden.has(line.name) }));
    this.marks = marks;
    this.writeLegend();
    this.draw();
  }

  set(options) {
    Object.assign(this, options);
    this.draw();
  }

  zoom(range) {
    this.range = range;
    this.draw();
  }

  close() {
    this.observer.disconnect();
    this.element.remove();
  }

  // -------------------------------------------------------------------------------- scales

  get drawn() {
    return this.lines.filter((line) => !line.hidden && line.steps.length);
  }

  xSpan() {
    if (this.range) return this.range;
    const ends = this.drawn.flatMap((line) => [line.steps[0], line.steps[line.steps.length - 1]]);
    return ends.length ? widened(Math.min(...ends), Math.max(...ends), 1) : [0, 1];
  }

  ySpan([first, last]) {
    let low = Infinity, high = -Infinity;
    for (const line of this.drawn) {
      for (let at = 0; at < line.steps.length; at++) {
        if (line.steps[at] < first || line.steps[at] > last) continue;
        for (const value of [line.values[at], line.low?.[at], line.high?.[at]]) {
          if (value === null || value === undefined || !Number.isFinite(value) || (this.log && value <= 0)) continue;
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
    }
    if (low > high) return this.log ? [0.1, 1] : [0, 1];
    if (this.log) return low === high ? [low / 2, high * 2] : [low, high];
    const room = (high - low) * 0.05;
    return low === high ? widened(low, high, Math.abs(low) * 0.1 || 1) : [low - room, high + room];
  }

  scales() {
    const { width, height } = this.size;
    const x = this.xSpan(), y = this.ySpan(x);
    const f = this.log ? Math.log : (value) => value;
    const [low, high] = y.map(f);
    return {
      x, y, width, height,
      px: (step) => LEFT + ((step - x[0]) / (x[1] - x[0])) * (width - LEFT - RIGHT),
      py: (value) => height - BOTTOM - ((f(value) - low) / (high - low || 1)) * (height - TOP - BOTTOM),
      step: (pixel) => x[0] + ((pixel - LEFT) / (width - LEFT - RIGHT)) * (x[1] - x[0]),
    };
  }

  // ------------------------------------------------------------------------------- drawing

  draw() {
    const box = this.canvas.getBoundingClientRect();
    if (!box.width) return;
    const dense = window.devicePixelRatio || 1;
    this.size = { width: box.width, height: box.height };
    this.canvas.width = Math.round(box.width * dense);
    this.canvas.height = Math.round(box.height * dense);
    const pen = this.canvas.getContext("2d");
    pen.scale(dense, dense);
    const style = getComputedStyle(this.element);
    const ink = (name) => style.getPropertyValue(name).trim();
    pen.font = `11px ${style.fontFamily}`;
    const scale = this.scales();
    this.drawAxes(pen, scale, ink);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, scale.width - LEFT - RIGHT, scale.height - BOTTOM + 1);
    pen.clip();
    for (const line of this.drawn) this.drawLine(pen, scale, line, ink(`--c${line.color % 8}`));
    this.drawMarks(pen, scale, ink);
    pen.restore();
    const known = this.drawn.map((line) => `${line.name}: ${compact(line.values[line.values.length - 1])}`);
    this.canvas.setAttribute("aria-label", `${this.title} over ${this.label}; last ${known.slice(0, 4).join(", ") || "nothing yet"}`);
    if (!this.drawn.length) {
      pen.fillStyle = ink("--faint");
      pen.textAlign = "center";
      pen.fillText("no values yet", scale.width / 2, scale.height / 2);
    }
    this.writeReadout();
  }

  drawAxes(pen, scale, ink) {
    pen.lineWidth = 1;
    pen.fillStyle = ink("--faint");
    pen.strokeStyle = ink("--grid");
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const value of this.log ? logTicks(...scale.y) : ticks(...scale.y, Math.max(3, Math.round(scale.height / 36)))) {
      const at = Math.round(scale.py(value)) + 0.5;
      if (at < TOP - 1 || at > scale.height - BOTTOM + 1) continue;
      pen.beginPath();
      pen.moveTo(LEFT, at);
      pen.lineTo(scale.width - RIGHT, at);
      pen.stroke();
      pen.fillText(compact(value), LEFT - 6, at);
    }
    pen.textBaseline = "alphabetic";
    const steps = ticks(...scale.x, Math.max(2, Math.floor(scale.width / 110)));
    for (const step of steps) {
      const at = scale.px(step);
      pen.textAlign = at > scale.width - 30 ? "right" : "center";
      pen.fillText(compact(step), at > scale.width - 30 ? scale.width - 4 : at, scale.height - 19);
    }
    pen.textAlign = "center";
    pen.fillText(this.label, (LEFT + scale.width - RIGHT) / 2, scale.height - 5);
  }

  drawLine(pen, scale, line, ink) {
    if (line.low && line.high) {
      pen.globalAlpha = 0.16;
      pen.fillStyle = ink;
      pen.beginPath();
      line.steps.forEach((step, at) => pen[at ? "lineTo" : "moveTo"](scale.px(step), scale.py(this.above(line.high[at], scale))));
      for (let at = line.steps.length - 1; at >= 0; at--) pen.lineTo(scale.px(line.steps[at]), scale.py(this.above(line.low[at], scale)));
      pen.fill();
    }
    pen.strokeStyle = ink;
    pen.lineJoin = "round";
    const smooth = this.smooth > 0 && line.steps.length > 2;
    pen.globalAlpha = smooth ? 0.25 : line.thin ? 0.45 : 1;
    pen.lineWidth = smooth || line.thin ? 1 : 1.8;
    this.path(pen, scale, line.steps, line.values);
    pen.globalAlpha = 1;
    if (smooth) {
      pen.lineWidth = 1.8;
      this.path(pen, scale, line.steps, smoothed(line.steps, line.values, this.smooth));
    }
  }

  path(pen, scale, steps, values) {
    let open = false, last = null;
    pen.beginPath();
    for (let at = 0; at < steps.length; at++) {
      const value = values[at];
      if (value === null || !Number.isFinite(value) || (this.log && value <= 0)) {
        open = false;
        continue;
      }
      last = [scale.px(steps[at]), scale.py(value)];
      pen[open ? "lineTo" : "moveTo"](...last);
      open = true;
    }
    pen.stroke();
    if (steps.length === 1 && last) {
      pen.beginPath();
      pen.arc(...last, 2.5, 0, 7);
      pen.fillStyle = pen.strokeStyle;
      pen.fill();
    }
  }

  drawMarks(pen, scale, ink) {
    const bottom = scale.height - BOTTOM;
    pen.fillStyle = ink("--warn");
    for (const mark of this.marks) {
      const at = scale.px(mark.step);
      pen.beginPath();
      pen.moveTo(at - 5, bottom);
      pen.lineTo(at + 5, bottom);
      pen.lineTo(at, bottom - 9);
      pen.fill();
    }
    const upright = (step, name, width) => {
      pen.strokeStyle = ink(name);
      pen.lineWidth = width;
      pen.beginPath();
      pen.moveTo(scale.px(step), TOP);
      pen.lineTo(scale.px(step), bottom);
      pen.stroke();
    };
    if (this.cursor !== null) upright(this.cursor, "--accent", 2);
    if (this.drag) {
      pen.fillStyle = ink("--accent");
      pen.globalAlpha = 0.15;
      const [from, to] = this.drag.map(scale.px);
      pen.fillRect(Math.min(from, to), TOP, Math.abs(to - from), bottom - TOP);
      pen.globalAlpha = 1;
    } else if (this.hover !== null) {
      upright(this.hover, "--faint", 1);
      for (const line of this.drawn) {
        const at = nearest(line.steps, this.hover), value = line.values[at];
        if (value === null || (this.log && value <= 0)) continue;
        pen.fillStyle = ink(`--c${line.color % 8}`);
        pen.beginPath();
        pen.arc(scale.px(line.steps[at]), scale.py(value), 3.5, 0, 7);
        pen.fill();
      }
    }
  }

  above(value, scale) {
    return this.log && !(value > 0) ? scale.y[0] : value;
  }

  // --------------------------------------------------------------------------------- words

  writeReadout() {
    const one = this.drawn.length === 1 ? this.drawn[0] : null;
    const step = this.hover ?? this.cursor;
    const mark = step === null ? null : this.marks.find((each) => this.size && Math.abs(this.scales().px(each.step) - this.scales().px(step)) < 6);
    if (step === null) this.readout.textContent = one ? compact(one.values[one.values.length - 1]) : "";
    else if (one) {
      const at = nearest(one.steps, step);
      this.readout.textContent = `${compact(one.values[at])} at ${Math.round(one.steps[at]).toLocaleString("en")}`;
    } else this.readout.textContent = `at ${Math.round(step).toLocaleString("en")}`;
    if (mark) this.readout.textContent += ` · ${mark.text}`;
    for (const [index, item] of [...this.legend.children].entries()) {
      const line = this.lines[index];
      const at = step === null ? line.values.length - 1 : nearest(line.steps, step);
      item.lastChild.textContent = line.hidden || !line.values.length ? "" : ` ${compact(line.values[at])}`;
    }
  }

  writeLegend() {
    if (this.lines.length < 2) return this.legend.replaceChildren();
    this.legend.replaceChildren(...this.lines.map((line) => {
      const item = make("button", line.hidden ? "off" : "");
      item.type = "button";
      item.setAttribute("aria-pressed", String(!line.hidden));
      const swatch = make("i", "");
      swatch.style.setProperty("background", `var(--c${line.color % 8})`);
      item.append(swatch, make("span", "", line.name), make("b", ""));
      item.addEventListener("click", () => {
        line.hidden = !line.hidden;
        this.writeLegend();
        this.draw();
      });
      return item;
    }));
  }

  // ------------------------------------------------------------------------------- pointer

  listen() {
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return Math.min(Math.max(event.clientX - box.left, LEFT), box.width - RIGHT);
    };
    const point = (step) => {
      this.hover = step;
      this.draw();
      this.onhover?.(step);
    };
    this.canvas.addEventListener("pointermove", (event) => {
      const step = this.scales().step(place(event));
      if (this.drag) this.drag[1] = step;
      point(step);
    });
    this.canvas.addEventListener("pointerleave", () => !this.drag && point(null));
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button !== 0) return;
      const step = this.scales().step(place(event));
      this.drag = [step, step];
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (!this.drag) return;
      const scale = this.scales(), [from, to] = this.drag.map(scale.px);
      const span = [...this.drag].sort((a, b) => a - b);
      this.drag = null;
      if (Math.abs(to - from) > 8) this.rezoom(span);
      else this.onclick?.(scale.step(place(event)));
      this.draw();
    });
    this.canvas.addEventListener("dblclick", () => this.rezoom(null));
    this.canvas.addEventListener("keydown", (event) => {
      const [first, last] = this.xSpan(), by = (last - first) / 50;
      if (event.key === "Escape") this.rezoom(null);
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const step = (this.hover ?? last) + (event.key === "ArrowLeft" ? -by : by);
        point(Math.min(Math.max(step, first), last));
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.canvas.addEventListener("blur", () => this.hover !== null && point(null));
  }

  rezoom(range) {
    this.zoom(range);
    this.onzoom?.(range);
  }
}

// ----------------------------------------------------------------------------------- numbers

function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

const widened = (low, high, by) => (low === high ? [low - by, high + by] : [low, high]);

export function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}

// An exponential mean whose memory is a share of the width: the same for dense and sparse points.
export function smoothed(steps, values, weight) {
  const gap = (steps[steps.length - 1] - steps[0]) / Math.max(steps.length - 1, 1) || 1;
  let sum = 0, count = 0;
  return values.map((value, at) => {
    const keep = weight ** (at ? (steps[at] - steps[at - 1]) / gap : 1);
    if (value !== null && Number.isFinite(value)) {
      sum = keep * sum + (1 - keep) * value;
      count = keep * count + (1 - keep);
    }
    return count > 0 ? sum / count : null;
  });
}

export function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, size = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].find((each) => each * size >= raw) * size;
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

export function logTicks(low, high) {
  const decades = Math.log10(high / low), found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const part of decades < 2 ? [1, 2, 5] : [1]) found.push(part * 10 ** power);
  }
  const every = Math.ceil(found.length / 7);
  return found.filter((each, at) => at % every === 0);
}

export function compact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const [divisor, letter] = size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  const text = (value / divisor).toPrecision(size >= 1000 && divisor === 1 ? 4 : 3);
  return (text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text) + letter;
}
