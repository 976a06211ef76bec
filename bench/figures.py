"""The figures of docs/reliability.md that take minutes: delays at half of the slots, all slots in use with streams that come and
go, and bursts of twice as many streams as there are slots. Each on a server of its own with the built-in models; prints JSON and
fails where a figure does not hold.

    python bench/figures.py --voce target/release/voce --out bench/runs/figures.jsonl
    python bench/figures.py --phases lag --minutes 10 --trials 3
    python bench/figures.py --phases speech --speak DIR --voice DIR/voice.safetensors      # another voice than the built-in one
    python bench/figures.py --minutes 0.1 --trials 1 --bursts 5        # a try of the script itself

Python 3.11 and nothing else.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import platform
import signal
import statistics
import struct
import sys
import threading
import time

import rig
from rig import FRAME, RATE, Closed, Ws, quantile

PROCESSES = 2
SILENCE = rig.pack_audio([0.0] * 1920)
# Answers to frames that were heard together come within this.
TOGETHER = 0.02


def stream(port, frames, number, out, stop, seconds=None):
    """A live stream: a frame each 80 ms; puts its number, when, and how late each answer is after the last frame it stands on.

    A recogniser that hears several frames at once answers them at once: that is its stated delay, which is none of the server's."""
    with Ws(port, "/api/asr-streaming") as ws:
        sent, closed = [], []

        def read():
            last = -1.0
            try:
                while True:
                    message, _ = rig.unpack(ws.recv())
                    now = time.monotonic()
                    if message["type"] == "Step" and message["step_idx"] < len(sent):
                        if now - last < TOGETHER:
                            out.pop()
                        out.append((number, now, now - sent[message["step_idx"]]))
                        last = now
            except Closed as end:
                closed.append(end)
            except OSError:
                pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        begun, at = time.monotonic(), 0
        while not stop.is_set() and (seconds is None or time.monotonic() - begun < seconds):
            time.sleep(max(begun + at * FRAME - time.monotonic(), 0))
            sent.append(time.monotonic())
            try:
                ws.send(frames[at % len(frames)])
            except OSError:
                # Why it was closed is in what it has sent.
                reader.join(5)
                raise closed[0] if closed else Closed(None) from None
            at += 1


