// The page: text to streamed speech, voices, microphone to live text. Plain modules, no framework.
const $ = (id) => document.getElementById(id);
const RATE = 24000;

// ---- key, status, theme ----

const params = new URLSearchParams(location.search);
let key = params.get("api_key") || sessionStorage.getItem("voce-key") || "";

function headers(more = {}) {
  return key ? { ...more, authorization: `Bearer ${key}` } : more;
}

function status(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

async function call(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers(options.headers) });
  if (response.ok) return response;
  if (response.status === 401) $("key-field").hidden = false;
  let text = `${response.status}`;
  try { text = (await response.json()).error.message; } catch { /* not JSON */ }
  throw new Error(text);
}

$("key").addEventListener("change", () => {
  key = $("key").value.trim();
  sessionStorage.setItem("voce-key", key);
  start();
});

const theme = localStorage.getItem("voce-theme");
if (theme) document.documentElement.dataset.theme = theme;
$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("voce-theme", next);
});

// ---- models and voices ----

function fill(select, names, chosen) {
  select.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
  select.disabled = names.length === 0;
}

async function loadModels() {
  const { data } = await (await call("/v1/models")).json();
  const of = (task) => data.filter((m) => m.task === task).map((m) => m.id);
  const speak = of("text-to-speech");
  const hear = of("automatic-speech-recognition");
  const talk = of("speech-to-speech");
  $("talk-part").hidden = talk.length === 0;
  fill($("talk-model"), talk);
  fill($("speak-model"), speak);
  fill($("hear-model"), hear);
  $("speak").disabled = speak.length === 0;
  $("mic").disabled = $("file").disabled = hear.length === 0;
  if (hear.length === 0) $("transcript").textContent = "This server has no recogniser.";
  return speak.length > 0;
}

async function loadVoices(chosen) {
  const of = `/v1/audio/voices?model=${encodeURIComponent($("speak-model").value)}`;
  const { data, voices, default: standard, cloning } = await (await call(of)).json();
  $("cloning").hidden = !cloning;
  $("no-cloning").hidden = cloning;
  fill($("voice"), voices.length ? voices : ["default"], chosen || standard);
  $("voices").replaceChildren(...data.map((voice) => {
    const item = document.createElement("li");
    item.append(voice.name);
    if (voice.custom) {
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "Remove";
      remove.addEventListener("click", async () => {
        try {
          await call(`/v1/audio/voices/${encodeURIComponent(voice.id)}`, { method: "DELETE" });
          await loadVoices();
        } catch (error) { $("clone-said").textContent = error.message; }
      });
      item.append(remove);
    }
    return item;
  }));
}

$("speak-model").addEventListener("change", () => loadVoices().catch((error) => status(error.message, true)));

$("clone").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData();
  form.append("name", $("clone-name").value);
  form.append("model", $("speak-model").value);
  form.append("audio_sample", $("clone-clip").files[0]);
  $("clone-said").textContent = "listening to the clip…";
  try {
    const voice = await (await call("/v1/audio/voices", { method: "POST", body: form })).json();
    $("clone-said").textContent = `the voice ${voice.name} is ready`;
    await loadVoices(voice.name);
  } catch (error) { $("clone-said").textContent = error.message; }
});

// ---- speech ----

let player = null;
let speaking = null;

// Plays chunks one after the other, each scheduled at the end of the one before.
class Player {
  constructor() {
    this.context = new AudioContext({ sampleRate: RATE });
    this.next = 0;
    this.chunks = [];
    this.samples = 0;
    this.odd = null;
  }

  push(bytes) {
    if (this.odd !== null) {
      const joined = new Uint8Array(bytes.length + 1);
      joined[0] = this.odd;
      joined.set(bytes, 1);
      bytes = joined;
      this.odd = null;
    }
    if (bytes.length % 2) {
      this.odd = bytes[bytes.length - 1];
      bytes = bytes.subarray(0, bytes.length - 1);
    }
    if (!bytes.length) return;
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const samples = new Float32Array(bytes.length / 2);
    for (let i = 0; i < samples.length; i++) samples[i] = view.getInt16(2 * i, true) / 32768;
    this.chunks.push(bytes.slice());
    this.samples += samples.length;
    const buffer = this.context.createBuffer(1, samples.length, RATE);
    buffer.copyToChannel(samples, 0);
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    const now = this.context.currentTime;
    if (this.next < now) this.next = now + 0.03;
    source.start(this.next);
    this.next += buffer.duration;
  }

