// Pages with plots: unpacks plotly, draws each plot when the reader comes near it, and shows the details of a trial.
"use strict";

const page = JSON.parse(document.getElementById("page-data").textContent);  // {plots, details}, written by html.py
const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");
const dialog = document.getElementById("details");
const names = Object.keys(page.plots);
const drawn = new Set();  // names of the plots that have been drawn

function draw(name) {
  const plot = page.plots[name];
  const element = document.getElementById(name);
  const select = document.querySelector(`[data-choice="${plot.group}"]`);
  const showAll = document.querySelector(`[data-show-all="${plot.group}"]`);
  const choice = plot.choices[select?.value ?? Object.keys(plot.choices)[0]] ?? {};
  const zoom = showAll?.ariaPressed === "true" ? {} : choice.zoom ?? plot.zoom;
  const layout = merged(plot.layout, choice.layout);
  for (const [axis, range] of Object.entries(zoom)) layout[axis] = {...layout[axis], range};
  const traces = plot.traces.map((trace, index) => merged(trace, choice.traces?.[index]));
  const isFirst = !element.data;
  Plotly.react(element, traces, themed(layout), {responsive: true, displayModeBar: false});
  if (isFirst) element.on("plotly_click", event => showDetails(event.points[0].customdata));
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
    hoverlabel: {bgcolor: card, bordercolor: line, font: {color: ink}, align: "left"},
  };
  const axes = Object.keys(layout).filter(key => /^[xy]axis/.test(key));
  for (const name of new Set(["xaxis", "yaxis", ...axes])) result[name] = {...axis, ...layout[name]};
  return result;
}

function showDetails(name) {
  if (!page.details[name]) return;
  const title = document.createElement("h3");
  const list = document.createElement("dl");
  const close = document.createElement("button");
  title.textContent = name;
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  for (const [key, value] of Object.entries(page.details[name])) {
    const [row, term, text] = ["div", "dt", "dd"].map(tag => document.createElement(tag));
    term.textContent = key;
    text.textContent = value;
    row.append(term, text);
    list.append(row);
  }
  dialog.replaceChildren(title, list, close);
  dialog.showModal();
}

async function start() {
  await loadPlotly();
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
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), letter => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
}

function drawGroupAgain(group) {
  for (const name of drawn)
    if (page.plots[name].group === group) draw(name);
}

addEventListener("change", event => drawGroupAgain(event.target.dataset.choice));

// Names of trials become buttons.
for (const head of document.querySelectorAll("th[data-trial]")) {
  if (!page.details[head.dataset.trial]) continue;
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  button.addEventListener("click", () => showDetails(head.dataset.trial));
  head.append(button);
}

addEventListener("click", event => {
  const {showAll} = event.target.dataset;
  if (!showAll) return;
  event.target.ariaPressed = event.target.ariaPressed !== "true";
  drawGroupAgain(showAll);
});

start();
