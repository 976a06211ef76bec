"""Batches for Ray Data: the callables by themselves, and in Ray where it is installed."""

from __future__ import annotations

import pathlib

import numpy
import pytest
import voce
import voce.ray

TEXTS = ["The weather is fine today.", "   ", "Tomorrow it rains."]


@pytest.fixture(scope="module")
def synthesize(home):
    return voce.ray.Synthesize("nano-voice", device="cpu", threads=1, slots=2, seed=1)


@pytest.fixture(scope="module")
def transcribe(home):
    return voce.ray.Transcribe("nano-ear", device="cpu", threads=1, slots=2)


def test_rows_are_spoken_and_a_bad_one_keeps_its_error(synthesize, spoken):
    batch = synthesize({"text": numpy.array(TEXTS, dtype=object), "id": numpy.arange(3)})
    assert [e and e.split(":")[0] for e in batch["error"]] == [None, "bad_text", None]
    numpy.testing.assert_array_equal(batch["audio"][0], spoken)
    assert len(batch["audio"][1]) == 0 and list(batch["sample_rate"]) == [24_000] * 3
    assert list(batch["id"]) == [0, 1, 2]


def test_rows_are_heard_from_files_bytes_and_arrays(transcribe, wav, spoken, speaker):
    text = transcribe({"path": [str(wav)]})["text"][0]
    assert "weather" in text.lower()
    assert transcribe({"bytes": [wav.read_bytes()]})["text"][0] == text
    heard = transcribe({"audio": [spoken, spoken], "sample_rate": [speaker.sample_rate] * 2})
    assert heard["text"][0] == heard["text"][1] and heard["words"][0][0]["start"] >= 0
    missing = transcribe({"path": [str(wav), "no-such-file.wav"]})
    assert missing["error"][0] is None and missing["error"][1] and missing["text"][1] is None
    with pytest.raises(ValueError, match="column"):
        transcribe({"sound": [1]})


def test_errors_may_be_raised(home):
    strict = voce.ray.Synthesize("nano-voice", device="cpu", threads=1, slots=1, on_error="raise")
    with pytest.raises(voce.VoceError):
        strict({"text": [" "]})


def test_a_dataset_goes_through_ray(home):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"VOCE_HOME": str(home)}})
    try:
        options = {"device": "cpu", "threads": 1, "slots": 2}
        spoken = ray.data.from_items([{"text": text} for text in TEXTS]).map_batches(
            voce.ray.Synthesize, concurrency=1, num_cpus=1, batch_size=2,
            fn_constructor_kwargs={"model": "nano-voice", "seed": 1, **options},
        )
        heard = spoken.map_batches(
            voce.ray.Transcribe, concurrency=1, num_cpus=1, batch_size=2,
            fn_constructor_kwargs={"model": "nano-ear", "column": "audio", **options},
        )
        rows = sorted(heard.take_all(), key=lambda row: TEXTS.index(row["text"]) if row["text"] in TEXTS else 9)
        assert len(rows) == 3 and any("weather" in (row["text"] or "").lower() for row in rows)
    finally:
        ray.shutdown()



class _Notes:
    """Notes the rows that come by."""

    def __init__(self, notes: str) -> None:
        self._notes = notes

    def __call__(self, batch):
        with open(self._notes, "a") as notes:
            notes.writelines(f"{number}\n" for number in batch["id"])
        return {"id": batch["id"], "text": batch["text"]}


def test_rows_that_rays_checkpoints_have_are_not_heard_again(home, wav, tmp_path):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    interfaces = pytest.importorskip("ray.data.checkpoint.interfaces", reason="this Ray has no checkpoints of data")
    notes, rows, texts = tmp_path / "notes", tmp_path / "rows", tmp_path / "texts"
    # Two actors, and as much again for what reads and writes; workers find `_Notes` by this file's folder.
    there = {"VOCE_HOME": str(home), "PYTHONPATH": str(pathlib.Path(__file__).parent)}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": there})
    context = ray.data.DataContext.get_current()

    def add(numbers):
        ray.data.from_items([{"id": number, "path": str(wav)} for number in numbers]).write_parquet(str(rows))

    def run():
        (
            ray.data.read_parquet(str(rows))
            .map_batches(
                voce.ray.Transcribe, concurrency=1, num_cpus=1, batch_size=1,
                fn_constructor_kwargs={"model": "nano-ear", "device": "cpu", "threads": 1, "slots": 1},
            )
            .map_batches(_Notes, concurrency=1, num_cpus=1, fn_constructor_kwargs={"notes": str(notes)})
            .write_parquet(str(texts))
        )
        return sorted(int(number) for number in notes.read_text().split())

    try:
        add(range(4))
        context.checkpoint_config = interfaces.CheckpointConfig(
            id_column="id", checkpoint_path=str(tmp_path / "checkpoints"), delete_checkpoint_on_success=False
        )
        assert run() == [0, 1, 2, 3]
        context.checkpoint_config, config = None, context.checkpoint_config
        add(range(4, 7))
        context.checkpoint_config = config
        # The job goes on: what was kept is not heard again.
        assert run() == [0, 1, 2, 3, 4, 5, 6]
        context.checkpoint_config = None
        kept = ray.data.read_parquet(str(texts)).take_all()
        assert sorted(row["id"] for row in kept) == [0, 1, 2, 3, 4, 5, 6]
        assert all("weather" in row["text"].lower() for row in kept)
    finally:
        context.checkpoint_config = None
        ray.shutdown()
