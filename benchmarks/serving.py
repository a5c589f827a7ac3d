"""python benchmarks/serving.py --model WEIGHTS_OR_ARTIFACT [--parts latency overload …] [--images FOLDER] [--quick]

What `boxwright serve` costs beside the model itself, beside LitServe 0.2 and MLServer 1.7 with the same artifact, and
what it does when more arrives than it can do, when models are loaded again and when workers are killed. It prints a
table of figures, each with the bar that it must meet, and ends with 1 if one is missed.

The parts:

    latency     one client, in turns with `Predictor` in this process
    throughput  eight clients, in turns with `Predictor.stream` over the same JPEGs in memory (hint throughput)
    peers       the same clients on LitServe and MLServer, each in an environment of its own (--venvs), which is made
    overload    four times as many requests as it can answer, at random moments
    reload      1,000 new versions under load
    kill        workers killed with SIGKILL under load
    soak        100,000 requests: memory, and each answer beside `Predictor`'s
    page        the page in Chromium: bytes, and the redraw of 300 boxes

A weight file is converted to int8 first. Requests are made by a separate process (load.py), which shares the cores with
the server, as clients on one machine do. The soak runs only if it is named. Of the others the reloads take by far the
longest, about as long as 1,000 starts of a worker. --quick tries all parts with small numbers, whose figures mean
nothing.
"""

import argparse
import json
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import cv2
import psutil

from boxwright.core.cpu import read_cpu
from boxwright.core.timing import hardware_line
from boxwright.data.synthetic import generate_scenes
from boxwright.runtimes.artifact import is_artifact
from boxwright.tasks.predict.inputs import EncodedImage
from boxwright.tasks.predict.predictor import Predictor

HERE = Path(__file__).resolve().parent
PARTS = ("latency", "throughput", "peers", "overload", "reload", "kill", "soak", "page")
PEERS = {"litserve": ["litserve==0.2.*", "python-multipart"], "mlserver": ["mlserver==1.7.*", "uvloop<0.22"]}
TOKEN = "a-token-for-benchmarks"
CLIENTS = 8
SIZE_WH = (640, 480)


@dataclass
class Numbers:
    """How much each part does."""

    rounds: int = 9
    latency_requests: int = 150
    seconds: float = 3.0
    overload_s: float = 30.0
    reloads: int = 1000
    kills: int = 10
    requests: int = 100_000


QUICK = Numbers(rounds=2, latency_requests=10, seconds=1.0, overload_s=4.0, reloads=3, kills=2, requests=300)


@dataclass
class Table:
    """The figures."""

    rows: list[tuple[str, str, str, bool | None]] = field(default_factory=list)

    def add(self, what: str, value: str, bar: str = "", *, met: bool | None = None) -> None:
        """Add a row and print it."""
        self.rows.append((what, value, bar, met))
        print(f"{what:58} {value:>26}  {bar:26} {'' if met is None else 'met' if met else 'MISSED'}", flush=True)


@dataclass(frozen=True)
class Setup:
    """What all parts share."""

    artifact: Path
    pictures: list[bytes]
    folder: Path
    numbers: Numbers
    venvs: Path
    table: Table


