// The page of `semcal serve`: sends requests as any client does, and shows the replies.
// Texts of requests and replies enter the page as text nodes, never as markup.
"use strict";
const STORED = "semcal-key";
const NAMES = { risk: "Wrong among the answered", calibration: "Probabilities", questions: "Questions" };
const $ = (id) => document.getElementById(id);
const [LEFT, WIDTH] = [40, 312]; // of plots
const hasKeyboard = matchMedia("(pointer: fine)").matches;
let past = []; // earlier questions, the latest first
let key = stored();
let state = null; // of /v1/semcal/state
let shown = null; // the reply on the page
let threshold = null; // of the slider; null: that of the server
let asking = null; // aborts the running request

/** An element with properties and children; strings become text. */
function el(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** An element of SVG. */
function drawn(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const named = (answer) => (answer === null ? "(no answer)" : written(answer) || "(empty)");
const text = (content, tag = "span", further = "") => el(tag, { className: `text ${further}`, dir: "auto" }, content);
const fixed = (value) => value.toFixed(2);
const percent = (share) => `${Math.round(100 * share)}%`;
const counted = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
const sentence = (words) => `${words[0].toUpperCase()}${words.slice(1)}.`;

function bar(className, share) {
  const fill = el("span", { className: "fill" });
  fill.style.width = `${100 * share}%`;
  return el("span", { className, ariaHidden: "true" }, fill);
}

// ---- Requests

function stored(value) {
  try {
    if (value !== undefined) sessionStorage.setItem(STORED, value);
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return value ?? ""; // without storage, the key is lost with the page
  }
}

/** The JSON of a reply, or an Error with a message for people. */
async function requested(path, body, signal) {
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...(body && { "content-type": "application/json" }) };
  const options = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal };
  let reply, content;
  try {
    reply = await fetch(path, options);
    content = await reply.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw Error("The server cannot be reached.");
  }
  if (reply.status === 401) showKey(key ? "The server does not know this key." : "");
  if (!reply.ok && !content.semcal) throw Error(content.error?.message ?? `The server replied ${reply.status}.`);
  return content;
}

function showKey(said) {
  $("key").hidden = false;
  $("main").hidden = $("forget").hidden = true;
  $("key-said").textContent = said;
  $("key-text").focus();
}

/** The value of a column: null if empty, a number if the calibration is not of documents. */
function columnValue(name) {
  const text = $(`column-${name}`).value.trim();
  if (!text) return null;
  return state.documents || Number.isNaN(Number(text)) ? text : Number(text);
}

async function ask() {
  const question = $("question").value.trim(), isGiven = state.answer_kind === "given";
  if (!question) return;
  asking?.abort();
  const mine = (asking = new AbortController());
  busy(true);
  try {
    const texts = { question, ...(state.form && { context: $("passage-text").value }) };
    const content = state.form ? state.form.replace(/\{(question|context)\}/g, (_, name) => texts[name]) : question;
    const schema = state.documents && { name: "document", schema: state.documents };
    const what = isGiven
      ? { ...texts, answer: $("given-text").value }
      : { messages: [{ role: "user", content }], ...(schema && { response_format: { type: "json_schema", json_schema: schema } }) };
    const columns = state.columns.length ? { columns: Object.fromEntries(state.columns.map((name) => [name, columnValue(name)])) } : {};
    const body = { model: state.models[1], ...what, semcal: { samples: true, ...columns } };
    const path = isGiven ? "/v1/semcal/check" : "/v1/chat/completions";
    const { semcal } = await requested(path, body, mine.signal);
    const entry = { question, semcal };
    const same = (one) => one.question === question && named(one.semcal.answer) === named(semcal.answer);
    past = [entry, ...past.filter((one) => !same(one))];
    show(entry);
    refresh();
  } catch (error) {
    if (!mine.signal.aborted) fail(error.message);
  } finally {
    if (asking === mine) {
      asking = null;
      busy(false);
    }
  }
}

function busy(on) {
  $("result").ariaBusy = String(on);
  $("send").textContent = on ? "Stop" : state.answer_kind === "given" ? "Check" : "Ask";
  $("hint").textContent = on ? "Sampling answers…" : hasKeyboard ? "Enter sends, Shift+Enter starts a new line" : "";
}