def crowd(port, frames, numbers, lifetime, queue, stop):
    """Streams in one process. With a lifetime they end after it and the next takes the place, at another moment for each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A list for each stream: only its own thread takes from it.
    events, failures = {number: [] for number in numbers}, []

    def live(number):
        first = True
        while not stop.is_set():
            try:
                seconds = lifetime and lifetime * (1 if not first else (number + 1) / (max(numbers) + 2) + 0.05)
                stream(port, frames[number % 7 :] + frames[: number % 7], number, events[number], stop, seconds)
            except Closed as closed:
                # The slot of a stream that has just gone may take a step to be free.
                if closed.code != 1013 and not stop.is_set():
                    failures.append(repr(closed))
                time.sleep(0.02)
            except OSError as error:
                if not stop.is_set():
                    failures.append(repr(error))
            first = False
            if not lifetime:
                break

    threads = []
    for number in numbers:
        time.sleep(FRAME / 16)
        threads.append(threading.Thread(target=live, args=(number,), daemon=True))
        threads[-1].start()
    stop.wait()
    for thread in threads:
        thread.join(5)
    queue.put(([event for number in numbers for event in events[number]], failures))
    queue.put(None)


class Crowd:
    """Live streams in processes of their own, and what they saw."""

    def __init__(self, server, streams, lifetime=None):
        pcm = rig.speech(server.port)
        samples = [s / 32768 for (s,) in struct.iter_unpack("<h", pcm)]
        step = int(RATE * FRAME)
        frames = [rig.pack_audio(samples[i : i + step]) for i in range(0, len(samples) - step, step)]
        context = multiprocessing.get_context("fork")
        self.stopped, self.queues = context.Event(), [context.Queue() for _ in range(PROCESSES)]
        parts = [list(range(i, streams, PROCESSES)) for i in range(PROCESSES)]
        self.processes = [
            context.Process(target=crowd, args=(server.port, frames, part, lifetime, queue, self.stopped), daemon=True)
            for part, queue in zip(parts, self.queues)
        ]
        for process in self.processes:
            process.start()
        self.events, self.failures = [], []
        self.threads = [threading.Thread(target=self.collect, args=(queue,), daemon=True) for queue in self.queues]
        for thread in self.threads:
            thread.start()

    def collect(self, queue):
        while (got := queue.get()) is not None:
            self.events += got[0]
            self.failures += got[1]

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join(10)
        for process in self.processes:
            process.join(2)

    def lags(self, low=0.0, high=float("inf")):
        return sorted(lag for _, at, lag in self.events if low <= at < high)

    def fairness(self, low):
        """Jain's index of the streams' mean delays: 1 where all are the same."""
        by = {}
        for number, at, lag in self.events:
            if at >= low:
                by.setdefault(number, []).append(lag)
        means = [statistics.mean(v) for v in by.values()]
        return sum(means) ** 2 / (len(means) * sum(m * m for m in means)) if means else float("nan")


def spread(seconds):
    return {"p50": ms(quantile(seconds, 0.5)), "p99": ms(quantile(seconds, 0.99)), "p999": ms(quantile(seconds, 0.999)), "max": ms(max(seconds, default=float("nan"))), "count": len(seconds)}


def ms(seconds):
    return round(seconds * 1e3, 2)


def pauses(seconds=2.0):
    """The longest times, in ms, that a busy process did not run, and how many a second were above 1 ms: what the machine itself adds."""
    gaps, last = [], time.monotonic()
    end = last + seconds
    while last < end:
        now = time.monotonic()
        if now - last > 1e-3:
            gaps.append(now - last)
        last = now
    return {"per_second": round(len(gaps) / seconds, 1), "max": ms(max(gaps, default=0.0))}


def first_audio(port, seconds, out, listen=False, whole=True):
    """One request after the other, or each when the one before has been listened to; how long each waits for its first sound. Without
    `whole` the client has heard enough then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = json.dumps({"input": rig.SENTENCE, "response_format": "pcm"}).encode()
        connection.request("POST", "/v1/audio/speech", body, {"Content-Type": "application/json"})
        begun = time.monotonic()
        response = connection.getresponse()
        response.read(2)
        out.append(time.monotonic() - begun)
        samples = len(response.read()) / 2 if whole else 0
        connection.close()
        if listen:
            time.sleep(max(begun + samples / RATE - time.monotonic(), 0))
        if not whole:
            # The voice notices that nobody listens any more: that is no part of the next request.
            time.sleep(0.2)


def begin(args):
    flags = ["--hear-slots", str(args.slots), "--speak-slots", "2"]
    flags += ["--speak", args.speak] if args.speak else []
    flags += ["--voice", args.voice] if args.voice else []
    flags += ["--threads", str(args.threads)] if args.threads else []
    return rig.Server(args.voce, flags).ready()


