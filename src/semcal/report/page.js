// The table of questions. Everything from the run enters the page as text (createTextNode, textContent),
// never as markup, because a model may answer with HTML.
//
// #data holds {measures, methods, rules, sets: [{name, questions, rows}]}:
//   question  {id, question, answers, context?}
//   rows      method → one entry a question, null where the method did not answer it:
//             [clusters, top, correct, entropy, rule], the last four with one entry a measure
//   cluster   [members, confidence by measure, right?]; right and wrong are 1 and 0
//   member    [text, log-likelihood, how often it was drawn]
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
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

// ---- One record is one question under one method ------------------------------------------------------

const records = data.sets.flatMap((set) =>
  set.questions.flatMap((question, number) =>
    data.methods.flatMap((method) => {
      const row = set.rows[method]?.[number];
      return row ? [{ set, method, number, question, row }] : [];
    })));

/** What a record shows under measure k: its answer, confidence and correctness; null where undefined. */
function view({ row: [clusters, top, correct] }, k) {
  const cluster = clusters[top[k]];
  if (!cluster) return { answer: null, confidence: null, right: null };
  const right = correct[k] === null ? null : Boolean(correct[k]);
  return { answer: cluster[0][0][0], confidence: cluster[1][k], right };
}

/** Everything that can be searched for in a record, in lower case; made once. */
function haystack(record) {
  if (record.haystack === undefined) {
    const { id, question, answers } = record.question;
    const samples = record.row[0].flatMap(([members]) => members.map(([text]) => text));
    record.haystack = [id, question, ...answers, ...samples].join("\n").toLowerCase();
  }
  return record.haystack;
}

// ---- State: what is chosen, and the records that remain ------------------------------------------------

const form = document.getElementById("filters");
const state = { k: 0, sort: null, descending: false, page: 0, open: new Set(), shown: [] };

const OUTCOMES = {
  "all": () => true,
  "right": ({ right }) => right === true,
  "wrong": ({ right }) => right === false,
  "sure-wrong": ({ right, confidence }) => right === false && confidence >= SURE,
  "unsure-right": ({ right, confidence }) => right === true && confidence < UNSURE,
};

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const byText = (key) => (a, b) => collator.compare(key(a), key(b));
const byNumber = (key) => (a, b) => key(a) - key(b);

const COLUMNS = [
  { name: "Question", key: (r) => r.question.question, by: byText },
  { name: "Set", key: (r) => r.set.name, by: byText },
  { name: "Method", key: (r) => data.methods.indexOf(r.method), by: byNumber },
  { name: "Answer", key: (r) => view(r, state.k).answer, by: byText },
  { name: "Confidence", key: (r) => view(r, state.k).confidence, by: byNumber, number: true },
  { name: "Correct", key: (r) => view(r, state.k).right, by: byNumber },
  { name: "Meanings", key: (r) => r.row[0].length, by: byNumber, number: true },
];

/** The records in the order of a column; undefined ones last whatever the direction. */
function sorted(found) {
  if (!state.sort) return found;
  const { key, by } = state.sort;
  const defined = found.filter((r) => key(r) !== null).sort(by(key));
  const sign = state.descending ? -1 : 1;
  if (sign < 0) defined.sort((a, b) => -by(key)(a, b)); // a stable sort keeps ties in their order
  return defined.concat(found.filter((r) => key(r) === null));
}

function refresh() {
  const chosen = Object.fromEntries(new FormData(form));
  state.k = data.measures.indexOf(chosen.measure);
  const words = chosen.search.toLowerCase().split(/\s+/).filter(Boolean);
  state.shown = sorted(records.filter((record) =>
    (!chosen.set || record.set.name === chosen.set) &&
    (!chosen.method || record.method === chosen.method) &&
    OUTCOMES[chosen.outcome](view(record, state.k)) &&
    words.every((word) => haystack(record).includes(word))));
  state.page = 0;
  draw();
}

// ---- Drawing -------------------------------------------------------------------------------------------

function header(column) {
  const active = state.sort === column;
  const button = el("button", { type: "button" }, column.name);
  button.addEventListener("click", () => {
    state.descending = active ? !state.descending : Boolean(column.number);
    state.sort = column;
    refresh();
    document.querySelectorAll("#table th button")[COLUMNS.indexOf(column)].focus();
  });
  const order = active ? (state.descending ? "descending" : "ascending") : "none";
  return el("th", { scope: "col", className: column.number ? "number" : "", "aria-sort": order }, button);
}

function confidenceCell(confidence) {
  const bar = el("span", { className: "bar" });
  bar.style.setProperty("--share", confidence ?? 0);
  return el("td", { className: "number confidence" }, bar, fixed(confidence, 3));
}

const methodName = (method) => el("span", { className: `method m-${method}` }, method);

/** The cells of a record that follow the names of its question, set and method. */
function answerCells(record) {
  const { answer, confidence, right } = view(record, state.k);
  const meanings = record.row[0].length;
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
  const button = el("button", { type: "button", className: "expand" }, record.question.question);
  button.setAttribute("aria-expanded", open);
  button.setAttribute("aria-controls", id);
  const detail = el("tr", { id, className: "detail", hidden: !open });
  const fill = () => detail.replaceChildren(el("td", { colSpan: COLUMNS.length }, details(record)));
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
    el("td", { className: "set" }, record.set.name),
    el("td", {}, methodName(record.method)),
    ...answerCells(record));
  return [row, detail];
}

