"""Unmute's own classes for speech and recognition, as they are, from a checkout of unmute. Packages that they load and do
not use here are stood in for."""

import asyncio
import os
import sys
import types
from unittest.mock import MagicMock

import numpy as np

import sound

URL, KEY, CHECKOUT = sys.argv[1].replace("http", "ws"), sys.argv[2], sys.argv[3]
assert sys.version_info >= (3, 12), "Unmute needs Python 3.12: set VENV to one"
assert KEY == "public_token", "Unmute's key is part of its code"
os.environ["KYUTAI_STT_URL"] = os.environ["KYUTAI_TTS_URL"] = URL
sys.path.insert(0, CHECKOUT)
for name in ["redis", "redis.typing", "requests", "aiofiles"]:
    sys.modules.setdefault(name, MagicMock())
sys.modules["fastrtc"] = types.SimpleNamespace(audio_to_float32=lambda a: a.astype(np.float32) / 32768)
# The prompts of its language model need packages of their own.
sys.modules["unmute.llm.system_prompt"] = types.SimpleNamespace(Instructions=dict)

from unmute.kyutai_constants import SAMPLES_PER_FRAME  # noqa: E402
from unmute.stt.speech_to_text import SpeechToText, STTMarkerMessage  # noqa: E402
from unmute.tts.text_to_speech import (  # noqa: E402
    TextToSpeech,
    TTSAudioMessage,
    TTSClientEosMessage,
    TTSTextMessage,
)


async def hear():
    stt = SpeechToText()
    await stt.start_up()
    audio = np.array(sound.samples("..#......", 24_000), np.float32)
    for i in range(0, len(audio), SAMPLES_PER_FRAME):
        await stt.send_audio(audio[i : i + SAMPLES_PER_FRAME])
    await stt.send_marker(7)
    words, pause = [], None
    async for message in stt:
        if isinstance(message, STTMarkerMessage):
            assert message.id == 7
            break
        words.append((message.text, message.start_time))
        # Somebody speaks: what Unmute's turns hang on.
        pause = stt.pause_prediction.value
    assert words == [("w1", 1.0)] and pause > 0.5, (words, pause)
    # Three seconds after the word it is the other's turn; time is counted by steps.
    assert stt.pause_prediction.value > 0.6, stt.pause_prediction.value
    assert stt.current_time > 3.5, stt.current_time
    closing = asyncio.create_task(stt.shutdown())
    async for _ in stt:
        pass
    await closing


async def speak():
    tts = TextToSpeech(voice="unmute-prod-website/p329_022.wav")
    await tts.start_up()
    for word in "Did you know that the author wrote it twice?".split(" "):
        await tts.send(word)
    await tts.send(TTSClientEosMessage())
    samples, words = 0, []
    async for message in tts:
        if isinstance(message, TTSAudioMessage):
            assert len(message.pcm) == SAMPLES_PER_FRAME
            samples += len(message.pcm)
        elif isinstance(message, TTSTextMessage):
            words.append(message.text)
    assert samples > SAMPLES_PER_FRAME and words[-1] == "twice?", (samples, words)


asyncio.run(hear())
asyncio.run(speak())
print("Unmute's classes ok")