  wav() {
    const size = this.samples * 2;
    const head = new DataView(new ArrayBuffer(44));
    const text = (at, s) => [...s].forEach((c, i) => head.setUint8(at + i, c.charCodeAt(0)));
    text(0, "RIFF"); head.setUint32(4, 36 + size, true); text(8, "WAVEfmt ");
    head.setUint32(16, 16, true); head.setUint16(20, 1, true); head.setUint16(22, 1, true);
    head.setUint32(24, RATE, true); head.setUint32(28, RATE * 2, true);
    head.setUint16(32, 2, true); head.setUint16(34, 16, true); text(36, "data"); head.setUint32(40, size, true);
    return new Blob([head, ...this.chunks], { type: "audio/wav" });
  }

  close() { this.context.close(); }
}

$("speed").addEventListener("input", () => { $("speed-value").textContent = (+$("speed").value).toFixed(2); });

async function speak() {
  hush();
  const stop = new AbortController();
  speaking = stop;
  player = new Player();
  const mine = player;
  $("hush").disabled = false;
  $("save").hidden = true;
  status("speaking");
  const begun = performance.now();
  try {
    const response = await call("/v1/audio/speech", {
      method: "POST",
      headers: { "content-type": "application/json" },
      signal: stop.signal,
      body: JSON.stringify({
        model: $("speak-model").value, input: $("text").value, voice: $("voice").value,
        speed: +$("speed").value, response_format: "pcm",
      }),
    });
    const reader = response.body.getReader();
    let first = null;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const took = performance.now() - begun;
      first ??= took;
      mine.push(value);
      const seconds = mine.samples / RATE;
      $("first-audio").textContent = `${first.toFixed(0)} ms`;
      $("made").textContent = `${seconds.toFixed(1)} s`;
      $("factor").textContent = (took / 1000 / seconds).toFixed(3);
    }
    const file = mine.wav();
    $("save").href = URL.createObjectURL(file);
    $("save").dataset.bytes = file.size;
    $("save").hidden = false;
    status("ready");
  } catch (error) {
    if (error.name !== "AbortError") status(error.message, true);
  }
  if (speaking === stop) { speaking = null; $("hush").disabled = true; }
}

function hush() {
  speaking?.abort();
  speaking = null;
  player?.close();
  player = null;
  $("hush").disabled = true;
}

$("speak").addEventListener("click", speak);
$("hush").addEventListener("click", () => { hush(); status("ready"); });

// ---- hearing ----

let listening = null;

function line(text, now) {
  const box = $("transcript");
  let p = box.querySelector("p.now");
  if (!p) {
    p = document.createElement("p");
    p.className = "now";
    box.append(p);
  }
  p.textContent = text;
  if (!now) {
    p.className = "";
    if (!text) p.remove();
  }
  box.scrollTop = box.scrollHeight;
}

// Samples as 16-bit numbers, after `head` bytes of something else.
function pcm(samples, head = 0) {
  const bytes = new Uint8Array(head + samples.length * 2);
  const view = new DataView(bytes.buffer, head);
  for (let i = 0; i < samples.length; i++) {
    view.setInt16(2 * i, Math.max(-1, Math.min(1, samples[i])) * 32767, true);
  }
  return bytes;
}

