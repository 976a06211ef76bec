"""The official openai client: speech, voices, transcriptions, models, Realtime."""

import asyncio
import base64
import sys

import openai

import sound

URL, KEY = sys.argv[1], sys.argv[2]


def http():
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    assert [m.id for m in client.models.list()] == ["small", "counter"]
    assert client.models.retrieve("tts-1").id == "small"

    whole = client.audio.speech.create(model="tts-1", voice="alloy", input="Hello there.")
    assert whole.response.headers["content-type"] == "audio/mpeg"
    assert len(whole.content) > 100
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="voice", input="Hello there.", response_format="wav", instructions="Softly."
    ) as response:
        chunks = list(response.iter_bytes())
    assert b"".join(chunks).startswith(b"RIFF")
    pcm = client.audio.speech.create(model="small", voice="alloy", input="Hello.", response_format="pcm", speed=1.5)
    assert len(pcm.content) % 2 == 0 and pcm.content

    talk = ("talk.wav", sound.wav("##.#", 16_000))
    assert client.audio.transcriptions.create(model="whisper-1", file=talk).text == "w1 w2 w3"
    assert client.audio.transcriptions.create(model="whisper-1", file=talk, response_format="text").strip() == "w1 w2 w3"
    assert client.audio.transcriptions.create(model="whisper-1", file=talk, response_format="vtt").startswith("WEBVTT")
    verbose = client.audio.transcriptions.create(
        model="whisper-1", file=talk, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert [w.word for w in verbose.words] == ["w1", "w2", "w3"]
    assert verbose.segments[0].text == "w1 w2 w3" and verbose.duration == 2.0
    stream = client.audio.transcriptions.create(model="gpt-4o-transcribe", file=talk, stream=True)
    events = list(stream)
    assert "".join(e.delta for e in events if e.type == "transcript.text.delta") == "w1 w2 w3"
    assert events[-1].type == "transcript.text.done" and events[-1].text == "w1 w2 w3"

    def refused(kind, call):
        try:
            call()
        except kind as error:
            return error
        raise AssertionError(f"not refused: {kind}")

    refused(openai.BadRequestError, lambda: client.audio.translations.create(model="whisper-1", file=talk))
    refused(openai.NotFoundError, lambda: client.audio.speech.create(model="gpt-9", voice="alloy", input="x"))
    refused(openai.BadRequestError, lambda: client.audio.speech.create(model="tts-1", voice="nobody", input="x"))
    stranger = openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong", max_retries=0)
    error = refused(openai.AuthenticationError, lambda: stranger.models.list())
    assert error.code == "invalid_api_key"


async def realtime():
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)
    async with client.realtime.connect(model="whisper-1", extra_query={"intent": "transcription"}) as connection:
        event = await connection.recv()
        assert event.type == "session.created", event
        await connection.session.update(
            session={
                "type": "transcription",
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcm", "rate": 24000},
                        "transcription": {"model": "whisper-1", "language": "en"},
                        "turn_detection": {"type": "server_vad", "silence_duration_ms": 500},
                    }
                },
            }
        )
        assert (await connection.recv()).type == "session.updated"
        audio = sound.pcm("##..", 24_000)
        for i in range(0, len(audio), 4800):
            await connection.input_audio_buffer.append(audio=base64.b64encode(audio[i : i + 4800]).decode())
        text = ""
        async for event in connection:
            assert event.type != "error", event
            if event.type == "conversation.item.input_audio_transcription.delta":
                text += event.delta
            if event.type == "conversation.item.input_audio_transcription.completed":
                assert event.transcript == text == "w1 w2"
                break


http()
asyncio.run(realtime())
print("openai", openai.__version__, "ok")
