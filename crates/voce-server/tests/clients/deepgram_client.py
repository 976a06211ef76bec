"""The official deepgram-sdk: live audio and files."""

import sys

from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment

import sound

URL, KEY = sys.argv[1], sys.argv[2]
WS = URL.replace("http", "ws")
environment = DeepgramClientEnvironment(base=URL, production=WS, agent=WS, agent_rest=URL)
client = DeepgramClient(api_key=KEY, environment=environment)


def live():
    with client.listen.v1.connect(
        model="nova-3", encoding="linear16", sample_rate="16000", interim_results="true", endpointing="500"
    ) as connection:
        connection.send_keep_alive()
        audio = sound.pcm("##..#", 16_000)
        for i in range(0, len(audio), 3200):
            connection.send_media(audio[i : i + 3200])
        connection.send_close_stream()
        finals = []
        for message in connection:
            if message.type == "Results" and message.is_final:
                finals.append(message.channel.alternatives[0].transcript)
            if message.type == "Metadata":
                break
        assert [f for f in finals if f] == ["w1 w2", "w3"], finals


def file():
    response = client.listen.v1.media.transcribe_file(request=sound.wav("#.#", 16_000), model="nova-3")
    assert response.results.channels[0].alternatives[0].transcript == "w1 w2"


live()
file()
print("deepgram-sdk ok")