function base64(samples) {
  const bytes = pcm(samples);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

function draw(samples) {
  const canvas = $("level");
  const pen = canvas.getContext("2d");
  const step = 3;
  pen.drawImage(canvas, -step, 0);
  pen.clearRect(canvas.width - step, 0, step, canvas.height);
  const peak = samples.reduce((m, s) => Math.max(m, Math.abs(s)), 0.01);
  const height = Math.min(1, Math.sqrt(peak)) * canvas.height;
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  pen.fillRect(canvas.width - step, (canvas.height - height) / 2, step - 1, height);
}

async function listen() {
  $("transcript").replaceChildren();
  const media = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  const context = new AudioContext({ sampleRate: RATE });
  await context.audioWorklet.addModule("/mic.js");
  const query = new URLSearchParams({ intent: "transcription", model: $("hear-model").value });
  if (key) query.set("api_key", key);
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/realtime?${query}`);
  const node = new AudioWorkletNode(context, "microphone");
  const session = { media, context, socket, sent: 0, text: "", words: 0, begun: 0, ready: false };
  listening = session;
  node.port.onmessage = ({ data }) => {
    draw(data);
    if (!session.ready || socket.readyState !== WebSocket.OPEN) return;
    session.begun ||= performance.now() - 1000 * data.length / RATE;
    session.sent += data.length;
    socket.send(JSON.stringify({ type: "input_audio_buffer.append", audio: base64(data) }));
    $("heard").textContent = `${(session.sent / RATE).toFixed(1)} s`;
  };
  context.createMediaStreamSource(media).connect(node);
  socket.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    switch (event.type) {
      case "session.created":
        session.ready = true;
        status("listening");
        break;
      case "conversation.item.input_audio_transcription.delta":
        session.text += event.delta;
        session.words += 1;
        $("words").textContent = session.words;
        if (event.audio_end_ms !== undefined) {
          const lag = performance.now() - session.begun - event.audio_end_ms;
          $("lag").textContent = `${lag.toFixed(0)} ms`;
        }
        line(session.text, true);
        break;
      case "conversation.item.input_audio_transcription.completed":
        line(event.transcript, false);
        session.text = "";
        break;
      case "error":
        status(event.error.message, true);
        break;
    }
  };
  socket.onclose = ({ code, reason }) => {
    if (listening === session) {
      if (code !== 1000 && reason) status(reason, true);
      unlisten();
    }
  };
  $("mic").textContent = "Stop";
}

function unlisten() {
  const session = listening;
  listening = null;
  $("mic").textContent = "Listen";
  if (!session) return;
  if (session.text) line(session.text, false);
  session.media.getTracks().forEach((track) => track.stop());
  session.context.close();
  session.socket.close(1000);
  if (!$("status").classList.contains("bad")) status("ready");
}

$("mic").addEventListener("click", async () => {
  if (listening) return unlisten();
  try { await listen(); } catch (error) { status(error.message, true); unlisten(); }
});

$("file").addEventListener("change", async () => {
  const file = $("file").files[0];
  if (!file) return;
  $("transcript").replaceChildren();
  const form = new FormData();
  form.append("file", file);
  form.append("model", $("hear-model").value);
  form.append("response_format", "verbose_json");
  status("hearing the file");
  const begun = performance.now();
  try {
    const heard = await (await call("/v1/audio/transcriptions", { method: "POST", body: form })).json();
    line(heard.text || "(nothing was said)", false);
    $("heard").textContent = `${heard.duration.toFixed(1)} s`;
    $("words").textContent = heard.text.split(/\s+/).filter(Boolean).length;
    $("lag").textContent = "–";
    status(`heard in ${((performance.now() - begun) / 1000).toFixed(2)} s`);
  } catch (error) { status(error.message, true); }
  $("file").value = "";
});

// ---- dialogue ----

// What the first byte of a message means.
const AUDIO = 1, TEXT = 2, ERROR = 5;
let talking = null;

async function talk() {
  $("said").replaceChildren();
  const media = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true } });
  const context = new AudioContext({ sampleRate: RATE });
  await context.audioWorklet.addModule("/mic.js");
  const query = new URLSearchParams({ model: $("talk-model").value, format: "Pcm" });
  if (key) query.set("api_key", key);
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/chat?${query}`);
  socket.binaryType = "arraybuffer";
  const node = new AudioWorkletNode(context, "microphone");
  const session = { media, context, socket, voice: new Player(), sent: 0, ready: false };
  talking = session;
  node.port.onmessage = ({ data }) => {
    if (!session.ready || socket.readyState !== WebSocket.OPEN) return;
    const message = pcm(data, 1);
    message[0] = AUDIO;
    session.sent += data.length;
    socket.send(message);
    $("talk-heard").textContent = `${(session.sent / RATE).toFixed(1)} s`;
  };
  context.createMediaStreamSource(media).connect(node);
  socket.onmessage = ({ data }) => {
    const message = new Uint8Array(data);
    const rest = message.subarray(1);
    switch (message[0]) {
      case 0:
        session.ready = true;
        status("talking");
        break;
      case AUDIO:
        session.voice.push(rest);
        // What was said is not kept here.
        session.voice.chunks.length = 0;
        $("talk-said").textContent = `${(session.voice.samples / RATE).toFixed(1)} s`;
        break;
      case TEXT:
        $("said").append(new TextDecoder().decode(rest));
        $("said").scrollTop = $("said").scrollHeight;
        break;
      case ERROR:
        status(new TextDecoder().decode(rest), true);
        break;
    }
  };
  socket.onclose = ({ code, reason }) => {
    if (talking === session) {
      if (code !== 1000 && reason) status(reason, true);
      hangUp();
    }
  };
  $("talk").textContent = "Stop";
}

function hangUp() {
  const session = talking;
  talking = null;
  $("talk").textContent = "Talk";
  if (!session) return;
  session.media.getTracks().forEach((track) => track.stop());
  session.context.close();
  session.voice.close();
  session.socket.close(1000);
  if (!$("status").classList.contains("bad")) status("ready");
}

$("talk").addEventListener("click", async () => {
  if (talking) return hangUp();
  try { await talk(); } catch (error) { status(error.message, true); hangUp(); }
});

// ---- start ----

async function start() {
  try {
    const speaks = await loadModels();
    if (speaks) await loadVoices();
    $("key-field").hidden = true;
    status("ready");
  } catch (error) { status(error.message, true); }
}

start();
