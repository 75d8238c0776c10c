// The table of questions that the pages share: filters, sorting, pages, details. A page says what there is
// to show and calls startExplorer. Everything from a run enters the page as text (createTextNode,
// textContent), never as markup, because a model may answer with HTML.
//
// A source holds
//   measures             names, in order; k below is a place in them
//   filters              [{name, label, values, all?, first?}]; `all` names the choice that leaves every
//                        record, `first` is what is chosen at first
//   outcomes             more choices of what to show: [{name, label, keeps(record, k)}]
//   columns              [{name, key(record, k), by, cell(record, k), number?}] between question and answer
//   unit                 what is counted: "answers"
//   ready(chosen)        null, or the promise of what must be read before `records` holds what is chosen
//   records()            what could be shown
//   keeps(record, chosen) whether the source's own filters leave a record
//   question(record)     {id, question, answers, context?}
//   view(record, k)      {answer, confidence, right}; null where undefined
//   meanings(record, k)  how many clusters
//   samples(record)      texts to search in
//   details(record, k)   elements
"use strict";

const PAGE = 50;
const SURE = 0.9;
const UNSURE = 0.5;
const MISSING = "–";

/** An element with properties and children; strings become text. */
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const fixed = (value, digits) =>
  value === null || value === undefined ? MISSING
  : value === "-inf" ? "−∞"
  : value.toFixed(digits).replace("-", "−");

const rightWord = (right) => (right === null ? MISSING : right ? "✓ right" : "✗ wrong");
const rightClass = (right) => (right === null ? "" : right ? "right" : "wrong");
const methodName = (method) => el("span", { className: `method m-${method}` }, method);

// ---- State: what is chosen, and the records that remain ------------------------------------------------

const form = document.getElementById("filters");
const state = { k: 0, sort: null, descending: false, page: 0, open: new Set(), shown: [] };
let source;
let columns;

const OUTCOMES = [
  { name: "all", label: "all answers", keeps: () => true },
  { name: "right", label: "right", keeps: (r, k) => source.view(r, k).right === true },
  { name: "wrong", label: "wrong", keeps: (r, k) => source.view(r, k).right === false },
  { name: "sure-wrong", label: "confident (≥ 0.9) and wrong", keeps: (r, k) => {
    const { right, confidence } = source.view(r, k);
    return right === false && confidence >= SURE;
  } },
  { name: "unsure-right", label: "unsure (< 0.5) and right", keeps: (r, k) => {
    const { right, confidence } = source.view(r, k);
    return right === true && confidence < UNSURE;
  } },
];

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const byText = (a, b) => collator.compare(a, b);
const byNumber = (a, b) => a - b;

const QUESTION = { name: "Question", key: (r) => source.question(r).question, by: byText };
const ANSWER_COLUMNS = [
  { name: "Answer", key: (r, k) => source.view(r, k).answer, by: byText },
  { name: "Confidence", key: (r, k) => source.view(r, k).confidence, by: byNumber, number: true },
  { name: "Correct", key: (r, k) => source.view(r, k).right, by: byNumber },
  { name: "Meanings", key: (r, k) => source.meanings(r, k), by: byNumber, number: true },
];

/** Everything that can be searched for in a record, in lower case; made once. */
function haystack(record) {
  if (record.haystack === undefined) {
    const { id, question, answers } = source.question(record);
    record.haystack = [id, question, ...answers, ...source.samples(record)].join("\n").toLowerCase();
  }
  return record.haystack;
}

/** The records in the order of a column; undefined ones last whatever the direction. */
function sorted(found) {
  if (!state.sort) return found;
  const { key, by } = state.sort;
  const keyed = found.map((record) => [key(record, state.k), record]);
  const sign = state.descending ? -1 : 1;
  const defined = keyed.filter(([value]) => value !== null);
  defined.sort(([a], [b]) => sign * by(a, b)); // a stable sort keeps ties in their order
  return defined.concat(keyed.filter(([value]) => value === null)).map(([, record]) => record);
}

