// Draws each chart of the page by uPlot, from the JSON that charts.py put beside it.
"use strict";

const KINDS = {
  line: {width: 1.6},
  dashed: {width: 1.6, dash: [6, 3]},
  faint: {width: 0.8, class: "faint"},
  high: {width: 0, class: "faint"}, // of a band, whose low follows
  low: {width: 0, class: "faint"},
  dots: {paths: () => null, points: {show: true, size: 9}, class: "faint"},
};
const WRITE = {
  number: value => value && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e9)
    ? value.toExponential(2) : value.toLocaleString("en", {maximumSignificantDigits: 7}),
  percent: value => `${+(100 * value).toPrecision(3)} %`,
  duration: seconds => {
    const [unit, size] = seconds >= 0.9995 ? ["s", 1] : seconds >= 9.995e-4 ? ["ms", 1e-3] : ["µs", 1e-6];
    return `${+(seconds / size).toPrecision(3)} ${unit}`;
  },
  clock: seconds => {
    const days = Math.floor(seconds / 86400);
    return (days ? `${days} d ` : "") + new Date(1e3 * seconds).toISOString().slice(11, 19);
  },
};
const FONT = "12px system-ui, sans-serif";
const probe = document.body.appendChild(document.createElement("i"));

// What a name of the page's style is now, in light or in dark.
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

function write({unit, rows}, value) {
  return value == null ? "" : rows.length ? rows[value] ?? "" : WRITE[unit](value);
}

// Round numbers of a log scale, at most so many.
function powers(low, high, most) {
  const place = (lead, power) => +`${lead}e${power}`, first = Math.floor(Math.log10(low)), last = Math.log10(high);
  const every = leads => Array.from({length: Math.floor(last) - first + 1}, (_, at) => leads.map(lead => place(lead, first + at)));
  const inside = leads => every(leads).flat().filter(value => low <= value && value <= high);
  const found = [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]].map(inside);
  return found.find(places => places.length <= most) ?? found.at(-1).filter((_, at) => at % Math.ceil(found.at(-1).length / most) === 0);
}

function axis(of, room) {
  const stroke = () => colour("muted"), grid = {stroke: () => colour("grid"), width: 1};
  const found = {font: FONT, stroke, grid, ticks: {show: false}, values: (plot, at) => at.map(value => write(of, value))};
  if (of.rows.length) found.splits = () => of.rows.map((name, row) => row);
  if (of.is_log) Object.assign(found, {splits: (plot, at, low, high) => powers(low, high, room(plot)), filter: (plot, at) => at});
  return found;
}

function options(place, {x, y, lines, restarts}) {
  const ranges = {x: (plot, low, high) => [low, high], y: () => [y.low, y.high]};
  const longest = Math.max(6, ...y.rows.map(name => name.length));
  return {
    ...size(place, y),
    padding: [10, 28, 0, 0],
    series: [
      {label: x.label, value: (plot, value) => write(x, value)},
      ...lines.map(line => ({
        label: line.label, stroke: () => colour(line.colour), value: (plot, value) => write(y, value), ...KINDS[line.kind],
        points: {size: 5, fill: () => colour(line.colour), ...KINDS[line.kind].points},
      })),
    ],
    bands: lines.flatMap(({kind}, at) => kind === "high" ? [{series: [at + 1, at + 2], fill: () => colour("band")}] : []),
    scales: {
      x: {time: x.unit === "clock", distr: x.is_log ? 3 : 1, range: ranges.x},
      y: {distr: y.is_log ? 3 : 1, range: ranges.y},
    },
    axes: [
      {...axis(x, plot => plot.over.clientWidth / 70), label: x.label, labelFont: FONT, labelSize: 20, size: 32, gap: 9},
      {...axis(y, plot => plot.over.clientHeight / 24), size: 14 + 7 * longest},
    ],
    tzDate: seconds => uPlot.tzDate(new Date(1e3 * seconds), "Etc/UTC"),
    cursor: {drag: {x: true, y: true, uni: 40}, focus: {prox: 24}, points: {one: true}},
    focus: {alpha: 0.4},
    legend: {markers: {width: 0, fill: (plot, at) => at ? `var(--${lines[at - 1].colour})` : "none"}},
    hooks: {
      draw: [plot => restarts.forEach(at => mark(plot, at, restarts.length))],
      setSeries: [(plot, focused) => plot.root.querySelectorAll(".u-series").forEach(
        (row, at) => row.classList.toggle("focused", at === focused))],
    },
  };
}

// A dotted line where the run was restarted.
function mark({ctx, bbox, valToPos}, at, count) {
  const left = Math.round(valToPos(at, "x", true)), pixels = devicePixelRatio;
  if (left < bbox.left || left > bbox.left + bbox.width) return;
  ctx.save();
  Object.assign(ctx, {fillStyle: colour("muted"), strokeStyle: colour("muted"), lineWidth: pixels, textAlign: "left"});
  ctx.font = FONT.replace("12", 12 * pixels);
  ctx.setLineDash([pixels, 3 * pixels]);
  ctx.stroke(new Path2D(`M${left} ${bbox.top}v${bbox.height}`));
  if (count <= 6) ctx.fillText("restart", left + 5 * pixels, bbox.top + 10 * pixels);
  ctx.restore();
}

function size(place, y) {
  const width = place.clientWidth;
  return {width, height: y.rows.length ? 60 + 30 * y.rows.length : width > 600 ? 280 : 220};
}

for (const place of document.querySelectorAll(".chart")) {
  const chart = JSON.parse(place.querySelector("script").textContent);
  const tables = [[[chart.x.low, chart.x.high]], ...chart.lines.map(line => line.points)]; // the first shows all of the axis
  const nulls = tables.map(() => [0, 2]); // a null is a gap, as wide as what other lines have within it
  const plot = new uPlot(options(place, chart), uPlot.join(tables, nulls), place);
  new ResizeObserver(() => plot.setSize(size(place, chart.y))).observe(place);
  for (const query of ["print", "(prefers-color-scheme: dark)"])
    matchMedia(query).addEventListener("change", () => plot.redraw());
}
