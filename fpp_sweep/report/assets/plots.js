// Pages with charts: unpacks plotly, and draws each chart when the reader comes near it.
"use strict";

const drawn = new Set();  // names of the charts that have been drawn
let plots = {};  // by name: {traces, layout}
let shownTrials = null;  // names of the trials that the filter leaves, or null: all

function draw(name) {
  const element = document.getElementById(name);
  const isFirst = !drawn.has(name);
  drawn.add(name);
  const traces = plots[name].traces.map(withFilter);
  Plotly.react(element, traces, themed(plots[name].layout), {responsive: true, displayModeBar: false});
  if (isFirst) element.on("plotly_click", ({points: [point]}) => {
    if (typeof point.customdata === "string") location.hash = point.customdata;
  });
}

// Returns a trace in which the trials that the filter leaves stand out.
function withFilter(trace) {
  if (!shownTrials || !Array.isArray(trace.customdata)) return trace;
  const selectedpoints = [...trace.customdata.keys()].filter(index => shownTrials.has(trace.customdata[index]));
  return {...trace, selectedpoints, unselected: {marker: {opacity: 0.1}}};
}

function themed(layout) {
  const css = getComputedStyle(document.documentElement);
  const [ink, line, card] = ["--ink", "--line", "--card"].map(name => css.getPropertyValue(name).trim());
  const axis = {gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true};
  return {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: ink, size: 12, family: getComputedStyle(document.body).fontFamily},
    dragmode: false,
    hoverlabel: {bgcolor: card, bordercolor: line, font: {color: ink}, align: "left"},
    xaxis: {...axis, ...layout.xaxis},
    yaxis: {...axis, ...layout.yaxis},
  };
}

async function start() {
  plots = (await pageData).plots;
  const script = document.createElement("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);
  const drawAll = () => Object.keys(plots).forEach(draw);
  const drawAgain = () => drawn.forEach(draw);
  const observer = new IntersectionObserver(entries => {
    for (const {target, isIntersecting} of entries)
      if (isIntersecting && !drawn.has(target.id)) draw(target.id);
  }, {rootMargin: "400px"});
  for (const name of Object.keys(plots)) observer.observe(document.getElementById(name));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
  window.matchMedia("print").addEventListener("change", drawAll);
  for (const kind of ["beforeprint", "afterprint"]) addEventListener(kind, drawAll);
  addEventListener("trials-shown", ({detail}) => {
    shownTrials = detail;
    drawAgain();
  });
}

start();
