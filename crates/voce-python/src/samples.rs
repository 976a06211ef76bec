//! Samples in and out of Python's buffers: arrays of any library come in, bytes of `float32` go out.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

/// Channels beyond which an array is taken to lie the wrong way round.
const MAX_CHANNELS: usize = 8;

/// Mono samples in -1..1 of anything with a buffer of `float32`, `float64`, `int16` or `int32`: one dimension, or frames by
/// channels, which are mixed.
pub(crate) fn mono(audio: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    if let Some(samples) = read::<f32>(audio, |s| s)? {
        return Ok(samples);
    }
    if let Some(samples) = read::<f64>(audio, |s| s as f32)? {
        return Ok(samples);
    }
    if let Some(samples) = read::<i16>(audio, |s| f32::from(s) / 32_768.0)? {
        return Ok(samples);
    }
    if let Some(samples) = read::<i32>(audio, |s| s as f32 / 2_147_483_648.0)? {
        return Ok(samples);
    }
    let kind = audio.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "{kind} is no array of samples: give float32, float64, int16 or int32 with the buffer protocol, such as numpy's"
    )))
}

/// The samples, if the object is a buffer of this type.
fn read<T: Element>(audio: &Bound<'_, PyAny>, scale: impl Fn(T) -> f32) -> PyResult<Option<Vec<f32>>> {
    let Ok(buffer) = PyBuffer::<T>::get(audio) else { return Ok(None) };
    let channels = match *buffer.shape() {
        [_] => 1,
        [_, channels] if (1..=MAX_CHANNELS).contains(&channels) => channels,
        _ => {
            return Err(PyValueError::new_err(format!(
                "samples have the shape {:?}: give (frames,) or (frames, channels) with up to {MAX_CHANNELS} channels",
                buffer.shape()
            )));
        }
    };
    let samples = buffer.to_vec(audio.py())?.into_iter().map(scale);
    if channels == 1 {
        return Ok(Some(samples.collect()));
    }
    let all: Vec<f32> = samples.collect();
    Ok(Some(all.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() / channels as f32).collect()))
}

/// The samples as bytes that an array of `float32` can be made of without a further copy.
pub(crate) fn bytes<'py>(py: Python<'py>, samples: &[f32]) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, size_of_val(samples), |bytes| {
        for (to, sample) in bytes.chunks_exact_mut(size_of::<f32>()).zip(samples) {
            to.copy_from_slice(&sample.to_ne_bytes());
        }
        Ok(())
    })
}
