// A Bokeh figure in the page's colours, with axes that name their unit. No CustomJS: the policy forbids eval.
const { Plotting } = Bokeh;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function axisFormatter(labels) {
  const formatter = new Bokeh.BasicTickFormatter();
  formatter.doFormat = labels;
  return formatter;
}

// Ticks of one axis share one unit and as many digits as tell neighbours apart; decades of a log axis have their own.
function unitFormatter(unit, log) {
  return axisFormatter((ticks) => {
    if (log && unit !== "bytes") return ticks.map((tick) => format(tick, unit));
    if (unit === "bytes") return ticks.map((tick) => format(Math.round(tick), "bytes"));
    const largest = Math.max(...ticks.map(Math.abs));
    const [scale, name] = scaleFor(largest, unit);
    const scaled = ticks.map((tick) => tick / scale);
    const gaps = scaled.slice(1).map((tick, i) => Math.abs(tick - scaled[i])).filter((gap) => gap > 0);
    const gap = gaps.length ? Math.min(...gaps) : 1;
    return scaled.map((tick) => `${digits(tick, gap)} ${name}`.trim());
  });
}

function styleAxis(axis, label) {
  Object.assign(axis, {
    axis_label: label, axis_label_text_color: colour("quiet"), axis_label_text_font_style: "normal",
    axis_label_text_font_size: "12px", major_label_text_color: colour("text"), major_label_text_font_size: "12px",
    axis_line_color: colour("line"), major_tick_line_color: colour("line"), minor_tick_line_color: null,
  });
}

function makeFigure({ xType = "linear", yType = "linear", xRange, yRange, height, xLabel, yLabel, unit, xFormatter }) {
  const narrow = window.innerWidth < 600;
  const pan = new Bokeh.PanTool();
  const tools = [pan, new Bokeh.BoxZoomTool(), new Bokeh.WheelZoomTool({ dimensions: "width" }), new Bokeh.ResetTool()];
  const figure = Plotting.figure({
    tools, active_drag: narrow ? null : pan, active_scroll: null,
    x_axis_type: xType, y_axis_type: yType, x_range: xRange, y_range: yRange,
    height, sizing_mode: "stretch_width", output_backend: "canvas", toolbar_location: narrow ? "above" : "right",
    background_fill_color: colour("panel"), border_fill_color: colour("panel"), outline_line_color: colour("line"),
    min_border_left: narrow ? 40 : 60,
  });
  figure.toolbar.logo = null;
  figure.xgrid.grid_line_color = null;
  figure.ygrid.grid_line_color = colour("grid");
  styleAxis(figure.xaxis, xLabel);
  styleAxis(figure.yaxis, narrow ? null : yLabel);
  if (unit) figure.yaxis.formatter = unitFormatter(unit, yType === "log");
  if (xFormatter) figure.xaxis.formatter = xFormatter;
  return figure;
}

function label(attributes) {
  return new Bokeh.Label({
    text_font_size: "11px", text_color: colour("text"), background_fill_color: colour("panel"),
    background_fill_alpha: 0.8, ...attributes,
  });
}

// Draws into an emptied host; a host that was emptied again meanwhile is left alone.
async function show(figure, host) {
  host.replaceChildren();
  host.bokehView = await Plotting.show(figure, host);
  return host.bokehView;
}

// Draws once, when the element first comes near the screen; from then on also when the colours change.
const seen = [];
function whenSeen(target, draw) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    seen.push(draw);
    draw();
  }, { rootMargin: "200px" });
  observer.observe(target);
}

function simpleTable(caption, heads, rows) {
  return element("table", {}, element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells.map((cell, i) =>
      element("td", { "data-head": heads[i] }, cell))))));
}
