// The page: what is shown, and what the user does with it.

import { prepare, select } from "./boxes.js";
import { listenForKeys } from "./keys.js";
import { announce, askToken, setUpTheme, showError, showStatus } from "./messages.js";
import { Pane, View } from "./pane.js";
import { showBoxes, showClasses, showTimings } from "./panel.js";
import { addThumbnails, decode, listenForFiles, makePicture, showStrip } from "./pictures.js";
import { copyText, savePicture, toJson } from "./results.js";
import { listModels, predict } from "./server.js";
import { closeVideo, openCamera, openVideo, readFrames } from "./stream.js";

const byId = (id) => document.getElementById(id);
const view = new View();
const panes = [0, 1].map((at) => {
  const root = byId(`pane-${at}`);
  const pane = new Pane(root.querySelector(".view"), view, { onView: redrawAll, onPoint: highlight });
  return Object.assign(pane, { at, caption: root.querySelector("figcaption"), answer: null, prepared: null, model: "" });
});

let models = [];
let pictures = [];
let current = -1;
let comparing = false;
let chosen = null; // the names of the chosen classes, or null for all
let shown = null; // what the panes show: {name, frame, image, width, height}
let work = new AbortController(); // what is under way for the picture or the stream

const used = () => (comparing ? panes : panes.slice(0, 1));
const isChosen = (name) => chosen === null || chosen.has(name);

// Drawing

function redrawAll() {
  byId("zoom").textContent = `${Math.round(view.zoom * 100)} %`;
  for (const pane of used()) {
    pane.drawPicture();
    pane.drawBoxes();
  }
}

function highlight(box) {
  if (used().every((pane) => pane.highlighted === box)) return;
  for (const pane of used()) {
    pane.highlighted = pane.boxes.includes(box) ? box : null;
    pane.drawBoxes();
  }
  showBoxes(byId("boxes"), used(), box);
}

/** Select the boxes by the sliders and classes and show them; nothing is asked of the server. */
function selectBoxes() {
  const score = Number(byId("score").value);
  const overlap = Number(byId("overlap").value);
  const counts = new Map();
  for (const pane of used()) {
    const found = pane.prepared ? select(pane.prepared, score, overlap) : [];
    for (const { class: name, class_id: classId } of found) {
      const row = counts.get(name) ?? { name, classId, counts: used().map(() => 0) };
      row.counts[pane.at] += 1;
      counts.set(name, row);
    }
    pane.boxes = found.filter((box) => isChosen(box.class));
    if (pane.highlighted && !pane.boxes.includes(pane.highlighted)) pane.highlighted = null;
    pane.drawBoxes();
    showCaption(pane);
  }
  showClasses(byId("classes"), counts, isChosen);
  byId("no-classes").hidden = counts.size > 0;
  showBoxes(byId("boxes"), used(), panes[0].highlighted ?? panes[1].highlighted);
}

function showCaption(pane) {
  const [name, count, time] = pane.caption.children;
  const boxes = pane.answer ? `${pane.boxes.length} ${pane.boxes.length === 1 ? "box" : "boxes"}` : "";
  name.textContent = pane.model;
  count.textContent = boxes;
  const ms = pane.answer?.timings_ms?.total ?? pane.answer?.round_trip_ms;
  time.textContent = ms === undefined ? (pane.busy ? "…" : "") : `${ms.toFixed(1)} ms`;
  const label = shown ? `${shown.name}: ${boxes || "not predicted yet"} by ${pane.model}` : "No picture";
  pane.root.setAttribute("aria-label", label);
}

function setAnswer(pane, answer) {
  pane.answer = answer;
  pane.prepared = answer && prepare(answer.detections);
}

/** Show a picture with the answers that are here. */
function show(picture, answerOf) {
  shown = picture;
  byId("empty").hidden = byId("zoom-bar").hidden = true;
  byId("zoom-bar").hidden = byId("results").hidden = byId("times").hidden = false;
  for (const pane of used()) {
    setAnswer(pane, answerOf(pane));
    pane.show(picture);
  }
  selectBoxes();
  showTimings(byId("timings"), used());
}

// Asking the server

function stopWork() {
  work.abort(); // the server frees the request's place
  work = new AbortController();
  return work.signal;
}

function ask(blob, model, signal) {
  return predict(blob, model, { signal, askToken, onWait: showStatus });
}