class Server:
    """A server process on a port; `pid` is its root."""

    def __init__(self, words: Sequence[object], port: int, log: Path, *, env: dict[str, str] | None = None) -> None:
        self.port, self.log = port, log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [str(word) for word in words], stdout=subprocess.PIPE, stderr=file, start_new_session=True,
                env={**os.environ, **(env or {})},
            )  # fmt: skip

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Return status and body."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def wait_until(self, is_ready: Callable[[], bool], within_s: float = 180) -> None:
        """Wait until it answers."""
        end_s = time.monotonic() + within_s
        while True:
            with suppress(OSError):
                if is_ready():
                    return
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit(f"The server does not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def memory(self) -> int:
        """Return the bytes that the server and its workers have for themselves.

        Not their share of common ones, which changes when another program loads or leaves the same library.
        """
        family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        return sum(one.memory_full_info().uss for one in family)

    def close(self) -> None:
        """End it and all of its processes."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def serving(setup: Setup, *words: object) -> Iterator[Server]:
    """Run `boxwright serve` with the artifact."""
    command = [sys.executable, "-m", "boxwright", "serve", f"model={setup.artifact}", "--port", 0, "--json", *words]
    server = Server(command, 0, setup.folder / "serve.log", env={"BOXWRIGHT_TOKEN": TOKEN})
    try:
        assert server.process.stdout is not None
        ready, _, _ = select.select([server.process.stdout], [], [], 120)
        line = server.process.stdout.readline() if ready else b""
        if not line:
            raise SystemExit(f"The server does not start: {server.log.read_text()[-2000:]}")
        server.port = int(json.loads(line)["url"].rpartition(":")[2])
        yield server
    finally:
        server.close()


def http_request(path: str, body: bytes, kind: str = "image/jpeg") -> bytes:
    """Return a whole request as it goes over the wire."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Load:
    """A running load generator."""

    def __init__(self, setup: Setup, server: Server, requests: Sequence[bytes], **spec: Any) -> None:
        folder = Path(tempfile.mkdtemp(dir=setup.folder))
        spec["requests"] = self._write(folder, "request", requests)
        if "answers" in spec:
            spec["answers"] = self._write(folder, "answer", spec["answers"])
        (folder / "spec.json").write_text(json.dumps({"port": server.port, **spec}))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "load.py"), str(folder / "spec.json")], stdout=subprocess.PIPE
        )

    def result(self) -> dict[str, Any]:
        """Wait for its end and return what it saw."""
        out, _ = self._process.communicate()
        if self._process.returncode:
            raise SystemExit("The load generator failed.")
        return dict(json.loads(out))

    @staticmethod
    def _write(folder: Path, name: str, contents: Sequence[bytes]) -> list[str]:
        paths = [folder / f"{name}{number}" for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        return [str(path) for path in paths]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def ours(setup: Setup) -> list[bytes]:
    """Return a request for each picture."""
    return [http_request("/predict", data) for data in setup.pictures]


def measure_latency(setup: Setup) -> None:
    """One client beside `Predictor`, in turns."""
    count = setup.numbers.latency_requests
    alone: list[float] = []
    served: list[float] = []
    with serving(setup) as server, Predictor.load(setup.artifact, hint="latency") as predictor:
        run(setup, server, clients=1, count=20)
        for turn in range(setup.numbers.rounds + 1):
            times = []
            for number in range(count):
                start = time.perf_counter()
                predictor(setup.pictures[number % len(setup.pictures)])
                times.append((time.perf_counter() - start) * 1000)
            taken = run(setup, server, clients=1, count=count)["taken_ms"]
            if turn:  # the first one warms up
                alone.append(statistics.median(times))
                served.append(statistics.median(taken))
        stages = stage_times(setup, server, count)
    a, b = statistics.median(alone), statistics.median(served)
    inside = stages.pop("total")
    setup.table.add("one picture, Predictor: p50", f"{a:.2f} ms")
    setup.table.add("one client: p50", f"{b:.2f} ms ({b - a:+.2f})", "Predictor + 0.6 ms", met=b - a <= 0.6)
    stages = {"from the server to the worker": stages.pop("queue"), **stages}
    for name, value in stages.items():
        setup.table.add(f"  of that, {name}", f"{value:.2f} ms")
    setup.table.add("  of that, between the stages", f"{inside - sum(stages.values()):.2f} ms")
    setup.table.add("  of that, the request's way in and the answer's way back", f"{b - inside:.2f} ms")


def stage_times(setup: Setup, server: Server, count: int) -> dict[str, float]:
    """Return the median milliseconds of each stage in the server, for one client."""
    times: dict[str, list[float]] = {}
    requests = ours(setup)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        for number in range(count):
            connection.sendall(requests[number % len(requests)])
            answer = HTTPResponse(connection)
            answer.begin()
            for name, value in json.loads(answer.read())["timings_ms"].items():
                times.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in times.items()}


