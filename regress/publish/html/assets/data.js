// The embedded data: read back exactly as docs/report-data.md says.
const report = JSON.parse(document.getElementById("comm-regress-data").textContent);
const UNJUDGED = "not judged";

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

let runsOnce = null;
function loadRuns() {
  runsOnce ??= Promise.all([unpack(report.runs), unpack(report.environments)])
    .then(([runs, environments]) => ({ ...runs, environments: readEnvironments(environments), trunk: trunkOf(runs) }));
  return runsOnce;
}

// Runs that history consists of: those of the main branch and the latest; all of them where none says it is on main.
function trunkOf({ main }) {
  const some = main.some((on) => on);
  return main.map((on, run) => !some || on === 1 || run === report.latest);
}

function readEnvironments({ sets, set, reported }) {
  return set.map((which, i) => ({
    ...sets[which],
    get reported() {
      return Object.fromEntries(Object.entries(reported).filter(([, { at }]) => at[i] >= 0)
        .map(([fact, { values, at }]) => [fact, values[at[i]]]));
    },
  }));
}

// Differences back to values; null is stepped over.
function sum(steps, scale) {
  let before = 0;
  return steps.map((step) => {
    if (step === null) return null;
    before += step;
    return scale === undefined ? before : before * scale;
  });
}

const pointsOf = new Map();
function loadPoints(series) {
  if (!pointsOf.has(series.id)) pointsOf.set(series.id, unpack(series.points).then((p) => readPoints(series, p)));
  return pointsOf.get(series.id);
}

function readPoints(series, packed) {
  const whole = sum(packed.value);
  const launches = [];
  let at = 0;
  packed.launch_count.forEach((count, i) => {
    launches.push(packed.launches.slice(at, at + count).map((offset) => (whole[i] + offset) * series.step));
    at += count;
  });
  const bound = (offsets) => offsets.map((offset, i) =>
    offset === null ? null : (packed.change[i] + offset) * series.change_step);
  return {
    run: sum(packed.run),
    value: whole.map((value) => value * series.step),
    launches,
    verdict: [...packed.verdict].map((code) => (code === "-" ? UNJUDGED : report.verdicts[Number(code)])),
    baseline: sum(packed.baseline, series.step),
    change: packed.change.map((change) => (change === null ? null : change * series.change_step)),
    low: bound(packed.low),
    high: bound(packed.high),
  };
}

// Values for people: the same forms as in the table.
const SCALES = {
  seconds: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  bytes: [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]],
  bytes_per_second: [[1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"], [1, "B/s"]],
  per_second: [[1, "/s"]],
  ratio: [[0.01, "%"]],
  count: [[1, ""]],
};

function scaleFor(value, unit) {
  const scales = SCALES[unit];
  return scales.find(([scale]) => Math.abs(value) >= scale * 0.9995) ?? scales[scales.length - 1];
}

function digits(value, resolution) {
  const size = Math.abs(value);
  const wanted = resolution > 0 ? Math.max(0, Math.ceil(-Math.log10(resolution))) : 0;
  const usual = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return value.toFixed(Math.min(8, resolution === undefined ? usual : wanted));
}

function format(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "ratio") return `${(value * 100).toFixed(1)} %`;
  if (unit === "count") return Number.isInteger(value) ? String(value) : digits(value);
  if (value === 0) return "0";
  const [scale, name] = scaleFor(value, unit);
  if (unit === "bytes") {
    const amount = value / scale;
    return `${Number.isInteger(amount) ? amount : amount.toFixed(1)}${name}`;
  }
  return `${digits(value / scale)} ${name}`;
}

function signed(ratio) {
  if (ratio === null || ratio === undefined) return "–";
  if (ratio >= 2) return `×${digits(ratio + 1)}`;
  return `${ratio >= 0 ? "+" : "-"}${Math.abs(ratio * 100).toFixed(1)} %`;
}

function interval(low, high) {
  return low === null ? "" : `${(low * 100).toFixed(1)} to ${(high * 100).toFixed(1)} %`;
}

// Foreign text: control and direction-changing characters shown as what they are.
function visible(text) {
  return String(text).replace(/[\n\t]/g, " ").replace(
    /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function factName(fact) {
  return visible(fact === fact.toLowerCase() ? fact.replace(/_version$/, "").replaceAll("_", " ") : fact);
}

function commitName(runs, i) {
  return runs.sha[i] ? runs.sha[i].slice(0, 9) + (runs.dirty[i] ? "+" : "") : runs.run_id[i];
}

function commitUrl(runs, i) {
  const sha = runs.sha[i];
  return report.commit_url && sha && /^[0-9a-f]{7,64}$/i.test(sha) ? report.commit_url.replaceAll("{sha}", sha) : null;
}

function minutes(time) {
  return time ? time.slice(0, 16).replace("T", " ") : "–";
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && typeof value !== "string") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
