// The table of test questions: filters, sorting, pages, details.
// Everything from a run enters the page as text (createTextNode, textContent), never as markup, because a
// model may answer with HTML. #data holds {measures, methods, models, datasets, runs, rules, choices}:
//   choices[model][dataset]   method → its candidate for each measure
// Blocks (JSON, gzip, base64) are read on first use:
//   #questions-D      [[id, question, answers, context?]]
//   #block-M-D-R      results of model M on data set D in run R:
//     texts, forms, rules   texts of answers; normal forms; names of rules that decided
//     form_of         text → its normal form, by place; -1 for none
//     candidates      name → for each question an entry, or null:
//                     [clusters, confidences, top, correct, entropy, rule, greedy, greedy_correct]
//     verdicts        null, or for each question [premise, hypothesis, entails, …], by places in forms
//   cluster           [text, log-likelihood, count, …]; a text is its place in texts
//   confidences and entropies are whole ten-thousandths, log-likelihoods whole thousandths
// Below, k is the place of the chosen measure in data.measures.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const form = document.getElementById("filters");
const MISSING = "–";
const UNIT = 10000;
const PAGE = 20; // rows of the table
const [SURE, UNSURE, APART] = [0.9, 0.5, 0.5];

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
const counted = (n) => n.toLocaleString("en");
const rightWord = (right) => (right === null ? MISSING : right ? "✓ right" : "✗ wrong");
const rightClass = (right) => (right === null ? "" : right ? "right" : "wrong");
const methodName = (method) => el("span", { className: `method m-${method}` }, method);
const say = (text) => { document.getElementById("count").textContent = text; };

// ---- Reading blocks --------------------------------------------------------------------------------------

const read = new Map();
const cells = new Map();

/** What a packed element holds; read once. */
async function unpacked(id) {
  if (!read.has(id)) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    read.set(id, JSON.parse(await new Response(stream).text()));
  }
  return read.get(id);
}

/** Read a model on a data set in a run, with a record for every question and method. */
async function readCell(m, d, run) {
  const [questions, block] = [await unpacked(`questions-${d}`), await unpacked(`block-${m}-${d}-${run}`)];
  const cell = { model: data.models[m], dataset: data.datasets[d], run, block, choices: data.choices[m][d] };
  cell.records = questions.flatMap(([id, question, answers, context], number) =>
    data.methods.filter((method) => cell.choices[method]).map((method) => ({
      cell, number, id, question, answers, context, method,
      entries: cell.choices[method].map((candidate) => block.candidates[candidate][number]),
    })).filter(({ entries }) => entries.every(Boolean)));
  cells.set(`${m}-${d}-${run}`, cell);
}

/** The places [model, data set, run] of the cells that the form asks for. */
function asked({ model, dataset, run }) {
  const places = (names, name) => (name ? [names.indexOf(name)] : [...names.keys()]);
  return places(data.models, model).flatMap((m) =>
    places(data.datasets, dataset).map((d) => [m, d, Number(run)]));
}

// ---- A record: one question with one method --------------------------------------------------------------

/** What a record shows under measure k: its answer, confidence and correctness; null where undefined. */
function view({ cell, entries }, k) {
  const [clusters, confidences, top, correct] = entries[k];
  if (top[k] === null) return { answer: null, confidence: null, right: null };
  return {
    answer: cell.block.texts[clusters[top[k]][0]],
    confidence: confidences[k][top[k]] / UNIT,
    right: correct[k] === null ? null : Boolean(correct[k]),
  };
}

const meanings = ({ entries }, k) => entries[k][0].length;

/** [text, log-likelihood, how often] of the answers of a cluster. */
function members(cluster, texts) {
  const starts = cluster.flatMap((_, i) => (i % 3 ? [] : [i]));
  const log = (value) => (typeof value === "number" ? value / 1000 : value);
  return starts.map((i) => [texts[cluster[i]], log(cluster[i + 1]), cluster[i + 2]]);
}

/** Whether measures select answers of which one is right and one wrong, or are far apart in confidence. */
function disagree(record) {
  const views = data.measures.map((_, k) => view(record, k)).filter(({ confidence }) => confidence !== null);
  const all = views.map(({ confidence }) => confidence);
  return new Set(views.map(({ right }) => right)).size > 1 || Math.max(...all) - Math.min(...all) >= APART;
}

/** Everything that can be searched for in a record, in lower case; made once. */
function searched(record) {
  const { cell, entries, id, question, answers } = record;
  const texts = () => [...new Set(entries)].flatMap(([clusters]) =>
    clusters.flatMap((cluster) => members(cluster, cell.block.texts).map(([text]) => text)));
  return (record.searched ??= [id, question, ...answers, ...texts()].join("\n").toLowerCase());
}