def run(setup: Setup, server: Server, requests: Sequence[bytes] | None = None, **spec: Any) -> dict[str, Any]:
    """Return what a load generator saw."""
    return Load(setup, server, requests or ours(setup), **spec).result()


def rate(result: dict[str, Any]) -> float:
    """Return the answers per second of a load of clients that wait for them."""
    return int(result["statuses"].get("200", 0)) / float(result["seconds"])


def stream_rate(setup: Setup, predictor: Predictor) -> float:
    """Return the pictures per second of `Predictor.stream`."""
    start, done = time.perf_counter(), 0

    def pictures() -> Iterator[EncodedImage]:
        number = 0
        while time.perf_counter() - start < setup.numbers.seconds:
            yield EncodedImage(source="memory", data=setup.pictures[number % len(setup.pictures)])
            number += 1

    for _ in predictor.stream(pictures()):
        done += 1
    return done / (time.perf_counter() - start)


def measure_throughput(setup: Setup, *, with_peers: bool) -> None:
    """Eight clients beside `Predictor.stream`, and beside the other servers, in turns."""
    rates: dict[str, list[float]] = {"stream": [], "boxwright": []}
    with serving(setup) as server, Predictor.load(setup.artifact, hint="throughput") as predictor:
        servers = {"boxwright": (server, ours(setup))}
        if with_peers:
            for name in PEERS:
                for workers in sorted({1, read_cpu().usable_cores}):
                    servers[f"{name}, {workers} worker{'s' * (workers > 1)}"] = start_peer(setup, name, workers)
        try:
            for turn in range(setup.numbers.rounds + 1):
                found = {"stream": stream_rate(setup, predictor)}
                for name, (one, requests) in servers.items():
                    result = run(setup, one, requests, clients=CLIENTS, seconds=setup.numbers.seconds)
                    if set(result["statuses"]) != {"200"}:
                        raise SystemExit(f"{name} refused requests of {CLIENTS} clients: {result['statuses']}")
                    found[name] = rate(result)
                for name, value in found.items():
                    rates.setdefault(name, []).extend([value] if turn else [])
        finally:
            for name, (one, _) in servers.items():
                if name != "boxwright":
                    one.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    stream, own = medians.pop("stream"), medians.pop("boxwright")
    setup.table.add("Predictor.stream, hint throughput", f"{stream:.1f} pictures/s")
    share = own / stream
    setup.table.add(f"{CLIENTS} clients", f"{own:.1f}/s ({share:.0%})", "90 % of stream", met=share >= 0.9)
    for name, value in medians.items():
        setup.table.add(f"{CLIENTS} clients, {name}", f"{value:.1f}/s")
    for peer in PEERS:
        best = max((value for name, value in medians.items() if name.startswith(peer)), default=None)
        if best:
            setup.table.add(f"beside {peer}", f"{own / best:.2f}x", "1.15x", met=own / best >= 1.15)


def start_peer(setup: Setup, name: str, workers: int) -> tuple[Server, list[bytes]]:
    """Start another server with the artifact; return it and its requests."""
    python = setup.venvs / name / "bin" / "python"
    if not python.exists():
        print(f"installing {PEERS[name][0]} into {setup.venvs / name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(setup.venvs / name)], check=True)
        package = f"{HERE.parent}[openvino,onnx]"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[name], package], check=True)
    script = HERE / "peers" / f"{name}_server.py"
    with socket_on_free_port() as port:
        pass
    log = setup.folder / f"{name}{workers}.log"
    words = [python, script, setup.artifact, port, workers]
    server = Server(words, port, log)
    requests = [http_request(*peer_request(name, data)) for data in setup.pictures]
    path, body, kind = peer_request(name, setup.pictures[0])
    server.wait_until(lambda: server.request("POST", path, body, content_type=kind)[0] == 200)
    return server, requests


