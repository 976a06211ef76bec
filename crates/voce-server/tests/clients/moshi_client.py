"""moshi-server's protocol as Kyutai's scripts speak it: websockets and msgpack."""

import asyncio
import sys

import msgpack
import websockets

import sound

URL, KEY = sys.argv[1].replace("http", "ws"), sys.argv[2]
HEADERS = {"kyutai-api-key": KEY}


async def hear():
    async with websockets.connect(f"{URL}/api/asr-streaming", additional_headers=HEADERS) as socket:

        async def send():
            audio = sound.samples(".##.#..", 24_000)
            for i in range(0, len(audio), 1920):
                message = {"type": "Audio", "pcm": audio[i : i + 1920]}
                await socket.send(msgpack.packb(message, use_bin_type=True, use_single_float=True))
            await socket.send(msgpack.packb({"type": "Marker", "id": 0}, use_single_float=True))

        async def receive():
            words = []
            first = None
            async for data in socket:
                message = msgpack.unpackb(data, raw=False)
                first = first or message["type"]
                if message["type"] == "Word":
                    words.append({"text": message["text"], "span": [message["start_time"], None]})
                elif message["type"] == "EndWord":
                    words[-1]["span"][1] = message["stop_time"]
                elif message["type"] == "Marker":
                    return first, words

        _, (first, words) = await asyncio.gather(send(), receive())
        assert first == "Ready"
        assert [w["text"] for w in words] == ["w1", "w2", "w3"]
        assert words[0]["span"] == [0.5, 1.0]


async def speak():
    url = f"{URL}/api/tts_streaming?voice=expresso/ex03-ex01_happy_001_channel1_334s.wav&format=PcmMessagePack"
    async with websockets.connect(url, additional_headers=HEADERS) as socket:
        for word in "Hello there you .".split():
            await socket.send(msgpack.packb({"type": "Text", "text": word}))
        await socket.send(msgpack.packb({"type": "Eos"}))
        samples, words = 0, []
        async for data in socket:
            message = msgpack.unpackb(data)
            if message["type"] == "Audio":
                samples += len(message["pcm"])
            elif message["type"] == "Text":
                words.append(message["text"])
            else:
                assert message["type"] == "Ready", message
        assert samples > 0 and words == ["Hello", "there", "you", "."]


async def refused():
    try:
        await websockets.connect(f"{URL}/api/asr-streaming", additional_headers={"kyutai-api-key": "wrong"})
    except websockets.exceptions.InvalidStatus as error:
        assert error.response.status_code == 401
    else:
        raise AssertionError("a wrong key was taken")


asyncio.run(hear())
asyncio.run(speak())
asyncio.run(refused())
print("websockets", websockets.__version__, "msgpack", msgpack.version, "ok")
