"use strict";
// Makes the figures of a report interactive: readout, zoom, curves on and off, smoothing, log scale.
// The data of a figure is the JSON beside it. Texts are only ever set as text, never as markup.
(() => {
  const SPACE = "http://www.w3.org/2000/svg";
  const WIDTH = 470, HEIGHT = 260, LEFT = 62, RIGHT = 14, TOP = 10, BOTTOM = 30;
  const FEW = 20; // points of a line that is shown with markers
  const DRAG = 6; // pixels that make a zoom of a click

  const make = (parent, name, attributes = {}, text = null) => {
    const svg = parent instanceof SVGElement || name === "svg";
    const node = svg ? document.createElementNS(SPACE, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    parent.append(node);
    return node;
  };

  // A number as text; of the labels of an axis, the largest one decides the unit.
  const short = (value, largest = Math.abs(value)) => {
    const size = Math.abs(value);
    if (largest >= 1e4 && largest < 1e12 && size !== 0) {
      const [unit, sign] = largest >= 1e9 ? [1e9, "B"] : largest >= 1e6 ? [1e6, "M"] : [1e3, "k"];
      return `${+(value / unit).toPrecision(4)}${sign}`;
    }
    return size !== 0 && (size < 1e-3 || size >= 1e12) ? value.toExponential(1) : `${+value.toPrecision(4)}`;
  };

  const ticks = (low, high, count) => {
    const rough = (high - low) / count;
    if (!(rough > 0) || !Number.isFinite(rough)) return [low];
    const size = 10 ** Math.floor(Math.log10(rough));
    const step = size * [1, 2, 2.5, 5, 10].find((each) => size * each >= 0.7 * rough);
    const found = [];
    for (let at = Math.ceil(low / step); at * step <= high; at += 1) found.push(at * step);
    return found;
  };

  // Exponential moving average without the bias of its first values.
  const smoothed = (values, weight) => {
    if (weight === 0) return values;
    let last = 0, debias = 0;
    return values.map((value) => {
      if (value === null) return null;
      last = weight * last + (1 - weight) * value;
      debias = weight * debias + 1 - weight;
      return last / debias;
    });
  };

  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    return x - xs[low] < xs[high] - x ? low : high;
  };

  const drawPanel = (panel, view, redraw, color) => {
    const lines = panel.lines.filter((line) => !view.hidden.has(line.label));
    panel.svg.replaceChildren();
    const xs = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
    let [x0, x1] = view.range ?? [Math.min(...xs), Math.max(...xs)];
    if (!view.range && x0 > 0 && x0 <= 0.25 * x1) x0 = 0;
    if (!(x1 > x0)) [x0, x1] = [x0 - 0.5, x0 + 0.5];
    const scale = view.log ? (y) => (y > 0 ? Math.log10(y) : null) : (y) => y;
    let low = Infinity, high = -Infinity;
    const drawn = lines.map((line) => ({ line, ys: smoothed(line.y, view.smoothing) }));
    for (const { line, ys } of drawn) {
      line.x.forEach((x, at) => {
        if (x < x0 || x > x1) return;
        for (const value of [ys[at], line.low?.[at], line.high?.[at]]) {
          const y = value === null || value === undefined ? null : scale(value);
          if (y !== null) [low, high] = [Math.min(low, y), Math.max(high, y)];
        }
      });
    }
    if (panel.yRange && !view.log) [low, high] = panel.yRange;
    else if (!(high >= low)) [low, high] = [0, 1];
    else { const room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 0.5; low -= room; high += room; }
    const across = (x) => LEFT + ((WIDTH - LEFT - RIGHT) * (x - x0)) / (x1 - x0);
    const up = (y) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (y - low)) / (high - low);
    const place = (value) => { const y = value === null ? null : scale(value); return y === null ? null : up(y); };

    const clip = `clip-${panel.id}`;
    const box = { x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM };
    make(make(make(panel.svg, "defs"), "clipPath", { id: clip }), "rect", { ...box, x: box.x - 4, width: box.width + 8, y: 0, height: box.height + TOP + 4 });
    for (const mark of ticks(low, high, 5)) {
      make(panel.svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: up(mark), y2: up(mark), class: "rule" });
      const label = short(view.log ? 10 ** mark : mark);
      make(panel.svg, "text", { x: LEFT - 7, y: up(mark) + 4, "text-anchor": "end" }, label);
    }
    for (const mark of ticks(x0, x1, 6)) {
      make(panel.svg, "line", { x1: across(mark), x2: across(mark), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4, class: "axis" });
      make(panel.svg, "text", { x: across(mark), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, short(mark, Math.max(Math.abs(x0), Math.abs(x1))));
    }
    make(panel.svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM, class: "axis" });
    const plot = make(panel.svg, "g", { "clip-path": `url(#${clip})` });
    const path = (line, ys) => {
      let found = "", pen = "M";
      line.x.forEach((x, at) => {
        const y = place(ys[at]);
        if (y === null) { pen = "M"; return; }
        found += `${pen}${across(x).toFixed(1)},${y.toFixed(1)}`;
        pen = "L";
      });
      return found;
    };
    for (const { line } of drawn) {
      if (!line.low) continue;
      const there = line.x.map((x, at) => [across(x), place(line.low[at]), place(line.high[at])]).filter(([, a, b]) => a !== null && b !== null);
      const edge = [...there.map(([x, a]) => `${x},${a}`), ...there.reverse().map(([x, , b]) => `${x},${b}`)];
      make(plot, "polygon", { points: edge.join(" "), fill: color(line), opacity: 0.16 });
    }
    for (const { line, ys } of drawn) {
      const own = { fill: "none", stroke: color(line), "stroke-linejoin": "round", "stroke-dasharray": line.dash };
      if (view.smoothing > 0) make(plot, "path", { ...own, d: path(line, line.y), "stroke-width": 1, opacity: 0.25 });
      const strong = line.thin ? { "stroke-width": 1, opacity: 0.55 } : { "stroke-width": 2 };
      make(plot, "path", { ...own, d: path(line, ys), ...strong });
      if (line.x.length > FEW) continue;
      line.x.forEach((x, at) => {
        const y = place(ys[at]);
        if (y !== null) make(plot, "circle", { cx: across(x), cy: y, r: line.thin ? 1.8 : 3, fill: color(line) });
      });
    }
    const cross = make(panel.svg, "line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cross" });
    const window_ = make(panel.svg, "rect", { y: TOP, height: box.height, class: "window" });
    const where = (event) => {
      const frame = panel.svg.getBoundingClientRect();
      const at = ((event.clientX - frame.left) / frame.width) * WIDTH;
      return Math.min(Math.max(at, LEFT), WIDTH - RIGHT);
    };
    const value = (at) => x0 + ((at - LEFT) / (WIDTH - LEFT - RIGHT)) * (x1 - x0);
    let from = null;
    panel.svg.onpointerdown = (event) => { from = where(event); panel.svg.setPointerCapture(event.pointerId); };
    panel.svg.onpointermove = (event) => {
      const at = where(event), x = value(at);
      cross.setAttribute("x1", at); cross.setAttribute("x2", at); cross.style.display = "inline";
      panel.readout.replaceChildren();
      make(panel.readout, "b", {}, `${panel.xLabel} ${Math.round(x) === x || x1 - x0 > 20 ? Math.round(x).toLocaleString("en") : short(x)}`);
      for (const { line, ys } of drawn) {
        const index = nearest(line.x, x);
        if (ys[index] === null) continue;
        const row = make(panel.readout, "span", { style: `--line: ${color(line)}` });
        const band = line.low ? ` [${short(line.low[index])}, ${short(line.high[index])}]` : "";
        row.textContent = `${line.label || panel.yLabel}: ${short(ys[index])}${band}`;
      }
      if (from !== null && Math.abs(at - from) > DRAG) {
        window_.setAttribute("x", Math.min(at, from)); window_.setAttribute("width", Math.abs(at - from));
        window_.style.display = "inline";
      }
    };
    panel.svg.onpointerup = (event) => {
      const at = where(event), start = from;
      from = null;
      if (start !== null && Math.abs(at - start) > DRAG) { view.range = [value(Math.min(at, start)), value(Math.max(at, start))]; redraw(); }
    };
    panel.svg.onpointerleave = () => { cross.style.display = "none"; panel.readout.replaceChildren(); };
    panel.svg.ondblclick = () => { view.range = null; redraw(); };
  };

  document.querySelectorAll("figure.plot").forEach((figure, number) => {
    const chart = JSON.parse(figure.querySelector("script").textContent);
    const view = { hidden: new Set(), range: null, smoothing: 0, log: false };
    const color = (line) => `var(--c${line.color})`;
    const body = make(figure, "div", { class: "interactive" });
    make(body, "figcaption", {}, chart.note);
    const bar = make(body, "div", { class: "bar" });
    const smooth = make(make(bar, "label", {}, "smoothing "), "input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
    const log = make(make(bar, "label", {}, "log scale "), "input", { type: "checkbox" });
    const reset = make(bar, "button", { type: "button" }, "whole range");
    make(bar, "span", { class: "hint" }, "drag to zoom, double-click to see all, click a name to hide it");
    const grid = make(body, "div", { class: "panels" });
    const panels = chart.panels.map((panel, index) => {
      const cell = make(grid, "div", { class: "panel" });
      make(cell, "h3", {}, panel.title);
      if (panel.yLabel && panel.yLabel !== panel.title) make(cell, "p", { class: "unit" }, panel.yLabel);
      const svg = make(cell, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": panel.title });
      make(cell, "p", { class: "unit x" }, panel.xLabel);
      const legend = make(cell, "div", { class: "legend" });
      const readout = make(cell, "div", { class: "readout" });
      return { ...panel, id: `${number}-${index}`, svg, legend, readout };
    });
    const redraw = () => {
      for (const panel of panels) {
        drawPanel(panel, view, redraw, color);
        const named = panel.lines.filter((line) => line.label);
        panel.legend.replaceChildren();
        if (named.length === 1 && named[0].label === panel.yLabel) continue;
        for (const line of named) {
          const off = view.hidden.has(line.label);
          const name = make(panel.legend, "button", { type: "button", style: `--line: ${color(line)}`, "aria-pressed": String(!off) }, line.label);
          name.onclick = () => { if (off) view.hidden.delete(line.label); else view.hidden.add(line.label); redraw(); };
        }
      }
      reset.disabled = view.range === null;
    };
    smooth.oninput = () => { view.smoothing = Number(smooth.value); redraw(); };
    log.onchange = () => { view.log = log.checked; redraw(); };
    reset.onclick = () => { view.range = null; redraw(); };
    figure.querySelector(".still").remove();
    redraw();
  });
})();