// ---- Filters, and the remaining records ------------------------------------------------------------------

const state = { k: 0, sort: null, descending: false, page: 0, open: new Set(), records: [], shown: [] };

const OUTCOMES = [
  { name: "all", label: "all answers", keeps: () => true },
  { name: "right", label: "right", keeps: (r, k) => view(r, k).right === true },
  { name: "wrong", label: "wrong", keeps: (r, k) => view(r, k).right === false },
  { name: "sure-wrong", label: "confident (≥ 0.9) and wrong",
    keeps: (r, k) => view(r, k).right === false && view(r, k).confidence >= SURE },
  { name: "unsure-right", label: "unsure (< 0.5) and right",
    keeps: (r, k) => view(r, k).right === true && view(r, k).confidence < UNSURE },
  { name: "disagree", label: "measures disagree", keeps: disagree },
];

const byText = new Intl.Collator("en", { numeric: true, sensitivity: "base" }).compare;
const byNumber = (a, b) => a - b;
const named = (name, key) => ({ name, key, by: byText, cell: (r) => el("td", { className: "set" }, key(r)) });

/** Columns between the question and the answer, and all of them. */
const OWN = [
  ...(data.models.length > 1 ? [named("Model", ({ cell }) => cell.model)] : []),
  ...(data.datasets.length > 1 ? [named("Data set", ({ cell }) => cell.dataset)] : []),
  { name: "Method", key: ({ method }) => data.methods.indexOf(method), by: byNumber,
    cell: ({ method }) => el("td", {}, methodName(method)) },
];
const COLUMNS = [
  { name: "Question", key: ({ question }) => question, by: byText },
  ...OWN,
  { name: "Answer", key: (r, k) => view(r, k).answer, by: byText },
  { name: "Confidence", key: (r, k) => view(r, k).confidence, by: byNumber, number: true },
  { name: "Correct", key: (r, k) => view(r, k).right, by: byNumber },
  { name: "Meanings", key: meanings, by: byNumber, number: true },
];

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
  state.k = data.measures.indexOf(chosen.measure);
  const keys = asked(chosen);
  const missing = keys.find((key) => !cells.has(key.join("-")));
  if (missing) {
    say("Reading the questions …");
    return readCell(...missing).then(refresh, (error) => say(`The questions cannot be read: ${error.message}`));
  }
  state.records = keys.flatMap((key) => cells.get(key.join("-")).records);
  const words = chosen.search.toLowerCase().split(/\s+/).filter(Boolean);
  const outcome = OUTCOMES.find(({ name }) => name === chosen.outcome);
  state.shown = sorted(state.records.filter((record) =>
    (!chosen.method || record.method === chosen.method) &&
    (!chosen.rule || record.cell.block.rules[record.entries[state.k][5][state.k]] === chosen.rule) &&
    outcome.keeps(record, state.k) &&
    words.every((word) => searched(record).includes(word))));
  state.page = 0;
  draw();
  return null;
}

// ---- Drawing the table -----------------------------------------------------------------------------------

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

function answerCells(record) {
  const { answer, confidence, right } = view(record, state.k);
  const count = meanings(record, state.k);
  const bar = el("span", { className: "bar" });
  bar.style.setProperty("--share", confidence ?? 0);
  return [
    el("td", { className: "answer" }, answer === "" ? el("em", {}, "empty") : answer ?? MISSING),
    el("td", { className: "number confidence" }, bar, fixed(confidence, 3)),
    el("td", { className: rightClass(right) }, rightWord(right)),
    el("td", { className: "number meanings" }, String(count),
      el("span", { className: "unit" }, count === 1 ? " meaning" : " meanings")),
  ];
}

function recordRows(record, index) {
  const id = `detail-${index}`;
  const open = state.open.has(record);
  const button = el("button", { type: "button", className: "expand" }, record.question);
  button.setAttribute("aria-expanded", open);
  button.setAttribute("aria-controls", id);
  const detail = el("tr", { id, className: "detail", hidden: !open });
  const fill = () => detail.replaceChildren(el("td", { colSpan: COLUMNS.length }, details(record, state.k)));
  if (open) fill();
  button.addEventListener("click", () => {
    const opening = detail.hidden;
    if (opening) fill();
    detail.hidden = !opening;
    button.setAttribute("aria-expanded", opening);
    state.open[opening ? "add" : "delete"](record);
  });
  const between = OWN.map((column) => column.cell(record));
  return [el("tr", {}, el("th", { scope: "row" }, button), ...between, ...answerCells(record)), detail];
}

