"""Home Assistant's wyoming client."""

import asyncio
import sys

from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

import sound

HOST, PORT = sys.argv[1], int(sys.argv[2])


async def describe():
    async with AsyncTcpClient(HOST, PORT) as client:
        await client.write_event(Describe().event())
        info = Info.from_event(await client.read_event())
        assert info.asr[0].models[0].name == "counter" and info.asr[0].supports_transcript_streaming
        assert info.tts[0].voices[0].name == "voice" and info.tts[0].supports_synthesize_streaming


async def hear():
    async with AsyncTcpClient(HOST, PORT) as client:
        await client.write_event(Transcribe(language="en").event())
        await client.write_event(AudioStart(rate=16000, width=2, channels=1).event())
        audio = sound.pcm("##.#", 16_000)
        for i in range(0, len(audio), 2048):
            await client.write_event(AudioChunk(rate=16000, width=2, channels=1, audio=audio[i : i + 2048]).event())
        await client.write_event(AudioStop().event())
        while True:
            event = await client.read_event()
            assert event is not None
            if Transcript.is_type(event.type):
                assert Transcript.from_event(event).text == "w1 w2 w3"
                return


async def speak():
    async with AsyncTcpClient(HOST, PORT) as client:
        await client.write_event(Synthesize(text="Hello there.").event())
        audio = b""
        while True:
            event = await client.read_event()
            if AudioChunk.is_type(event.type):
                audio += AudioChunk.from_event(event).audio
            if AudioStop.is_type(event.type):
                break
        assert audio
        await client.write_event(SynthesizeStart().event())
        for piece in ["Hello ", "there. ", "You."]:
            await client.write_event(SynthesizeChunk(text=piece).event())
        await client.write_event(SynthesizeStop().event())
        streamed = b""
        while True:
            event = await client.read_event()
            if AudioChunk.is_type(event.type):
                streamed += AudioChunk.from_event(event).audio
            if SynthesizeStopped.is_type(event.type):
                break
        assert streamed


asyncio.run(describe())
asyncio.run(hear())
asyncio.run(speak())
print("wyoming ok")