function fail(message) {
  shown = null;
  $("meanings").hidden = $("fields").hidden = true;
  $("result").ariaLive = "polite";
  $("result").className = "failed";
  $("result").replaceChildren(el("p", { className: "verdict" }, "No reply"), text(sentence(message.replace(/\.$/, "")), "p"));
  showHistory();
  showDial();
}

// ---- A reply

/** The decision on a document. */
function judgedDocument({ answer, fields, document, review, reason, uncovered }) {
  if (answer === null) return { kind: "abstained", name: "No document", why: sentence(reason) };
  const n = Object.keys(fields).length, isDecided = Object.values(fields).some(({ accepted }) => accepted !== null);
  if (document.probability === null) return notCovered(uncovered, "Not accepted");
  if (!isDecided) return { kind: "", name: counted(n, "field"), why: "The calibration has no threshold (--risk)." };
  if (!review.length) return { kind: "answered", name: "No field to review", why: `All ${n} fields are accepted.` };
  return { kind: "abstained", name: `${review.length} of ${n} fields to review`, why: "" };
}

/** The decision on a reply without a probability. */
function notCovered(uncovered, no) {
  if (uncovered) return { kind: "", name: "No probability", why: `The calibration does not cover: ${uncovered.join(", ")}.` };
  return { kind: "abstained", name: no, why: "The watch has raised an alarm: probabilities may be wrong." };
}

/** The decision on a reply at the threshold of the slider, or at the server's. */
function judged({ semcal }) {
  if (semcal.fields) return judgedDocument(semcal);
  const score = semcal.confidence, isGiven = semcal.answer_kind === "given";
  const [yes, no] = isGiven ? ["Passes", "Does not pass"] : ["Answered", "Abstains"];
  if (semcal.uncovered || score === null) return notCovered(semcal.uncovered, no);
  const isOurs = threshold !== null && semcal.calibration === state.calibration;
  const at = isOurs ? threshold : semcal.threshold;
  if (at === null) {
    if (!semcal.abstained) return { kind: "answered", name: yes, why: "" };
    return { kind: "abstained", name: no, why: "No threshold was shown to keep the promised risk." };
  }
  const abstained = isOurs ? score < at : semcal.abstained;
  const name = abstained ? no : !isOurs && semcal.decision === "review" ? "To be reviewed" : yes;
  const verb = abstained ? "is below" : "reaches";
  const why = sentence(
    score < at === abstained ? `the probability ${fixed(score)} ${verb} the threshold ${fixed(at)}` : `its score ${verb} the threshold of scores, which decides`,
  );
  return { kind: abstained ? "abstained" : "answered", name, why, at };
}

function show(entry) {
  shown = entry;
  $("result").ariaLive = "polite";
  if (entry.semcal.fields) showDocument();
  else {
    showResult();
    showMeanings();
  }
  showHistory();
  showDial();
  $("result").scrollIntoView({ block: "nearest" });
}

function showResult() {
  const { question, semcal } = shown, verdict = judged(shown), p = semcal.confidence;
  const isHeld = verdict.kind === "abstained" && semcal.answer_kind !== "given";
  const large = isHeld ? text(verdict.name, "p", "answer verdict") : text(named(semcal.answer), "p", "answer");
  large.classList.toggle("long", large.textContent.length > 200);
  const parts = [text(question, "p", "quiet"), el("div", { className: "head" }, large)];
  if (p !== null) {
    const small = el("small", {}, isHeld ? "probability of its answer" : "probability that it is right");
    parts[1].append(el("p", { className: "probability number" }, fixed(p), small));
    const track = bar("track", p);
    if (verdict.at !== undefined) {
      const mark = el("span", { className: "at" });
      mark.style.left = `${100 * verdict.at}%`;
      track.append(mark);
    }
    parts.push(track);
  }
  const said = el("p", {}, ...(isHeld ? [] : [el("span", { className: "verdict" }, `${verdict.name}. `)]), verdict.why);
  if (isHeld) said.append(" Its answer: ", el("b", { dir: "auto" }, semcal.answer || "(empty)"));
  parts.push(said, text(sentence(semcal.explanation), "p"));
  if (semcal.calibration !== state.calibration)
    parts.push(el("p", { className: "quiet" }, `The stronger model ${semcal.route} answered too, and its calibration decides.`));
  $("result").className = verdict.kind;
  $("result").replaceChildren(...parts);
}

