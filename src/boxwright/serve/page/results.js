// What the user takes away: the boxes as JSON and the picture with its boxes.

import { drawBoxes } from "./pane.js";

/** Return the boxes as `boxwright predict --json` prints them; of two models as a list with the models' names. */
export function toJson(name, frame, panes) {
  const records = panes
    .filter((pane) => pane.answer)
    .map((pane) => ({
      source: name,
      ...(frame === null ? {} : { frame }),
      ...(panes.length > 1 ? { model: pane.model } : {}),
      size_hw: pane.answer.size_hw,
      detections: pane.boxes,
    }));
  return JSON.stringify(records.length === 1 ? records[0] : records, null, 2);
}

/** Put text on the clipboard; return whether the browser allowed it. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // not over https, or not allowed
  }
}

/** Download the picture in its full size with the boxes drawn in. */
export async function savePicture(name, picture, boxes) {
  const canvas = document.createElement("canvas");
  canvas.width = picture.width;
  canvas.height = picture.height;
  const context = canvas.getContext("2d");
  context.drawImage(picture.image, 0, 0);
  const enlarged = Math.max(1, Math.min(picture.width, picture.height) / 720);
  context.scale(enlarged, enlarged);
  const size = { width: picture.width / enlarged, height: picture.height / enlarged };
  drawBoxes(context, boxes, { scale: 1 / enlarged, left: 0, top: 0 }, size);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${name.replace(/\.[^.]*$/, "")}_boxes.jpg`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