function draw() {
  const start = state.page * PAGE;
  const end = Math.min(start + PAGE, state.shown.length);
  const total = state.shown.length;
  document.getElementById("table").replaceChildren(el("table", { className: "questions" },
    el("caption", { className: "unseen" }, "Questions of the test sets with answers and confidences"),
    el("thead", {}, el("tr", {}, ...COLUMNS.map(header))),
    el("tbody", {}, ...state.shown.slice(start, end).flatMap(recordRows))));
  say(total ? `${counted(total)} of ${counted(state.records.length)} answers` : "No answer matches.");
  const pages = document.getElementById("pages");
  pages.hidden = total <= PAGE;
  pages.querySelector("span").textContent = `${start + 1}–${end} of ${counted(total)}`;
  pages.querySelector("[name=previous]").disabled = start === 0;
  pages.querySelector("[name=next]").disabled = end === total;
}

// ---- The details of a record -----------------------------------------------------------------------------

/** A table in a frame that scrolls sideways when it must. */
const scrolled = (className, label, caption, ...parts) =>
  el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": label },
    el("table", { className }, el("caption", {}, el("span", {}, caption)), ...parts));
const heads = (names, number = false) =>
  names.map((name) => el("th", { scope: "col", className: number ? "number" : "" }, name));

function member([text, logLikelihood, count]) {
  const shown = text === "" ? el("em", {}, "empty") : text;
  return el("li", {}, el("span", { className: "text" }, shown), count > 1 ? ` ×${count}` : "", " ",
    el("span", { className: "log" }, fixed(logLikelihood, 2)));
}

/** Members, correctness and confidences, the largest first; what no measure selects was not graded. */
function clusterTable({ cell, entries }, k, caption) {
  const [clusters, confidences, top, correct, entropy, rule] = entries[k];
  const graded = new Map(top.map((cluster, i) => [cluster, correct[i] === null ? null : Boolean(correct[i])]));
  const share = (i, measure) => (confidences[measure] === null ? null : confidences[measure][i] / UNIT);
  const order = [...clusters.keys()].sort((a, b) => (share(b, k) ?? 0) - (share(a, k) ?? 0));
  const line = (name, values) => el("tr", {}, el("th", { scope: "row", colSpan: 2 }, name),
    ...values.map((value) => el("td", { className: "number" }, value)));
  return scrolled("clusters", "Clusters", caption,
    el("thead", {}, el("tr", {}, ...heads(["Meaning", "Correct"]), ...heads(data.measures, true))),
    el("tbody", {}, ...order.map((i) => el("tr", {},
      el("th", { scope: "row" }, el("ul", {}, ...members(clusters[i], cell.block.texts).map(member))),
      el("td", { className: rightClass(graded.get(i) ?? null) }, rightWord(graded.get(i) ?? null)),
      ...data.measures.map((_, measure) =>
        el("td", { className: top[measure] === i ? "number best" : "number" }, fixed(share(i, measure), 3)))))),
    el("tfoot", {},
      line("Semantic entropy, nats", entropy.map((h) => fixed(h === null ? null : h / UNIT, 3))),
      line("Selected answer", correct.map((right) => (right === null ? MISSING : right ? "right" : "wrong"))),
      line("Decided by", rule.map((i) => cell.block.rules[i] ?? MISSING))));
}

/** Confidence and correctness of the same question under every method and measure. */
function methodTable(record, k) {
  const marks = { true: "✓", false: "✗", null: "" };
  const others = record.cell.records.filter(({ number }) => number === record.number);
  const rows = others.map((other) => {
    const views = data.measures.map((_, i) => view(other, i));
    return el("tr", { className: other === record ? "chosen" : "" },
      el("th", { scope: "row" }, methodName(other.method)),
      el("td", { className: "answer" }, views[k].answer || MISSING),
      ...views.map(({ confidence, right }) => el("td", { className: `number ${rightClass(right)}` },
        `${fixed(confidence, 3)} ${marks[right]}`)));
  });
  const caption = `The same question with every method: the answer of ${data.measures[k]}, and the ` +
    "confidence of each measure in its answer, right (✓) or wrong (✗)";
  return scrolled("methods", "Methods", caption,
    el("thead", {}, el("tr", {}, ...heads(["Method", "Answer"]), ...heads(data.measures, true))),
    el("tbody", {}, ...rows));
}