def peer_request(name: str, data: bytes) -> tuple[str, bytes, str]:
    """Return path, body and content type of a request to a peer: its own way to take a picture."""
    if name == "litserve":
        head = (
            b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
        )
        return "/predict", head + data + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1]}
    text = {"inputs": [{**tensor, "parameters": {"content_type": "base64"}, "data": [b64(data)]}]}
    return "/v2/models/detector/infer", json.dumps(text).encode(), "application/json"


def b64(data: bytes) -> str:
    """Return bytes as base64 text."""
    import base64

    return base64.b64encode(data).decode()


@contextmanager
def socket_on_free_port() -> Iterator[int]:
    """Give a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]


def measure_overload(setup: Setup) -> None:
    """Arrivals at a quarter of what it can answer, then at four times as much."""
    with serving(setup) as server:
        capacity = rate(run(setup, server, clients=CLIENTS, seconds=2 * setup.numbers.seconds))
        calm = run(setup, server, clients=64, rate=capacity / 4, seconds=setup.numbers.overload_s)
        storm = run(setup, server, clients=512, rate=4 * capacity, seconds=setup.numbers.overload_s, seed=1)
    quiet, loud = percentile(calm["taken_ms"], 0.99), percentile(storm["taken_ms"], 0.99)
    good = len(storm["taken_ms"]) / setup.numbers.overload_s
    others = {status: count for status, count in storm["statuses"].items() if status not in ("200", "429")}
    setup.table.add("capacity with 8 clients", f"{capacity:.1f}/s")
    setup.table.add("a quarter of it at random moments: p99", f"{quiet:.1f} ms")
    setup.table.add("4x: accepted p99", f"{loud:.1f} ms ({loud / quiet:.2f}x)", "2x of that", met=loud <= 2 * quiet)
    setup.table.add("4x: goodput", f"{good:.1f}/s ({good / capacity:.0%})", "90 %", met=good >= 0.9 * capacity)
    setup.table.add("4x: answers other than 200 and 429", str(others or 0), "0", met=not others)


def measure_reloads(setup: Setup) -> None:
    """New versions under the load of four clients."""
    bearer = {"authorization": f"Bearer {TOKEN}"}
    statuses: dict[str, int] = {}
    failures = done = 0
    with serving(setup, "--max-wait", 10_000) as server:
        start = time.perf_counter()
        while done < setup.numbers.reloads:  # in pieces, as a load has to have an end
            load = Load(setup, server, ours(setup), clients=4, seconds=15.0)
            end_s = time.perf_counter() + 14
            while done < setup.numbers.reloads and time.perf_counter() < end_s:
                status, body = server.request("POST", "/admin/models", b"", **bearer)
                if status != 200:
                    raise SystemExit(f"A new version was not loaded: {body!r}")
                done += 1
            result = load.result()
            failures += result["failures"]
            for one, count in result["statuses"].items():
                statuses[one] = statuses.get(one, 0) + count
        seconds = time.perf_counter() - start
    good = statuses.get("200", 0)
    bad = sum(statuses.values()) - good
    setup.table.add(f"{done} reloads under load ({seconds / done:.2f} s each)", f"{good} requests")
    setup.table.add("failed requests", str(bad + failures), "0", met=bad + failures == 0)


def measure_kills(setup: Setup) -> None:
    """Workers killed under the load of eight clients."""
    slowest = 0.0
    worst = failures = 0
    with serving(setup, "--max-wait", 10_000) as server:
        for _ in range(setup.numbers.kills):
            load = Load(setup, server, ours(setup), clients=CLIENTS, seconds=5.0)
            time.sleep(1.0)
            victim = psutil.Process(server.process.pid).children()[0]
            victim.kill()
            start = time.perf_counter()
            while server.request("GET", "/healthz/ready")[0] == 200 and time.perf_counter() - start < 1:
                pass
            server.wait_until(lambda: server.request("GET", "/healthz/ready")[0] == 200)
            slowest = max(slowest, time.perf_counter() - start)
            result = load.result()
            worst, failures = max(worst, result["worst_client"]), failures + result["failures"]
    setup.table.add(f"{setup.numbers.kills} killed workers: failed requests in all", str(failures))
    setup.table.add("failed requests of one client after a kill, at most", str(worst), "1", met=worst <= 1)
    setup.table.add("ready again after, at most", f"{slowest:.2f} s", "3 s", met=slowest <= 3)


def measure_soak(setup: Setup) -> None:
    """Very many requests: memory, and every answer beside `Predictor`'s."""
    total = setup.numbers.requests
    with Predictor.load(setup.artifact, hint="throughput") as predictor:
        answers = []
        for data in setup.pictures:
            (found,) = predictor.stream([EncodedImage(source="memory", data=data)])
            detections = found.detections  # type: ignore[union-attr]
            record = {"model": "model", "size_hw": list(detections.size_hw), "detections": detections.to_list()}
            answers.append(json.dumps(record, ensure_ascii=False)[:-1].encode())
    with serving(setup, "--hint", "throughput", "--max-wait", 10_000) as server:
        warm = run(setup, server, clients=CLIENTS, count=max(total // 20, 1), answers=answers)
        before = server.memory()
        result = run(setup, server, clients=CLIENTS, count=total, answers=answers)
        growth = server.memory() / before - 1
    wrong = warm["wrong"] + result["wrong"]
    others = {status: count for status, count in result["statuses"].items() if status != "200"}
    setup.table.add(
        f"{total:,} requests: answers other than 200", str(others or 0), "0", met=not others and not result["failures"]
    )
    setup.table.add("answers that are not Predictor's", str(wrong), "0", met=wrong == 0)
    setup.table.add(f"memory growth (from {before / 2**20:.0f} MB)", f"{growth:+.2%}", "2 %", met=growth <= 0.02)


def measure_page(setup: Setup) -> None:
    """The bytes of the page, and how long 300 boxes take to be drawn again when a slider moves."""
    files = (HERE.parent / "src" / "boxwright" / "serve" / "page").iterdir()
    size = sum(path.stat().st_size for path in files)
    setup.table.add("the page in all", f"{size / 1000:.0f} kB", "150 kB", met=size < 150_000)
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        setup.table.add("redraw: not measured", "no chromium, chromedriver")
        return
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,800"):
        options.add_argument(flag)
    picture = setup.folder / "picture.jpg"
    picture.write_bytes(setup.pictures[0])
    with serving(setup, "--no-auth") as server:
        driver = webdriver.Chrome(options, Service(str(shutil.which("chromedriver"))))
        try:
            driver.set_script_timeout(60)
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _BOXES})
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {
                "source": f"sessionStorage.setItem('boxwright-token', '{TOKEN}')"
            })  # fmt: skip
            driver.get(f"http://127.0.0.1:{server.port}/")
            driver.find_element("id", "files").send_keys(str(picture))
            times = driver.execute_async_script(_SLIDE, 20 if setup.numbers is QUICK else 200)
        finally:
            driver.quit()
    worst = percentile(times, 0.99)
    shown = f"p50 {statistics.median(times):.1f}, p99 {worst:.1f} ms"
    setup.table.add("a slider's move, 300 boxes", shown, "16 ms", met=worst < 16)


