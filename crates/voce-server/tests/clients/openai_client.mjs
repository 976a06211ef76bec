// The official openai client for Node. `NODE_PATH`-less: run it from a folder with node_modules, as run.sh does.
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.cwd(), "here.js"));
const { OpenAI, toFile } = require("openai");
const assert = require("node:assert");

const [url, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });

function wav(pattern, rate) {
  const half = rate / 2;
  const samples = pattern.length * half;
  const file = Buffer.alloc(44 + samples * 2);
  file.write("RIFF", 0); file.writeUInt32LE(36 + samples * 2, 4); file.write("WAVEfmt ", 8);
  file.writeUInt32LE(16, 16); file.writeUInt16LE(1, 20); file.writeUInt16LE(1, 22);
  file.writeUInt32LE(rate, 24); file.writeUInt32LE(rate * 2, 28); file.writeUInt16LE(2, 32); file.writeUInt16LE(16, 34);
  file.write("data", 36); file.writeUInt32LE(samples * 2, 40);
  for (let i = 0; i < samples; i++) {
    const loud = pattern[Math.floor(i / half)] === "#";
    file.writeInt16LE(loud ? Math.round(13000 * Math.sin((i % half) * 0.3)) : 0, 44 + 2 * i);
  }
  return file;
}

const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepStrictEqual(models, ["small", "counter"]);

const speech = await client.audio.speech.create({ model: "tts-1", voice: "alloy", input: "Hello there.", response_format: "wav" });
assert.strictEqual(speech.headers.get("content-type"), "audio/wav");
assert.ok((await speech.arrayBuffer()).byteLength > 44);

const file = await toFile(wav("##.#", 16000), "talk.wav");
const heard = await client.audio.transcriptions.create({ model: "whisper-1", file });
assert.strictEqual(heard.text, "w1 w2 w3");

const stream = await client.audio.transcriptions.create({ model: "gpt-4o-transcribe", file: await toFile(wav("#.#", 16000), "talk.wav"), stream: true });
let text = "";
for await (const event of stream) if (event.type === "transcript.text.delta") text += event.delta;
assert.strictEqual(text, "w1 w2");

await assert.rejects(client.audio.speech.create({ model: "gpt-9", voice: "alloy", input: "x" }), (e) => e.status === 404);
console.log("openai for Node ok");