function draw() {
  const start = state.page * PAGE;
  const end = Math.min(start + PAGE, state.shown.length);
  const table = el("table", { className: "questions" },
    el("caption", { className: "unseen" }, "Questions of the test sets with answers and confidences"),
    el("thead", {}, el("tr", {}, ...COLUMNS.map(header))),
    el("tbody", {}, ...state.shown.slice(start, end).flatMap(recordRows)));
  document.getElementById("table").replaceChildren(table);
  const total = state.shown.length;
  document.getElementById("count").textContent =
    total ? `${total.toLocaleString("en")} of ${records.length.toLocaleString("en")} answers` : "No answer matches.";
  const pages = document.getElementById("pages");
  pages.hidden = total <= PAGE;
  pages.querySelector("span").textContent = `${start + 1}–${end} of ${total.toLocaleString("en")}`;
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

/** The table of clusters: members, correctness and the confidence under every measure. */
function clusterTable([clusters, top, correct, entropy, rule]) {
  const largest = (i, k) => (top[k] === i ? "number best" : "number");
  const order = clusters.map((cluster, i) => i)
    .sort((a, b) => (clusters[b][1][state.k] ?? 0) - (clusters[a][1][state.k] ?? 0));
  const line = (name, cells) => el("tr", {}, el("th", { scope: "row", colSpan: 2 }, name),
    ...cells.map((cell) => el("td", { className: "number" }, cell)));
  return el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Clusters" },
    el("table", { className: "clusters" },
      el("caption", {}, el("span", {}, "Sampled answers by meaning, each with its log-likelihood per token; confidence in each meaning")),
      el("thead", {}, el("tr", {}, ...["Meaning", "Correct"].map((name) => el("th", { scope: "col" }, name)),
        ...data.measures.map((name) => el("th", { scope: "col", className: "number" }, name)))),
      el("tbody", {}, ...order.map((i) => el("tr", {},
        el("th", { scope: "row" }, el("ul", {}, ...clusters[i][0].map(member))),
        el("td", { className: rightClass(clusters[i][2]) }, rightWord(clusters[i][2])),
        ...clusters[i][1].map((p, k) => el("td", { className: largest(i, k) }, fixed(p, 3)))))),
      el("tfoot", {},
        line("Semantic entropy, nats", entropy.map((h) => fixed(h, 3))),
        line("Selected answer", correct.map((right) => (right === null ? MISSING : right ? "right" : "wrong"))),
        line("Decided by", rule.map((i) => data.rules[i] ?? MISSING)))));
}

/** The same question under every method, for the chosen measure. */
function methodTable(record) {
  const rows = data.methods.flatMap((method) => {
    const row = record.set.rows[method]?.[record.number];
    return row ? [el("tr", {}, el("th", { scope: "row" }, methodName(method)), ...answerCells({ row }))] : [];
  });
  const names = ["Method", "Answer", "Confidence", "Correct", "Meanings"];
  const number = new Set(["Confidence", "Meanings"]);
  return el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Methods" },
    el("table", { className: "methods" },
      el("caption", {}, el("span", {}, `The same question under every method (${data.measures[state.k]})`)),
      el("thead", {}, el("tr", {},
        ...names.map((name) => el("th", { scope: "col", className: number.has(name) ? "number" : "" }, name)))),
      el("tbody", {}, ...rows)));
}

function details(record) {
  const { id, answers, context } = record.question;
  const facts = [el("dt", {}, "Accepted"), el("dd", {}, answers.join(" · ") || MISSING), el("dt", {}, "Id"), el("dd", {}, id)];
  if (context) facts.push(el("dt", {}, "Passage"), el("dd", {}, context));
  return el("div", {}, el("dl", {}, ...facts), clusterTable(record.row), methodTable(record));
}

// ---- Choosing a measure for the figures ----------------------------------------------------------------

function showFigures(measure) {
  for (const part of document.querySelectorAll("[data-measure]")) part.hidden = part.dataset.measure !== measure;
  for (const radio of document.querySelectorAll(".measures input")) radio.checked = radio.value === measure;
}

// ---- Start ---------------------------------------------------------------------------------------------

function options(name, values, all) {
  const select = form.elements[name];
  if (all && values.length > 1) select.append(el("option", { value: "" }, all));
  select.append(...values.map((value) => el("option", { value }, value)));
}

function turn(step) {
  state.page += step;
  draw();
  document.getElementById("explorer").scrollIntoView();
}

options("set", data.sets.map((set) => set.name), "all");
options("method", data.methods, "all");
options("measure", data.measures);
form.hidden = false;
form.addEventListener("input", refresh);
form.addEventListener("submit", (event) => event.preventDefault());
document.querySelector("#pages [name=previous]").addEventListener("click", () => turn(-1));
document.querySelector("#pages [name=next]").addEventListener("click", () => turn(1));
for (const chooser of document.querySelectorAll(".measures")) {
  chooser.hidden = false;
  chooser.addEventListener("change", (event) => showFigures(event.target.value));
}
for (const heading of document.querySelectorAll(".of-measure")) heading.hidden = true; // the choice says it
showFigures(data.measures[0]);
refresh();
