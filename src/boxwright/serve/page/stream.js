// Frames of a camera or a video file, one at a time: the next is taken when the answer to the last one is here.

const LONGEST_SIDE = 1280;
const QUALITY = 0.85;

/** Return a camera's picture as a playing <video>. */
export async function openCamera(video) {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new Error("The browser gives a page the camera only over https or on localhost. Open the page there.");
  }
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 } }, audio: false });
  } catch (error) {
    throw new Error(
      error.name === "NotAllowedError"
        ? "The browser does not allow this page to use the camera. Allow it beside the address, then try again."
        : "No camera can be opened. Connect one, or close the program that uses it, then try again.",
    );
  }
  await video.play();
}

/** Return a video file as a playing <video>. */
export async function openVideo(video, file) {
  video.src = URL.createObjectURL(file);
  try {
    await video.play();
  } catch {
    throw new Error(`The browser can't play “${file.name}”. Convert it to MP4 (H.264) or WebM.`);
  }
}

/** Release the camera or the file. */
export function closeVideo(video) {
  video.pause();
  for (const track of video.srcObject?.getTracks() ?? []) track.stop();
  video.srcObject = null;
  if (video.src) {
    URL.revokeObjectURL(video.src);
    video.removeAttribute("src");
    video.load();
  }
}

/**
 * Pass each newest frame to `handle(picture, blob)` and wait for it, until `signal` aborts.
 * Frames that come while it works are left out, so that the picture is never behind.
 */
export async function readFrames(video, signal, handle) {
  const canvases = [document.createElement("canvas"), document.createElement("canvas")]; // one of them is shown
  for (let at = 0; !signal.aborted; at = 1 - at) {
    await newFrame(video, signal);
    if (signal.aborted) return;
    if (!video.videoWidth) continue;
    const canvas = canvases[at];
    const scale = Math.min(1, LONGEST_SIDE / Math.max(video.videoWidth, video.videoHeight));
    canvas.width = Math.round(video.videoWidth * scale);
    canvas.height = Math.round(video.videoHeight * scale);
    canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", QUALITY));
    if (signal.aborted) return;
    await handle({ image: canvas, width: canvas.width, height: canvas.height }, blob);
  }
}

/** Wait until the video shows another frame: it plays on, or the user moves to another place. */
function newFrame(video, signal) {
  return new Promise((resolve) => {
    const stop = new AbortController();
    const done = () => {
      stop.abort();
      resolve();
    };
    const once = { once: true, signal: stop.signal };
    signal.addEventListener("abort", done, once);
    video.addEventListener("seeked", done, once);
    if (video.requestVideoFrameCallback) {
      video.requestVideoFrameCallback(done);
    } else {
      video.addEventListener("timeupdate", done, once);
    }
  });
}
