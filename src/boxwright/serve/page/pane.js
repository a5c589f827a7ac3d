// A picture with its boxes on two canvases, and the part of it that is seen.

import { classColour } from "./boxes.js";

const HIGHEST_ZOOM = 40;
const FONT = "600 12px system-ui, sans-serif";
const LABEL_HEIGHT = 17;
const LABEL_PAD = 5;

/** The part of the picture that is seen. All panes share one, so that they zoom and move together. */
export class View {
  zoom = 1;
  x = 0.5; // the point of the picture in the middle of the pane, as a part of its width
  y = 0.5;

  fit() {
    this.zoom = 1;
    this.x = this.y = 0.5;
  }

  /** Return the scale and the corner of a picture of this size in a pane. */
  place(pane, picture) {
    const scale = Math.min(pane.width / picture.width, pane.height / picture.height) * this.zoom;
    const width = picture.width * scale;
    const height = picture.height * scale;
    this.x = keepInside(this.x, pane.width / width);
    this.y = keepInside(this.y, pane.height / height);
    return { scale, left: pane.width / 2 - this.x * width, top: pane.height / 2 - this.y * height };
  }

  /** Zoom so that the point of the picture under (x, y) of the pane stays there. */
  zoomAt(factor, x, y, pane, picture) {
    const before = this.place(pane, picture);
    const zoom = Math.min(Math.max(this.zoom * factor, 1), HIGHEST_ZOOM);
    const grown = (before.scale * zoom) / this.zoom;
    this.x = ((x - before.left) / before.scale - (x - pane.width / 2) / grown) / picture.width;
    this.y = ((y - before.top) / before.scale - (y - pane.height / 2) / grown) / picture.height;
    this.zoom = zoom;
  }

  /** Move the picture by pixels of the pane. */
  move(x, y, pane, picture) {
    const { scale } = this.place(pane, picture);
    this.x -= x / (picture.width * scale);
    this.y -= y / (picture.height * scale);
  }
}

function keepInside(middle, seen) {
  return seen >= 1 ? 0.5 : Math.min(Math.max(middle, seen / 2), 1 - seen / 2);
}

/** One picture on the stage. Boxes have a canvas of their own, so that a slider redraws nothing else. */
export class Pane {
  picture = null; // {image, width, height}
  boxes = [];
  highlighted = null;

  /** `onView` is called when the user zooms or moves, `onPoint` when the pointer is on a box, or on none. */
  constructor(root, view, { onView, onPoint }) {
    this.root = root;
    this.view = view;
    this.onView = onView;
    this.onPoint = onPoint;
    [this.under, this.over] = root.querySelectorAll("canvas");
    this.pointers = new Map();
    new ResizeObserver(() => this.resize()).observe(root);
    root.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    root.addEventListener("dblclick", () => {
      view.fit();
      onView();
    });
    root.addEventListener("pointerdown", (event) => this.onDown(event));
    root.addEventListener("pointermove", (event) => this.onMove(event));
    for (const name of ["pointerup", "pointercancel"]) {
      root.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    }
    root.addEventListener("pointerleave", () => onPoint(null));
  }

  get size() {
    return { width: this.root.clientWidth || 1, height: this.root.clientHeight || 1 };
  }

  resize() {
    const { width, height } = this.size;
    const sharpness = Math.min(window.devicePixelRatio || 1, 2);
    for (const canvas of [this.under, this.over]) {
      canvas.width = Math.round(width * sharpness);
      canvas.height = Math.round(height * sharpness);
      canvas.getContext("2d").setTransform(sharpness, 0, 0, sharpness, 0, 0);
    }
    this.drawPicture();
    this.drawBoxes();
  }

  show(picture) {
    this.picture = picture;
    this.drawPicture();
  }

  drawPicture() {
    const { width, height } = this.size;
    const context = this.under.getContext("2d");
    context.clearRect(0, 0, width, height);
    if (!this.picture) return;
    const { scale, left, top } = this.view.place({ width, height }, this.picture);
    context.imageSmoothingEnabled = scale < 2;
    context.imageSmoothingQuality = "medium";
    context.drawImage(this.picture.image, left, top, this.picture.width * scale, this.picture.height * scale);
  }

  drawBoxes() {
    const context = this.over.getContext("2d");
    const { width, height } = this.size;
    context.clearRect(0, 0, width, height);
    if (!this.picture) return;
    drawBoxes(context, this.boxes, this.view.place({ width, height }, this.picture), { width, height }, this.highlighted);
  }