/** Find what the form asks for, reading it first where that has not been done, and draw its first page. */
function refresh() {
  const chosen = Object.fromEntries(new FormData(form));
  state.k = source.measures.indexOf(chosen.measure);
  const waiting = source.ready(chosen);
  if (waiting) {
    document.getElementById("count").textContent = "Reading the questions …";
    return waiting.then(refresh, failed);
  }
  const words = chosen.search.toLowerCase().split(/\s+/).filter(Boolean);
  const outcome = [...OUTCOMES, ...source.outcomes].find(({ name }) => name === chosen.outcome);
  state.shown = sorted(source.records().filter((record) =>
    source.keeps(record, chosen) &&
    outcome.keeps(record, state.k) &&
    words.every((word) => haystack(record).includes(word))));
  state.page = 0;
  draw();
  return null;
}

function failed(error) {
  document.getElementById("count").textContent = `The questions cannot be read: ${error.message}`;
}

// ---- Drawing -------------------------------------------------------------------------------------------

function header(column) {
  const active = state.sort === column;
  const button = el("button", { type: "button" }, column.name);
  button.addEventListener("click", () => {
    state.descending = active ? !state.descending : Boolean(column.number);
    state.sort = column;
    refresh();
    document.querySelectorAll("#table th button")[columns.indexOf(column)].focus();
  });
  const order = active ? (state.descending ? "descending" : "ascending") : "none";
  return el("th", { scope: "col", className: column.number ? "number" : "", "aria-sort": order }, button);
}

function confidenceCell(confidence) {
  const bar = el("span", { className: "bar" });
  bar.style.setProperty("--share", confidence ?? 0);
  return el("td", { className: "number confidence" }, bar, fixed(confidence, 3));
}

/** The cells of a record that follow the names of its question and method. */
function answerCells(record) {
  const { answer, confidence, right } = source.view(record, state.k);
  const meanings = source.meanings(record, state.k);
  const empty = answer === "" ? el("em", {}, "empty") : answer ?? MISSING;
  return [
    el("td", { className: "answer" }, empty),
    confidenceCell(confidence),
    el("td", { className: rightClass(right) }, rightWord(right)),
    el("td", { className: "number meanings" }, String(meanings),
      el("span", { className: "unit" }, meanings === 1 ? " meaning" : " meanings")),
  ];
}

function recordRows(record, index) {
  const id = `detail-${index}`;
  const open = state.open.has(record);
  const button = el("button", { type: "button", className: "expand" }, source.question(record).question);
  button.setAttribute("aria-expanded", open);
  button.setAttribute("aria-controls", id);
  const detail = el("tr", { id, className: "detail", hidden: !open });
  const fill = () => detail.replaceChildren(el("td", { colSpan: columns.length }, details(record)));
  if (open) fill();
  button.addEventListener("click", () => {
    const opening = detail.hidden;
    if (opening) fill();
    detail.hidden = !opening;
    button.setAttribute("aria-expanded", opening);
    state.open[opening ? "add" : "delete"](record);
  });
  const row = el("tr", {},
    el("th", { scope: "row" }, button),
    ...source.columns.map((column) => column.cell(record, state.k)),
    ...answerCells(record));
  return [row, detail];
}

const counted = (n) => n.toLocaleString("en");

function draw() {
  const start = state.page * PAGE;
  const end = Math.min(start + PAGE, state.shown.length);
  const table = el("table", { className: "questions" },
    el("caption", { className: "unseen" }, "Questions of the test sets with answers and confidences"),
    el("thead", {}, el("tr", {}, ...columns.map(header))),
    el("tbody", {}, ...state.shown.slice(start, end).flatMap(recordRows)));
  document.getElementById("table").replaceChildren(table);
  const total = state.shown.length;
  document.getElementById("count").textContent =
    total ? `${counted(total)} of ${counted(source.records().length)} ${source.unit}` : "No answer matches.";
  const pages = document.getElementById("pages");
  pages.hidden = total <= PAGE;
  pages.querySelector("span").textContent = `${start + 1}–${end} of ${counted(total)}`;
  pages.querySelector("[name=previous]").disabled = start === 0;
  pages.querySelector("[name=next]").disabled = end === total;
}

// ---- The detail of one record --------------------------------------------------------------------------

function member([text, logLikelihood, count]) {
  const shown = text === "" ? el("em", {}, "empty") : text;
  const times = count > 1 ? ` ×${count}` : "";
  return el("li", {}, el("span", { className: "text" }, shown), times, " ",
    el("span", { className: "log" }, fixed(logLikelihood, 2)));
}