/** Run something that may fail and say why; a request that was given up is not a failure. */
async function attempt(run) {
  try {
    showError("");
    return await run();
  } catch (error) {
    if (error.name !== "AbortError") showError(error.message);
    return null;
  }
}

/** Show a picture of the list, and predict what is not known yet, one model after the other. */
async function choose(at) {
  stopStream();
  const signal = stopWork();
  current = at;
  const picture = pictures[at];
  showStrip(byId("strip"), pictures, current, choose);
  await attempt(async () => {
    const pixels = await decode(picture);
    if (signal.aborted) return;
    shown?.image.close?.();
    const frame = { name: picture.name, frame: null, ...pixels };
    show(frame, (pane) => picture.answers.get(pane.model) ?? null);
    showStrip(byId("strip"), pictures, current, choose);
    for (const pane of used()) {
      if (picture.answers.has(pane.model)) continue;
      pane.busy = true;
      showCaption(pane);
      try {
        picture.answers.set(pane.model, await ask(picture.blob, pane.model, signal));
      } finally {
        pane.busy = false;
      }
      if (signal.aborted) return;
      show(frame, (shownPane) => picture.answers.get(shownPane.model) ?? null);
    }
    announce(used().map((pane) => `${pane.model}: ${pane.boxes.length} boxes`).join(", "));
  });
}

function take(files) {
  const images = files.filter((file) => !file.type.startsWith("video/"));
  const film = files.find((file) => file.type.startsWith("video/"));
  if (film) {
    startStream((video) => openVideo(video, film), film.name);
    return;
  }
  if (!images.length) return;
  const first = pictures.length;
  pictures = [...pictures, ...images.map(makePicture)];
  view.fit();
  choose(first);
  addThumbnails(pictures.slice(first), () => showStrip(byId("strip"), pictures, current, choose));
}

// Webcam and video

async function startStream(open, name) {
  stopStream();
  const signal = stopWork();
  const video = byId("video");
  current = -1;
  byId("strip").hidden = true;
  const isCamera = name === "webcam";
  await attempt(async () => {
    await open(video);
    if (signal.aborted) return;
    byId("player").hidden = false;
    byId("play").hidden = byId("seek").hidden = isCamera;
    byId("camera").setAttribute("aria-pressed", String(isCamera));
    view.fit();
    let frame = 0;
    let last = performance.now();
    let rate = 0;
    await readFrames(video, signal, async (pixels, blob) => {
      const answers = new Map();
      for (const pane of used()) answers.set(pane.model, await ask(blob, pane.model, signal));
      show({ name, frame, ...pixels }, (pane) => answers.get(pane.model) ?? null);
      frame += 1;
      const now = performance.now();
      rate = rate * 0.8 + (1000 / (now - last)) * (frame === 1 ? 1 : 0.2);
      last = now;
      byId("rate").textContent = `${rate.toFixed(1)} frames/s`;
      if (Number.isFinite(video.duration)) byId("seek").value = video.currentTime / video.duration;
    });
  });
  if (!signal.aborted) stopStream();
}

function stopStream() {
  if (byId("player").hidden) return;
  stopWork();
  closeVideo(byId("video"));
  byId("player").hidden = true;
  byId("camera").setAttribute("aria-pressed", "false");
}

function playOrPause() {
  const video = byId("video");
  if (byId("player").hidden || byId("play").hidden) return;
  if (video.paused) video.play();
  else video.pause();
}

// Models

function refresh() {
  panes.forEach((pane) => {
    pane.model = byId(`model-${pane.at}`).value;
    setAnswer(pane, null);
  });
  if (current >= 0) choose(current);
  else if (shown) show(shown, () => null);
  else used().forEach(showCaption);
}

function setComparing(on) {
  if (models.length < 2) {
    showStatus("Start the server with two models to compare them.");
    return;
  }
  comparing = on;
  byId("compare").setAttribute("aria-pressed", String(on));
  byId("second-model").hidden = byId("pane-1").hidden = !on;
  byId("panes").classList.toggle("two", on);
  refresh();
}

async function loadModels() {
  await attempt(async () => {
    models = await listModels(askToken);
    for (const at of [0, 1]) {
      const options = models.map((model) => new Option(model.name, model.name));
      byId(`model-${at}`).replaceChildren(...options);
      byId(`model-${at}`).selectedIndex = Math.min(at, models.length - 1);
    }
    byId("compare").disabled = models.length < 2;
    byId("compare").title = models.length < 2 ? "Start the server with two models to compare them" : "Compare (C)";
    refresh();
  });
}

