"""The package itself: imports, the command, errors, models."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import voce

COMMAND = Path(sysconfig.get_path("scripts")) / "voce"


def python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, timeout=300
    )


def test_import_alone_needs_nothing_else():
    done = python("import sys, voce; print([m for m in ('numpy', 'torch', 'ray') if m in sys.modules])")
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_the_command_is_the_whole_command_line(tmp_path):
    done = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["voce", voce.__version__]
    out = tmp_path / "x.wav"
    said = subprocess.run(
        [COMMAND, "say", "--json", "--threads", "1", "--max-frames", "5", "-o", out, "-"],
        input="Standard input.", capture_output=True, text=True, timeout=300,
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["sample_rate"] == 24_000
    assert out.read_bytes()[:4] == b"RIFF"


def test_the_command_has_the_exit_codes_of_the_program():
    wrong = subprocess.run([COMMAND, "say", "--no-such-flag"], capture_output=True, text=True, timeout=300)
    assert wrong.returncode == 2 and "--no-such-flag" in wrong.stderr
    module = subprocess.run([sys.executable, "-m", "voce", "--version"], capture_output=True, text=True, timeout=300)
    assert module.stdout.startswith("voce ")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_by_a_signal(number):
    """A server would run for ever: it says where it listens, and goes when it is told to."""
    command = [COMMAND, "serve", "--port", "0", "--json", "--no-hear", "--speak", "nano-voice", "--device", "cpu"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert json.loads(server.stdout.readline())["addr"].startswith("127.0.0.1:")
        server.send_signal(number)
        assert server.wait(timeout=300) == 0
    finally:
        server.kill()
        server.wait()


def test_errors_have_a_code_and_survive_pickling():
    with pytest.raises(voce.VoceError) as caught:
        voce.Speaker("no-such-model")
    assert caught.value.code in ("unknown_model", "not_found", "not_pulled"), caught.value.code
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.code) == (str(caught.value), caught.value.code)
    for wrong in ({"device": "abacus"}, {"precision": "int3"}):
        with pytest.raises(voce.VoceError) as caught:
            voce.Speaker("nano-voice", **wrong)
        assert caught.value.code == "bad_request"


def test_models_that_come_with_the_package_are_listed(home):
    here = {model.name: model for model in voce.models()}
    assert here["nano-voice"].task == "speech" and here["nano-ear"].task == "hearing"
    assert here["nano-voice"].size > 1_000_000


def test_a_store_may_be_elsewhere(tmp_path):
    voce.Speaker("nano-voice", store=tmp_path / "other", device="cpu", threads=1, slots=1)
    assert (tmp_path / "other/models/nano-voice/model.safetensors").exists()


def test_functions_keep_what_they_open():
    first = voce.speaker()
    assert voce.speaker() is first
    assert len(voce.say("Hello.", max_frames=5)) > 0
    voce.close()
    assert voce.speaker() is not first
    voce.close()
