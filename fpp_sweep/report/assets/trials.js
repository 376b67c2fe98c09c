// Pages of a sweep: a section for each trial, and the trials that the reader has marked.
"use strict";

const pageData = unpack("page-data").then(JSON.parse);  // {plots, trials}, written by html.py
let trials = {};  // by name: {summary, reason, settings, numbers, diagrams, log, prompts, repeat, yaml}
const BASELINE_PREFIX = "baseline-";  // as in spec/names.py

// --- marks: the trials that a chart or the filter has left --------------------------------------------

const marksBar = make("div", {className: "marks no-print", hidden: true});
const marksText = make("span", {role: "status"});
const marksEnd = make("button", {type: "button"}, "Show all trials");
marksBar.append(marksText, marksEnd);
document.body.append(marksBar);
marksEnd.addEventListener("click", () => markTrials(null, "button"));
addEventListener("trials-marked", ({detail: {names}}) => {
  marksBar.hidden = !names;
  marksText.textContent = names ? `${names.size} marked` : "";
});

// --- sections -----------------------------------------------------------------------------------------

function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {}))
    if (name in element) element[name] = value; else element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Leads to the section of a trial; the address of the page then names it.
function goTo(name) {
  if (!trials[name]) return;
  if (hasAddress() && location.hash !== `#${name}`) location.hash = name;
  else openTrial(name);
}

// In a frame whose text another page has set, links to #sections would leave the frame.
function hasAddress() {
  return location.protocol !== "about:";
}

function sectionOf(name) {
  return document.getElementById(`section-${name}`);
}

function openTrial(name) {
  const section = sectionOf(name);
  if (!trials[name] || !section) return;
  for (const other of document.querySelectorAll("section.trial:not([hidden])"))
    if (other !== section) other.hidden = true;
  if (!section.hasChildNodes()) section.append(...contentsOf(name, trials[name]));
  section.hidden = false;
  section.scrollIntoView({block: "start"});
  section.focus({preventScroll: true});
}

function contentsOf(name, trial) {
  const close = make("button", {type: "button"}, "Close");
  close.addEventListener("click", () => {
    sectionOf(name).hidden = true;
    document.getElementById("trials").scrollIntoView();
  });
  return [
    make("h3", {}, name, close),
    make("p", {className: "faint"}, trial.summary),
    ...(trial.reason ? [make("p", {className: "warning"}, trial.reason)] : []),
    heading("Settings"),
    settingsList(trial.settings),
    ...Object.entries(trial.numbers).flatMap(([split, rows]) => [heading(`Numbers on ${split}`), numbersTable(split, rows)]),
    ...diagramsOf(name, trial),
    heading("Repeat it"),
    make("pre", {}, trial.repeat),
    ...(trial.prompts.length ? [heading("Prompts, in the folder of the sweep"), make("pre", {}, promptList(trial.prompts))] : []),
    ...(trial.log.length ? [heading("Last lines of its log"), make("pre", {}, trial.log.join("\n"))] : []),
    heading("Whole configuration"),
    saveButton("Download YAML", `${name}.yaml`, () => trial.yaml),
    make("details", {}, make("summary", {}, "Show"), make("pre", {}, trial.yaml)),
  ];
}

// The files of a trial are all in one folder, which is named once.
function promptList(paths) {
  const folder = paths[0].slice(0, paths[0].lastIndexOf("/") + 1);
  return `${folder}\n${paths.map(path => path.slice(folder.length)).join("  ")}`;
}

function heading(text) {
  return make("h4", {}, text);
}

function settingsList(settings) {
  const rows = settings.map(([key, value]) => make("div", {}, make("dt", {}, key), make("dd", {}, value)));
  return make("dl", {}, ...rows);
}

function numbersTable(split, [heads, ...rows]) {
  const headCells = heads.map((text, index) => index ? make("th", {scope: "col"}, text) : make("td"));
  const bodyRows = rows.map(([name, ...values]) =>
    make("tr", {}, make("th", {className: "text short", scope: "row"}, name), ...values.map(text => make("td", {}, text))));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...headCells)), make("tbody", {}, ...bodyRows));
  return make("div", {className: "wide", tabindex: 0, role: "region", "aria-label": `numbers on ${split}`}, table);
}

// --- reliability diagrams -----------------------------------------------------------------------------

const N_BINS = 20;
const SIDE = 100;  // of a diagram, in its own units

function labelOf(name) {
  return name.startsWith(BASELINE_PREFIX) ? name.slice(BASELINE_PREFIX.length) : name;
}

