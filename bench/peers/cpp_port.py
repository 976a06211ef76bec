"""Speed of PocketTTS.cpp (C++ on ONNX Runtime, int8) on models exported from a local Pocket TTS folder.

    python cpp_port.py --binary PATH --models DIR --voice prompt.wav --tokens 24 --frames 125 --repeats 5 [--threads 2]

Its HTTP server is started on a free port and asked for a raw stream, because that is the only mode of the program that
keeps the model and the voice loaded between texts. cpp_port.md says how to build it and how to export the models.
"""

import argparse
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure
import sentencepiece


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port: int, server: subprocess.Popen, log: Path, limit: float = 120.0):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if server.poll() is not None:
            sys.exit(f"error: the server ended: {log.read_text(errors='replace').strip()[-300:]}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"error: the server did not listen in {limit:.0f} s")


def peak_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return round(int(found[1]) / 1024, 1) if found else 0.0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True, help="the pocket-tts program that was built")
    ap.add_argument("--models", required=True, type=Path, help="the folder that export_onnx.py wrote")
    ap.add_argument("--voice", required=True, type=Path, help="a WAV of about ten seconds")
    ap.add_argument("--tokens", type=int, default=24)
    ap.add_argument("--frames", type=int, default=125)
    ap.add_argument("--repeats", type=int, default=5)
    ap.add_argument("--threads", type=int, default=2, help="its whole budget, split between generator and decoder")
    ap.add_argument("--precision", default="int8", choices=["int8", "fp32"])
    a = ap.parse_args()
    tokeniser = a.models / "tokenizer.model"
    encode = sentencepiece.SentencePieceProcessor(model_file=str(tokeniser)).encode
    text = measure.text_of(a.tokens, encode)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(a.voice, Path(folder) / "voice.wav")  # its caches are written beside the voice
        log = Path(folder) / "log"
        command = [a.binary, "--server", "--port", port, "--threads", a.threads, "--precision", a.precision]
        command += ["--models-dir", a.models, "--tokenizer", tokeniser, "--voices-dir", folder]
        # A threshold that every frame passes and a count of frames to go on: exactly that many frames come out.
        command += ["--eos-threshold", "-1e30", "--eos-extra", a.frames]
        with log.open("wb") as out:
            server = subprocess.Popen([str(x) for x in command], stdout=out, stderr=out)
        try:
            wait_for(port, server, log)
            body = json.dumps({"text": text, "voice": "voice.wav"})

            def stream():
                link = http.client.HTTPConnection("127.0.0.1", port)
                link.request("POST", "/tts", body, {"Content-Type": "application/json"})
                answer = link.getresponse()
                if answer.status != 200:
                    sys.exit(f"error: the server answered {answer.status}")
                while data := answer.read1(1 << 20):
                    yield len(data) / 4  # f32 samples; a read may cut one in two
                link.close()

            for _ in stream():  # encodes the voice and keeps its state
                pass
            measure.run(
                f"PocketTTS.cpp {a.precision}",
                stream,
                a.repeats,
                a.threads,
                tokens=a.tokens,
                peak_rss_mb=peak_mb(server.pid),  # reached while the voice is encoded, so before the timed runs
            )
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


if __name__ == "__main__":
    main()