# 300 boxes instead of those of the server.
_BOXES = """
const ask = window.fetch;
window.fetch = async (address, options) => {
  const answer = await ask(address, options);
  if (!String(address).startsWith("predict")) return answer;
  const values = await answer.json();
  const [height, width] = values.size_hw;
  values.detections = Array.from({ length: 300 }, (_, i) => {
    const x = (i % 20) * width / 20, y = Math.floor(i / 20) * height / 15;
    return { class: `class ${i % 80}`, class_id: i % 80, score: 0.3 + 0.002 * i,
             box_xyxy: [x, y, x + width / 25, y + height / 20] };
  });
  return new Response(JSON.stringify(values), { headers: { "Content-Type": "application/json" } });
};
"""
# The work of each move: what the event does at once, and all of the frame that draws it.
_SLIDE = """
const [moves, done] = arguments;
const slider = document.getElementById("score");
const next = () => new Promise((go) => requestAnimationFrame(go));
(async () => {
  while (!document.querySelector("#pane-0 .count")?.textContent.startsWith("300")) await next();
  const times = [];
  for (let i = 0; i < moves; i++) {
    await next();
    await new Promise((go) => setTimeout(go));
    let took = performance.now();
    slider.value = 0.01 + 0.2 * (i % 2);
    slider.dispatchEvent(new Event("input"));
    took = performance.now() - took;
    const frame = await new Promise((go) => requestAnimationFrame((now) => go(performance.now())));
    await new Promise((go) => {  // after the frame
      const channel = new MessageChannel();
      channel.port1.onmessage = go;
      channel.port2.postMessage(0);
    });
    times.push(took + performance.now() - frame);
  }
  done(times);
})();
"""