/** The color of a probability, between that of wrong and that of right answers. */
const colored = (p) => (p === null ? "var(--edge)" : `color-mix(in oklab, var(--right) ${100 * p}%, var(--wrong))`);

function showDocument() {
  const { question, semcal } = shown, { name, why, kind } = judged(shown), p = semcal.document.probability;
  const head = el("div", { className: "head" }, text(name, "p", "answer verdict"));
  const parts = [text(question, "p", "quiet"), head];
  if (p !== null) {
    head.append(el("p", { className: "probability number" }, fixed(p), el("small", {}, "probability that all fields are right")));
    parts.push(bar("track", p));
  }
  if (why) parts.push(el("p", {}, why));
  $("result").className = kind;
  $("result").replaceChildren(...parts);
  $("meanings").hidden = true;
  const rows = Object.entries(semcal.fields).sort(([, a], [, b]) => (a.probability ?? -1) - (b.probability ?? -1));
  $("fields").hidden = !rows.length;
  document.querySelector("#fields tbody").replaceChildren(...rows.map(showField));
  const invalid = semcal.invalid_samples ? `${semcal.invalid_samples} of ${counted(semcal.m, "sample")} held no valid document. ` : "";
  $("fields-said").textContent = invalid + state.thresholds.map((one) => sentence(one.sentence.replace(/\.$/, ""))).join(" ");
}

function showField([path, { value, probability, accepted, alternatives }]) {
  const cell = (className, ...children) => el("td", { className, role: "cell" }, ...children);
  const shownValue = value === null ? text("(empty)", "span", "none") : text(written(value) || '""');
  const row = el("tr", { role: "row" }, cell("field", text(path)), cell("value", shownValue));
  const track = bar("bar", probability ?? 0);
  track.firstChild.style.background = colored(probability);
  const number = el("span", { className: "number" }, probability === null ? "–" : fixed(probability));
  row.append(cell("p", el("div", { className: "pair" }, track, number)));
  const decision = accepted === null ? "" : accepted ? "accepted" : "review";
  row.append(cell(`decision ${decision}`, decision || "–"));
  const others = alternatives.slice(0, 3).map((one) => `${one.value === null ? "(empty)" : written(one.value)} (${percent(one.share)})`);
  row.append(cell("others", ...(others.length ? [text(others.join(", "))] : [])));
  row.style.borderLeftColor = row.firstChild.style.borderLeftColor = colored(probability);
  return row;
}

function showMeanings() {
  const { meanings, m } = shown.semcal;
  $("fields").hidden = true;
  $("meanings").hidden = false;
  $("meanings-said").textContent = `${counted(m, "sample")} with ${counted(meanings.length, "meaning")}. Open a meaning to see its samples.`;
  $("bars").replaceChildren(
    ...meanings.map((meaning) => {
      const draws = new Map();
      for (const draw of meaning.samples) draws.set(draw, (draws.get(draw) ?? 0) + 1);
      const p = meaning.probability === null ? "–" : fixed(meaning.probability);
      const head = el("summary", {}, text(named(meaning.text)), bar("bar", meaning.share));
      head.append(el("span", { className: "number" }, `${meaning.samples.length} of ${m}`));
      head.append(el("span", { className: "number p", title: "probability that it is right" }, p));
      const list = [...draws].map(([draw, n]) => el("li", {}, el("span", { className: "quiet" }, `${n} ×`), text(named(draw))));
      return el("details", {}, head, el("ul", {}, ...(list.length ? list : [el("li", {}, "", "No sample has this meaning.")])));
    }),
  );
}

function showHistory() {
  $("history").hidden = !past.length;
  document.querySelector("#history ol").replaceChildren(
    ...past.map((entry) => {
      const { kind, name } = judged(entry), { answer, confidence, document: whole } = entry.semcal;
      const words = whole ? name : kind === "abstained" ? name : confidence === null ? "" : fixed(confidence);
      const onclick = () => {
        show(entry);
        document.querySelector("#history [aria-current]").focus(); // the pressed button was replaced
      };
      const button = el("button", { type: "button", onclick }, text(entry.question, "span", "q"));
      button.append(text(named(answer)), el("span", { className: `number ${kind}` }, el("span", { className: "verdict" }, words)));
      if (entry === shown) button.ariaCurrent = "true";
      return el("li", {}, button);
    }),
  );
}

// ---- The threshold

