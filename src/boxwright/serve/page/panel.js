// The side panel: classes, milliseconds and the list of boxes. Names from the server are only ever set as text.

import { classColour } from "./boxes.js";

const LISTED = 40; // boxes of one model

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Give `list` so many rows and return them; those that it has stay, because new ones take the browser long. */
function keepRows(list, count, create) {
  while (list.children.length > count) list.lastElementChild.remove();
  while (list.children.length < count) list.append(create());
  return [...list.children];
}

/** Show each class with a checkbox and its number of boxes, of each model where two are compared. */
export function showClasses(list, counts, isChosen) {
  const found = [...counts.values()].sort((a, b) => a.classId - b.classId || (a.name < b.name ? -1 : 1));
  keepRows(list, found.length, makeClassRow).forEach((row, at) => {
    const { name, classId, counts: numbers } = found[at];
    const text = numbers.join(" / ");
    const [box, swatch, label, number] = row.firstElementChild.children;
    if (row.dataset.name !== name) {
      row.dataset.name = name;
      swatch.style.background = classColour(classId).fill;
      label.textContent = name;
      label.title = name;
    }
    box.checked = isChosen(name);
    if (number.textContent !== text) number.textContent = text;
  });
}

function makeClassRow() {
  const row = make("li");
  const label = make("label", "class");
  const box = make("input");
  box.type = "checkbox";
  label.append(box, make("span", "swatch"), make("span", "name"), make("span", "number"));
  row.append(label);
  return row;
}

/** Show the boxes of each model, best first; `row.box` is the box of a row. */
export function showBoxes(root, panes, highlighted) {
  keepRows(root, panes.length, makeBoxSection).forEach((section, at) => {
    const { model, boxes } = panes[at];
    const [title, list, more] = section.children;
    title.textContent = panes.length > 1 ? model : "";
    title.hidden = panes.length === 1;
    const shown = boxes.slice(0, LISTED);
    keepRows(list, shown.length, makeBoxRow).forEach((row, number) => {
      const box = shown[number];
      if (row.box !== box) {
        row.box = box;
        const [swatch, name, score] = row.children;
        swatch.style.background = classColour(box.class_id).fill;
        name.textContent = box.class;
        score.textContent = box.score.toFixed(3);
      }
      row.classList.toggle("on", box === highlighted);
    });
    const rest = boxes.length - shown.length;
    more.textContent = rest > 0 ? `and ${rest} more` : boxes.length === 0 ? "No box at these settings." : "";
    more.hidden = !more.textContent;
  });
}

function makeBoxSection() {
  const section = make("section");
  section.append(make("h3"), make("ol", "boxes"), make("p", "soft"));
  return section;
}

function makeBoxRow() {
  const row = make("li");
  row.append(make("span", "swatch"), make("span", "name"), make("span", "number"));
  return row;
}

/** Show the milliseconds of each model: a column each, a row for each step that any of them reports. */
export function showTimings(table, panes) {
  const known = panes.filter((pane) => pane.answer);
  const steps = [...new Set(known.flatMap((pane) => Object.keys(pane.answer.timings_ms ?? {})))];
  const head = [make("th", "", "Milliseconds"), ...known.map((pane) => make("th", "number", pane.model))];
  head.forEach((cell) => (cell.scope = "col"));
  const rows = steps.map((step) => [step.replaceAll("_", " "), known.map((pane) => pane.answer.timings_ms?.[step])]);
  rows.push(["answer in the browser", known.map((pane) => pane.answer.round_trip_ms)]);
  const lines = [head, ...rows.map(([name, values]) => timingCells(name, values))];
  table.replaceChildren(
    ...(known.length ? lines : []).map((cells) => {
      const line = make("tr");
      line.append(...cells);
      return line;
    }),
  );
}

function timingCells(name, values) {
  const title = make("th", "", name);
  title.scope = "row";
  const numbers = values.filter((value) => typeof value === "number");
  const least = Math.min(...numbers) < Math.max(...numbers) ? Math.min(...numbers) : null;
  const cells = values.map((value) => {
    const text = typeof value === "number" ? value.toFixed(value < 10 ? 2 : 1) : "–";
    return make("td", value === least ? "number best" : "number", text);
  });
  return [title, ...cells];
}