// What the user does

function step(by) {
  if (current >= 0 && pictures.length > 1) choose((current + by + pictures.length) % pictures.length);
}

async function copyJson() {
  if (!shown) return;
  const text = toJson(shown.name, shown.frame, used());
  if (await copyText(text)) {
    showStatus("The boxes are on the clipboard.");
  } else {
    byId("json-text").value = text;
    byId("json-dialog").showModal();
    byId("json-text").select();
  }
}

function changeScore(by) {
  byId("score").value = Number(byId("score").value) + by;
  byId("score").dispatchEvent(new Event("input"));
}

for (const id of ["score", "overlap"]) {
  byId(id).addEventListener("input", () => {
    byId(`${id}-value`).textContent = Number(byId(id).value).toFixed(2);
    selectBoxes();
  });
}
byId("classes").addEventListener("change", (event) => {
  const known = [...panes.flatMap((pane) => pane.prepared?.boxes.map((box) => box.class) ?? [])];
  chosen ??= new Set([...models.flatMap((model) => model.classes ?? []), ...known]);
  const { name } = event.target.closest("li").dataset;
  if (event.target.checked) chosen.add(name);
  else chosen.delete(name);
  selectBoxes();
});
byId("all").addEventListener("click", () => {
  chosen = null;
  selectBoxes();
});
byId("none").addEventListener("click", () => {
  chosen = new Set();
  selectBoxes();
});
byId("boxes").addEventListener("pointerover", (event) => highlight(event.target.closest("li")?.box ?? null));
byId("boxes").addEventListener("pointerleave", () => highlight(null));
byId("pick").addEventListener("click", () => byId("files").click());
byId("film").addEventListener("click", () => byId("film-file").click());
for (const id of ["files", "film-file"]) {
  byId(id).addEventListener("change", () => {
    take([...byId(id).files]);
    byId(id).value = ""; // so that the same file can be chosen again
  });
}
byId("camera").addEventListener("click", () => {
  if (byId("camera").getAttribute("aria-pressed") === "true") stopStream();
  else startStream(openCamera, "webcam");
});
byId("play").addEventListener("click", playOrPause);
byId("seek").addEventListener("input", () => {
  const video = byId("video");
  if (Number.isFinite(video.duration)) video.currentTime = byId("seek").value * video.duration;
});
for (const name of ["play", "pause"]) {
  byId("video").addEventListener(name, () => {
    byId("play").textContent = byId("video").paused ? "▶" : "❚❚";
    byId("play").setAttribute("aria-label", byId("video").paused ? "Play" : "Pause");
  });
}
byId("zoom-in").addEventListener("click", () => panes[0].zoom(1.5));
byId("zoom-out").addEventListener("click", () => panes[0].zoom(1 / 1.5));
byId("fit").addEventListener("click", fit);
byId("compare").addEventListener("click", () => setComparing(!comparing));
byId("model-0").addEventListener("change", refresh);
byId("model-1").addEventListener("change", refresh);
byId("copy").addEventListener("click", copyJson);
byId("save").addEventListener("click", save);

function fit() {
  view.fit();
  redrawAll();
}

function save() {
  if (shown) attempt(() => savePicture(shown.name, shown, panes[0].boxes));
}

listenForFiles(byId("drop"), take);
listenForKeys({
  o: () => byId("files").click(),
  c: () => setComparing(!comparing),
  j: copyJson,
  s: save,
  t: setUpTheme(byId("theme")),
  "?": () => byId("help-dialog").showModal(),
  "+": () => panes[0].zoom(1.5),
  "=": () => panes[0].zoom(1.5),
  "-": () => panes[0].zoom(1 / 1.5),
  0: fit,
  "[": () => changeScore(-0.05),
  "]": () => changeScore(0.05),
  " ": playOrPause,
  ArrowLeft: () => step(-1),
  ArrowRight: () => step(1),
  "Shift+ArrowLeft": () => panes[0].move(60, 0),
  "Shift+ArrowRight": () => panes[0].move(-60, 0),
  "Shift+ArrowUp": () => panes[0].move(0, 60),
  "Shift+ArrowDown": () => panes[0].move(0, -60),
});
byId("help").addEventListener("click", () => byId("help-dialog").showModal());
byId("token").addEventListener("click", async () => (await askToken(false)) && loadModels());
loadModels();
