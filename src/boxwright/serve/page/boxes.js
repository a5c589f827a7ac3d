// Which boxes are shown: the selection that `boxwright predict` makes, in the browser.

/** Return the detections of an answer as arrays, best first, ready to be selected from again and again. */
export function prepare(detections) {
  const boxes = [...detections].sort((a, b) => b.score - a.score);
  const corners = new Float64Array(boxes.length * 4);
  boxes.forEach((box, at) => corners.set(box.box_xyxy, at * 4));
  return { boxes, corners, last: null };
}

/**
 * Return the boxes with at least this score that no better box of their class overlaps by more than `overlap`.
 * A box below the score can't remove one above it, so only the boxes above it are compared.
 */
export function select(prepared, score, overlap) {
  let count = 0;
  while (count < prepared.boxes.length && prepared.boxes[count].score >= score) count += 1;
  const { last } = prepared;
  if (last && last.count === count && last.overlap === overlap) return last.kept;
  const kept = [];
  const keptOfClass = new Map();
  for (let at = 0; at < count; at += 1) {
    const box = prepared.boxes[at];
    let rivals = keptOfClass.get(box.class_id);
    if (!rivals) keptOfClass.set(box.class_id, (rivals = []));
    if (rivals.some((rival) => iou(prepared.corners, rival, at) > overlap)) continue;
    rivals.push(at);
    kept.push(box);
  }
  prepared.last = { count, overlap, kept };
  return kept;
}

function iou(corners, a, b) {
  const i = a * 4;
  const j = b * 4;
  const width = Math.min(corners[i + 2], corners[j + 2]) - Math.max(corners[i], corners[j]);
  const height = Math.min(corners[i + 3], corners[j + 3]) - Math.max(corners[i + 1], corners[j + 1]);
  const both = width > 0 && height > 0 ? width * height : 0;
  const union = area(corners, i) + area(corners, j) - both;
  return union > 0 ? both / union : 1; // two boxes without an area: as the server's suppression takes them
}

function area(corners, at) {
  return (corners[at + 2] - corners[at]) * (corners[at + 3] - corners[at + 1]);
}

const colours = new Map();

/** Return the fill of a class, as `boxwright predict` draws it, and the colour of text on it. */
export function classColour(classId) {
  if (!colours.has(classId)) {
    const hue = (classId * 0.61803399) % 1;
    const [red, green, blue] = hsvToRgb(hue, 0.85, 0.95);
    const light = luminance(red, green, blue) > 0.18; // above it, black has more contrast than white
    colours.set(classId, { fill: `rgb(${red} ${green} ${blue})`, ink: light ? "#000" : "#fff" });
  }
  return colours.get(classId);
}

function hsvToRgb(hue, saturation, value) {
  const channel = (shift) => {
    const k = (shift + hue * 6) % 6;
    return Math.floor(255 * (value - value * saturation * Math.max(0, Math.min(k, 4 - k, 1))));
  };
  return [channel(5), channel(3), channel(1)];
}

function luminance(...channels) {
  const [red, green, blue] = channels.map((channel) => {
    const part = channel / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
