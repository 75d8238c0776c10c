// The questions of a grid run. #data holds {measures, methods, models, datasets, runs, rules, choices}:
//   choices[model][dataset]   method → for each measure the candidate that the method uses for it
// Blocks (JSON, gzip, base64) are read when they are first asked for:
//   #questions-D      [[id, question, answers, context?]]
//   #block-M-D-R      what model M did on data set D in run R:
//     texts, forms    texts of answers; normal forms
//     form_of         text → its normal form, by place; -1 where there is none
//     rules           names of rules that decided
//     candidates      name → for each question an entry, or null:
//                     [clusters, confidences, top, correct, entropy, rule, greedy, greedy_correct]
//     verdicts        null, or for each question [premise, hypothesis, entails, …], by places in forms
//   cluster           [text, log-likelihood, how often, …]; a text is its place in texts
//   confidences and entropies are whole ten-thousandths, log-likelihoods whole thousandths

const data = JSON.parse(document.getElementById("data").textContent);
const UNIT = 10000;
const APART = 0.5;

// ---- Reading blocks --------------------------------------------------------------------------------------

const read = new Map();

/** What a packed element holds; read once. */
async function unpacked(id) {
  if (!read.has(id)) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    read.set(id, JSON.parse(await new Response(stream).text()));
  }
  return read.get(id);
}

/** A model on a data set in a run, with a record for every question and method. */
function cellOf(m, d, run, questions, block) {
  const cell = { model: data.models[m], dataset: data.datasets[d], run, block, choices: data.choices[m][d] };
  cell.records = questions.flatMap((question, number) => data.methods.map((method) => ({
    cell, number, question, method,
    entries: cell.choices[method].map((candidate) => block.candidates[candidate][number]),
  })).filter(({ entries }) => entries.every(Boolean)));
  return cell;
}

const cells = new Map();

async function readCell(m, d, run) {
  const [questions, block] = [await unpacked(`questions-${d}`), await unpacked(`block-${m}-${d}-${run}`)];
  cells.set(`${m}-${d}-${run}`, cellOf(m, d, run, questions, block));
}

/** The places [model, data set, run] of the cells that the form asks for. */
function asked({ model, dataset, run }) {
  const places = (names, name) => (name ? [names.indexOf(name)] : [...names.keys()]);
  return places(data.models, model).flatMap((m) =>
    places(data.datasets, dataset).map((d) => [m, d, Number(run)]));
}

let shownCells = "";
let shownRecords = [];

/** Null when all that is asked for has been read; else the promise of the next cell. */
function ready(chosen) {
  const keys = asked(chosen);
  const missing = keys.find((key) => !cells.has(key.join("-")));
  if (missing) return readCell(...missing);
  if (shownCells !== keys.join(" ")) {
    shownCells = keys.join(" ");
    shownRecords = keys.flatMap((key) => cells.get(key.join("-")).records);
  }
  return null;
}

// ---- A record --------------------------------------------------------------------------------------------

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

function members(cluster, texts) {
  const found = [];
  for (let i = 0; i < cluster.length; i += 3) {
    const log = cluster[i + 1];
    found.push([texts[cluster[i]], typeof log === "number" ? log / 1000 : log, cluster[i + 2]]);
  }
  return found;
}

/** The entry of measure k as explorer.js draws it; a cluster that no measure selects was not graded. */
function row({ cell, entries }, k) {
  const [clusters, confidences, top, correct, entropy, rule] = entries[k];
  const graded = new Map(top.map((cluster, i) => [cluster, correct[i]]));
  const drawn = clusters.map((cluster, i) => [
    members(cluster, cell.block.texts),
    confidences.map((values) => (values === null ? null : values[i] / UNIT)),
    graded.get(i) ?? null,
  ]);
  return [drawn, top, correct, entropy.map((h) => (h === null ? null : h / UNIT)), rule];
}

/** Whether measures select answers of which one is right and one wrong, or are far apart in confidence. */
function disagree(record) {
  const views = data.measures.map((_, k) => view(record, k)).filter(({ confidence }) => confidence !== null);
  const all = views.map(({ confidence }) => confidence);
  return new Set(views.map(({ right }) => right)).size > 1 || Math.max(...all) - Math.min(...all) >= APART;
}

const samples = ({ cell, entries }) => [...new Set(entries)].flatMap(([clusters]) =>
  clusters.flatMap((cluster) => members(cluster, cell.block.texts).map(([text]) => text)));

// ---- Details ---------------------------------------------------------------------------------------------

const MARKS = { true: "✓", false: "✗", null: "" };

/** Confidence and correctness of the same question under every method and measure. */
function methodTable(record) {
  const { cell, number } = record;
  const rows = cell.records.filter((other) => other.number === number).map((other) => {
    const views = data.measures.map((_, k) => view(other, k));
    return el("tr", { className: other === record ? "chosen" : "" },
      el("th", { scope: "row" }, methodName(other.method)),
      el("td", { className: "answer" }, views[state.k].answer || MISSING),
      ...views.map(({ confidence, right }) => el("td", { className: `number ${rightClass(right)}` },
        `${fixed(confidence, 3)} ${MARKS[right]}`)));
  });
  const caption = `The same question under every method: the answer of ${data.measures[state.k]}, and the ` +
    "confidence of every measure in its own answer, right (✓) or wrong (✗)";
  return scrolled("methods", "Methods", caption,
    el("thead", {}, el("tr", {}, ...["Method", "Answer"].map((name) => el("th", { scope: "col" }, name)),
      ...data.measures.map((name) => el("th", { scope: "col", className: "number" }, name)))),
    el("tbody", {}, ...rows));
}