function diagramsOf(name, trial) {
  const baselines = Object.keys(trials).filter(other => other.startsWith(BASELINE_PREFIX) && other !== name);
  const isMeasured = (other, split) => Object.keys(trials[other]?.diagrams[split] ?? {}).length > 0;
  const split = ["test", ...Object.keys(trial.diagrams)].find(split => isMeasured(name, split));
  if (!split) return [];
  const rivals = baselines.filter(other => isMeasured(other, split));
  const grid = make("div", {className: "diagrams"});
  const select = make("select");
  for (const rival of rivals) select.append(make("option", {value: rival}, labelOf(rival)));
  const tpt = `${BASELINE_PREFIX}tpt`;
  if (rivals.includes(tpt)) select.value = tpt;
  const show = () => grid.replaceChildren(...diagramRows(name, select.value, split));
  select.addEventListener("change", show);
  show();
  const choice = rivals.length ? [make("p", {className: "tools"}, make("label", {}, "beside ", select))] : [];
  return [heading(`Reliability on ${split}`), ...choice, make("p", {className: "faint"}, "Bars: accuracy by confidence, both from 0 to 1. " +
    "Outlines: the gap to the mean confidence. Grey: the share of images. A diagram holds all seeds together."), grid];
}

// Yields a figure for all datasets, and one for each, with the diagrams of both trials.
function* diagramRows(name, rival, split) {
  const names = rival ? [name, rival] : [name];
  const datasets = Object.keys(trials[name].diagrams[split]);
  const total = other => addBins(datasets.map(dataset => binsOf(trials[other].diagrams[split][dataset])));
  const row = (title, dataset, binsOfTrial) => make("figure", {}, make("figcaption", {}, title),
    ...names.map(other => diagram(other, title, numbersOf(other, split, dataset), binsOfTrial(other))));
  yield row("all datasets", "average", total);
  for (const dataset of datasets)
    yield row(dataset, dataset, other => binsOf(trials[other].diagrams[split][dataset]));
}

// Returns accuracy and ECE as the table of the trial has them: means over seeds. The bins hold all seeds together.
function numbersOf(name, split, dataset) {
  const [heads, ...rows] = trials[name].numbers[split];
  const values = rows.find(([label]) => label === dataset) ?? [];
  const metrics = ["accuracy", "ece"].filter(metric => values[heads.indexOf(metric)]);
  return metrics.map(metric => `${metric} ${values[heads.indexOf(metric)]}`).join(", ");
}

// Reads a diagram's text: for each bin its index, images, correct ones, and mean confidence in permille.
function binsOf(diagram) {
  const bins = Array.from({length: N_BINS}, () => ({images: 0, correct: 0, confidence: 0}));
  if (!diagram) return bins;
  for (const text of diagram.split(",")) {
    const [bin, images, correct, permille] = text.split(" ").map(Number);
    bins[bin] = {images, correct, confidence: images * permille / 1000};
  }
  return bins;
}

function addBins(allBins) {
  return allBins.reduce((total, bins) => total.map((bin, index) => ({
    images: bin.images + bins[index].images,
    correct: bin.correct + bins[index].correct,
    confidence: bin.confidence + bins[index].confidence,
  })));
}

function diagram(name, dataset, words, bins) {
  const most = Math.max(...bins.map(bin => bin.images), 1);
  const label = `${labelOf(name)} on ${dataset}: ${words}`;
  const svg = shape("svg", {viewBox: "-1 -1 102 116", role: "img", "aria-label": label});
  const width = SIDE / N_BINS;
  bins.forEach(({images: count, correct, confidence}, index) => {
    if (!count) return;
    const [x, reached, expected] = [width * index, SIDE * correct / count, SIDE * confidence / count];
    const [low, high] = [Math.min(reached, expected), Math.max(reached, expected)];
    svg.append(
      shape("rect", {class: "accuracy", x, y: SIDE - reached, width, height: reached}),
      shape("rect", {class: "gap", x, y: SIDE - high, width, height: high - low}),
      shape("rect", {class: "images", x, y: SIDE + 2, width, height: 12 * count / most}),
    );
  });
  svg.append(shape("path", {class: "frame", d: `M0 ${SIDE}V0H${SIDE}V${SIDE}ZL${SIDE} 0`}));
  return make("div", {}, svg, make("small", {}, labelOf(name)), make("small", {}, words));
}

function shape(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// --- links --------------------------------------------------------------------------------------------

function openTrialOfAddress() {
  openTrial(decodeURIComponent(location.hash.slice(1)));
}

function linkTrials() {
  for (const head of document.querySelectorAll("th[data-trial]")) {
    const name = head.dataset.trial;
    if (trials[name]) head.append(make("a", {href: `#${name}`}, ...head.childNodes));
  }
}

document.addEventListener("click", event => {
  const link = event.target.closest?.('a[href^="#"]');
  if (!link || hasAddress()) return;
  event.preventDefault();
  const name = link.getAttribute("href").slice(1);
  if (trials[name]) openTrial(name);
  else document.getElementById(name)?.scrollIntoView();
});

pageData.then(data => {
  trials = data.trials;
  linkTrials();
  openTrialOfAddress();
  addEventListener("hashchange", openTrialOfAddress);
});
