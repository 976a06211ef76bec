"""Batches for Ray Data: the callables by themselves, and in Ray where it is installed."""

from __future__ import annotations

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


class _BreaksOff:
    """Notes the rows that come by. Breaks off behind the third as soon as something is kept, while `mended` is not there."""

    def __init__(self, notes: str, mended: str, kept: str) -> None:
        self._notes, self._mended, self._kept = notes, mended, kept
        self._seen = 0

    def __call__(self, batch):
        import os
        import time

        self._seen += len(batch["id"])
        if self._seen > 3 and not os.path.exists(self._mended):
            end = time.monotonic() + 120
            while time.monotonic() < end and not _ids_kept(self._kept):
                time.sleep(0.1)
            raise RuntimeError("broken off by the test")
        with open(self._notes, "a") as notes:
            notes.writelines(f"{number}\n" for number in batch["id"])
        return {"id": batch["id"], "text": batch["text"]}


def _ids_kept(folder) -> list[int]:
    """Rows that Ray's checkpoints say are written."""
    import pathlib

    from pyarrow import parquet

    files = pathlib.Path(folder).rglob("*.parquet")
    return [number for file in files for number in parquet.read_table(file)["id"].to_pylist()]


def test_a_job_that_broke_off_goes_on_from_rays_checkpoint(home, wav, tmp_path):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    interfaces = pytest.importorskip("ray.data.checkpoint.interfaces", reason="this Ray has no checkpoints of data")
    notes, mended, kept = tmp_path / "notes", tmp_path / "mended", tmp_path / "checkpoints"
    # Two actors, and as much again for what reads and writes.
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": {"VOCE_HOME": str(home)}})
    context = ray.data.DataContext.get_current()
    try:
        rows = ray.data.from_items([{"id": number, "path": str(wav)} for number in range(8)])
        rows.repartition(8).write_parquet(str(tmp_path / "rows"))
        context.checkpoint_config = interfaces.CheckpointConfig(
            id_column="id", checkpoint_path=str(kept), delete_checkpoint_on_success=False
        )

        def run():
            (
                # A block for each file: what is written and kept is a block.
                ray.data.read_parquet(str(tmp_path / "rows"), override_num_blocks=8)
                .map_batches(
                    voce.ray.Transcribe, concurrency=1, num_cpus=1, batch_size=1,
                    fn_constructor_kwargs={"model": "nano-ear", "device": "cpu", "threads": 1, "slots": 1},
                )
                .map_batches(
                    _BreaksOff, concurrency=1, num_cpus=1, batch_size=1,
                    fn_constructor_kwargs={"notes": str(notes), "mended": str(mended), "kept": str(kept)},
                )
                .write_parquet(str(tmp_path / "texts"))
            )

        with pytest.raises(Exception, match="broken off by the test"):
            run()
        before, seen = set(_ids_kept(kept)), len(notes.read_text().split())
        assert before and len(before) < 8
        mended.touch()
        run()
        # What the first run had kept was not heard again, and the rest was.
        again = {int(number) for number in notes.read_text().split()[seen:]}
        assert again == set(range(8)) - before
        context.checkpoint_config = None
        texts = ray.data.read_parquet(str(tmp_path / "texts")).take_all()
        assert sorted(row["id"] for row in texts) == list(range(8))
        assert all("weather" in row["text"].lower() for row in texts)
    finally:
        context.checkpoint_config = None
        ray.shutdown()