/** Shares of the labeled questions at a threshold, and whether they are exact or interpolated. */
function meaningOf(t) {
  let answered = 0, wrong = 0, n = 0, isExact = true;
  for (const group of state.labelled) {
    const isInside = group.low < t && t <= group.high;
    const part = t <= group.low ? 1 : isInside ? (group.high - t) / (group.high - group.low) : 0;
    isExact &&= !isInside;
    n += group.n;
    answered += part * group.n;
    wrong += part * (group.n - group.right);
  }
  return { n, answered: answered / n, wrong: answered ? wrong / answered : 0, isExact };
}

const served = () => state.thresholds.at(-1)?.threshold ?? null;
const across = (x) => LEFT + WIDTH * x;
const place = ([x, y]) => [across(x), 128 - 116 * y].map((value) => value.toFixed(1)).join();

function showDial() {
  if (!state.labelled.length) return;
  const t = threshold ?? served() ?? 0, { n, answered, wrong, isExact } = meaningOf(t), about = isExact ? "" : "about ";
  const parts = answered
    ? [about, el("b", { className: "answered" }, percent(answered)), state.answer_kind === "given" ? " pass, " : " answered, ", el("b", { className: "wrong" }, percent(wrong)), " of them wrong"]
    : [state.answer_kind === "given" ? "none passes" : "nothing is answered"];
  $("dial-said").replaceChildren("At ", el("b", {}, fixed(t)), ": ", ...parts, ` (of ${n} labeled questions).`);
  $("threshold").value = t;
  $("threshold").ariaValueText = $("dial-said").textContent;
  $("reset").hidden = threshold === null;
  const steps = Array.from({ length: 101 }, (_, i) => [i / 100, meaningOf(i / 100)]).filter(([, { answered }]) => answered > 0.01);
  const line = (name, className) => drawn("polyline", { class: `line ${className}`, points: steps.map(([x, means]) => place([x, means[name]])).join(" ") });
  const svg = drawn("svg", { viewBox: "0 0 360 144", "aria-hidden": "true" });
  for (const y of [0, 0.5, 1]) {
    svg.append(drawn("line", { class: "rule", x1: LEFT, x2: LEFT + WIDTH, y1: 128 - 116 * y, y2: 128 - 116 * y }));
    svg.append(drawn("text", { x: LEFT - 6, y: 132 - 116 * y, "text-anchor": "end" }, percent(y)));
  }
  svg.append(line("answered", ""), line("wrong", "wrong"));
  svg.append(drawn("line", { class: "at", x1: across(t), x2: across(t), y1: 6, y2: 128 }));
  for (const x of [0, 0.5, 1]) svg.append(drawn("text", { x: across(x), y: 142, "text-anchor": "middle" }, String(x)));
  const score = shown?.semcal.confidence == null || shown.semcal.calibration !== state.calibration ? null : shown.semcal.confidence;
  if (score !== null) {
    svg.append(drawn("circle", { class: "dot", cx: across(score), cy: 128, r: 4.5 }));
    const anchor = score > 0.5 ? "end" : "start";
    const label = { class: "mark", x: across(score) + (score > 0.5 ? 5 : -5), y: 119, "text-anchor": anchor };
    svg.append(drawn("text", label, `this answer ${fixed(score)}`));
  }
  $("curve").replaceChildren(svg);
}

function turn() {
  threshold = Number($("threshold").value);
  again();
}

function again() {
  $("result").ariaLive = "off"; // the slider is announced instead
  if (shown && !shown.semcal.fields) showResult();
  showHistory();
  showDial();
}

// ---- The watch

function standing({ watch, alarm, alarm_at, notice_at, labels, warning, warning_at, replies }) {
  if (watch === "questions" && warning) return `differ since reply ${warning_at}`;
  if (watch === "questions") return replies ? `similar, ${replies === 1 ? "1 reply" : `${replies} replies`}` : "no replies yet";
  if (alarm) return `alarm at label ${alarm_at}`;
  if (notice_at) return `notice at label ${notice_at}: the promise may not hold`;
  return labels ? `no alarm, ${counted(labels, "label")}` : "no labels yet";
}