/** Which normal forms of the answers entail which, as far as it was asked; null where it never was. */
function verdictTable({ cell, number, entries }, k) {
  const { forms, form_of: formOf } = cell.block;
  const stored = cell.block.verdicts?.[number] ?? [];
  const texts = entries[k][0].flatMap((cluster) => cluster.filter((_, i) => i % 3 === 0));
  const shown = [...new Set(texts.map((text) => formOf[text]))].filter((one) => one >= 0);
  const known = new Map();
  for (let i = 0; i < stored.length; i += 3) known.set(`${stored[i]} ${stored[i + 1]}`, stored[i + 2]);
  if (!shown.some((a) => shown.some((b) => known.has(`${a} ${b}`)))) return null;
  const marks = { "same": "=", "entails": "✓", "does not entail": "✗", "not asked": "" };
  const judged = (a, b) => {
    const verdict = a === b ? "same" : { 1: "entails", 0: "does not entail" }[known.get(`${a} ${b}`)] ?? "not asked";
    return el("td", { className: `verdict ${verdict === "entails" ? "right" : ""}`, title: verdict }, marks[verdict]);
  };
  return scrolled("verdicts", "Entailment", "Does the answer of the row entail the answer of the column? ✓ yes, " +
    "✗ no, empty: not asked, because it could not change the meanings. Answers in normal form",
  el("thead", {}, el("tr", {}, el("td", {}),
    ...shown.map((one, i) => el("th", { scope: "col", title: forms[one] }, String(i + 1))))),
  el("tbody", {}, ...shown.map((a, i) => el("tr", {}, el("th", { scope: "row" }, `${i + 1} ${forms[a]}`),
    ...shown.map((b) => judged(a, b))))));
}

const address = ({ cell, method, id }, k) => "#" + new URLSearchParams({
  model: cell.model, dataset: cell.dataset, run: cell.run, method, measure: data.measures[k], id });

function details(record, k) {
  const { cell, method, entries, id, answers, context } = record;
  const candidate = cell.choices[method][k];
  const own = data.measures.filter((_, i) => cell.choices[method][i] === candidate);
  const uses = own.length < data.measures.length ? `, which ${method} uses for ${own.join(", ")}` : "";
  const caption = `Answers sampled with ${candidate}${uses}, by meaning, with their log-likelihoods per ` +
    "token, and the confidence in each meaning. Only meanings that a measure selects are graded";
  const facts = [["Accepted", answers.join(" · ") || MISSING], ["Id", id]];
  if (context) facts.push(["Passage", context]);
  const right = entries[k][7];
  const greedy = el("p", { className: "note" },
    "Greedy answer: ", el("bdi", {}, cell.block.texts[entries[k][6]] || "empty"), " ",
    el("span", { className: rightClass(right) }, rightWord(right)), " · ",
    el("a", { href: address(record, k) }, "Link to this question"));
  return el("div", {},
    el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])), greedy,
    ...[clusterTable(record, k, caption), methodTable(record, k), verdictTable(record, k)].filter(Boolean));
}

// ---- Start -----------------------------------------------------------------------------------------------
function filter({ name, label, values, all, first }) {
  const options = values.map((value) => el("option", { value, defaultSelected: value === first }, value));
  if (all && values.length > 1) options.unshift(el("option", { value: "" }, all));
  return el("label", {}, `${label} `, el("select", { name }, ...options));
}

function startExplorer() {
  const filters = [
    { name: "model", label: "Model", values: data.models, all: "all", first: data.models[0] },
    { name: "dataset", label: "Data set", values: data.datasets, all: "all", first: data.datasets[0] },
    { name: "method", label: "Method", values: data.methods, all: "all" },
    { name: "rule", label: "Decided by", values: data.rules, all: "any rule" },
    { name: "run", label: "Run", values: data.runs.map(String) },
    { name: "measure", label: "Measure", values: data.measures },
  ].map(filter);
  const outcomes = OUTCOMES.map(({ name, label }) => el("option", { value: name }, label));
  form.append(...filters, el("label", {}, "Show ", el("select", { name: "outcome" }, ...outcomes)));
  form.hidden = false;
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("pages").addEventListener("click", ({ target }) => {
    state.page += { previous: -1, next: 1 }[target.name] ?? 0;
    draw();
    document.getElementById("explorer").scrollIntoView();
  });
  return refresh();
}

/** Open the question that the address names, if it names one. */
async function follow() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (!wanted.has("id")) return null;
  form.reset();
  for (const [name, value] of wanted) {
    const select = form.elements[name];
    if (select && [...select.options].some((option) => option.value === value)) select.value = value;
  }
  state.sort = null;
  await refresh();
  const place = state.shown.findIndex(({ id }) => id === wanted.get("id"));
  if (place < 0) return say(`The page has no question ${wanted.get("id")}.`);
  state.page = Math.floor(place / PAGE);
  state.open.add(state.shown[place]);
  draw();
  const button = document.querySelector(`[aria-controls="detail-${place % PAGE}"]`);
  button.scrollIntoView();
  return button.focus({ preventScroll: true });
}

window.addEventListener("hashchange", follow);
Promise.resolve(startExplorer()).then(follow);