def phase_lag(args):
    """Figure 1, recognition: half of the slots."""
    server, trials, problems = begin(args), [], []
    for _ in range(args.trials):
        people = Crowd(server, args.slots // 2)
        time.sleep(2)
        begun = time.monotonic()
        time.sleep(args.minutes * 60)
        people.stop()
        lags = people.lags(begun)
        trials.append(spread(lags))
        if quantile(lags, 0.5) > FRAME or quantile(lags, 0.99) > 2 * FRAME:
            problems.append(f"lag: {spread(lags)}")
        problems += people.failures[:3]
    server.stop()
    return {"streams": args.slots // 2, "minutes": args.minutes, "lag_ms": trials, "problems": problems}


def phase_speech(args):
    """Figure 1, speech: one voice in use of two, one request after the other."""
    server, trials, problems = begin(args), [], []
    # A model of random weights may have no end.
    whole = not args.speak
    first_audio(server.port, 1, [], whole=whole)
    for _ in range(args.trials):
        first, machine = [], pauses()
        first_audio(server.port, args.minutes * 60, first, whole=whole)
        first.sort()
        trials.append({**spread(first), "machine_pauses_ms": machine})
        if quantile(first, 0.99) > 2 * quantile(first, 0.5):
            problems.append(f"first audio: {spread(first)}")
    server.stop()
    return {"minutes": args.minutes, "first_audio_ms": trials, "problems": problems}


def phase_full(args):
    """Figure 2: every slot in use, about one stream a second goes and another comes, and a voice beside them is read at its speed."""
    server = begin(args)
    people = Crowd(server, args.slots, lifetime=float(args.slots))
    time.sleep(2)
    begun, spoken = time.monotonic(), []
    speaker = threading.Thread(target=first_audio, args=(server.port, args.full_minutes * 60, spoken, True), daemon=True)
    speaker.start()
    speaker.join()
    underruns = rig.metric(server.port, "voce_underruns_total")
    people.stop()
    lags, fairness = people.lags(begun), people.fairness(begun)
    problems = [repr(f) for f in people.failures[:3]]
    # An answer waits for its step, so this bounds the step as well.
    if quantile(lags, 0.99) > 0.8 * FRAME:
        problems.append(f"p99 of an answer is {ms(quantile(lags, 0.99))} ms")
    if underruns:
        problems.append(f"{underruns:.0f} underruns")
    if fairness < 0.99:
        problems.append(f"fairness {fairness:.4f}")
    server.stop()
    result = {"streams": args.slots, "minutes": args.full_minutes, "lag_ms": spread(lags), "underruns": underruns, "fairness": round(fairness, 5)}
    return {**result, "utterances": len(spoken), "problems": problems}


def phase_bursts(args):
    """Figure 3: all slots are taken, and bursts of twice as many try to get in."""
    server = begin(args)
    people = Crowd(server, args.slots)
    deadline = time.monotonic() + 30
    while rig.metric(server.port, 'voce_streams_active{kind="recognition"}') < args.slots and time.monotonic() < deadline:
        time.sleep(0.1)
    begun = time.monotonic()
    time.sleep(max(args.minutes * 6, 2))
    middle, refused, taken, others = time.monotonic(), [], 0, []
    lock = threading.Lock()

    def knock():
        nonlocal taken
        at = time.monotonic()
        try:
            with Ws(server.port, "/api/asr-streaming") as ws:
                ws.send(SILENCE)
                while True:
                    # `Ready` comes before the first data; what comes then is the refusal.
                    message = rig.unpack(ws.recv())[0]
                    with lock:
                        taken += message["type"] == "Step"
        except Closed as closed:
            with lock:
                refused.append(time.monotonic() - at)
                others.extend([] if closed.code in (429, 503, 1013) else [repr(closed)])
        except OSError as error:
            with lock:
                others.append(repr(error))

    for _ in range(args.bursts):
        knocks = [threading.Thread(target=knock, daemon=True) for _ in range(args.slots * 2)]
        for thread in knocks:
            thread.start()
        for thread in knocks:
            thread.join()
    end = time.monotonic()
    people.stop()
    before, during = people.lags(begun, middle), people.lags(middle, end)
    server.stop()
    moved = quantile(during, 0.99) / quantile(before, 0.99) - 1
    refused.sort()
    problems = [repr(f) for f in (people.failures + others)[:5]]
    if taken:
        problems.append(f"{taken} streams were taken where no slot was free")
    if moved > 0.05 and quantile(during, 0.99) - quantile(before, 0.99) > FRAME:
        problems.append(f"the others' p99 moved by {moved:.0%}")
    result = {"slots": args.slots, "bursts": args.bursts, "refused_after_ms": spread(refused), "others_ms": {"before": spread(before), "during": spread(during)}}
    return {**result, "others_p99_moved": round(moved, 3), "problems": problems}


PHASES = {"lag": phase_lag, "speech": phase_speech, "full": phase_full, "bursts": phase_bursts}


def main(args):
    failed = []
    for name in args.phases.split(","):
        begun = time.monotonic()
        result = PHASES[name](args)
        record = {
            "what": "figures", "phase": name, "date": time.strftime("%Y-%m-%d"), "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
            "models": f"{pathlib.Path(args.speak).name if args.speak else 'nano-voice'}, nano-ear", "slots": args.slots, "threads": args.threads, "seconds": round(time.monotonic() - begun, 1), **result,
        }
        failed += [name] if result["problems"] else []
        if args.out:
            with open(args.out, "a") as file:
                file.write(json.dumps(record) + "\n")
        print(json.dumps(record, indent=1), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voce", default="target/release/voce")
    parser.add_argument("--speak", help="the voice model; the built-in one unless given")
    parser.add_argument("--voice", help="its voice")
    parser.add_argument("--threads", type=int, help="threads of each model; the server's choice unless given")
    parser.add_argument("--slots", type=int, default=32, help="slots that the server declares")
    parser.add_argument("--minutes", type=float, default=10, help="of a trial at half of the slots")
    parser.add_argument("--full-minutes", type=float, default=60, help="with every slot in use")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--bursts", type=int, default=1000)
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--out", help="appends each phase's result here, as a line of JSON")
    sys.exit(main(parser.parse_args()))
