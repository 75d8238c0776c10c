// The questions of one model. #data holds {measures, methods, rules, sets: [{name, questions, rows}]}:
//   question  {id, question, answers, context?}
//   rows      method → one row a question as explorer.js draws it, null where the method did not answer it

const data = JSON.parse(document.getElementById("data").textContent);

/** One record is one question under one method. */
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

/** The same question under every method, for the chosen measure. */
function methodTable(record) {
  const rows = data.methods.flatMap((method) => {
    const row = record.set.rows[method]?.[record.number];
    return row ? [el("tr", {}, el("th", { scope: "row" }, methodName(method)), ...answerCells({ row }))] : [];
  });
  const names = ["Method", "Answer", "Confidence", "Correct", "Meanings"];
  const number = new Set(["Confidence", "Meanings"]);
  return scrolled("methods", "Methods", `The same question under every method (${data.measures[state.k]})`,
    el("thead", {}, el("tr", {},
      ...names.map((name) => el("th", { scope: "col", className: number.has(name) ? "number" : "" }, name)))),
    el("tbody", {}, ...rows));
}

startExplorer({
  measures: data.measures,
  filters: [
    { name: "set", label: "Set", values: data.sets.map((set) => set.name), all: "all" },
    { name: "method", label: "Method", values: data.methods, all: "all" },
  ],
  outcomes: [],
  columns: [
    { name: "Set", key: (r) => r.set.name, by: byText,
      cell: (r) => el("td", { className: "set" }, r.set.name) },
    { name: "Method", key: (r) => data.methods.indexOf(r.method), by: byNumber,
      cell: (r) => el("td", {}, methodName(r.method)) },
  ],
  unit: "answers",
  ready: () => null,
  records: () => records,
  keeps: (record, { set, method }) => (!set || record.set.name === set) && (!method || record.method === method),
  question: (record) => record.question,
  view,
  meanings: (record) => record.row[0].length,
  samples: (record) => record.row[0].flatMap(([members]) => members.map(([text]) => text)),
  details: (record) => [clusterTable(record.row, data.rules), methodTable(record)],
});
