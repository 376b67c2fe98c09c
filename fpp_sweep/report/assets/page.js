// Every page: tables that can be sorted, filtered and saved, and loading the page of a running sweep again.
"use strict";

// Returns the text of an element that html.py has packed.
async function unpack(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), letter => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).text();
}

// Tells all charts and tables which trials to show: a set of names, or null for all.
function markTrials(names, origin) {
  dispatchEvent(new CustomEvent("trials-marked", {detail: {names, origin}}));
}

function saveButton(label, fileName, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = label;
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text()]));
    link.download = fileName;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  return button;
}

for (const table of document.querySelectorAll("table:not([data-fixed-order])")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...[...table.tHead.rows].at(-1).cells];
  const names = heads.map(head => head.textContent.trim().toLowerCase());
  if (rows.length > 1) heads.forEach((head, column) => makeSortable(head, () => sort(body, rows, heads, column)));
  const input = table.id && document.querySelector(`input[data-filter="${table.id}"]`);
  if (!input) continue;
  const output = document.querySelector(`output[for="${table.id}"]`);
  const trials = rows.filter(row => trialOf(row));
  const apply = () => {
    const problem = filter(rows, names, input.value);
    const shown = rows.filter(row => !row.hidden);
    output.textContent = problem || `${shown.length} of ${rows.length}`;
    if (trials.length) markTrials(shown.length < rows.length ? new Set(shown.map(trialOf)) : null, "filter");
  };
  input.addEventListener("input", apply);
  addEventListener("load", apply);  // the browser restores what was typed before the page was loaded again
  addEventListener("trials-marked", ({detail: {names, origin}}) => {
    if (origin === "filter" || !trials.length) return;
    input.value = "";
    for (const row of rows) row.hidden = names !== null && !names.has(trialOf(row));
    output.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
  });
  const save = saveButton("Download CSV", `${table.id}.csv`, () => csvOf(table));
  input.closest(".tools").append(columnChooser(table, heads), save);
}

function trialOf(row) {
  return row.cells[0].dataset.trial;
}

// Returns a list of the columns of a table that the reader can hide; the first one always stays.
function columnChooser(table, heads) {
  const rules = document.head.appendChild(document.createElement("style"));
  const chooser = document.createElement("details");
  const boxes = heads.map((head, index) => {
    const label = document.createElement("label");
    const box = document.createElement("input");
    Object.assign(box, {type: "checkbox", checked: true});
    label.append(box, ` ${head.textContent.trim()}`);
    if (index) chooser.append(label);
    return box;
  });
  const summary = document.createElement("summary");
  summary.textContent = "Columns";
  chooser.prepend(summary);
  chooser.dataset.columns = table.id;
  chooser.addEventListener("change", () => {
    const hidden = boxes.flatMap((box, index) => box.checked ? [] : [`#${table.id} tr > :nth-child(${index + 1})`]);
    rules.textContent = hidden.length ? `${hidden.join(", ")} { display: none }` : "";
  });
  return chooser;
}

// Returns the rows and columns that are shown as CSV, in their present order.
function csvOf(table) {
  const quoted = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const isShown = cell => getComputedStyle(cell).display !== "none";
  const line = row => [...row.cells].filter(isShown).map(cell => quoted(cell.textContent.trim())).join(",");
  const shown = [...table.tBodies[0].rows].filter(row => !row.hidden);
  return [[...table.tHead.rows].at(-1), ...shown].map(line).join("\n") + "\n";
}

function makeSortable(head, onClick) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  if (!button.textContent) button.textContent = "name";
  head.append(button);
  head.setAttribute("aria-sort", "none");
  button.addEventListener("click", onClick);
}

// Each click goes on to the next order: ascending, descending, the order in which the page was written.
function sort(body, rows, heads, column) {
  const nextOrder = {none: "ascending", ascending: "descending", descending: "none"};
  const order = nextOrder[heads[column].getAttribute("aria-sort")];
  heads.forEach(head => head.setAttribute("aria-sort", "none"));
  heads[column].setAttribute("aria-sort", order);
  if (order === "none") {
    body.append(...rows);
    return;
  }
  const filled = rows.filter(row => valueOf(row, column));
  const empty = rows.filter(row => !valueOf(row, column));
  const sign = order === "ascending" ? 1 : -1;
  const isNumeric = filled.every(row => !Number.isNaN(parseFloat(valueOf(row, column))));
  filled.sort((left, right) => {
    const [a, b] = [valueOf(left, column), valueOf(right, column)];
    return sign * (isNumeric ? parseFloat(a) - parseFloat(b) : a.localeCompare(b, undefined, {numeric: true}));
  });
  body.append(...filled, ...empty);
}

function valueOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent.trim();
}

// The query holds words that a row must contain, and comparisons such as ece<5 or state=failed. A query that cannot be
// used hides no row; returns what is wrong with it, if anything.
function filter(rows, names, query) {
  const words = query.trim().toLowerCase().replace(/\s*([<>!=]=|[<>=])\s*/g, "$1").split(/\s+/);
  const problem = words.map(word => problemOf(word, names)).find(text => text) ?? "";
  const tests = problem ? [] : words.map(word => testOf(word, names));
  for (const row of rows) row.hidden = !tests.every(test => test(row));
  return problem;
}

const OPERATORS = {
  "<": (a, b) => a < b,
  ">": (a, b) => a > b,
  "<=": (a, b) => a <= b,
  ">=": (a, b) => a >= b,
};

// Returns column, operator and value of a word that is a comparison; nothing for another word.
function comparisonOf(word) {
  return word.match(/^(.*?)([<>!=]=|[<>=])(.*)$/)?.slice(1);
}

function problemOf(word, names) {
  const comparison = comparisonOf(word);
  if (!comparison) return "";
  const [name, operator, value] = comparison;
  if (!name || !value) return "a comparison has a column and a value, such as accuracy>66";
  if (!names.includes(name)) {
    const similar = similarName(name, names.filter(other => other));
    return `no column ${name}` + (similar ? `; did you mean ${similar}?` : "");
  }
  if (operator in OPERATORS && Number.isNaN(parseFloat(value))) return `${value} is not a number; use = for words`;
  return "";
}

// Returns a column for a part of its name, such as acc or gamma1, for a slip of the keys, or for val/accuracy.
function similarName(name, names) {
  return names.find(other => other.startsWith(name) || other.endsWith(`.${name}`))
    ?? names.find(other => differsByASlip(name, other))
    ?? names.find(other => name.endsWith(`/${other}`));
}

function differsByASlip(name, other) {
  let start = 0;
  while (start < name.length && name[start] === other[start]) start++;
  let end = 0;
  while (end < Math.min(name.length, other.length) - start && name.at(-1 - end) === other.at(-1 - end)) end++;
  const lettersBetween = Math.max(name.length, other.length) - start - end;
  return lettersBetween <= 2 && lettersBetween < name.length - 1;
}

function testOf(word, names) {
  const comparison = comparisonOf(word);
  if (!comparison) return row => row.textContent.toLowerCase().includes(word);
  const [name, operator, value] = comparison;
  const column = names.indexOf(name);
  if (operator in OPERATORS) return row => OPERATORS[operator](parseFloat(valueOf(row, column)), parseFloat(value));
  const isEqual = row => {
    const shown = row.cells[column].textContent.trim().toLowerCase();
    return shown === value || (shown !== "" && Number(shown) === Number(value));
  };
  return operator === "!=" ? row => !isEqual(row) : isEqual;
}

// The page of a running sweep is loaded again, unless the reader has just used it or it is inside another page's frame.
const reloadAfter = 1000 * document.body.dataset.reloadSeconds;  // milliseconds
if (reloadAfter && /^(file|https?):/.test(location.protocol)) {
  const fields = [...document.querySelectorAll("[data-filter], [data-choice]")];
  const key = field => `${location.pathname} ${field.dataset.filter ?? field.dataset.choice}`;
  for (const field of fields) field.value = sessionStorage[key(field)] ?? field.value;
  let lastUse = 0;
  for (const kind of ["pointerdown", "keydown", "wheel", "touchmove"])
    addEventListener(kind, () => { lastUse = Date.now(); }, {passive: true});
  setInterval(() => {
    if (Date.now() - lastUse < reloadAfter) return;
    for (const field of fields) sessionStorage[key(field)] = field.value;
    location.reload();
  }, reloadAfter);
}