def make_artifact(model: Path, pictures: Path, folder: Path) -> Path:
    """Return the artifact itself, or one in int8 made of weights."""
    if is_artifact(model):
        return model
    out = folder / "int8"
    command = [sys.executable, "-m", "boxwright", "export", str(model), "--format", "openvino", "--precision", "int8"]
    subprocess.run([*command, "--calibration", str(pictures), "--out", str(out), "--quiet"], check=True)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="an artifact folder, .pth or .safetensors")
    parser.add_argument("--images", type=Path, help="a folder of JPEGs (default: generated scenes)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[part for part in PARTS if part != "soak"])
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that all parts work")
    parser.add_argument("--requests", type=int, help="of the soak (default 100,000)")
    parser.add_argument("--reloads", type=int, help="(default 1,000)")
    parser.add_argument("--venvs", type=Path, default=HERE.parent / "runs" / "peers", help="environments of the peers")
    args = parser.parse_args()
    numbers = QUICK if args.quick else Numbers()
    numbers.requests, numbers.reloads = args.requests or numbers.requests, args.reloads or numbers.reloads
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended
    print(hardware_line(), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        images = args.images
        if images is None:
            generate_scenes(folder / "scenes", images=32, seed=0, size_hw=SIZE_WH[::-1])
            images = folder / "scenes" / "images"
        files = sorted(path for path in images.iterdir() if path.suffix in (".jpg", ".jpeg"))[:32]
        pictures = [
            cv2.imencode(".jpg", cv2.resize(cv2.imread(str(path)), SIZE_WH))[1].tobytes() for path in files
        ]  # fmt: skip
        artifact = make_artifact(args.model, images, folder).absolute()
        setup = Setup(artifact, pictures, folder, numbers, args.venvs, Table())
        for part in PARTS:
            if part not in args.parts:
                continue
            match part:
                case "latency":
                    measure_latency(setup)
                case "throughput":
                    measure_throughput(setup, with_peers="peers" in args.parts)
                case "peers" if "throughput" not in args.parts:
                    measure_throughput(setup, with_peers=True)
                case "overload":
                    measure_overload(setup)
                case "reload":
                    measure_reloads(setup)
                case "kill":
                    measure_kills(setup)
                case "soak":
                    measure_soak(setup)
                case "page":
                    measure_page(setup)
    return int(any(met is False for *_, met in setup.table.rows))


if __name__ == "__main__":
    sys.exit(main())