function showTest(test) {
  const n = test.labels ?? test.replies, raised = test.alarm ?? test.warning, top = Math.log(test.limit);
  const points = [...test.log_e.map((value, i) => [i * test.every, value]), [n, Math.log(test.e_value)]];
  const values = points.map(([, value]) => value).filter(Number.isFinite);
  const low = Math.max(-5, Math.min(-1, ...values)), high = Math.max(1.1 * top, ...values);
  const x = (i) => across(i / Math.max(1, n)), y = (value) => 76 - (68 * (Math.max(low, value) - low)) / (high - low);
  const svg = drawn("svg", { viewBox: "0 0 360 84", "aria-hidden": "true" });
  for (const [value, name] of [[0, "rule"], [top, "limit"]]) {
    svg.append(drawn("line", { class: name, x1: LEFT, x2: LEFT + WIDTH, y1: y(value), y2: y(value) }));
    const hasRoom = value || y(0) - y(top) > 12;
    if (hasRoom) svg.append(drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, Math.exp(value).toFixed(0)));
  }
  svg.append(drawn("polyline", { class: "line", points: points.map(([i, value]) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
  svg.append(drawn("circle", { class: "dot end", cx: x(n), cy: y(points.at(-1)[1]), r: 3 }));
  const head = el("p", {}, NAMES[test.watch] ?? test.watch, el("span", { className: raised ? "raised" : "" }, standing(test)));
  return el("div", { className: "test" }, head, ...(n ? [svg] : []));
}

function showWatch() {
  const watch = state.watch, alarm = watch?.alarm ? `Alarm: a promise does not hold.${state.on_alarm === "abstain" ? " Every reply abstains." : ""}` : "";
  $("alarm").hidden = !alarm;
  if ($("alarm").textContent !== alarm) $("alarm").textContent = alarm;
  const said = watch ? "Evidence against each promise, label by label; the dashed line raises the alarm." : "No watch: the server runs without a log (--log FILE).";
  $("watch").replaceChildren(el("p", { className: "quiet" }, said), ...(watch?.tests ?? []).map(showTest));
}

// ---- The page

async function refresh() {
  state = await requested("/v1/semcal/state").catch(() => state);
  showWatch();
}

async function start() {
  try {
    state = await requested("/v1/semcal/state");
  } catch (error) {
    if ($("key").hidden) $("facts").textContent = error.message;
    return;
  }
  $("key").hidden = true;
  $("main").hidden = false;
  $("forget").hidden = !key;
  const nLabels = state.labelled.reduce((sum, group) => sum + group.n, 0);
  $("facts").textContent = `${state.models[0]}, calibration ${state.calibration}${nLabels ? `, learned from ${nLabels} labeled questions` : ""}`;
  $("passage").hidden = $("passage-text").disabled = !state.form;
  $("passage-text").required = Boolean(state.form);
  $("given").hidden = $("given-text").disabled = state.answer_kind !== "given";
  $("given-text").required = state.answer_kind === "given";
  $("columns").replaceChildren(
    ...state.columns.flatMap((name) => {
      const id = `column-${name}`;
      return [el("label", { htmlFor: id }, name), el("input", { id, type: "text", autocomplete: "off" })];
    }),
  );
  $("examples").hidden = !state.examples.length || Boolean(state.form) || state.answer_kind === "given";
  document.querySelector("#examples ul").replaceChildren(
    ...state.examples.map((example) => {
      const onclick = () => {
        $("question").value = example;
        ask();
      };
      return el("li", {}, el("button", { type: "button", dir: "auto", onclick }, example));
    }),
  );
  $("dial").hidden = !nLabels;
  $("promise").textContent = state.thresholds.map((one) => sentence(one.sentence)).join(" ");
  $("reset").textContent = served() === null ? "Back to the server's decision" : `Back to the server's ${fixed(served())}`;
  busy(false);
  showDial();
  showWatch();
  if (hasKeyboard) $("question").focus();
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
$("send").addEventListener("click", (event) => {
  if (!asking) return;
  event.preventDefault();
  asking.abort();
});
$("ask").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.tagName !== "TEXTAREA") return;
  event.preventDefault();
  if (!asking) $("ask").requestSubmit();
});
$("threshold").addEventListener("input", turn);
$("reset").addEventListener("click", () => {
  threshold = null;
  again();
  $("threshold").focus();
});
$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = stored($("key-text").value.trim());
  $("key-text").value = "";
  start();
});
$("forget").addEventListener("click", () => {
  key = stored("");
  location.reload();
});
setInterval(() => state && !document.hidden && refresh(), 30_000);
start();
