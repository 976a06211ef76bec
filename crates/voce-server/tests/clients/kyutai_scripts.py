"""Kyutai's own client scripts, as they are, from a checkout of delayed-streams-modeling."""

import os
import re
import subprocess
import sys
import tempfile
import time
import wave

import numpy as np

import sound

URL, KEY, CHECKOUT = sys.argv[1].replace("http", "ws"), sys.argv[2], sys.argv[3]
HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = "Hello, this is a test of speech. It has two sentences!"


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.path.join(HERE, "stand_ins"), "PYTHONUNBUFFERED": "1", **more}


def command(script, *args):
    path = os.path.join(CHECKOUT, "scripts", script)
    return [sys.executable, path, *args, "--url", URL, "--api-key", KEY]


def run(script, *args, **more):
    done = subprocess.run(
        command(script, *args), env=environment(**more), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{script}: {done.stdout}\n{done.stderr}"
    return done.stdout


def write(path, pattern):
    with open(path, "wb") as file:
        file.write(sound.wav(pattern, 24_000))


def hear_a_file(folder):
    path = os.path.join(folder, "talk.wav")
    write(path, ".##.#.")
    out = run("stt_from_file_rust_server.py", path, "--rtf", "1000")
    first, *lines = out.strip().splitlines()
    assert first.split() == ["w1", "w2", "w3"], out
    # The script sends a second of silence first.
    times = [[float(n) for n in re.findall(r"[\d.]+(?= )", line)[:2]] for line in lines if line.strip()]
    assert times == [[1.5, 2.0], [2.0, 2.5], [3.0, 3.5]], out


def hear_a_microphone(folder):
    path = os.path.join(folder, "microphone.wav")
    write(path, "#......")
    arguments = command("stt_from_mic_rust_server.py", "--show-vad")
    client = subprocess.Popen(
        arguments, env=environment(VOCE_MICROPHONE=path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    end = time.monotonic() + 60
    heard = b""
    os.set_blocking(client.stdout.fileno(), False)
    # Two seconds after each word the pause is seen.
    while heard.count(b"|") < 2:
        assert client.poll() is None and time.monotonic() < end, heard.decode()
        heard += client.stdout.read() or b""
        time.sleep(0.02)
    client.terminate()
    client.wait()
    # The script forgets what came before it was connected, so that a loud half second may lie in two.
    said = " ".join(heard.decode().splitlines()[-1].split())
    assert re.match(r"((w\d+ )+\| ?){2}", said), heard.decode()


def speak(folder):
    text, out = os.path.join(folder, "text.txt"), os.path.join(folder, "speech.wav")
    with open(text, "w", encoding="utf-8") as file:
        file.write(TEXT + "\n")
    run("tts_rust_server.py", text, out)
    with wave.open(out) as file:
        assert file.getframerate() == 24_000 and file.getnframes() > 1920, file.getparams()
    # To a speaker, from standard input.
    speaker = os.path.join(folder, "speaker")
    arguments = command("tts_rust_server.py", "-", "-")
    done = subprocess.run(
        arguments, input=TEXT, env=environment(VOCE_SPEAKER=speaker), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    played = np.fromfile(speaker, np.float32)
    assert np.abs(played).max() > 0, done.stderr


with tempfile.TemporaryDirectory() as folder:
    hear_a_file(folder)
    hear_a_microphone(folder)
    speak(folder)
print("Kyutai's scripts ok")
