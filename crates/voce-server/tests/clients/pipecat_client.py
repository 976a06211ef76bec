"""Pipecat's own services for OpenAI and Deepgram, each in a pipeline of its own, with this server behind them."""

import asyncio
import sys

from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    StartFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService, OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.workers.runner import WorkerRunner

import sound

URL, KEY = sys.argv[1], sys.argv[2]
WS = URL.replace("http", "ws")
RATE = 16_000


class End(FrameProcessor):
    """The end of a pipeline: keeps what arrives, and says when something did."""

    def __init__(self):
        super().__init__()
        self.frames = []
        self.arrived = asyncio.Condition()

    async def process_frame(self, frame, direction: FrameDirection):
        await super().process_frame(frame, direction)
        async with self.arrived:
            self.frames.append(frame)
            self.arrived.notify_all()
        await self.push_frame(frame, direction)

    def of(self, kind):
        return [f for f in self.frames if type(f) is kind]

    async def wait(self, kind, number=1):
        async with self.arrived:
            await asyncio.wait_for(self.arrived.wait_for(lambda: len(self.of(kind)) >= number), 30)
        return self.of(kind)


class Run:
    """A pipeline of one service, running."""

    def __init__(self, service):
        self.end = End()
        self.errors = []
        params = PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=24_000)
        self.worker = PipelineWorker(Pipeline([service, self.end]), params=params, cancel_on_idle_timeout=False)

        @self.worker.event_handler("on_pipeline_error")
        async def _(_, frame: ErrorFrame):
            self.errors.append(frame.error)

    async def __aenter__(self):
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)
        self.running = asyncio.create_task(runner.run())
        await self.end.wait(StartFrame)
        return self

    async def __aexit__(self, *_):
        await self.worker.queue_frame(EndFrame())
        await asyncio.wait_for(self.running, 30)
        assert not self.errors, self.errors

    async def put(self, *frames):
        await self.worker.queue_frames(frames)

    async def say(self, pattern, pace=0.002):
        audio = sound.pcm(pattern, RATE)
        size = RATE // 50 * 2
        for i in range(0, len(audio), size):
            await self.put(InputAudioRawFrame(audio[i : i + size], RATE, 1))
            await asyncio.sleep(pace)


async def speech():
    async with Run(OpenAITTSService(api_key=KEY, base_url=f"{URL}/v1")) as run:
        await run.put(TTSSpeakFrame("Hello there."))
        await run.end.wait(TTSStoppedFrame)
        audio = run.end.of(TTSAudioRawFrame)
        assert sum(len(f.audio) for f in audio) > 1000 and {f.sample_rate for f in audio} == {24_000}


async def files():
    async with Run(OpenAISTTService(api_key=KEY, base_url=f"{URL}/v1")) as run:
        await run.put(VADUserStartedSpeakingFrame())
        await run.say("##.#")
        await run.put(VADUserStoppedSpeakingFrame())
        # What the service keeps of the time before it knew of speech stands before the words.
        assert (await run.end.wait(TranscriptionFrame))[0].text == "w1 w2 w3"


async def realtime_by_the_server():
    service = OpenAIRealtimeSTTService(
        api_key=KEY,
        base_url=f"{WS}/v1/realtime",
        turn_detection={"type": "server_vad"},
        settings=OpenAIRealtimeSTTService.Settings(model="gpt-transcribe"),
    )
    async with Run(service) as run:
        await run.say("##..#...")
        texts = [f.text for f in await run.end.wait(TranscriptionFrame, 2)]
        assert texts == ["w1 w2", "w3"], texts
        deltas = [f.text.strip() for f in run.end.of(InterimTranscriptionFrame)]
        assert deltas == ["w1", "w2", "w3"], deltas


async def realtime_by_commits():
    async with Run(OpenAIRealtimeSTTService(api_key=KEY, base_url=f"{WS}/v1/realtime")) as run:
        await run.put(VADUserStartedSpeakingFrame())
        await run.say("#.#.")
        await run.end.wait(InterimTranscriptionFrame, 2)
        await run.put(VADUserStoppedSpeakingFrame())
        assert (await run.end.wait(TranscriptionFrame))[0].text == "w1 w2"


async def deepgram():
    service = DeepgramSTTService(api_key=KEY, base_url=WS)
    async with Run(service) as run:
        await run.say("##..#...")
        texts = [f.text for f in await run.end.wait(TranscriptionFrame, 2)]
        assert texts == ["w1 w2", "w3"], texts
        assert run.end.of(InterimTranscriptionFrame)


async def main():
    for part in [speech, files, realtime_by_the_server, realtime_by_commits, deepgram]:
        await part()


logger.remove()
logger.add(sys.stderr, level="ERROR")
asyncio.run(main())
print("pipecat ok")
