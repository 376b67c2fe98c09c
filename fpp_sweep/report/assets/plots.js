// Pages with plots: unpacks plotly, draws each plot when the reader comes near it, and marks trials in all of them.
"use strict";

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");
const TYPING_PAUSE = 300;  // milliseconds
const drawn = new Set();  // names of the plots that have been drawn
const canDrag = !window.matchMedia("(pointer: coarse)").matches;  // a finger scrolls the page instead
const drawing = new Set();  // names of the plots that are being drawn again, which removes the box on them
let plots = {};  // by name: {traces, layout, zoom, n_outliers, choices, group}

function draw(name) {
  const plot = plots[name];
  const element = document.getElementById(name);
  const select = document.querySelector(`[data-choice="${plot.group}"]`);
  const showAll = document.querySelector(`[data-show-all="${plot.group}"]`);
  const choice = plot.choices[select?.value ?? Object.keys(plot.choices)[0]] ?? {};
  const zoom = showAll?.ariaPressed === "true" ? {} : choice.zoom ?? plot.zoom;
  const nOutliers = choice.n_outliers ?? plot.n_outliers;
  if (showAll) Object.assign(showAll, {textContent: `Show all: ${nOutliers} more`, hidden: !nOutliers});
  const layout = merged(plot.layout, choice.layout);
  for (const [axis, range] of Object.entries(zoom)) layout[axis] = {...layout[axis], range};
  const traces = plot.traces.map((trace, index) => withMarks(merged(trace, choice.traces?.[index])));
  const isFirst = !element.data;
  drawing.add(name);
  Plotly.react(element, traces, themed(layout), {responsive: true, displayModeBar: false})
    .then(() => setTimeout(() => drawing.delete(name)));
  if (isFirst) listenTo(name, element);
}

// Nested objects are merged, arrays and plain values replaced.
function merged(original, changes) {
  const result = {...original};
  for (const [key, value] of Object.entries(changes ?? {}))
    result[key] = value?.constructor === Object ? merged(original?.[key], value) : value;
  return result;
}

function themed(layout) {
  const css = getComputedStyle(document.documentElement);
  const [ink, line, card] = ["--ink", "--line", "--card"].map(name => css.getPropertyValue(name).trim());
  const axis = {gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true};
  const result = {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: ink, size: 12, family: getComputedStyle(document.body).fontFamily},
    dragmode: canDrag ? "select" : false,
    selections: [],
    hoverlabel: {bgcolor: card, bordercolor: line, font: {color: ink}, align: "left"},
  };
  const axes = Object.keys(layout).filter(key => /^[xy]axis/.test(key));
  for (const name of new Set(["xaxis", "yaxis", ...axes])) result[name] = {...axis, ...layout[name]};
  return result;
}

// --- marked trials ------------------------------------------------------------------------------------

let marked = null;  // names of trials, or null: all

// Returns a trace that shows the marked trials: other points are faint, other lines and rows are left out.
function withMarks(trace) {
  if (!marked) return trace;
  if (trace.type === "parcoords") return markedLines(trace);
  if (trace.type === "heatmap") return markedRows(trace);
  if (!Array.isArray(trace.customdata)) return trace;
  const isMarked = trace.customdata.map(name => marked.has(name));
  const result = {...trace, unselected: {marker: {opacity: 0.1}}};
  result.selectedpoints = [...isMarked.keys()].filter(index => isMarked[index]);
  for (const bars of ["error_x", "error_y"])
    if (trace[bars]) result[bars] = {...trace[bars], ...markedBars(trace[bars], isMarked)};
  return result;
}

function markedBars({array, arrayminus}, isMarked) {
  const kept = values => values?.map((value, index) => isMarked[index] ? value : null);
  return {array: kept(array), arrayminus: kept(arrayminus)};
}

function markedLines(trace) {
  const kept = values => Array.isArray(values) ? values.filter((_, index) => marked.has(trace.meta[index])) : values;
  const dimensions = trace.dimensions.map(dimension => ({...dimension, values: kept(dimension.values)}));
  return {...trace, dimensions, meta: kept(trace.meta), line: {...trace.line, color: kept(trace.line.color)}};
}

function markedRows(trace) {
  const kept = rows => rows?.filter((_, index) => marked.has(trace.meta[index]));
  return {...trace, y: kept(trace.y), z: kept(trace.z), text: kept(trace.text), meta: kept(trace.meta)};
}

function namesOf(points) {
  return new Set(points.map(point => point.customdata).filter(name => typeof name === "string" && name));
}

// Returns the names of the lines that pass through the ranges which the reader has drawn along the axes.
function namesThroughRanges({dimensions, meta}) {
  const limited = dimensions.filter(dimension => dimension.constraintrange?.length);
  if (!limited.length) return null;
  const passes = ({constraintrange, values}, index) =>
    [constraintrange].flat(2).some((low, end, ends) => end % 2 === 0 && low <= values[index] && values[index] <= ends[end + 1]);
  return new Set(meta.filter((_, index) => limited.every(dimension => passes(dimension, index))));
}

function listenTo(name, element) {
  const mark = names => {
    if (!drawing.has(name)) setTimeout(() => markTrials(names?.size ? names : null, name));
  };
  element.on("plotly_click", ({points: [point]}) => goTo(point.customdata ?? point.data.meta?.[point.pointIndex?.[0]]));
  element.on("plotly_selected", event => { if (event) mark(namesOf(event.points)); });
  element.on("plotly_deselect", () => mark(null));
  if (element.data[0]?.type === "parcoords")
    element.on("plotly_restyle", () => mark(namesThroughRanges(element.data[0])));
}

let redrawing = 0;
addEventListener("trials-marked", ({detail: {names, origin}}) => {
  if (!names && !marked) return;
  marked = names;
  clearTimeout(redrawing);
  redrawing = setTimeout(() => {
    for (const name of drawn)
      if (name !== origin || plots[name].traces[0].type !== "parcoords") draw(name);
  }, origin === "filter" ? TYPING_PAUSE : 0);
});

// --- start --------------------------------------------------------------------------------------------

async function start() {
  plots = (await pageData).plots;
  await loadPlotly();
  const names = Object.keys(plots);
  const show = name => { drawn.add(name); draw(name); };
  const observer = new IntersectionObserver(entries => {
    for (const {target, isIntersecting} of entries)
      if (isIntersecting && !drawn.has(target.id)) show(target.id);
  }, {rootMargin: "400px"});
  for (const name of names) observer.observe(document.getElementById(name));
  darkScheme.addEventListener("change", () => drawn.forEach(draw));
  for (const kind of ["beforeprint", "afterprint"]) addEventListener(kind, () => names.forEach(show));
  window.matchMedia("print").addEventListener("change", () => names.forEach(show));
}

async function loadPlotly() {
  const script = document.createElement("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);
}

function drawGroupAgain(group) {
  for (const name of drawn)
    if (plots[name].group === group) draw(name);
}

addEventListener("change", event => drawGroupAgain(event.target.dataset.choice));

addEventListener("click", event => {
  const {showAll} = event.target.dataset;
  if (!showAll) return;
  event.target.ariaPressed = event.target.ariaPressed !== "true";
  drawGroupAgain(showAll);
});

start();