  /** Return the smallest box under a point of the pane. */
  findBox(x, y) {
    if (!this.picture) return null;
    const { scale, left, top } = this.view.place(this.size, this.picture);
    const [px, py] = [(x - left) / scale, (y - top) / scale];
    let found = null;
    let least = Infinity;
    for (const box of this.boxes) {
      const [x1, y1, x2, y2] = box.box_xyxy;
      const area = (x2 - x1) * (y2 - y1);
      if (px >= x1 && px <= x2 && py >= y1 && py <= y2 && area < least) [found, least] = [box, area];
    }
    return found;
  }

  zoom(factor, x = this.size.width / 2, y = this.size.height / 2) {
    if (!this.picture) return;
    this.view.zoomAt(factor, x, y, this.size, this.picture);
    this.onView();
  }

  move(x, y) {
    if (!this.picture) return;
    this.view.move(x, y, this.size, this.picture);
    this.onView();
  }

  onWheel(event) {
    if (!this.picture) return;
    event.preventDefault();
    const [x, y] = this.point(event);
    this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)), x, y);
  }

  onDown(event) {
    if (!this.picture || event.button !== 0) return;
    this.root.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.point(event));
  }

  onMove(event) {
    const [x, y] = this.point(event);
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.onPoint(this.findBox(x, y));
      return;
    }
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
    this.pointers.set(event.pointerId, [x, y]);
    if (others.length === 0) {
      this.move(x - before[0], y - before[1]);
    } else {
      const [, [fixedX, fixedY]] = others[0];
      const spread = Math.hypot(x - fixedX, y - fixedY) / (Math.hypot(before[0] - fixedX, before[1] - fixedY) || 1);
      this.zoom(spread, (x + fixedX) / 2, (y + fixedY) / 2);
    }
  }

  point(event) {
    const { left, top } = this.root.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }
}

const widths = new Map();

function textWidth(context, text) {
  if (!widths.has(text)) {
    if (widths.size > 5000) widths.clear();
    widths.set(text, context.measureText(text).width);
  }
  return widths.get(text);
}

/**
 * Draw boxes, the best on top, with those labels that have room; the others fade beside a highlighted one.
 * The best boxes get their labels first.
 */
export function drawBoxes(context, boxes, { scale, left, top }, { width, height }, highlighted = null) {
  context.font = FONT;
  context.textBaseline = "middle";
  const seen = [];
  for (const box of boxes) {
    const [x1, y1, x2, y2] = box.box_xyxy;
    const place = { box, x: left + x1 * scale, y: top + y1 * scale, w: (x2 - x1) * scale, h: (y2 - y1) * scale };
    const isSeen = place.x <= width && place.y <= height && place.x + place.w >= 0 && place.y + place.h >= 0;
    if (isSeen) seen.push(place);
  }
  for (const { box, x, y, w, h } of seen.toReversed()) {
    context.globalAlpha = highlighted && highlighted !== box ? 0.25 : 1;
    context.strokeStyle = "rgb(0 0 0 / 55%)"; // an edge that shows on a background of the class's colour
    context.lineWidth = highlighted === box ? 5 : 3.5;
    context.strokeRect(x, y, w, h);
    context.strokeStyle = classColour(box.class_id).fill;
    context.lineWidth = highlighted === box ? 3 : 2;
    context.strokeRect(x, y, w, h);
  }
  const taken = [];
  const first = seen.filter(({ box }) => box === highlighted);
  for (const place of [...first, ...seen.filter(({ box }) => box !== highlighted)]) {
    context.globalAlpha = highlighted && highlighted !== place.box ? 0.25 : 1;
    drawLabel(context, place, { width, height }, taken);
  }
  context.globalAlpha = 1;
}

function drawLabel(context, { box, x, y, h }, { width, height }, taken) {
  const { fill, ink } = classColour(box.class_id);
  const text = `${box.class} ${box.score.toFixed(2)}`;
  const w = textWidth(context, text) + 2 * LABEL_PAD;
  const at = Math.min(Math.max(x - 1, 0), Math.max(width - w, 0));
  const rows = [y - LABEL_HEIGHT, Math.max(y, 0), y + h - LABEL_HEIGHT, y + h]; // above, inside, below the box
  const row = rows.find(
    (tried) =>
      tried >= 0 &&
      tried + LABEL_HEIGHT <= height &&
      taken.every((other) => at >= other.x + other.w || at + w <= other.x || Math.abs(tried - other.y) >= LABEL_HEIGHT),
  );
  if (row === undefined) return;
  taken.push({ x: at, y: row, w });
  context.fillStyle = fill;
  context.fillRect(at, row, w, LABEL_HEIGHT);
  context.fillStyle = ink;
  context.fillText(text, at + LABEL_PAD, row + LABEL_HEIGHT / 2 + 0.5);
}