/** A table in a frame that scrolls sideways when it must. */
function scrolled(className, label, caption, ...parts) {
  return el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": label },
    el("table", { className }, el("caption", {}, el("span", {}, caption)), ...parts));
}

const CLUSTERS =
  "Sampled answers by meaning, each with its log-likelihood per token; confidence in each meaning";

/**
 * The table of clusters: members, correctness and the confidence under every measure. It draws a row:
 *   row       [clusters, top, correct, entropy, rule], the last four with one entry a measure
 *   cluster   [members, confidence by measure, right?]; right and wrong are 1 and 0
 *   member    [text, log-likelihood, how often it was drawn]
 */
function clusterTable([clusters, top, correct, entropy, rule], rules, caption = CLUSTERS) {
  const largest = (i, k) => (top[k] === i ? "number best" : "number");
  const order = clusters.map((cluster, i) => i)
    .sort((a, b) => (clusters[b][1][state.k] ?? 0) - (clusters[a][1][state.k] ?? 0));
  const line = (name, cells) => el("tr", {}, el("th", { scope: "row", colSpan: 2 }, name),
    ...cells.map((cell) => el("td", { className: "number" }, cell)));
  return scrolled("clusters", "Clusters", caption,
    el("thead", {}, el("tr", {}, ...["Meaning", "Correct"].map((name) => el("th", { scope: "col" }, name)),
      ...source.measures.map((name) => el("th", { scope: "col", className: "number" }, name)))),
    el("tbody", {}, ...order.map((i) => el("tr", {},
      el("th", { scope: "row" }, el("ul", {}, ...clusters[i][0].map(member))),
      el("td", { className: rightClass(clusters[i][2]) }, rightWord(clusters[i][2])),
      ...clusters[i][1].map((p, k) => el("td", { className: largest(i, k) }, fixed(p, 3)))))),
    el("tfoot", {},
      line("Semantic entropy, nats", entropy.map((h) => fixed(h, 3))),
      line("Selected answer", correct.map((right) => (right === null ? MISSING : right ? "right" : "wrong"))),
      line("Decided by", rule.map((i) => rules[i] ?? MISSING))));
}

function details(record) {
  const { id, answers, context } = source.question(record);
  const facts = [["Accepted", answers.join(" · ") || MISSING], ["Id", id]];
  if (context) facts.push(["Passage", context]);
  return el("div", {},
    el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    ...source.details(record, state.k));
}

// ---- Choosing what the figures show ----------------------------------------------------------------------

function showChoice(choice, value) {
  for (const part of document.querySelectorAll(`[data-choice="${choice}"][data-value]`))
    part.hidden = part.dataset.value !== value;
  for (const radio of document.querySelectorAll(`.choices[data-choice="${choice}"] input`))
    radio.checked = radio.value === value;
}

function startChoices() {
  for (const chooser of document.querySelectorAll(".choices")) {
    chooser.hidden = false;
    chooser.addEventListener("change", (event) => showChoice(chooser.dataset.choice, event.target.value));
    showChoice(chooser.dataset.choice, chooser.querySelector("input").value);
  }
  for (const heading of document.querySelectorAll(".of-choice")) heading.hidden = true; // the choice says it
}

// ---- Start ---------------------------------------------------------------------------------------------

function filter({ name, label, values, all, first }) {
  const options = values.map((value) => el("option", { value, defaultSelected: value === first }, value));
  if (all && values.length > 1) options.unshift(el("option", { value: "" }, all));
  return el("label", {}, `${label} `, el("select", { name }, ...options));
}

function turn(step) {
  state.page += step;
  draw();
  document.getElementById("explorer").scrollIntoView();
}

function startExplorer(given) {
  source = given;
  columns = [QUESTION, ...source.columns, ...ANSWER_COLUMNS];
  const outcomes = [...OUTCOMES, ...source.outcomes]
    .map(({ name, label }) => el("option", { value: name }, label));
  form.append(
    ...source.filters.map(filter),
    filter({ name: "measure", label: "Measure", values: source.measures }),
    el("label", {}, "Show ", el("select", { name: "outcome" }, ...outcomes)));
  form.hidden = false;
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.querySelector("#pages [name=previous]").addEventListener("click", () => turn(-1));
  document.querySelector("#pages [name=next]").addEventListener("click", () => turn(1));
  startChoices();
  return refresh();
}
