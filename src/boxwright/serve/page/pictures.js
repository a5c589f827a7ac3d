// The pictures that the user gave: chosen, dropped or pasted files, and the strip that shows them.

const THUMBNAIL = 96;

/** Call `take(files)` with what is dropped anywhere on the page or pasted. */
export function listenForFiles(curtain, take) {
  let depth = 0; // dragging over a child leaves its parent
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const show = (shown) => {
    depth = shown ? depth : 0;
    curtain.hidden = !shown;
  };
  window.addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth += 1;
    show(true);
  });
  window.addEventListener("dragleave", () => {
    depth -= 1;
    if (depth <= 0) show(false);
  });
  window.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  window.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    show(false);
    take([...event.dataTransfer.files]);
  });
  window.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    take(files);
  });
}

/** Return a file as a picture in the list; its pixels are only kept while it is shown. */
export function makePicture(file) {
  return { name: file.name || "pasted picture", blob: file, answers: new Map(), thumbnail: null };
}

/** Return the pixels of a picture, turned as its EXIF orientation says, as the server does. */
export async function decode(picture) {
  try {
    const image = await createImageBitmap(picture.blob, { imageOrientation: "from-image" });
    return { image, width: image.width, height: image.height };
  } catch {
    throw new Error(`This browser can't show “${picture.name}”. Use a JPEG, PNG, WebP or BMP file.`);
  }
}

/** Make the small pictures of the strip, one after the other; `added` is called for each. */
export async function addThumbnails(pictures, added) {
  if (pictures.length < 2) return;
  for (const picture of pictures) {
    try {
      const { image } = await decode(picture);
      picture.thumbnail = makeThumbnail(image);
      image.close();
      added();
    } catch {
      // The number stays; choosing the picture says what is wrong with it.
    }
  }
}

function makeThumbnail(image) {
  const scale = Math.min(1, THUMBNAIL / Math.min(image.width, image.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** Show the pictures in a strip with the current one marked; `choose(at)` is called for a click. */
export function showStrip(strip, pictures, current, choose) {
  strip.hidden = pictures.length < 2;
  while (strip.children.length > pictures.length) strip.lastElementChild.remove();
  while (strip.children.length < pictures.length) {
    const row = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.addEventListener("click", () => choose([...strip.children].indexOf(row)));
    row.append(button);
    strip.append(row);
  }
  pictures.forEach((picture, at) => {
    const button = strip.children[at].firstElementChild;
    button.setAttribute("aria-label", picture.name);
    button.title = picture.name;
    button.setAttribute("aria-current", at === current ? "true" : "false");
    if (picture.thumbnail && button.firstElementChild !== picture.thumbnail) {
      button.replaceChildren(picture.thumbnail);
    }
    if (!picture.thumbnail && !button.firstElementChild) button.textContent = at + 1;
  });
  strip.children[current]?.scrollIntoView({ block: "nearest", inline: "nearest" });
}