/** Which normal forms of the answers entail which, as far as it was asked; null where it never was. */
function verdictTable({ cell, number, entries }, k) {
  const { verdicts, forms, form_of: formOf } = cell.block;
  const stored = verdicts?.[number] ?? [];
  const texts = entries[k][0].flatMap((cluster) => cluster.filter((_, i) => i % 3 === 0));
  const shown = [...new Set(texts.map((text) => formOf[text]))].filter((form) => form >= 0);
  const known = new Map();
  for (let i = 0; i < stored.length; i += 3) known.set(`${stored[i]} ${stored[i + 1]}`, stored[i + 2]);
  if (!shown.some((a) => shown.some((b) => known.has(`${a} ${b}`)))) return null;
  const judged = (a, b) => {
    const verdict = a === b ? "same" : { 1: "entails", 0: "does not entail" }[known.get(`${a} ${b}`)] ?? "not asked";
    const mark = { "same": "=", "entails": "✓", "does not entail": "✗", "not asked": "" }[verdict];
    return el("td", { className: `verdict ${verdict === "entails" ? "right" : ""}`, title: verdict }, mark);
  };
  const names = shown.map((form, i) => `${i + 1} ${forms[form]}`);
  return scrolled("verdicts", "Entailment", "Does the answer of the row entail that of the column? ✓ yes, " +
    "✗ no, empty: not asked, as it could not change the meanings. Answers in normal form",
  el("thead", {}, el("tr", {}, el("td", {}),
    ...shown.map((form, i) => el("th", { scope: "col", title: forms[form] }, String(i + 1))))),
  el("tbody", {}, ...shown.map((a, i) => el("tr", {}, el("th", { scope: "row" }, names[i]),
    ...shown.map((b) => judged(a, b))))));
}

const address = ({ cell, method, question: [id] }, k) => "#" + new URLSearchParams({
  model: cell.model, dataset: cell.dataset, run: cell.run, method, measure: data.measures[k], id });

function recordDetails(record, k) {
  const { cell, method, entries } = record;
  const candidate = cell.choices[method][k];
  const own = data.measures.filter((_, i) => cell.choices[method][i] === candidate);
  const uses = own.length < data.measures.length ? `, which ${method} uses for ${own.join(", ")}` : "";
  const caption = `Answers sampled under ${candidate}${uses}: by meaning, each with its log-likelihood per ` +
    "token; confidence in each meaning. Only meanings that a measure selects were graded";
  const [greedy, right] = [cell.block.texts[entries[k][6]], entries[k][7]];
  const said = el("p", { className: "note" }, "Greedy answer: ", el("bdi", {}, greedy || "empty"), " ",
    el("span", { className: rightClass(right) }, rightWord(right)), " · ",
    el("a", { href: address(record, k) }, "Link to this question"));
  const parts = [said, clusterTable(row(record, k), cell.block.rules, caption), methodTable(record), verdictTable(record, k)];
  return parts.filter(Boolean);
}

// ---- Start -----------------------------------------------------------------------------------------------

/** Open the question that the address names, if it names one. */
async function follow() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (!wanted.has("id")) return;
  form.reset();
  for (const [name, value] of wanted) {
    const select = form.elements[name];
    if (select && [...select.options].some((option) => option.value === value)) select.value = value;
  }
  state.sort = null;
  await refresh();
  const place = state.shown.findIndex(({ question: [id] }) => id === wanted.get("id"));
  if (place < 0) {
    document.getElementById("count").textContent = `There is no question ${wanted.get("id")} here.`;
    return;
  }
  state.page = Math.floor(place / PAGE);
  state.open.add(state.shown[place]);
  draw();
  const button = document.querySelector(`[aria-controls="detail-${place % PAGE}"]`);
  button.scrollIntoView();
  button.focus({ preventScroll: true });
}

const named = (name, key) => ({ name, key, by: byText, cell: (r) => el("td", { className: "set" }, key(r)) });

window.addEventListener("hashchange", follow);
const started = startExplorer({
  measures: data.measures,
  filters: [
    { name: "model", label: "Model", values: data.models, all: "all", first: data.models[0] },
    { name: "dataset", label: "Data set", values: data.datasets, all: "all", first: data.datasets[0] },
    { name: "method", label: "Method", values: data.methods, all: "all" },
    { name: "rule", label: "Decided by", values: data.rules, all: "any rule" },
    { name: "run", label: "Run", values: data.runs.map(String) },
  ],
  outcomes: [{ name: "disagree", label: "measures disagree", keeps: disagree }],
  columns: [
    ...(data.models.length > 1 ? [named("Model", ({ cell }) => cell.model)] : []),
    ...(data.datasets.length > 1 ? [named("Data set", ({ cell }) => cell.dataset)] : []),
    { name: "Method", key: ({ method }) => data.methods.indexOf(method), by: byNumber,
      cell: ({ method }) => el("td", {}, methodName(method)) },
  ],
  unit: "answers",
  ready,
  records: () => shownRecords,
  keeps: (record, { method, rule }) => (!method || record.method === method) &&
    (!rule || record.cell.block.rules[record.entries[state.k][5][state.k]] === rule),
  question: ({ question: [id, question, answers, context] }) => ({ id, question, answers, context }),
  view,
  meanings: ({ entries }, k) => entries[k][0].length,
  samples,
  details: recordDetails,
});
Promise.resolve(started).then(follow);
